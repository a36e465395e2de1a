"""Fetch sessions of followers, with a leader's partitions on the disk and timers of the test."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from kafkalite.broker.replica import follower_sessions
from kafkalite.broker.replica.follower_sessions import (
    HIGH_WATERMARK_MS,
    READ_MAX,
    FollowerSessions,
    PeerFetch,
    ResponseLimits,
)
from kafkalite.broker.replica.isr import IsrRules, LogEnds
from kafkalite.broker.replica.partition import Partition, ReplicationEnvironment
from kafkalite.broker.replica.purgatory import Purgatory
from kafkalite.broker.replica.replication_quota import ReplicationQuota
from kafkalite.broker.request_metrics import TopicTraffic
from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.coordination.partition_image import PartitionImage
from kafkalite.errors import (
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    InvalidRequest,
    NotLeaderOrFollower,
)
from tests.storage.factories import batch, open_log, settings

LEADER, FOLLOWER = 1, 2
TOPIC = b"\1" * 16
LAG_MS = 1_000
WAIT_MS = 500
SIZE_MAX = 1 << 20


class Owner:
    """A connection of the follower."""

    def __init__(self):
        self.callbacks = []

    def on_close(self, callback):
        self.callbacks.append(callback)

    def close(self):
        for callback in self.callbacks:
            callback()


class Timers:
    """Timers that the test fires."""

    def __init__(self):
        self.due = []

    def call_later(self, ms, callback):
        timer = SimpleNamespace(ms=ms, callback=callback, cancel=lambda: self._cancel(timer))
        self.due.append(timer)
        return timer

    def _cancel(self, timer):
        if timer in self.due:
            self.due.remove(timer)

    def fire(self, ms):
        """Fire the timers of up to `ms`."""
        for timer in [timer for timer in self.due if timer.ms <= ms]:
            self.due.remove(timer)
            timer.callback()


class LeaderNode:
    """The replica manager of a node that leads partitions of one topic, with their sessions."""

    def __init__(self, directory):
        self.clock = ManualClock()
        self.timers = Timers()
        self.purgatory = Purgatory(self.timers)
        self.partitions = {}
        self.lookups = []
        self.directory = directory
        self.quota = ReplicationQuota(self.clock.monotonic_ms)
        self.sessions = FollowerSessions(self, self.timers, self.clock, self.quota)
        self.owner = Owner()
        self.session_id = self.session_epoch = 0
        self.progressed = []

    def add(self, index, *, epoch=1, isr=(LEADER, FOLLOWER)):
        log = open_log(self.directory / str(index))
        partition = Partition(log, epoch, settings({keys.DURABILITY: "os"}), high_watermark=0)
        partition.topic_id, partition.index = TOPIC, index
        environment = ReplicationEnvironment(
            lambda node_id: 1, self.clock.monotonic_ms, self.progressed.append
        )
        image = PartitionImage(LEADER, epoch, (LEADER, FOLLOWER), isr, epoch)
        partition.lead_with_followers(image, IsrRules(LAG_MS), environment)
        self.partitions[index] = partition
        return partition

    def leader(self, topic_id, index):
        self.lookups.append(index)
        if index not in self.partitions:
            raise NotLeaderOrFollower()
        return self.partitions[index]

    def traffic_of(self, topic_id):
        return TopicTraffic()

    def append(self, index, value=b"x"):
        partition = self.partitions[index]
        partition.append(batch(value))
        self.changed(partition)

    def changed(self, partition):
        partition.advance()
        self.purgatory.wake(partition)

    def tick(self):
        """End a tick."""
        self.purgatory.run()

    def fetch(self, *named, forgotten=(), wait_ms=WAIT_MS, min_bytes=1, max_bytes=SIZE_MAX):
        """Send a request of the follower's session; return its response, or a Future of it."""
        request = PeerFetch(
            FOLLOWER, 1, self.session_id, self.session_epoch,
            [(TOPIC, list(named))] if named else [],
            [(TOPIC, list(forgotten))] if forgotten else [],
            ResponseLimits(wait_ms, min_bytes, max_bytes),
        )  # fmt: skip
        response = self.sessions.fetch(request, self.owner)
        self.session_epoch += 1
        if not self.session_id:
            self.session_id = response.session_id
        return response

    def begin(self, *indexes):
        """Begin a session with these partitions, from their first offset."""
        return self.fetch(*[named(index) for index in indexes], wait_ms=0)


