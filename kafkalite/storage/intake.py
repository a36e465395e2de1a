"""Intake: what a topic asks of a client's batch, and does to it, before it is appended.

    max.message.bytes                    MessageTooLarge
    segment.bytes                        RecordListTooLarge
    message.timestamp.before.max.ms      InvalidTimestamp, with the records that are wrong
    message.timestamp.after.max.ms       the same
    compression.type                     compressed again when it came otherwise
    message.timestamp.type               stamped with the time of the append

A batch is opened only when one of these needs it: to compress it again, to check records against
`before.max.ms` once that is set, or to say which records are too new.  Otherwise its header is
believed about its newest timestamp.  The checks that hold for every topic are record_batch.judge's.

Left out: the keys of compacted topics, with compaction itself; transactions, whose batches are
refused as Kafka refuses those of a transaction it has not been told of.
"""

from __future__ import annotations

from kafkalite._ext.record_batch import CODEC_MASK, TRANSACTIONAL, stamp_append_time
from kafkalite.config.settings import Settings
from kafkalite.config.topic import (
    COMPRESSION_GZIP_LEVEL,
    COMPRESSION_LZ4_LEVEL,
    COMPRESSION_TYPE,
    COMPRESSION_ZSTD_LEVEL,
    LONG_MAX,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    MESSAGE_TIMESTAMP_TYPE,
    SEGMENT_BYTES,
)
from kafkalite.errors import (
    InvalidTimestamp,
    InvalidTxnState,
    MessageTooLarge,
    RecordListTooLarge,
)
from kafkalite.records.batch import NO_TIMESTAMP, RecordBatch, recompress
from kafkalite.records.compression import Codec

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

LEVELS = {
    Codec.GZIP: COMPRESSION_GZIP_LEVEL,
    Codec.LZ4: COMPRESSION_LZ4_LEVEL,
    Codec.ZSTD: COMPRESSION_ZSTD_LEVEL,
}


class Intake:
    """One topic's rules, read once from its settings."""

    __slots__ = ("after_max_ms", "before_max_ms", "changes", "codec", "level", "message_size_max",
                 "segment_size_max", "size_max", "stamps")  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self.message_size_max = settings[MAX_MESSAGE_BYTES]
        self.segment_size_max = settings[SEGMENT_BYTES]
        # Both hold; which one was broken is found out when it was.
        self.size_max = min(self.message_size_max, self.segment_size_max)
        self.stamps = settings[MESSAGE_TIMESTAMP_TYPE] == "LogAppendTime"
        self.before_max_ms = settings[MESSAGE_TIMESTAMP_BEFORE_MAX_MS]
        self.after_max_ms = LONG_MAX if self.stamps else settings[MESSAGE_TIMESTAMP_AFTER_MAX_MS]
        self.codec = CODECS.get(settings[COMPRESSION_TYPE])
        level = LEVELS.get(self.codec) if self.codec is not None else None
        self.level = settings[level] if level is not None else None
        opens = not self.stamps and self.before_max_ms != LONG_MAX
        self.changes = self.stamps or self.codec is not None or opens

    def refuse_size(self, size: int) -> None:
        """Say which bound a batch above `size_max` broke."""
        if size > self.message_size_max:
            raise MessageTooLarge(
                f"The batch is {size} bytes; the topic's max.message.bytes is"
                f" {self.message_size_max}."
            )
        raise RecordListTooLarge(
            f"The batch is {size} bytes; the topic's segment.bytes is {self.segment_size_max}."
        )

    def refuse_transaction(self, attributes: int) -> None:
        assert attributes & TRANSACTIONAL
        raise InvalidTxnState("The partition knows of no transaction of this producer.")

    def refuse_timestamps(self, batch: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Raise InvalidTimestamp naming the records out of bounds, if any is."""
        oldest = max(now_ms - self.before_max_ms, NO_TIMESTAMP + 1)
        newest = now_ms + self.after_max_ms
        wrong = [
            (place, f"Timestamp {timestamp} lies outside {oldest} to {newest}.")
            for place, timestamp in RecordBatch(batch).timestamps_outside(oldest, newest)
        ]
        if wrong:
            fault = InvalidTimestamp("Records bear timestamps out of bounds.")
            fault.record_errors = wrong
            raise fault

    def changed(
        self, batch: bytes | bytearray | memoryview, attributes: int, now_ms: int
    ) -> bytes | bytearray | memoryview:
        """The batch as this topic keeps it."""
        if not self.stamps and self.before_max_ms != LONG_MAX:
            self.refuse_timestamps(batch, now_ms)
        kept: bytes | bytearray | memoryview = batch
        if self.codec is not None and attributes & CODEC_MASK != self.codec:
            kept = recompress(batch, self.codec, self.level)
            if len(kept) > self.size_max:
                self.refuse_size(len(kept))
        if self.stamps:
            kept = bytearray(kept)
            stamp_append_time(kept, now_ms)
        return kept
