"""The segments in tests/golden/segments: the contents of each, and the form of its annotated hex.

    python -m tests.records.golden_segments    writes the files again; a change in one of them is
                                               a change of the bytes on disk and network

A file is hex, with comments after `#`.  Uncompressed, a line is a field or a record; compressed
bytes depend on the codec's library, and their lines have no comments.
"""

import struct
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from kafkalite._ext import record_batch
from kafkalite.records.batch import BatchHeader, Record, RecordBatch, TimestampType, batches, build
from kafkalite.records.compression import Codec
from tests.twins import record_batch as twin
from tests.twins import records as records_twin

DIRECTORY = Path(__file__).parent.parent / "golden" / "segments"
NOW = 1_700_000_000_000
FLIGHTS = (
    Record(-1, NOW, b"UA", b'{"flight": 1545, "delay": 2}', ()),
    Record(-1, NOW + 5, None, b'{"flight": 1714, "delay": 4}', (("from", b"LGA"), ("gate", None))),
    Record(-1, NOW - 60_000, b"AA", None, ()),
    Record(-1, NOW + 7, b"", b"", (("", b""), ("\u00e9t\u00e9", b"\xff"))),
)
WIDTHS = struct.Struct("8s4s4s1s4s2s4s8s8s8s2s4s4s")
COLUMN = 34


@dataclass(frozen=True)
class Segment:
    shows: str
    batches: tuple[bytes, ...]

    @property
    def bytes(self) -> bytes:
        return b"".join(self.batches)


def end_marker(kind: int, **fields) -> bytes:
    """Return the control batch that ends a transaction: 0 aborts it and 1 commits it."""
    record = Record(-1, NOW + 9, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 5), ())
    return build([record], transactional=True, control=True, **fields)


def placed(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    copy = bytearray(batch)
    record_batch.assign_offset(copy, base_offset, leader_epoch)
    return bytes(copy)


def stamped(batch: bytes, timestamp_ms: int) -> bytes:
    copy = bytearray(batch)
    record_batch.stamp_append_time(copy, timestamp_ms)
    return bytes(copy)


def with_delete_horizon(batch: bytes, horizon_ms: int) -> bytes:
    """Return the batch with the delete horizon that a cleaner sets for its tombstones."""
    fields = dict(zip(BatchHeader._fields, record_batch.header(batch), strict=True))
    fields |= {"attributes": fields["attributes"] | record_batch.DELETE_HORIZON, "crc": None}
    shift = horizon_ms - fields["base_timestamp"]
    decoded = records_twin.decode(batch[61:], fields["count"], fields["last_offset_delta"])
    moved = [(offset, when - shift, *rest) for offset, when, *rest in decoded]
    fields |= {"base_timestamp": horizon_ms, "batch_length": None}
    return bytes(twin.build(records_twin.encode(moved), **fields))


PRODUCER = {"producer_id": 4_000, "producer_epoch": 3}
SEGMENTS = {
    "plain": Segment(
        "two batches under two leader epochs, without a codec",
        (
            build(FLIGHTS, leader_epoch=0),
            placed(build(FLIGHTS[:1]), base_offset=4, leader_epoch=1),
        ),
    ),
    **{
        codec.name.lower(): Segment(
            f"one batch under codec {int(codec)}", (build(FLIGHTS, codec=codec, leader_epoch=0),)
        )
        for codec in Codec
        if codec is not Codec.NONE
    },
    "append_time": Segment(
        "one batch stamped by the leader, one built so and compressed",
        (
            stamped(build(FLIGHTS, leader_epoch=0), NOW + 1_000),
            build(
                FLIGHTS,
                base_offset=4,
                leader_epoch=0,
                codec=Codec.LZ4,
                timestamp_type=TimestampType.LOG_APPEND_TIME,
            ),
        ),
    ),
    "idempotent": Segment(
        "two batches of one producer, with consecutive sequence numbers",
        (
            build(FLIGHTS, leader_epoch=0, base_sequence=0, **PRODUCER),
            build(FLIGHTS[:2], base_offset=4, leader_epoch=0, base_sequence=4, **PRODUCER),
        ),
    ),
    "transactions": Segment(
        "a transaction that commits and one that aborts",
        (
            build(FLIGHTS[:2], leader_epoch=0, base_sequence=0, transactional=True, **PRODUCER),
            end_marker(1, base_offset=2, leader_epoch=0, **PRODUCER),
            build(
                FLIGHTS[2:],
                base_offset=3,
                leader_epoch=0,
                base_sequence=2,
                transactional=True,
                **PRODUCER,
            ),
            end_marker(0, base_offset=5, leader_epoch=0, **PRODUCER),
        ),
    ),
    "compacted": Segment(
        "offsets with gaps, and tombstones that may go at a time",
        (
            build([FLIGHTS[0]._replace(offset=2), FLIGHTS[1]._replace(offset=7)], leader_epoch=0),
            with_delete_horizon(
                build([FLIGHTS[2]._replace(offset=9)], base_offset=8, leader_epoch=0),
                NOW + 86_400_000,
            ),
        ),
    ),
}


def annotated(name: str) -> str:
    """Return the text of the file."""
    lines = [f"# {name}: {SEGMENTS[name].shows}"]
    position = 0
    for batch in batches(SEGMENTS[name].bytes):
        lines += ["", f"# batch at position {position}"]
        lines += header_lines(batch)
        lines += payload_lines(batch)
        position += len(batch)
    return "\n".join(lines) + "\n"


def header_lines(batch: RecordBatch) -> list[str]:
    parts = WIDTHS.unpack_from(batch.view)
    named = batch.header._asdict() | {"crc": f"{batch.header.crc:#010x}"}
    return [
        f"{part.hex():{COLUMN}}# {field.replace('_', ' ')} {value}"
        for part, (field, value) in zip(parts, named.items(), strict=True)
    ]


def payload_lines(batch: RecordBatch) -> list[str]:
    payload = bytes(batch.view[61:])
    if batch.header.codec is not Codec.NONE:
        return [payload[at : at + 32].hex() for at in range(0, len(payload), 32)]
    lines = []
    source = BytesIO(payload)
    for _ in range(batch.header.count):
        began = source.tell()
        offset, timestamp, key, value, headers = records_twin.take_record(source)
        lines += [
            f"# record: offset +{offset}, timestamp {timestamp:+}, key {key}, value {value},"
            f" headers {headers}",
            payload[began : source.tell()].hex(),
        ]
    return lines


def read(name: str) -> bytes:
    """Return the bytes that a file's text encodes."""
    lines = (DIRECTORY / f"{name}.hex").read_text(encoding="utf-8").splitlines()
    return bytes.fromhex("".join(line.partition("#")[0].strip() for line in lines))


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name in SEGMENTS:
        (DIRECTORY / f"{name}.hex").write_text(annotated(name), encoding="utf-8")


if __name__ == "__main__":
    main()
