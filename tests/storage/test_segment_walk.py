"""Compiled segment walks and searches against their twins, on valid and on changed files."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite._ext import offset_index, segment_walk
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite.records.batch import Codec, Record, build
from tests.storage.factories import NOW, batch
from tests.twins import offset_index as index_twin
from tests.twins import segment_walk as walk_twin


class File:
    """A file with given content."""

    def __init__(self, content: bytes) -> None:
        self.fd, path = tempfile.mkstemp()
        os.unlink(path)
        os.write(self.fd, content)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Draw consecutive batches, some with a producer id, some after an offset gap."""
    content, offset = b"", 1000
    for _ in range(draw(st.integers(0, 12))):
        offset += draw(st.sampled_from([0, 0, 0, 3]))
        values = draw(st.lists(st.binary(max_size=30), min_size=1, max_size=3))
        how = {}
        if draw(st.booleans()):
            producer = draw(st.integers(0, 2))
            how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": offset}
            how["transactional"] = draw(st.integers(0, 9)) == 0
            if draw(st.integers(0, 9)) == 0:
                content += draw(control_batches(offset, producer))
                offset += 1
                continue
        content += batch(
            *values, base_offset=offset, timestamp=NOW + draw(st.integers(-50, 50)),
            leader_epoch=draw(st.integers(0, 3)), **how,
        )  # fmt: skip
        offset += len(values)
    return content


@st.composite
def control_batches(draw: st.DrawFn, offset: int, producer_id: int) -> bytes:
    """Draw a control batch: a marker, or one whose record is of another form."""
    key = draw(st.sampled_from([b"\0\0\0\0", b"\0\0\0\1"]) | st.none() | st.binary(max_size=6))
    value = draw(st.none() | st.binary(max_size=8))
    record = Record(timestamp=NOW, key=key, value=value)
    return build(
        [record], base_offset=offset, producer_id=producer_id, producer_epoch=0,
        transactional=True, control=True, leader_epoch=0,
    )  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    content = bytearray(draw(segments()))
    how = draw(st.sampled_from(["whole", "flip", "cut", "zeros", "garbage"]))
    if how == "flip" and content:
        content[draw(st.integers(0, len(content) - 1))] ^= draw(st.integers(1, 255))
    if how == "cut":
        del content[draw(st.integers(0, len(content))) :]
    if how == "zeros":
        content += bytes(draw(st.integers(1, 100)))
    if how == "garbage":
        content += draw(st.binary(max_size=100))
    return bytes(content)


OFFSET_MAX = walk_twin.OFFSET_MAX
GAPS_TO = st.sampled_from([0, 1005, OFFSET_MAX])


def scan(fd: int, size: int, interval: int, gaps_to: int = OFFSET_MAX) -> tuple[object, ...]:
    return segment_walk.scan(fd, 0, size, 1000, 1000, interval, 0, -1, 1000, -1, -1, gaps_to)


@given(content=damaged(), offset=st.integers(995, 1040), late=st.integers(-60, 60))
def test_walks_match_their_twins(content: bytes, offset: int, late: int) -> None:
    size = len(content)
    with File(content) as fd:
        assert segment_walk.find_offset(fd, 0, size, offset)[:2] == walk_twin.find_offset(
            content, 0, offset
        )
        assert segment_walk.find_offset(fd, 0, size, offset, 1001)[:2] == walk_twin.find_offset(
            content, 0, offset, 1001
        )
        assert segment_walk.find_timestamp(fd, 0, size, NOW + late, offset)[
            :2
        ] == walk_twin.find_timestamp(content, 0, NOW + late, offset)
        assert segment_walk.walk_to_end(fd, 0, size) == walk_twin.walk_to_end(content, 0)


@given(content=damaged(), interval=st.sampled_from([0, 100, 4096]), gaps_to=GAPS_TO)
def test_scan_matches_its_twin(content: bytes, interval: int, gaps_to: int) -> None:
    with File(content) as fd:
        found = scan(fd, len(content), interval, gaps_to)
        assert found == walk_twin.scan(content, 1000, interval, gaps_to)


def test_shortened_file_is_torn_and_closed_file_a_storage_error() -> None:
    content = batch(b"v", base_offset=1000)
    with File(content) as fd:
        assert scan(fd, len(content) + 50, 0)[0] == segment_walk.TORN
        assert segment_walk.walk_to_end(fd, 0, len(content) + 70)[0] == segment_walk.TORN
    assert scan(fd, len(content), 0)[0] == segment_walk.STORAGE_ERROR
    assert segment_walk.walk_to_end(fd, 0, 100)[0] == segment_walk.STORAGE_ERROR


def test_batch_at_the_largest_offset_is_damage() -> None:
    last = (1 << 63) - 1
    for offset, code in ((last, segment_walk.DAMAGED), (last - 1, segment_walk.AT_END)):
        content = batch(b"v", base_offset=offset)
        with File(content) as fd:
            found = segment_walk.walk_to_end(fd, 0, len(content))
            assert found == walk_twin.walk_to_end(content, 0)
            assert found[0] == code
            near = (last - 5, last - 5, 0, 0, -1, last - 5, -1, -1)
            assert segment_walk.scan(fd, 0, len(content), *near)[0] == code


