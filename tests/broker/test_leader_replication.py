"""A leader and its followers with logs on the disk: fetches, truncation and the high watermark."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalite.broker.replica.delayed_produce import DelayedProduce, UncommittedAppend
from kafkalite.broker.replica.isr import IsrRules
from kafkalite.broker.replica.partition import Partition, ReplicationEnvironment
from kafkalite.broker.replica.replica_fetch import FollowerReplication, ReplicaFetchResponse
from kafkalite.config import topic as keys
from kafkalite.coordination.partition_image import PartitionImage
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from kafkalite.protocol.results import PartitionAppendResult
from kafkalite.storage.log.log import Log
from tests.storage.factories import batch, open_log, settings

NODES = (1, 2, 3)
RULES = IsrRules(lag_max_ms=1_000)


class Replicas:
    """Three logs of a partition, one of which is led."""

    def __init__(self, directory: Path, rules: IsrRules = RULES, durability: str = "os") -> None:
        self.settings = settings({keys.DURABILITY: durability})
        self.rules = rules
        self.logs = {n: open_log(directory / str(n)) for n in NODES}
        self.epoch = 0
        self.isr = NODES
        self.high_watermarks = dict.fromkeys(NODES, 0)
        self.lead(1)

    def lead(self, node_id: int) -> None:
        """Elect a leader in the next epoch."""
        self.epoch += 1
        self.node_id = node_id
        self.partition = Partition(self.logs[node_id], self.epoch, self.settings)
        self.partition.high_watermark = self.high_watermarks[node_id]
        image = PartitionImage(node_id, self.epoch, NODES, self.isr, self.epoch)
        environment = ReplicationEnvironment(lambda n: 1, lambda: 0, lambda partition: None)
        self.partition.lead_with_followers(image, self.rules, environment)

    @property
    def isr_state(self):
        return self.partition.replication.isr

    def follower(self, node_id: int) -> FollowerReplication:
        """Return a follower's replication, in the state of its log."""
        return FollowerReplication(
            self.logs[node_id], self.epoch, node_id, 1, self.high_watermarks[node_id]
        )

    def read(self, sender: int, size_max: int = 10_000, **changed: int) -> ReplicaFetchResponse:
        """Return the leader's response to a follower's fetch, with changed fields."""
        fetch = self.follower(sender).next_fetch()
        fetch = fetch._replace(follower=fetch.follower._replace(**changed))
        return self.partition.replication.read(fetch, size_max, whole_first=True)

    def replicate(self, node_id: int, size_max: int = 10_000) -> None:
        """Let a follower fetch once, and apply what it gets."""
        follower = self.follower(node_id)
        fetch = follower.next_fetch()
        response = self.partition.replication.read(fetch, size_max, whole_first=True)
        if response.records is not None:
            response = response._replace(records=response.records.read())
        assert follower.apply(fetch, response)
        self.high_watermarks[node_id] = follower.high_watermark

    def commit(self, *values: bytes) -> None:
        """Append records, and let both followers fetch until they are committed."""
        for value in values:
            self.append(value)
        for node_id in (2, 3, 2, 3):
            self.replicate(node_id)
        assert self.partition.advance()

    def append(self, value: bytes) -> int:
        return self.partition.append(batch(value)).last_offset


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


def content(log: Log) -> bytes:
    return b"".join(segment.path.read_bytes() for segment in log.segments)


def test_record_is_committed_when_each_in_sync_replica_has_it(replicas):
    replicas.append(b"a")
    for node_id in (2, 3):
        replicas.replicate(node_id)
    assert replicas.partition.high_watermark == 0
    replicas.replicate(2)
    assert not replicas.partition.advance()
    replicas.replicate(3)
    assert replicas.partition.advance() and replicas.partition.high_watermark == 1
    assert content(replicas.logs[1]) == content(replicas.logs[2]) == content(replicas.logs[3])


