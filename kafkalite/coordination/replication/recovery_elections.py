"""RecoveryElections: the ends of logs that nodes have reported, and the elections they allow.

A partition that waits for the ends of its logs (recovery_election.py) gets its leader once enough
of its candidates have reported.  A partition is checked when one of its nodes reports.

If no replica of a partition is eligible, or it waits, and all of them have reported logs that are
missing or empty, the first one leads: the partition was new, or nothing of it is left.

A replica whose log is missing or damaged does not count as reported: it may have had the only
flushed copy of a record.  If the topic acknowledges without a flush, records may be lost in any
case, and the partition waits for a limited time only (`elect_overdue`).  A client may elect a
leader before (ElectLeaders, UNCLEAN).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkalite.coordination.image import change_records
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import NO_LEADER, RecoveryState
from kafkalite.coordination.replication import leadership
from kafkalite.coordination.replication.leadership import CHANGED_MAX
from kafkalite.coordination.replication.recovery_election import accept_loss

if TYPE_CHECKING:
    from kafkalite.coordination.image import ClusterImage
    from kafkalite.coordination.partition_image import PartitionImage
    from kafkalite.coordination.replication.partition_change import RulesOf
    from kafkalite.coordination.replication.recovery_election import ReplicaLogEnd
    from kafkalite.coordination.replication.registration import RegisteredLog
    from kafkalite.protocol.schemas.internal import TypedRecord

PartitionId = tuple[bytes, int]


class RecoveryElections:
    """The reported ends of logs; see the module."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._ends: dict[PartitionId, dict[int, ReplicaLogEnd]] = {}
        """The ends of the partitions that wait for them, by node."""
        self._empty: dict[PartitionId, dict[int, int]] = {}
        """The nodes whose log of a partition is missing or empty, and its leader epoch then: a
        leader that was elected since may have appended records."""
        self._unchecked: dict[int, deque[PartitionId]] = {}

    def add(self, node_id: int, logs: Sequence[RegisteredLog]) -> None:
        """Note the ends of a node's logs."""
        known = {(each.topic_id, each.partition): each for each in logs}
        unchecked: deque[PartitionId] = deque()
        self._unchecked[node_id] = unchecked
        for topic, index, partition in self._image.replicas_on(node_id):
            key = topic.topic_id, index
            if partition.is_alone or partition.leader != NO_LEADER:
                self._empty.pop(key, None)
                continue
            unchecked.append(key)
            found = known.get(key)
            if found is None or found.is_empty:
                self._empty.setdefault(key, {})[node_id] = partition.leader_epoch
            is_whole = found is not None and not found.is_damaged and found.end_offset >= 0
            if found is not None and is_whole and _is_waiting(partition):
                self._ends.setdefault(key, {})[node_id] = found.end_on(node_id)

    def forget(self, node_id: int) -> None:
        """Forget what a node has reported: its process has ended."""
        self._unchecked.pop(node_id, None)
        for ends in self._ends.values():
            ends.pop(node_id, None)
        for nodes in self._empty.values():
            nodes.pop(node_id, None)

    @property
    def is_waiting(self) -> bool:
        """True if partitions wait for the ends of more logs."""
        return bool(self._ends)

    def has_more(self, node_id: int) -> bool:
        """Return whether partitions of a node are to be checked."""
        return bool(self._unchecked.get(node_id))

    def elect(self, node_id: int) -> DecisionResult[None]:
        """Elect the leaders of the next partitions of a node whose ends are known."""
        unchecked = self._unchecked[node_id]
        records: list[TypedRecord] = []
        for _ in range(min(CHANGED_MAX, len(unchecked))):
            key = unchecked.popleft()
            records += self._elected(key)
        return DecisionResult(None, records)

    def elect_overdue(self, rules_of: RulesOf) -> DecisionResult[int]:
        """Elect leaders of partitions that have waited long enough, by the ends that are known, if
        their topics acknowledge without a flush; return the number of those that still wait."""
        records: list[TypedRecord] = []
        left = 0
        for key in list(self._ends):
            topic = self._image.topics_by_id.get(key[0])
            if topic is None or not _is_waiting(topic.partitions[key[1]]):
                del self._ends[key]
            elif rules_of(topic).has_witnesses or len(records) == CHANGED_MAX:
                left += 1
            else:
                records += self._elected(key, is_overdue=True)
        return DecisionResult(left, records)

    def _elected(self, key: PartitionId, *, is_overdue: bool = False) -> Sequence[TypedRecord]:
        """Return the record of the election of a partition, if it is possible."""
        topic_id, index = key
        topic = self._image.topics_by_id.get(topic_id)
        partition = topic.partitions.get(index) if topic is not None else None
        if topic is None or partition is None or partition.leader != NO_LEADER:
            self._ends.pop(key, None)
            return ()
        empty = self._empty.get(key, {})
        if all(empty.get(n) == partition.leader_epoch for n in partition.replicas):
            changed = {index: accept_loss(partition, self._image.is_active)}
            return () if changed[index] is partition else [*change_records(topic, changed)]
        if not _is_waiting(partition):
            return ()
        ends = [*self._ends.get(key, {}).values()]
        missing_max = len(partition.replicas) if is_overdue else partition.flushed_copies - 1
        return leadership.complete_recovery(topic, index, ends, missing_max).records


def _is_waiting(partition: PartitionImage) -> bool:
    return partition.recovery_state is RecoveryState.AWAITING_LOG_ENDS