def test_batch_larger_than_one_read_is_scanned() -> None:
    content = batch(b"a", base_offset=1000) + batch(os.urandom(3 << 20), base_offset=1001)
    with File(content) as fd:
        assert scan(fd, len(content), 4096)[:3] == (segment_walk.AT_END, len(content), 1002)
        torn = len(content) - 1
        assert scan(fd, torn, 4096)[0] == segment_walk.TORN


def test_scan_stops_between_batches_after_its_limit() -> None:
    piece = 3 << 20
    content = b"".join(batch(bytes(piece), base_offset=1000 + i) for i in range(15))
    with File(content) as fd:
        found = scan(fd, len(content), 4096)
        assert found[0] == segment_walk.WHOLE
        assert 0 < found[1] < len(content)


@given(content=segments(), garbage=st.binary(max_size=200))
def test_next_whole_finds_the_batch_after_damage(content: bytes, garbage: bytes) -> None:
    tail = batch(b"tail", base_offset=5000, codec=Codec.LZ4)
    with File(garbage + tail) as fd:
        end = len(garbage + tail)
        assert segment_walk.next_whole(fd, 0, end, 1000) == len(garbage)
        assert segment_walk.next_whole(fd, 0, end, 5001) == -1
        assert segment_walk.next_whole(fd, 0, end - 1, 1000) == -1


def test_next_whole_is_bounded_among_many_false_batches() -> None:
    """Each false batch header claims to reach the end, so validating all of them is quadratic."""
    size = 1 << 20
    content = b"".join(
        struct.pack(">qiibI", 1000, size - place - 12, 0, 2, 0xDEADBEEF).ljust(HEADER_SIZE, b"\0")
        for place in range(0, size - HEADER_SIZE, HEADER_SIZE)
    ).ljust(size, b"\0")
    with File(content) as fd:
        assert segment_walk.next_whole(fd, size - size // 8, size, 500) == -1
        assert segment_walk.next_whole(fd, 0, size, 500) % HEADER_SIZE == 0
        assert 0 < segment_walk.next_whole(fd, 0, size, 500) < size // 2


# -- indexes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("indexes")


numbers = st.lists(st.integers(0, 200), unique=True, max_size=40).map(sorted)


@given(keys=numbers, split=st.integers(0, 40), wanted=st.integers(-1, 201))
def test_index_floor_is_found_in_file_and_tail(keys: list[int], split: int, wanted: int) -> None:
    for pack, floor, twin in (
        (struct.Struct(">ii").pack, offset_index.floor_offset, index_twin.floor_offset),
        (struct.Struct(">qi").pack, offset_index.floor_time, index_twin.floor_time),
    ):
        count = min(split, len(keys))
        stored = b"".join(pack(key, 3 * key) for key in keys[:count])
        tail = b"".join(pack(key, 3 * key) for key in keys[count:])
        with File(stored) as fd:
            assert floor(fd, count, tail, wanted) == twin(fd, count, tail, wanted)


@pytest.mark.parametrize("count", [340, 341, 342, 511, 512, 513, 5000])
def test_index_floor_is_found_in_files_of_many_blocks(count: int) -> None:
    for pack, floor in (
        (struct.Struct(">ii").pack, offset_index.floor_offset),
        (struct.Struct(">qi").pack, offset_index.floor_time),
    ):
        with File(b"".join(pack(10 + 2 * slot, slot) for slot in range(count))) as fd:
            for slot in range(0, count, 7):
                assert floor(fd, count, b"", 10 + 2 * slot) == (10 + 2 * slot, slot)
                assert floor(fd, count, b"", 11 + 2 * slot) == (10 + 2 * slot, slot)
            assert floor(fd, count, b"", 9) == (-1, 0)
            assert floor(fd, count, b"", 1 << 30) == (8 + 2 * count, count - 1)


def test_unreadable_index_has_no_floor() -> None:
    assert offset_index.floor_offset(-1, 5, b"", 3) == (-1, 0)
    with File(b"\0" * 8) as fd:
        assert offset_index.floor_offset(fd, 9, b"", 3) == (-1, 0)


@given(
    entries=st.lists(st.tuples(st.integers(-2, 30), st.integers(-2, 30)), max_size=12),
    bound=st.integers(0, 30),
    orderly=st.booleans(),
)
def test_index_validation_matches_its_twin(
    entries: list[tuple[int, int]], bound: int, orderly: bool
) -> None:
    entries = sorted(entries) if orderly else entries
    offsets = b"".join(struct.pack(">ii", *entry) for entry in entries)
    assert offset_index.count_valid_offsets(offsets, bound) == index_twin.count_valid_offsets(
        offsets, bound
    )
    times = b"".join(struct.pack(">qi", *entry) for entry in entries)
    assert offset_index.count_valid_times(times, bound) == index_twin.count_valid_times(
        times, bound
    )