def named(index, offset=0, *, epoch=1, last_epoch=1, high_watermark=0, log_start=0, size_max=1000):
    return (index, epoch, offset, last_epoch, log_start, size_max, high_watermark, -1)


def indexes(response):
    return [result.partition_index for _, results in response.topics for result in results]


def only(response):
    ((_, (result,)),) = response.topics
    return result


def settled(future):
    """Return the responses that a Future has so far."""
    found = []
    future.then(lambda response, error: found.append(response))
    return found


@pytest.fixture
def node(tmp_path):
    made = LeaderNode(tmp_path)
    for index in range(3):
        made.add(index)
    return made


def test_first_response_has_each_partition_and_later_ones_only_news(node):
    assert indexes(node.begin(0, 1, 2)) == [0, 1, 2]
    waiting = node.fetch()
    node.append(1)
    node.tick()
    (response,) = settled(waiting)
    assert indexes(response) == [1]
    assert only(response).records.size > 0


def test_request_looks_up_only_what_it_names(node):
    node.begin(0, 1, 2)
    node.lookups.clear()
    for _ in range(3):
        node.fetch()
    node.append(1)
    node.tick()
    node.fetch(named(1, 1))
    assert node.lookups == []
    node.fetch(named(3))
    assert node.lookups == [3]


def test_records_are_sent_once_until_the_follower_names_the_partition(node):
    node.append(0)
    assert only(node.begin(0)).records.size > 0
    waiting = node.fetch()
    node.timers.fire(WAIT_MS)
    node.tick()
    assert [response.topics for response in settled(waiting)] == [[]]
    assert only(node.fetch(named(0))).records.size > 0


def test_fetch_is_the_acknowledgement_and_the_high_watermark_is_news(node):
    node.append(0)
    node.begin(0)
    partition = node.partitions[0]
    node.progressed.clear()
    waiting = node.fetch(named(0, 1))
    assert partition.replication.isr.high_watermark == 1 and node.progressed == [partition]
    node.tick()
    assert settled(waiting) == []
    node.timers.fire(HIGH_WATERMARK_MS)
    node.tick()
    (response,) = settled(waiting)
    assert only(response).high_watermark == 1
    waiting = node.fetch(named(0, 1, high_watermark=1))
    node.changed(partition)
    node.tick()
    assert settled(waiting) == []


def test_records_have_the_high_watermark_with_them(node):
    node.append(0)
    node.begin(0)
    waiting = node.fetch(named(0, 1))
    node.append(0)
    node.tick()
    (response,) = settled(waiting)
    assert only(response).records is not None and only(response).high_watermark == 1
    waiting = node.fetch(named(0, 2, high_watermark=1))
    node.timers.fire(HIGH_WATERMARK_MS)
    node.tick()
    assert only(settled(waiting)[0]).high_watermark == 2


def test_changes_of_one_tick_are_sent_together(node):
    node.begin(0, 1, 2)
    waiting = node.fetch()
    node.append(2)
    node.append(0)
    node.tick()
    (response,) = settled(waiting)
    assert indexes(response) == [2, 0]


def test_second_request_completes_the_first_before_it_changes_the_session(node):
    node.begin(0, 1)
    first = node.fetch()
    node.append(0)
    second = node.fetch(named(1, high_watermark=0))
    (response,) = settled(first)
    assert only(response).records.size > 0
    node.tick()
    assert settled(second) == []


