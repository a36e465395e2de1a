"""ClassicProtocolMember: a member by the classic protocol, in which its leader assigns.

    JoinGroup    with the topics, and what is owned; waits until all members have joined
    (the leader) metadata of all members' topics, then the assignment (client_assignors.py)
    SyncGroup    returns this member's assignment
    Heartbeat    27: rebalance, join again.  22, 25: all partitions are lost, join again.

With an eager rebalance everything is revoked before JoinGroup.  With a cooperative one (all of
partition.assignment.strategy is cooperative-sticky, KIP-429) partitions are kept; those missing
from the new assignment are revoked after it, and then the member joins again, so that the next
assignment gives them to others.

Partitions count as owned from the moment their assignment is taken, before the callback returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kafkalite.client.group.assignment_bytes import (
    read_assignment,
    read_subscription,
    write_assignments,
    write_subscription,
)
from kafkalite.client.group.client_assignors import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    Assignments,
    ClassicSubscription,
)
from kafkalite.client.group.membership import (
    NEVER,
    AssignmentChange,
    ChangeKind,
    MemberRequest,
    MemberSettings,
    MembershipState,
    SubscribedTopics,
    retry_delay_s,
)
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.topology import TopicMetadata, TopicPartition, error_of
from kafkalite.errors import (
    IllegalGeneration,
    InvalidRequest,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_protocol import PROTOCOL_TYPE
from kafkalite.protocol.schemas.groups import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP

NO_GENERATION = -1
JOIN_GRACE_S = 5.0
"""Time beyond the rebalance timeout that the coordinator has to respond to JoinGroup."""
LEAVE_SEVERAL_SINCE = 3
"""Version of LeaveGroup from which on it names members in a list."""

ENDED = (
    MembershipState.UNSUBSCRIBED,
    MembershipState.FENCED,
    MembershipState.STALE,
    MembershipState.FATAL,
)
LEAVING = (MembershipState.PREPARE_LEAVING, MembershipState.LEAVING)


class AssignmentTask(NamedTuple):
    """Input of the assignment that a leader computes, which takes long in a large group."""

    protocol: str
    members: list[ClassicSubscription]
    partition_counts: dict[str, int]

    def compute(self) -> Assignments:
        """Return the assignment of each member."""
        return ASSIGNORS[self.protocol](self.members, self.partition_counts)


class ClassicProtocolMember:
    """The member: its generation, what it was assigned, and what it owns."""

    def __init__(self, settings: MemberSettings) -> None:
        self.state = MembershipState.UNSUBSCRIBED
        self.error: KafkaError | None = None
        self.is_unsupported = False
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assignment_task: AssignmentTask | None = None
        """The assignment that this leader has to compute, without the lock."""
        self.is_eager = set(settings.strategies) != {COOPERATIVE_STICKY}
        self.identity = GroupMetadata(settings.group_id, group_instance_id=settings.instance_id)
        """That of the last generation, also after a loss: a transaction accepts offsets without a
        generation, although other members have the partitions.
        """
        self._settings = settings
        self._topics = SubscribedTopics()
        self._joined_topics = SubscribedTopics()
        self._protocol = ""
        self._members: list[ClassicSubscription] = []
        """The members of the generation, if this one is its leader."""
        self._counts: dict[str, int] = {}
        """The partition counts with which the leader has assigned."""
        self._target: frozenset[TopicPartition] = frozenset()
        self._owned: set[TopicPartition] = set()
        self._sent_owned: frozenset[TopicPartition] = frozenset()
        self._applying: AssignmentChange | None = None
        self._assignments: dict[str, list[TopicPartition]] = {}
        self._round = 0
        self._is_in_flight = False
        self._must_rejoin = False
        self._leaves_now = False
        self._leaves_after = False
        self._joins_after = False
        self._request_due_s = NEVER
        self._poll_due_s = NEVER
        self._join_not_before_s = 0.0
        self._failures = 0

    # Current state.

    @property
    def due_s(self) -> float:
        if self._leaves_now:
            return self._request_due_s
        request_due_s = NEVER if self._is_in_flight else self._request_due_s
        if self.state is MembershipState.LEAVING:
            return request_due_s
        if self.state in ENDED:
            return NEVER
        return min(request_due_s, self._poll_due_s)

    @property
    def topics_wanted(self) -> Collection[str] | None:
        if self.state is not MembershipState.ASSIGNING or self.assignment_task is not None:
            return ()
        return {topic for member in self._members for topic in member.topics}

    @property
    def topics_watched(self) -> Collection[str]:
        """Topics whose partition counts the leader watches; empty for other members."""
        return self._counts.keys()

    @property
    def has_change(self) -> bool:
        return self._applying is None and (self.error is not None or self._change() is not None)

    @property
    def is_member(self) -> bool:
        return self.generation != NO_GENERATION

    @property
    def owned(self) -> Mapping[TopicPartition, bytes]:
        return dict.fromkeys(self._owned, NO_ID)

    # Events of the application.

    def subscribe(self, topics: SubscribedTopics, now_s: float) -> None:
        self._topics = topics
        self._leaves_after = False
        if self.state in (MembershipState.UNSUBSCRIBED, MembershipState.FATAL):
            self._poll_due_s = now_s + self._settings.max_poll_interval_s
            self.error = None
            self.state = MembershipState.FENCED
            self._after_loss(now_s)
        elif self.state in LEAVING:
            self._joins_after = True
        elif self.state in (MembershipState.RECONCILING, MembershipState.STABLE):
            if topics != self._joined_topics:
                self._rejoin(now_s)
        elif self.state not in ENDED:
            self._must_rejoin = topics != self._joined_topics

    def leave(self, now_s: float) -> None:
        self._topics = SubscribedTopics()
        self._joins_after = False
        if self.state in ENDED:
            if self.state is not MembershipState.UNSUBSCRIBED:
                self.error = None
                self._leaves_after = True
                self.state = MembershipState.STALE
                self._after_loss(now_s)
        elif self.state not in LEAVING:
            self.state = MembershipState.PREPARE_LEAVING
            self._poll_due_s = now_s + self._settings.max_poll_interval_s
            self._after_revocation(now_s)

    def polled(self, now_s: float) -> None:
        if self.state not in (
            MembershipState.UNSUBSCRIBED, MembershipState.FATAL, MembershipState.LEAVING,
        ):  # fmt: skip
            self._poll_due_s = now_s + self._settings.max_poll_interval_s
        self._after_loss(now_s)

    def take_change(self) -> AssignmentChange | None:
        if self._applying is not None:
            return None
        self._applying = change = self._change()
        if change is not None and change.kind is ChangeKind.ASSIGNED:
            self._owned.update(change.partitions)
        return change

    def applied(self, change: AssignmentChange, now_s: float) -> None:
        assert change is self._applying, "another change is being applied"
        self._applying = None
        if change.kind is not ChangeKind.ASSIGNED:
            self._owned.difference_update(change.partitions)
        self._after_revocation(now_s)
        self._after_loss(now_s)
        self._settle(now_s)

    def _change(self) -> AssignmentChange | None:
        if self.state in (MembershipState.FENCED, MembershipState.STALE, MembershipState.FATAL):
            return change_of(ChangeKind.LOST, self._owned)
        if self.state in (MembershipState.PREPARE_JOINING, MembershipState.PREPARE_LEAVING):
            return change_of(ChangeKind.REVOKED, self._owned)
        if self.state is not MembershipState.RECONCILING:
            return None
        return change_of(ChangeKind.REVOKED, self._owned - self._target) or change_of(
            ChangeKind.ASSIGNED, self._target - self._owned
        )

    def update_topics(self, topics: Mapping[str, TopicMetadata], now_s: float) -> None:
        """Take metadata, for the leader to assign or, if a count has changed, to join again."""
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        if self.state is MembershipState.ASSIGNING:
            if self.assignment_task is None:
                self._counts = {name: counts.get(name, 0) for name in self.topics_wanted or ()}
                self.assignment_task = AssignmentTask(self._protocol, self._members, self._counts)
        elif self.state in (MembershipState.RECONCILING, MembershipState.STABLE) and any(
            counts.get(name, count) != count for name, count in self._counts.items()
        ):
            self._rejoin(now_s)

    def assign(self, task: AssignmentTask, assignments: Assignments, now_s: float) -> None:
        """Take the assignments that were computed, if they are still wanted, to send them."""
        if task is self.assignment_task and self.state is MembershipState.ASSIGNING:
            self.assignment_task = None
            self._members, self._assignments = [], assignments
            self.state = MembershipState.SYNCING
            self._request_due_s = now_s

    # Requests.

    def next_request(self, now_s: float) -> MemberRequest | None:
        if now_s < self.due_s:
            return None
        if self._leaves_now or self.state is MembershipState.LEAVING:
            return self._leave_request()
        if now_s >= self._poll_due_s:
            self._expire()
            return self.next_request(now_s)
        if self.state is MembershipState.ASSIGNING:
            return None
        self._is_in_flight = True
        self._request_due_s = NEVER
        if self.state is MembershipState.JOINING:
            return self._join_request()
        if self.state is MembershipState.SYNCING:
            return self._sync_request()
        fields = self._member_fields()
        return MemberRequest(HEARTBEAT, lambda version: fields, self._round)

    def _member_fields(self) -> dict[str, Any]:
        return {
            "group_id": self._settings.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self._settings.instance_id,
        }

    def _join_request(self) -> MemberRequest:
        settings = self._settings
        self._joined_topics = self._topics
        self._must_rejoin = False
        self._sent_owned = frozenset(self._owned)
        names = self._topics.names
        fields = {
            "group_id": settings.group_id,
            "session_timeout_ms": int(settings.session_timeout_s * 1000),
            "rebalance_timeout_ms": int(settings.max_poll_interval_s * 1000),
            "member_id": self.member_id,
            "group_instance_id": settings.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [
                {
                    "name": name,
                    "metadata": write_subscription(name, names, self._owned, self.generation),
                }
                for name in settings.strategies
            ],
        }
        timeout_s = settings.max_poll_interval_s + JOIN_GRACE_S
        return MemberRequest(JOIN_GROUP, lambda version: fields, self._round, timeout_s)

    def _sync_request(self) -> MemberRequest:
        fields = {
            **self._member_fields(),
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": self._protocol,
            "assignments": write_assignments(self._assignments),
        }
        timeout_s = self._settings.max_poll_interval_s + JOIN_GRACE_S
        return MemberRequest(SYNC_GROUP, lambda version: fields, self._round, timeout_s)

    def _leave_request(self) -> MemberRequest:
        self._is_in_flight, self._leaves_now = True, False
        self._round += 1
        self._request_due_s = NEVER
        group_id, member_id = self._settings.group_id, self.member_id
        self.member_id = ""

        def fields(version: int) -> dict[str, Any]:
            if version >= LEAVE_SEVERAL_SINCE:
                return {"group_id": group_id, "members": [{"member_id": member_id}]}
            return {"group_id": group_id, "member_id": member_id}

        return MemberRequest(LEAVE_GROUP, fields, self._round, is_leave=True)

    def handle_response(self, request: MemberRequest, response: Fields, now_s: float) -> None:
        if request.round != self._round:
            return
        self._is_in_flight = False
        if request.is_leave:
            self._left(now_s)
            return
        if response.error_code:
            subject = f"group {self._settings.group_id!r}"
            if response.error_code == MemberIdRequired.code and request.api is JOIN_GROUP:
                self.member_id = response.member_id
                self._request_due_s = self._join_due_s(now_s)
                return
            self._fail(error_of(response.error_code, subject), now_s)
            return
        if request.api is not JOIN_GROUP:  # what follows it may be refused each time
            self._failures = 0
        try:
            if request.api is JOIN_GROUP:
                self._joined(response, now_s)
            elif request.api is SYNC_GROUP:
                self._synced(response, now_s)
            else:
                self._request_due_s = now_s + self._settings.heartbeat_interval_s
        except InvalidRequest as error:
            self._end(error)

    def handle_failure(self, request: MemberRequest, error: KafkaError, now_s: float) -> None:
        if request.round != self._round:
            return
        self._is_in_flight = False
        if request.is_leave:
            self._left(now_s)  # the session ends it
        else:
            self._fail(error, now_s)

    def _joined(self, response: Fields, now_s: float) -> None:
        if response.generation_id < 0 or not response.member_id:
            raise InvalidRequest(f"JoinGroup returned generation {response.generation_id}.")
        self._request_due_s = now_s
        self.generation, self.member_id = response.generation_id, response.member_id
        self.identity = self.identity._replace(
            generation_id=self.generation, member_id=self.member_id
        )
        if self.state in LEAVING:
            return
        self._protocol = response.protocol_name or ""
        self._members, self._counts, self._assignments = [], {}, {}
        self.assignment_task = None
        self.state = MembershipState.SYNCING
        if response.leader != self.member_id or response.skip_assignment:
            return
        if self._protocol not in ASSIGNORS:
            raise InvalidRequest(f"JoinGroup returned the unknown protocol {self._protocol!r}.")
        self._members = [
            read_subscription(self._protocol, each.member_id, each.group_instance_id, each.metadata)
            for each in response.members
        ]
        self.state = MembershipState.ASSIGNING
        self._request_due_s = NEVER

    def _synced(self, response: Fields, now_s: float) -> None:
        assigned = read_assignment(response.assignment)
        self._assignments = {}
        self._request_due_s = now_s + self._settings.heartbeat_interval_s
        if self.state in LEAVING:
            return
        self._target = assigned
        # Partitions that this member has to revoke are assigned in the next generation.
        self._must_rejoin = self._must_rejoin or bool(self._sent_owned - assigned)
        self.state = MembershipState.RECONCILING
        self._settle(now_s)

    def _fail(self, error: KafkaError, now_s: float) -> None:
        if self.state in LEAVING:
            self._request_due_s = now_s + self._settings.heartbeat_interval_s
        elif isinstance(error, RebalanceInProgress):
            was_joining = self.state in (MembershipState.JOINING, MembershipState.SYNCING)
            self._rejoin(now_s)
            if was_joining:
                self._request_due_s = self._join_due_s(now_s)
        elif isinstance(error, (UnknownMemberId, IllegalGeneration)):
            if isinstance(error, UnknownMemberId):
                self.member_id = ""
            self._lose(now_s)
        elif error.retriable:
            self._failures += 1
            self._request_due_s = now_s + retry_delay_s(self._settings, self._failures)
            if self.state is MembershipState.SYNCING:
                self._rejoin(now_s)  # the generation may have an assignment, or none
                self._request_due_s = now_s + retry_delay_s(self._settings, self._failures)
        else:
            self._end(error)

    # Transitions.

    def _rejoin(self, now_s: float) -> None:
        """Take part in a rebalance; an eager one revokes everything first."""
        if self.is_eager and (self._owned or self._applying is not None):
            self.state = MembershipState.PREPARE_JOINING
            self._request_due_s = now_s + self._settings.heartbeat_interval_s
        else:
            self._round += 1
            self._is_in_flight = False
            self.state = MembershipState.JOINING
            self._request_due_s = now_s

    def _settle(self, now_s: float) -> None:
        """Join again or become stable once all changes are applied."""
        if self._applying is not None:
            return
        if self.state is MembershipState.PREPARE_JOINING and not self._owned:
            self._rejoin(now_s)
        elif self.state is MembershipState.RECONCILING and self._change() is None:
            if self._must_rejoin or self._topics != self._joined_topics:
                self._rejoin(now_s)
            else:
                self.state = MembershipState.STABLE

    def _lose(self, now_s: float) -> None:
        self._reset()
        self.state = MembershipState.FENCED
        self._join_not_before_s = self._join_due_s(now_s)
        self._after_loss(now_s)

    def _join_due_s(self, now_s: float) -> float:
        """Return when to join after an error: at once the first time."""
        self._failures += 1
        delay_s = retry_delay_s(self._settings, self._failures - 1) if self._failures > 1 else 0.0
        return now_s + delay_s

    def _reset(self) -> None:
        """Forget what only the former membership knows."""
        self._round += 1
        self._is_in_flight = False
        self._target = frozenset()
        self.generation = NO_GENERATION
        self._members, self._counts, self._assignments = [], {}, {}
        self.assignment_task = None
        self._must_rejoin = False
        self._request_due_s = NEVER

    def _expire(self) -> None:
        """Leave, since the application did not poll in time; a static member's session ends it."""
        has_joined = bool(self.member_id)
        if self.state is MembershipState.PREPARE_LEAVING:
            self._leaves_after, self._joins_after = not self._joins_after, False
        self._reset()
        self.state = MembershipState.STALE
        self._poll_due_s = NEVER
        self._leaves_now = has_joined and self._settings.instance_id is None
        self._request_due_s = 0.0 if self._leaves_now else NEVER

    def _end(self, error: KafkaError) -> None:
        self._reset()
        self.error = error
        self.state = MembershipState.FATAL
        self._poll_due_s = NEVER

    def _after_loss(self, now_s: float) -> None:
        """Join again once the loss of partitions is applied; a stale member when it polls again."""
        if self._owned or self._applying is not None:
            return
        is_stale = self.state is MembershipState.STALE and not (
            self._is_in_flight or self._leaves_now
        )
        if not is_stale and self.state is not MembershipState.FENCED:
            return
        if self._leaves_after:
            self.state = MembershipState.UNSUBSCRIBED
            self._leaves_after = False
        elif self._poll_due_s < NEVER:
            self._reset()
            self._rejoin(now_s)
            self._request_due_s = max(now_s, self._join_not_before_s)

    def _after_revocation(self, now_s: float) -> None:
        """Send the leave once all partitions are revoked; a static member sends none."""
        if self.state is not MembershipState.PREPARE_LEAVING or self._owned or self._applying:
            return
        self._reset()
        self._poll_due_s = NEVER
        if self.member_id and self._settings.instance_id is None:
            self.state = MembershipState.LEAVING
            self._request_due_s = now_s
        else:
            self._left(now_s)

    def _left(self, now_s: float) -> None:
        if self.state is MembershipState.STALE:
            self._after_loss(now_s)
            return
        self._reset()
        self.state = MembershipState.UNSUBSCRIBED
        if self._joins_after:
            self._joins_after = False
            self.subscribe(self._topics, now_s)


def change_of(kind: ChangeKind, partitions: Iterable[TopicPartition]) -> AssignmentChange | None:
    """Return a change of these partitions, or None if there are none."""
    found = dict.fromkeys(sorted(partitions), NO_ID)
    return AssignmentChange(kind, found) if found else None
