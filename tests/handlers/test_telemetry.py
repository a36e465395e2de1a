"""Client telemetry (KIP-714): subscriptions, pushes, and their way to the exporter."""

from __future__ import annotations

import socket

import pytest

from kafkalite import errors
from kafkalite.broker.client_telemetry import INSTANCE_MS_MIN, INSTANCES_MAX, PushSender
from kafkalite.ids import METADATA_ID, NO_ID, new_id
from kafkalite.metrics import Push, read_push
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.protocol.schemas.configs import (
    GET_TELEMETRY_SUBSCRIPTIONS,
    INCREMENTAL_ALTER_CONFIGS,
    PUSH_TELEMETRY,
)

CLIENT_METRICS, SET, DELETE = 16, 0, 1
INTERVAL_MS = 1_000


class Exporter:
    """An exporter that accepts every push, or rejects it."""

    def __init__(self):
        self.pushes = []
        self.takes = True

    def __call__(self, push):
        self.pushes.append(push)
        return self.takes

    def close(self):
        """Do nothing: there is nothing to close."""


@pytest.fixture
def exporter(broker):
    broker.node.telemetry.push_sender = Exporter()
    return broker.node.telemetry.push_sender


def subscribe(broker, name="s", **config):
    configs = [
        {"name": key, "config_operation": SET if value is not None else DELETE, "value": value}
        for key, value in config.items()
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    (answer,) = broker.request(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
    assert answer.error_code == 0, answer.error_message


def every_second(broker, metrics="*", **config):
    subscribe(broker, **{"metrics": metrics, "interval.ms": str(INTERVAL_MS), **config})


def get(broker, instance_id=NO_ID):
    return broker.request(GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=instance_id)


def push(broker, given, **fields):
    request = {
        "client_instance_id": given.client_instance_id,
        "subscription_id": given.subscription_id,
        "compression_type": 0,
        "metrics": b"otlp",
        **fields,
    }
    return broker.request(PUSH_TELEMETRY, 0, **request).error_code


def test_client_without_subscription_gets_no_requested_metrics(broker):
    given = get(broker)
    assert (given.error_code, given.requested_metrics) == (0, [])
    assert given.client_instance_id != NO_ID
    assert given.push_interval_ms == 300_000
    assert list(given.accepted_compression_types) == [4, 3, 1, 2]
    assert (given.telemetry_max_bytes, given.delta_temporality) == (1 << 20, True)


def test_client_keeps_its_instance_id(broker):
    mine = new_id()
    assert get(broker, mine).client_instance_id == mine


def test_push_is_forwarded_with_client_labels(broker, exporter):
    every_second(broker)
    broker.request(API_VERSIONS, 3, client_software_name="tester", client_software_version="1.2")
    given = get(broker)
    assert push(broker, given, compression_type=4, metrics=b"packed") == 0
    (pushed,) = exporter.pushes
    assert (pushed.codec, pushed.interval_ms, pushed.payload) == (4, INTERVAL_MS, b"packed")
    assert pushed.labels["client_id"] == "a test"
    assert pushed.labels["client_software_name"] == "tester"
    assert pushed.labels["client_software_version"] == "1.2"
    assert pushed.labels["client_source_address"] == "127.0.0.1"
    assert len(pushed.labels["client_instance_id"]) == 22


def test_matching_subscriptions_are_merged_with_the_shortest_interval(broker):
    subscribe(broker, "a", **{"metrics": "one,two", "interval.ms": "5000"})
    subscribe(broker, "b", **{"metrics": "two,three", "interval.ms": "700"})
    subscribe(broker, "c", metrics="four", match="client_id=another")
    given = get(broker)
    assert list(given.requested_metrics) == ["one", "three", "two"]
    assert given.push_interval_ms == 700


def test_star_subscription_requests_all_metrics(broker):
    subscribe(broker, "a", metrics="one")
    subscribe(broker, "b", metrics="*")
    assert list(get(broker).requested_metrics) == ["*"]


@pytest.mark.parametrize(
    ("match", "asked"),
    [
        ("client_id=a test", True),
        ("client_id=a", False),
        ("client_id=a.*", True),
        ("client_software_name=tester", True),
        ("client_software_version=1[.]3", False),
        ("client_source_address=127.0.0.1,client_source_port=50000", True),
        ("client_source_address=127.0.0.1,client_source_port=50001", False),
        ("client_instance_id=.{22}", True),
    ],
)
def test_subscription_patterns_must_all_match_in_full(broker, match, asked):
    broker.request(API_VERSIONS, 3, client_software_name="tester", client_software_version="1.2")
    subscribe(broker, metrics="m", match=match)
    assert list(get(broker).requested_metrics) == (["m"] if asked else [])


def test_subscription_id_depends_only_on_subscription_and_client(broker):
    every_second(broker, "one")
    mine, other = new_id(), new_id()
    first = get(broker, mine).subscription_id
    assert get(broker, other).subscription_id != first
    every_second(broker, "two")
    second = get(broker, mine).subscription_id
    assert second != first
    broker.restart()
    assert get(broker, mine).subscription_id == second
    every_second(broker, "one")
    assert get(broker, mine).subscription_id == first


def test_early_get_or_push_is_throttled(broker, exporter):
    every_second(broker)
    given = get(broker)
    throttled = errors.ThrottlingQuotaExceeded.code
    assert get(broker, given.client_instance_id).error_code == throttled
    assert push(broker, given) == 0  # the first may come at any time
    assert push(broker, given) == throttled
    broker.clock.advance(INTERVAL_MS - 1)
    assert push(broker, given) == throttled
    broker.clock.advance(1)
    assert push(broker, given) == 0
    assert len(exporter.pushes) == 2


def test_changed_subscription_returns_unknown_subscription_id(broker, exporter):
    every_second(broker)
    given = get(broker)
    assert push(broker, given) == 0
    every_second(broker, "other")
    assert push(broker, given) == errors.UnknownSubscriptionId.code
    new = get(broker, given.client_instance_id)
    assert (new.error_code, list(new.requested_metrics)) == (0, ["other"])
    broker.clock.advance(INTERVAL_MS)
    assert push(broker, new) == 0
    assert len(exporter.pushes) == 2


@pytest.mark.parametrize("codec", [5, -1, 127])
def test_push_with_unknown_compression_is_refused(broker, exporter, codec):
    every_second(broker)
    given = get(broker)
    unsupported = errors.UnsupportedCompressionType.code
    assert push(broker, given, compression_type=codec) == unsupported
    assert get(broker, given.client_instance_id).error_code == 0
    assert not exporter.pushes


def test_push_above_telemetry_max_bytes_is_refused(broker, exporter):
    broker.restart(**{"telemetry.max.bytes": "10"})
    broker.node.telemetry.push_sender = exporter
    every_second(broker)
    given = get(broker)
    assert given.telemetry_max_bytes == 10
    assert push(broker, given, metrics=bytes(11)) == errors.TelemetryTooLarge.code
    broker.clock.advance(INTERVAL_MS)
    assert push(broker, given, metrics=bytes(10)) == 0


def test_push_after_a_terminating_push_is_refused(broker, exporter):
    every_second(broker)
    given = get(broker)
    assert push(broker, given) == 0
    assert push(broker, given, terminating=True) == 0  # a terminating push cannot wait
    assert push(broker, given) == errors.InvalidRequest.code


@pytest.mark.parametrize("instance_id", [NO_ID, METADATA_ID])
def test_push_without_an_instance_id_is_refused(broker, instance_id):
    given = get(broker)
    code = push(broker, given, client_instance_id=instance_id)
    assert code == errors.InvalidRequest.code


def test_push_without_an_exporter_is_dropped(broker):
    every_second(broker)
    assert push(broker, get(broker)) == 0
    assert broker.node.telemetry.counts == {"dropped": 1}


def test_push_to_a_full_exporter_is_dropped(broker, exporter):
    every_second(broker)
    exporter.takes = False
    assert push(broker, get(broker)) == 0
    assert broker.node.telemetry.counts == {"dropped": 1}


def test_empty_push_is_not_forwarded(broker, exporter):
    every_second(broker)
    assert push(broker, get(broker), metrics=b"") == 0
    assert not exporter.pushes


def test_number_of_tracked_clients_is_bounded(broker, monkeypatch):
    monkeypatch.setattr("kafkalite.broker.client_telemetry.INSTANCES_MAX", 10)
    assert INSTANCES_MAX > 10
    first = get(broker)
    for _ in range(20):
        get(broker)
    assert len(broker.node.telemetry._instances) == 10
    assert get(broker, first.client_instance_id).error_code == 0  # its state was evicted


def test_idle_client_is_forgotten(broker, exporter):
    every_second(broker)
    given = get(broker)
    assert push(broker, given, terminating=True) == 0
    broker.clock.advance(INSTANCE_MS_MIN + 1)
    assert push(broker, given) == 0


def test_removed_subscription_requests_no_metrics(broker):
    subscribe(broker, metrics="m")
    assert list(get(broker).requested_metrics) == ["m"]
    subscribe(broker, metrics=None)
    assert list(get(broker).requested_metrics) == []


# -- pushes to the exporter ----------------------------------------------------------------------


@pytest.fixture
def pusher(tmp_path):
    pusher = PushSender(tmp_path / "pushes")
    yield pusher
    pusher.close()


def test_push_sender_without_an_exporter_does_not_wait(pusher, tmp_path):
    push = Push({}, 0, 1, b"")
    assert not pusher(push)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taker:
        taker.bind(str(tmp_path / "pushes"))
        assert pusher(push)
        assert read_push(taker.recv(1 << 16)) == push
    assert not pusher(push)


def test_push_sender_does_not_wait_for_a_full_socket(pusher, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taker:
        taker.bind(str(tmp_path / "pushes"))
        assert not all(pusher(Push({}, 0, 1, bytes(10_000))) for _ in range(10_000))


def test_push_larger_than_a_datagram_is_too_large(pusher, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taker:
        taker.bind(str(tmp_path / "pushes"))
        with pytest.raises(errors.TelemetryTooLarge):
            pusher(Push({}, 0, 1, bytes(64 << 20)))
