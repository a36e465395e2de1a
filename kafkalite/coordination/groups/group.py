"""Group: what a GroupCoordinator needs of a group of any kind.

    classic      JoinGroup and SyncGroup: the members agree on the assignment (classic_group.py)
    consumer     ConsumerGroupHeartbeat: the coordinator assigns (consumer_group.py)
    share        ShareGroupHeartbeat: members share partitions (share_group.py)

The kinds are separate machines; they have nothing in common but this interface and the committed
offsets, which belong to a group id whatever its kind.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from enum import StrEnum
from typing import Any, Protocol

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.decision_draft import DeadlineKey, DecisionDraft
from kafkalite.coordination.groups.offsets.commit_records import OffsetToCommit
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.group_records import GroupRecord

FIRST_EPOCH = 1
"""Group and assignment epoch of a new consumer or share group; its first member gets the next."""
LEAVE_EPOCH = -1
"""The member epoch of a request that leaves the group."""
LEAVE_STATIC_EPOCH = -2
"""The member epoch of a static member that has left temporarily, and of its leave request."""


class GroupKind(StrEnum):
    """The type of a group, as ListGroups names it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class GroupState(StrEnum):
    """The state of a group; a Dead group does not exist."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Group(Protocol):
    """One group."""

    group_id: str

    @property
    def kind(self) -> GroupKind:
        """The type of the group."""

    @property
    def state(self) -> GroupState:
        """The state that listings and descriptions show."""

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""

    @property
    def idle(self) -> bool:
        """True if the group has no members and none is about to join."""

    @property
    def is_recorded(self) -> bool:
        """True if the log has a record of the group."""

    @property
    def subscribed(self) -> Container[str]:
        """The topics that the members consume, as far as the coordinator knows."""

    @property
    def offsets_expire_since_ms(self) -> int | None:
        """Time from which the retention of offsets counts: NO_TIME is from each commit, None is
        that no offset expires now."""

    def check_offset_delete(self) -> None:
        """Raise an error unless offsets of topics that are not subscribed can be deleted now."""

    def check_commit(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        version: int,
        draft: DecisionDraft,
    ) -> None:
        """Raise an error unless the member of an OffsetCommit may commit these offsets now."""

    def check_transactional_commit(
        self, request: Fields, commits: Sequence[OffsetToCommit]
    ) -> None:
        """Raise an error unless these offsets may be committed in a transaction now (KIP-447)."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise an error unless a member may fetch offsets now; None and -1 are no member."""

    def tombstones(self) -> Iterator[GroupRecord]:
        """Yield the records that delete the group, without its offsets."""

    def replay(self, record: GroupRecord) -> bool:
        """Apply a record of the group, not of an offset; return whether it completed a
        rebalance."""

    def drop_deadlines(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop the deadlines of a group that is removed."""

    def list_entry(self) -> dict[str, Any]:
        """Return the group as in a ListGroups response."""
