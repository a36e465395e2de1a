"""The comparison of replicas after a run: equal logs, whatever their segments, and others."""

from types import SimpleNamespace

import pytest

from kafkalite.records.batch import Record, build
from tests.faults.replicas import Replicas, committed

NODES = [1, 2, 3]


def batch(offset: int, value: bytes) -> bytes:
    return build([Record(offset=offset, timestamp=1, value=value)], base_offset=offset)


@pytest.fixture
def replicas(tmp_path, monkeypatch):
    """Three equal replicas of one partition with four batches, in two, one and two segments."""
    found = Replicas(SimpleNamespace(data=tmp_path), "a", 1, len(NODES))
    monkeypatch.setattr(found, "state", lambda: ({0: 1}, {0: NODES}))
    batches = [batch(offset, b"value %d" % offset) for offset in range(4)]
    for node, split in zip(NODES, (1, 4, 3), strict=True):
        directory = found.directory(node, 0)
        directory.mkdir(parents=True)
        for base, part in ((0, batches[:split]), (split, batches[split:])):
            reserved = bytes(100)
            (directory / f"{base:020d}.log").write_bytes(b"".join(part) + reserved)
    return found


def test_equal_replicas_differ_in_nothing(replicas):
    assert list(replicas.unequal(0, 0, 4)) == []
    assert len(list(committed(replicas.directory(2, 0), 1, 3))) == 2


def test_replica_with_another_batch_is_named_with_its_offset(replicas):
    path = replicas.directory(2, 0) / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[2 * len(batch(0, b"value 0")) - 1] ^= 1
    path.write_bytes(content)
    (complaint,) = replicas.unequal(0, 0, 4)
    assert "nodes 1 and 2 differs from offset 1 on" in complaint


def test_replica_with_a_missing_batch_is_named_with_its_offset(replicas):
    (replicas.directory(3, 0) / f"{3:020d}.log").unlink()
    (complaint,) = replicas.unequal(0, 0, 4)
    assert "nodes 1 and 3 differs from offset 3 on" in complaint
    assert list(replicas.unequal(0, 0, 3)) == []


def test_replicas_without_their_batches_are_named(replicas):
    for node in NODES:
        for path in replicas.directory(node, 0).glob("*.log"):
            path.unlink()
    (complaint,) = replicas.unequal(0, 0, 4)
    assert "has no batch" in complaint
