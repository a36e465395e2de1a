"""InitProducerId and DescribeProducers, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.security import AclOperation, Authorizer, ResourceType
from kafkalite.coordination.producer_ids import BLOCK_COUNT
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS, INIT_PRODUCER_ID
from kafkalite.records.batch import Record, build
from tests.handlers.denying import Denying


class OnlyTopics(Authorizer):
    """Allows the given operations on topics, and nothing else."""

    def __init__(self, *operations: AclOperation) -> None:
        self.operations = operations

    def allows(self, principal, operation, resource_type, name):  # type: ignore[no-untyped-def]
        return resource_type is ResourceType.TOPIC and operation in self.operations


def init(broker, version=5, **fields):
    request = {"transactional_id": None, "transaction_timeout_ms": -1, **fields}
    return broker.request(INIT_PRODUCER_ID, version, **request)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_of_every_version_returns_epoch_0(broker, version):
    answer = init(broker, version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id >= 0


def test_producer_ids_are_unique_across_blocks(broker):
    given = {init(broker).producer_id for _ in range(BLOCK_COUNT + 10)}
    assert len(given) == BLOCK_COUNT + 10


def test_producer_ids_are_unique_across_a_restart(broker):
    before = {init(broker).producer_id for _ in range(3)}
    broker.restart()
    after = {init(broker).producer_id for _ in range(3)}
    assert not before & after


def test_producer_ids_are_unique_across_a_kill(broker):
    before = {init(broker).producer_id for _ in range(3)}
    after = broker.killed()
    assert init(after).producer_id not in before
    after.close()


def test_concurrent_init_producer_id_requests_share_a_block(broker):
    end_offset = broker.node.controller.log.end_offset
    frame = write_header(22, 1, 7, None, False) + INIT_PRODUCER_ID.request.write(
        1, {"transactional_id": None, "transaction_timeout_ms": -1}
    )
    wires = [broker.send_frame(frame) for _ in range(5)]
    broker.until(lambda: all(wire.sent is not None for wire in wires))
    ids = {INIT_PRODUCER_ID.response.read(1, b"".join(w.sent), 4).producer_id for w in wires}
    assert len(ids) == 5
    assert broker.node.controller.log.end_offset == end_offset + 1


def test_producer_id_is_returned_after_its_block_is_durable(broker):
    assert init(broker).error_code == 0
    log = broker.node.controller.log
    assert log.durable_offset == log.end_offset


def test_init_producer_id_on_a_full_disk_fails_until_there_is_space(broker):
    space = broker.node.controller.log._space
    space.kept_free, space.room = 1 << 60, 0
    assert init(broker).error_code == errors.KafkaStorageError.code
    space.kept_free = 0
    assert init(broker).error_code == 0


def test_init_producer_id_with_an_id_returns_a_new_id(broker):
    first = init(broker)
    again = init(broker, producer_id=first.producer_id, producer_epoch=first.producer_epoch)
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first.producer_id


@pytest.mark.parametrize(
    "told", [{"producer_id": 1}, {"producer_epoch": 1}], ids=["id alone", "epoch alone"]
)
def test_half_of_id_and_epoch_is_refused(broker, told):
    assert init(broker, **told).error_code == errors.InvalidRequest.code


def test_empty_transactional_id_is_refused(broker):
    assert init(broker, transactional_id="").error_code == errors.InvalidRequest.code


def test_init_producer_id_requires_write_permission_on_some_topic(broker):
    broker.node.authorizer = OnlyTopics(AclOperation.WRITE)
    assert init(broker).error_code == errors.ClusterAuthorizationFailed.code
    broker.node.authorizer = Authorizer()
    broker.create("a")
    broker.node.authorizer = OnlyTopics(AclOperation.WRITE)
    assert init(broker).error_code == 0
    broker.node.authorizer = OnlyTopics(AclOperation.READ)
    assert init(broker).error_code == errors.ClusterAuthorizationFailed.code


# -- active producers ----------------------------------------------------------------------------


def producers(broker, *asked):
    """Return the entry of each (topic, partition)."""
    topics = [{"name": name, "partition_indexes": indexes} for name, indexes in asked]
    return {
        (topic.name, partition.partition_index): partition
        for topic in broker.request(DESCRIBE_PRODUCERS, 0, topics=topics).topics
        for partition in topic.partitions
    }


def test_describe_producers_returns_the_active_producers(broker):
    broker.create("a", 2)
    partition = broker.node.replicas.leader("a", 1)
    for sequence in (0, 2):
        records = [Record(timestamp=1_000 + sequence, value=b"v") for _ in range(2)]
        partition.append(build(records, producer_id=77, producer_epoch=3, base_sequence=sequence))
    found = producers(broker, ("a", [0, 1]))
    assert found["a", 0].active_producers == []
    (described,) = found["a", 1].active_producers
    assert (described.producer_id, described.producer_epoch) == (77, 3)
    assert (described.last_sequence, described.last_timestamp) == (3, 1_002)
    assert (described.coordinator_epoch, described.current_txn_start_offset) == (-1, -1)


def test_describe_producers_returns_an_error_for_each_unknown_partition(broker):
    broker.create("a")
    found = producers(broker, ("a", [0, 1, -1]), ("gone", [0]), ("../x", [0]))
    unknown = errors.UnknownTopicOrPartition.code
    assert {where: entry.error_code for where, entry in found.items()} == {
        ("a", 0): 0, ("a", 1): unknown, ("a", -1): unknown, ("gone", 0): unknown,
        ("../x", 0): unknown,
    }  # fmt: skip


def test_describe_producers_without_permission_is_refused(broker):
    broker.create("a")
    broker.create("b")
    broker.node.authorizer = Denying(AclOperation.READ, names="a")
    found = producers(broker, ("a", [0, 1]), ("b", [0]))
    denied = errors.TopicAuthorizationFailed.code
    assert [entry.error_code for entry in found.values()] == [denied, denied, 0]


def test_describe_producers_refuses_a_repeated_partition(broker):
    broker.create("a", 2)
    found = producers(broker, ("a", [0, 0, 1]), ("a", [0, 1]))
    assert found["a", 0].error_code == errors.InvalidRequest.code
    assert found["a", 1].error_code == 0
