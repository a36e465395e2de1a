"""Batch validation: the topic settings a client's batch must satisfy before it is appended.

    max.message.bytes                    MessageTooLarge
    segment.bytes                        RecordListTooLarge
    cleanup.policy                       InvalidRecord, with the records that have no key, if the
                                         topic is compacted
    message.timestamp.before.max.ms      InvalidTimestamp, with the records that are wrong
    message.timestamp.after.max.ms       the same
    compression.type                     recompresses a batch of another codec; InvalidTimestamp for
                                         records from before 1970 then
    message.timestamp.type               stamps the batch with the time of the append
    compressed.records.validate          InvalidRecord, if the header contradicts the records

A compressed batch is decompressed to check its records, unless the topic disables that and is not
compacted.  The records of any batch are decoded to recompress it, to check them against
`before.max.ms` if that is set, or to report which are too new.  Otherwise the maximum timestamp in
its header is used.  Decoding is expensive; `begin_validation` offers it as steps that run before
the append.  The checks that apply to every topic are in record_batch.check_client_batch.

A batch that cannot be decompressed is InvalidRecord, which no client retries, and not
CorruptMessage: its CRC is valid, so a retry would send the same bytes.  A batch that decompresses
to more than `output_size_max` is MessageTooLarge, upon which Java producers send smaller batches.
LZ4 with linked blocks or several frames, which Kafka's Java clients cannot decompress, is
InvalidRecord, as in Kafka.

An error reports the first 100 of the records that are wrong.
"""

from __future__ import annotations

from kafkalite._ext.record_batch import (
    CODEC_MASK,
    HEADER_SIZE,
    check_client_batch,
    correct_max_timestamp,
    header,
    stamp_append_time,
)
from kafkalite._ext.record_scan import RecordScan
from kafkalite._ext.records import validate
from kafkalite.clock import Clock
from kafkalite.config.settings import Settings
from kafkalite.config.topic import (
    CLEANUP_POLICY,
    COMPACT,
    COMPRESSED_RECORDS_VALIDATE,
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
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    MissingKey,
    RecordListTooLarge,
    raise_for,
)
from kafkalite.records.batch import RecordBatch
from kafkalite.records.compression import Codec, output_size_max
from kafkalite.records.decode_steps import DecodeSteps, finish, recompress, scan_of, walk

ATTRIBUTES_LOW = 22
"""Position in a batch of the low attributes byte, which holds the codec."""

MAX_TIMESTAMP = 8
"""Place of the maximum timestamp among the fields of a header."""

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


