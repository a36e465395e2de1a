"""Quantiles of histograms, over a window of recent counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.exporter import quantiles
from kafkalite.exporter.quantiles import WINDOW_S, HistogramWindow, quantile_ms
from kafkalite.metrics import BUCKET_COUNT, Histogram


def counts_of(*times_ms):
    histogram = Histogram()
    for ms in times_ms:
        histogram.add(round(ms * 1e6))
    return histogram.values()[1:]


def test_quantile_of_no_samples_is_nan():
    assert math.isnan(quantile_ms(counts_of(), 0.5))


@given(st.lists(st.floats(0.001, 10_000), min_size=1), st.sampled_from(quantiles.QUANTILES))
def test_quantile_is_exact_within_a_factor_of_two(times_ms, quantile):
    times_ms = sorted(times_ms)
    true = times_ms[math.ceil(quantile * len(times_ms)) - 1]
    estimate = quantile_ms(counts_of(*times_ms), quantile)
    assert true / 2.1 <= estimate <= max(true * 2.1, 0.00103)


def test_duration_above_the_last_bucket_counts_as_its_bound():
    assert quantile_ms(counts_of(1e6), 0.5) == quantiles.BOUNDS_MS[-1]


def test_only_samples_of_the_window_count():
    recent = HistogramWindow()
    slow, fast = counts_of(1_000), counts_of(*[1] * 99)
    assert recent.since("k", slow, 0) == slow
    both = [a + b for a, b in zip(slow, fast, strict=True)]
    for now_s in range(15, 2 * WINDOW_S, 15):
        since = recent.since("k", both, now_s)
    assert quantile_ms(since, 0.5) != quantile_ms(since, 0.5)  # NaN: no sample in the window
    more = [a + b for a, b in zip(both, fast, strict=True)]
    assert recent.since("k", more, 2 * WINDOW_S) == fast


def test_counter_reset_is_not_a_negative_difference():
    recent = HistogramWindow()
    recent.since("k", [9] * BUCKET_COUNT, 0)
    recent.since("k", [9] * BUCKET_COUNT, 20)
    assert recent.since("k", [1] * BUCKET_COUNT, 40) == [1] * BUCKET_COUNT


def test_histories_are_limited_in_number_and_length(monkeypatch):
    monkeypatch.setattr(quantiles, "HISTORIES_MAX", 5)
    recent = HistogramWindow()
    for key in range(20):
        for now_s in range(0, 100 * WINDOW_S, 50):
            recent.since(key, [1], now_s)
    assert len(recent._past) == 5
    assert max(map(len, recent._past.values())) <= WINDOW_S // 15 + 2


@pytest.mark.parametrize("quantile", [0.5, 0.999])
def test_quantiles_of_one_sample_are_equal(quantile):
    assert 1 <= quantile_ms(counts_of(1.5), quantile) <= 2.1
