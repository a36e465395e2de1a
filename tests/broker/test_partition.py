"""Partition: up to where a log that was just opened may be read."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from kafkalite.broker.replica_manager import ReplicaManager
from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.storage.flusher import Flusher
from kafkalite.storage.log import Log
from kafkalite.transport.reactor import Reactor
from tests.storage.disks import QuickDisk
from tests.storage.making import batch, open_log, settings

LARGE = {keys.SEGMENT_BYTES: 1 << 20}


def moved_log(directory: Path, durability: str) -> Log:
    """A log of two records that its last owner handed over without flushing the second."""
    log = open_log(directory, {**LARGE, keys.DURABILITY: durability})
    log.append(batch(b"a"), 0)
    log.flush()
    log.append(batch(b"b"), 0)
    end = log.finish(flushed=False)
    log.release()
    return open_log(directory, {**LARGE, keys.DURABILITY: durability}, clean=end)


@pytest.mark.parametrize(("durability", "readable"), [("fsync", 1), ("os", 2)])
def test_high_watermark_of_an_opened_partition_is_durable(
    tmp_path: Path, durability: str, readable: int
) -> None:
    log = moved_log(tmp_path / "t-0", durability)
    assert (log.end_offset, log.durable_offset) == (2, 1)
    flusher = Flusher(disk=QuickDisk())
    timers = Reactor(ManualClock())
    replicas = ReplicaManager(timers, flusher, lambda topic: None)
    partition = replicas.add(log, 0, settings({keys.DURABILITY: durability}))
    assert partition.high_watermark == readable
    replicas.settle()  # nothing is appended, and what was there is flushed
    if readable < 2:
        select.select([flusher], [], [])
        for flush in flusher.collect():
            assert flush.done is not None
            flush.done(flush)
    assert partition.high_watermark == 2
    flusher.close()
    timers.close()
