"""LedSharePartitions: the share partitions of the partitions that a node leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kafkalite.broker.replica.purgatory import SLICE
from kafkalite.broker.share.led_share_partition import (
    RANGES_PER_UNIT,
    LedSharePartition,
    ShareServices,
)
from kafkalite.protocol.schemas.share_records import SharePartitionKey

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.coordination.share.share_partition import SharePartition


class LedSharePartitions:
    """The share partitions by group, topic id and partition; loaded when they are first used."""

    def __init__(self, services: ShareServices) -> None:
        self._services = services
        self._groups: dict[str, dict[SharePartitionKey, LedSharePartition]] = {}
        self._by_partition: dict[Partition, set[LedSharePartition]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def open(self, group_id: str, partition: Partition) -> LedSharePartition:
        """Return a share partition; begin to load it if it is not loaded."""
        key = SharePartitionKey(group_id, partition.topic_id, partition.index)
        shares = self._groups.setdefault(group_id, {})
        share = shares.get(key)
        if share is not None and (share.partition is not partition or not share.is_usable):
            self._close(share)
            share = None
        if share is None:
            share = shares[key] = LedSharePartition(key, partition, self._services)
            self._by_partition.setdefault(partition, set()).add(share)
            share.load()
        return share

    def find(self, group_id: str, topic_id: bytes, index: int) -> LedSharePartition | None:
        """Return a share partition, or None if it is not loaded."""
        shares = self._groups.get(group_id)
        return shares.get(SharePartitionKey(group_id, topic_id, index)) if shares else None

    def records_of(self, key: SharePartitionKey) -> SharePartition | None:
        """Return the records in flight of a share partition, or None if it is not loaded."""
        share = self.find(*key)
        return share.records if share is not None else None

    def release(
        self, member_id: str, acquired: Sequence[LedSharePartition], released: Callable[[], None]
    ) -> None:
        """Release, in steps, the records that a member has acquired; then call `released`.

        The first step is one of the purgatory, too: thousands of sessions may end in one tick.
        """
        for share in acquired:
            share.leaving.add(member_id)
        self._services.purgatory.add(self._release(acquired, released))

    def _release(
        self, acquired: Sequence[LedSharePartition], released: Callable[[], None]
    ) -> Iterator[int]:
        count = 0
        for share in acquired:
            # A fetch or an acknowledgement may have released them meanwhile.
            count += 1 + share.release_leaving()
            self._services.purgatory.wake(share)
            if count >= SLICE:
                yield count // RANGES_PER_UNIT
                count = 0
        released()
        if count >= RANGES_PER_UNIT:
            yield count // RANGES_PER_UNIT

    def drop(self, group_id: str) -> None:
        """Drop the share partitions of a group that has no sessions here any more."""
        for share in self._groups.pop(group_id, {}).values():
            self._close(share)

    def drop_partition(self, partition: Partition) -> None:
        """Drop the share partitions of a partition that is no longer led here."""
        for share in [*self._by_partition.get(partition, ())]:
            self._close(share)
            shares = self._groups[share.key.group_id]
            del shares[share.key]
            if not shares:
                del self._groups[share.key.group_id]

    def _close(self, share: LedSharePartition) -> None:
        share.close()
        shares = self._by_partition[share.partition]
        shares.remove(share)
        if not shares:
            del self._by_partition[share.partition]
