"""Replicated partitions under random faults: elections, ISR changes, reassignments, lost messages.

Events are chosen at random from one seed: produces, fetches, messages that are delivered late,
twice or never, processes that are killed or hang, nodes that are fenced while they run, disks that
are replaced, and the controller's decisions.  After each event these hold:

- a record that was visible at an offset (below the high watermark of a leader or a follower, in
  sync or not) never changes
- an elected leader has every record that was visible or acknowledged before
- a leader epoch has one leader
- a follower never truncates records below its high watermark (FollowerReplication raises)

Once all is healed, every partition has a leader, all replicas are in sync and have the same log.

In three of five runs, a record is acknowledged once it is flushed on enough replicas, the number of
these changes, and the power fails at times; disks are lost with it as far as other replicas have
flushed all records.

Left out: unclean elections.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kafkalite.broker.replica.isr import IsrRules
from kafkalite.config.resources import Resource
from kafkalite.config.topic import DURABILITY, DURABLE_COPIES, MIN_INSYNC_REPLICAS
from kafkalite.coordination.controller import DEFAULT_SETTINGS
from kafkalite.coordination.image import (
    ClusterImage,
    NodeImage,
    TopicImage,
    config_records,
    node_record,
    topic_records,
)
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import NO_LEADER, PartitionImage, RecoveryState
from kafkalite.coordination.replication import commit_rules_change, leadership, reassignment
from kafkalite.coordination.replication.alter_partition import (
    IsrDecision,
    PartitionProposal,
    alter_partitions,
)
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.coordination.replication.partition_change import PartitionRules
from kafkalite.coordination.replication.recovery_election import ReplicaLogEnd
from kafkalite.errors import KafkaError, StaleBrokerEpoch
from tests.simulation.replica_node import (
    Fetch,
    FetchResponse,
    PartitionId,
    Replica,
    ReplicaNode,
)

TOPIC_ID = bytes(range(16))
CONTROLLER = 0
MESSAGES_MAX = 40
FETCH_COUNT_MAX = 5
LAG_MS = 1_000


class ReplicationSimulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.factor = self.random.choice([2, 3, 3])
        self.config = {MIN_INSYNC_REPLICAS.name: str(self.random.randint(1, 2))}
        self.counts: Counter[str] = Counter()
        self.messages: list[tuple[int, int, Any]] = []
        self.visible: dict[PartitionId, dict[int, tuple[int, int]]] = {}
        self.deleted_to: Counter[PartitionId] = Counter()
        self.leaders: dict[tuple[PartitionId, int], int] = {}
        self.next_value = 0
        self.image = ClusterImage()
        self.log: list[Any] = []
        copies = self.random.choice([None, None, *DurableCopies])
        self.flushes = copies is not None
        if copies is None:
            self.config[DURABILITY.name] = "os"
        else:
            self.config[DURABLE_COPIES.name] = copies.value
        self.log_ends: dict[PartitionId, dict[int, ReplicaLogEnd]] = {}
        self.lost: dict[PartitionId, set[int]] = {}
        """The nodes that lost the logs of a partition that waits for its recovery election."""
        ids = range(1, 1 + self.random.choice([3, 3, 4, 5]))
        self.nodes = {n: ReplicaNode(n, isr_rules_of, self.monotonic_ms) for n in ids}
        self._create_topic(self.random.choice([1, 1, 1, 2]))
        self.events: list[tuple[int, Callable[[], object]]] = [
            (30, self.produce), (60, self.fetch), (90, self.deliver), (20, self.propose),
            (50, self.apply_metadata), (12, self.advance_clock), (3, self.kill), (8, self.restart),
            (2, self.fence_running), (12, self.unfence), (4, self.detect), (2, self.replace_disk),
            (2, self.reassign), (2, self.cancel), (2, self.prefer), (3, self.lose_message),
            (3, self.duplicate_message), (2, self.delete_records), (2, self.shut_down),
        ]  # fmt: skip
        if self.flushes:
            self.events += [
                (30, self.flush), (2, self.lose_power), (10, self.report_log_ends),
                (2, self.alter_config),
            ]  # fmt: skip

    def _create_topic(self, partitions: int) -> None:
        images = {}
        for index in range(partitions):
            replicas = tuple(self.random.sample([*self.nodes], self.factor))
            images[index] = PartitionImage(replicas[0], 0, replicas, replicas)
            self.visible[TOPIC_ID, index] = {}
        self.write([node_record(NodeImage(CONTROLLER, "", 0))])
        self.write([node_record(NodeImage(n, "h", n, node_epoch=1)) for n in self.nodes])
        self.write([*topic_records(TopicImage("t", TOPIC_ID, images, self.config))])
        for node in self.nodes.values():
            node.acknowledged, node.became_leader = self.acknowledged, self.became_leader
            node.is_running, node.node_epoch = True, 1

    def monotonic_ms(self) -> int:
        return self.now_ms

    def run(self, steps: int) -> None:
        """Run random events, then heal everything and check that the replicas converge."""
        weights = [weight for weight, _ in self.events]
        for event in self.random.choices([event for _, event in self.events], weights, k=steps):
            event()
            self.counts[event.__name__] += 1
            self.check()
        self.heal()

    # -- controller --------------------------------------------------------------------------

    def write(self, records: list[Any]) -> None:
        for record in records:
            self.image.replay(record)
        self.log += records

    def commit(self, result: DecisionResult[Any]) -> Any:
        self.write([*result.records])
        return result.response

    def rules_of(self, topic: TopicImage) -> PartitionRules:
        return partition_rules(**topic.config)

    def remove_node(self, node_id: int, *, fenced: bool, shutting_down: bool = False) -> None:
        while self.commit(leadership.remove_from_isrs(self.image, node_id, self.rules_of, 1)):
            pass
        self._set_state(node_id, fenced=fenced, shutting_down=shutting_down)

    def _set_state(
        self,
        node_id: int,
        *,
        fenced: bool,
        shutting_down: bool = False,
        node_epoch: int | None = None,
    ) -> None:
        before = self.image.nodes[node_id]
        after = before._replace(
            fenced=fenced,
            shutting_down=shutting_down,
            node_epoch=before.node_epoch if node_epoch is None else node_epoch,
        )
        if after != before:
            self.write([node_record(after)])

    # -- events ------------------------------------------------------------------------------

    def any_node(self) -> ReplicaNode:
        return self.random.choice([*self.nodes.values()])

    def any_partition(self) -> PartitionId:
        return self.random.choice([*self.visible])

    def produce(self) -> None:
        at = self.any_partition()
        for node in self.random.sample([*self.nodes.values()], len(self.nodes)):
            if node.is_running and node.leads(at):
                self.next_value += 1
                node.produce(at, self.next_value)
                return

    def fetch(self) -> None:
        node = self.any_node()
        if node.is_running and len(self.messages) < MESSAGES_MAX:
            found = node.fetch(self.any_partition())
            if found is not None:
                self.messages.append((node.node_id, *found))

    def propose(self) -> None:
        node = self.any_node()
        if node.is_running:
            self._propose(node, self.any_partition())

    def _propose(self, node: ReplicaNode, at: PartitionId) -> None:
        """Send a proposal, unless it or its response is in flight: see InSyncReplicas.pending."""
        if not any(
            CONTROLLER in (sender, receiver) and content[:2] == (node.node_epoch, node.node_id)
            for sender, receiver, content in self.messages
        ):
            proposal = node.proposal(at)
            if proposal is not None:
                message = (node.node_epoch, node.node_id, proposal)
                self.messages.append((node.node_id, CONTROLLER, message))

    def deliver(self) -> None:
        if self.messages:
            self._deliver(self.messages.pop(self.random.randrange(len(self.messages))))

    def _deliver(self, message: tuple[int, int, Any]) -> None:
        sender, receiver, content = message
        if receiver == CONTROLLER:
            self._alter(*content)
            return
        node = self.nodes[receiver]
        if not node.is_running:
            return
        if isinstance(content, Fetch):
            response = node.fetched(content, self.random.randint(1, FETCH_COUNT_MAX))
            if response is not None:
                self.messages.append((receiver, sender, response))
        elif isinstance(content, FetchResponse):
            node.received(content)
        else:
            node_epoch, _, decision = content
            if node_epoch == node.node_epoch:
                node.decided(decision)

    def _alter(self, node_epoch: int, sender: int, proposal: PartitionProposal) -> None:
        try:
            decided = self.commit(
                alter_partitions(self.image, sender, node_epoch, [proposal], self.rules_of)
            )
        except StaleBrokerEpoch:
            return
        for decision in decided:
            assert isinstance(decision, IsrDecision)
            self.messages.append((CONTROLLER, sender, (node_epoch, sender, decision)))

    def apply_metadata(self) -> None:
        node = self.any_node()
        if node.is_running and node.image_offset < len(self.log):
            count = self.random.choice([1, 2, 5, len(self.log), len(self.log)])
            node.apply(self.log[node.image_offset :][:count])

    def advance_clock(self) -> None:
        self.now_ms += self.random.choice([1, 10, 100, 500, 1_500])

    def kill(self) -> None:
        self.any_node().stop()

    def detect(self) -> None:
        """Fence the nodes whose processes have ended."""
        for node in self.nodes.values():
            if not node.is_running and not self.image.nodes[node.node_id].fenced:
                self.remove_node(node.node_id, fenced=True)

    def restart(self) -> None:
        """Start a process of a node; the node is fenced until it has the image."""
        node = self.any_node()
        if not node.is_running:
            self._register(node)

    def _register(self, node: ReplicaNode) -> None:
        self.detect()
        node.is_running = True
        node.node_epoch += 1
        self._set_state(node.node_id, fenced=True, node_epoch=node.node_epoch)

    def fence_running(self) -> None:
        """Fence a node whose heartbeats are late; it continues with its image."""
        self.remove_node(self.any_node().node_id, fenced=True)

    def shut_down(self) -> None:
        node = self.any_node()
        if node.is_running and not self.image.nodes[node.node_id].fenced:
            self.remove_node(node.node_id, fenced=False, shutting_down=True)

    def unfence(self) -> None:
        node = self.any_node()
        if node.is_running and node.image_offset == len(self.log):
            self._set_state(node.node_id, fenced=False)
            self.commit(leadership.elect_missing(self.image, node.node_id, self.rules_of))

    def replace_disk(self) -> None:
        """Restart a node without its logs, if other nodes have the records."""
        self.detect()
        node = self.any_node()
        for at in self.visible:
            partition = self.partition(at)
            if not set(partition.isr + partition.elr) - {node.node_id}:
                return
            candidates = partition.isr + partition.elr + partition.witnesses
            if partition.recovery_state is RecoveryState.AWAITING_LOG_ENDS or (
                self.flushes and node.node_id in candidates and partition.flushed_copies == 1
            ):
                return  # it may have the only flushed copy of a record
        node.stop()
        node.replicas.clear()
        self._register(node)
        while self.commit(leadership.remove_after_loss(
            self.image, node.node_id, self.rules_of, count_max=1
        )):
            pass

    def flush(self) -> None:
        node = self.any_node()
        if node.is_running:
            node.flush(self.any_partition())

    def lose_power(self) -> None:
        """All processes end; each log keeps what was flushed, and any part of the rest."""
        for node in self.nodes.values():
            node.stop()
            for replica in node.replicas.values():
                log = replica.log
                kept = max(log.log_start_offset, log.flushed_offset)
                log.lose_power(self.random.randint(kept, log.end_offset))
            self._set_state(node.node_id, fenced=True)
        self.messages.clear()
        self.log_ends = {at: {} for at in self.visible}
        self.commit(leadership.begin_recovery(self.image))
        if self.random.random() < 0.5:
            self.lose_disk()

    def lose_disk(self) -> None:
        """A disk fails with the power, if the records that it had are flushed on others."""
        node = self.any_node()
        affected = [at for at in self.visible if node.node_id in self.partition(at).replicas]
        lost = {at: self.lost.get(at, set()) | {node.node_id} for at in affected}
        if any(len(nodes) >= self.partition(at).flushed_copies for at, nodes in lost.items()):
            return
        self.counts["lost_disks"] += 1
        self.lost |= lost
        node.replicas.clear()

    def alter_config(self) -> None:
        """Alter min.insync.replicas or durable.copies."""
        name, value = self.random.choice([
            (MIN_INSYNC_REPLICAS.name, self.random.choice("12")),
            (DURABLE_COPIES.name, self.random.choice([*DurableCopies]).value),
        ])  # fmt: skip
        records = [*config_records(Resource.TOPIC, "t", {name: value})]
        records += commit_rules_change.records(self.image, records, DEFAULT_SETTINGS)
        self.write(records)

    def report_log_ends(self) -> None:
        """A node that has its image reports the ends of its logs."""
        node = self.any_node()
        if node.is_running and node.image_offset == len(self.log):
            self._report(node)

    def _report(self, node: ReplicaNode) -> None:
        for at, ends in self.log_ends.items():
            partition = self.partition(at)
            if partition.recovery_state is not RecoveryState.AWAITING_LOG_ENDS:
                continue
            if node.node_id not in partition.replicas:
                continue
            if node.node_id in self.lost.get(at, ()):
                continue
            log = node.replicas[at].log
            ends[node.node_id] = ReplicaLogEnd(
                node.node_id, log.leader_epochs.latest, log.end_offset
            )
            topic = self.image.topics_by_id[at[0]]
            missing_max = self._missing_max(partition)
            if self.commit(
                leadership.complete_recovery(topic, at[1], [*ends.values()], missing_max)
            ):
                self.lost.pop(at, None)

    def _missing_max(self, partition: PartitionImage) -> int:
        return partition.flushed_copies - 1

    def reassign(self) -> None:
        at = self.any_partition()
        target = self.random.sample([*self.nodes], self.factor)
        topic = self.image.topics_by_id[at[0]]
        self._try(lambda: reassignment.reassign(self.image, topic, at[1], target, self.rules_of))

    def cancel(self) -> None:
        at = self.any_partition()
        topic = self.image.topics_by_id[at[0]]
        self._try(lambda: reassignment.reassign(self.image, topic, at[1], None, self.rules_of))

    def _try(self, decide: Callable[[], DecisionResult[Any]]) -> None:
        try:
            self.commit(decide())
        except KafkaError:
            self.counts["refused"] += 1

    def prefer(self) -> None:
        at = self.any_partition()
        located = (self.image.topics_by_id[at[0]], at[1], self.partition(at))
        self.commit(leadership.elect_preferred(self.image, [located], self.rules_of))

    def lose_message(self) -> None:
        if self.messages:
            self.messages.pop(self.random.randrange(len(self.messages)))

    def duplicate_message(self) -> None:
        if self.messages and len(self.messages) < MESSAGES_MAX:
            message = self.random.choice(self.messages)
            if CONTROLLER not in message[:2]:
                self.messages.append(message)

    def delete_records(self) -> None:
        at = self.any_partition()
        replica = self.any_node().replicas.get(at)
        if replica is not None and replica.isr is not None:
            log = replica.log
            log.delete_records(
                self.random.randint(log.log_start_offset, replica.high_watermark)
            )
            self.deleted_to[at] = max(self.deleted_to[at], log.log_start_offset)

    # -- checks ------------------------------------------------------------------------------

    def partition(self, at: PartitionId) -> PartitionImage:
        return self.image.topics_by_id[at[0]].partitions[at[1]]

    def acknowledged(self, at: PartitionId, offset: int, value: int) -> None:
        known = self.visible[at].setdefault(offset, (-1, value))
        assert known[1] == value, f"offset {offset} was acknowledged with another record"
        self.counts["acknowledged"] += 1

    def became_leader(self, at: PartitionId, replica: Replica) -> None:
        assert replica.partition is not None
        leader, epoch = replica.partition.leader, replica.partition.leader_epoch
        assert self.leaders.setdefault((at, epoch), leader) == leader, "two leaders in one epoch"
        if epoch < self.partition(at).leader_epoch:
            return  # not the leader any more: records may have been acknowledged since
        self.counts["elections"] += 1
        self._check_complete(at, replica)

    def _check_complete(self, at: PartitionId, replica: Replica) -> None:
        log = replica.log
        for offset, (_, value) in self.visible[at].items():
            if offset >= max(log.log_start_offset, self.deleted_to[at]):
                assert offset < log.end_offset, f"the leader lacks offset {offset}"
                found = log.records[offset - log.log_start_offset]
                assert found[1] == value, f"the leader has another record at {offset}"

    def check(self) -> None:
        """Check what leaders and followers show to consumers."""
        for node in self.nodes.values():
            for at, replica in node.replicas.items():
                log = replica.log
                assert replica.high_watermark <= log.end_offset
                if replica.leading is None and replica.following is None:
                    continue
                for offset in range(log.log_start_offset, replica.high_watermark):
                    record = log.records[offset - log.log_start_offset]
                    known = self.visible[at].setdefault(offset, record)
                    assert known[1] == record[1], f"the record at {offset} has changed"

    # -- convergence -------------------------------------------------------------------------

    def heal(self, rounds: int = 60) -> None:
        """Let every node run and every message arrive, and wait until the replicas agree."""
        for node in self.nodes.values():
            if not node.is_running:
                self._register(node)
        for _ in range(rounds):
            self._heal_once()
            if self._is_healed():
                break
        self.check()
        for at in self.visible:
            partition = self.partition(at)
            assert partition.leader != NO_LEADER, f"no leader: {partition}"
            assert set(partition.isr) == set(partition.replicas), f"not in sync: {partition}"
            assert not partition.adding and not partition.removing and not partition.elr
            replicas = [self.nodes[n].replicas[at] for n in partition.replicas]
            logs = [replica.log for replica in replicas]
            leader = self.nodes[partition.leader].replicas[at]
            self._check_complete(at, leader)
            assert all(map(is_committed, replicas)), "not committed"
            start = max(log.log_start_offset for log in logs)
            tails = [log.records[start - log.log_start_offset :] for log in logs]
            assert all(tail == tails[0] for tail in tails), "replicas differ"

    def _heal_once(self) -> None:
        self.now_ms += 50
        for node in self.nodes.values():
            node.apply(self.log[node.image_offset :])
            state = self.image.nodes[node.node_id]
            if not state.is_active:
                self._set_state(node.node_id, fenced=False)
                node.apply(self.log[node.image_offset :])
            self._report(node)
            self.commit(leadership.elect_missing(self.image, node.node_id, self.rules_of))
        for at in self.visible:
            for node in self.nodes.values():
                node.flush(at)
                self._propose(node, at)
                found = node.fetch(at)
                if found is not None:
                    self.messages.append((node.node_id, *found))
        while self.messages:
            self._deliver(self.messages.pop(0))

    def _is_healed(self) -> bool:
        for at in self.visible:
            partition = self.partition(at)
            if partition.leader == NO_LEADER or set(partition.isr) != set(partition.replicas):
                return False
            replicas = [self.nodes[n].replicas[at] for n in partition.replicas]
            if not all(map(is_committed, replicas)):
                return False
            if partition.adding or partition.removing:
                return False
        return True


def is_committed(replica: Replica) -> bool:
    """Return whether all records of a log are below the high watermark."""
    return replica.high_watermark == replica.log.end_offset


def isr_rules_of(topic: TopicImage) -> IsrRules:
    """Return the rules of the leaders of a topic's partitions."""
    rules = partition_rules(**topic.config)
    return IsrRules(LAG_MS, rules.min_isr, rules.durable_copies)


@lru_cache
def partition_rules(**config: str) -> PartitionRules:
    """Return the rules of the controller for a topic with this config."""
    return PartitionRules.of(DEFAULT_SETTINGS.for_topic(config))
