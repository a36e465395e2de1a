"""InSyncReplicas: the followers of a partition as its leader sees them; ISR and high watermark.

    fetch of a follower ─▶ its end offset, durable offset and time
        ─▶ high watermark: what every in-sync replica has
        ─▶ IsrProposal ─▶ the controller ─▶ its decision, or the next image

While a proposal is pending, either ISR may be the committed one, so decisions hold for both:

    maximal ISR    committed and proposed members together; the high watermark counts these
    minimal ISR    the members of both; flushed copies are counted over these

A follower is caught up if it has all records, or had all of them less than
`replica.lag.time.max.ms` ago.  It may join the ISR with a fetch that shows that it has every record
below the high watermark and the start of this leader epoch.  A fetch before it left the ISR does
not count: below min.insync.replicas the high watermark stays, and a follower that is stopped would
join and leave in turn.  The high watermark waits for a follower that is caught up but has not
joined yet, since otherwise it could never join.

In `fsync` mode a record is committed once enough copies of it are flushed (DurableCopies): after a
power loss all replicas may have lost what was not.  Nothing is committed in a leader epoch until
that many replicas have flushed its start: the epoch, and all records before it.  A follower that
has reached the start notes the epoch, too, if no record of it follows.

The object decides only; it has no socket, log or timer.  Rules: KIP-497, KIP-841, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kafkalite.coordination.partition_image import PartitionImage, RecoveryState
from kafkalite.coordination.replication.alter_partition import IsrMember, IsrProposal
from kafkalite.coordination.replication.durable_copies import DurableCopies

UNKNOWN = -1
LONG_AGO = -(1 << 62)
"""A time in ms that is before any other."""


class IsrRules(NamedTuple):
    """Settings that decide about the ISR and the high watermark."""

    lag_max_ms: int
    min_isr: int = 1
    durable_copies: DurableCopies | None = None
    """None if a record is committed without a flush."""


class LogEnds(NamedTuple):
    """The end of a log: of what was appended, and of what was flushed."""

    end_offset: int
    durable_offset: int


class FollowerFetch(NamedTuple):
    """The state of a follower in its fetch: it has all records below `offset`."""

    node_id: int
    node_epoch: int
    offset: int
    durable_offset: int = UNKNOWN
    high_watermark: int = UNKNOWN
    """The high watermark that it knows: the leader responds at once if its own is higher."""
    log_start_offset: int = UNKNOWN


@dataclass(slots=True)
class SessionRequests:
    """The requests of a follower's fetch session, as far as its partitions need to know."""

    last_ms: int
    """The time of the last one."""


@dataclass(slots=True)
class FollowerProgress:
    """The state of one follower."""

    end_offset: int = UNKNOWN
    durable_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    node_epoch: int = UNKNOWN
    caught_up_ms: int = 0
    """The latest time at which it had all records of the leader."""
    fetched_ms: int = 0
    leader_end_offset: int = 0
    """The leader's end offset at its previous fetch."""
    has_fetched: bool = False
    """Whether it has fetched since it left the ISR."""
    repeated: SessionRequests | None = None
    """The session whose requests repeat the last fetch; None if none does."""

    def fetched(
        self,
        fetch: FollowerFetch,
        leader_end_offset: int,
        now_ms: int,
        session: SessionRequests | None = None,
    ) -> None:
        """Note a fetch at a time when the leader's log ends at `leader_end_offset`."""
        self.end_repetition()
        self.repeated = session
        if fetch.offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch.offset >= self.leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset, self.durable_offset = fetch.offset, fetch.durable_offset
        self.log_start_offset, self.node_epoch = fetch.log_start_offset, fetch.node_epoch
        self.fetched_ms, self.leader_end_offset = now_ms, leader_end_offset
        self.has_fetched = True

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        """Return whether the follower keeps up with the leader."""
        if self.end_offset == leader_end_offset:
            return True
        caught_up_ms = self.caught_up_ms
        if self.repeated is not None and self.end_offset >= self.leader_end_offset:
            caught_up_ms = max(caught_up_ms, self.repeated.last_ms)
        return now_ms - caught_up_ms <= lag_max_ms

    def end_repetition(self) -> None:
        """Note the last fetch at the time of the session's last request, as the last repetition."""
        if self.repeated is not None:
            self.fetched_ms = max(self.fetched_ms, self.repeated.last_ms)
            if self.end_offset >= self.leader_end_offset:
                self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
            self.repeated = None


