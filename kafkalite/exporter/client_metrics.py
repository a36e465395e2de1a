"""ClientMetrics: OTLP metrics pushed by clients (KIP-714), with the client's labels.

    org.apache.kafka.producer.connection.creation.rate
    ─▶ kafka_client_producer_connection_creation_rate

Sums with delta temporality are added up; cumulative sums are taken as they are.  A client that ends
or sends nothing for three of its intervals is removed with its values.

Pushes may be hostile: they are decompressed up to `OPENED_SIZE_MAX`, and only a bounded number of
their values is kept.

Left out: exponential histograms and summaries, which no client sends; exemplars.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData
from prometheus_client.core import Metric

from kafkalite.errors import KafkaError
from kafkalite.metrics import Push
from kafkalite.records.compression import Codec, decompress

OPENED_SIZE_MAX = 8 << 20
CLIENTS_MAX = 1_000
SERIES_MAX = 2_000
"""Limit for one client."""
ALL_SERIES_MAX = 50_000
POINTS_MAX = 20_000
"""Maximum of values read from one push; a value may take only two bytes of it."""
LABELS_MAX = 16
WORD_LENGTH_MAX = 200
INSTANCE_MS_MIN = 60_000
INSTANCE_INTERVALS = 3

PREFIX = "org.apache.kafka."
OURS = "kafka_client_"

Series = tuple[str, str, tuple[tuple[str, str], ...]]
"""A value's metric name, suffix and labels."""


class ClientValues:
    """The values of one client."""

    def __init__(self) -> None:
        self.values: dict[Series, float] = {}
        self.kinds: dict[str, str] = {}
        self.until_ms = 0.0


class PushedValue(NamedTuple):
    """One pushed value; `more` if it is to be added to the earlier value."""

    name: str
    kind: str
    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float
    more: bool


class ClientMetrics:
    """The values pushed by clients; see the module."""

    def __init__(self, now_ms: Callable[[], float] = lambda: time.monotonic() * 1_000) -> None:
        self._now_ms = now_ms
        self._clients: OrderedDict[tuple[tuple[str, str], ...], ClientValues] = OrderedDict()
        self._accepted = self._refused = 0

    def push(self, push: Push | None) -> None:
        """Store a push, or count it as refused if it cannot be decoded."""
        try:
            if push is None:
                raise DecodeError
            opened = decompress(Codec.of(push.codec), push.payload, OPENED_SIZE_MAX)
            points = list(islice(points_of(MetricsData.FromString(opened)), POINTS_MAX))
        except (DecodeError, KafkaError):
            self._refused += 1
            return
        self._accepted += 1
        key = tuple(sorted(push.labels.items()))
        client = self._clients.pop(key, None) or ClientValues()
        self._clients[key] = client
        timeout_ms = max(INSTANCE_MS_MIN, INSTANCE_INTERVALS * push.interval_ms)
        client.until_ms = self._now_ms() + timeout_ms
        for point in points:
            if client.kinds.setdefault(point.name, point.kind) != point.kind:
                continue
            series = (point.name, point.suffix, point.labels)
            if series in client.values or len(client.values) < SERIES_MAX:
                before = client.values.get(series, 0.0) if point.more else 0.0
                client.values[series] = before + point.value
        self._bound()

    def _bound(self) -> None:
        """Remove the clients that pushed longest ago while there are too many clients or values."""
        count = sum(len(client.values) for client in self._clients.values())
        while len(self._clients) > CLIENTS_MAX or count > ALL_SERIES_MAX:
            _, removed = self._clients.popitem(last=False)
            count -= len(removed.values)

    def collect(self) -> Iterator[Metric]:
        """Yield the values of the clients that still push, and counts of pushes and clients."""
        now_ms = self._now_ms()
        for key in [key for key, client in self._clients.items() if client.until_ms < now_ms]:
            self._clients.pop(key, None)
        merged: dict[str, Metric] = {}
        for key, client in list(self._clients.items()):
            for (name, suffix, labels), value in list(client.values.items()):
                kind = client.kinds[name]
                metric = merged.get(name)
                if metric is None:
                    metric = merged[name] = Metric(
                        name, "Metric pushed by clients (KIP-714).", kind
                    )
                if metric.type == kind:  # else clients disagree on the type
                    metric.add_sample(name + suffix, {**dict(labels), **dict(key)}, value)
        yield from merged.values()
        counted = Metric(
            "kafkalite_client_pushes", "Metric pushes of clients, by result.", "counter"
        )
        for result, count in (("taken", self._accepted), ("refused", self._refused)):
            counted.add_sample("kafkalite_client_pushes_total", {"result": result}, count)
        yield counted
        known = Metric(
            "kafkalite_client_instances", "Number of clients that push metrics.", "gauge"
        )
        known.add_sample(known.name, {}, len(self._clients))
        yield known


def points_of(pushed: MetricsData) -> Iterator[PushedValue]:
    """Yield the values in a push."""
    for resource in pushed.resource_metrics:
        outer = labels_of(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                name = name_of(metric.name)
                if name:
                    yield from points_of_metric(name, metric, outer)


def points_of_metric(name: str, metric: Any, outer: dict[str, str]) -> Iterator[PushedValue]:
    """Yield the values of one metric."""
    kind = metric.WhichOneof("data")
    if kind == "gauge":
        for point in metric.gauge.data_points:
            yield from whole(name, "gauge", "", point, outer, number(point), False)
    elif kind == "sum":
        delta = adds_up(metric.sum)
        grows = metric.sum.is_monotonic
        for point in metric.sum.data_points:
            of = ("counter", "_total") if grows else ("gauge", "")
            yield from whole(name, *of, point, outer, number(point), delta)
    elif kind == "histogram":
        delta = adds_up(metric.histogram)
        for point in metric.histogram.data_points:
            for suffix, value in (("_count", float(point.count)), ("_sum", point.sum)):
                yield from whole(name, "summary", suffix, point, outer, value, delta)


def whole(
    name: str, kind: str, suffix: str, point: Any, outer: dict[str, str], value: float, more: bool
) -> Iterator[PushedValue]:
    """Yield the point if its value is finite."""
    if math.isfinite(value):
        labels = {**outer, **labels_of(point.attributes)}
        yield PushedValue(name, kind, suffix, tuple(sorted(labels.items())), value, more)


def adds_up(metric: Any) -> bool:
    """Return True if a metric has delta temporality."""
    delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    return bool(metric.aggregation_temporality == delta)


def number(point: Any) -> float:
    """Return a point's value, integer or double."""
    return float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)


def name_of(name: str) -> str:
    """Return the Prometheus name of a client's metric, without the suffix of a counter; empty if
    there is none."""
    words = re.sub(r"[^a-z0-9]+", "_", name.lower().removeprefix(PREFIX)).strip("_")
    words = words.removesuffix("_total")
    return OURS + words if words and len(words) <= WORD_LENGTH_MAX else ""


def labels_of(attributes: Iterable[Any]) -> dict[str, str]:
    """Return the attributes of a value as labels."""
    labels: dict[str, str] = {}
    for attribute in attributes:
        name = re.sub(r"[^a-z0-9]+", "_", attribute.key.lower()).strip("_")
        kind = attribute.value.WhichOneof("value")
        if not name or not name[0].isalpha() or len(name) > WORD_LENGTH_MAX or kind is None:
            continue
        if kind in ("string_value", "int_value", "bool_value", "double_value"):
            labels[name] = str(getattr(attribute.value, kind))[:WORD_LENGTH_MAX]
        if len(labels) == LABELS_MAX:
            break
    return labels
