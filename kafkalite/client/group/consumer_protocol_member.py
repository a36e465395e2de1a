"""ConsumerProtocolMember: a member by the consumer protocol (KIP-848): the coordinator assigns.

One request, ConsumerGroupHeartbeat, joins, stays, acknowledges and leaves.  A field that is null
has not changed.  A full request follows each join and each error, since the coordinator may have
missed what was sent before.

    the assignment lacks partitions that are owned   revoke them, then send the rest as owned
    it has others                                    assign those whose topic id and count are
                                                     known from metadata, then send them as owned
    25, 110, and 69 after the join                   all are lost; join again with epoch 0
    no poll within max.poll.interval.ms              leave at once; lost at the next poll

Partitions count as owned from the moment their assignment is taken, before the callback returns:
the coordinator must not see them as released.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafkalite.client.group.membership import (
    NEVER,
    AssignmentChange,
    ChangeKind,
    MemberRequest,
    MemberSettings,
    MembershipState,
    SubscribedTopics,
    checked_partitions,
    retry_delay_s,
)
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.topology import TopicMetadata, TopicPartition, error_of
from kafkalite.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRequest,
    KafkaError,
    UnknownMemberId,
    UnsupportedVersion,
)
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_HEARTBEAT

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
INTERVAL_S = 5.0
"""Interval of heartbeats until the coordinator names one."""
INTERVAL_S_MIN = 0.05
INTERVAL_S_MAX = 300.0
MATCH_S = 2.0
"""Time that the coordinator may take to assign the topics of an expression.  It matches them after
its first response, which has none of them, and no later response says that there are none."""
WRONG_TYPE = (
    "The group is of another type and cannot be joined; choose another name.  A share group is"
    " read with ShareConsumer, others with Consumer."
)

HEARTBEATING = (
    MembershipState.JOINING,
    MembershipState.RECONCILING,
    MembershipState.ACKNOWLEDGING,
    MembershipState.STABLE,
)

POLLED = (*HEARTBEATING, MembershipState.PREPARE_LEAVING)
"""States in which the application has to poll within max.poll.interval.ms."""

TopicIdPartition = tuple[bytes, int]


class ConsumerProtocolMember:
    """The member: its epoch, what it was assigned, what it owns, and what it sent of that."""

    api: Api = CONSUMER_GROUP_HEARTBEAT
    """The request of the protocol; its response has the fields of ConsumerGroupHeartbeat."""

    def __init__(self, settings: MemberSettings, member_id: str) -> None:
        self.state = MembershipState.UNSUBSCRIBED
        self.error: KafkaError | None = None
        self.is_unsupported = False
        """True if the coordinator does not support the protocol (UNSUPPORTED_VERSION)."""
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._settings = settings
        self._topics = SubscribedTopics()
        self._sent_topics: SubscribedTopics | None = None
        self._confirmed_topics: SubscribedTopics | None = None
        """The subscription of the last heartbeat with a response."""
        self._had_regex = False
        """True once an expression was sent; the coordinator keeps it until it gets an empty one."""
        self._match_due_s = NEVER
        """Time from which the assignment is that of an expression, even without topics of it."""
        self._target: frozenset[TopicIdPartition] = frozenset()
        self._owned: dict[TopicPartition, bytes] = {}
        self._sent_owned: frozenset[TopicIdPartition] | None = None
        self._metadata: dict[bytes, TopicMetadata] = {}
        self._applying: AssignmentChange | None = None
        self._round = 0
        self._is_in_flight = False
        self._sends_all = True
        self._leaves_now = False
        """True if a leave is to be sent because the application did not poll."""
        self._leaves_after = False
        """True if the application left while its partitions were lost."""
        self._joins_after = False
        """True if the application subscribed again while the member leaves."""
        self._interval_s = INTERVAL_S
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
        if self.state in POLLED:
            return min(request_due_s, self._poll_due_s)
        return request_due_s if self.state is MembershipState.LEAVING else NEVER

    @property
    def topics_wanted(self) -> Collection[str] | None:
        if all(self._is_known(each) for each in self._target):
            return ()
        return None if self._topics.regex else self._topics.names

    @property
    def topics_watched(self) -> Collection[str]:
        return ()

    @property
    def has_change(self) -> bool:
        return self._applying is None and (self.error is not None or self._change() is not None)

    @property
    def is_member(self) -> bool:
        return self.epoch > JOIN_EPOCH

    @property
    def identity(self) -> GroupMetadata:
        settings = self._settings
        return GroupMetadata(settings.group_id, self.epoch, self.member_id, settings.instance_id)

    @property
    def owned(self) -> Mapping[TopicPartition, bytes]:
        return self._owned

    # Events of the application.

    def subscribe(self, topics: SubscribedTopics, now_s: float) -> None:
        if topics == self._topics and self.state in HEARTBEATING:
            return
        self._topics = topics
        self._leaves_after = False
        if self.state in (MembershipState.UNSUBSCRIBED, MembershipState.FATAL):
            if self._owned:  # lost with the error, and not yet applied
                self.error = None
                self.state = MembershipState.FENCED
            else:
                self._join(now_s)
        elif self.state in (MembershipState.PREPARE_LEAVING, MembershipState.LEAVING):
            self._joins_after = True
        elif self.state in HEARTBEATING:
            self._request_due_s = now_s
            if self.state is MembershipState.STABLE:
                self.state = MembershipState.RECONCILING

    def leave(self, now_s: float) -> None:
        self._joins_after = False
        if self.state in (MembershipState.FENCED, MembershipState.STALE, MembershipState.FATAL):
            self.error = None
            self._leaves_after = True
            self.state = MembershipState.STALE
            self._after_loss(now_s)
        elif self.state in HEARTBEATING:
            self.state = MembershipState.PREPARE_LEAVING
            self._poll_due_s = now_s + self._settings.max_poll_interval_s
            self._after_revocation(now_s)

    def polled(self, now_s: float) -> None:
        if self.state in POLLED or self.state is MembershipState.STALE:
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
            for partition in change.partitions:
                self._owned.pop(partition, None)
        if self.state in (MembershipState.RECONCILING, MembershipState.STABLE):
            self.state = MembershipState.ACKNOWLEDGING
        if self.state is MembershipState.ACKNOWLEDGING:
            self._request_due_s = now_s
        self._after_revocation(now_s)
        self._after_loss(now_s)

    def _change(self) -> AssignmentChange | None:
        """Return the next change: revoked partitions first, then new ones."""
        if self.state in (MembershipState.FENCED, MembershipState.STALE, MembershipState.FATAL):
            return self._change_of(ChangeKind.LOST, self._owned)
        if self.state is MembershipState.PREPARE_LEAVING:
            return self._change_of(ChangeKind.REVOKED, self._owned)
        if self.state not in (MembershipState.RECONCILING, MembershipState.ACKNOWLEDGING):
            return None
        gone = {
            partition: topic_id
            for partition, topic_id in self._owned.items()
            if (topic_id, partition.partition) not in self._target
        }
        if gone:
            return self._change_of(ChangeKind.REVOKED, gone)
        new = {}
        for topic_id, number in self._target:
            if self._is_known((topic_id, number)):
                partition = TopicPartition(self._metadata[topic_id].name, number)
                if partition not in self._owned:
                    new[partition] = topic_id
        return self._change_of(ChangeKind.ASSIGNED, dict(sorted(new.items())))

    def _change_of(
        self, kind: ChangeKind, partitions: Mapping[TopicPartition, bytes]
    ) -> AssignmentChange | None:
        return AssignmentChange(kind, dict(partitions)) if partitions else None

    def _is_known(self, partition: TopicIdPartition) -> bool:
        topic_id, number = partition
        topic = self._metadata.get(topic_id)
        return topic is not None and number in topic.partitions

    def update_topics(self, topics: Mapping[str, TopicMetadata], now_s: float) -> None:
        for topic in topics.values():
            self._metadata[topic.topic_id] = topic
        wanted = {topic_id for topic_id, _ in self._target}
        wanted.update(self._owned.values())
        self._metadata = {key: self._metadata[key] for key in wanted & self._metadata.keys()}

    # Requests.

    def next_request(self, now_s: float) -> MemberRequest | None:
        if self.state in POLLED and now_s >= self._poll_due_s:
            self._expire()
        if now_s < self.due_s:
            return None
        if self._leaves_now or self.state is MembershipState.LEAVING:
            return self._leave_request()
        self._is_in_flight = True
        fields = self._heartbeat()
        if self.state is MembershipState.ACKNOWLEDGING:
            self.state = self._settled_state(now_s)
        return MemberRequest(self.api, lambda version: fields, self._round)

    def _heartbeat(self) -> dict[str, object]:
        """Return the fields of the next heartbeat, and note what it sends."""
        owned = frozenset((topic_id, p.partition) for p, topic_id in self._owned.items())
        fields: dict[str, object] = {
            "group_id": self._settings.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self._settings.instance_id,
        }
        if self._sends_all:
            timeout_ms = int(self._settings.max_poll_interval_s * 1000)
            fields["rebalance_timeout_ms"] = timeout_ms
            fields["server_assignor"] = self._settings.remote_assignor
        if self._sends_all or self._topics != self._sent_topics:
            regex = self._topics.regex
            if self.epoch == JOIN_EPOCH or self._topics != self._sent_topics:
                self._match_due_s = NEVER
            self._had_regex = self._had_regex or regex is not None
            fields["subscribed_topic_names"] = sorted(self._topics.names)
            fields["subscribed_topic_regex"] = regex or ("" if self._had_regex else None)
        if self._sends_all or owned != self._sent_owned:
            fields["topic_partitions"] = partitions_by_topic(owned)
        self._sends_all = False
        self._sent_topics, self._sent_owned = self._topics, owned
        return fields

    def _leave_request(self) -> MemberRequest:
        self._is_in_flight, self._leaves_now = True, False
        self._round += 1
        fields = self._leave()
        self._request_due_s = NEVER
        return MemberRequest(self.api, lambda version: fields, self._round, is_leave=True)

    def _leave(self) -> dict[str, object]:
        """Return the fields of the heartbeat that leaves."""
        is_static = self._settings.instance_id is not None
        return {
            "group_id": self._settings.group_id,
            "member_id": self.member_id,
            "member_epoch": LEAVE_STATIC_EPOCH if is_static else LEAVE_EPOCH,
            "instance_id": self._settings.instance_id,
        }

    def handle_response(self, request: MemberRequest, response: Fields, now_s: float) -> None:
        if request.round != self._round:
            return
        self._is_in_flight = False
        if request.is_leave:
            self._left(now_s)
            return
        if response.error_code:
            subject = f"group {self._settings.group_id!r}"
            message = response.error_message
            if response.error_code == GroupIdNotFound.code and self.epoch == JOIN_EPOCH:
                message = WRONG_TYPE  # a join creates a group that does not exist
            self._fail(error_of(response.error_code, subject, message), now_s)
            return
        if response.member_epoch <= JOIN_EPOCH:
            self._end(InvalidRequest(f"The response has the member epoch {response.member_epoch}."))
            return
        if response.assignment is not None:
            try:
                self._target = assigned_partitions(response.assignment)
            except InvalidRequest as error:
                self._end(error)
                return
        self._failures = 0
        self.epoch = response.member_epoch
        self._confirmed_topics = self._sent_topics
        self._match_due_s = min(self._match_due_s, now_s + MATCH_S)
        if response.heartbeat_interval_ms > 0:
            interval_s = response.heartbeat_interval_ms / 1000
            self._interval_s = min(max(interval_s, INTERVAL_S_MIN), INTERVAL_S_MAX)
        if self.state in HEARTBEATING:
            if self.state is not MembershipState.ACKNOWLEDGING:
                self.state = self._settled_state(now_s)
            changed = self._topics != self._sent_topics
            is_due = changed or self.state is MembershipState.ACKNOWLEDGING
            self._request_due_s = now_s if is_due else now_s + self._interval_s
            if self._may_be_matching(now_s):
                self._request_due_s = min(self._request_due_s, self._match_due_s)
        else:
            self._request_due_s = now_s + self._interval_s
        self._after_revocation(now_s)

    def handle_failure(self, request: MemberRequest, error: KafkaError, now_s: float) -> None:
        if request.round != self._round:
            return
        self._is_in_flight = False
        if request.is_leave:
            self._left(now_s)  # the session ends it
        else:
            self._fail(error, now_s)

    def _fail(self, error: KafkaError, now_s: float) -> None:
        """Handle the error of a heartbeat."""
        self._sends_all = True
        if self.state not in HEARTBEATING:
            self._request_due_s = now_s + self._interval_s
            self._after_revocation(now_s)
        elif self._is_loss(error):
            self.state = MembershipState.FENCED
            self._reset()
            self._failures += 1
            if self._failures > 1:
                delay_s = retry_delay_s(self._settings, self._failures - 1)
                self._join_not_before_s = now_s + delay_s
            self._after_loss(now_s)
        elif error.retriable:
            self._failures += 1
            self._request_due_s = now_s + retry_delay_s(self._settings, self._failures)
        else:
            self.is_unsupported = isinstance(error, UnsupportedVersion)
            self._end(error)

    def _is_loss(self, error: KafkaError) -> bool:
        """Return whether the member has lost its partitions and joins again."""
        if isinstance(error, GroupIdNotFound):
            # After its session the group may have been deleted, or have become a classic one.
            return self.epoch != JOIN_EPOCH
        if isinstance(error, UnsupportedVersion):
            # What is owned is lost first; the next join shows what the coordinator supports.
            return bool(self._owned) or self._applying is not None
        return isinstance(error, (UnknownMemberId, FencedMemberEpoch))

    # Transitions.

    def _settled_state(self, now_s: float) -> MembershipState:
        """Return STABLE if everything assigned is owned and nothing else is.

        The assignment has to be that of the current subscription.
        """
        owned = {(topic_id, p.partition) for p, topic_id in self._owned.items()}
        is_settled = (
            owned == self._target
            and self._applying is None
            and self._topics == self._confirmed_topics
            and not self._may_be_matching(now_s)
        )
        return MembershipState.STABLE if is_settled else MembershipState.RECONCILING

    def _may_be_matching(self, now_s: float) -> bool:
        """Return whether the topics of an expression may be missing from the assignment."""
        has_matched = bool(self._target) and not self._topics.names
        return self._topics.regex is not None and not has_matched and now_s < self._match_due_s

    def _reset(self) -> None:
        """Forget what only the former membership knows."""
        self._round += 1
        self._is_in_flight = False
        self._target = frozenset()
        self.epoch = JOIN_EPOCH
        self._sends_all = True
        self._sent_owned = None
        self._request_due_s = NEVER

    def _join(self, now_s: float) -> None:
        self._reset()
        self.error = None
        self.state = MembershipState.JOINING
        self._request_due_s = max(now_s, self._join_not_before_s)
        self._poll_due_s = now_s + self._settings.max_poll_interval_s

    def _expire(self) -> None:
        """Leave, since the application did not poll in time."""
        was_member = self.is_member or self._is_in_flight
        if self.state is MembershipState.PREPARE_LEAVING:
            self._leaves_after, self._joins_after = not self._joins_after, False
        self._reset()
        self.state = MembershipState.STALE
        self._poll_due_s = NEVER
        self._leaves_now = was_member
        self._request_due_s = 0.0 if was_member else NEVER

    def _end(self, error: KafkaError) -> None:
        self._reset()
        self.error = error
        self.state = MembershipState.FATAL
        self._poll_due_s = NEVER

    def _after_loss(self, now_s: float) -> None:
        """Join again once the loss of partitions is applied; a stale member when it polls again."""
        if self._owned or self._applying is not None:
            return
        if self.state is MembershipState.FENCED or (
            self.state is MembershipState.STALE and not self._is_in_flight and not self._leaves_now
        ):
            if self._leaves_after:
                self.state = MembershipState.UNSUBSCRIBED
                self._leaves_after = False
                self._poll_due_s = NEVER
            elif self.state is MembershipState.FENCED or self._poll_due_s < NEVER:
                self._join(now_s)

    def _after_revocation(self, now_s: float) -> None:
        """Send the leave once all partitions are revoked."""
        if self.state is MembershipState.PREPARE_LEAVING and not self._owned and not self._applying:
            self._reset()
            self.state = MembershipState.LEAVING
            self._request_due_s = now_s
            self._poll_due_s = NEVER

    def _left(self, now_s: float) -> None:
        if self.state is MembershipState.STALE:
            self._after_loss(now_s)
            return
        self._reset()
        self.state = MembershipState.UNSUBSCRIBED
        if self._joins_after:
            self._joins_after = False
            self._join(now_s)


def partitions_by_topic(partitions: Collection[TopicIdPartition]) -> list[dict[str, object]]:
    """Return partitions grouped under their topic ids, as in the protocol."""
    found: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        found.setdefault(topic_id, []).append(number)
    return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in found.items()]


def assigned_partitions(assignment: Fields) -> frozenset[TopicIdPartition]:
    """Return the partitions of an assignment; raise InvalidRequest if it is not valid."""
    return checked_partitions(
        [
            (topic.topic_id, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        ]
    )
