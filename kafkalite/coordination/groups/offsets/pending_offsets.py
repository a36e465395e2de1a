"""PendingOffsets: offsets committed in transactions whose outcome is not known yet.

    record of a transaction      the offset is pending, under its producer
    commit marker                it becomes the committed offset, unless a later record has replaced
                                 it: an OffsetCommit outside of transactions, or an offset of
                                 another transaction that has committed
    abort marker                 it is dropped
    tombstone                    drops the pending offsets of its partition

Records are replayed in the order of the log, so a later record has a higher log offset.  A replaced
offset keeps its partition unstable until its transaction ends, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkalite.protocol.schemas.group_records import OffsetCommitValue, OffsetKey

PENDING_SIZE = 500
"""Approximate memory use of a pending offset besides its metadata."""

PRODUCER_COUNT_MAX = 20_000
"""Number of pending offsets from which a producer gets no more: its marker ends them in one tick of
the event loop, at about a microsecond each."""
COUNT_MAX = 200_000
"""The same for all producers: they may all have offsets of the same partitions, and a commit marker
replaces the earlier ones."""

REPLACED = None
"""In place of a pending offset that a later record has replaced."""


class PendingOffsets:
    """The pending offsets of all groups of one coordinator."""

    def __init__(self) -> None:
        self.size = 0
        """Approximate memory use in bytes."""
        self._count = 0
        self._groups: dict[str, dict[OffsetKey, dict[int, OffsetCommitValue | None]]] = {}
        """Each partition's offsets by producer id, in the order of their records."""
        self._producers: dict[int, dict[OffsetKey, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __contains__(self, key: OffsetKey) -> bool:
        """Return whether any producer has a pending offset of this partition."""
        return key in self._groups.get(key.group, ())

    def groups(self) -> Iterator[str]:
        """Yield the groups with pending offsets."""
        return iter(self._groups)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[OffsetKey]:
        """Return the partitions of which a group has pending offsets."""
        return [*self._groups.get(group_id, ())]

    def may_add(self, producer_id: int, key: OffsetKey) -> bool:
        """Return whether a producer may add an offset of this partition, or has one."""
        keys = self._producers.get(producer_id, ())
        is_full = len(keys) >= PRODUCER_COUNT_MAX or self._count >= COUNT_MAX
        return not is_full or key in keys

    def topic_ids(self, key: OffsetKey) -> Iterator[bytes]:
        """Yield the topic ids of a partition's pending offsets."""
        for value in self._groups.get(key.group, {}).get(key, {}).values():
            if value is not REPLACED:
                yield value.topic_id

    # -- replay ------------------------------------------------------------------------------

    def add(self, producer_id: int, key: OffsetKey, value: OffsetCommitValue) -> None:
        """Add an offset of a transaction; it replaces an earlier one of the same transaction."""
        offsets = self._groups.setdefault(key.group, {}).setdefault(key, {})
        self._remove_offset(offsets, producer_id)
        offsets[producer_id] = value
        self.size += PENDING_SIZE + len(value.metadata)
        self._count += 1
        self._producers.setdefault(producer_id, {})[key] = None

    def replace(self, key: OffsetKey) -> None:
        """Note an offset that was committed later than all pending ones of its partition."""
        offsets = self._groups.get(key.group, {}).get(key, {})
        for producer_id in offsets:
            self._replace_offset(offsets, producer_id)

    def drop(self, key: OffsetKey) -> None:
        """Drop the pending offsets of a partition, at its tombstone."""
        for producer_id in [*self._groups.get(key.group, {}).get(key, ())]:
            self._remove(producer_id, key)
            self._forget(producer_id, key)

    def end(
        self, producer_id: int, *, is_commit: bool
    ) -> Iterator[tuple[OffsetKey, OffsetCommitValue]]:
        """End a producer's transaction; yield the offsets that are committed by it."""
        for key in self._producers.pop(producer_id, ()):
            offsets = self._groups[key.group][key]
            value = offsets[producer_id]
            if is_commit and value is not REPLACED:
                for earlier in offsets:
                    if earlier == producer_id:
                        break
                    self._replace_offset(offsets, earlier)
                yield key, value
            self._remove(producer_id, key)

    def _remove(self, producer_id: int, key: OffsetKey) -> None:
        partitions = self._groups[key.group]
        self._remove_offset(partitions[key], producer_id)
        if not partitions[key]:
            del partitions[key]
        if not partitions:
            del self._groups[key.group]

    def _forget(self, producer_id: int, key: OffsetKey) -> None:
        keys = self._producers[producer_id]
        del keys[key]
        if not keys:
            del self._producers[producer_id]

    def _remove_offset(
        self, offsets: dict[int, OffsetCommitValue | None], producer_id: int
    ) -> None:
        if producer_id in offsets:
            self._replace_offset(offsets, producer_id)
            del offsets[producer_id]
            self.size -= PENDING_SIZE
            self._count -= 1

    def _replace_offset(
        self, offsets: dict[int, OffsetCommitValue | None], producer_id: int
    ) -> None:
        value = offsets[producer_id]
        if value is not REPLACED:
            self.size -= len(value.metadata)
            offsets[producer_id] = REPLACED
