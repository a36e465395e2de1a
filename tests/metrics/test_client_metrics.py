"""Metrics pushed by clients, decoded: encoded here with the same library that decodes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from kafkalite.exporter import client_metrics
from kafkalite.exporter.client_metrics import ClientMetrics
from kafkalite.metrics import PUSH, Push, read_push
from kafkalite.records.compression import Codec, compress

DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
LABELS = {"client_id": "c"}


class Time:
    now_ms = 0.0

    def __call__(self):
        return self.now_ms


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def clients(time):
    return ClientMetrics(time)


def pushed(*metrics, resource=None):
    """Return OTLP of metrics: (name, kind, value, attributes, temporality)."""
    otlp = MetricsData()
    of = otlp.resource_metrics.add()
    for key, value in (resource or {}).items():
        of.resource.attributes.add(key=key).value.string_value = value
    scope = of.scope_metrics.add()
    for name, kind, value, attributes, temporality in metrics:
        metric = scope.metrics.add(name=name)
        into = getattr(metric, kind)
        if kind != "gauge":
            into.aggregation_temporality = temporality
        if kind == "sum":
            into.is_monotonic = True
        point = into.data_points.add()
        if kind == "histogram":
            point.count, point.sum = value
        elif isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        for key, attribute in attributes.items():
            point.attributes.add(key=key).value.string_value = attribute
    return otlp.SerializeToString()


def push(clients, payload, codec=Codec.NONE, labels=LABELS, interval_ms=1_000):
    clients.push(Push(labels, codec, interval_ms, compress(codec, payload)))


def samples(clients):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for metric in clients.collect()
        for sample in metric.samples
        if metric.name.startswith("kafka_client")
    }


@pytest.mark.parametrize("codec", list(Codec))
def test_push_is_decoded_with_every_codec(clients, codec):
    metric = ("org.apache.kafka.consumer.poll.idle.ratio.avg", "gauge", 0.5, {"topic": "t"}, 0)
    push(clients, pushed(metric, resource={"client.rack": "r"}), codec)
    name = "kafka_client_consumer_poll_idle_ratio_avg"
    assert samples(clients) == {
        (name, ("client_id", "c"), ("client_rack", "r"), ("topic", "t")): 0.5
    }


def test_delta_values_are_added_and_cumulative_values_replaced(clients):
    for value in (3, 4):
        push(
            clients,
            pushed(
                ("org.apache.kafka.a.total", "sum", value, {}, DELTA),
                ("org.apache.kafka.b", "sum", value, {}, CUMULATIVE),
                ("org.apache.kafka.c", "histogram", (value, value * 10.0), {}, DELTA),
            ),
        )
    of = ("client_id", "c")
    assert samples(clients) == {
        ("kafka_client_a_total", of): 7,
        ("kafka_client_b_total", of): 4,
        ("kafka_client_c_count", of): 7,
        ("kafka_client_c_sum", of): 70,
    }


def test_clients_are_separate_and_expire_after_their_interval(clients, time):
    payload = pushed(("m", "gauge", 1, {}, 0))
    push(clients, payload, labels={"client_id": "a"})
    push(clients, payload, labels={"client_id": "b"}, interval_ms=100_000)
    assert len(samples(clients)) == 2
    time.now_ms = client_metrics.INSTANCE_MS_MIN + 1
    assert [key[1] for key in samples(clients)] == [("client_id", "b")]
    time.now_ms = 300_001
    assert samples(clients) == {}


def test_metric_that_changes_type_keeps_the_first(clients):
    push(clients, pushed(("m", "gauge", 1, {}, 0)))
    push(clients, pushed(("m", "sum", 5, {}, DELTA)))
    assert samples(clients) == {("kafka_client_m", ("client_id", "c")): 1}


def test_series_per_client_and_clients_are_limited(clients, monkeypatch):
    monkeypatch.setattr(client_metrics, "CLIENTS_MAX", 3)
    monkeypatch.setattr(client_metrics, "SERIES_MAX", 5)
    many = pushed(*(("m", "gauge", 1, {"n": str(n)}, 0) for n in range(9)))
    for n in range(9):
        push(clients, many, labels={"client_id": str(n)})
    assert len(samples(clients)) == 15


def test_total_series_and_points_per_push_are_limited(clients, monkeypatch):
    monkeypatch.setattr(client_metrics, "ALL_SERIES_MAX", 10)
    monkeypatch.setattr(client_metrics, "POINTS_MAX", 4)
    many = pushed(*(("m", "gauge", 1, {"n": str(n)}, 0) for n in range(9)))
    for n in range(9):
        push(clients, many, labels={"client_id": str(n)})
    assert {name[1] for name in samples(clients)} == {("client_id", "7"), ("client_id", "8")}
    assert len(samples(clients)) == 8


def test_invalid_metric_names_and_labels_are_ignored(clients):
    push(
        clients,
        pushed(
            ("", "gauge", 1, {}, 0),
            ("äöü", "gauge", 1, {}, 0),
            ("x" * 999, "gauge", 1, {}, 0),
            ("nan", "gauge", float("nan"), {}, 0),
            ("m", "gauge", 1, {"9": "x", "__": "y", "A-b": 'z\n"' * 999}, 0),
        ),
    )
    (key,) = samples(clients)
    assert key[0] == "kafka_client_m"
    assert [name for name, _ in key[1:]] == ["a_b", "client_id"]
    assert len(dict(key[1:])["a_b"]) == client_metrics.WORD_LENGTH_MAX


def pushes_by_result(clients):
    (counted,) = (each for each in clients.collect() if each.name == "kafkalite_client_pushes")
    return {sample.labels["result"]: sample.value for sample in counted.samples}


@given(payload=st.binary(max_size=300), codec=st.integers(0, 255))
def test_every_push_is_counted_and_raises_no_error(payload, codec):
    clients = ClientMetrics()
    clients.push(Push(LABELS, codec, 1_000, payload))
    # Few random payloads are valid, and those may have any values.
    first = pushes_by_result(clients)
    assert first in ({"taken": 1, "refused": 0}, {"taken": 0, "refused": 1})
    clients.push(None)
    assert pushes_by_result(clients) == {**first, "refused": first["refused"] + 1}


@pytest.mark.parametrize(
    "push",
    [
        None,
        Push(LABELS, Codec.NONE, 1_000, b"\xff"),
        Push(LABELS, Codec.ZSTD, 1_000, b"not zstd"),
        Push(LABELS, 99, 1_000, b""),
    ],
    ids=["not a push", "not OTLP", "not compressed so", "unknown codec"],
)
def test_push_that_cannot_be_decoded_is_counted_as_refused(clients, push):
    clients.push(push)
    assert pushes_by_result(clients) == {"taken": 0, "refused": 1}
    assert samples(clients) == {}


def test_decompression_bomb_is_rejected(clients, monkeypatch):
    monkeypatch.setattr(client_metrics, "OPENED_SIZE_MAX", 1_000)
    push(clients, bytes(1_000_000), Codec.ZSTD)
    assert (clients._accepted, clients._refused) == (0, 1)


@given(st.binary(max_size=100))
def test_invalid_datagram_is_read_as_none(datagram):
    assert read_push(datagram) is None


@given(at=st.integers(0, 100), flip=st.integers(1, 255))
def test_datagram_with_changed_byte_raises_no_error(at, flip):
    datagram = bytearray(Push(LABELS, 4, 1_000, b"x").packed())
    datagram[at % len(datagram)] ^= flip
    ClientMetrics().push(read_push(bytes(datagram)))


def test_packed_push_is_read_back():
    push = Push(LABELS, 4, 1_000, b"payload")
    assert read_push(push.packed()) == push
    assert read_push(push.packed()[: PUSH.size + 3]) is None
