"""LogEnvironment: the objects that the logs of one node share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafkalite.clock import Clock
from kafkalite.storage.files.deferred_delete import DeferredDeletes
from kafkalite.storage.files.disk import Disk, FreeSpace
from kafkalite.storage.files.open_segments import OpenSegments

Checkpoint = Callable[[str, int, int], None]
"""Called with a topic, a partition and the end of its log after a truncation; raises
KafkaStorageError if the checkpoint is not written."""


def _no_checkpoint(topic: str, partition: int, end_offset: int) -> None:
    """Do nothing, for a log that is opened without a LogManager."""


class LogEnvironment(NamedTuple):
    """Clock, disk and limits of the logs of one node."""

    clock: Clock
    disk: Disk
    space: FreeSpace
    deferred_deletes: DeferredDeletes
    """The deferred deletes, which get the files of removed segments."""
    open_segments: OpenSegments
    checkpoint: Checkpoint = _no_checkpoint
    """Writes the recovery point of a log, before it is truncated."""

    @classmethod
    def of(cls, directory: Path, clock: Clock, disk: Disk) -> LogEnvironment:
        """Return the environment of logs in a directory that keeps no space free."""
        return cls(
            clock, disk, FreeSpace(directory, 0, disk), DeferredDeletes(clock, disk), OpenSegments()
        )

    def without_reserve(self, directory: Path) -> LogEnvironment:
        """Return an environment whose logs may use the space that others keep free."""
        return self._replace(space=FreeSpace(directory, 0, self.disk))
