"""Positions: offsets, epochs and leaders of the partitions that are read.  No I/O.

    returned     fetched                end
      │ offset     │ ahead                │ high watermark
      ▼            ▼                      ▼
    ──[ decoded, waiting ][ in flight ]───────▶

`offset` is the next record to return, and the offset that a commit stores.  `ahead` is the next
record to request.  A seek, pause or reset starts a new epoch of the position: data that was fetched
or requested in an earlier epoch is stale, and dropped wherever it is found.

A Position without an offset has a `start` instead, which its owner resolves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kafkalite.client.net.topology import NO_LEADER, TopicPartition, partition_name
from kafkalite.ids import NO_ID

COMMITTED = -100
NO_START = -101
"""Values of `start` besides a timestamp and ListOffsets' own: the group's committed offset, and
none, which is an error.
"""

NO_EPOCH = -1
NOT_OUT_OF_RANGE = -1


class Position:
    """Read position of one partition."""

    __slots__ = (
        "ahead",
        "committed",
        "leader",
        "leader_epoch",
        "offset",
        "out_of_range_at",
        "partition",
        "paused",
        "short_at",
        "start",
        "is_known",
        "topic_id",
        "epoch",
    )

    def __init__(self, partition: TopicPartition, start: int) -> None:
        self.partition = partition
        self.start = start
        self.offset: int | None = None
        self.ahead = -1
        self.committed: int | None = None
        """The offset that was committed last, or fetched as committed, as far as it is known."""
        self.epoch = 0
        self.paused = False
        self.out_of_range_at = NOT_OUT_OF_RANGE
        """The offset that was out of range, until the offset to continue at is known."""
        self.is_known = False
        """True once metadata has contained this partition."""
        self.topic_id = NO_ID
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.short_at = -1
        """Offset of the last short read of a grant."""

    def __repr__(self) -> str:
        topic, partition = self.partition
        return f"<{topic}-{partition} at {self.offset}, fetched up to {self.ahead}>"

    @property
    def is_fetchable(self) -> bool:
        """True if its next records may be requested now."""
        return self.offset is not None and not self.paused and self.leader != NO_LEADER

    def seek(self, offset: int) -> None:
        """Continue at this offset and drop what was fetched."""
        self.offset = self.ahead = offset
        self.out_of_range_at = NOT_OUT_OF_RANGE
        self.start_epoch()

    def restart(self, start: int) -> None:
        """Continue at the offset that `start` stands for, once that is resolved."""
        self.offset, self.ahead, self.start = None, -1, start
        self.out_of_range_at = NOT_OUT_OF_RANGE
        self.start_epoch()

    def rewind(self) -> None:
        """Drop what was fetched ahead, to be fetched again."""
        if self.offset is not None:
            self.ahead = self.offset
        self.start_epoch()

    def start_epoch(self) -> None:
        """Start a new epoch: everything fetched or requested before is stale."""
        self.epoch += 1

    def lose_leader(self) -> None:
        """Stop fetching until metadata gives a leader."""
        self.leader = NO_LEADER


class BoundedPosition(Position):
    """A position that is not fetched at or after an end offset."""

    __slots__ = ("end",)

    def __init__(self, partition: TopicPartition, start: int, end: int) -> None:
        super().__init__(partition, NO_START)
        self.end = end
        self.seek(start)

    @property
    def is_fetchable(self) -> bool:
        return self.ahead < self.end and super().is_fetchable


class Assignment:
    """The partitions that are read, each with its Position."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, Position] = {}

    def __iter__(self) -> Iterator[Position]:
        return iter(list(self.positions.values()))

    def __len__(self) -> int:
        return len(self.positions)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self.positions

    def __getitem__(self, partition: TopicPartition) -> Position:
        found = self.positions.get(partition)
        if found is None:
            raise ValueError(
                f"{partition_name(partition)} is not assigned to this consumer; assign() it first"
            )
        return found

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(partition.topic for partition in self.positions))

    def assign(self, partitions: Iterable[TopicPartition], start: int) -> None:
        """Read exactly these partitions; keep the positions of those that are already read."""
        kept = self.positions
        self.positions = {}
        for partition in partitions:
            known = kept.pop(partition) if partition in kept else self.positions.get(partition)
            self.positions[partition] = known or Position(partition, start)
        for position in kept.values():
            position.start_epoch()

    def put(self, position: Position) -> None:
        """Read a partition from a given position."""
        self.positions[position.partition] = position

    def add(self, partition: TopicPartition, start: int) -> Position:
        position = self.positions[partition] = Position(partition, start)
        return position

    def drop(self, partition: TopicPartition) -> None:
        self.positions.pop(partition).start_epoch()

    def unresolved(self) -> list[Position]:
        """Return the positions whose first offset is not known."""
        return [p for p in self if p.offset is None]