def test_partition_that_is_led_no_more_has_an_error_until_it_is_led_again(node):
    node.begin(0)
    waiting = node.fetch()
    partition = node.partitions.pop(0)
    partition.error = NotLeaderOrFollower()
    node.purgatory.wake(partition)
    node.tick()
    (response,) = settled(waiting)
    assert only(response).error_code == NotLeaderOrFollower.code
    assert not partition.waiting
    node.fetch(forgotten=[0])
    node.partitions[0] = node.add(5)
    node.partitions[0].index = 0
    assert only(node.fetch(named(0), wait_ms=0)).error_code == 0


def test_new_leader_epoch_fences_the_session_s_fetch(node):
    node.begin(0)
    waiting = node.fetch()
    partition = node.partitions[0]
    image = PartitionImage(LEADER, 2, (LEADER, FOLLOWER), (LEADER, FOLLOWER), 2)
    environment = ReplicationEnvironment(lambda node_id: 1, lambda: 0, lambda partition: None)
    partition.lead_with_followers(image, IsrRules(LAG_MS), environment)
    node.purgatory.wake(partition)
    node.tick()
    (response,) = settled(waiting)
    assert only(response).error_code == FencedLeaderEpoch.code


def test_what_does_not_fit_is_sent_with_the_next_requests(node):
    for index in range(3):
        node.append(index, b"x" * 100)
    first = node.fetch(named(0), named(1), named(2), wait_ms=0, max_bytes=10)
    records = [result.records for _, results in first.topics for result in results]
    assert [found is not None for found in records] == [True, False, False]
    assert only(node.fetch(max_bytes=10)).partition_index == 1
    assert only(node.fetch(max_bytes=10)).partition_index == 2


def test_response_reads_a_bounded_number_of_partitions(node):
    count = READ_MAX + 5
    response = node.fetch(*[named(index) for index in range(3, 3 + count)], wait_ms=0)
    assert len(indexes(response)) == READ_MAX
    assert len(indexes(node.fetch())) == 5


def test_minimum_size_delays_records_but_not_high_watermarks(node):
    node.begin(0, 1)
    waiting = node.fetch(min_bytes=500)
    node.append(0)
    node.tick()
    assert settled(waiting) == []
    node.append(0, b"x" * 600)
    node.tick()
    (response,) = settled(waiting)
    assert indexes(response) == [0]
    waiting = node.fetch(named(0, 2), min_bytes=500)
    node.timers.fire(HIGH_WATERMARK_MS)
    node.tick()
    assert only(settled(waiting)[0]).high_watermark == 2


def test_follower_that_reaches_the_start_of_the_epoch_gets_it(node):
    partition = node.add(7, epoch=1)
    node.append(7)
    node.fetch(named(7, last_epoch=-1), wait_ms=0)
    image = PartitionImage(LEADER, 2, (LEADER, FOLLOWER), (LEADER, FOLLOWER), 2)
    environment = ReplicationEnvironment(lambda node_id: 1, lambda: 0, lambda partition: None)
    partition.lead_with_followers(image, IsrRules(LAG_MS), environment)
    node.fetch(named(7, 0, epoch=2, last_epoch=-1), wait_ms=0)
    response = node.fetch(named(7, 1, epoch=2, last_epoch=1, high_watermark=1), wait_ms=0)
    assert only(response).epoch_start == 1
    response = node.fetch(named(7, 1, epoch=2, last_epoch=2, high_watermark=1), wait_ms=0)
    assert response.topics == []


def test_session_leaves_what_is_forgotten_and_all_at_its_end(node):
    node.begin(0, 1)
    node.fetch(forgotten=[0])
    assert not node.partitions[0].waiting and node.partitions[1].waiting
    node.owner.close()
    assert not node.partitions[1].waiting
    with pytest.raises(FetchSessionIdNotFound):
        node.fetch()


def test_follower_begins_another_session_on_its_connection(node):
    node.begin(0, 1)
    waiting = node.fetch()
    node.session_id = node.session_epoch = 0
    assert indexes(node.begin(1)) == [1]
    assert len(settled(waiting)) == 1
    assert not node.partitions[0].waiting and len(node.partitions[1].waiting) == 1


