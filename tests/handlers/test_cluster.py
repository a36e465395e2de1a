"""Cluster APIs of a real node: ApiVersions, Metadata, DescribeCluster and others, the quorum."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.handlers import telemetry
from kafkalite.broker.security import AclOperation
from kafkalite.broker.served_apis import SERVED
from kafkalite.coordination.features import is_finalized
from kafkalite.ids import NO_ID
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.cluster import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
)
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS
from tests.handlers.denying import Denying

NOT_ASKED = -0x80000000
SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1.0"}


def metadata(broker, version, topics, **options):
    """Return the Metadata of topics by name (str) or id (bytes), or of all (None)."""
    if topics is not None:
        topics = [
            {"name": topic} if isinstance(topic, str) else {"name": None, "topic_id": topic}
            for topic in topics
        ]
    return broker.request(METADATA, version, topics=topics, **options)


def page(broker, *names, limit=2000, cursor=None):
    if cursor is not None:
        cursor = dict(zip(("topic_name", "partition_index"), cursor, strict=True))
    return broker.request(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )


# -- ApiVersions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_api_versions_lists_exactly_the_served_apis(broker, version):
    answer = broker.request(API_VERSIONS, version, **SOFTWARE)
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    served = {
        key: (handler.low, handler.high)
        for key, handler in SERVED.items()
        if key not in telemetry.KEYS and is_finalized(broker.node.image, handler.feature)
    }
    assert listed.pop(PRODUCE.key) == (0, served.pop(PRODUCE.key)[1])
    assert (answer.error_code, listed) == (0, served)


def test_api_versions_response_header_is_never_flexible(broker):
    frame = write_header(18, 3, 7, None, True) + API_VERSIONS.request.write(3, SOFTWARE)
    answer = b"".join(broker.send_frame(frame).sent)
    assert API_VERSIONS.response.read(3, answer, 4).error_code == 0


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_api_versions_of_unknown_version_returns_version_0_response(broker, version):
    answer = b"".join(broker.send_frame(write_header(18, version, 7, None, version >= 3)).sent)
    read = API_VERSIONS.response.read(0, answer, 4)
    assert read.error_code == errors.UnsupportedVersion.code
    assert {entry.api_key for entry in read.api_keys} == {
        key for key, handler in SERVED.items()
        if key not in telemetry.KEYS and is_finalized(broker.node.image, handler.feature)
    }  # fmt: skip


def has_telemetry(broker):
    answer = broker.request(API_VERSIONS, 3, **SOFTWARE)
    return {entry.api_key for entry in answer.api_keys} >= {*telemetry.KEYS}


def test_telemetry_apis_are_advertised_with_a_subscription(broker):
    assert not has_telemetry(broker)
    config = {"name": "metrics", "config_operation": 0, "value": "*"}
    resource = {"resource_type": 16, "resource_name": "all", "configs": [config]}
    (answer,) = broker.request(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
    assert answer.error_code == 0 and has_telemetry(broker)


def test_telemetry_apis_are_advertised_with_an_exporter(broker):
    broker.restart(**{"metrics.listener": "127.0.0.1:9308"})
    assert has_telemetry(broker)


@pytest.mark.parametrize("words", ["", "-a", "a-", "a b", "a\n", "ä"])
def test_api_versions_with_illegal_client_name_returns_invalid_request(broker, words):
    answer = broker.request(API_VERSIONS, 3, **{**SOFTWARE, "client_software_name": words})
    assert answer.error_code == errors.InvalidRequest.code


def test_api_versions_for_another_cluster_or_node_returns_rebootstrap(broker):
    cluster_id = broker.node.cluster_id

    def code(**meant):
        return broker.request(API_VERSIONS, 5, **SOFTWARE, **meant).error_code

    assert code(cluster_id=cluster_id, node_id=0) == 0
    assert code(cluster_id="another", node_id=0) == errors.RebootstrapRequired.code
    assert code(cluster_id=cluster_id, node_id=1) == errors.RebootstrapRequired.code


def test_api_versions_requires_both_cluster_and_node_id_or_neither(broker):
    for half in ({"cluster_id": broker.node.cluster_id}, {"node_id": 0}):
        answer = broker.request(API_VERSIONS, 5, **SOFTWARE, **half)
        assert answer.error_code == errors.InvalidRequest.code


# -- Metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_every_version_describes_node_and_topic(broker, version):
    topic_id = broker.create("flights", 3)
    answer = metadata(broker, version, ["flights"])
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port) == (0, *broker.local)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "flights")
    assert topic.topic_id == (topic_id if version >= 10 else NO_ID)
    for index, partition in enumerate(topic.partitions):
        assert (partition.partition_index, partition.leader_id) == (index, 0)
        assert partition.replica_nodes == partition.isr_nodes == [0]
        assert partition.leader_epoch == (0 if version >= 7 else -1)
    assert answer.cluster_id == (broker.node.cluster_id if version >= 2 else None)
    assert answer.controller_id == (0 if version >= 1 else -1)


def test_metadata_of_all_topics_is_null_or_empty_in_version_0(broker):
    broker.create("a")
    broker.create("b")

    def names(version, topics):
        return {topic.name for topic in metadata(broker, version, topics).topics}

    assert names(1, None) == names(13, None) == names(0, []) == {"a", "b"}
    assert names(1, []) == names(13, []) == set()


def test_metadata_returns_the_address_the_client_connected_to(broker):
    port = broker.local[1]
    broker.local = ("10.0.0.7", port)
    (node,) = metadata(broker, 12, []).brokers
    assert (node.host, node.port) == ("10.0.0.7", port)


def test_metadata_returns_the_advertised_listener(broker):
    broker.restart(**{"advertised.listeners": "PLAINTEXT://kafka.example:9999"})
    (node,) = metadata(broker, 12, []).brokers
    assert (node.host, node.port) == ("kafka.example", 9999)


def test_metadata_returns_the_rack(broker):
    broker.restart(**{"broker.rack": "attic"})
    assert metadata(broker, 1, []).brokers[0].rack == "attic"


def test_metadata_returns_a_rack_that_was_set_while_the_broker_runs(broker):
    broker.restart(**{"broker.rack": "attic"})
    for name, rack in (("0", "cellar"), ("", "attic")):
        change = {"name": "broker.rack", "config_operation": 0, "value": rack}
        resource = {"resource_type": 4, "resource_name": name, "configs": [change]}
        answer = broker.request(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
        assert answer.responses[0].error_code == 0
        broker.until(lambda: metadata(broker, 1, []).brokers[0].rack == "cellar")
    removal = {"name": "broker.rack", "config_operation": 1, "value": None}
    resource = {"resource_type": 4, "resource_name": "0", "configs": [removal]}
    broker.request(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    broker.until(lambda: metadata(broker, 1, []).brokers[0].rack == "attic")


@pytest.mark.parametrize("version", [0, 4, 13])
def test_metadata_creates_a_missing_topic_and_returns_it(broker, version):
    broker.restart(**{"num.partitions": "2"})
    (topic,) = metadata(broker, version, ["new"]).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 2)
    assert broker.node.replicas.leader("new", 1).log.end_offset == 0


def test_metadata_without_auto_creation_creates_no_topic(broker):
    (topic,) = metadata(broker, 4, ["new"], allow_auto_topic_creation=False).topics
    assert topic.error_code == errors.UnknownTopicOrPartition.code
    assert broker.node.image.topics == {}


def test_metadata_creates_no_topic_if_auto_creation_is_disabled(broker):
    broker.restart(**{"auto.create.topics.enable": "false"})
    (topic,) = metadata(broker, 13, ["new"]).topics
    assert topic.error_code == errors.UnknownTopicOrPartition.code
    assert broker.node.image.topics == {}


@pytest.mark.parametrize("name", ["", ".", "a b", "a/b", "ü", "x" * 250])
@pytest.mark.parametrize("create", [True, False])
def test_metadata_of_illegal_name_returns_invalid_topic(broker, name, create):
    (topic,) = metadata(broker, 12, [name], allow_auto_topic_creation=create).topics
    assert topic.error_code == errors.InvalidTopicException.code
    assert topic.name == name


def test_metadata_does_not_create_internal_topics(broker):
    (topic,) = metadata(broker, 12, ["__consumer_offsets"]).topics
    assert topic.error_code == errors.UnknownTopicOrPartition.code


def test_metadata_hides_the_cluster_metadata_log(broker):
    assert metadata(broker, 12, None).topics == []
    (topic,) = metadata(broker, 12, ["__cluster_metadata"]).topics
    assert topic.error_code != 0


def test_metadata_returns_a_repeated_topic_once(broker):
    assert len(metadata(broker, 12, ["a", "a"]).topics) == 1


def test_metadata_finds_topics_by_id(broker):
    topic_id = broker.create("a")
    known, unknown = metadata(broker, 12, [topic_id, b"?" * 16]).topics
    assert (known.error_code, known.name) == (0, "a")
    assert (unknown.error_code, unknown.name) == (errors.UnknownTopicId.code, None)
    assert unknown.topic_id == b"?" * 16


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_before_version_12_refuses_topic_ids(broker, version):
    topic_id = broker.create("a")
    (topic,) = metadata(broker, version, [topic_id]).topics
    assert topic.error_code == errors.InvalidRequest.code


def test_metadata_of_topic_without_name_and_id_returns_invalid_request(broker):
    answer = metadata(broker, 13, [NO_ID])
    assert answer.error_code == answer.topics[0].error_code == errors.InvalidRequest.code


def test_metadata_returns_authorized_operations_on_request(broker):
    broker.create("a")
    answer = metadata(
        broker,
        8,
        ["a"],
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    every = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
    assert answer.topics[0].topic_authorized_operations == every
    assert answer.cluster_authorized_operations == sum(1 << o for o in (5, 7, 8, 9, 10, 11, 12))
    silent = metadata(broker, 8, ["a"])
    assert silent.cluster_authorized_operations == NOT_ASKED
    assert silent.topics[0].topic_authorized_operations == NOT_ASKED


def test_metadata_of_denied_topic_looks_like_that_of_a_missing_one(broker):
    topic_id = broker.create("secret")
    broker.node.authorizer = Denying(AclOperation.DESCRIBE, names="secret|nothing")
    there, not_there = metadata(broker, 12, ["secret", "nothing"]).topics
    assert there.error_code == not_there.error_code == errors.TopicAuthorizationFailed.code
    assert metadata(broker, 12, [topic_id]).topics[0].error_code == errors.UnknownTopicId.code
    assert metadata(broker, 12, None).topics == []


def test_metadata_without_create_permission_creates_no_topic(broker):
    broker.node.authorizer = Denying(AclOperation.CREATE)
    (topic,) = metadata(broker, 12, ["new"]).topics
    assert topic.error_code == errors.TopicAuthorizationFailed.code
    assert broker.node.image.topics == {}


# -- DescribeCluster -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_returns_id_controller_and_brokers(broker, version):
    answer = broker.request(DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    assert (answer.error_code, answer.cluster_id) == (0, broker.node.cluster_id)
    assert answer.controller_id == 0
    (node,) = answer.brokers
    assert (node.broker_id, node.host, node.port) == (0, *broker.local)
    assert not node.is_fenced
    assert answer.cluster_authorized_operations > 0


@pytest.mark.parametrize(
    ("endpoint_type", "fault"),
    [(2, errors.MismatchedEndpointType), (3, errors.UnsupportedEndpointType)],
)
def test_describe_cluster_refuses_other_endpoint_types(broker, endpoint_type, fault):
    answer = broker.request(DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert (answer.error_code, answer.brokers) == (fault.code, [])
    assert answer.error_message


def test_describe_cluster_without_permission_returns_no_operations(broker):
    broker.node.authorizer = Denying(AclOperation.DESCRIBE)
    answer = broker.request(DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert (answer.error_code, answer.cluster_authorized_operations) == (0, 0)


# -- DescribeTopicPartitions ---------------------------------------------------------------------


def test_describe_topic_partitions_sorts_topics_by_name(broker):
    for name in ("c", "a", "b"):
        broker.create(name, 2)
    answer = page(broker)
    assert [topic.name for topic in answer.topics] == ["a", "b", "c"]
    assert answer.next_cursor is None
    (partition, _) = answer.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch) == (0, 0)
    assert partition.replica_nodes == partition.isr_nodes == [0]
    assert partition.eligible_leader_replicas == partition.last_known_elr == []


def test_describe_topic_partitions_pages_cover_each_partition_once(broker):
    for name, partitions in (("a", 3), ("b", 2), ("c", 4)):
        broker.create(name, partitions)
    seen, cursor = [], None
    while True:
        answer = page(broker, limit=2, cursor=cursor)
        seen += [
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
        ]
        if answer.next_cursor is None:
            break
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert seen == [(name, i) for name, n in (("a", 3), ("b", 2), ("c", 4)) for i in range(n)]


def test_describe_topic_partitions_page_is_bounded_by_the_broker_limit(broker):
    broker.restart(**{"max.request.partition.size.limit": "2"})
    broker.create("a", 5)
    assert len(page(broker, limit=2**31 - 1).topics[0].partitions) == 2


@pytest.mark.parametrize("limit", [0, -1])
def test_describe_topic_partitions_page_has_at_least_one_partition(broker, limit):
    broker.create("a", 3)
    assert len(page(broker, limit=limit).topics[0].partitions) == 1


def test_describe_topic_partitions_returns_errors_for_bad_names(broker):
    broker.create("a")
    codes = {topic.name: topic.error_code for topic in page(broker, "a", "gone", "a b").topics}
    assert codes == {
        "a": 0,
        "gone": errors.UnknownTopicOrPartition.code,
        "a b": errors.InvalidTopicException.code,
    }


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)])
def test_describe_topic_partitions_with_invalid_cursor_is_refused(broker, cursor):
    broker.create("a")
    (topic,) = page(broker, "a", cursor=cursor).topics
    assert topic.error_code == errors.InvalidRequest.code


def test_describe_topic_partitions_cursor_skips_a_deleted_topic(broker):
    broker.create("c", 2)
    answer = page(broker, cursor=("b", 1))
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("c", 2)]


def test_describe_topic_partitions_without_permission_is_refused(broker):
    broker.create("secret")
    broker.node.authorizer = Denying(AclOperation.DESCRIBE)
    assert page(broker).topics == []
    (topic,) = page(broker, "secret").topics
    assert topic.error_code == errors.TopicAuthorizationFailed.code
    assert topic.partitions == []


# -- the quorum ----------------------------------------------------------------------------------


def quorum(broker, version, *asked):
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in asked
    ]
    return broker.request(DESCRIBE_QUORUM, version, topics=topics)


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_returns_node_0_as_only_voter(broker, version):
    broker.create("a")
    log = broker.node.controller.log
    answer = quorum(broker, version, ("__cluster_metadata", [0]))
    ((partition,),) = (topic.partitions for topic in answer.topics)
    assert (answer.error_code, partition.error_code) == (0, 0)
    assert (partition.leader_id, partition.leader_epoch) == (0, 0)
    assert partition.high_watermark == log.end_offset > 0
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (0, log.end_offset)
    assert partition.observers == []
    if version >= 1:
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp > 0
    if version >= 2:
        ((listener,),) = (node.listeners for node in answer.nodes)
        assert (listener.name, listener.host, listener.port) == ("PLAINTEXT", *broker.local)


@pytest.mark.parametrize(
    "asked",
    [
        [("__cluster_metadata", [1])],
        [("__cluster_metadata", [0, 1])],
        [("__cluster_metadata", [0]), ("a", [0])],
        [("../x", [-1])],
        [],
    ],
)
def test_describe_quorum_of_other_partitions_is_unknown(broker, asked):
    broker.create("a")
    answer = quorum(broker, 2, *asked)
    assert answer.error_code == 0
    codes = [p.error_code for topic in answer.topics for p in topic.partitions]
    assert set(codes) <= {errors.UnknownTopicOrPartition.code}
    assert len(codes) == sum(len(indexes) for _, indexes in asked)


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_without_permission_returns_no_topics(broker, version):
    broker.node.authorizer = Denying(AclOperation.DESCRIBE)
    answer = quorum(broker, version, ("__cluster_metadata", [0]))
    assert (answer.error_code, answer.topics) == (errors.ClusterAuthorizationFailed.code, [])


GROWN = {"name": "flights", "count": 5, "assignments": None}


def test_metadata_includes_added_partitions(broker):
    broker.create("flights", 2)
    for count in (2, 5):
        (topic,) = metadata(broker, 12, ["flights"]).topics
        assert [part.partition_index for part in topic.partitions] == [*range(count)]
        if count == 2:
            broker.request(CREATE_PARTITIONS, 3, topics=[GROWN])


def test_metadata_of_failed_log_has_no_leader_until_it_recovers(broker):
    broker.create("flights", 2)
    assert metadata(broker, 12, ["flights"]).topics[0].partitions[1].leader_id == 0
    log = broker.node.replicas.leader("flights", 1).log
    log.failure = "damaged"
    well, damaged = metadata(broker, 12, ["flights"]).topics[0].partitions
    assert (well.error_code, well.leader_id) == (0, 0)
    assert (damaged.error_code, damaged.leader_id) == (5, -1)
    assert list(damaged.offline_replicas) == [0]
    log.failure = None
    assert metadata(broker, 12, ["flights"]).topics[0].partitions[1].leader_id == 0
