"""PartitionJournal: a state machine that keeps a dictionary, in a partition of a real node."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from kafkalite.broker.coordinator.journal_loader import RecordCodec
from kafkalite.broker.coordinator.partition_journal import PartitionJournal
from kafkalite.broker.machine_host import MachineHost
from kafkalite.coordination.machine import DecisionResult
from kafkalite.errors import CorruptMessage, KafkaStorageError
from kafkalite.records.batch import batches
from kafkalite.storage.log import log_reader
from tests.handlers.conftest import InProcess


class Dictionary:
    """Keeps the last value of each key; a record is a key and a value."""

    def __init__(self):
        self.values = {}

    def replay(self, record):
        key, value = record
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


def read(key, value):
    if key.startswith(b"foreign"):
        return None
    if key.startswith(b"broken"):
        raise CorruptMessage("no")
    return key, value


class Kept:
    """The state machine on its partition, which can be reopened."""

    def __init__(self, node):
        self.node = node
        node.create("kept")
        self.open()

    def open(self):
        self.partition = self.node.node.replicas.leader("kept", 0)
        self.journal = PartitionJournal(
            self.partition, self.node.node.replicas, self.node.reactor,
            RecordCodec(lambda record: record, read),
        )  # fmt: skip
        self.machine = Dictionary()
        for _ in self.journal.load(self.machine):
            pass
        self.host = MachineHost(self.machine, self.journal)

    def set(self, **values):
        records = [(key.encode(), value) for key, value in values.items()]
        future = self.host.decide(lambda machine: DecisionResult("done", records))
        came = []
        future.then(lambda value, fault: came.append((value, fault)))
        return came

    def restart(self):
        self.node.restart()
        self.open()

    @property
    def log(self):
        return self.partition.log

    def stored(self):
        found = log_reader.read(self.log, self.log.log_start_offset, 1 << 30, self.log.end_offset)
        return [record for batch in batches(found.read()) for record in batch.records()]


@pytest.fixture
def kept(tmp_path):
    node = InProcess(tmp_path / "data")
    yield Kept(node)
    node.close()


def test_state_survives_a_restart(kept):
    assert kept.set(a=b"1", b=b"2") == [("done", None)]
    kept.set(a=b"3", c=b"4")
    kept.set(b=None)
    kept.restart()
    assert kept.machine.values == {b"a": b"3", b"c": b"4"}


def test_journal_that_cannot_be_read_is_a_storage_error(kept, monkeypatch):
    kept.set(a=b"1")

    def pread(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(KafkaStorageError, match="cannot be read at offset 0"):
        list(kept.journal.load(Dictionary()))


@pytest.mark.parametrize("size, steps", [(20_000, 60), (0, 1)])
def test_large_records_are_loaded_in_steps_of_their_own(kept, size, steps):
    for number in range(60):
        kept.set(**{f"key-{number}": bytes(size)})
    loaded = Dictionary()
    counts = [*kept.journal.load(loaded)]
    assert len({count for count in counts if count}) == steps
    assert loaded.values == kept.machine.values


def test_durability_fsync_completes_decisions_after_the_flush(tmp_path):
    node = InProcess(tmp_path / "data", durability="fsync")
    kept = Kept(node)
    came = kept.set(a=b"1")
    assert came == [] and kept.machine.values == {b"a": b"1"}
    node.until(lambda: came)
    assert kept.log.durable_offset == kept.log.end_offset
    node.close()


def test_failed_write_changes_nothing(kept, monkeypatch):
    def full(*_, **__):
        raise KafkaStorageError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(type(kept.log), "append", full)
        ((_, fault),) = kept.set(a=b"1")
    assert isinstance(fault, KafkaStorageError) and kept.machine.values == {}
    assert kept.set(a=b"2") == [("done", None)]


def test_foreign_and_invalid_records_are_skipped(kept, caplog):
    kept.set(foreign=b"1", a=b"2", broken1=b"3", broken2=b"4")
    with caplog.at_level(logging.ERROR):
        kept.restart()
    assert kept.machine.values == {b"a": b"2"}
    assert "records=2" in caplog.text
