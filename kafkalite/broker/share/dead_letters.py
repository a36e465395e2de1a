"""Dead letters: records for those that a share group does not deliver any more (KIP-1191).

    header                        value, as text
    __dlq.errors.topic            the topic of the record
    __dlq.errors.partition        its partition
    __dlq.errors.offset           its offset
    __dlq.errors.group            the share group
    __dlq.errors.delivery.count   how often it was delivered
    __dlq.errors.message          why it is not delivered again

Key and value are those of the record if errors.deadletterqueue.copy.record.enable is set, otherwise
null.  The record's own headers are not copied, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kafkalite.coordination.share.share_partition import ArchivingRange
from kafkalite.records.batch import Headers, Record, build

REJECTED = b"Offset rejected by client."
COUNT_EXCEEDED = b"Offset delivery count exceeded the threshold."

BATCH_OVERHEAD = 61
RECORD_OVERHEAD_MAX = 40
"""Size of a record without its key, value and headers: length, attributes, timestamp and offset
deltas, and the lengths of the others."""
HEADER_OVERHEAD_MAX = 6

KeyValue: TypeAlias = tuple[bytes | None, bytes | None]
NO_COPY: KeyValue = (None, None)


class DeadLetter(NamedTuple):
    """A record that was rejected, or whose deliveries are used up."""

    offset: int
    delivery_count: int
    is_rejected: bool


class DeadLetterSource(NamedTuple):
    """The share partition of dead letters."""

    group_id: str
    topic: str
    partition: int


def letters_of(ranges: Sequence[ArchivingRange]) -> list[DeadLetter]:
    """Return the dead letters of ranges of records."""
    return [
        DeadLetter(offset, each.delivery_count, each.is_rejected)
        for each in ranges
        for offset in range(each.first_offset, each.last_offset + 1)
    ]


def build_batch(
    source: DeadLetterSource,
    letters: Sequence[DeadLetter],
    copies: Mapping[int, KeyValue],
    size_max: int,
    timestamp: int,
) -> tuple[bytes, int]:
    """Return a batch of the first dead letters, at least one, and their number.

    `copies` has the keys and values to copy, by offset.  The batch has at most `size_max` bytes: a
    record that does not fit into a batch of its own is not copied.
    """
    records: list[Record] = []
    size = BATCH_OVERHEAD
    for letter in letters:
        headers = _headers(source, letter)
        key, value = copies.get(letter.offset, NO_COPY)
        added = _size_max(key, value, headers)
        if BATCH_OVERHEAD + added > size_max:
            key, value = NO_COPY
            added = _size_max(key, value, headers)
        if records and size + added > size_max:
            break
        size += added
        records.append(Record(-1, timestamp, key, value, headers))
    return build(records), len(records)


def _headers(source: DeadLetterSource, letter: DeadLetter) -> Headers:
    return (
        ("__dlq.errors.topic", source.topic.encode()),
        ("__dlq.errors.partition", b"%d" % source.partition),
        ("__dlq.errors.offset", b"%d" % letter.offset),
        ("__dlq.errors.group", source.group_id.encode()),
        ("__dlq.errors.delivery.count", b"%d" % letter.delivery_count),
        ("__dlq.errors.message", REJECTED if letter.is_rejected else COUNT_EXCEEDED),
    )


def _size_max(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = RECORD_OVERHEAD_MAX + len(key or b"") + len(value or b"")
    return size + sum(HEADER_OVERHEAD_MAX + len(name) + len(text or b"") for name, text in headers)
