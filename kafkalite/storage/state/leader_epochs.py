"""LeaderEpochCache: the start offset of each leader epoch of a log.

The file `leader-epoch-checkpoint` is Kafka's: version 0, the number of entries, then a line
`epoch start-offset` for each.  Epochs and offsets increase.  Every batch carries the leader epoch
it was appended under, so a lost or damaged file is rebuilt from the log.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from kafkalite.storage.files.disk import Disk, put_file, read_small_file

VERSION = 0
NO_EPOCH = -1


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset at which its records end in a log."""

    epoch: int
    end_offset: int


UNKNOWN_END = EpochEnd(NO_EPOCH, -1)


class LeaderEpochCache:
    """The leader epochs of one log, each with its start offset."""

    __slots__ = ("epochs", "latest", "starts", "unflushed_from", "unsaved")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.starts: list[int] = []
        self.latest = NO_EPOCH
        self.unsaved = False
        self.unflushed_from: int | None = None
        """Start of the first epoch that was assigned and no flush of the file has begun with."""

    @classmethod
    def load(cls, path: Path) -> LeaderEpochCache | None:
        """Return the cache stored in a file, or None if the file is missing or invalid.

        As in Kafka the file is empty until the first epoch.
        """
        cache = cls()
        try:
            lines = read_small_file(path).decode("ascii").splitlines()
            if not lines:
                return cache
            version, count, *entries = lines
            if int(version) != VERSION or int(count) != len(entries):
                return None
            for line in entries:
                epoch, start_offset = (int(word) for word in line.split())
                if epoch <= cache.latest or start_offset < 0:
                    return None
                if cache.starts and start_offset <= cache.starts[-1]:
                    return None
                cache.assign(epoch, start_offset)
        except (OSError, ValueError):
            return None
        cache.unsaved = False
        cache.unflushed_from = None
        return cache

    def __len__(self) -> int:
        return len(self.epochs)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that the leader of this epoch appends its first batch at `start_offset`."""
        if epoch == self.latest and start_offset >= self.starts[-1]:
            return
        # Later or equal entries are of a leader whose records were truncated.
        while self.epochs and (self.epochs[-1] >= epoch or self.starts[-1] >= start_offset):
            self.epochs.pop()
            self.starts.pop()
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        self.latest = epoch
        self.unsaved = True
        self.set_unflushed_from(start_offset)

    def set_unflushed_from(self, start_offset: int) -> None:
        """Note that the epochs from this offset on may not be in the file on the disk."""
        before = self.unflushed_from
        self.unflushed_from = start_offset if before is None else min(before, start_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the end of the greatest epoch at or below; UNKNOWN_END for a later one.

        An epoch below all known ones ends where the first known one begins.
        """
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN_END
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        slot = bisect_right(self.epochs, epoch)
        return EpochEnd(self.epochs[slot - 1] if slot else epoch, self.starts[slot])

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch under which the record at `offset` was appended; None if it is older
        than all known epochs."""
        slot = bisect_right(self.starts, offset)
        return self.epochs[slot - 1] if slot else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that began at `end_offset` or later."""
        while self.starts and self.starts[-1] >= end_offset:
            # An epoch that begins at the end has no records, so a file that has it is harmless.
            self.unsaved = self.unsaved or self.starts[-1] > end_offset
            self.epochs.pop()
            self.starts.pop()
        self.latest = self.epochs[-1] if self.epochs else NO_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended before `start_offset`; the epoch there then begins there."""
        slot = bisect_right(self.starts, start_offset)
        if slot > 1 or (slot == 1 and self.starts[0] < start_offset):
            del self.epochs[: slot - 1]
            del self.starts[: slot - 1]
            self.starts[0] = start_offset
            self.unsaved = True

    def encoded(self) -> bytes:
        lines = [str(VERSION), str(len(self.epochs))]
        lines += [f"{epoch} {start}" for epoch, start in zip(self.epochs, self.starts, strict=True)]
        return ("\n".join(lines) + "\n").encode("ascii")

    def save(self, disk: Disk, path: Path, *, flushed: bool = True) -> None:
        put_file(disk, path, self.encoded(), flushed=flushed)
        self.unsaved = False
        if flushed:
            self.unflushed_from = None
