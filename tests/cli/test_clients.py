"""kafkalite.cli.clients: bootstrap addresses, and messages about silent brokers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from kafkalite.broker.controller.worker_manager import APPLY_WAIT_MS_MAX
from kafkalite.cli import clients, replica, replica_move
from kafkalite.cli.clients import (
    CHANGE_TIMEOUT_S,
    ClusterClients,
    ConnectionArguments,
    StallWarning,
    listed_offsets,
    node_error,
)
from kafkalite.cli.resource import ResourceConfigs, ResourceName, ValueChange
from kafkalite.errors import Refusal


@pytest.mark.parametrize(
    "address", ["h:99999", "h:0", "h:abc", "h:", "PLAINTEXT://h:65536", "[::1]:70000", "h:1,g:-1"]
)
def test_invalid_port_is_rejected(address):
    with pytest.raises(Refusal, match="the port must be 1 to 65535"):
        ClusterClients(address)


@pytest.mark.parametrize(
    "address", ["h", "h:1", "h:65535", "SSL://h", "SSL://h:9093", "[::1]:9092", "::1", "h,g:9"]
)
def test_address_forms_of_librdkafka_are_accepted(address):
    assert ClusterClients(address).bootstrap == address


def test_stall_of_a_responding_broker_is_reported_once(monkeypatch, capsys):
    monkeypatch.setattr(clients, "STALL_S", 0.0)
    cluster = ClusterClients("127.0.0.1:9092", [])
    cluster.is_connected = True
    stall_warning = StallWarning(cluster, "topic 'full'", "no record was acknowledged")
    stall_warning.check(1)
    assert capsys.readouterr().err == ""
    for _ in range(3):
        stall_warning.check(1)
    result = capsys.readouterr().err
    assert result.startswith("kafkalite: topic 'full': no record was acknowledged")
    assert result.count("\n") == 1


def test_stall_of_an_unreachable_broker_is_not_reported(monkeypatch, capsys):
    monkeypatch.setattr(clients, "STALL_S", 0.0)
    stall_warning = StallWarning(
        ClusterClients("127.0.0.1:9092", []), "topic 'full'", "no record was acknowledged"
    )
    for _ in range(3):
        stall_warning.check(1)
    assert capsys.readouterr().err == ""


class OffsetsWithErrors:
    """An admin client whose leader of partition 1 does not respond, and of 2 has moved."""

    def list_offsets(self, wanted, *, request_timeout):
        self.timeout_s = request_timeout
        futures = {each: Future() for each in wanted}
        for each, future in futures.items():
            if each.partition == 2:
                future.set_exception(KafkaException(KafkaError(6)))
            else:
                offset = OFFSET_INVALID if each.partition == 1 else 50
                future.set_result(SimpleNamespace(offset=offset))
        return futures


def test_offsets_of_leaders_that_do_not_respond_are_left_out():
    admin = OffsetsWithErrors()
    wanted = {TopicPartition("t", index): OffsetSpec.latest() for index in range(3)}
    assert listed_offsets(admin, wanted, 3.0) == {("t", 0): 50}
    assert admin.timeout_s == 3.0
    assert listed_offsets(admin, {}) == {}


def test_offsets_are_awaited_longer_than_their_request():
    class LateFuture(Future):
        def result(self, timeout=None):
            assert timeout > 3.0, "librdkafka completes all futures at the timeout"
            return SimpleNamespace(offset=50)

    admin = SimpleNamespace(list_offsets=lambda wanted, **_: dict.fromkeys(wanted, LateFuture()))
    assert listed_offsets(admin, {TopicPartition("t", 0): OffsetSpec.latest()}, 3.0) == {
        ("t", 0): 50
    }


def test_change_is_awaited_longer_than_nodes_that_do_not_apply_it(monkeypatch):
    assert CHANGE_TIMEOUT_S * 1000 > 2 * APPLY_WAIT_MS_MAX
    waits = []

    def moved(wire, *_):
        waits.append(wire.timeout_s)
        return []

    monkeypatch.setattr(replica_move, "moved", moved)
    no_topics = SimpleNamespace(topics={})
    cluster = SimpleNamespace(connected_admin=lambda: None, metadata=lambda _: no_topics)
    monkeypatch.setattr(replica, "ClusterClients", lambda **_: cluster)
    connection = ConnectionArguments(bootstrap="h:1", profile=None, properties=())
    replica.move([("t", [0])], (1,), False, None, None, True, **connection)

    done = SimpleNamespace(result=waits.append)
    configs = ResourceConfigs.__new__(ResourceConfigs)
    configs.admin = SimpleNamespace(
        incremental_alter_configs=lambda asked, **_: dict.fromkeys(asked, done)
    )
    configs._change(ResourceName("topic", "t"), [ValueChange("retention.ms", 0, "1")], False)
    assert waits == [CHANGE_TIMEOUT_S] * 2


@pytest.mark.parametrize("kind", [lambda error: error, KafkaException], ids=["error", "exception"])
def test_error_of_a_node_is_read_from_both_types(kind):
    assert node_error(kind(KafkaError(6, "Broker: moved"))) == "moved"
