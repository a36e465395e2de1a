"""Reassignments in a cluster of real nodes: other replicas, more, and fewer."""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.topics import (
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
)
from tests.broker.conftest import Clients
from tests.broker.test_replication_in_cluster import content, in_sync


def reassign(
    cluster: Clients, replicas: Sequence[int] | None, topic: str = "t", at: int = 1, **fields: bool
) -> int:
    """Send a reassignment of partition 0; return its error code."""
    partitions = [{"partition_index": 0, "replicas": replicas}]
    response = cluster.request(
        at, ALTER_PARTITION_REASSIGNMENTS, 1, timeout_ms=1_000,
        topics=[{"name": topic, "partitions": partitions}], **fields,
    )  # fmt: skip
    assert response.error_code == 0
    return int(response.responses[0].partitions[0].error_code)


def in_progress(cluster: Clients, at: int = 1) -> list[tuple[list[int], list[int], list[int]]]:
    topics = cluster.request(
        at, LIST_PARTITION_REASSIGNMENTS, 0, timeout_ms=1_000, topics=None
    ).topics
    return [
        (list(p.replicas), list(p.adding_replicas), list(p.removing_replicas))
        for topic in topics
        for p in topic.partitions
    ]


def has_replicas(cluster: Clients, *nodes: int) -> bool:
    """Return whether exactly these nodes are replicas, in sync, and no other node has a log."""
    partition = cluster.image.topics["t"].partitions[0]
    expected = sorted(f"nodes/{n}/t-0" if n else "t-0" for n in nodes)
    return (
        partition.replicas == nodes
        and not partition.adding
        and {*partition.isr} == {*nodes}
        and cluster.directories("t-0") == expected
    )


def test_factor_grows_to_three_and_back_to_one(begun):
    cluster = begun(3)
    cluster.create("t", assigned=1)
    assert cluster.produce("t", b"a").error_code == 0
    assert reassign(cluster, [1, 2, 3]) == 0
    cluster.until(lambda: has_replicas(cluster, 1, 2, 3))
    cluster.until(lambda: in_sync(cluster, 1, 2, 3))
    assert cluster.produce("t", b"b").error_code == 0
    assert len({content(cluster, node_id) for node_id in (1, 2, 3)}) == 1
    assert in_progress(cluster) == []
    assert reassign(cluster, [3]) == 0
    cluster.until(lambda: has_replicas(cluster, 3))
    cluster.settle()
    assert cluster.produce("t", b"c").error_code == 0
    assert cluster.values("t") == [b"a", b"b", b"c"]


def test_replicas_are_replaced_while_records_are_produced(begun):
    cluster = begun(4)
    cluster.create("t", replicas=3)
    cluster.until(lambda: in_sync(cluster, *cluster.image.topics["t"].partitions[0].replicas))
    former = cluster.image.topics["t"].partitions[0].replicas
    target = [*({1, 2, 3, 4} - {former[0]})]
    acknowledged = []
    assert reassign(cluster, target) == 0
    for number in range(20):
        value = b"%d" % number
        if cluster.produce("t", value).error_code == 0:
            acknowledged.append(value)
    cluster.until(lambda: has_replicas(cluster, *target))
    cluster.until(lambda: in_sync(cluster, *target))
    # A record that was not acknowledged may be there: its leader was removed meanwhile.
    assert [value for value in cluster.values("t") if value in acknowledged] == acknowledged
    assert len({content(cluster, node_id) for node_id in target}) == 1


def test_reassignment_that_waits_is_listed_and_cancelled(begun):
    cluster = begun(4)
    cluster.create("t", replicas=3)
    former = cluster.image.topics["t"].partitions[0].replicas
    cluster.until(lambda: in_sync(cluster, *former))
    cluster.settle()
    (new,) = {1, 2, 3, 4} - {*former}
    cluster.kill(new, stay_down=True)
    target = [*former[:2], new]
    assert reassign(cluster, target, at=former[0]) == 0
    assert in_progress(cluster, at=former[0]) == [
        ([*target, former[2]], [new], [former[2]])
    ]
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.adding, partition.removing) == ((new,), (former[2],))
    assert reassign(cluster, None, at=former[0]) == 0
    partition = cluster.image.topics["t"].partitions[0]
    assert ({*partition.replicas}, partition.adding, partition.removing) == ({*former}, (), ())


def test_drained_node_loses_its_replicas_and_is_removed(begun):
    cluster = begun(4)
    cluster.create("t", 12, replicas=3)
    cluster.create("alone", assigned=4)
    cluster.settle()
    for index in range(12):
        assert cluster.produce("t", b"%d" % index, index).error_code == 0
    report = cluster.order("drain", 4)
    assert report["error_code"] == 0
    cluster.until(lambda: cluster.supervisor.reassigner.remaining_count == 0)
    cluster.until(lambda: not cluster.image.replica_count(4))
    cluster.settle()
    assert [cluster.values("t", i) for i in range(12)] == [[b"%d" % i] for i in range(12)]
    assert cluster.order("remove", 4)["error_code"] == 0
    cluster.until(lambda: 4 not in cluster.image.nodes)


def test_drain_without_another_node_for_a_replica_is_refused(begun):
    cluster = begun(3)
    cluster.create("t", replicas=3)
    report = cluster.order("drain", 3)
    assert "Every other worker has a replica of t-0 already" in report["error_message"]
    assert not cluster.image.nodes[3].draining


def test_invalid_reassignments_are_refused(begun):
    cluster = begun(3)
    cluster.create("t", replicas=2)
    replicas = cluster.image.topics["t"].partitions[0].replicas
    invalid = InvalidReplicaAssignment.code
    assert reassign(cluster, []) == invalid
    assert reassign(cluster, [1, 1]) == invalid
    assert reassign(cluster, [1, 9]) == invalid
    assert reassign(cluster, [0]) == invalid
    assert reassign(cluster, [*replicas]) == 0
    cluster.create("alone", assigned=2)
    assert reassign(cluster, [0], topic="alone") == 0
    assert reassign(cluster, [0, 2], topic="alone") == invalid
    assert reassign(cluster, None) == NoReassignmentInProgress.code
    assert reassign(cluster, [1], topic="none") == UnknownTopicOrPartition.code
    factor = InvalidReplicationFactor.code
    assert reassign(cluster, [1, 2, 3], allow_replication_factor_change=False) == factor
