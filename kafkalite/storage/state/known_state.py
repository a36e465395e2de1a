"""The state of a log that is known before it is opened, from a checkpoint, a clean-shutdown file or
the handover file of another node."""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.storage.state.producer_state import RetainedBatches


class KnownEnd(NamedTuple):
    """The end of a log when it was closed, and the state its process had in memory."""

    end_offset: int
    active_size: int
    durable_offset: int | None = None
    """Offset up to which it was flushed; None: to its end."""
    retained_batches: RetainedBatches = []
    is_contiguous: bool = False
    """True if its segments were known to be contiguous, and no other process has had it since."""


class KnownLogState(NamedTuple):
    """The state of a log that is known before it is opened; its field names are a file format."""

    recovery_point: int = 0
    log_start_offset: int = 0
    end: KnownEnd | None = None
    drop_cache: bool = False
    """True if a flush failed on its file system: the page cache may differ from the disk."""
    same_boot: bool = False
    """True if the machine was not restarted since the log was written: all writes are present,
    flushed or not, and only the last write of a process that was killed may be torn."""
    cleaner_offset: int = -1
    """Offset up to which the log cleaner has cleaned it; -1 if it never has."""
    gaps_to: int | None = None
    """Offset up to which offsets are missing between its segments, as another broker's log cleaner
    may leave them; None if it was not open here before."""
    is_replicated: bool = False
    """True if its partition has several replicas, so that it may differ from the other logs."""


NOTHING_KNOWN = KnownLogState()
