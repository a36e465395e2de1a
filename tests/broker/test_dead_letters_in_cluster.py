"""Dead letters in a cluster: source and dead letter topic on different nodes, which may fail."""

from __future__ import annotations

import pytest

from kafkalite.broker.share import dead_letter_queue
from kafkalite.coordination import features
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.share import ALTER_SHARE_GROUP_OFFSETS, SHARE_ACKNOWLEDGE
from kafkalite.records.batch import batches
from tests.broker.test_share_groups_in_cluster import COUNT, Member, described

REJECT = 3
DLQ = "dlq.t"
TOPIC_RESOURCE, GROUP_RESOURCE = 2, 32


@pytest.fixture
def cluster(begun):
    """A supervisor and two workers; topic `t` on worker 1, its dead letter topic on worker 2."""
    cluster = begun(2)
    cluster.until(lambda: features.is_finalized(cluster.image, features.SHARE_VERSION))
    cluster.create("t")
    cluster.create(DLQ)
    alter(cluster, TOPIC_RESOURCE, DLQ, "errors.deadletterqueue.group.enable", "true")
    alter(cluster, GROUP_RESOURCE, "g", "errors.deadletterqueue.topic.name", DLQ)
    place(cluster, "t", 1)
    place(cluster, DLQ, 2)
    cluster.request(0, FIND_COORDINATOR, 3, key="g", key_type=0)
    topics = [{"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    cluster.request(0, ALTER_SHARE_GROUP_OFFSETS, 0, group_id="g", topics=topics)
    for number in range(COUNT):
        cluster.produce("t", b"%d" % number)
    return cluster


def alter(cluster, kind, name, key, value):
    configs = [{"name": key, "config_operation": 0, "value": value}]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    response = cluster.request(0, INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    assert response.responses[0].error_code == 0


def place(cluster, topic, node_id):
    if cluster.leader(topic) != node_id:
        cluster.move(topic, node_id)
        cluster.until(lambda: cluster.leader(topic) == node_id)
        cluster.settle()


def letters(cluster):
    """Return the offsets of the dead letters."""
    led = cluster.node(cluster.leader(DLQ)).replicas.leader(DLQ, 0)
    found = led.read(0, 1 << 20, 0, whole_first=True)
    content = found.read() if found is not None else b""
    return [
        int(dict(record.headers)["__dlq.errors.offset"])
        for batch in batches(content)
        for record in batch.records()
    ]


def reject(cluster, member, first, last):
    """Reject a range; return the pending response."""
    batch = {"first_offset": first, "last_offset": last, "acknowledge_types": [REJECT]}
    partition = {"partition_index": 0, "acknowledgement_batches": [batch]}
    return cluster.send(
        member.leader, SHARE_ACKNOWLEDGE, 2, group_id="g", member_id=member.member_id,
        share_session_epoch=member.epoch,
        topics=[{"topic_id": member.topic_id, "partitions": [partition]}],
    )  # fmt: skip


def rejecting(cluster):
    """Return a member that has acquired all records, and its rejection of them."""
    member = Member(cluster)
    assert len(member.poll()) == COUNT
    return member, reject(cluster, member, 0, COUNT - 1)


def run_until_archived(cluster):
    cluster.until(lambda: described(cluster)[0] == COUNT, pace_ms=100)


@pytest.mark.parametrize("target", [1, 2])
def test_dead_letters_reach_the_leader_of_their_topic(cluster, target):
    place(cluster, DLQ, target)
    member, pending = rejecting(cluster)
    assert member.leader == 1
    assert member.end(pending) == (0, 0)
    run_until_archived(cluster)
    assert letters(cluster) == [*range(COUNT)]
    assert cluster.faults == cluster.deaths == []


@pytest.mark.parametrize("killed", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6, 8])
def test_each_rejected_record_has_a_dead_letter_after_a_kill(cluster, killed, steps):
    member, pending = rejecting(cluster)
    cluster.steps(steps)
    cluster.kill(killed)
    cluster.settle()
    if not pending.is_done or pending.closed or pending.response.responses == []:
        code = 1
    else:
        code = pending.response.error_code or (
            pending.response.responses[0].partitions[0].error_code
        )
    # A rejection that was not stored is repeated; one of which the response was lost may be stored.
    while code or described(cluster)[0] < COUNT:
        again = Member(cluster)
        again.poll(COUNT)
        cluster.clock.advance(dead_letter_queue.PAUSE_MS)
        code = 0
        if again.epoch:
            pending = reject(cluster, again, 0, COUNT - 1)
            again.end(pending)
        cluster.steps(20)
    assert {*letters(cluster)} == {*range(COUNT)}
    assert cluster.faults == cluster.deaths == []


def test_response_for_another_supervisor_is_dropped(cluster):
    source = cluster.node(0).batch_appends
    worker = cluster.running[2]
    worker.paused = True
    topic_id = cluster.image.topics[DLQ].topic_id
    outcomes = []
    source.append(topic_id, 0, b"").then(lambda _, error: outcomes.append(error))
    ((request_id, _),) = source._pending.items()
    incarnation = cluster.running[0].peer.incarnation
    for there, number, by in [
        (worker, request_id + 1, incarnation),
        (worker, request_id, incarnation + 1),
        (cluster.running[1], request_id, incarnation),
    ]:
        message = bus.BATCH_APPENDED(
            request_id=number, incarnation=by, error_code=0, error_message=None
        )
        cluster.receive_from_worker(there.identity, bus.write_frame(message))
    assert outcomes == []
    message = bus.BATCH_APPENDED(
        request_id=request_id, incarnation=incarnation, error_code=0, error_message=None
    )
    for _ in range(2):
        cluster.receive_from_worker(worker.identity, bus.write_frame(message))
    assert outcomes == [None]
    assert source._pending == {}


def test_append_at_a_worker_that_does_not_respond_times_out(cluster):
    source = cluster.node(0).batch_appends
    cluster.running[2].paused = True
    outcomes = []
    topic_id = cluster.image.topics[DLQ].topic_id
    source.append(topic_id, 0, b"").then(lambda _, error: outcomes.append(error))
    cluster.until(lambda: outcomes, pace_ms=100)
    assert [type(error).__name__ for error in outcomes] == ["RequestTimedOut"]
    assert source._pending == {}
