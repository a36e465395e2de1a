"""Start positions, as the values of the flag `-o`.

    beginning, end      log start offset, log end offset
    5, -5               an offset; a number of records before the end
    @-10m               an age: ms, s, m, h, d or w
    s@1385000000000     a timestamp in milliseconds, as in kcat; the s is optional
    @2013-01-01T09:30   a date and time, local unless it has an offset from UTC

`start` parses a value to a `StartPosition`, and `resolved` looks up the offsets.  Beginning and end
are the timestamps -2 and -1, as in ListOffsets.

Left out: `stored`, since reading without a group stores no offsets; `e@`, an end by timestamp.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from kafkalite.cli.clients import REQUEST_TIMEOUT_S

END = -1
BEGINNING = -2

LEADERLESS = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class AtOffset(NamedTuple):
    """The record with this offset."""

    offset: int


class LastRecords(NamedTuple):
    """The last `distance` records."""

    distance: int


class SinceTimestamp(NamedTuple):
    """The first record at or after a timestamp, or END or BEGINNING."""

    timestamp_ms: int


class SinceAge(NamedTuple):
    """The first record that is at most this old when the position is resolved."""

    age_ms: int


StartPosition = AtOffset | LastRecords | SinceTimestamp | SinceAge


def start(word: str) -> StartPosition:
    """Parse the argument of `-o`."""
    if word in ("beginning", "earliest"):
        return SinceTimestamp(BEGINNING)
    if word in ("end", "latest"):
        return SinceTimestamp(END)
    if re.fullmatch(r"[0-9]{1,18}", word):
        return AtOffset(int(word))
    if re.fullmatch(r"-[0-9]{1,18}", word):
        return LastRecords(-int(word))
    when = re.fullmatch(r"s?@(.+)", word)
    moment = when and since(when[1])
    if moment:
        return moment
    raise argparse.ArgumentTypeError(
        f"{word!r} is not a start position: use beginning, end, an offset, -COUNT, @-10m, "
        "@2013-01-01T09:30 or s@MILLISECONDS"
    )


def since(word: str) -> SinceTimestamp | SinceAge | None:
    """Parse the text after the @: an age, a timestamp or a date."""
    if re.fullmatch(r"[0-9]{1,18}", word):
        return SinceTimestamp(int(word))
    age = re.fullmatch(r"-([0-9]{1,12})(ms|[smhdw])", word)
    if age:
        return SinceAge(int(age[1]) * UNIT_MS[age[2]])
    try:
        return SinceTimestamp(int(datetime.fromisoformat(word).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None


def resolved(
    consumer: Consumer, topic: str, partitions: Sequence[int], where: StartPosition, now_ms: int
) -> list[TopicPartition]:
    """Return the offset that `where` stands for in each partition, as of now."""
    match where:
        case AtOffset(offset):
            return [TopicPartition(topic, partition, offset) for partition in partitions]
        case LastRecords(distance):
            firsts = offsets_since(consumer, topic, partitions, BEGINNING)
            ends = offsets_since(consumer, topic, partitions, END)
            return [
                TopicPartition(topic, partition, max(first, end - distance))
                for partition, first, end in zip(partitions, firsts, ends, strict=True)
            ]
        case SinceTimestamp(timestamp_ms):
            offsets = offsets_since(consumer, topic, partitions, timestamp_ms)
        case SinceAge(age_ms):
            offsets = offsets_since(consumer, topic, partitions, max(0, now_ms - age_ms))
    return [
        TopicPartition(topic, *topic_partition)
        for topic_partition in zip(partitions, offsets, strict=True)
    ]


def offsets_since(
    consumer: Consumer, topic: str, partitions: Sequence[int], timestamp_ms: int
) -> list[int]:
    """Return each partition's first offset at or after a timestamp, or its end offset."""
    requested = [TopicPartition(topic, partition, timestamp_ms) for partition in partitions]
    found = {
        topic_partition.partition: topic_partition.offset
        for topic_partition in list_offsets(consumer, requested)
    }
    offsets = [found[partition] for partition in partitions]
    if OFFSET_END not in offsets:
        return offsets
    ends = offsets_since(consumer, topic, partitions, END)
    return [
        end if offset == OFFSET_END else offset for offset, end in zip(offsets, ends, strict=True)
    ]


def list_offsets(consumer: Consumer, requested: list[TopicPartition]) -> list[TopicPartition]:
    """Return the response to ListOffsets; retry for a while if a new topic has no leader yet."""
    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            found = consumer.offsets_for_times(requested, REQUEST_TIMEOUT_S)
            errors = [
                topic_partition.error
                for topic_partition in found
                if topic_partition.error is not None
            ]
        except KafkaException as error:
            errors = [error.args[0]]
        if not errors:
            return found
        if errors[0].code() not in LEADERLESS or time.monotonic() > deadline_s:
            raise KafkaException(errors[0])
        consumer.poll(0.05)
