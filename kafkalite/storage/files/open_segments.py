"""OpenSegments: limits the number of segments with open files.

A consumer that reads a partition from its beginning opens each of its segments, and so do flushes
and lookups by timestamp.  The least recently used closed segments are released; a reader that holds
a slice of one keeps it, and the next reader opens it again.

Active segments keep their files open, one to three for each partition that is written or read,
without a limit.  If no descriptor is left for a file, idle segments are released: those flushed to
their end, so that no write-back error is missed (the kernel reports one to descriptors that were
open before it).
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile

OPEN_MAX = 1000
"""Maximum number of closed segments; each may have three files open."""

SHARE = 10
"""Closed segments may use a tenth of the descriptors, if they are few: clients and appends need the
rest."""

RELEASED_MAX = 64
CHECKED_MAX = 256
"""Number of active segments that are released, and checked for that, when one file cannot be
opened: a request may need thousands of files."""


class ReleasableSegment(Protocol):
    """A segment whose files can be closed, and are opened again when next needed."""

    @property
    def is_active(self) -> bool:
        """True if this is the active segment of its log."""

    @property
    def is_idle(self) -> bool:
        """True if everything written to the active segment is durable."""

    def release(self) -> None:
        """Release the files."""


class OpenSegments:
    """Segments with open files, the closed ones in the order of their use."""

    def __init__(self, count_max: int | None = None) -> None:
        if count_max is None:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            count_max = min(OPEN_MAX, limit // SHARE // 3)
        self._count_max = max(1, count_max)
        self._segments: OrderedDict[ReleasableSegment, None] = OrderedDict()
        self._active: OrderedDict[ReleasableSegment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def used(self, segment: ReleasableSegment) -> None:
        """Note that this segment has open files and is used now."""
        if segment.is_active:
            self._active[segment] = None
            self._active.move_to_end(segment)
            return
        self._active.pop(segment, None)
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        if len(self._segments) > self._count_max:
            next(iter(self._segments)).release()

    def released(self, segment: ReleasableSegment) -> None:
        """Note that this segment has released its files."""
        self._segments.pop(segment, None)
        self._active.pop(segment, None)

    def open(self, open_file: Callable[[], OpenFile]) -> OpenFile:
        """Open a file of a segment, releasing idle segments first if descriptors are short.

        Raises KafkaStorageError if the file cannot be opened even so.
        """
        try:
            return open_file()
        except KafkaStorageError:
            if not self._release_idle():
                raise
            return open_file()

    def _release_idle(self) -> bool:
        """Release some idle segments; return whether there were any."""
        count = 0
        for segment in list(self._active)[:CHECKED_MAX]:
            if segment.is_idle:
                segment.release()
                count += 1
                if count == RELEASED_MAX:
                    break
            else:
                self._active.move_to_end(segment)
        if not count:
            for segment in list(self._segments)[:RELEASED_MAX]:
                segment.release()
                count += 1
        return count > 0
