"""The largest request of each API that the decoder accepts: no tick of its handling is long.

Time is counted, not measured: each function call takes CALL_NS on the node's clock, and each call
of a compiled function C_CALL_NS, about what a call takes with the code around it.  Requests, and
the limits of one step, are 1/SCALE of the real maximum; a call takes SCALE times as long.
"""

from __future__ import annotations

import sys

import pytest

from kafkalite.broker.controller import decisions
from kafkalite.broker.handlers import groups, offset_commits
from kafkalite.clock import ManualClock
from kafkalite.coordination import configs
from kafkalite.coordination.groups import classic_membership
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.partition_image import new_partition
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.schema import BY_KEY, MessageSchema
from kafkalite.protocol.schemas.cluster import METADATA
from tests.handlers.conftest import InProcess
from tests.handlers.grouping import find
from tests.handlers.transacting import init

SCALE = 16
CALL_NS, C_CALL_NS = 300, 100
COSTS = {"call": CALL_NS, "c_call": C_CALL_NS}
TICK_MS_MAX = 30
"""Leaves a machine half as fast below 50 ms."""
TOPICS, PARTITIONS = 60_000 // SCALE, 70_000 // SCALE


class WorkClock(ManualClock):
    """A clock that only calls advance."""

    def __init__(self):
        super().__init__()
        self.worked_ns = 0

    def monotonic_ns(self):
        return super().monotonic_ns() + self.worked_ns

    def monotonic_ms(self):
        return self.monotonic_ns() // 1_000_000

    def count(self, frame, event, argument):
        self.worked_ns += SCALE * COSTS.get(event, 0)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Yield a node whose image has many topics, without their logs on disk."""
    node = InProcess(tmp_path_factory.mktemp("large") / "data")
    find(node)
    find(node, key_type=1)
    assert init(node, name="x0")[0] == 0
    image = node.node.image
    for name, count in (("many", PARTITIONS), *((f"t{n}", 1) for n in range(TOPICS))):
        topic = TopicImage(name, name.encode().ljust(16), dict.fromkeys(range(count)))
        topic.partitions = {index: new_partition(0) for index in range(count)}
        image.topics[name] = image.topics_by_id[topic.topic_id] = topic
    yield node
    image.topics.clear()
    image.topics_by_id.clear()
    node.close()


def named(kind, count):
    return [f"{kind}{number}" for number in range(count)]


def resources(kind, count, *configs):
    return [
        {"resource_type": 2, "resource_name": name, "configs": [*configs]}
        for name in named(kind, count)
    ]


def one_resource(count, **change):
    keys = [{"name": name, **change} for name in named("key", count)]
    return [{"resource_type": 2, "resource_name": "t1", "configs": keys}]


def many_parts(count, **fields):
    return [{"partition_index": number, **fields} for number in range(count)]


MANY, SET = {"name": "many"}, {"name": "retention.ms", "value": "7"}
COMMITTING = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
PRODUCER = {"producer_id": 0, "producer_epoch": 0}
TRANSACTION = {f"v3_and_below_{name}": value for name, value in PRODUCER.items()}
TRANSACTION["v3_and_below_transactional_id"] = "x0"
NEW = {"num_partitions": 1, "replication_factor": 1}

REQUESTS = {
    "OffsetCommit": (9, lambda n: {**COMMITTING, "topics": [
        {**MANY, "partitions": many_parts(n, committed_offset=5)}]}),
    "OffsetCommit of topics": (9, lambda n: {**COMMITTING, "topics": [
        {"name": name, "partitions": many_parts(1, committed_offset=5)}
        for name in named("t", n)]}),
    "OffsetFetch": (8, lambda n: {"groups": [{"group_id": "g", "topics": [
        {**MANY, "partition_indexes": [*range(n)]}]}]}),
    "OffsetFetch of topics": (8, lambda n: {"groups": [{"group_id": "g", "topics": [
        {"name": name, "partition_indexes": [0]} for name in named("t", n)]}]}),
    "OffsetFetch of groups": (8, lambda n: {"groups": [
        {"group_id": name, "topics": None} for name in named("g", n)]}),
    "OffsetFetch of all": (8, lambda n: {"groups": [{"group_id": "g", "topics": None}]}),
    "OffsetFetch of one group": (7, lambda n: {"group_id": "g", "topics": [
        {**MANY, "partition_indexes": [*range(n)]}]}),
    "OffsetDelete": (0, lambda n: {"group_id": "g", "topics": [
        {**MANY, "partitions": many_parts(n)}]}),
    "LeaveGroup": (5, lambda n: {"group_id": "g", "members": [
        {"member_id": name} for name in named("x", n)]}),
    "JoinGroup": (5, lambda n: {
        "group_id": "j", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000,
        "member_id": "", "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": b""} for name in named("p", n)]}),
    "DescribeGroups": (5, lambda n: {"groups": named("x", n)}),
    "DeleteGroups": (2, lambda n: {"groups_names": named("x", n)}),
    "FindCoordinator": (4, lambda n: {"key_type": 0, "coordinator_keys": named("x", n)}),
    "ListGroups": (5, lambda n: {"states_filter": named("x", n)}),
    "Metadata": (12, lambda n: {
        "topics": [{"name": name} for name in named("t", n)],
        "allow_auto_topic_creation": True}),
    "Metadata of all": (12, lambda n: {"topics": None}),
    "DescribeTopicPartitions": (0, lambda n: {
        "topics": [{"name": name} for name in named("x", n)], "response_partition_limit": 2_000}),
    "DescribeQuorum": (1, lambda n: {"topics": [
        {"topic_name": "many", "partitions": many_parts(n)}]}),
    "DescribeConfigs": (4, lambda n: {"resources": [
        {"resource_type": 2, "resource_name": name} for name in named("x", n)]}),
    "AlterConfigs": (2, lambda n: {"resources": resources("t", n), "validate_only": True}),
    "AlterConfigs of absent topics": (2, lambda n: {"resources": resources("x", n)}),
    "AlterConfigs of keys": (2, lambda n: {"resources": one_resource(n, value="1")}),
    "IncrementalAlterConfigs": (1, lambda n: {
        "resources": resources("t", n, {**SET, "config_operation": 0}), "validate_only": True}),
    "IncrementalAlterConfigs of keys": (1, lambda n: {
        "resources": one_resource(n, config_operation=1, value=None)}),
    "AlterReplicaLogDirs": (2, lambda n: {"dirs": [
        {"path": "/x", "topics": [{**MANY, "partitions": [*range(n)]}]}]}),
    "AlterReplicaLogDirs of topics": (2, lambda n: {"dirs": [
        {"path": "/x", "topics": [{"name": name, "partitions": [0]} for name in named("t", n)]}]}),
    "AlterPartitionReassignments": (0, lambda n: {"topics": [
        {**MANY, "partitions": many_parts(n, replicas=[1])}]}),
    "DescribeLogDirs": (4, lambda n: {"topics": [{"topic": "many", "partitions": [*range(n)]}]}),
    "CreateTopics": (7, lambda n: {
        "topics": [{"name": name, **NEW} for name in named("x", n)], "validate_only": True}),
    "CreateTopics of topics there are": (7, lambda n: {
        "topics": [{"name": name, **NEW} for name in named("t", n)]}),
    "DeleteTopics": (6, lambda n: {"topics": [{"name": name} for name in named("x", n)]}),
    "DeleteTopics by name": (5, lambda n: {"topic_names": named("x", n)}),
    "CreatePartitions": (3, lambda n: {
        "topics": [{"name": name, "count": 1} for name in named("t", n)]}),
    "ElectLeaders": (2, lambda n: {"topic_partitions": [
        {"topic": "many", "partitions": [*range(n)]}]}),
    "ListOffsets": (7, lambda n: {"topics": [{**MANY, "partitions": many_parts(n, timestamp=-1)}]}),
    "DeleteRecords": (2, lambda n: {"topics": [{**MANY, "partitions": many_parts(n, offset=0)}]}),
    "OffsetForLeaderEpoch": (4, lambda n: {"topics": [{"topic": "many", "partitions": [
        {"partition": number, "leader_epoch": 0} for number in range(n)]}]}),
    "AddPartitionsToTxn": (3, lambda n: {**TRANSACTION, "v3_and_below_topics": [
        {**MANY, "partitions": [*range(n)]}]}),
    "AddPartitionsToTxn of topics": (3, lambda n: {**TRANSACTION, "v3_and_below_topics": [
        {"name": name, "partitions": [0]} for name in named("t", n)]}),
    "AddPartitionsToTxn of transactions": (5, lambda n: {"transactions": [
        {**PRODUCER, "transactional_id": name, "topics": [{"name": "t1", "partitions": [0]}]}
        for name in named("x", n)]}),
    "AddPartitionsToTxn again": (5, lambda n: {"transactions": [
        {**PRODUCER, "transactional_id": "x0", "topics": [{"name": "t2", "partitions": [0]}]}
        for _ in range(n)]}),
    "DescribeTransactions": (0, lambda n: {"transactional_ids": named("x", n)}),
    "UpdateFeatures": (0, lambda n: {"feature_updates": [
        {"feature": name, "max_version_level": 1} for name in named("x", n)]}),
    "DescribeProducers": (0, lambda n: {"topics": [{**MANY, "partition_indexes": [*range(n)]}]}),
}  # fmt: skip


def largest(api, version, request_of):
    """Return the request with the largest number of entries that is accepted."""
    allowed, refused = 1, TOPICS * SCALE

    def is_allowed(count):
        try:
            api.request.read(version, api.request.write(version, request_of(count)))
        except InvalidRequest:
            return False
        return True

    while refused - allowed > 1:
        count = (allowed + refused) // 2
        allowed, refused = (count, refused) if is_allowed(count) else (allowed, count)
    return request_of(allowed)


@pytest.mark.parametrize("name", [*REQUESTS])
def test_largest_request_has_no_long_tick(large, name, monkeypatch):
    api = next(api for api in BY_KEY.values() if api.name == name.split()[0])
    version, request_of = REQUESTS[name]
    for module, bound in (
        (groups, "ENTRIES_AT_ONCE"), (offset_commits, "ENTRIES_AT_ONCE"),
        (decisions, "WEIGHT_MAX"), (configs, "CHANGES_MAX"), (classic_membership, "PROTOCOLS_MAX"),
    ):  # fmt: skip
        monkeypatch.setattr(module, bound, getattr(module, bound) // SCALE)
    monkeypatch.setattr(api.request, "units_max", api.request.units_max // SCALE)
    is_about_all = name.endswith(" of all")
    request = request_of(0) if is_about_all else largest(api, version, request_of)
    clock = WorkClock()
    for holder in (large, large.node, large.reactor):
        monkeypatch.setattr(holder, "clock", clock)
    lengths = []

    def counted(call):
        before = clock.worked_ns
        sys.setprofile(clock.count)
        try:
            came = call()
        finally:
            sys.setprofile(None)
        lengths.append((clock.worked_ns - before) / 1_000_000)
        return came

    wire = counted(lambda: large.send(api, version, **request))
    while wire.sent is None:
        clock.advance(1)
        counted(lambda: large.reactor.tick(0))
    assert max(lengths) < TICK_MS_MAX


def test_metadata_of_all_topics_is_encoded_by_topic(large, monkeypatch):
    sizes = []

    def recorded(message, version, values):
        body = write(message, version, values)
        sizes.append(len(body))
        return body

    write = MessageSchema.write
    monkeypatch.setattr(MessageSchema, "write", recorded)
    wire = large.send(METADATA, 12, topics=None)
    while wire.sent is None:
        large.clock.advance(1)
        large.reactor.tick(0)
    # The largest part is the topic of PARTITIONS partitions.
    assert len(sizes) > TOPICS
    assert sorted(sizes)[-2] < 200
