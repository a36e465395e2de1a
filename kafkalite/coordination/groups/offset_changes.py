"""OffsetChanges: the requests that commit and delete offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.decision_draft import DecisionDraft
from kafkalite.coordination.groups.group import Group
from kafkalite.coordination.groups.group_table import GroupTable
from kafkalite.coordination.groups.offsets.commit_records import (
    CommitRecords,
    OffsetToCommit,
    commit_records,
)
from kafkalite.coordination.groups.offsets.committed_offsets import CommittedOffsets
from kafkalite.coordination.groups.request_checks import check_group_id, check_texts
from kafkalite.coordination.machine import TransactionalRecord
from kafkalite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidProducerIdMapping,
    UnknownMemberId,
)
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.group_records import (
    NO_TIME,
    OffsetKey,
    offset_record,
)

UNKNOWN_GROUP_SINCE = 9
"""The OffsetCommit version from which a group can be unknown (KIP-848)."""
UNKNOWN_GROUP_IN_TRANSACTION_SINCE = 6
"""The TxnOffsetCommit version from which a group can be unknown."""

TIME_MAX = (1 << 63) - 1


class OffsetChanges:
    """The offsets of the groups of one coordinator, as requests change them.

    Each method responds with the error code of each (topic, partition), as `codes`.
    """

    def __init__(self, groups: GroupTable, offsets: CommittedOffsets) -> None:
        self._groups = groups
        self._offsets = offsets

    def commit(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        version: int,
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        """Commit offsets outside of transactions."""
        group_id = request.group_id
        check_texts(group_id)
        group = self._groups.get(group_id)
        if group is not None:
            group.check_commit(request, commits, version, draft)
        elif request.generation_id_or_member_epoch >= 0:
            self._refuse_member(group_id, version >= UNKNOWN_GROUP_SINCE)
        expire_ms = NO_TIME
        if request.retention_time_ms != NO_TIME:
            expire_ms = min(max(draft.wall_ms + request.retention_time_ms, 0), TIME_MAX)
        codes, records = self._records(group_id, commits, draft, expire_ms)
        draft.records += records
        draft.complete(token, {"codes": codes})

    def commit_transactional(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        version: int,
        guard: Any,
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        """Commit offsets that are pending until the transaction of the producer ends."""
        group_id = request.group_id
        check_group_id(group_id)
        if min(request.producer_id, request.producer_epoch) < 0:
            raise InvalidProducerIdMapping("No transaction has this producer id and epoch.")
        group = self._groups.get(group_id)
        if group is not None:
            group.check_transactional_commit(request, commits)
        elif request.generation_id_or_member_epoch >= 0:
            self._refuse_member(group_id, version >= UNKNOWN_GROUP_IN_TRANSACTION_SINCE)
        codes, records = self._records(group_id, commits, draft, NO_TIME, request.producer_id)
        producer = request.producer_id, request.producer_epoch, guard
        draft.records += [TransactionalRecord(record, *producer) for record in records]
        draft.complete(token, {"codes": codes})

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise an error unless a member may fetch offsets now; any may of an unknown group."""
        group = self._groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)

    def _refuse_member(self, group_id: str, knows_unknown_groups: bool) -> NoReturn:
        """Raise the error of a commit with a generation for a group that has had no members."""
        if group_id in self._offsets:
            raise UnknownMemberId()
        raise GroupIdNotFound() if knows_unknown_groups else IllegalGeneration()

    def _records(
        self,
        group_id: str,
        commits: Sequence[OffsetToCommit],
        draft: DecisionDraft,
        expire_ms: int,
        producer_id: int | None = None,
    ) -> CommitRecords:
        metadata_size_max = draft.limits.metadata_size_max
        return commit_records(
            self._offsets,
            group_id,
            commits,
            metadata_size_max,
            draft.wall_ms,
            expire_ms,
            producer_id,
        )

    def delete(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        """Delete offsets of topics that the group does not consume."""
        check_group_id(group_id)
        group = self.known(group_id)
        group.check_offset_delete()
        codes = {}
        subscribed = group.subscribed
        for topic, index in partitions:
            codes[topic, index] = 0
            if topic in subscribed:
                codes[topic, index] = GroupSubscribedToTopic.code
            elif self._offsets.has(group_id, topic, index):
                draft.records.append(offset_record(OffsetKey(group_id, topic, index), None))
        draft.complete(token, {"codes": codes})

    def known(self, group_id: str) -> Group:
        """Return the group of an admin request; it may consist of committed offsets only."""
        group = self._groups.get(group_id)
        if group is None:
            if group_id not in self._offsets:
                raise GroupIdNotFound(f"Group {group_id} does not exist.")
            group = ClassicGroup(group_id)
        return group