def test_session_of_too_many_partitions_ends_and_completes_its_request(node, monkeypatch):
    node.begin(0, 1)
    waiting = node.fetch()
    monkeypatch.setattr(follower_sessions, "PARTITIONS_MAX", 1)
    with pytest.raises(FetchSessionIdNotFound):
        node.fetch()
    assert len(settled(waiting)) == 1
    assert not node.partitions[0].waiting


def test_disk_error_of_a_change_completes_the_request_with_the_next_read(node, monkeypatch):
    node.begin(0)
    waiting = node.fetch(min_bytes=500)
    with monkeypatch.context() as failing:
        failing.setattr(follower_sessions, "available", lambda *words: os.stat("/nowhere"))
        node.append(0)
        node.tick()
    (response,) = settled(waiting)
    assert only(response).records is not None  # the disk is well again


# -- the in-sync replicas ----------------------------------------------------------------------


def proposed(node, index):
    partition = node.partitions[index]
    isr, log = partition.replication.isr, partition.log
    proposal = isr.propose(LogEnds(log.end_offset, log.durable_offset), node.clock.monotonic_ms())
    return None if proposal is None else [member.node_id for member in proposal.isr]


def test_requests_repeat_the_fetch_of_what_they_do_not_name(node):
    node.begin(0)
    for _ in range(5):
        node.clock.advance(LAG_MS)
        node.fetch()
    node.partitions[0].append(batch(b"x"))  # in this tick: the session does not know it yet
    assert proposed(node, 0) is None
    node.changed(node.partitions[0])
    node.clock.advance(LAG_MS)
    assert proposed(node, 0) is None
    node.clock.advance(1)
    assert proposed(node, 0) == [LEADER]


def test_session_that_closes_late_does_not_end_the_repetition_of_the_next(node):
    node.begin(0)
    former, node.owner = node.owner, Owner()
    node.session_id = node.session_epoch = 0
    node.begin(0)
    former.close()
    for _ in range(5):
        node.clock.advance(LAG_MS)
        node.fetch()
    node.append(0)
    assert proposed(node, 0) is None


def test_requests_without_an_acknowledgement_keep_no_follower_in_sync(node):
    node.begin(0)
    node.append(0)
    for _ in range(5):
        node.clock.advance(LAG_MS // 2)
        node.fetch()
    assert proposed(node, 0) == [LEADER]


def test_follower_that_has_left_the_isr_joins_by_the_next_request(node):
    node.begin(0)
    partition = node.partitions[0]
    partition.replication.isr.update(PartitionImage(LEADER, 1, (LEADER, FOLLOWER), (LEADER,), 2))
    node.changed(partition)
    assert proposed(node, 0) is None
    node.fetch()
    assert proposed(node, 0) == [LEADER, FOLLOWER]


def test_follower_joins_once_the_image_has_its_process(node):
    node.begin(0)
    partition = node.partitions[0]
    isr = partition.replication.isr
    isr.update(PartitionImage(LEADER, 1, (LEADER, FOLLOWER), (LEADER,), 2))
    isr._node_epoch_of = lambda node_id: None
    node.changed(partition)
    node.fetch()
    assert proposed(node, 0) is None
    isr._node_epoch_of = lambda node_id: 1
    node.progressed.clear()
    node.fetch()
    assert node.progressed == [partition]
    assert proposed(node, 0) == [LEADER, FOLLOWER]


# -- invalid requests --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_id", "epoch", "error"),
    [
        (99, 1, FetchSessionIdNotFound),
        (None, 5, InvalidFetchSessionEpoch),
        (None, -1, InvalidFetchSessionEpoch),
    ],
)
def test_request_of_no_session_is_refused(node, session_id, epoch, error):
    node.begin(0)
    node.session_id = session_id or node.session_id
    node.session_epoch = epoch
    with pytest.raises(error):
        node.fetch()


def test_request_without_the_node_s_id_is_refused(node):
    request = PeerFetch(-1, -1, 0, 0, [], [], ResponseLimits(0, 1, SIZE_MAX))
    with pytest.raises(InvalidRequest):
        node.sessions.fetch(request, node.owner)
