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
group does not survive a restart, which no client can notice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from kafkalite.coordination.classic_generation import ClassicGeneration
from kafkalite.coordination.decision_draft import (
    JOIN,
    NO_TOKEN,
    SESSION,
    SYNC,
    DeadlineKey,
    DecisionDraft,
    GroupClient,
)
from kafkalite.coordination.group_members import ClassicMember, ClassicMembers, GroupState
from kafkalite.coordination.initial_rebalance import GATHER_MS, InitialRebalanceDelay
from kafkalite.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.group_records import NO_TIME, group_record

CONSUMER = "consumer"
"""The protocol type whose metadata is a subscription."""

MEMBER_ID_REQUIRED_SINCE = 4
"""The JoinGroup version from which clients join with the member id they are given (KIP-394)."""
SKIP_ASSIGNMENT_SINCE = 9
"""The JoinGroup version whose response can tell the leader to skip the assignment (KIP-814)."""

NEW_MEMBER_WAIT_MS = 300_000
"""Timeout of a new member that waits for its first generation.  It does not know its member id, so
it can neither send heartbeats nor leave; a client that retries leaves such a member behind each
time.
"""

SESSIONS_WAIT_MS_MIN = 1_000
"""Minimum interval between checks whether any static member has joined."""

GROUP_SIZE = 1_500
PENDING_SIZE = 500
"""Approximate memory use of a group, and of a member id that was handed out."""


