"""GroupCoordinator: the groups and committed offsets of one `__consumer_offsets` partition.

    request or timer ──decide──▶ result (replies, records) ──the host writes──▶ replay

Each request comes with a token; a Reply names the token it responds to.  A member that has to wait
gets its response from a later decision; each token gets at most one.  An error of a whole request
is raised.

Two kinds of state are separate.  Recorded state (a group's last assignment, an offset) changes in
`replay` only.  Soft state (pending requests, sessions, the progress of a rebalance) changes at once
and is reset by a load: `loaded` gives every recorded member a full session timeout to come back.

The host replays a decision's records before the next decision, or has failed to write them.  After
a failed write, the next `tick` responds with NOT_COORDINATOR to the other requests that the failed
decision would have completed; the group continues as if its members had been slow.

Memory is bounded for all groups together: for metadata and assignments of members by GroupTable,
for committed offsets by commit_records.OFFSETS_SIZE_MAX.

Offsets committed in transactions are pending until the marker of the transaction is in the log.

Left out: streams groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.assignment.subscribed_topics import Topics
from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.classic_membership import ClassicMembership
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup, ResolvedPattern
from kafkalite.coordination.groups.consumer.consumer_membership import ConsumerMembership
from kafkalite.coordination.groups.consumer.mixed_membership import MixedMembership
from kafkalite.coordination.groups.decision_draft import (
    CLOSED_TOKEN,
    NO_TOKEN,
    REFUSED,
    RETENTION,
    TARGET,
    DeadlineKey,
    DecisionDraft,
    GroupClient,
)
from kafkalite.coordination.groups.descriptions import DescriptionSteps
from kafkalite.coordination.groups.group import Group, GroupState
from kafkalite.coordination.groups.group_limits import GroupLimits
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.groups.group_table import GroupTable
from kafkalite.coordination.groups.offset_changes import UNKNOWN_GROUP_SINCE, OffsetChanges
from kafkalite.coordination.groups.offset_retention import OffsetRetention
from kafkalite.coordination.groups.offsets.commit_records import OffsetToCommit
from kafkalite.coordination.groups.offsets.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
)
from kafkalite.coordination.groups.share.share_group import (
    SharedPartitions,
    SharedTopic,
    ShareGroup,
)
from kafkalite.coordination.groups.share.share_membership import ShareMembership
from kafkalite.coordination.machine import (
    DecisionResult,
    Reply,
    TransactionalRecord,
    TransactionEnd,
)
from kafkalite.coordination.share.share_settings import ShareGroupSettings
from kafkalite.errors import GroupIdNotFound, KafkaError, NonEmptyGroup, NotCoordinator
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_group_records import CONSUMER_GROUP
from kafkalite.protocol.schemas.group_records import (
    GROUP_METADATA,
    NO_TIME,
    OFFSET_COMMIT,
    GroupRecord,
)
from kafkalite.protocol.schemas.share_group_records import SHARE_GROUP, SHARE_KINDS

__all__ = [
    "GroupClient",
    "OffsetToCommit",
    "GROUP_KINDS",
    "CommittedOffset",
    "Decision",
    "GroupCoordinator",
    "GroupLimits",
]

Decision: TypeAlias = DecisionResult[list[Reply]]

TICK_COUNT_MAX = 200
"""Maximum number of deadlines handled by one tick: a member that expires takes 0.1 ms."""
MEMBER_ID_BEGINNING_MAX = 255
"""Maximum length of a client's own text at the beginning of a member id."""
UNKNOWN_DESCRIBED_SINCE = 6
"""The DescribeGroups version from which an unknown group is an error (KIP-1043)."""

GROUP_KINDS = (GROUP_METADATA, CONSUMER_GROUP, SHARE_GROUP)
"""The records of whole groups, whose tombstone deletes the group."""


def _class_of(kind: str) -> type[ClassicGroup | ConsumerGroup | ShareGroup]:
    """Return the class of the group of a record of this kind."""
    if kind is GROUP_METADATA:
        return ClassicGroup
    return ShareGroup if kind in SHARE_KINDS else ConsumerGroup


class UnwrittenDecision(NamedTuple):
    """The replies of the last decision, until its records are replayed."""

    token: Any
    replies: Sequence[Reply]


