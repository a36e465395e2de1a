"""Partition: the high watermark of a log that was just opened."""

from __future__ import annotations

import errno
import os
import select
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkalite.broker.replica.batch_opener import BatchOpener
from kafkalite.broker.replica.partition import Partition
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.log import log_flushes
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.verification import NOT_REQUIRED
from kafkalite.transport.reactor import Reactor
from tests.simulation.disk import FaultyDisk, QuickDisk
from tests.storage.factories import batch, open_log, settings

LARGE = {keys.SEGMENT_BYTES: 1 << 20}


def moved_log(directory: Path, durability: str) -> Log:
    """Return a log of two records, transferred before the second was flushed."""
    log = open_log(directory, {**LARGE, keys.DURABILITY: durability})
    log.append(batch(b"a"), 0)
    log.flush()
    log.append(batch(b"b"), 0)
    end = log.finish(flushed=False)
    log.release()
    return open_log(directory, {**LARGE, keys.DURABILITY: durability}, end=end)


@pytest.mark.parametrize(("durability", "readable"), [("fsync", 1), ("os", 2)])
def test_high_watermark_of_an_opened_partition_is_durable(
    tmp_path: Path, durability: str, readable: int
) -> None:
    log = moved_log(tmp_path / "t-0", durability)
    assert (log.end_offset, log.durable_offset) == (2, 1)
    flusher = Flusher(disk=QuickDisk())
    timers = Reactor(ManualClock())
    opener = BatchOpener()
    replicas = ReplicaManager(timers, flusher, opener, lambda topic: None)
    partition = replicas.add(log, 0, settings({keys.DURABILITY: durability}))
    assert partition.high_watermark == readable
    replicas.settle()  # nothing is appended, and the existing records are flushed
    if readable < 2:
        select.select([flusher], [], [])
        for flush in flusher.collect():
            assert flush.done is not None
            flush.done(flush)
    assert partition.high_watermark == 2
    flusher.close()
    opener.close()
    timers.close()


def test_ended_transactions_are_forgotten_without_readers(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LARGE)
    partition = Partition(log, 0, settings({keys.DURABILITY: "os"}))
    for sequence in range(3):
        begun = batch(
            b"v", producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        partition.append(begun, guard=NOT_REQUIRED)
        assert len(log.producers.transactions) == 1
        partition.append_marker(TransactionMarker(7, 0, True, 0))
        assert len(log.producers.transactions) == 0
    assert partition.last_stable_offset == log.end_offset == 6
    log.release()


class Served:
    """Two partitions of a node, whose loop the test runs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.reactor = Reactor(self.clock)
        self.flusher = Flusher(disk=QuickDisk())
        self.opener = BatchOpener()
        self.replicas = ReplicaManager(self.reactor, self.flusher, self.opener, lambda topic: None)
        self.reactor.at_commit(self.replicas.settle)
        self.reactor.watch(self.flusher.fileno(), self.collect)

    def add(self, directory: Path, disk: Disk, durability: str) -> Partition:
        values = {**LARGE, keys.DURABILITY: durability, keys.FLUSH_MS: 500}
        log = open_log(directory, values, disk=disk)
        log.topic = directory.name
        log.topic_id = directory.name.encode().ljust(16)
        return self.replicas.add(log, 0, settings(values))

    def collect(self) -> None:
        for flush in self.flusher.collect():
            assert flush.done is not None
            flush.done(flush)

    def append(self, partition: Partition) -> None:
        self.replicas.append_own(partition, batch(b"a"))

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.reactor.tick(5)
        raise AssertionError("never")

    def close(self) -> None:
        self.reactor.unwatch(self.flusher.fileno())
        self.flusher.close()
        self.opener.close()
        self.reactor.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.mark.parametrize("durability", ["fsync", "interval"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_flush_is_retried_when_its_file_cannot_be_opened(
    served: Served, tmp_path: Path, durability: str, code: int
) -> None:
    disk = FaultyDisk(1, code, sticky=True, only=("open",))
    disk.armed = False
    broken = served.add(tmp_path / "broken", disk, durability)
    whole = served.add(tmp_path / "whole", QuickDisk(), durability)
    for partition in (broken, whole):
        served.append(partition)
    broken.log.active.release()
    disk.armed = True
    served.reactor.tick(0)
    served.clock.advance(500)
    served.until(lambda: whole.log.durable_offset == 1)
    assert disk.failed and broken.log.durable_offset == 0
    disk.armed = False
    served.clock.advance(1_000)
    served.reactor.tick(0)
    served.clock.advance(500)
    served.until(lambda: broken.log.durable_offset == 1)
    assert broken.high_watermark == 1


def test_flush_is_retried_when_the_disk_is_full(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    partition = served.add(tmp_path / "t", QuickDisk(), "fsync")
    with monkeypatch.context() as context:
        context.setattr(log_flushes, "put_file", full)
        served.append(partition)
        served.reactor.tick(0)
        served.until(lambda: not partition.log.is_flushing)
        assert (partition.log.durable_offset, partition.high_watermark) == (0, 0)
    served.clock.advance(1_000)
    served.until(lambda: partition.high_watermark == 1)
    assert not partition.log.leader_epochs.unsaved


def test_partition_whose_directory_was_removed_is_offline(served: Served, tmp_path: Path) -> None:
    lost = served.add(tmp_path / "lost", QuickDisk(), "fsync")
    whole = served.add(tmp_path / "whole", QuickDisk(), "fsync")
    for partition in (lost, whole):
        served.append(partition)
    shutil.rmtree(lost.log.directory)
    served.until(lambda: lost.error is not None)
    served.until(lambda: whole.high_watermark == 1)
    with pytest.raises(KafkaStorageError, match="was removed"):
        lost.append(batch(b"b"))
    assert served.replicas.is_offline("lost", 0) and served.replicas.offline_count == 1
    assert lost.high_watermark == 0
