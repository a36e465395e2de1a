"""The number of records that a share consumer acquires for columns."""

from __future__ import annotations

import pytest

from kafkalite.client.share.adaptive_record_count import (
    COUNT_MAX,
    QUICK_S,
    AdaptiveRecordCount,
)


def test_count_doubles_while_the_program_is_quick():
    counter = AdaptiveRecordCount(500, is_fixed=False)
    found = []
    for step in range(7):
        counter.given(counter.count, float(step))
        counter.finished(step + QUICK_S / 2)
        found.append(counter.count)
    assert found == [1_000, 2_000, 4_000, 8_000, COUNT_MAX, COUNT_MAX, COUNT_MAX]


def test_slow_work_sets_the_count_back():
    counter = AdaptiveRecordCount(500, is_fixed=False)
    counter.given(500, 0.0)
    counter.finished(0.0)
    assert counter.count == 1_000
    counter.given(400, 1.0)
    counter.given(600, 1.0 + QUICK_S)  # the time of both batches counts
    counter.finished(1.0 + 2 * QUICK_S)
    assert counter.count == 500


def test_fetch_of_fewer_records_keeps_the_count():
    counter = AdaptiveRecordCount(500, is_fixed=False)
    for step in range(10):
        counter.given(499, float(step))
        counter.finished(float(step))
        counter.finished(step + 0.9)  # waits for records
    assert counter.count == 500


@pytest.mark.parametrize("initial", [1, 500, 50_000])
def test_fixed_count_remains(initial):
    counter = AdaptiveRecordCount(initial, is_fixed=True)
    counter.given(initial, 0.0)
    counter.finished(0.0)
    assert counter.count == initial


def test_count_does_not_fall_below_a_large_initial_one():
    counter = AdaptiveRecordCount(2 * COUNT_MAX, is_fixed=False)
    counter.given(2 * COUNT_MAX, 0.0)
    counter.finished(0.0)
    assert counter.count == 2 * COUNT_MAX
