"""FindCoordinator for transactional ids, and their topic, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.security import DESCRIBE
from kafkalite.coordination.placement import coordinator_partition
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying
from tests.handlers.grouping import find
from tests.handlers.transacting import host, init

TRANSACTION_STATE = "__transaction_state"


@pytest.mark.parametrize("version", range(1, 7))
def test_find_coordinator_returns_the_address_the_client_connected_to(transactional, version):
    answer = find(transactional, version, "payments", key_type=1)
    found = answer.coordinators[0] if version >= 4 else answer
    assert found.error_code == 0
    assert (found.node_id, found.host, found.port) == (0, *transactional.local)


def test_find_coordinator_creates_the_topic_once(transactional):
    find(transactional, key_type=1)
    topic = transactional.node.image.topic(TRANSACTION_STATE)
    assert len(topic.partitions) == 1
    assert topic.config["segment.bytes"] == "104857600"
    assert topic.config["compression.type"] == "uncompressed"
    assert "min.insync.replicas" not in topic.config  # it has one replica
    find(transactional, 4, "another", key_type=1)
    assert transactional.node.image.topic(TRANSACTION_STATE).topic_id == topic.topic_id
    (answer,) = transactional.request(METADATA, 12, topics=[{"name": topic.name}]).topics
    assert answer.is_internal and answer.partitions[0].leader_id == 0


def test_topic_has_the_configured_settings(tmp_path):
    node = InProcess(
        tmp_path / "data",
        **{
            "transaction.state.log.num.partitions": "7",
            "transaction.state.log.segment.bytes": "2097152",
        },
    )
    find(node, key_type=1)
    topic = node.node.image.topic(TRANSACTION_STATE)
    assert (len(topic.partitions), topic.config["segment.bytes"]) == (7, "2097152")
    node.close()


def test_coordinator_may_be_loaded_while_others_are_listed(tmp_path):
    node = InProcess(tmp_path / "data", **{"transaction.state.log.num.partitions": "2"})
    find(node, key_type=1)
    names = {coordinator_partition(name, 2): name for name in "abcdef"}
    first = host(node, names[0])
    listed = iter(node.node.transactions)
    assert next(listed) is first
    second = host(node, names[1])
    assert [*listed] == []
    assert {*node.node.transactions} == {first, second}
    node.close()


def test_requests_that_wait_fail_when_the_partition_does(tmp_path):
    node = InProcess(tmp_path / "data", durability="fsync")
    find(node, key_type=1)
    assert init(node)[0] == 0
    waiting = node.send(
        INIT_PRODUCER_ID, 5, transactional_id="payments", transaction_timeout_ms=1_000,
        producer_id=-1, producer_epoch=-1,
    )  # fmt: skip
    assert waiting.sent is None
    partition = host(node).partition
    partition.error = errors.KafkaStorageError("Its directory was removed.")
    node.node.replicas.purgatory.wake(partition)
    refused = errors.NotCoordinator.code
    assert node.response(waiting, INIT_PRODUCER_ID, 5).error_code == refused
    assert init(node)[0] == refused
    node.close()


def test_find_coordinator_requires_describe_on_each_id(transactional):
    transactional.node.authorizer = Denying(DESCRIBE, names="a")
    answer = transactional.request(FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["a", "b"])
    codes = [found.error_code for found in answer.coordinators]
    assert codes == [errors.TransactionalIdAuthorizationFailed.code, 0]


@pytest.mark.parametrize("key_type", [0, 1])
def test_find_coordinator_responds_once_the_coordinator_can_serve(transactional, key_type):
    coordinators = transactional.node.transactions if key_type else transactional.node.groups
    asked = {"key_type": key_type, "coordinator_keys": ["a"]}
    _, second = (transactional.send(FIND_COORDINATOR, 4, **asked) for _ in range(2))
    assert second.sent is None
    transactional.until(lambda: second.sent is not None)
    assert coordinators.host_of("a").machine is not None
