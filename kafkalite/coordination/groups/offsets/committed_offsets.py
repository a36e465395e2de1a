"""CommittedOffsets: the committed offsets of all groups of one coordinator.

They change in replay only.  Offsets committed in transactions are pending until the transaction
ends (pending_offsets.py).  An offset is kept until it or its topic is deleted, or until it expires
(KIP-211): offsets.retention.minutes after the group became empty; after each commit if the group is
known by its commits only; and in an active group only if the topic is no longer subscribed.  One
with a pending offset does not expire.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from kafkalite.coordination.groups.offsets.pending_offsets import PendingOffsets
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.group_records import (
    NO_EPOCH,
    NO_TIME,
    GroupRecord,
    OffsetCommitValue,
    OffsetKey,
    offset_record,
)

OFFSET_SIZE = 400
"""Approximate memory use of a committed offset besides its metadata."""
GROUP_SIZE = 500
"""Approximate memory use of a group besides its id."""


class CommittedOffset(NamedTuple):
    """A committed offset as returned to clients."""

    offset: int
    leader_epoch: int
    metadata: str


UNSTABLE = CommittedOffset(-1, NO_EPOCH, "")
"""In place of an offset that a transaction may change, for clients that require a stable one."""


def _may_be_one(topic_id: bytes, other_id: bytes) -> bool:
    return topic_id == other_id or NO_ID in (topic_id, other_id)


class CommittedOffsets:
    """The committed offsets of all groups."""

    def __init__(self) -> None:
        self.count = 0
        self.pending = PendingOffsets()
        self._size = 0
        self._groups: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups or self.pending.has_group(group_id)

    def __iter__(self) -> Iterator[str]:
        """Return the groups that have offsets, committed or pending."""
        yield from self._groups
        for group_id in self.pending.groups():
            if group_id not in self._groups:
                yield group_id

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return self._size + self.pending.size

    def count_of(self, group_id: str) -> int:
        """Return the number of a group's committed offsets."""
        return sum(map(len, self._groups.get(group_id, {}).values()))

    def partitions(self, group_id: str) -> dict[str, list[int]]:
        """Return the partitions of which a group has committed offsets, by topic."""
        return {topic: [*indexes] for topic, indexes in self._groups.get(group_id, {}).items()}

    def fetch(
        self,
        group_id: str,
        wanted: Mapping[str, Iterable[int]] | None,
        id_of: Callable[[str], bytes],
        *,
        require_stable: bool = False,
    ) -> dict[str, dict[int, CommittedOffset]]:
        """Return the committed offsets among `wanted`, or all if it is None.

        Offsets with another topic id were committed to a deleted topic of the same name and are
        skipped.  With `require_stable`, one with a pending offset is UNSTABLE.
        """
        topics = self._groups.get(group_id, {})
        unstable = self.pending if require_stable and self.pending.has_group(group_id) else None
        found: dict[str, dict[int, CommittedOffset]] = {}
        for topic in topics if wanted is None else wanted:
            partitions = topics.get(topic, {})
            topic_id = id_of(topic)
            requested = {
                index: CommittedOffset(*partitions[index][:3])
                for index in (partitions if wanted is None else wanted[topic])
                if index in partitions and _may_be_one(topic_id, partitions[index].topic_id)
            }
            if unstable is not None:
                for index in partitions if wanted is None else wanted[topic]:
                    if OffsetKey(group_id, topic, index) in unstable:
                        requested[index] = UNSTABLE
            if requested:
                found[topic] = requested
        return found

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether a group has an offset of this partition, committed or pending."""
        return (
            partition in self._groups.get(group_id, {}).get(topic, {})
            or OffsetKey(group_id, topic, partition) in self.pending
        )

    # -- deletion and expiration -------------------------------------------------------------

    def tombstones(self, group_id: str) -> Iterator[GroupRecord]:
        """Yield the tombstones of all offsets of a group."""
        for topic, partitions in self._groups.get(group_id, {}).items():
            for index in partitions:
                yield offset_record(OffsetKey(group_id, topic, index), None)
        for key in self.pending.of_group(group_id):
            if key.partition not in self._groups.get(group_id, {}).get(key.topic, ()):
                yield offset_record(key, None)

    def topic_tombstones(
        self, topics: Mapping[str, Collection[bytes]]
    ) -> Iterator[GroupRecord | None]:
        """Yield the tombstones of all groups' offsets of these topics, and a None per group
        examined.

        Topics are given by name and ids, because a name may have been deleted more than once.
        Offsets may change between two steps: what is committed meanwhile to a topic recreated under
        its name stays.
        """
        for group_id in [*self]:
            yield None
            for key in self.pending.of_group(group_id):
                is_committed = key.partition in self._groups.get(group_id, {}).get(key.topic, ())
                if (
                    key.topic in topics
                    and not is_committed
                    and any(
                        _may_be_one(deleted_id, topic_id)
                        for topic_id in self.pending.topic_ids(key)
                        for deleted_id in topics[key.topic]
                    )
                ):
                    yield offset_record(key, None)
            for topic in topics.keys() & self._groups.get(group_id, {}).keys():
                for index in [*self._groups.get(group_id, {}).get(topic, ())]:
                    offset = self._groups.get(group_id, {}).get(topic, {}).get(index)
                    if offset is not None and any(
                        _may_be_one(offset.topic_id, topic_id) for topic_id in topics[topic]
                    ):
                        yield offset_record(OffsetKey(group_id, topic, index), None)

    def expired(
        self,
        group_id: str,
        spared: Container[str],
        since_ms: int,
        retention_ms: int,
        wall_ms: int,
    ) -> Iterator[GroupRecord]:
        """Yield the tombstones of a group's expired offsets.

        The topics in `spared` are skipped.  Retention counts from `since_ms`, or if that is
        NO_TIME, from each commit.
        """
        for topic, partitions in self._groups.get(group_id, {}).items():
            if topic in spared:
                continue
            for index, offset in partitions.items():
                if self.pending and OffsetKey(group_id, topic, index) in self.pending:
                    continue
                begin_ms = offset.commit_timestamp if since_ms == NO_TIME else since_ms
                end_ms = begin_ms + retention_ms
                if offset.expire_timestamp != NO_TIME:
                    end_ms = offset.expire_timestamp
                if wall_ms >= end_ms:
                    yield offset_record(OffsetKey(group_id, topic, index), None)

    # -- replay ------------------------------------------------------------------------------

    def replay(self, key: OffsetKey, offset: OffsetCommitValue | None) -> None:
        """Apply a commit or a tombstone."""
        if offset is None:
            self.pending.drop(key)
            self._remove(*key)
            return
        if self.pending:
            self.pending.replace(key)
        self._commit(key, offset)

    def replay_pending(
        self, producer_id: int, key: OffsetKey, offset: OffsetCommitValue | None
    ) -> None:
        """Apply a commit in a producer's transaction; a tombstone takes effect at once."""
        if offset is None:
            self.replay(key, None)
        else:
            self.pending.add(producer_id, key, offset)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit or drop the pending offsets of a producer."""
        for key, offset in self.pending.end(producer_id, is_commit=is_commit):
            self._commit(key, offset)

    def _commit(self, key: OffsetKey, offset: OffsetCommitValue) -> None:
        group_id, topic, index = key
        if group_id not in self._groups:
            self._groups[group_id] = {}
            self._size += GROUP_SIZE + len(group_id)
        partitions = self._groups[group_id].setdefault(topic, {})
        before = partitions.get(index)
        if before is None:
            self.count += 1
            self._size += OFFSET_SIZE
        else:
            self._size -= len(before.metadata)
        self._size += len(offset.metadata)
        partitions[index] = offset

    def _remove(self, group_id: str, topic: str, index: int) -> None:
        topics = self._groups.get(group_id, {})
        before = topics.get(topic, {}).pop(index, None)
        if before is None:
            return
        self.count -= 1
        self._size -= OFFSET_SIZE + len(before.metadata)
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._groups[group_id]
            self._size -= GROUP_SIZE + len(group_id)
