"""MetadataReader: no record is replayed before it is durable."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kafkalite.broker.controller.metadata_reader import MetadataReader
from kafkalite.broker.controller.snapshot import encode_batch
from kafkalite.errors import Fatal
from kafkalite.protocol.schemas import internal
from kafkalite.storage.files.disk import FAILURE_MARK, WriteBackFailed
from tests.simulation.disk import FaultyDisk, QuickDisk

RECORDS = [internal.REMOVE_NODE(node_id=number) for number in range(4)]


class SizingDisk(QuickDisk):
    """A disk that records the size of each file at its last flush."""

    def __init__(self) -> None:
        self.flushed: dict[str, int] = {}

    def fdatasync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.flushed[path] = os.fstat(descriptor).st_size

    fsync = fdatasync


def write(directory: Path, base: int, begin: int, end: int) -> None:
    with (directory / f"{base:020d}.log").open("ab") as file:
        file.write(encode_batch(RECORDS[begin:end], begin, now_ms=1))


def test_records_are_durable_before_they_are_replayed(tmp_path: Path) -> None:
    disk = SizingDisk()
    reader = MetadataReader(tmp_path, disk)
    replayed: list[internal.TypedRecord] = []

    def replay(record: internal.TypedRecord) -> None:
        sizes = {str(path): path.stat().st_size for path in tmp_path.glob("*.log")}
        sizes = {path: size for path, size in sizes.items() if path in disk.flushed}
        assert sizes and all(disk.flushed[path] == size for path, size in sizes.items())
        assert str(tmp_path) in disk.flushed, "the segment's name is durable, too"
        replayed.append(record)

    write(tmp_path, 0, 0, 2)
    reader.load(replay)
    write(tmp_path, 0, 2, 3)
    reader.read_to(replay)
    disk.flushed.clear()
    write(tmp_path, 3, 3, 4)
    reader.read_to(replay)
    assert [record.fields for record in replayed] == [record.fields for record in RECORDS]


def test_records_that_cannot_be_flushed_are_not_replayed(tmp_path: Path) -> None:
    directory = tmp_path / "metadata"
    directory.mkdir()
    write(directory, 0, 0, 2)
    reader = MetadataReader(directory, FaultyDisk(1, errno.EIO, only=["fdatasync"]))
    with pytest.raises(WriteBackFailed, match="could not be flushed"):
        reader.load(lambda record: pytest.fail("it may be gone after a power cut"))
    assert (tmp_path / FAILURE_MARK).exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_descriptor_shortage_is_fatal_but_leaves_no_failure_mark(tmp_path: Path, code: int) -> None:
    directory = tmp_path / "metadata"
    directory.mkdir()
    write(directory, 0, 0, 2)
    reader = MetadataReader(directory, FaultyDisk(1, code, only=["open"]))
    with pytest.raises(Fatal, match="cannot be flushed now") as raised:
        reader.load(lambda record: pytest.fail("it may be gone after a power cut"))
    assert not isinstance(raised.value, WriteBackFailed)
    assert not (tmp_path / FAILURE_MARK).exists()
    replayed: list[internal.TypedRecord] = []
    reader.load(replayed.append)
    assert len(replayed) == 2
