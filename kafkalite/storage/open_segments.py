"""OpenSegments: the segments whose files are open, so that they do not become too many.

A consumer that reads a partition from its beginning opens each of its segments, and so do flushes
and searches by time.  Closed segments that were used longest ago are released; whoever holds a
slice of one keeps it, and the next reader opens it again.

Active segments keep their files open, one to three for each partition that is written or read, and
have no maximum.  When no descriptor is left for a file, those are released that are idle: flushed
to their end, so that no write-back error can be missed (the kernel reports one to descriptors that
were open before it).
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalite.errors import KafkaStorageError

if TYPE_CHECKING:
    from kafkalite.records.file_slice import OpenFile
    from kafkalite.storage.segment import LogSegment

OPEN_MAX = 1000
"""Each may have three files open."""

SHARE = 10
"""Of few descriptors a tenth goes to closed segments: clients need theirs, and so do appends."""

RELEASED_AT_ONCE = 64
LOOKED_AT_ONCE = 256
"""Active segments that are released, and looked at for that, for one file that cannot be opened:
a request may need thousands."""


class OpenSegments:
    """Segments with open files, closed ones in the order of their use; see the module."""

    def __init__(self, count_max: int | None = None) -> None:
        if count_max is None:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            count_max = min(OPEN_MAX, limit // SHARE // 3)
        self._count_max = max(1, count_max)
        self._segments: OrderedDict[LogSegment, None] = OrderedDict()
        self._active: OrderedDict[LogSegment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def used(self, segment: LogSegment) -> None:
        """Note that this segment has files open, and is read now."""
        if segment.is_active:
            self._active[segment] = None
            self._active.move_to_end(segment)
            return
        self._active.pop(segment, None)
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        if len(self._segments) > self._count_max:
            next(iter(self._segments)).release()

    def released(self, segment: LogSegment) -> None:
        """Note that this segment has let go of its files."""
        self._segments.pop(segment, None)
        self._active.pop(segment, None)

    def open(self, open_file: Callable[[], OpenFile]) -> OpenFile:
        """Open a file of a segment; when descriptors are short, release idle segments first.

        Raises KafkaStorageError if descriptors are short even so.
        """
        try:
            return open_file()
        except KafkaStorageError:
            if not self._release_idle():
                raise
            return open_file()

    def _release_idle(self) -> bool:
        """Release some segments; whether there were any."""
        count = 0
        for segment in list(self._active)[:LOOKED_AT_ONCE]:
            if segment.is_idle:
                segment.release()
                count += 1
                if count == RELEASED_AT_ONCE:
                    break
            else:
                self._active.move_to_end(segment)
        if not count:
            for segment in list(self._segments)[:RELEASED_AT_ONCE]:
                segment.release()
                count += 1
        return count > 0
