"""ClassicGroup: a consumer group of the classic protocol, as its coordinator keeps it.

    Empty ──join──▶ PreparingRebalance ──all joined, or the timeout──▶ CompletingRebalance
      ▲                  ▲        ▲                                          │          │
      │                  │        └────── join, leave, session expired ──────┘  the leader syncs
      └── last one left ─┤                                                              ▼
                         └─────────────── join, leave, session expired ────────────── Stable

A generation is one agreed assignment (classic_generation.py).  It begins when the join phase ends:
each member gets the generation id, and one of them, the leader, the metadata of all.  The leader
computes the assignments and sends them with its SyncGroup; the other members wait for theirs.
Metadata and assignments are opaque here, except for the topics that a consumer subscribes to.

Heartbeats and commits keep a member's session alive; it need not send any while it waits for a
response.  A static member (one with an instance id) may leave a generation without a LeaveGroup and
come back to it under another member id, until its session expires.

`recorded` is the durable state, the value of the group's last record; it changes in `replay`
only.  All else is soft state: it changes at once, and is derived from `recorded` after a restart.
A generation is recorded with its assignment, so one without an assignment restarts.

Left out: a record for a group that was created by its first JoinGroup and has no member yet; such a
group does not survive a restart, which no client can notice.  A generation begins in one
decision, and is recorded in one: each takes about 5 us a member, so a group of more than about
5,000 members takes ticks of over 50 ms with its requests; `group.max.size` sets a lower limit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.classic.classic_generation import ClassicGeneration
from kafkalite.coordination.groups.classic.classic_members import ClassicMember, ClassicMembers
from kafkalite.coordination.groups.classic.join_phase import JoinPhase
from kafkalite.coordination.groups.classic.pending_members import PendingMembers
from kafkalite.coordination.groups.decision_draft import (
    JOIN,
    NO_TOKEN,
    SESSION,
    SYNC,
    DeadlineKey,
    DecisionDraft,
    GroupClient,
)
from kafkalite.coordination.groups.group import GroupKind, GroupState
from kafkalite.coordination.groups.offsets.commit_records import OffsetToCommit
from kafkalite.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_protocol import PROTOCOL_TYPE
from kafkalite.protocol.schemas.group_records import NO_TIME, GroupRecord, group_record

MEMBER_ID_REQUIRED_SINCE = 4
"""The JoinGroup version from which clients join with the member id they are given (KIP-394)."""
SKIP_ASSIGNMENT_SINCE = 9
"""The JoinGroup version whose response can tell the leader to skip the assignment (KIP-814)."""

NEW_MEMBER_WAIT_MS = 300_000
"""Timeout of a new member that waits for its first generation.  It does not know its member id, so
it can neither send heartbeats nor leave; a client that retries leaves such a member behind each
time.
"""

GROUP_SIZE = 1_500
"""Approximate memory use of a group in bytes."""


class ClassicGroup:
    """One classic group."""

    kind = GroupKind.CLASSIC

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.recorded: dict[str, Any] | None = None
        self.state = GroupState.EMPTY
        self.since_ms = NO_TIME
        """Time of the last state change, by the wall clock."""
        self.members = ClassicMembers()
        self.generation = ClassicGeneration(self.members)
        self.pending = PendingMembers(group_id)
        self.unsynced: set[str] = set()
        """Members of this generation that have not sent SyncGroup yet."""
        self._sync_deadline = DeadlineKey(SYNC, group_id)
        self._join_phase = JoinPhase(group_id, self.members, self.pending)

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return GROUP_SIZE + len(self.group_id) + self.members.size + self.pending.size

    @property
    def idle(self) -> bool:
        """True if the group has no members and none is about to join."""
        return self.state is GroupState.EMPTY and not self.pending

    @property
    def subscribed(self) -> Container[str]:
        """The topics that the group's consumers subscribe to."""
        if self.generation.protocol_type != PROTOCOL_TYPE:
            return ()
        return self.members.topics(self.generation.protocol)

    @property
    def offsets_expire_since_ms(self) -> int | None:
        """Time from which the retention of offsets counts (KIP-211); see Group."""
        if self.state is GroupState.EMPTY:
            return self.since_ms if self.generation.protocol_type is not None else NO_TIME
        is_of_consumers = self.generation.protocol_type == PROTOCOL_TYPE
        return NO_TIME if is_of_consumers and self.state is GroupState.STABLE else None

    def check_offset_delete(self) -> None:
        """Raise NonEmptyGroup if it has members, and the topics that they consume are unknown."""
        if self.state is not GroupState.EMPTY and self.generation.protocol_type != PROTOCOL_TYPE:
            raise NonEmptyGroup()

    @property
    def is_recorded(self) -> bool:
        """True if the log has a record of the group."""
        return self.recorded is not None

    # -- JoinGroup ---------------------------------------------------------------------------

    def join(
        self,
        request: Fields,
        client: GroupClient,
        new_id: Callable[[], str],
        version: int,
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        """Add a member to the next generation, or return the current one to it.

        `new_id` creates a unique member id for a member that has none.  Two versions of the request
        changed its meaning: KIP-394 and KIP-814.
        """
        if not self._accepts(request.member_id, draft.limits.max_size):
            self._reject_unknown(request.member_id, draft, token)
            return
        protocols = {protocol.name: protocol.metadata for protocol in request.protocols}
        self._check_protocols(request.protocol_type, protocols)
        static = request.group_instance_id is not None
        if request.member_id:
            if request.member_id in self.pending and not static:
                self._add(request.member_id, request, client, draft, token)
            else:
                member = self.members.known(request.member_id, request.group_instance_id)
                self._rejoin(member, request, protocols, draft, token)
        elif static and (known := self.members.by_instance.get(request.group_instance_id)):
            may_skip = version >= SKIP_ASSIGNMENT_SINCE
            self._replace(known, new_id(), request, protocols, may_skip, draft, token)
        elif version >= MEMBER_ID_REQUIRED_SINCE and not static:
            member_id = new_id()
            self.pending.add(member_id, request.session_timeout_ms, draft)
            draft.fail(token, MemberIdRequired, member_id=member_id)
        else:
            self._add(new_id(), request, client, draft, token)

    def _accepts(self, member_id: str, size_max: int) -> bool:
        """Return whether the group has room; a current member is not removed while the group is
        active.

        During a rebalance only members that have joined count: a group that exceeds a lowered limit
        loses the members that join last.
        """
        member = self.members.by_id.get(member_id)
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING:
            joined = member is not None and member.join_token is not NO_TOKEN
            return joined or self.members.joined_count < size_max
        return member is not None or len(self.members) < size_max

    def _reject_unknown(self, member_id: str, draft: DecisionDraft, token: Any) -> None:
        self.pending.remove(member_id, draft)
        member = self.members.by_id.get(member_id)
        if member is not None:
            self._remove(member, draft)
        draft.fail(token, GroupMaxSizeReached, member_id="")
        if self.state is GroupState.PREPARING:
            self._complete_if_joined(draft)

    def _check_protocols(self, protocol_type: str, protocols: dict[str, bytes]) -> None:
        if self.state is GroupState.EMPTY:
            is_consistent = bool(protocol_type and protocols)
        else:
            same_type = protocol_type == self.generation.protocol_type
            is_consistent = same_type and self.members.supports(protocols)
        if not is_consistent:
            raise InconsistentGroupProtocol()

    def _add(
        self,
        member_id: str,
        request: Fields,
        client: GroupClient,
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            *client,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols={protocol.name: protocol.metadata for protocol in request.protocols},
            is_new=True,
            join_token=token,
        )
        self.pending.remove(member_id, draft)
        self.generation.add(member, request.protocol_type)
        self._join_phase.note_new_member()
        draft.waiting[token] = member
        draft.set_deadline(self._session(member_id), NEW_MEMBER_WAIT_MS)
        self._rebalance(draft)

    def _rejoin(
        self,
        member: ClassicMember,
        request: Fields,
        protocols: dict[str, bytes],
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        unchanged = [*member.protocols.items()] == [*protocols.items()]
        leads = member is self.generation.leader
        # The leader of a stable group joins again to trigger a new assignment.
        has_response = self.state is GroupState.COMPLETING or (
            self.state is GroupState.STABLE and not leads
        )
        if unchanged and has_response:
            draft.complete(token, self.generation.join_response(member))
            return
        self._update(member, request, protocols, draft, token)
        self._rebalance(draft)

    def _update(
        self,
        member: ClassicMember,
        request: Fields,
        protocols: dict[str, bytes],
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        self.members.set_protocols(member, protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        draft.fail(
            self.members.wait_to_join(member, token),
            RebalanceInProgress,
            member_id=member.member_id,
        )
        draft.waiting[token] = member

    def _replace(
        self,
        member: ClassicMember,
        member_id: str,
        request: Fields,
        protocols: dict[str, bytes],
        may_skip: bool,
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        """Replace a static member by a new process with its instance id; fence the old one."""
        old_id = member.member_id
        self._fail_pending(member, FencedInstanceId, old_id, draft)
        draft.deadlines.drop(self._session(old_id))
        self.members.rename(member, member_id)
        member.is_new = False
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(member_id)
        self._extend_session(member, draft)
        self._update(member, request, protocols, draft, token)
        agreed = self.generation.protocol
        if self.state is not GroupState.STABLE or self.members.choose_protocol() != agreed:
            self._rebalance(draft)
            return
        # It keeps its assignment, and the generation stays.
        self._record(draft)
        response = self.generation.join_response(member)
        if member is self.generation.leader:
            # A client that cannot skip the assignment must not act as the leader.
            response |= {"skip_assignment": True} if may_skip else {"leader": old_id, "members": []}
        draft.complete(self.members.wait_to_join(member, NO_TOKEN), response)

    # -- join phase --------------------------------------------------------------------------

    def _rebalance(self, draft: DecisionDraft) -> None:
        """Begin a rebalance after a change of membership, or complete it if all have joined."""
        if self.state is GroupState.PREPARING:
            self._complete_if_joined(draft)
        else:
            self._prepare(draft)

    def _prepare(self, draft: DecisionDraft) -> None:
        if self.state is GroupState.COMPLETING:
            for member in self.members:
                self.members.assign(member, b"")
                self._complete_sync(member, {"error_code": RebalanceInProgress.code}, draft)
        draft.deadlines.drop(self._sync_deadline)
        was_empty = self.state is GroupState.EMPTY
        self._enter(GroupState.PREPARING, draft)
        if not self._join_phase.begin(was_empty, draft):
            self._complete_join(draft)

    def _complete_if_joined(self, draft: DecisionDraft) -> None:
        if self._join_phase.is_complete:
            self._complete_join(draft)

    def expire_join(self, draft: DecisionDraft) -> None:
        """End the join phase at its timeout, or extend it while new members join."""
        if self.state is GroupState.PREPARING and not self._join_phase.extend(draft):
            self._complete_join(draft)

    def _complete_join(self, draft: DecisionDraft) -> None:
        """Begin the next generation with the members that have joined and all static members."""
        draft.deadlines.drop(self._join_phase.deadline)
        for member in self.members:
            if member.join_token is NO_TOKEN and member.instance_id is None:
                self._remove(member, draft)
        joined = next(
            (member for member in self.members if member.join_token is not NO_TOKEN), None
        )
        if self.members and joined is None:
            self._join_phase.await_static_members(draft)
            return
        self._join_phase.end()
        self.generation.begin(joined)
        if self.members:
            self._enter(GroupState.COMPLETING, draft)
            for member in self.members:
                response = self.generation.join_response(member)
                draft.complete(self.members.wait_to_join(member, NO_TOKEN), response)
                member.is_new = False
                self._extend_session(member, draft)
            self.unsynced = set(self.members.by_id)
            draft.set_deadline(self._sync_deadline, self.members.rebalance_timeout_ms)
        else:
            self._enter(GroupState.EMPTY, draft)
            self._record(draft)

    # -- sync phase --------------------------------------------------------------------------

    def sync(self, request: Fields, draft: DecisionDraft, token: Any) -> None:
        """Respond with a member's assignment, now or when the leader has sent it."""
        member = self.generation.member(
            request.member_id, request.group_instance_id, request.generation_id
        )
        self.generation.check_protocol(request.protocol_type, request.protocol_name)
        if self.state is GroupState.PREPARING:
            raise RebalanceInProgress()
        self.unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            if not self.unsynced:
                draft.deadlines.drop(self._sync_deadline)
            draft.complete(token, self.generation.sync_response(member.assignment))
            return
        before = self.members.wait_to_sync(member, token)
        draft.fail(before, RebalanceInProgress)
        draft.waiting[token] = member
        if member is self.generation.leader:
            self._assign(request, draft)

    def _assign(self, request: Fields, draft: DecisionDraft) -> None:
        """Record the leader's assignment; `replay` then makes the group stable."""
        assigned = {each.member_id: each.assignment for each in request.assignments}
        self._record(draft, assigned)
        for member in self.members:
            response = self.generation.sync_response(assigned.get(member.member_id, b""))
            self._complete_sync(member, response, draft)

    def _complete_sync(
        self, member: ClassicMember, response: dict[str, Any], draft: DecisionDraft
    ) -> None:
        token = self.members.wait_to_sync(member, NO_TOKEN)
        if token is not NO_TOKEN:
            draft.complete(token, response)
            self._extend_session(member, draft)

    def expire_sync(self, draft: DecisionDraft) -> None:
        """Remove the members that did not send SyncGroup in time, and rebalance."""
        if self.state is GroupState.COMPLETING or (
            self.state is GroupState.STABLE and self.unsynced
        ):
            for member in self.members:
                if member.member_id in self.unsynced:
                    self._remove(member, draft)
            self._prepare(draft)

    # -- heartbeats, commits and leaving -----------------------------------------------------

    def heartbeat(self, request: Fields, draft: DecisionDraft) -> KafkaError | None:
        """Extend a member's session; return RebalanceInProgress if it has to join again."""
        member = self.generation.member(
            request.member_id, request.group_instance_id, request.generation_id
        )
        self._extend_session(member, draft)
        return RebalanceInProgress() if self.state is GroupState.PREPARING else None

    def check_commit(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        version: int,
        draft: DecisionDraft,
    ) -> None:
        """Raise an error unless a member may commit offsets now; extend its session.

        A request without a generation comes from an admin tool or from a consumer with manual
        assignment; those may commit while there are no members.
        """
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            raise UnknownMemberId()
        member = self.generation.member(request.member_id, request.group_instance_id, generation)
        if self.state is GroupState.COMPLETING:
            # The member knows the generation, but not its assignment yet.
            raise RebalanceInProgress()
        self._extend_session(member, draft)

    def check_transactional_commit(
        self, request: Fields, commits: Sequence[OffsetToCommit]
    ) -> None:
        """Raise an error unless offsets may be committed in a transaction now (KIP-447).

        Older versions of TxnOffsetCommit name no member, so members need not be named; a commit
        during a rebalance is not refused, since the producer could only abort.
        """
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            return
        self.generation.member(request.member_id, request.group_instance_id, generation)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Accept any member, as Kafka does: the generation matters to commits only."""

    def leave(self, member_id: str, instance_id: str | None, draft: DecisionDraft) -> None:
        """Remove a member; an admin tool names a static member by its instance id alone."""
        if not member_id:
            if instance_id not in self.members.by_instance:
                raise UnknownMemberId()
            self._remove(self.members.by_instance[instance_id], draft)
        elif member_id in self.pending:
            self.pending.remove(member_id, draft)
        else:
            self._remove(self.members.known(member_id, instance_id), draft)

    def rebalance_after_leave(self, size_before: int, draft: DecisionDraft) -> None:
        """Rebalance once after a LeaveGroup; there were `size_before` members before it."""
        if self.state is GroupState.PREPARING or len(self.members) < size_before:
            self._rebalance(draft)

    def expire(self, due: DeadlineKey, draft: DecisionDraft) -> None:
        """Handle an expired deadline of the group."""
        if due.kind == SESSION:
            self.expire_session(due.member_id, draft)
        elif due.kind == JOIN:
            self.expire_join(draft)
        elif due.kind == SYNC:
            self.expire_sync(draft)

    def drop_sessions(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop the session deadlines of the members; an upgraded group keeps them."""
        for member in self.members:
            deadlines.drop(self._session(member.member_id))

    def drop_deadlines(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop the deadlines of the group, and of member ids that were not used to join."""
        deadlines.drop(self._join_phase.deadline)
        deadlines.drop(self._sync_deadline)
        self.pending.drop_deadlines(deadlines)

    def expire_session(self, member_id: str, draft: DecisionDraft) -> None:
        """Remove a member whose session expired, or a member id that was not used in time."""
        member = self.members.by_id.get(member_id)
        if member_id in self.pending:
            self.pending.remove(member_id, draft)
            if self.state is GroupState.PREPARING:
                self._complete_if_joined(draft)
        elif member is not None and not member.excused:
            self._remove(member, draft)
            self._rebalance(draft)

    def _remove(self, member: ClassicMember, draft: DecisionDraft) -> None:
        self._fail_pending(member, UnknownMemberId, "", draft)
        draft.deadlines.drop(self._session(member.member_id))
        self.generation.remove(member)
        self.unsynced.discard(member.member_id)

    def _fail_pending(
        self, member: ClassicMember, error: type[KafkaError], member_id: str, draft: DecisionDraft
    ) -> None:
        """Refuse the pending requests of a member that is removed or replaced."""
        joining = self.members.wait_to_join(member, NO_TOKEN)
        draft.fail(joining, error, member_id=member_id)
        draft.fail(self.members.wait_to_sync(member, NO_TOKEN), error)

    def interrupt(self, draft: DecisionDraft) -> None:
        """Refuse all pending requests: the group becomes another kind, if that can be written."""
        for member in self.members:
            if member.join_token is not NO_TOKEN or member.sync_token is not NO_TOKEN:
                self._fail_pending(member, RebalanceInProgress, member.member_id, draft)

    def convert(self, epoch: int, wall_ms: int) -> GroupRecord:
        """Make the members those of a recorded generation with their assignments; return its
        record."""
        self.generation.begin(None)
        self.generation.leader = next(iter(self.members))
        self.generation.generation_id = epoch
        self.state, self.since_ms = GroupState.STABLE, wall_ms
        self.recorded = self.generation.to_record(wall_ms, None)
        return group_record(self.group_id, self.recorded)

    def begin_rebalance(self, draft: DecisionDraft) -> None:
        """Begin the sessions and a rebalance of a group that was converted to a classic one."""
        for member in self.members:
            self._extend_session(member, draft)
        self._prepare(draft)

    def _extend_session(self, member: ClassicMember, draft: DecisionDraft) -> None:
        draft.set_deadline(self._session(member.member_id), member.session_timeout_ms)

    def _session(self, member_id: str) -> DeadlineKey:
        return DeadlineKey(SESSION, self.group_id, member_id)

    def _enter(self, state: GroupState, draft: DecisionDraft) -> None:
        self.state = state
        self.since_ms = draft.wall_ms

    # -- records -----------------------------------------------------------------------------

    def _record(self, draft: DecisionDraft, assigned: Mapping[str, bytes] | None = None) -> None:
        """Add a record of the group, with the current or the new assignments."""
        value = self.generation.to_record(draft.wall_ms, assigned)
        draft.records.append(group_record(self.group_id, value))

    def tombstones(self) -> Iterator[GroupRecord]:
        """Yield the records that delete the group, without its offsets."""
        if self.recorded is not None:
            yield group_record(self.group_id, None)

    def replay(self, record: GroupRecord) -> bool:
        """Apply a record of the group; return whether it completed a rebalance."""
        value = record.value
        self.recorded = value
        is_current = value["generation"] == self.generation.generation_id
        completes = self.state is GroupState.COMPLETING and is_current
        if completes:
            for entry in value["members"]:
                self.members.assign(self.members.by_id[entry["member_id"]], entry["assignment"])
            self.state = GroupState.STABLE
            self.since_ms = value["current_state_timestamp"]
        return completes

    def restore(self, draft: DecisionDraft) -> None:
        """Restore the group after a load; each member gets a full session timeout to come back."""
        if self.recorded is None:
            return
        recorded = self.recorded
        self.since_ms = recorded["current_state_timestamp"]
        for each in recorded["members"]:
            member = ClassicMember.from_record(each, recorded["protocol"])
            same_instance = self.members.by_instance.get(member.instance_id or "")
            if member.member_id not in self.members and same_instance is None:
                self.members.add(member)
                self._extend_session(member, draft)
        self.generation.restore(recorded)
        if self.members:
            self.state = GroupState.STABLE
        if len(self.members) > draft.limits.max_size:
            self._prepare(draft)

    # -- descriptions ------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the group as in a DescribeGroups response."""
        return {
            "error_code": 0,
            "error_message": None,
            "group_id": self.group_id,
            "group_state": str(self.state),
            **self.generation.describe(self.state is GroupState.STABLE),
        }

    def list_entry(self) -> dict[str, Any]:
        """Return the group as in a ListGroups response."""
        return {
            "group_id": self.group_id,
            "protocol_type": self.generation.protocol_type or "",
            "group_state": str(self.state),
            "group_type": str(self.kind),
        }
