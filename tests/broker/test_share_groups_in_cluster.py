"""Share groups in a cluster: leaders on workers, states at the supervisor, and either may fail."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.coordinator import share_progress
from kafkalite.coordination import features
from kafkalite.coordination.share.share_partition import ShareProgress
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.share import (
    ALTER_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)
from kafkalite.protocol.schemas.share_records import SharePartitionKey

ACCEPT = 1
FINAL_EPOCH = -1
COUNT = 6
LIMITS = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 100, "batch_size": 100}


@pytest.fixture
def cluster(begun):
    return share_cluster(begun(2))


def share_cluster(cluster):
    """Return a cluster with share groups; topic `t`, from offset 0 on for group `g`."""
    cluster.until(lambda: features.is_finalized(cluster.image, features.SHARE_VERSION))
    cluster.create("t")
    cluster.request(0, FIND_COORDINATOR, 3, key="g", key_type=0)
    topics = [
        {"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 0}]}
    ]
    response = cluster.request(0, ALTER_SHARE_GROUP_OFFSETS, 0, group_id="g", topics=topics)
    assert response.responses[0].partitions[0].error_code == 0
    for number in range(COUNT):
        cluster.produce("t", b"%d" % number)
    return cluster


class Member:
    """A member of share group `g` with a session at the leader of partition 0 of `t`."""

    def __init__(self, cluster, member_id="m" * 22):
        self.cluster = cluster
        self.member_id = member_id
        self.topic_id = cluster.image.topics["t"].topic_id
        self.leader = cluster.leader("t")
        self.epoch = 0

    def send(self, api, *acks, **fields):
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [ACCEPT]}
            for first, last in acks
        ]
        partition = {"partition_index": 0, "acknowledgement_batches": batches}
        return self.cluster.send(
            self.leader, api, 2, group_id="g", member_id=self.member_id,
            share_session_epoch=self.epoch,
            topics=[{"topic_id": self.topic_id, "partitions": [partition]}], **fields,
        )  # fmt: skip

    def end(self, pending):
        """Wait for a response; return the error codes of the request and of the partition."""
        self.cluster.until(lambda: pending.is_done)
        response = pending.response
        if response.error_code:
            return response.error_code, 0
        self.epoch += 1
        return 0, response.responses[0].partitions[0].error_code if response.responses else 0

    def acknowledge(self, first, last):
        """Acknowledge a range; return the error code of the request, or of the partition."""
        request_code, code = self.end(self.send(SHARE_ACKNOWLEDGE, (first, last)))
        return request_code or code

    def poll(self, count=100):
        """Fetch in a new session until the state is loaded; return acquired (offset, count)."""
        self.epoch = 0
        for _ in range(100):
            pending = self.send(SHARE_FETCH, **{**LIMITS, "max_records": count})
            assert self.end(pending)[0] == 0
            found = {
                (offset, each.delivery_count)
                for topic in pending.response.responses
                for result in topic.partitions
                for each in result.acquired_records
                for offset in range(each.first_offset, each.last_offset + 1)
            }
            if found:
                return found
            self.cluster.steps(5)
        return set()


def described(cluster):
    """Return the start offset and the lag of partition 0 of `t`."""
    groups = [{"group_id": "g", "topics": None}]
    response = cluster.request(0, DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=groups)
    (partition,) = response.groups[0].topics[0].partitions
    assert (response.groups[0].error_code, partition.error_code) == (0, 0)
    return partition.start_offset, partition.lag


def delivered(offsets, count=1):
    return {(offset, count) for offset in offsets}


def test_worker_delivers_and_the_supervisor_stores(cluster):
    member = Member(cluster)
    assert member.leader != 0
    assert member.poll() == delivered(range(COUNT))
    assert member.acknowledge(0, 2) == 0
    assert described(cluster) == (3, COUNT - 3)
    assert member.acknowledge(4, 4) == 0
    assert described(cluster) == (3, COUNT - 4)


def counts(cluster):
    """Return the number of records in flight and the greatest delivery count of `t`."""
    groups = [{"group_id": "g", "topics": None}]
    response = cluster.request(
        0, DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=groups, includes_delivery_counts=True
    )
    (partition,) = response.groups[0].topics[0].partitions
    return partition.in_flight_count, partition.delivery_count


def test_description_counts_records_in_flight_and_deliveries(cluster, monkeypatch):
    assert counts(cluster) == (-1, -1), "no member has fetched"
    members = [Member(cluster), Member(cluster, "n" * 22)]
    assert members[0].poll(3) == delivered(range(3))
    assert members[1].poll(3) == delivered(range(3, COUNT))
    assert counts(cluster) == (COUNT, 1)
    assert members[0].acknowledge(0, 1) == 0
    assert counts(cluster) == (COUNT - 2, 1)
    members[0].epoch = FINAL_EPOCH
    assert members[0].end(members[0].send(SHARE_ACKNOWLEDGE))[0] == 0
    cluster.until(lambda: counts(cluster) == (COUNT - 3, 1))
    assert members[0].poll() == delivered({2}, 2)
    assert counts(cluster) == (COUNT - 2, 2)
    monkeypatch.setattr(share_progress, "RANGES_MAX", 0)
    assert counts(cluster) == (-1, -1)


def test_lag_is_exact_after_acknowledgements_that_overlap(cluster):
    members = [Member(cluster), Member(cluster, "n" * 22)]
    assert members[0].poll(3) == delivered(range(3))
    assert members[1].poll(3) == delivered(range(3, COUNT))
    pending = [
        member.send(SHARE_ACKNOWLEDGE, acks)
        for member, acks in zip(members, [(1, 2), (3, 3)], strict=True)
    ]
    assert [member.end(each) for member, each in zip(members, pending, strict=True)] == [(0, 0)] * 2
    cluster.until(lambda: described(cluster) == (0, COUNT - 3))
    pending = [
        member.send(SHARE_ACKNOWLEDGE, acks)
        for member, acks in zip(members, [(0, 0), (4, 5)], strict=True)
    ]
    assert [member.end(each) for member, each in zip(members, pending, strict=True)] == [(0, 0)] * 2
    cluster.until(lambda: described(cluster) == (COUNT, 0))


def test_lag_of_a_worker_that_does_not_respond_is_unknown(cluster):
    member = Member(cluster)
    worker = cluster.running[member.leader]
    worker.paused = True
    before = cluster.clock.monotonic_ms()
    assert described(cluster) == (0, -1)
    waited_ms = cluster.clock.monotonic_ms() - before
    assert share_progress.TIMEOUT_MS <= waited_ms <= share_progress.TIMEOUT_MS + 10
    worker.paused = False
    cluster.until(lambda: described(cluster) == (0, COUNT))
    assert cluster.faults == cluster.deaths == []


def test_progress_of_other_requests_is_dropped(cluster):
    leader = cluster.leader("t")
    worker, other = cluster.running[leader], cluster.running[3 - leader]
    source = cluster.node(0).share_progress
    key = SharePartitionKey("g", cluster.image.topics["t"].topic_id, 0)
    five = ShareProgress(5, 0, 0)._asdict()
    worker.paused = True
    found = []
    source.find([key]).then(lambda progress, _: found.append(progress))
    ((request_id, _),) = source._queries.items()
    incarnation = cluster.running[0].peer.incarnation
    for there, number, by, partitions in [
        (worker, request_id + 1, incarnation, [five]),
        (worker, request_id, incarnation + 1, [five]),
        (worker, request_id, incarnation, [five, five]),
        (worker, request_id, incarnation, []),
        (other, request_id, incarnation, [five]),
    ]:
        message = bus.SHARE_PROGRESS(request_id=number, incarnation=by, partitions=partitions)
        cluster.receive_from_worker(there.identity, bus.write_frame(message))
    assert found == []
    message = bus.SHARE_PROGRESS(request_id=request_id, incarnation=incarnation, partitions=[five])
    for _ in range(2):
        cluster.receive_from_worker(worker.identity, bus.write_frame(message))
    assert found == [{key: ShareProgress(5, 0, 0)}]
    assert cluster.faults == []


def test_messages_to_workers_are_bounded(cluster, monkeypatch):
    monkeypatch.setattr(share_progress, "QUERIES_MAX", 1)
    monkeypatch.setattr(share_progress, "PARTITIONS_MAX", 1)
    cluster.create("many", 4)
    topic = cluster.image.topics["many"]
    source = cluster.node(0).share_progress
    found = []
    for _ in range(2):
        keys = [SharePartitionKey("g", topic.topic_id, index) for index in range(4)]
        source.find(keys).then(lambda progress, _: found.append(progress))
    cluster.until(lambda: len(found) == 2)
    assert [len(progress) for progress in found] == [0, 1]
    assert source._queries == {}


def test_new_leader_delivers_what_was_not_acknowledged(cluster):
    member = Member(cluster)
    old_leader = member.leader
    assert member.poll() == delivered(range(COUNT))
    assert member.acknowledge(1, 2) == 0
    cluster.move("t", 3 - old_leader)
    cluster.until(lambda: cluster.leader("t") != old_leader)
    cluster.settle()
    assert member.acknowledge(0, 0) == errors.NotLeaderOrFollower.code
    again = Member(cluster)
    assert again.leader == 3 - old_leader
    assert again.poll() == delivered({0, 3, 4, 5})
    assert again.acknowledge(0, COUNT - 1) == errors.InvalidRecordState.code
    for offset in (0, 3, 4, 5):
        assert again.acknowledge(offset, offset) == 0
    assert described(cluster) == (COUNT, 0)


@pytest.mark.parametrize("end", ["move", "delete"])
def test_share_partitions_are_dropped_with_their_partition(cluster, end):
    member = Member(cluster)
    assert member.poll() == delivered(range(COUNT))
    led = cluster.node(member.leader).share_partitions.led
    assert len(led) == 1
    if end == "move":
        cluster.move("t", 3 - member.leader)
    else:
        cluster.delete("t")
    cluster.settle()
    assert len(led) == 0
    assert not led._groups
    assert not led._by_partition


def test_records_of_a_killed_worker_are_delivered_again(cluster):
    member = Member(cluster)
    assert member.poll() == delivered(range(COUNT))
    assert member.acknowledge(0, 1) == 0
    assert member.acknowledge(4, 4) == 0
    pending = member.send(SHARE_ACKNOWLEDGE, (3, 3))  # its outcome is unknown
    cluster.kill(member.leader)
    assert pending.is_done
    cluster.settle()
    assert member.acknowledge(5, 5) == errors.ShareSessionNotFound.code
    found = member.poll()
    assert delivered({2, 5}) <= found <= delivered({2, 3, 5})
    for offset, _ in found:
        assert member.acknowledge(offset, offset) == 0
    assert described(cluster) == (COUNT, 0)
    assert cluster.faults == []


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_acknowledgement_survives_a_killed_supervisor(cluster, steps):
    member = Member(cluster)
    assert member.poll() == delivered(range(COUNT))
    pending = member.send(SHARE_ACKNOWLEDGE, (0, 3))
    cluster.steps(steps)
    cluster.kill(0)
    code = sum(member.end(pending))
    assert code in (0, errors.CoordinatorNotAvailable.code)
    cluster.settle()
    while code:
        code = member.acknowledge(0, 3)
        assert code in (0, errors.CoordinatorNotAvailable.code)
    cluster.kill(member.leader)  # the next one knows what is stored
    cluster.settle()
    assert member.poll() == delivered({4, 5})
    assert described(cluster)[0] == 4
    assert cluster.faults == cluster.deaths == []
