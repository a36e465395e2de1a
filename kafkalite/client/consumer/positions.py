"""Where each partition is read: offsets, turns, and what is known of its leader.  No I/O.

    given        fetched ahead          end
      │ offset     │ ahead                │ high watermark
      ▼            ▼                      ▼
    ──[ decoded, waiting ][ asked for ]───────▶

`offset` is the next record that the caller is given, and what a commit says.  `ahead` is the next
that is asked for.  A seek, a pause or a reset begins a new *turn*: whatever was fetched or asked
for in an earlier one is nobody's and is dropped wherever it is found.

A Position without an offset has a `start` instead, which its owner resolves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kafkalite.client.net.topology import NOBODY, TopicPartition
from kafkalite.ids import NO_ID

COMMITTED = -100
NOWHERE = -101
"""Starts of ours beside a time and ListOffsets' own: where the group's committed offset is; and
none, which is an error to be told."""

NO_EPOCH = -1
NOT_OVERTAKEN = -1


class Position:
    """One partition, and how far it has been read."""

    __slots__ = (
        "ahead",
        "leader",
        "leader_epoch",
        "offset",
        "overtaken_at",
        "partition",
        "paused",
        "short_at",
        "start",
        "told",
        "topic_id",
        "turn",
    )

    def __init__(self, partition: TopicPartition, start: int) -> None:
        self.partition = partition
        self.start = start
        self.offset: int | None = None
        self.ahead = -1
        self.turn = 0
        self.paused = False
        self.overtaken_at = NOT_OVERTAKEN
        """The offset that was not there any more, until it is known where to go on."""
        self.told = False
        """Whether the metadata has ever told of it."""
        self.topic_id = NO_ID
        self.leader = NOBODY
        self.leader_epoch = NO_EPOCH
        self.short_at = -1
        """Where less was to be read than granted, the last time."""

    def __repr__(self) -> str:
        topic, partition = self.partition
        return f"<{topic}-{partition} at {self.offset}, fetched up to {self.ahead}>"

    @property
    def fetchable(self) -> bool:
        """Whether its next records may be asked for now."""
        return self.offset is not None and not self.paused and self.leader != NOBODY

    def seek(self, offset: int) -> None:
        """Go on from here, whatever was fetched."""
        self.offset = self.ahead = offset
        self.overtaken_at = NOT_OVERTAKEN
        self.begin_turn()

    def restart(self, start: int) -> None:
        """Go on from where `start` says, once that is known."""
        self.offset, self.ahead, self.start = None, -1, start
        self.overtaken_at = NOT_OVERTAKEN
        self.begin_turn()

    def rewind(self) -> None:
        """Drop what was fetched ahead; it is asked for again."""
        if self.offset is not None:
            self.ahead = self.offset
        self.begin_turn()

    def begin_turn(self) -> None:
        self.turn += 1

    def lose_leader(self) -> None:
        """Nobody is asked for it before the metadata has been."""
        self.leader = NOBODY


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
            raise ValueError(f"{shown(partition)} is not assigned to this consumer")
        return found

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(partition.topic for partition in self.positions))

    def assign(self, partitions: Iterable[TopicPartition], start: int) -> None:
        """Have exactly these; those that were there before keep their place."""
        kept = self.positions
        self.positions = {}
        for partition in partitions:
            known = kept.pop(partition) if partition in kept else self.positions.get(partition)
            self.positions[partition] = known or Position(partition, start)
        for position in kept.values():
            position.begin_turn()

    def add(self, partition: TopicPartition, start: int) -> Position:
        position = self.positions[partition] = Position(partition, start)
        return position

    def drop(self, partition: TopicPartition) -> None:
        self.positions.pop(partition).begin_turn()

    def unresolved(self) -> list[Position]:
        """Those whose first offset must be asked for."""
        return [p for p in self if p.offset is None]


def shown(partition: TopicPartition) -> str:
    """A partition as sentences name it, and as its directory is called."""
    return f"{partition.topic}-{partition.partition}"
