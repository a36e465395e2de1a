"""PageMetrics: the metrics pages of a broker's nodes in Prometheus format, with a `broker` label.

A timer is exported in two forms: as the JMX exporter does (`…ms{quantile="0.99"}` over the last
five minutes, `…ms_count`), and as a histogram in seconds under a name of this
project, which can be summed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from kafkalite.exporter.quantiles import QUANTILES, HistogramWindow, quantile_ms
from kafkalite.metrics import HISTOGRAM, Read, bucket_bounds_s, read_gateway_page, read_pages

SECONDS = {
    "kafka_network_requestmetrics_totaltimems": "kafkalite_request_seconds",
    "kafka_log_logflushstats_logflushrateandtimems": "kafkalite_log_flush_seconds",
    "kafkalite_loop_tickms": "kafkalite_loop_tick_seconds",
}
LE = [*(f"{bound:.9g}" for bound in bucket_bounds_s()), "+Inf"]


class PageMetrics:
    """Reads the pages for each scrape; `where` returns the run directory, or None."""

    def __init__(self, where: Callable[[], Path | None]) -> None:
        self.where = where
        self._recent = HistogramWindow()

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families of all pages."""
        run_directory = self.where()
        now_ms = time.monotonic_ns() // 1_000_000
        pages = read_pages(run_directory, now_ms) if run_directory is not None else []
        up = Metric("kafkalite_node_up", "1 for each node whose metrics page is current.", "gauge")
        for page in pages:
            up.add_sample(up.name, {"broker": str(page.node_id)}, 1)
        yield up
        yield from self._families(pages, now_ms / 1_000)
        if run_directory is not None:
            yield from gateway_families(read_gateway_page(run_directory, now_ms))

    def _families(self, pages: list[Read], now_s: float) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        kinds: dict[str, str] = {}
        for page in pages:
            for family in page.families:
                if kinds.setdefault(family.name, family.kind) != family.kind:
                    continue  # a node on older code declares another type
                for labels, value in family.samples:
                    of = {**labels, "broker": str(page.node_id)}
                    if family.kind == HISTOGRAM:
                        key = (page.pid, family.name, *sorted(of.items()))
                        self._time(merged, family.name, family.sentence, of, value, key, now_s)
                    else:
                        name = family.name.removesuffix("_total")
                        metric = of_name(merged, name, family.sentence, family.kind)
                        metric.add_sample(family.name, of, value)
        yield from merged.values()

    def _time(
        self, merged: dict[str, Metric], name: str, sentence: str, labels: Mapping[str, str],
        value: list[int], key: Any, now_s: float,
    ) -> None:  # fmt: skip
        total_ns, *counts = value
        lately = self._recent.since(key, counts, now_s)
        summary = of_name(merged, name, f"{sentence}  In ms, of the last 5 minutes.", "summary")
        for quantile in QUANTILES:
            shown = f"{quantile:g}" if quantile != 0.5 else "0.50"
            value_ms = quantile_ms(lately, quantile)
            summary.add_sample(name, {**labels, "quantile": shown}, value_ms)
        summary.add_sample(f"{name}_count", dict(labels), sum(counts))
        summary.add_sample(f"{name}_sum", dict(labels), total_ns / 1e6)
        ours = SECONDS.get(name, f"kafkalite_{name}_seconds")
        histogram = of_name(merged, ours, f"{sentence}  In seconds.", "histogram")
        below = 0
        for bound, count in zip(LE, counts, strict=True):
            below += count
            histogram.add_sample(f"{ours}_bucket", {**labels, "le": bound}, below)
        histogram.add_sample(f"{ours}_count", dict(labels), below)
        histogram.add_sample(f"{ours}_sum", dict(labels), total_ns / 1e9)


def gateway_families(page: Read | None) -> Iterator[Metric]:
    """Yield the metric families of the gateway's page, if there is one."""
    if page is None:
        return
    for name, kind, sentence, samples in page.families:
        metric = Metric(name.removesuffix("_total"), sentence, kind)
        for labels, value in samples:
            metric.add_sample(name, dict(labels), value)
        yield metric


def of_name(merged: dict[str, Metric], name: str, sentence: str, kind: str) -> Metric:
    """Return the metric of this name, created if it is missing."""
    metric = merged.get(name)
    if metric is None:
        metric = merged[name] = Metric(name, sentence, kind)
    return metric
