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

Memory is bounded for all groups together: for metadata and assignments of members by ClassicGroups,
for committed offsets by commit_records.OFFSETS_SIZE_MAX.

Offsets committed in transactions are pending until the marker of the transaction is in the log.

Left out: the newer group protocols.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, NoReturn, TypeAlias

from kafkalite.coordination.classic_group import CONSUMER, ClassicGroup
from kafkalite.coordination.classic_groups import ClassicGroups
from kafkalite.coordination.commit_records import (
    TEXT_SIZE_MAX,
    CommitRecords,
    OffsetToCommit,
    commit_records,
    is_storable,
)
from kafkalite.coordination.committed_offsets import CommittedOffset, CommittedOffsets
from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.decision_draft import (
    CLOSED_TOKEN,
    JOIN,
    NO_TOKEN,
    REFUSED,
    RETENTION,
    SESSION,
    SYNC,
    DeadlineKey,
    DecisionDraft,
    GroupClient,
    GroupLimits,
)
from kafkalite.coordination.group_members import GroupState, protocols_size
from kafkalite.coordination.machine import (
    DecisionResult,
    Reply,
    TransactionalRecord,
    TransactionEnd,
)
from kafkalite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidGroupId,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.group_records import (
    NO_TIME,
    OFFSET_COMMIT,
    GroupRecord,
    OffsetKey,
    group_record,
    offset_record,
)

__all__ = [
    "GroupClient",
    "OffsetToCommit",
    "CommittedOffset",
    "Decision",
    "GroupCoordinator",
    "GroupLimits",
]

Decision: TypeAlias = DecisionResult[list[Reply]]

TICK_COUNT_MAX = 1_000
"""Maximum number of deadlines handled by one tick."""
SWEEP_COUNT = 1_000
"""Maximum number of groups that one tick searches for expired offsets."""

UNKNOWN_GROUP_SINCE = 9
"""The OffsetCommit version from which a group can be unknown (KIP-848)."""
UNKNOWN_GROUP_IN_TRANSACTION_SINCE = 6
"""The TxnOffsetCommit version from which a group can be unknown."""

UNKNOWN_DESCRIBED_SINCE = 6
"""The DescribeGroups version from which an unknown group is an error (KIP-1043)."""

TIME_MAX = (1 << 63) - 1
MEMBER_ID_BEGINNING_MAX = 255
PROTOCOLS_MAX = 1_000
"""Maximum number of protocols of a member; clients have a few."""


class UnwrittenDecision(NamedTuple):
    """The replies of the last decision, until its records are replayed."""

    token: Any
    replies: Sequence[Reply]


