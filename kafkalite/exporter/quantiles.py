"""Quantiles over the last minutes, from histogram buckets that only grow."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

from kafkalite.metrics import bucket_bounds_s

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
WINDOW_S = 300
SNAPSHOT_INTERVAL_S = 15
HISTORIES_MAX = 10_000

BOUNDS_MS = [bound * 1_000 for bound in bucket_bounds_s()]


class HistogramWindow:
    """Earlier counts of histograms, to compute what was added within the window."""

    def __init__(self) -> None:
        self._past: OrderedDict[Hashable, deque[tuple[float, list[int]]]] = OrderedDict()

    def since(self, key: Hashable, counts: Sequence[int], now_s: float) -> list[int]:
        """Return the counts added within the window, or since the histogram was first seen."""
        past = self._past.pop(key, None)
        if past is None:
            past = deque([(now_s, [0] * len(counts))])
        self._past[key] = past
        while len(self._past) > HISTORIES_MAX:
            self._past.popitem(last=False)
        if any(now < then for now, then in zip(counts, past[-1][1], strict=True)):
            past.clear()  # another process counts, and started from zero
            past.append((now_s, [0] * len(counts)))
        if now_s - past[-1][0] >= SNAPSHOT_INTERVAL_S:
            past.append((now_s, list(counts)))
        while len(past) > 1 and now_s - past[1][0] >= WINDOW_S:
            past.popleft()
        return [now - then for now, then in zip(counts, past[0][1], strict=True)]


def quantile_ms(counts: Sequence[int], quantile: float) -> float:
    """Return a quantile in ms, interpolated within its bucket; NaN if there are no values."""
    total = sum(counts)
    if not total:
        return float("nan")
    wanted = quantile * total
    below = 0
    for index, count in enumerate(counts[: len(BOUNDS_MS)]):
        if count and below + count >= wanted:
            lower = BOUNDS_MS[index - 1] if index else 0.0
            return lower + (BOUNDS_MS[index] - lower) * (wanted - below) / count
        below += count
    return BOUNDS_MS[-1]