class BatchValidator:
    """The validation rules of one topic, read once from its settings."""

    __slots__ = ("after_max_ms", "before_max_ms", "codec", "level", "message_size_max",
                 "decoded_codecs", "decodes_all", "requires_keys", "segment_size_max",
                 "sets_append_time", "size_max")  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self.message_size_max = settings[MAX_MESSAGE_BYTES]
        self.segment_size_max = settings[SEGMENT_BYTES]
        # Both apply; `raise_too_large` finds out which one was exceeded.
        self.size_max = min(self.message_size_max, self.segment_size_max)
        self.sets_append_time = settings[MESSAGE_TIMESTAMP_TYPE] == "LogAppendTime"
        self.before_max_ms = (
            LONG_MAX if self.sets_append_time else settings[MESSAGE_TIMESTAMP_BEFORE_MAX_MS]
        )
        self.after_max_ms = (
            LONG_MAX if self.sets_append_time else settings[MESSAGE_TIMESTAMP_AFTER_MAX_MS]
        )
        self.codec = CODECS.get(settings[COMPRESSION_TYPE])
        level = LEVELS.get(self.codec) if self.codec is not None else None
        self.level = settings[level] if level is not None else None
        self.decodes_all = self.codec is not None or self.before_max_ms != LONG_MAX
        self.requires_keys = COMPACT in settings[CLEANUP_POLICY]
        decodes = settings[COMPRESSED_RECORDS_VALIDATE] or self.requires_keys
        self.decoded_codecs = CODEC_MASK if decodes else 0
        """Attribute bits; the records of a batch with any of them are decoded."""

    # -- before the append -------------------------------------------------------------------

    def begin_validation(
        self, batch: bytes | bytearray | memoryview, clock: Clock
    ) -> DecodeSteps[bytes] | None:
        """Return the steps that check a client's records and return the bytes to append as
        `validated`, or None if the records need not be decoded before the append.

        Raises the error of a batch that is invalid outside its records.
        """
        if not self.decodes_all and (
            len(batch) < HEADER_SIZE
            or not batch[ATTRIBUTES_LOW] & CODEC_MASK
            or not (self.decoded_codecs or self._is_too_new(batch, clock.wall_ms()))
        ):
            return None
        if len(batch) > self.size_max:
            self.raise_too_large(len(batch))
        if code := check_client_batch(batch):
            raise_for(code)
        # The steps may run after the caller's buffer was reused.
        return self._validate_records(bytes(batch), clock.wall_ms())

    def _is_too_new(self, batch: bytes | bytearray | memoryview, now_ms: int) -> bool:
        """Return whether the header says that records are later than the topic allows."""
        return header(batch)[MAX_TIMESTAMP] - now_ms > self.after_max_ms

    def _validate_records(self, batch: bytes, now_ms: int) -> DecodeSteps[bytes]:
        client_batch = RecordBatch(batch)
        scan = scan_of(client_batch)
        # Kafka stores batches with timestamps before 1970, but cannot build them.
        rebuilt = self.codec is not None and self.codec is not client_batch.header.codec
        oldest = max(now_ms - self.before_max_ms, 0 if rebuilt else -LONG_MAX - 1)
        newest = min(now_ms + self.after_max_ms, LONG_MAX)
        if not self.sets_append_time:
            scan.collect(oldest, newest, inside=False)
        result = batch
        try:
            if self.codec is None:
                yield from walk(client_batch, scan, strict=True)
            else:
                result = yield from recompress(
                    client_batch, self.codec, self.level, scan=scan, strict=True
                )
        except CorruptMessage as error:
            raise InvalidRecord(str(error)) from None
        except MessageTooLarge:
            raise self._inflated_too_large(len(batch)) from None
        if self.requires_keys and scan.keyless_count:
            self._raise_missing_keys(scan)
        if scan.hits:
            self._raise_invalid_timestamps(scan.hits, oldest, newest)
        if scan.max_timestamp != client_batch.header.max_timestamp:
            # Retention and timestamp lookups use the header, so Kafka corrects it as well.
            corrected = bytearray(result)
            correct_max_timestamp(corrected, scan.max_timestamp)
            result = bytes(corrected)
        return result

    # -- at the append -----------------------------------------------------------------------

    def validate_batch(
        self,
        batch: bytes | bytearray | memoryview,
        attributes: int,
        max_timestamp: int,
        count: int,
        now_ms: int,
        *,
        validated: bool,
    ) -> bytes | bytearray | memoryview:
        """Return a client's batch as the topic stores it; raise the error if it is refused."""
        # Invalid records under a valid CRC would stop every consumer at this offset for good.
        if not attributes & CODEC_MASK:
            payload = memoryview(batch)[HEADER_SIZE:]
            code = validate(payload, count, count - 1, keyed=self.requires_keys)
            if code:
                self._raise_invalid_records(batch, code, now_ms)
        if len(batch) > self.size_max:
            self.raise_too_large(len(batch))
        if not validated and (
            attributes & self.decoded_codecs
            or self.decodes_all
            or max_timestamp - now_ms > self.after_max_ms
        ):
            batch = finish(self._validate_records(bytes(batch), now_ms))
            if len(batch) > self.size_max:
                self.raise_too_large(len(batch))
        if self.sets_append_time:
            batch = bytearray(batch)
            stamp_append_time(batch, now_ms)
        return batch

    def _raise_invalid_records(
        self, batch: bytes | bytearray | memoryview, code: int, now_ms: int
    ) -> None:
        """Raise the error of a batch whose uncompressed records are not valid."""
        if self.requires_keys:  # the reason may be that records have no key
            if len(batch) > self.size_max:
                self.raise_too_large(len(batch))
            finish(self._validate_records(bytes(batch), now_ms))
        raise_for(code)

    def raise_too_large(self, size: int) -> None:
        """Raise the error for a batch larger than `size_max`, naming the limit it exceeds."""
        if size > self.message_size_max:
            raise MessageTooLarge(
                f"The batch is {size} bytes; the topic's max.message.bytes is"
                f" {self.message_size_max}."
            )
        raise RecordListTooLarge(
            f"The batch is {size} bytes; the topic's segment.bytes is {self.segment_size_max}."
        )

    def _inflated_too_large(self, size: int) -> MessageTooLarge:
        """Return the error for a batch that decompresses to more than is allowed."""
        remedy = "send smaller batches"
        if not self.decodes_all:
            remedy += ", or set compressed.records.validate=false for the topic"
        return MessageTooLarge(
            f"The batch is {size} bytes, its records are more than {output_size_max(size)}: a"
            " compressed batch holds at most 16 MiB of records, or 16 times its own size if that"
            f" is more; {remedy}."
        )

    def _raise_missing_keys(self, scan: RecordScan) -> None:
        error = MissingKey(f"{scan.keyless_count} records have no key; the topic is compacted.")
        error.record_count = scan.keyless_count
        # The offset deltas of a client's batch are the indexes of its records.
        error.record_errors = [
            (index, "A compacted topic does not accept a record without a key.")
            for index in scan.keyless
        ]
        raise error

    def _raise_invalid_timestamps(
        self, hits: list[tuple[int, int]], oldest: int, newest: int
    ) -> None:
        error = InvalidTimestamp("Record timestamps are out of range.")
        error.record_errors = [
            (place, f"Timestamp {timestamp} is outside the range {oldest} to {newest}.")
            for place, timestamp in hits
        ]
        raise error