def test_consumer_reads_to_the_high_watermark_and_a_follower_to_the_end(replicas):
    replicas.append(b"a")
    assert replicas.partition.read(0, 1_000, 0, whole_first=True) is None
    assert replicas.read(2).records is not None


def test_settings_of_the_topic_keep_the_followers(replicas):
    replicas.append(b"a")
    replicas.partition.reconfigure(settings({keys.DURABILITY: "os"}))
    replicas.append(b"b")
    assert replicas.partition.high_watermark == 0


def test_diverging_fetch_is_no_acknowledgement(replicas):
    replicas.append(b"a")
    replicas.append(b"b")
    replicas.lead(2)
    fetched = replicas.read(1)
    assert (fetched.diverging, fetched.records) == ((1, 0), None)
    assert replicas.isr_state.high_watermark == 0
    replicas.append(b"c")
    replicas.replicate(1)
    replicas.replicate(1)
    assert content(replicas.logs[1]) == content(replicas.logs[2])


def test_node_that_is_no_replica_retries_with_a_newer_image(replicas):
    with pytest.raises(UnknownLeaderEpoch):
        replicas.read(3, node_id=9)
    replicas.epoch += 1
    with pytest.raises(UnknownLeaderEpoch):
        replicas.read(3)


def test_fetch_in_an_earlier_epoch_is_fenced(replicas):
    replicas.epoch -= 1
    with pytest.raises(FencedLeaderEpoch):
        replicas.read(3)


def test_fetch_of_an_older_process_is_refused(replicas):
    with pytest.raises(NotLeaderOrFollower):
        replicas.read(3, node_epoch=0)


def test_fetch_below_the_log_start_is_out_of_range(replicas):
    replicas.commit(b"a", b"b")
    replicas.logs[1].delete_records(2)
    assert replicas.read(2, offset=1).is_out_of_range


def test_follower_below_the_log_start_begins_there(replicas):
    replicas.commit(b"a", b"b")
    replicas.logs[1].delete_records(2)
    replicas.logs[3].truncate_fully_and_start_at(0)
    replicas.high_watermarks[3] = 0
    replicas.append(b"c")
    replicas.replicate(3)
    assert (replicas.logs[3].log_start_offset, replicas.high_watermarks[3]) == (2, 2)
    replicas.replicate(3)
    assert replicas.logs[3].end_offset == 3


def test_follower_deletes_what_the_leader_has_deleted(replicas):
    replicas.commit(b"a", b"b")
    replicas.logs[1].delete_records(1)
    replicas.replicate(2)
    assert replicas.logs[2].log_start_offset == 1


def test_response_to_an_earlier_log_state_is_ignored(replicas):
    replicas.append(b"a")
    follower = replicas.follower(2)
    fetch = follower.next_fetch()
    response = replicas.read(2)
    response = response._replace(records=response.records.read())
    assert follower.apply(fetch, response)
    assert not follower.apply(fetch, response)  # another last epoch
    replicas.append(b"b")
    fetch, response = follower.next_fetch(), replicas.read(2)
    response = response._replace(records=response.records.read())
    assert follower.apply(fetch, response)
    assert not follower.apply(fetch, response)  # another end
    assert replicas.logs[2].end_offset == 2


def test_high_watermark_of_a_follower_is_never_beyond_its_log(replicas):
    replicas.append(b"a")
    replicas.replicate(2)
    follower = replicas.follower(2)
    fetch, response = follower.next_fetch(), replicas.read(2)
    assert follower.apply(fetch, response._replace(high_watermark=9))
    assert (follower.high_watermark, follower.leader_high_watermark) == (1, 9)


def test_follower_never_truncates_what_is_committed(replicas):
    replicas.append(b"a")
    replicas.replicate(2)
    follower = replicas.follower(2)
    follower.high_watermark = 1
    replicas.lead(3)
    replicas.append(b"b")
    follower.leader_epoch = replicas.epoch
    fetch = follower.next_fetch()
    response = replicas.partition.replication.read(fetch, 1_000, whole_first=True)
    with pytest.raises(KafkaStorageError, match="were committed"):
        follower.apply(fetch, response)
    assert replicas.logs[2].end_offset == 1