class InSyncReplicas:
    """The followers of a partition that this node leads, for one leader epoch."""

    def __init__(
        self,
        partition: PartitionImage,
        rules: IsrRules,
        node_epoch_of: Callable[[int], int | None],
        *,
        epoch_start: int,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        """Begin to lead.

        `node_epoch_of` returns the epoch of a node that may join the ISR, or None.  `epoch_start`
        is the log end offset at which this leader epoch began.
        """
        self.partition = partition
        self.rules = rules
        self.high_watermark = high_watermark
        self.pending: IsrProposal | None = None
        """The proposal that has no response yet.

        It is sent to a controller process once, and repeated unchanged only after that process has
        ended: of two copies the first could be refused and the second be applied.
        """
        self._node_epoch_of = node_epoch_of
        self.epoch_start = epoch_start
        self._followers = {
            node_id: FollowerProgress(caught_up_ms=now_ms if node_id in partition.isr else LONG_AGO)
            for node_id in partition.replicas
            if node_id != partition.leader
        }

    # -- progress ----------------------------------------------------------------------------

    def has_follower(self, node_id: int) -> bool:
        """Return whether a node is a follower of this partition."""
        return node_id in self._followers

    def fetched(
        self,
        fetch: FollowerFetch,
        leader_end_offset: int,
        now_ms: int,
        session: SessionRequests | None = None,
    ) -> bool:
        """Note a follower's fetch; return False, and note nothing, if its process is outdated.

        Call it for fetches in this leader epoch that need no truncation only.  The later requests
        of `session` repeat the fetch, until `end_repetition`.
        """
        follower = self._followers.get(fetch.node_id)
        known = self._node_epoch_of(fetch.node_id)
        if follower is None or (known is not None and fetch.node_epoch < known):
            return False
        if fetch.node_epoch < follower.node_epoch:
            return False  # the image does not have the later process yet
        follower.fetched(fetch, leader_end_offset, now_ms, session)
        return True

    def end_repetition(self, node_id: int, session: SessionRequests) -> None:
        """Note that later requests of a session do not repeat its last fetch: the follower has been
        sent, or will be, what it does not have."""
        follower = self._followers.get(node_id)
        if follower is not None and follower.repeated is session:
            follower.end_repetition()

    def in_sync_with(self, offset: int) -> Iterator[tuple[int, int, int]]:
        """Yield (log end offset, time when it was caught up, node id) of the followers in the ISR
        whose log has a record at this offset, or ends there."""
        for node_id, follower in self._followers.items():
            if (
                node_id in self.partition.isr
                and follower.log_start_offset <= offset <= follower.end_offset
            ):
                yield follower.end_offset, follower.caught_up_ms, node_id

    def log_start_of(self, node_id: int) -> int:
        """Return the log start offset of a follower; UNKNOWN before its first fetch."""
        return self._followers[node_id].log_start_offset

    def low_watermark(self, leader_start_offset: int) -> int:
        """Return the lowest log start offset of the members."""
        members = self._followers.keys() & self.maximal_isr
        return min(leader_start_offset, *map(self.log_start_of, members))

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The nodes that are in the ISR before or after the pending proposal."""
        return frozenset(self.partition.isr).union(self._proposed())

    @property
    def minimal_isr(self) -> frozenset[int]:
        """The nodes that are in the ISR before and after the pending proposal."""
        if self.pending is None:
            return frozenset(self.partition.isr)
        proposed = [*self._proposed()]
        if self.pending.flushed_copies:
            return self._staying(proposed)
        return frozenset(self.partition.isr).intersection(proposed)

    def _completes(self, isr: Collection[int]) -> bool:
        """Return whether the reassignment can remove replicas, given this ISR."""
        removing = self.partition.removing
        return bool(removing) and set(self.partition.replicas) <= {*isr, *removing}

    def _staying(self, isr: Collection[int]) -> frozenset[int]:
        """Return the members that stay with this ISR, and with the reassignment it completes."""
        staying = frozenset(self.partition.isr).intersection(isr)
        return staying.difference(self.partition.removing) if self._completes(isr) else staying

    def _proposed(self) -> Iterable[int]:
        if self.pending is None:
            return self.partition.isr
        return (member.node_id for member in self.pending.isr)

    @property
    def has_min_isr(self) -> bool:
        """True if enough replicas are in sync for a produce request with acks=all."""
        return len(self.partition.isr) >= self._min_isr

    @property
    def may_have_min_isr(self) -> bool:
        """True if enough replicas are in sync, counting those that a pending proposal adds."""
        return len(self.maximal_isr) >= self._min_isr

    @property
    def _min_isr(self) -> int:
        return self.partition.effective_min_isr(self.rules.min_isr)

    @property
    def slowest_end_offset(self) -> int:
        """The smallest end offset of the in-sync followers; the high watermark if none has
        fetched yet, or none is in sync."""
        known = [
            each.end_offset
            for node_id, each in self._followers.items()
            if node_id in self.partition.isr and each.end_offset != UNKNOWN
        ]
        return min(known, default=self.high_watermark)

    def advance(self, leader: LogEnds, now_ms: int) -> bool:
        """Advance the high watermark to what is committed; return whether it moved."""
        if not self.has_min_isr:
            return False
        reached = min(leader.end_offset, self._replicated(leader.end_offset, now_ms))
        if self.rules.durable_copies is not None:
            flushed = self._durable(leader, self.minimal_isr, self.maximal_isr)
            if flushed < self.epoch_start:
                # A former leader's log may have a later epoch than what is flushed here, and
                # would be elected after a power loss.
                return False
            reached = min(reached, flushed)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def _replicated(self, leader_end_offset: int, now_ms: int) -> int:
        """Return the end of the records that all members have, and all that are about to join."""
        maximal = self.maximal_isr
        return min(
            (
                follower.end_offset
                for node_id, follower in self._followers.items()
                if node_id in maximal or self._is_joining(node_id, leader_end_offset, now_ms)
            ),
            default=leader_end_offset,
        )

    def _is_joining(self, node_id: int, leader_end_offset: int, now_ms: int) -> bool:
        follower = self._followers[node_id]
        return self._is_eligible(node_id) and follower.is_caught_up(
            leader_end_offset, now_ms, self.rules.lag_max_ms
        )

    def _durable(self, leader: LogEnds, minimal: Collection[int], maximal: Collection[int]) -> int:
        """Return the end of the records that are flushed on enough replicas; UNKNOWN if there are
        too few."""
        # Never fewer copies than the controller counts with at a recovery election.
        wanted = self._flushed_copies
        if len(minimal) < wanted:
            return UNKNOWN
        copies = self.rules.durable_copies
        if copies is DurableCopies.ALL:
            return min(self._durable_offsets(leader, maximal))
        if copies is DurableCopies.LEADER and self.partition.leader in minimal:
            return leader.durable_offset
        # A leader that is being removed is not the copy that remains.
        return sorted(self._durable_offsets(leader, minimal), reverse=True)[wanted - 1]

    @property
    def _flushed_copies(self) -> int:
        copies = self.rules.durable_copies
        return 1 if copies is None else copies.count(self.partition, self.rules.min_isr)

    @property
    def _awaits_flushed_copies(self) -> bool:
        """True if the controller does not know yet on how many replicas records are flushed."""
        return self.partition.flushed_copies < self._flushed_copies

    def _durable_offsets(self, leader: LogEnds, nodes: Iterable[int]) -> list[int]:
        return [
            leader.durable_offset
            if node_id == self.partition.leader
            else self._followers[node_id].durable_offset
            for node_id in nodes
        ]

    def is_settled(self, leader_end_offset: int) -> bool:
        """Return whether all replicas are in sync and have all records, on enough disks, so that
        only an append, an image or a request can change anything."""
        partition = self.partition
        return (
            self.pending is None
            and self.high_watermark == leader_end_offset
            and len(partition.isr) == len(partition.replicas)
            and not partition.removing
            and not self._awaits_flushed_copies
            and all(each.end_offset == leader_end_offset for each in self._followers.values())
        )

    # -- proposals ---------------------------------------------------------------------------

    def propose(self, leader: LogEnds, now_ms: int) -> IsrProposal | None:
        """Return the next proposal, which is pending from now on, or None.

        Followers join before others leave: a proposal does one of both.
        """
        if self.pending is not None:
            return None
        committed = self.partition.isr
        joining = [node_id for node_id in self._followers if self._may_join(node_id)]
        isr = committed + tuple(joining)
        if not joining:
            isr = self._without_lagging(leader, now_ms)
        is_flushed = self._is_flushed(leader, isr)
        completes = self.rules.durable_copies is not None and self._completes(isr)
        tells_flushed = is_flushed and (
            bool(self.partition.witnesses) or completes or self._awaits_flushed_copies
        )
        must_recover = self.partition.recovery_state is RecoveryState.RECOVERING
        if isr == committed and not tells_flushed and not must_recover:
            return None
        self.pending = IsrProposal(
            self.partition.leader_epoch,
            self.partition.partition_epoch,
            [self._member(node_id) for node_id in isr],
            flushed_copies=self._flushed_copies if is_flushed else 0,
        )
        return self.pending

    def _member(self, node_id: int) -> IsrMember:
        follower = self._followers.get(node_id)
        return IsrMember(node_id) if follower is None else IsrMember(node_id, follower.node_epoch)

    def _is_eligible(self, node_id: int) -> bool:
        """Return whether the process that fetches is the one that may join the ISR."""
        known = self._node_epoch_of(node_id)
        return known is not None and known == self._followers[node_id].node_epoch

    def _may_join(self, node_id: int) -> bool:
        follower = self._followers[node_id]
        return (
            node_id not in self.partition.isr
            and self._is_eligible(node_id)
            and follower.has_fetched
            and follower.end_offset >= max(self.high_watermark, self.epoch_start)
            and (
                self.rules.durable_copies is not DurableCopies.ALL
                or follower.durable_offset >= self.high_watermark
            )
        )

    def _without_lagging(self, leader: LogEnds, now_ms: int) -> tuple[int, ...]:
        """Return the committed ISR without the followers that lag.

        They stay until all records that this or an earlier leader may have committed are flushed
        on enough of the others; the controller then needs no witnesses.  Those that leave an ISR
        below the minimum remain eligible (ELR).
        """
        isr = tuple(
            node_id
            for node_id in self.partition.isr
            if node_id == self.partition.leader
            or self._followers[node_id].is_caught_up(
                leader.end_offset, now_ms, self.rules.lag_max_ms
            )
        )
        if self.rules.durable_copies is None or len(isr) < self._min_isr:
            return isr
        flushed = self._durable(leader, isr, isr)
        return isr if flushed >= max(self.high_watermark, self.epoch_start) else self.partition.isr

    def _is_flushed(self, leader: LogEnds, isr: tuple[int, ...]) -> bool:
        """Return whether all records that earlier leaders may have committed are flushed on enough
        of the members that stay."""
        if self.rules.durable_copies is None:
            return True
        flushed = self._durable(leader, self._staying(isr), self.maximal_isr.union(isr))
        return flushed >= max(self.high_watermark, self.epoch_start)

    # -- decisions of the controller ---------------------------------------------------------

    def not_applied(self) -> None:
        """Note that the pending proposal was certainly not applied (INELIGIBLE_REPLICA), or that
        the controller had nothing to change.

        A change is applied with the image only: it may follow from configs that came before it.
        """
        self.pending = None

    def update(self, partition: PartitionImage) -> bool:
        """Apply an image of the partition, in this leader epoch; return whether it is new."""
        assert partition.leader_epoch == self.partition.leader_epoch, "one leader epoch per object"
        if partition.partition_epoch <= self.partition.partition_epoch:
            return False
        self.pending = None
        for node_id in partition.replicas:
            if node_id != partition.leader and node_id not in self._followers:
                self._followers[node_id] = FollowerProgress(caught_up_ms=LONG_AGO)
        for node_id in set(self._followers) - set(partition.replicas):
            del self._followers[node_id]
        for node_id in set(self.partition.isr).intersection(self._followers) - set(partition.isr):
            self._followers[node_id].has_fetched = False
        self.partition = partition
        return True