class ClassicGroup:
    """One classic group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.recorded: dict[str, Any] | None = None
        self.state = GroupState.EMPTY
        self.since_ms = NO_TIME
        """Time of the last state change, by the wall clock."""
        self.members = ClassicMembers()
        self.generation = ClassicGeneration(self.members)
        self.pending: set[str] = set()
        """Member ids that were handed out and not used to join yet."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not sent SyncGroup yet."""
        self._initial_delay = InitialRebalanceDelay()

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        pending_size = PENDING_SIZE * len(self.pending)
        return GROUP_SIZE + len(self.group_id) + self.members.size + pending_size

    @property
    def idle(self) -> bool:
        """True if the group has no members and none is about to join."""
        return self.state is GroupState.EMPTY and not self.pending

    @property
    def subscribed(self) -> Container[str]:
        """The topics that the group's consumers subscribe to."""
        if self.generation.protocol_type != CONSUMER:
            return ()
        return self.members.topics(self.generation.protocol)

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
            self.pending.add(member_id)
            draft.set_deadline(self._session(member_id), request.session_timeout_ms)
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
        self._remove_pending(member_id, draft)
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
        self.pending.discard(member_id)
        self.generation.add(member, request.protocol_type)
        self._initial_delay.add_member()
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
        draft.deadlines.drop(self._due(SYNC))
        was_empty = self.state is GroupState.EMPTY
        self._enter(GroupState.PREPARING, draft)
        if was_empty:
            self._gather(draft)
        elif self._all_joined:
            self._complete_join(draft)
        else:
            draft.set_deadline(self._due(JOIN), self.members.rebalance_timeout_ms)

    def _gather(self, draft: DecisionDraft) -> None:
        """Wait for more members of a group that was empty, while more can be expected."""
        pause_ms = self._initial_delay.begin(
            self.members.rebalance_timeout_ms,
            draft.limits.initial_rebalance_delay_ms,
            has_static=bool(self.members.by_instance),
        )
        if pause_ms or self.pending:
            draft.set_deadline(self._due(JOIN), pause_ms or GATHER_MS)
        else:
            self._complete_join(draft)

    @property
    def _all_joined(self) -> bool:
        return self.members.joined_count == len(self.members) and not self.pending

    def _complete_if_joined(self, draft: DecisionDraft) -> None:
        if self._all_joined and not self._initial_delay.is_paused:
            self._complete_join(draft)

    def expire_join(self, draft: DecisionDraft) -> None:
        """End the join phase at its timeout, or extend it while new members join."""
        if self.state is not GroupState.PREPARING:
            return
        pause_ms = self._initial_delay.extend()
        if pause_ms:
            draft.set_deadline(self._due(JOIN), pause_ms)
        else:
            self._complete_join(draft)

    def _complete_join(self, draft: DecisionDraft) -> None:
        """Begin the next generation with the members that have joined and all static members."""
        draft.deadlines.drop(self._due(JOIN))
        for member in self.members:
            if member.join_token is NO_TOKEN and member.instance_id is None:
                self._remove(member, draft)
        joined = next(
            (member for member in self.members if member.join_token is not NO_TOKEN), None
        )
        if self.members and joined is None:
            # There are static members only, and none has joined: wait for their sessions to expire.
            wait_ms = max(self.members.rebalance_timeout_ms, SESSIONS_WAIT_MS_MIN)
            draft.set_deadline(self._due(JOIN), wait_ms)
            return
        self._initial_delay.end()
        self.generation.begin(joined)
        if self.members:
            self._enter(GroupState.COMPLETING, draft)
            for member in self.members:
                response = self.generation.join_response(member)
                draft.complete(self.members.wait_to_join(member, NO_TOKEN), response)
                member.is_new = False
                self._extend_session(member, draft)
            self.unsynced = set(self.members.by_id)
            draft.set_deadline(self._due(SYNC), self.members.rebalance_timeout_ms)
        else:
            self._enter(GroupState.EMPTY, draft)
            self._record(draft)

    # -- sync phase --------------------------------------------------------------------------

    def sync(self, request: Fields, draft: DecisionDraft, token: Any) -> None:
        """Respond with a member's assignment, now or when the leader has sent it."""
        member = self._current(request)
        for requested, agreed in (
            (request.protocol_type, self.generation.protocol_type),
            (request.protocol_name, self.generation.protocol),
        ):
            if requested is not None and agreed is not None and requested != agreed:
                raise InconsistentGroupProtocol()
        if self.state is GroupState.PREPARING:
            raise RebalanceInProgress()
        self.unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            if not self.unsynced:
                draft.deadlines.drop(self._due(SYNC))
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
        member = self._current(request)
        self._extend_session(member, draft)
        return RebalanceInProgress() if self.state is GroupState.PREPARING else None

    def check_commit(self, request: Fields, draft: DecisionDraft) -> None:
        """Raise an error unless a member may commit offsets now; extend its session.

        A request without a generation comes from an admin tool or from a consumer with manual
        assignment; those may commit while there are no members.
        """
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            raise UnknownMemberId()
        member = self.members.known(request.member_id, request.group_instance_id)
        if generation != self.generation.generation_id:
            raise IllegalGeneration()
        if self.state is GroupState.COMPLETING:
            # The member knows the generation, but not its assignment yet.
            raise RebalanceInProgress()
        self._extend_session(member, draft)

    def check_transactional_commit(self, request: Fields) -> None:
        """Raise an error unless offsets may be committed in a transaction now (KIP-447).

        Older versions of TxnOffsetCommit name no member, so members need not be named; a commit
        during a rebalance is not refused, since the producer could only abort.
        """
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            return
        self.members.known(request.member_id, request.group_instance_id)
        if generation != self.generation.generation_id:
            raise IllegalGeneration()

    def leave(self, member_id: str, instance_id: str | None, draft: DecisionDraft) -> None:
        """Remove a member; an admin tool names a static member by its instance id alone."""
        if not member_id:
            if instance_id not in self.members.by_instance:
                raise UnknownMemberId()
            self._remove(self.members.by_instance[instance_id], draft)
        elif member_id in self.pending:
            self._remove_pending(member_id, draft)
        else:
            self._remove(self.members.known(member_id, instance_id), draft)

    def rebalance_after_leave(self, size_before: int, draft: DecisionDraft) -> None:
        """Rebalance once after a LeaveGroup; there were `size_before` members before it."""
        if self.state is GroupState.PREPARING or len(self.members) < size_before:
            self._rebalance(draft)

    def expire_session(self, member_id: str, draft: DecisionDraft) -> None:
        """Remove a member whose session expired, or a member id that was not used in time."""
        member = self.members.by_id.get(member_id)
        if member_id in self.pending:
            self.pending.remove(member_id)
            if self.state is GroupState.PREPARING:
                self._complete_if_joined(draft)
        elif member is not None and not member.excused:
            self._remove(member, draft)
            self._rebalance(draft)

    def _current(self, request: Fields) -> ClassicMember:
        """Return the member that sent the request; raise unless its generation is current."""
        member = self.members.known(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation.generation_id:
            raise IllegalGeneration()
        return member

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

    def _remove_pending(self, member_id: str, draft: DecisionDraft) -> None:
        if member_id in self.pending:
            self.pending.remove(member_id)
            draft.deadlines.drop(self._session(member_id))

    def _extend_session(self, member: ClassicMember, draft: DecisionDraft) -> None:
        draft.set_deadline(self._session(member.member_id), member.session_timeout_ms)

    def _session(self, member_id: str) -> DeadlineKey:
        return DeadlineKey(SESSION, self.group_id, member_id)

    def _due(self, kind: str) -> DeadlineKey:
        return DeadlineKey(kind, self.group_id)

    def _enter(self, state: GroupState, draft: DecisionDraft) -> None:
        self.state = state
        self.since_ms = draft.wall_ms

    # -- records -----------------------------------------------------------------------------

    def _record(self, draft: DecisionDraft, assigned: Mapping[str, bytes] | None = None) -> None:
        """Add a record of the group, with the current or the new assignments."""
        value = self.generation.to_record(draft.wall_ms, assigned)
        draft.records.append(group_record(self.group_id, value))

    def replay(self, value: dict[str, Any]) -> bool:
        """Apply a record's value; return whether it completed a rebalance."""
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
            "group_type": "classic",
        }
