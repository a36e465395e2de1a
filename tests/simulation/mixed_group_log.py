"""The state of a group by its log alone, for a simulation to compare with the coordinator.

owners      the partitions of each member of a consumer group, assigned or to be revoked
commit      the error code of an OffsetCommit, by the epochs in the log
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafkalite.protocol.schemas import consumer_group_records, group_records

CLASSIC, CONSUMER = "classic", "consumer"
UNKNOWN_MEMBER, STALE_EPOCH, STALE_GENERATION = 25, 113, 22

Partition = tuple[bytes, int]


class Owned(NamedTuple):
    """A member's epoch, and the epoch in which it got each of its partitions."""

    epoch: int = 0
    partitions: Mapping[Partition, int] = {}


class GroupLog:
    """One group, from the records in its log."""

    def __init__(self) -> None:
        self.kind = ""
        self.epoch = 0
        self.owned: dict[str, Owned] = {}
        self.is_classic: dict[str, bool] = {}
        """The members of a consumer group; true for those of the classic protocol."""
        self.generation = -1
        self.generation_members: set[str] = set()
        self.count = 0
        """Number of records that were read."""

    def read(self, log: list[tuple[bytes, bytes | None]]) -> None:
        """Apply the records that are new, and check those that may not follow the others."""
        for entry in log[self.count :]:
            record = group_records.read(*entry) if entry[0] else None
            if record is not None:
                self.apply(record.kind, record.key, record.value)
        self.count = len(log)
        self.check_owners()

    def apply(self, kind: str, key: Any, value: Any) -> None:
        match kind:
            case group_records.GROUP_METADATA if value is not None:
                self.kind, self.generation = CLASSIC, value["generation"]
                self.generation_members = {each["member_id"] for each in value["members"]}
            case group_records.GROUP_METADATA:
                if self.kind == CLASSIC:
                    self.kind = ""
                self.generation, self.generation_members = -1, set()
            case consumer_group_records.CONSUMER_GROUP if value is not None:
                assert self.kind != CONSUMER or value["epoch"] > self.epoch, "an epoch fell"
                self.kind, self.epoch = CONSUMER, value["epoch"]
            case consumer_group_records.CONSUMER_GROUP:
                assert not self.is_classic, f"{[*self.is_classic]} are members of no group"
                if self.kind == CONSUMER:
                    self.kind = ""
            case consumer_group_records.CONSUMER_MEMBER if value is not None:
                self.is_classic[key[1]] = value["classic_member_metadata"] is not None
            case consumer_group_records.CONSUMER_MEMBER:
                assert key[1] not in self.owned, f"{key[1]} is removed before its assignment"
                self.is_classic.pop(key[1], None)
            case consumer_group_records.CURRENT_ASSIGNMENT if value is not None:
                self.owned[key[1]] = owned_in(value)
            case consumer_group_records.CURRENT_ASSIGNMENT:
                self.owned.pop(key[1], None)

    def check_owners(self) -> None:
        owners: dict[Partition, str] = {}
        for member_id, owned in self.owned.items():
            for partition in owned.partitions:
                other = owners.setdefault(partition, member_id)
                assert other == member_id, f"{other} and {member_id} own {partition}"

    def commit(self, member_id: str, epoch: int, partitions: Iterable[Partition]) -> int:
        """Return the error code of a commit to a consumer group, 0 if it is accepted."""
        assert self.kind == CONSUMER
        if epoch < 0 and not self.is_classic:
            return 0
        if member_id not in self.is_classic:
            return UNKNOWN_MEMBER
        owned = self.owned.get(member_id, Owned())
        is_accepted = epoch == owned.epoch or (
            epoch < owned.epoch
            and all(
                partition in owned.partitions and epoch >= owned.partitions[partition]
                for partition in partitions
            )
        )
        if is_accepted:
            return 0
        return STALE_GENERATION if self.is_classic[member_id] else STALE_EPOCH


def owned_in(value: Mapping[str, Any]) -> Owned:
    """Return what a member owns by the record of its current assignment."""
    partitions = {}
    for each in (*value["assigned_partitions"], *value["partitions_pending_revocation"]):
        for index, epoch in zip(each["partitions"], each["assignment_epochs"], strict=True):
            partitions[each["topic_id"], index] = epoch
    return Owned(value["member_epoch"], partitions)
