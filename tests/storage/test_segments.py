"""Segments: the roll rule, and the search and removal of segments by offset."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.storage.log.log import Log
from kafkalite.storage.segment.segment import RELATIVE_OFFSET_MAX
from kafkalite.storage.state.durability import Durability
from kafkalite.storage.state.log_config import LogConfig
from tests.storage.factories import NOW, batch, open_log, settings

SEGMENT_BYTES = 1000
SEGMENT_MS = 10_000


@pytest.fixture
def log(tmp_path: Path) -> Log:
    values = {keys.SEGMENT_BYTES: SEGMENT_BYTES, keys.SEGMENT_MS: SEGMENT_MS}
    return open_log(tmp_path / "t-0", values)


def test_roll_of_an_empty_segment_is_due_only_for_a_relative_offset(log: Log) -> None:
    segments = log.segments
    assert not segments.is_roll_due(2 * SEGMENT_BYTES, 0, NOW)
    assert not segments.is_roll_due(100, RELATIVE_OFFSET_MAX, NOW)
    assert segments.is_roll_due(100, RELATIVE_OFFSET_MAX + 1, NOW)


def test_roll_is_due_at_each_limit(log: Log) -> None:
    log.append(batch(b"v"), 0)
    segments = log.segments
    room = SEGMENT_BYTES - segments.active.size
    assert not segments.is_roll_due(room, RELATIVE_OFFSET_MAX, NOW + SEGMENT_MS)
    assert segments.is_roll_due(room + 1, 1, NOW)
    assert segments.is_roll_due(room, RELATIVE_OFFSET_MAX + 1, NOW)
    assert segments.is_roll_due(room, 1, NOW + SEGMENT_MS + 1)


@pytest.mark.parametrize(("index", "entry_size", "kept"), [("offset", 8, 0), ("time", 12, 1)])
def test_roll_is_due_when_an_index_is_full(
    log: Log, index: str, entry_size: int, kept: int
) -> None:
    log.append(batch(b"v"), 0)
    entries_max = 240 // entry_size - kept
    log.reconfigure(log.config.settings.replacing({keys.SEGMENT_INDEX_BYTES: 240}))
    active = log.active
    full = {"offset": active.offset_index, "time": active.time_index}[index]
    full.count = entries_max - 1
    assert not log.segments.is_roll_due(100, 1, NOW)
    full.count = entries_max
    assert log.segments.is_roll_due(100, 1, NOW)


def test_segments_are_found_by_offset_until_they_are_removed(log: Log) -> None:
    for number in range(4):
        log.append(batch(b"a", b"b", timestamp=NOW + number), 0)
        log.roll()
    segments = log.segments
    assert [segment.base_offset for segment in segments] == [0, 2, 4, 6, 8]
    assert [segments.number_of(offset) for offset in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert [end for _, end in segments.closed_from(5)] == [6, 8]
    assert [end for _, end in segments.closed_from(4)] == [4, 6, 8], "its end may not be durable"
    assert len(segments.remove_first(2)) == 6, "three files each"
    assert [segment.base_offset for segment in segments] == [4, 6, 8]
    assert segments.number_of(7) == 1 and segments.end_offset_of(1) == 8
    assert not segments.has_base_offset(2) and segments.has_base_offset(6)


@pytest.mark.parametrize(
    ("value", "flushes_each_append", "is_left_to_kernel"),
    [("fsync", True, False), ("interval", False, False), ("os", False, True)],
)
def test_durability_is_that_of_the_topic_or_fsync_for_metadata(
    value: str, flushes_each_append: bool, is_left_to_kernel: bool
) -> None:
    of_topic = settings({keys.DURABILITY: value})
    durability = LogConfig.of(of_topic).durability
    assert durability.flushes_each_append == flushes_each_append
    assert durability.is_left_to_kernel == is_left_to_kernel
    metadata = LogConfig.of(of_topic, is_metadata_log=True)
    assert metadata.durability is Durability.FSYNC
