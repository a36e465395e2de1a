"""The records of an offset commit, and the limits of what is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalite.coordination.groups.offsets.committed_offsets import CommittedOffsets
from kafkalite.errors import InvalidCommitOffsetSize, OffsetMetadataTooLarge
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.group_records import (
    NO_EPOCH,
    GroupRecord,
    OffsetCommitValue,
    OffsetKey,
    offset_record,
)

OFFSETS_SIZE_MAX = 1 << 30
"""Approximate memory limit of the committed offsets of all groups: beyond it no offset of a
partition that has none is accepted."""
TEXT_SIZE_MAX = (1 << 15) - 1
"""Maximum length of a string in a record; a request can have longer ones."""


class OffsetToCommit(NamedTuple):
    """An offset to commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = None
    topic_id: bytes = NO_ID


class CommitRecords(NamedTuple):
    """The error code of each (topic, partition), and the records of those without an error."""

    codes: dict[tuple[str, int], int]
    records: list[GroupRecord]


def commit_records(
    offsets: CommittedOffsets,
    group_id: str,
    commits: Sequence[OffsetToCommit],
    metadata_size_max: int,
    wall_ms: int,
    expire_ms: int,
    producer_id: int | None = None,
) -> CommitRecords:
    """Return the records of these commits, of a transaction if a producer id is given.

    Each partition succeeds or fails on its own.
    """
    full = offsets.size > OFFSETS_SIZE_MAX
    codes: dict[tuple[str, int], int] = {}
    records = []
    for topic, index, offset, epoch, metadata, topic_id in commits:
        if metadata and not (len(metadata) <= metadata_size_max and is_storable(metadata)):
            codes[topic, index] = OffsetMetadataTooLarge.code
            continue
        key = OffsetKey(group_id, topic, index)
        if (full and not offsets.has(group_id, topic, index)) or (
            producer_id is not None and not offsets.pending.may_add(producer_id, key)
        ):
            codes[topic, index] = InvalidCommitOffsetSize.code
            continue
        codes[topic, index] = 0
        value = OffsetCommitValue(offset, epoch, metadata or "", wall_ms, expire_ms, topic_id)
        records.append(offset_record(key, value))
    return CommitRecords(codes, records)


def is_storable(text: str) -> bool:
    """Return whether a record can have this string."""
    return len(text) <= TEXT_SIZE_MAX // 4 or len(text.encode()) <= TEXT_SIZE_MAX
