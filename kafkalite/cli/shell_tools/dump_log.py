"""kafka-dump-log.sh: print segments, indexes and snapshots from their files.

Left out: decoders of the records of internal topics, and custom decoders; transaction indexes;
--max-message-size, since a batch of any size is read.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from kafkalite._ext import record_batch
from kafkalite._ext.record_batch import HEADER_SIZE, header
from kafkalite.cli import log
from kafkalite.cli.command import warn
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, whole
from kafkalite.errors import KafkaError, Refusal
from kafkalite.records.batch import BatchHeader, Record, RecordBatch
from kafkalite.storage.files import layout
from kafkalite.storage.state.producer_state import decoded

MAGIC = 2
SEQUENCES = 1 << 31
TIMESTAMPS = ("CreateTime", "LogAppendTime")
END_OF_TRANSACTION = ("ABORT", "COMMIT")
INTERNAL = "is not supported: records of internal topics are not decoded"
CLASSES = "is not supported: Java classes cannot be loaded"

FLAGS = (
    Flag("files", "FILE,FILE,…", "segments, indexes and snapshots; required"),
    Flag("print-data-log", help="print the records of each batch with key and value"),
    Flag("deep-iteration", help="print the records of each batch without key and value"),
    Flag("skip-record-metadata", help="print only key and value of records"),
    Flag("max-bytes", "BYTES", "maximum number of bytes to read of a segment", whole),
    Flag("verify-index-only", help="verify indexes without printing them"),
    Flag("index-sanity-check", help="check only whether an index can be used"),
    Flag("max-message-size", "BYTES", refused="is not supported: a batch of any size is read"),
    *(
        Flag(name, refused=INTERNAL)
        for name in (
            "offsets-decoder",
            "transaction-log-decoder",
            "cluster-metadata-decoder",
            "remote-log-metadata-decoder",
            "share-group-state-decoder",
        )
    ),
    Flag("key-decoder-class", "CLASS", refused=CLASSES, optional=True),
    Flag("value-decoder-class", "CLASS", refused=CLASSES, optional=True),
)


class DumpOptions:
    """The parts of records to print."""

    def __init__(self, options: ParsedFlags) -> None:
        self.contents = "print-data-log" in options
        self.records = self.contents or "deep-iteration" in options
        self.bare = "skip-record-metadata" in options


def run(options: ParsedFlags) -> int | None:
    """Print the contents of a log's files.

    Examples:
      kafka-dump-log.sh --files data/flights-0/00000000000000000000.log --print-data-log
      kafka-dump-log.sh --files data/flights-0/00000000000000000000.index --index-sanity-check
    """
    options.requires("files")
    size_max = options.one("max-bytes", sys.maxsize)
    if size_max < 0:
        raise Refusal("--max-bytes must not be negative")
    code = 0
    for name in options.one("files").split(","):
        path = Path(name.strip())
        print(f"Dumping {path}")
        kind = log.kind_of(path)
        if kind == layout.LOG:
            segment(path, DumpOptions(options), size_max)
        elif kind in (layout.OFFSET_INDEX, layout.TIME_INDEX):
            code |= index(path, options)
        elif kind == layout.SNAPSHOT:
            snapshot(path)
        else:
            warn(
                f"{path} is not a log file: its name must be an offset and one of"
                f" {', '.join(log.KINDS)}"
            )
            code = 1
    return code


# -- segments --------------------------------------------------------------------------------------


def segment(path: Path, shown: DumpOptions, size_max: int) -> None:
    """Print the header of every batch, including invalid ones, up to bytes that are not a batch."""
    print(f"Log starting offset: {log.base_offset_of(path)}")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        end = min(size, size_max)
        position = 0
        while end - position >= HEADER_SIZE:
            fields = BatchHeader(*header(os.pread(file.fileno(), HEADER_SIZE, position)))
            if fields.magic != MAGIC or not HEADER_SIZE <= fields.size <= end - position:
                break
            batch = os.pread(file.fileno(), fields.size, position)
            valid = record_batch.check(batch) == 0
            print(batch_line(fields, position, valid))
            if shown.records and valid:
                show_records(batch, fields, shown)
            position += fields.size
        if end == size and position < end:
            print(f"Found {end - position} invalid bytes at the end of {path.name}")


def batch_line(fields: BatchHeader, position: int, valid: bool) -> str:
    horizon = fields.delete_horizon_ms
    sequence = fields.base_sequence
    last = (sequence + fields.last_offset_delta) % SEQUENCES if sequence >= 0 else sequence
    words = {
        "baseOffset": fields.base_offset,
        "lastOffset": fields.last_offset,
        "count": fields.count,
        "baseSequence": sequence,
        "lastSequence": last,
        "producerId": fields.producer_id,
        "producerEpoch": fields.producer_epoch,
        "partitionLeaderEpoch": fields.leader_epoch,
        "isTransactional": truth(fields.is_transactional),
        "isControl": truth(fields.is_control),
        "deleteHorizonMs": "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]",
        "position": position,
        TIMESTAMPS[fields.timestamp_type]: fields.max_timestamp,
        "size": fields.size,
        "magic": fields.magic,
        "compresscodec": codec_of(fields),
        "crc": fields.crc,
        "isvalid": truth(valid),
    }
    return " ".join(f"{name}: {value}" for name, value in words.items())


def codec_of(fields: BatchHeader) -> str:
    try:
        return fields.codec.name.lower()
    except (KafkaError, ValueError):
        return "unknown"


def show_records(batch: bytes, fields: BatchHeader, shown: DumpOptions) -> None:
    try:
        records = RecordBatch(batch).records()
    except KafkaError as error:
        warn(f"the records of the batch at offset {fields.base_offset} cannot be decoded: {error}")
        return
    for record in records:
        print(record_line(record, fields, shown))


def record_line(record: Record, fields: BatchHeader, shown: DumpOptions) -> str:
    if shown.bare and fields.is_control:
        return ""
    words = [] if shown.bare else [metadata(record, fields)]
    if fields.is_control:
        words.append(control(record))
    elif shown.contents:
        if record.key is not None:
            words.append(f"key: {record.key.decode(errors='replace')}")
        if record.value is not None:
            words.append(f"payload: {record.value.decode(errors='replace')}")
    return " ".join(["|", *words])


def metadata(record: Record, fields: BatchHeader) -> str:
    sequence = fields.base_sequence
    if sequence >= 0:
        sequence = (sequence + record.offset - fields.base_offset) % SEQUENCES
    names = ",".join(name for name, _ in record.headers)
    return (
        f"offset: {record.offset} {TIMESTAMPS[fields.timestamp_type]}: {record.timestamp}"
        f" keySize: {size_of(record.key)} valueSize: {size_of(record.value)}"
        f" sequence: {sequence} headerKeys: [{names}]"
    )


def control(record: Record) -> str:
    """Return the content of a control record: the outcome of a transaction, or its type."""
    key, value = record.key or b"", record.value or b""
    kind = struct.unpack_from(">hh", key)[1] if len(key) >= 4 else None
    if kind in (0, 1) and len(value) >= 6:
        epoch = struct.unpack_from(">hi", value)[1]
        return f"endTxnMarker: {END_OF_TRANSACTION[kind]} coordinatorEpoch: {epoch}"
    return f"controlType: {'unknown' if kind is None else kind}"


def size_of(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def truth(value: bool) -> str:
    return "true" if value else "false"


# -- indexes and snapshots -------------------------------------------------------------------------


def index(path: Path, options: ParsedFlags) -> int:
    """Print an index and its errors."""
    damages = [damage.description for damage in log.index_damages(path)]
    if "index-sanity-check" in options:
        if not damages:
            print(f"{path} passed sanity check.")
    elif "verify-index-only" not in options:
        show = offsets if path.suffix == layout.OFFSET_INDEX else times
        print("".join(f"{line}\n" for line in show(path)), end="")
    for description in damages:
        warn(f"{path}: {description}")
    return 1 if damages else 0


def offsets(path: Path) -> Iterator[str]:
    base = log.base_offset_of(path)
    for relative, position in struct.iter_unpack(">ii", entries(path, 8)):
        yield f"offset: {base + relative} position: {position}"


def times(path: Path) -> Iterator[str]:
    base = log.base_offset_of(path)
    for timestamp, relative in struct.iter_unpack(">qi", entries(path, 12)):
        yield f"timestamp: {timestamp} offset: {base + relative}"


def entries(path: Path, size: int) -> bytes:
    """Return an index's entries, without the zeros that Kafka preallocates."""
    content = path.read_bytes()
    content = content[: len(content) // size * size]
    while content.endswith(bytes(size)) and len(content) > size:
        content = content[:-size]
    return content


def snapshot(path: Path) -> None:
    try:
        producers = decoded(path.read_bytes())
    except (ValueError, KafkaError) as error:
        raise Refusal(f"{path}: {error}") from None
    for producer in producers:
        first = producer.txn_first_offset
        first_shown = f"OptionalLong[{first}]" if first >= 0 else "OptionalLong.empty"
        words = [
            f"producerId: {producer.producer_id} producerEpoch: {producer.epoch}",
            f"coordinatorEpoch: {producer.coordinator_epoch}",
            f"currentTxnFirstOffset: {first_shown}",
            f"lastTimestamp: {producer.last_timestamp}",
        ]
        for last in producer.batches[-1:]:
            delta = last.last_offset - last.base_offset
            words.append(
                f"firstSequence: {last.base_sequence} lastSequence: {last.last_sequence}"
                f" lastOffset: {last.last_offset} offsetDelta: {delta}"
                f" timestamp: {last.timestamp}"
            )
        print(" ".join(words))


TOOL = ShellTool(FLAGS, run)