class GroupCoordinator:
    """The coordinator's state machine.

    `new_member_id` makes a unique id with the given prefix; `group_settings` and
    `share_group_settings` return the settings of a group.
    """

    def __init__(
        self,
        limits: GroupLimits,
        new_member_id: Callable[[str], str],
        topics: Topics,
        group_settings: Callable[[str], ConsumerGroupSettings],
        share_group_settings: Callable[[str], ShareGroupSettings] = lambda _: ShareGroupSettings(),
    ) -> None:
        self.limits = limits
        self.offsets = CommittedOffsets()
        self.rebalance_count = 0
        self.commit_count = 0
        self._deadlines: Deadlines[DeadlineKey] = Deadlines()
        self.groups = GroupTable(self._deadlines)
        self._waiting: dict[Any, Any] = {}
        self._unwritten: UnwrittenDecision | None = None
        self._refused: list[Reply] = []
        self._downgraded: list[str] = []
        """Groups that became classic by the last records."""
        self._topics = topics

        def new_id(beginning: str) -> str:
            return new_member_id(beginning[:MEMBER_ID_BEGINNING_MAX])

        self._consumer = ConsumerMembership(self.groups, topics, group_settings, new_id)
        self._share = ShareMembership(self.groups, self.offsets, topics, share_group_settings)
        mixed = MixedMembership(self._consumer, topics)
        self._classic = ClassicMembership(self.groups, mixed, new_id)
        self._changes = OffsetChanges(self.groups, self.offsets)
        self._retention = OffsetRetention(self.groups, self.offsets)

    # -- membership --------------------------------------------------------------------------

    def join(
        self,
        group_id: str,
        request: Fields,
        client: GroupClient,
        version: int,
        token: Any,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """JoinGroup: add a member, or let it join the group's next generation."""
        draft = self._draft(now_ms, wall_ms)
        group = self._classic.join(group_id, request, client, version, draft, token)
        return self._decided(draft, token, group)

    def sync(
        self, request: Fields, version: int, token: Any, now_ms: int, wall_ms: int
    ) -> Decision:
        """SyncGroup: record the leader's assignment, or wait for it."""
        draft = self._draft(now_ms, wall_ms)
        group = self._classic.sync(request, draft, token)
        return self._decided(draft, token, group)

    def heartbeat(self, request: Fields, token: Any, now_ms: int) -> Decision:
        """Heartbeat: extend the member's session and report a rebalance."""
        draft = self._draft(now_ms, NO_TIME)
        self._classic.heartbeat(request, draft, token)
        return self._decided(draft, token)

    def leave(
        self,
        group_id: str,
        members: Sequence[tuple[str, str | None, str | None]],
        token: Any,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """LeaveGroup: remove members, given as (member id, instance id, reason), independently."""
        draft = self._draft(now_ms, wall_ms)
        group = self._classic.leave(group_id, members, draft, token)
        return self._decided(draft, token, group)

    # -- membership of consumer groups ---------------------------------------------------------

    def consumer_heartbeat(
        self, request: Fields, client: GroupClient, token: Any, now_ms: int, wall_ms: int
    ) -> Decision:
        """ConsumerGroupHeartbeat: join a consumer group, stay in it, or leave it.

        The response has the fields of the API's; a request that is refused raises.
        """
        draft = self._draft(now_ms, wall_ms)
        self._consumer.heartbeat(request, client, draft, token)
        return self._decided(draft, token)

    def describe_consumer(self, group_id: str) -> DescriptionSteps:
        """Return a consumer group as in a ConsumerGroupDescribe response, in steps."""
        return self._consumer.describe(group_id, self.limits)

    def patterns_resolved(
        self,
        group_id: str,
        resolved: Mapping[str, ResolvedPattern],
        token: Any,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """Record the topics of regular expressions; the response has no fields."""
        draft = self._draft(now_ms, wall_ms)
        self._consumer.resolve_patterns(group_id, resolved, draft)
        draft.complete(token, {})
        return self._decided(draft, token)

    def topics_changed(self, names: Collection[str]) -> None:
        """Note that topics were created or deleted, or have more partitions."""
        self._consumer.topics_changed(names)
        self._share.topics_changed()

    def patterns_due(self, group_id: str, now_ms: int) -> Sequence[str]:
        """Return the regular expressions of a group if their topics have to be looked up now."""
        return self._consumer.patterns_due(group_id, self.limits.pattern_refresh_ms, now_ms)

    # -- membership of share groups ------------------------------------------------------------

    def share_heartbeat(
        self, request: Fields, client: GroupClient, token: Any, now_ms: int, wall_ms: int
    ) -> Decision:
        """ShareGroupHeartbeat: join a share group, stay in it, or leave it.

        The response has the fields of the API's, and `initializations` (share_membership.py).
        """
        draft = self._draft(now_ms, wall_ms)
        self._share.heartbeat(request, client, draft, token)
        return self._decided(draft, token)

    def share_initialized(
        self,
        group_id: str,
        succeeded: Collection[tuple[bytes, int]],
        failed: Collection[tuple[bytes, int]],
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """Record the outcome of initializations, by topic id and partition."""
        draft = self._draft(now_ms, wall_ms)
        self._share.initialized(group_id, succeeded, failed, draft)
        return self._decided(draft, NO_TOKEN)

    def share_partitions(self, group_id: str) -> SharedPartitions:
        """Return the partitions of a share group, by the progress of their states."""
        return self._share.share_partitions(group_id)

    def begin_share_reset(
        self,
        group_id: str,
        topics: Mapping[bytes, SharedTopic],
        token: Any,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """AlterShareGroupOffsets: return the epoch of the partitions' new states."""
        draft = self._draft(now_ms, wall_ms)
        epoch = self._share.begin_reset(group_id, topics, draft)
        draft.complete(token, {"state_epoch": epoch})
        return self._decided(draft, token)

    def begin_share_deletion(
        self, group_id: str, names: Collection[str], token: Any, now_ms: int, wall_ms: int
    ) -> Decision:
        """DeleteShareGroupOffsets: return the share partitions whose states are to be deleted."""
        draft = self._draft(now_ms, wall_ms)
        keys = self._share.begin_deletion(group_id, names, draft)
        draft.complete(token, {"keys": keys})
        return self._decided(draft, token)

    def end_share_deletion(
        self, group_id: str, topic_ids: Collection[bytes], token: Any, now_ms: int, wall_ms: int
    ) -> Decision:
        """Record that the states of topics are deleted."""
        draft = self._draft(now_ms, wall_ms)
        self._share.end_deletion(group_id, topic_ids, draft)
        draft.complete(token, {})
        return self._decided(draft, token)

    def topics_with_share_states(self, group_id: str) -> set[str]:
        """Return the topics of which a share group without members may have states."""
        return self._share.topics_with_states(group_id)

    def describe_share(self, group_id: str) -> DescriptionSteps:
        """Return a share group as in a ShareGroupDescribe response, in steps."""
        return self._share.describe(group_id)

    # -- offsets -----------------------------------------------------------------------------

    def commit_offsets(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        token: Any,
        now_ms: int,
        wall_ms: int,
        version: int = UNKNOWN_GROUP_SINCE,
    ) -> Decision:
        """OffsetCommit: return the error code of each (topic, partition), as `codes`."""
        draft = self._draft(now_ms, wall_ms)
        self._changes.commit(request, commits, version, draft, token)
        return self._decided(draft, token)

    def commit_transactional_offsets(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        token: Any,
        now_ms: int,
        wall_ms: int,
        version: int,
        guard: Any = None,
    ) -> Decision:
        """TxnOffsetCommit: return the error code of each (topic, partition), as `codes`.

        The offsets are pending until the transaction of the request's producer ends.  `guard` is
        passed to the log with their records.
        """
        draft = self._draft(now_ms, wall_ms)
        self._changes.commit_transactional(request, commits, version, guard, draft, token)
        return self._decided(draft, token)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]], token: Any, now_ms: int
    ) -> Decision:
        """OffsetDelete: return the error code of each (topic, partition), as `codes`."""
        draft = self._draft(now_ms, NO_TIME)
        self._changes.delete(group_id, partitions, draft, token)
        return self._decided(draft, token)

    def fetch_offsets(
        self,
        group_id: str,
        wanted: Mapping[str, Sequence[int]] | None,
        id_of: Callable[[str], bytes] = lambda topic: NO_ID,
        *,
        require_stable: bool = False,
    ) -> dict[str, dict[int, CommittedOffset]]:
        """Return a group's committed offsets by topic and partition; all if `wanted` is None.

        `id_of` returns the id of the topic that currently has a name, if known.  With
        `require_stable`, offsets that a transaction may change are UNSTABLE.
        """
        return self.offsets.fetch(group_id, wanted, id_of, require_stable=require_stable)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise an error unless this member of a group may fetch offsets now."""
        self._changes.check_fetch(group_id, member_id, member_epoch)

    def topic_deletions(
        self, topics: Mapping[str, Collection[bytes]]
    ) -> Iterator[GroupRecord | None]:
        """Yield the records that remove deleted topics, to be written in parts: the tombstones of
        these topics' offsets, and the partitions of share groups without these topics."""
        yield from self.offsets.topic_tombstones(topics)
        topic_ids = {topic_id for of_name in topics.values() for topic_id in of_name}
        yield from self._share.topic_deletions(topic_ids.__contains__)

    def missing_topic_deletions(self) -> Iterator[GroupRecord | None]:
        """Yield the records that remove topics that do not exist from share groups, to be written
        in parts."""
        return self._share.topic_deletions(lambda each: self._topics.topic_by_id(each) is None)

    def write_deletions(self, records: Sequence[GroupRecord], now_ms: int) -> Decision:
        """Write records that remove deleted topics."""
        draft = self._draft(now_ms, NO_TIME)
        draft.records += records
        return self._decided(draft, NO_TOKEN)

    # -- administration ----------------------------------------------------------------------

    def delete_groups(self, group_ids: Sequence[str], token: Any, now_ms: int) -> Decision:
        """DeleteGroups: return None or an error for each group."""
        draft = self._draft(now_ms, NO_TIME)
        errors: dict[str, KafkaError | None] = {}
        for group_id in dict.fromkeys(group_ids):
            try:
                # Offsets may be committed under an empty group id, so it can be deleted as well.
                group = self._changes.known(group_id)
                if group.state is not GroupState.EMPTY:
                    raise NonEmptyGroup()
            except KafkaError as error:
                errors[group_id] = error.copy()
                continue
            errors[group_id] = None
            draft.records += self.offsets.tombstones(group_id)
            self.groups.delete(group, draft)
        draft.complete(token, errors)
        return self._decided(draft, token)

    def describe(self, group_id: str, version: int) -> dict[str, Any]:
        """Return a group as in a DescribeGroups response; an unknown group is Dead."""
        try:
            group = self._changes.known(group_id)
            if not isinstance(group, ClassicGroup):
                raise GroupIdNotFound(f"Group {group_id} is not a classic group.")
            return group.describe()
        except GroupIdNotFound as error:
            unknown = version >= UNKNOWN_DESCRIBED_SINCE
            return {
                "error_code": error.code if unknown else 0,
                "error_message": str(error) if unknown else None,
                "group_id": group_id,
                "group_state": str(GroupState.DEAD),
                "protocol_type": "",
                "protocol_data": "",
                "members": [],
            }

    def list(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the groups as in a ListGroups response, filtered by state and type."""
        wanted_states = {state.lower() for state in states}
        wanted_types = {type_.lower() for type_ in types}
        return [
            listed
            for listed in (group.list_entry() for group in self._all())
            if (not states or listed["group_state"].lower() in wanted_states)
            and (not types or listed["group_type"] in wanted_types)
        ]

    # -- timers ------------------------------------------------------------------------------

    @property
    def next_due_ms(self) -> int | None:
        """Time of the next `tick`, or None."""
        return self._deadlines.next_ms

    def tick(self, now_ms: int, wall_ms: int) -> Decision:
        """Handle expired deadlines; of many, handle a part and leave `next_due_ms` in the past."""
        draft = self._draft(now_ms, wall_ms)
        self._fail_unwritten()
        for token, _ in self._refused:
            draft.fail(token, NotCoordinator)
        self._refused = []
        expired: dict[str, list[DeadlineKey]] = {}
        for _, due in zip(range(TICK_COUNT_MAX), self._deadlines.due(now_ms), strict=False):
            if due.kind == RETENTION:
                self._retention.expire(draft)
                break  # the rest of a long search is due at once, in a later tick
            group = self.groups.get(due.group_id)
            if isinstance(group, ClassicGroup):
                group.expire(due, draft)
                self.groups.update_size(group, is_recording=bool(draft.records))
            elif group is not None:
                expired.setdefault(due.group_id, []).append(due)
        for group_id, dues in expired.items():
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                self._consumer.expire(group, dues, draft)
            elif isinstance(group, ShareGroup):
                self._share.expire(group, [due.member_id for due in dues], draft)
        self._consumer.advance_targets(draft)
        return self._decided(draft, NO_TOKEN)

    def drop_token(self, token: Any) -> None:
        """Drop a token whose connection has closed; its member may come back."""
        member = self._waiting.pop(token, None)
        if member is not None and member.join_token is token:
            member.join_token = CLOSED_TOKEN
        elif member is not None and member.sync_token is token:
            member.sync_token = CLOSED_TOKEN

    # -- replay ------------------------------------------------------------------------------

    def replay(self, record: GroupRecord | TransactionalRecord | TransactionEnd) -> None:
        """Apply a record, or the end of a transaction."""
        if isinstance(record, TransactionEnd):
            self.offsets.end_transaction(record.producer_id, is_commit=record.is_commit)
            return
        if self._unwritten is not None:
            self._unwritten = None
            if not self._refused:
                self._deadlines.drop(DeadlineKey(REFUSED))
        if isinstance(record, TransactionalRecord):
            producer_id, record = record.producer_id, record.record
            assert isinstance(record, GroupRecord)
            if record.kind is OFFSET_COMMIT:
                self.offsets.replay_pending(producer_id, record.key, record.value)
                self.commit_count += record.value is not None
                return
        if record.kind is OFFSET_COMMIT:
            self.offsets.replay(record.key, record.value)
            self.commit_count += record.value is not None
            return
        self._replay_group(record)

    def _replay_group(self, record: GroupRecord) -> None:
        """Apply a record of a group; it replaces a group of another kind."""
        converted = self.groups.converted
        if converted is not None and converted.replaces(record):
            if converted.ends_with(record):
                self._add_converted(converted.group)
            return
        group_id, kind = record.group_id, _class_of(record.kind)
        group = self.groups.get(group_id)
        if group is not None and not isinstance(group, kind):
            if record.value is None:
                return
            self.groups.drop(group)
            group = None
        if record.value is None and record.kind in GROUP_KINDS:
            if group is not None:
                self.groups.drop(group)
            return
        if group is None:
            if record.value is None:
                return
            group = kind(group_id)
            self.groups.add(group)
        self.rebalance_count += group.replay(record)
        self.groups.update_size(group)

    def _add_converted(self, group: Group) -> None:
        """Put a group in the place of the one that it was converted from."""
        self.groups.converted = None
        known = self.groups.get(group.group_id)
        if known is not None:
            self.groups.drop(known)
        self.groups.add(group)
        self.groups.update_size(group)
        if isinstance(group, ClassicGroup):
            self._downgraded.append(group.group_id)
            self._deadlines.set(DeadlineKey(TARGET, group.group_id), 0)  # the next tick begins
        else:
            self.rebalance_count += 1

    def loaded(self, now_ms: int, wall_ms: int = NO_TIME) -> None:
        """Begin after the last record of the log was replayed."""
        draft = self._draft(now_ms, wall_ms)
        for group in self.groups:
            if isinstance(group, ClassicGroup):
                group.restore(draft)
            elif isinstance(group, ConsumerGroup):
                self._consumer.restore(group, draft)
            elif isinstance(group, ShareGroup):
                self._share.restore(group, draft)
            self.groups.update_size(group)
        self.commit_count = 0
        self._retention.restart(draft)

    def reconfigure(self, limits: GroupLimits, now_ms: int) -> None:
        """Apply new limits; a new check interval counts from now."""
        before, self.limits = self.limits, limits
        if limits.retention_check_ms != before.retention_check_ms:
            self._retention.restart(self._draft(now_ms, NO_TIME))

    @property
    def counts(self) -> dict[str, int]:
        """Metrics: the number of groups by state, of all groups, and of offsets."""
        groups = Counter(group.state for group in self._all())
        states = {str(state): groups[state] for state in GroupState if state is not GroupState.DEAD}
        return {**states, "groups": sum(states.values()), "offsets": self.offsets.count}

    # -- internals ---------------------------------------------------------------------------

    def _draft(self, now_ms: int, wall_ms: int) -> DecisionDraft:
        self.groups.end_replacement(is_written=self._unwritten is None)
        draft = DecisionDraft(now_ms, wall_ms, self.limits, self._deadlines, self._waiting)
        for group_id in self._downgraded:
            group = self.groups.get(group_id)
            if isinstance(group, ClassicGroup):
                group.begin_rebalance(draft)
        self._downgraded.clear()
        return draft

    def _decided(self, draft: DecisionDraft, token: Any, group: Group | None = None) -> Decision:
        if group is not None:
            self.groups.update_size(group, is_recording=bool(draft.records))
        self._fail_unwritten()
        if draft.records:
            self._unwritten = UnwrittenDecision(token, draft.replies)
            draft.set_deadline(DeadlineKey(REFUSED), 0)
        return DecisionResult(draft.replies, draft.records)

    def _fail_unwritten(self) -> None:
        """Refuse the replies of a decision that was not written; its own request has failed."""
        if self._unwritten is not None:
            token, replies = self._unwritten
            self.drop_token(token)
            self._refused += [reply for reply in replies if reply.token is not token]
            self._unwritten = None
            self._consumer.write_failed(self._deadlines)

    def _all(self) -> Iterator[Group]:
        yield from self.groups
        for group_id in self.offsets:
            if group_id not in self.groups:
                yield ClassicGroup(group_id)
