"""Consumer offsets: log offsets of partitions, and committed offsets of a consumer's group.

Each method holds the consumer's lock during its requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkalite.client.consumer.fetch_buffer import FetchBuffer
from kafkalite.client.consumer.group_reading import commit_as_member
from kafkalite.client.net import offset_requests
from kafkalite.client.net.arguments import (
    OffsetsToCommit,
    checked_partition,
    offsets_to_commit,
)
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.offset_requests import OffsetAt
from kafkalite.client.net.topology import TopicPartition
from kafkalite.config.client import GROUP_ID
from kafkalite.errors import (
    IllegalGeneration,
    InvalidGroupId,
    RebalanceInProgress,
    UnknownMemberId,
)
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST


class Watermarks(NamedTuple):
    """First offset of a partition and its end: the offset that the next record will get."""

    low: int
    high: int


class ConsumerOffsets:
    """Requests for the offsets of a consumer's partitions and of its group."""

    def __init__(self, buffer: FetchBuffer) -> None:
        self._buffer = buffer

    # Log offsets.

    def watermarks(self, partition: tuple[str, int], timeout: float | None) -> Watermarks:
        """Return the current first and end offsets of a partition."""
        address = checked_partition(partition)
        with self._buffer.locked() as buffer:
            buffer.check_topics([address.topic], timeout)
            return self._watermarks([address], timeout)[0]

    def lag(self, partitions: Sequence[tuple[str, int]], timeout: float | None) -> int:
        """Return the number of offsets between the positions and the ends of these partitions."""
        with self._buffer.locked() as buffer:
            buffer.settle()
            buffer.check_topics(buffer.assignment_reader.topics, timeout)
            wanted = dict.fromkeys(map(checked_partition, partitions))
            positions = buffer.known(timeout, tuple(wanted), resolved=True)
            ends = self._watermarks([position.partition for position in positions], timeout)
            return sum(
                max(0, end.high - (position.offset or 0))
                for position, end in zip(positions, ends, strict=True)
            )

    def at_timestamps(
        self, timestamps: Mapping[tuple[str, int], int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAt | None]:
        """Return the first record at or after each timestamp, or None."""
        with self._buffer.locked() as buffer:
            buffer.check_topics((topic for topic, _ in timestamps), timeout)
            found = self._list(timestamps, timeout)
        return {partition: at if at.offset >= 0 else None for partition, at in found.items()}

    def _watermarks(
        self, partitions: Sequence[tuple[str, int]], timeout: float | None
    ) -> list[Watermarks]:
        lows = self._list(dict.fromkeys(partitions, EARLIEST), timeout)
        highs = self._list(dict.fromkeys(partitions, LATEST), timeout)
        return [Watermarks(lows[each].offset, highs[each].offset) for each in lows]

    def _list(
        self, timestamps: Mapping[tuple[str, int], int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAt]:
        buffer = self._buffer
        level = buffer.assignment_reader.transports.isolation_level
        timeout_s = buffer.limit_s(timeout)
        return offset_requests.list_offsets(buffer.cluster, timestamps, level, timeout_s)

    # Committed offsets.

    def commit(self, offsets: OffsetsToCommit | None, timeout: float | None) -> None:
        """Commit these offsets, or all current positions."""
        group = self.group()
        wanted = None if offsets is None else offsets_to_commit(offsets)
        with self._buffer.locked() as buffer:
            if wanted is None:
                wanted = dict(self._positions(buffer).items())
            limit_s = buffer.limit_s(timeout)
            if buffer.group is not None:
                commit_as_member(buffer.cluster, buffer.group.member, wanted, limit_s)
                return
            try:
                offset_requests.commit_offsets(buffer.cluster, group, wanted, limit_s)
            except (UnknownMemberId, IllegalGeneration, RebalanceInProgress) as error:
                raise type(error)(
                    f"Group {group!r} has members; only they may commit its offsets, and this"
                    " consumer is not one.  Join it with topics, choose another group, or stop the"
                    " members."
                ) from None

    def positions(self) -> dict[TopicPartition, int]:
        """Return the current positions of the partitions that have one."""
        with self._buffer.locked() as buffer:
            return self._positions(buffer)

    @staticmethod
    def _positions(buffer: FetchBuffer) -> dict[TopicPartition, int]:
        buffer.settle()
        return {
            position.partition: position.offset
            for position in buffer.assignment_reader.assignment
            if position.offset is not None
        }

    def committed(
        self, partitions: Sequence[tuple[str, int]], timeout: float | None
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of these partitions, or of the assignment."""
        group = self.group()
        with self._buffer.locked() as buffer:
            chosen = [checked_partition(each) for each in partitions] or [
                each.partition for each in buffer.assignment_reader.assignment
            ]
            return offset_requests.committed_offsets(
                buffer.cluster, group, chosen, buffer.limit_s(timeout), require_stable=True
            )

    def identity(self) -> GroupMetadata:
        """Return the group, and the membership in it if the consumer is a member."""
        reading = self._buffer.group
        return GroupMetadata(self.group()) if reading is None else reading.member.identity

    def group(self) -> str:
        """Return the consumer's group, or raise InvalidGroupId."""
        group = self._buffer.settings[GROUP_ID]
        if group is None:
            raise InvalidGroupId(
                "Offsets are committed under the name of a group: create the consumer with a group."
            )
        return group
