"""OpenSegments: the closed segments whose files are open, so that they do not become too many.

A consumer that reads a partition from its beginning opens each of its segments, and so do flushes
and searches by time.  Those used longest ago let go of their files; whoever holds a slice of one
keeps it, and the next reader opens it again.  Segments that are appended to are not counted here.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalite.storage.segment import LogSegment

OPEN_MAX = 1000
"""Each may have three files open."""

SHARE = 10
"""Of few descriptors a tenth goes to closed segments: clients need theirs, and so do appends."""


class OpenSegments:
    """Closed segments in the order of their use; see the module."""

    def __init__(self, count_max: int | None = None) -> None:
        if count_max is None:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            count_max = min(OPEN_MAX, limit // SHARE // 3)
        self._count_max = max(1, count_max)
        self._segments: OrderedDict[LogSegment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def used(self, segment: LogSegment) -> None:
        """This one has files open, and is read now."""
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        if len(self._segments) > self._count_max:
            next(iter(self._segments)).release()

    def released(self, segment: LogSegment) -> None:
        """This one has let go of its files."""
        self._segments.pop(segment, None)