def test_leader_notes_its_epoch_before_the_first_record(replicas):
    replicas.append(b"a")
    replicas.replicate(2)
    replicas.lead(2)
    assert replicas.logs[2].leader_epochs.epochs == [1, 2]
    assert replicas.logs[2].leader_epochs.starts == [0, 1]


def test_follower_notes_an_epoch_without_records(replicas):
    replicas.append(b"a")
    for node_id in (2, 3):
        replicas.replicate(node_id)
    replicas.lead(2)
    replicas.replicate(3)
    assert replicas.logs[3].leader_epochs.epochs == [1, 2]
    assert replicas.logs[3].leader_epochs.starts == [0, 1]


def test_flushed_copies_decide_in_fsync_mode(tmp_path):
    rules = RULES._replace(durable_copies=DurableCopies.LEADER)
    replicas = Replicas(tmp_path, rules, durability="fsync")
    replicas.append(b"a")
    for node_id in (2, 3, 2, 3):
        replicas.replicate(node_id)
    assert replicas.partition.high_watermark == 0
    replicas.logs[1].flush()
    assert replicas.partition.advance() and replicas.partition.high_watermark == 1


def test_too_few_in_sync_replicas_refuse_records(tmp_path):
    replicas = Replicas(tmp_path, RULES._replace(min_isr=2))
    replicas.partition.replication.check_min_isr()
    replicas.isr = (1,)
    replicas.lead(1)
    with pytest.raises(NotEnoughReplicas):
        replicas.partition.replication.check_min_isr()


def test_produce_reports_an_isr_that_shrank_after_the_append(tmp_path):
    replicas = Replicas(tmp_path, RULES._replace(min_isr=2))
    results = [PartitionAppendResult(0, 0, 0, 0, 0, (), None, None)]
    last_offset = replicas.append(b"a")
    delayed = DelayedProduce([UncommittedAppend(replicas.partition, last_offset, results, 0)])
    for node_id in (2, 3, 2, 3):
        replicas.replicate(node_id)
    isr = replicas.isr_state
    isr.update(isr.partition._replace(isr=(1,), partition_epoch=9))
    replicas.partition.high_watermark = 1  # it was reached before the ISR shrank
    assert delayed.check(replicas.partition)
    assert results[0].error_code == NotEnoughReplicasAfterAppend.code


@pytest.mark.parametrize("seed", range(12))
def test_replicas_have_the_same_bytes_after_any_elections(tmp_path, seed):
    dice = random.Random(seed)
    replicas = Replicas(tmp_path)
    committed = 0
    for step in range(120):
        followers = [n for n in NODES if n != replicas.node_id]
        action = dice.randrange(10)
        if action < 4:
            replicas.append(b"%d" % step * dice.randint(1, 60))
        elif action < 9:
            replicas.replicate(dice.choice(followers), dice.choice([1, 500, 10_000]))
        else:
            replicas.partition.advance()
            committed = max(committed, replicas.partition.high_watermark)
            replicas.high_watermarks[replicas.node_id] = replicas.partition.high_watermark
            replicas.lead(dice.choice(NODES))
            assert replicas.logs[replicas.node_id].end_offset >= committed
    replicas.append(b"last")
    for _ in range(200):
        for node_id in NODES:
            if node_id != replicas.node_id:
                replicas.replicate(node_id)
    replicas.partition.advance()
    logs = [*replicas.logs.values()]
    assert replicas.partition.high_watermark == logs[0].end_offset == logs[1].end_offset
    assert content(logs[0]) == content(logs[1]) == content(logs[2])
    assert logs[0].leader_epochs.epochs == logs[1].leader_epochs.epochs
