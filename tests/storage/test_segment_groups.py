"""Groups of segments that one cleaned segment replaces: the limits of what is joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalite.config.topic import CLEANUP_POLICY
from kafkalite.storage.compaction import segment_groups
from kafkalite.storage.compaction.cleaning_job import SourceSegment
from kafkalite.storage.compaction.segment_groups import groups_of
from kafkalite.storage.files import layout
from kafkalite.storage.segment.segment import RELATIVE_OFFSET_MAX
from tests.storage.cleaning_harness import job_of
from tests.storage.factories import open_log

SEGMENT_BYTES, INDEX_BYTES = 1_000, 100


def grouped(
    tmp_path: Path, *sources: tuple[int, int], end_offset: int = 1 << 40, sources_end: int = 1 << 20
) -> list[list[int]]:
    """Return the base offsets of each group of sources with these base offsets and sizes."""
    job = job_of(open_log(tmp_path, {CLEANUP_POLICY: ("compact",)}))._replace(
        sources=tuple(SourceSegment(*each) for each in sources), sources_end=sources_end,
        segment_bytes=SEGMENT_BYTES, segment_index_bytes=INDEX_BYTES,
    )  # fmt: skip
    groups = groups_of(job, end_offset)
    return [[source.base_offset for source in group] for group in groups]


def test_neighbours_are_joined_up_to_the_segment_size(tmp_path):
    assert grouped(tmp_path, (0, 600), (10, 400), (20, 1)) == [[0, 10], [20]]


@pytest.mark.parametrize("suffix", [layout.OFFSET_INDEX, layout.TIME_INDEX])
def test_neighbours_are_joined_up_to_the_index_size(tmp_path, suffix):
    for base_offset, size in ((100, 60), (200, 40), (300, 8)):
        (tmp_path / layout.file_name(base_offset, suffix)).write_bytes(bytes(size))
    assert grouped(tmp_path, (100, 1), (200, 1), (300, 1)) == [[100, 200], [300]]


@pytest.mark.parametrize("excess", [0, 1])
def test_offsets_of_a_group_fit_an_index_entry(tmp_path, excess):
    end = RELATIVE_OFFSET_MAX + 1 + excess
    expected = [[0], [10]] if excess else [[0, 10]]
    assert grouped(tmp_path, (0, 1), (10, 1), sources_end=end) == expected


def test_empty_segment_joins_any_group_but_makes_none(tmp_path):
    assert grouped(tmp_path, (0, 2_000), (10, 0), (20, 1)) == [[0, 10], [20]]
    assert grouped(tmp_path, (0, 0), (10, 0)) == []


def test_number_of_segments_of_a_group_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_groups, "GROUP_SEGMENTS_MAX", 2)
    assert grouped(tmp_path, (0, 1), (10, 1), (20, 0)) == [[0, 10]]


def test_segments_from_the_end_of_the_pass_on_are_not_replaced(tmp_path):
    assert grouped(tmp_path, (0, 1), (10, 1), (20, 1), end_offset=20) == [[0, 10]]
