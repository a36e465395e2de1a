"""The files of a log, byte for byte: Kafka's formats, and our own."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kafkalite._ext.record_batch import crc32c
from kafkalite.config import topic as keys
from kafkalite.ids import read_id, written_id
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import DISK, put_file
from kafkalite.storage.manager.log_manager import metadata_text
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from kafkalite.storage.state.producer_state import decoded
from tests.simulation.crash import RecordingDisk
from tests.storage.factories import NOW, batch, close, open_log, produced


def test_offset_index_has_last_offset_and_position_per_interval(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20, keys.INDEX_INTERVAL_BYTES: 150})
    for _ in range(6):
        log.append(batch(b"a", b"b"), 0)
    size = log.size // 6
    close(log)
    assert 75 < size < 150  # so every third batch has an entry
    assert (tmp_path / "00000000000000000000.index").read_bytes() == struct.pack(
        ">iiii", 5, 2 * size, 9, 4 * size
    )


def test_time_index_has_max_timestamps_per_interval(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20, keys.INDEX_INTERVAL_BYTES: 0})
    for late in (0, 5, 3, 9, 8):
        log.append(batch(b"v", timestamp=NOW + late), 0)
    close(log)
    # No entry for the first batch, nor for an interval without a newer record.
    assert (tmp_path / "00000000000000000000.timeindex").read_bytes() == struct.pack(
        ">qiqi", NOW + 5, 1, NOW + 9, 3
    )


def test_time_index_of_a_closed_segment_ends_with_its_max_timestamp(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for late in range(30):
        log.append(batch(b"v", timestamp=NOW + late), 0)
    close(log)
    ends = [segment.base_offset - 1 for segment in log.segments[1:]] + [29]
    for segment, end in zip(log.segments, ends, strict=True):
        entry = struct.pack(">qi", NOW + end, end - segment.base_offset)
        assert segment.time_index.path.read_bytes()[-12:] == entry


def test_producer_snapshot_has_the_last_batch_of_each_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(produced(0, b"a", b"b"), 0)
    log.append(produced(2, b"c", b"d", b"e"), 0)
    log.append(produced(9, producer_id=70_000_000_000, epoch=4), 0)
    close(log)
    rest = struct.pack(">i", 2)
    rest += struct.pack(">qhiqiqiq", 7, 0, 4, 4, 2, NOW + 2, -1, -1)
    rest += struct.pack(">qhiqiqiq", 70_000_000_000, 4, 9, 5, 0, NOW, -1, -1)
    snapshot = (tmp_path / "00000000000000000006.snapshot").read_bytes()
    assert snapshot == struct.pack(">hI", 1, crc32c(rest)) + rest
    assert [producer.producer_id for producer in decoded(snapshot)] == [7, 70_000_000_000]


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "version", "empty"])
def test_damaged_producer_snapshot_is_refused(tmp_path: Path, damage: str) -> None:
    log = open_log(tmp_path)
    log.append(produced(0), 0)
    snapshot = log.producers.encoded()
    wrong = {
        "flip": snapshot[:-1] + bytes([snapshot[-1] ^ 4]),
        "cut": snapshot[:-1],
        "longer": snapshot + b"\0",
        "version": b"\0\2" + snapshot[2:],
        "empty": b"",
    }[damage]
    with pytest.raises(ValueError, match=r"\w"):
        decoded(wrong)


def test_leader_epoch_checkpoint_has_version_count_and_entries(tmp_path: Path) -> None:
    cache = LeaderEpochCache()
    cache.assign(0, 0)
    cache.assign(4, 120)
    cache.save(DISK, tmp_path / layout.LEADER_EPOCHS)
    assert (tmp_path / layout.LEADER_EPOCHS).read_bytes() == b"0\n2\n0 0\n4 120\n"
    again = LeaderEpochCache.load(tmp_path / layout.LEADER_EPOCHS)
    assert again is not None
    assert (again.epochs, again.starts) == ([0, 4], [0, 120])


@pytest.mark.parametrize(
    "text", ["1\n0\n", "0\n2\n0 0\n", "0\n2\n4 0\n3 7\n", "0\n2\n0 9\n1 9\n", "0\n1\na b\n", "é"]
)
def test_damaged_leader_epoch_checkpoint_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "epochs").write_text(text)
    assert LeaderEpochCache.load(tmp_path / "epochs") is None


def test_leader_epochs_are_truncated_at_both_ends() -> None:
    cache = LeaderEpochCache()
    for epoch, start in ((1, 0), (2, 10), (5, 20), (6, 30)):
        cache.assign(epoch, start)
    cache.truncate_from_start(15)
    assert (cache.epochs, cache.starts) == ([2, 5, 6], [15, 20, 30])
    cache.truncate_from_end(20)
    assert (cache.epochs, cache.starts, cache.latest) == ([2], [15], 2)
    assert cache.end_offset_for(1, 40) == (1, 15)
    assert cache.end_offset_for(2, 40) == (2, 40)
    cache.assign(1, 17)
    assert (cache.epochs, cache.starts) == ([1], [17])


def test_partition_metadata_has_version_and_topic_id() -> None:
    identity = bytes(range(16))
    assert metadata_text(identity) == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert read_id(written_id(identity)) == identity


def test_segment_file_names_have_twenty_digits() -> None:
    assert layout.file_name(4096, layout.LOG) == "00000000000000004096.log"
    assert layout.offset_of("00000000000000004096.log", layout.LOG) == 4096
    for name in ("4096.log", "00000000000000004096.log.deleted", "0000000000000000409x.log",
                 "00000000000000004096.logs", "²0000000000000004096.log"):  # fmt: skip
        assert layout.offset_of(name, layout.LOG) is None


def test_partition_directory_is_named_by_topic_and_partition() -> None:
    assert layout.partition_of("my-topic.x-12") == ("my-topic.x", 12)
    for name in ("topic", "topic-", "-3", "topic-03", "t\n-3", "a/b-3", "x" * 250 + "-1"):
        assert layout.partition_of(name) is None
    aside = layout.set_aside("t" * 249, 3, layout.DELETE_DIRECTORY)
    assert len(aside) == layout.DIRECTORY_NAME_MAX
    assert layout.is_set_aside(aside, layout.DELETE_DIRECTORY)
    assert layout.partition_of(aside) is None


def test_put_file_flushes_before_and_after_the_rename(
    tmp_path: Path,
) -> None:
    disk = RecordingDisk()
    put_file(disk, tmp_path / "f", b"x")
    assert [(call, Path(path).name) for call, path, *_ in disk.journal] == [
        ("create", "f.tmp"), ("write", "f.tmp"), ("sync", "f.tmp"),
        ("rename", "f.tmp"), ("sync", tmp_path.name),
    ]  # fmt: skip


def test_checkpoint_is_read_from_the_valid_version(tmp_path: Path) -> None:
    path = tmp_path / "points"
    assert checkpoint.read(path) is None
    checkpoint.write(DISK, path, {"a": [1, 0]})
    checkpoint.write(DISK, path, {"a": [2, 0]})
    assert path.read_bytes().startswith(b"kafkalite 1 ")
    assert checkpoint.read(path) == {"a": [2, 0]}
    path.write_bytes(path.read_bytes().replace(b"2,0", b"3,0"))
    assert checkpoint.read(path) == {"a": [1, 0]}
    path.unlink()
    assert checkpoint.read(path) == {"a": [1, 0]}
    checkpoint.previous(path).write_bytes(b"kafkalite 1 ")
    assert checkpoint.read(path) is None
