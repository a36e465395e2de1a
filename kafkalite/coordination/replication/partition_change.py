"""Changes of partitions: what follows from a new ISR, other replicas or a node that failed.

    new ISR or replicas ─▶ complete a reassignment ─▶ ELR ─▶ leader ─▶ epochs, witnesses

Every decision about a partition with replicas is made here, so each one keeps the same rules:

- A replica that leaves an ISR smaller than the minimum stays eligible (ELR), because the leader
  commits nothing while the ISR is that small.  An ISR of the minimum size clears the ELR.
- A leader that is no longer valid is replaced if another replica is valid.
- The leader epoch increases with the leader, and with each replica that is removed: the removed
  one must not be counted by a leader that does not know it yet.
- In `fsync` mode, a change that removes a replica or its log leaves one flushed copy less, until
  the leader reports that there are enough again.
- In `fsync` mode, replicas that leave ISR and ELR at the controller's decision become witnesses:
  after a power loss they may have flushed records that no other has.  A replica that is removed
  cannot be one: a reassignment that removes replicas waits for the flush on the others.

Left out: in `fsync` mode, a cancelled reassignment that removes members of the ISR does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from kafkalite.config.settings import Settings
from kafkalite.config.topic import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.partition_image import (
    NO_LEADER,
    Nodes,
    PartitionImage,
    RecoveryState,
)
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.coordination.replication.election import ElectionType, elect


class PartitionRules(NamedTuple):
    """The settings of a topic that decisions about its partitions depend on."""

    min_isr: int = 1
    elects_unclean: bool = False
    durable_copies: DurableCopies | None = None
    """None if a record is acknowledged without a flush."""

    @classmethod
    def of(cls, settings: Settings) -> PartitionRules:
        """Return the rules in the settings of a topic."""
        return cls(
            settings[MIN_INSYNC_REPLICAS],
            settings[UNCLEAN_LEADER_ELECTION_ENABLE],
            DurableCopies.of(settings),
        )

    @property
    def has_witnesses(self) -> bool:
        """True if a record is acknowledged when it is flushed."""
        return self.durable_copies is not None

    def flushed_copies(self, partition: PartitionImage) -> int:
        """Return the number of replicas that flush a record before it is acknowledged."""
        copies = self.durable_copies
        return 1 if copies is None else copies.count(partition, self.min_isr)


RulesOf = Callable[[TopicImage], PartitionRules]


class ReplicaSet(NamedTuple):
    """The replicas of a partition, with those that a reassignment adds and removes."""

    replicas: Nodes
    adding: Nodes = ()
    removing: Nodes = ()


def change(
    partition: PartitionImage,
    rules: PartitionRules,
    is_active: Callable[[int], bool],
    *,
    isr: Sequence[int] | None = None,
    replica_set: ReplicaSet | None = None,
    lost: Collection[int] = (),
    election: ElectionType = ElectionType.ANY,
    by_leader: bool = False,
    recovery_state: RecoveryState | None = None,
    flushed_copies: int = 0,
) -> PartitionImage:
    """Return a partition with what follows from a change; the same object if nothing does, such as
    while a partition waits for its recovery election.

    `lost`: replicas that may have lost records, such as after an unclean shutdown; they leave ISR
    and ELR.  `by_leader`: the leader proposes the ISR, and committed records are flushed on enough
    of the replicas that stay.  `flushed_copies`: all records that this and earlier leaders may have
    committed are flushed on this number of those; if there is one, no witness is needed, and a
    reassignment may be completed.
    """
    if partition.recovery_state is RecoveryState.AWAITING_LOG_ENDS:
        return partition
    target = partition
    if replica_set is not None:
        target = target._replace(**replica_set._asdict())
    if isr is not None:
        target = target._replace(isr=tuple(isr))
    if lost:
        target = target._replace(isr=_without(target.isr, lost))
    if recovery_state is not None:
        target = target._replace(recovery_state=recovery_state)
    is_flushed = flushed_copies > 0 or not rules.has_witnesses
    if is_flushed or not target.removing:
        target = _complete_reassignment(target)
    target = _with_replicas_only(target)
    target = _with_elr(partition, target, rules, lost)
    target = _with_leader(target, is_active, election, rules, lost)
    if target.leader != partition.leader or set(partition.replicas) - set(target.replicas):
        target = target._replace(leader_epoch=partition.leader_epoch + 1)
    witnesses = () if is_flushed else _witnesses(partition, target, by_leader)
    copies = flushed_copies or _flushed_copies(partition, target, lost)
    target = target._replace(
        witnesses=witnesses, flushed_copies=min(copies, rules.flushed_copies(target))
    )
    if target == partition:
        return partition
    return target._replace(partition_epoch=partition.partition_epoch + 1)


def without_eligible(partition: PartitionImage, rules: PartitionRules) -> PartitionImage:
    """Return a partition without ELR, for another minimum of in-sync replicas.

    With a lower one the leader may commit records that eligible replicas lack.  Without a leader
    nothing is committed, so the ELR is kept; Kafka clears it then too.
    """
    is_led = partition.isr and partition.recovery_state is not RecoveryState.AWAITING_LOG_ENDS
    if not is_led or not partition.elr + partition.last_known_elr:
        return partition
    target = partition._replace(elr=(), last_known_elr=())
    if rules.has_witnesses:
        target = target._replace(witnesses=_witnesses(partition, target, by_leader=False))
    return target


def with_one_flushed_copy(partition: PartitionImage) -> PartitionImage:
    """Return a partition of which one flushed copy of each record is known, the same object if it
    is so already, or waits for its recovery election: those of earlier records do not change."""
    is_waiting = partition.recovery_state is RecoveryState.AWAITING_LOG_ENDS
    if is_waiting or partition.flushed_copies == 1:
        return partition
    return partition._replace(flushed_copies=1)


def _without(nodes: Iterable[int], left_out: Collection[int]) -> Nodes:
    return tuple(node_id for node_id in nodes if node_id not in left_out)


def _complete_reassignment(target: PartitionImage) -> PartitionImage:
    """Make the reassignment's replicas the only ones, once all of them are in the ISR."""
    if not target.adding and not target.removing:
        return target
    replicas = _without(target.replicas, target.removing)
    isr = _without(target.isr, target.removing)
    if not replicas or not set(replicas) <= set(isr):
        return target
    return target._replace(replicas=replicas, isr=isr, adding=(), removing=())