class GroupCoordinator:
    """The coordinator's state machine; `new_member_id` makes a unique id with the given prefix."""

    def __init__(self, limits: GroupLimits, new_member_id: Callable[[str], str]) -> None:
        self.limits = limits
        self.offsets = CommittedOffsets()
        self.rebalance_count = 0
        self.commit_count = 0
        self._new_member_id = new_member_id
        self._deadlines: Deadlines[DeadlineKey] = Deadlines()
        self.groups = ClassicGroups(self._deadlines)
        self._waiting: dict[Any, Any] = {}
        self._unwritten: UnwrittenDecision | None = None
        self._refused: list[Reply] = []
        self._sweep: Iterator[str] | None = None

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
        _check_id(group_id)
        if version == 0:  # it has one timeout, used as both
            request = Fields(request, rebalance_timeout_ms=request.session_timeout_ms)
        shortest, longest = self.limits.min_session_ms, self.limits.max_session_ms
        if not shortest <= request.session_timeout_ms <= longest:
            raise InvalidSessionTimeout(
                f"Session timeout {request.session_timeout_ms} ms is not between"
                f" group.min.session.timeout.ms={shortest} and"
                f" group.max.session.timeout.ms={longest}."
            )
        if len(request.protocols) > PROTOCOLS_MAX:
            raise InvalidRequest(f"A member supports at most {PROTOCOLS_MAX} protocols.")
        group = self.groups.get(group_id)
        if group is None:
            if request.member_id:
                raise UnknownMemberId()
            group = ClassicGroup(group_id)
        before = group.members.size_of(request.member_id, request.group_instance_id)
        spoken = protocols_size((each.name, each.metadata) for each in request.protocols)
        self.groups.check_memory(spoken, before)
        names = [protocol.name for protocol in request.protocols]
        _check_texts(request.group_instance_id, request.protocol_type, *names)
        draft = self._draft(now_ms, wall_ms)
        beginning = (request.group_instance_id or client.client_id)[:MEMBER_ID_BEGINNING_MAX]
        new_id = partial(self._new_member_id, beginning)
        group.join(request, client, new_id, version, draft, token)
        self.groups.add(group)
        return self._decided(draft, token, group)

    def sync(
        self, request: Fields, version: int, token: Any, now_ms: int, wall_ms: int
    ) -> Decision:
        """SyncGroup: record the leader's assignment, or wait for it."""
        _check_id(request.group_id)
        group = self.groups.of_member(request.group_id)
        before = sum(len(member.assignment) for member in group.members)
        self.groups.check_memory(sum(len(each.assignment) for each in request.assignments), before)
        draft = self._draft(now_ms, wall_ms)
        group.sync(request, draft, token)
        return self._decided(draft, token, group)

    def heartbeat(self, request: Fields, token: Any, now_ms: int) -> Decision:
        """Heartbeat: extend the member's session and report a rebalance."""
        _check_id(request.group_id)
        group = self.groups.of_member(request.group_id)
        draft = self._draft(now_ms, NO_TIME)
        error = group.heartbeat(request, draft)
        draft.complete(token, {"error_code": 0 if error is None else error.code})
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
        _check_id(group_id)
        group = self.groups.get(group_id) or ClassicGroup(group_id)
        draft = self._draft(now_ms, wall_ms)
        size_before = len(group.members)
        responses = []
        for member_id, instance_id, _ in members:
            code = 0
            try:
                group.leave(member_id, instance_id, draft)
            except KafkaError as error:
                code = error.code
            responses.append({
                "member_id": member_id,
                "group_instance_id": instance_id,
                "error_code": code,
            })  # fmt: skip
        group.rebalance_after_leave(size_before, draft)
        draft.complete(token, {"error_code": 0, "members": responses})
        return self._decided(draft, token, group)

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
        group_id = request.group_id
        _check_texts(group_id)
        draft = self._draft(now_ms, wall_ms)
        group = self.groups.get(group_id)
        if group is not None:
            group.check_commit(request, draft)
        elif request.generation_id_or_member_epoch >= 0:
            self._refuse_member(group_id, version >= UNKNOWN_GROUP_SINCE)
        expire_ms = NO_TIME
        if request.retention_time_ms != NO_TIME:
            expire_ms = min(max(wall_ms + request.retention_time_ms, 0), TIME_MAX)
        codes, records = self._commit_records(group_id, commits, wall_ms, expire_ms)
        draft.records += records
        draft.complete(token, {"codes": codes})
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
        group_id = request.group_id
        _check_id(group_id)
        if min(request.producer_id, request.producer_epoch) < 0:
            raise InvalidProducerIdMapping("No transaction has this producer id and epoch.")
        draft = self._draft(now_ms, wall_ms)
        group = self.groups.get(group_id)
        if group is not None:
            group.check_transactional_commit(request)
        elif request.generation_id_or_member_epoch >= 0:
            self._refuse_member(group_id, version >= UNKNOWN_GROUP_IN_TRANSACTION_SINCE)
        codes, records = self._commit_records(group_id, commits, wall_ms, NO_TIME)
        producer = request.producer_id, request.producer_epoch, guard
        draft.records += [TransactionalRecord(record, *producer) for record in records]
        draft.complete(token, {"codes": codes})
        return self._decided(draft, token)

    def _refuse_member(self, group_id: str, knows_unknown_groups: bool) -> NoReturn:
        """Raise the error of a commit with a generation for a group that has had no members."""
        if group_id in self.offsets:
            raise UnknownMemberId()
        raise GroupIdNotFound() if knows_unknown_groups else IllegalGeneration()

    def _commit_records(
        self, group_id: str, commits: Sequence[OffsetToCommit], wall_ms: int, expire_ms: int
    ) -> CommitRecords:
        metadata_size_max = self.limits.metadata_size_max
        return commit_records(
            self.offsets, group_id, commits, metadata_size_max, wall_ms, expire_ms
        )

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]], token: Any, now_ms: int
    ) -> Decision:
        """OffsetDelete: return the error code of each (topic, partition), as `codes`."""
        _check_id(group_id)
        group = self._known(group_id)
        if group.state is not GroupState.EMPTY and group.generation.protocol_type != CONSUMER:
            raise NonEmptyGroup()
        draft = self._draft(now_ms, NO_TIME)
        codes = {}
        subscribed = group.subscribed
        for topic, index in partitions:
            codes[topic, index] = 0
            if topic in subscribed:
                codes[topic, index] = GroupSubscribedToTopic.code
            elif self.offsets.has(group_id, topic, index):
                draft.records.append(offset_record(OffsetKey(group_id, topic, index), None))
        draft.complete(token, {"codes": codes})
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

    def topic_tombstones(
        self, topics: Mapping[str, Collection[bytes]]
    ) -> Iterator[GroupRecord | None]:
        """Yield the tombstones of the offsets of deleted topics, to be written in parts."""
        return self.offsets.topic_tombstones(topics)

    def write_tombstones(self, tombstones: Sequence[GroupRecord], now_ms: int) -> Decision:
        """Delete these offsets of deleted topics."""
        draft = self._draft(now_ms, NO_TIME)
        draft.records += tombstones
        return self._decided(draft, NO_TOKEN)

    # -- administration ----------------------------------------------------------------------

    def delete_groups(self, group_ids: Sequence[str], token: Any, now_ms: int) -> Decision:
        """DeleteGroups: return None or an error for each group."""
        draft = self._draft(now_ms, NO_TIME)
        errors: dict[str, KafkaError | None] = {}
        for group_id in dict.fromkeys(group_ids):
            try:
                # Offsets may be committed under an empty group id, so it can be deleted as well.
                group = self._known(group_id)
                if group.state is not GroupState.EMPTY:
                    raise NonEmptyGroup()
            except KafkaError as error:
                errors[group_id] = error.copy()
                continue
            errors[group_id] = None
            draft.records += self.offsets.tombstones(group_id)
            self._delete_group(group, draft)
        draft.complete(token, errors)
        return self._decided(draft, token)

    def describe(self, group_id: str, version: int) -> dict[str, Any]:
        """Return a group as in a DescribeGroups response; an unknown group is Dead."""
        try:
            return self._known(group_id).describe()
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
        """Handle expired deadlines; if there are many, handle a part and leave `next_due_ms` in the
        past."""
        draft = self._draft(now_ms, wall_ms)
        self._fail_unwritten()
        for token, _ in self._refused:
            draft.fail(token, NotCoordinator)
        self._refused = []
        for _, due in zip(range(TICK_COUNT_MAX), self._deadlines.due(now_ms), strict=False):
            if due.kind == RETENTION:
                self._expire_offsets(draft)
                break  # the rest of a long search is due at once, in a later tick
            group = self.groups.get(due.group_id)
            if group is not None:
                self._expire(group, due, draft)
                self.groups.update_size(group, is_recording=bool(draft.records))
        return self._decided(draft, NO_TOKEN)

    def _expire(self, group: ClassicGroup, due: DeadlineKey, draft: DecisionDraft) -> None:
        if due.kind == SESSION:
            group.expire_session(due.member_id, draft)
        elif due.kind == JOIN:
            group.expire_join(draft)
        else:
            assert due.kind == SYNC
            group.expire_sync(draft)

    def _expire_offsets(self, draft: DecisionDraft) -> None:
        """Search some groups for expired offsets; delete empty groups without offsets."""
        if self._sweep is None:
            self._sweep = iter([*dict.fromkeys([*self.groups.ids(), *self.offsets])])
        group_ids = [*islice(self._sweep, SWEEP_COUNT)]
        for group_id in group_ids:
            group = self.groups.get(group_id) or ClassicGroup(group_id)
            expired = [*self._expired(group, draft.wall_ms)]
            draft.records += expired
            is_left = len(expired) < self.offsets.count_of(group_id)
            if group.idle and not is_left and not self.offsets.pending.has_group(group_id):
                self._delete_group(group, draft)
        if len(group_ids) == SWEEP_COUNT:
            draft.set_deadline(DeadlineKey(RETENTION), 0)
        else:
            self._sweep = None
            draft.set_deadline(DeadlineKey(RETENTION), self.limits.retention_check_ms)

    def _expired(self, group: ClassicGroup, wall_ms: int) -> Iterator[GroupRecord]:
        retention_ms = self.limits.retention_ms
        since_ms = NO_TIME
        if group.state is GroupState.EMPTY:
            since_ms = group.since_ms if group.generation.protocol_type is not None else NO_TIME
        elif group.state is not GroupState.STABLE or group.generation.protocol_type != CONSUMER:
            return
        yield from self.offsets.expired(
            group.group_id, group.subscribed, since_ms, retention_ms, wall_ms
        )

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
        group = self.groups.get(record.key)
        if record.value is None:
            if group is not None:
                self.groups.drop(group)
            return
        if group is None:
            group = ClassicGroup(record.key)
            self.groups.add(group)
        self.rebalance_count += group.replay(record.value)
        self.groups.update_size(group)

    def records(self) -> Iterator[GroupRecord | None]:
        """Yield the records of this state, each as of the time it is yielded; None means that the
        rest has to wait for the end of a transaction."""
        for group_id in self.groups.ids():
            group = self.groups.get(group_id)
            if group is not None and group.recorded is not None:
                yield group_record(group_id, group.recorded)
        yield from self.offsets.records()

    def loaded(self, now_ms: int, wall_ms: int = NO_TIME) -> None:
        """Begin after the last record of the log was replayed."""
        draft = self._draft(now_ms, wall_ms)
        for group in self.groups:
            group.restore(draft)
            self.groups.update_size(group)
        self.commit_count = 0
        draft.set_deadline(DeadlineKey(RETENTION), self.limits.retention_check_ms)

    def reconfigure(self, limits: GroupLimits, now_ms: int) -> None:
        """Apply new limits; a new check interval counts from now."""
        before, self.limits = self.limits, limits
        if limits.retention_check_ms != before.retention_check_ms and self._sweep is None:
            self._deadlines.set(DeadlineKey(RETENTION), now_ms + limits.retention_check_ms)

    @property
    def counts(self) -> dict[str, int]:
        """Metrics: the number of groups by state, of all groups, and of offsets."""
        groups = Counter(group.state for group in self._all())
        states = {str(state): groups[state] for state in GroupState if state is not GroupState.DEAD}
        return {**states, "groups": sum(states.values()), "offsets": self.offsets.count}

    # -- internals ---------------------------------------------------------------------------

    def _draft(self, now_ms: int, wall_ms: int) -> DecisionDraft:
        return DecisionDraft(now_ms, wall_ms, self.limits, self._deadlines, self._waiting)

    def _decided(
        self, draft: DecisionDraft, token: Any, group: ClassicGroup | None = None
    ) -> Decision:
        if group is not None:
            self.groups.update_size(group, is_recording=bool(draft.records))
        self._fail_unwritten()
        if draft.records:
            self._unwritten = UnwrittenDecision(token, draft.replies)
            draft.set_deadline(DeadlineKey(REFUSED), 0)
        return DecisionResult(draft.replies, draft.records)

    def _fail_unwritten(self) -> None:
        """Mark the replies of a decision that was not written for refusal; its own request has
        failed."""
        if self._unwritten is not None:
            token, replies = self._unwritten
            self._refused += [reply for reply in replies if reply.token is not token]
            self._unwritten = None

    def _known(self, group_id: str) -> ClassicGroup:
        """Return the group of an admin request; it may consist of committed offsets only."""
        group = self.groups.get(group_id)
        if group is None:
            if group_id not in self.offsets:
                raise GroupIdNotFound(f"Group {group_id} does not exist.")
            group = ClassicGroup(group_id)
        return group

    def _all(self) -> Iterator[ClassicGroup]:
        yield from self.groups
        for group_id in self.offsets:
            if group_id not in self.groups:
                yield ClassicGroup(group_id)

    def _delete_group(self, group: ClassicGroup, draft: DecisionDraft) -> None:
        if group.recorded is not None:
            draft.records.append(group_record(group.group_id, None))
        else:
            self.groups.drop(group)


def _check_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("The group id is empty.")
    _check_texts(group_id)


def _check_texts(*texts: str | None) -> None:
    if not all(text is None or is_storable(text) for text in texts):
        raise InvalidRequest(f"A string in a group request has at most {TEXT_SIZE_MAX} bytes.")
