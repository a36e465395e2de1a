"""RecordMetadata: where a record was written.  Both the producer and its compiled part use it."""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """The position of a written record.

    Attributes:
        topic: Name of the topic.
        partition: Partition in the topic.
        offset: Offset of the record; -1 with acks=0, which has no response.
        timestamp: Milliseconds since 1970: the record's, or the log append time if the topic uses
            it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