def _with_replicas_only(target: PartitionImage) -> PartitionImage:
    """Remove nodes that are no replicas from ISR, ELR, last known leader and witnesses."""
    gone = set(target.isr + target.elr + target.last_known_elr + target.witnesses)
    gone -= set(target.replicas)
    if not gone:
        return target
    return target._replace(
        isr=_without(target.isr, gone),
        elr=_without(target.elr, gone),
        last_known_elr=_without(target.last_known_elr, gone),
        witnesses=_without(target.witnesses, gone),
    )


def _with_elr(
    before: PartitionImage, target: PartitionImage, rules: PartitionRules, lost: Collection[int]
) -> PartitionImage:
    """Set the ELR that follows from the ISR before and after."""
    if len(target.isr) >= target.effective_min_isr(rules.min_isr):
        return target._replace(elr=(), last_known_elr=())
    eligible = dict.fromkeys((*before.elr, *before.isr))
    elr = tuple(
        node_id
        for node_id in eligible
        if node_id in target.replicas and node_id not in target.isr and node_id not in lost
    )
    return target._replace(elr=elr)


def _with_leader(
    target: PartitionImage,
    is_active: Callable[[int], bool],
    election: ElectionType,
    rules: PartitionRules,
    lost: Collection[int],
) -> PartitionImage:
    """Elect a leader if the present one is not valid, or another one is preferred."""
    former = target.leader
    if not target.isr and former != NO_LEADER:
        target = target._replace(last_known_elr=(former,))
    target = target._replace(last_known_elr=_without(target.last_known_elr, lost))
    if rules.elects_unclean and election is ElectionType.ANY:
        election = ElectionType.UNCLEAN
    elected = elect(target, is_active, election)
    target = target._replace(leader=elected.leader)
    if elected.leader == NO_LEADER:
        return target
    target = target._replace(last_known_elr=())
    if elected.is_unclean:
        return target._replace(
            isr=(elected.leader,), elr=(), recovery_state=RecoveryState.RECOVERING
        )
    if elected.leader not in target.isr:
        elr = _without(target.elr, (elected.leader,))
        if target.effective_min_isr(rules.min_isr) <= 1:
            elr = ()  # the leader commits alone from now on
        return target._replace(isr=(elected.leader,), elr=elr)
    return target


def _flushed_copies(
    before: PartitionImage, after: PartitionImage, lost: Collection[int]
) -> int:
    """Return the number of copies that are left of what was flushed before a change."""
    gone = {*before.replicas}.difference(after.replicas).union(lost)
    gone.intersection_update((before.leader, *before.isr, *before.elr, *before.witnesses))
    return max(1, before.flushed_copies - len(gone))


def _witnesses(before: PartitionImage, after: PartitionImage, by_leader: bool) -> Nodes:
    """Return the replicas that may have flushed what no member of ISR and ELR has."""
    known = dict.fromkeys(before.witnesses)
    if not by_leader or after.leader != before.leader:
        known |= dict.fromkeys((*before.isr, *before.elr))
        if before.leader != NO_LEADER:
            known[before.leader] = None
    return tuple(
        node_id
        for node_id in known
        if node_id in after.replicas and node_id not in after.isr and node_id not in after.elr
    )
