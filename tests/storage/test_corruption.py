"""Damage at rest (F9, one replica): each kind of file, each kind of damage, then the log is opened.

The log reports what it lost or is not served; it never returns a record that was not written, never
a record under another offset, and never fewer records than it reports.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalite.errors import KafkaError, KafkaStorageError
from kafkalite.records.batch import batches
from kafkalite.storage.files import layout
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.state.known_state import KnownEnd
from tests.storage.factories import NOW, batch, close, open_log, produced, values_of

COUNT = 60


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(2):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def zero(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    content[start : start + 100] = bytes(len(content[start : start + 100]))
    path.write_bytes(content)


def wrong_file(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(path.stat().st_size))


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


DAMAGES = [flip, truncate, zero, wrong_file, empty, delete]
KINDS: dict[str, Callable[[Log], Path]] = {
    "log tail": lambda log: log.active.path,
    "log middle": lambda log: log.segments[2].path,
    "index": lambda log: log.segments[2].offset_index.path,
    "active index": lambda log: log.active.offset_index.path,
    "timeindex": lambda log: log.segments[2].time_index.path,
    "snapshot": lambda log: log.producers.snapshot_path(log.end_offset),
    "epochs": lambda log: log.directory / layout.LEADER_EPOCHS,
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, KnownEnd]:
    """Return a log that was closed cleanly, and its end."""
    log = open_log(tmp_path_factory.mktemp("sound") / "t-0")
    for number in range(COUNT):
        value = b"value %d" % number
        log.append(produced(number, value) if number % 2 == 0 else batch(value), number // 25)
        if number % 2 == 0:
            log.producers._producers.clear()
    end = close(log)
    assert end is not None
    return log, end


def read_as_a_consumer(log: Log) -> dict[int, bytes | None]:
    """Return the records a client sees: slices whose batches it checks by CRC."""
    seen: dict[int, bytes | None] = {}
    offset = log.log_start_offset
    while (piece := read(log, offset, 400, log.end_offset)) is not None:
        before = offset
        for whole in batches(piece.read()):
            for record in whole:
                if record.offset >= offset:
                    seen[record.offset] = record.value
            offset = max(offset, whole.header.last_offset + 1)
        if offset == before:
            break
    return seen


@pytest.mark.parametrize("clean", [True, False], ids=["clean end", "crash"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_never_return_records_that_were_not_written(
    tmp_path: Path, sound: tuple[Log, KnownEnd], kind: str, damage: Callable[..., None], clean: bool
) -> None:
    log, end = sound
    for seed in range(4):
        directory = tmp_path / str(seed)
        shutil.copytree(log.directory, directory)
        damage(directory / KINDS[kind](log).name, random.Random(seed))
        again = open_log(directory, end=end if clean else None, recovery_point=COUNT)
        try:
            seen = read_as_a_consumer(again)
        except KafkaError:
            assert kind.startswith("log"), "damage beside the log must not reach its readers"
            continue
        assert all(value == b"value %d" % offset for offset, value in seen.items())
        assert sorted(seen) == list(range(again.log_start_offset, len(seen)))
        if not kind.startswith("log"):
            assert len(seen) == COUNT
            assert again.failure is None
            assert again.end_of_epoch(0) == (0, 25)
            again.append(batch(b"next"), 2)
            assert values_of(again, COUNT) == [(COUNT, b"next")]


@pytest.mark.parametrize("clean", [True, False], ids=["clean end", "crash"])
def test_records_lost_below_the_recovery_point_quarantine_the_log(
    tmp_path: Path, sound: tuple[Log, KnownEnd], clean: bool
) -> None:
    log, end = sound
    for damaged in (log.active.path, log.segments[2].path):
        directory = tmp_path / damaged.name
        shutil.copytree(log.directory, directory)
        with (directory / damaged.name).open("r+b") as file:
            file.truncate(damaged.stat().st_size - 3)
        before = {path.name: path.read_bytes() for path in directory.glob("*.log")}
        again = open_log(directory, end=end if clean else None, recovery_point=COUNT)
        assert again.is_quarantined
        for forbidden in (
            lambda log=again: read(log, 0, 100, COUNT),
            lambda log=again: log.append(batch(b"v"), 0),
            lambda log=again: log.delete_records(1),
        ):
            with pytest.raises(KafkaStorageError, match="nothing was truncated"):
                forbidden()
        assert again.finish() is None
        assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == before


@pytest.mark.parametrize("recovery_point", [0, COUNT])
def test_batch_after_an_offset_gap_is_never_truncated(
    tmp_path: Path, sound: tuple[Log, KnownEnd], recovery_point: int
) -> None:
    log, _ = sound
    directory = tmp_path / "copy"
    shutil.copytree(log.directory, directory)
    path = directory / log.active.path.name
    content = bytearray(path.read_bytes())
    content[6] ^= 1  # of a base offset, which the CRC does not cover
    path.write_bytes(content)
    for old in directory.glob("*.snapshot"):
        old.unlink()
    again = open_log(directory, recovery_point=recovery_point)
    assert again.is_quarantined
    assert path.read_bytes() == content


def next_batch(position: int, log: Log) -> int:
    path = log.segments[1].path
    (length,) = struct.unpack_from(">i", path.read_bytes(), position + 8)
    return int(position + 12 + length)


@pytest.mark.parametrize("beside", [lambda position, log: position + 16, next_batch])
def test_wrong_index_is_rebuilt(
    tmp_path: Path, sound: tuple[Log, KnownEnd], beside: Callable[[int, Log], int]
) -> None:
    log, end = sound
    shutil.copytree(log.directory, tmp_path / "t-0")
    path = tmp_path / "t-0" / log.segments[1].offset_index.path.name
    true = path.read_bytes()
    (position,) = struct.unpack_from(">i", true, 4)
    path.write_bytes(true[:4] + struct.pack(">i", beside(position, log)) + true[8:])
    again = open_log(tmp_path / "t-0", end=end)
    offset = again.segments[1].base_offset + int.from_bytes(true[:4], "big") + 1
    assert values_of(again, offset)[0][0] == offset
    assert path.read_bytes() == true


def test_segment_truncated_while_it_is_read_raises_storage_error(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(COUNT):
        log.append(batch(b"value %d" % number, timestamp=NOW), 0)
    victim = log.segments[1]
    with victim.path.open("r+b") as file:
        file.truncate(victim.size // 2)
    with pytest.raises(KafkaStorageError):
        read(log, log.segments[2].base_offset - 1, 100, COUNT)
    assert values_of(log, log.segments[2].base_offset)[0][0] == log.segments[2].base_offset
