"""Golden segments: we still write the same bytes, and Apache Kafka reads them.

Kafka's own dump tool needs Java and Maven's repository: `make oracle`.
"""

import re

import pytest

from kafkalite.records.batch import RecordBatch, batches
from kafkalite.records.compression import Codec
from tests.records.golden_segments import DIRECTORY, SEGMENTS, annotated, read
from tools import apache_kafka

FIELD = re.compile(r"(\w+): (\S+)")
RECORD = re.compile(r"\| offset: (\d+) (\w+): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)")
NAMES = sorted(SEGMENTS)
# The compressed bytes of the same records differ between releases of a codec's library.
FIXED = [
    name
    for name in NAMES
    if all(batch.header.codec is Codec.NONE for batch in batches(SEGMENTS[name].bytes))
]


@pytest.mark.parametrize("name", FIXED)
def test_golden_segments_are_written_byte_for_byte(name):
    assert read(name) == SEGMENTS[name].bytes


@pytest.mark.parametrize("name", FIXED)
def test_golden_segment_descriptions_match_their_bytes(name):
    assert (DIRECTORY / f"{name}.hex").read_text(encoding="utf-8") == annotated(name)


@pytest.mark.parametrize("name", NAMES)
def test_golden_segments_are_read(name):
    found, meant = list(batches(read(name))), list(batches(SEGMENTS[name].bytes))
    assert [batch.records() for batch in found] == [batch.records() for batch in meant]
    for ours, theirs in zip(found, meant, strict=True):
        size_and_sum = {"batch_length": 0, "crc": 0}
        assert ours.header._replace(**size_and_sum) == theirs.header._replace(**size_and_sum)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """Return the dump tool's output for each segment, by line; Java is started once for all."""
    paths = {}
    for name in NAMES:
        paths[name] = tmp_path_factory.mktemp(name) / "00000000000000000000.log"
        paths[name].write_bytes(read(name))
    files = ",".join(str(path) for path in paths.values())
    try:
        printed = apache_kafka.dump(["--deep-iteration", "--print-data-log", "--files", files])
    except apache_kafka.Unavailable as reason:
        pytest.skip(str(reason))
    parts = re.split(r"^Dumping (.*)$", printed, flags=re.MULTILINE)
    lines = {path: part.splitlines() for path, part in zip(parts[1::2], parts[2::2], strict=True)}
    return {name: lines[str(path)] for name, path in paths.items()}


def header_of(batch: RecordBatch, position: int) -> dict[str, str]:
    """Return a batch's header in the format of Kafka's tool."""
    header = batch.header
    when = "LogAppendTime" if header.timestamp_type else "CreateTime"
    last_sequence = header.base_sequence + header.last_offset_delta
    horizon = header.delete_horizon_ms
    return {
        "baseOffset": str(header.base_offset),
        "lastOffset": str(header.last_offset),
        "count": str(header.count),
        "baseSequence": str(header.base_sequence),
        "lastSequence": str(last_sequence if header.base_sequence >= 0 else -1),
        "producerId": str(header.producer_id),
        "producerEpoch": str(header.producer_epoch),
        "partitionLeaderEpoch": str(header.leader_epoch),
        "isTransactional": str(header.is_transactional).lower(),
        "isControl": str(header.is_control).lower(),
        "deleteHorizonMs": "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]",
        "position": str(position),
        when: str(header.max_timestamp),
        "size": str(len(batch)),
        "magic": "2",
        "compresscodec": header.codec.name.lower(),
        "crc": str(header.crc),
        "isvalid": "true",
    }


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_kafka_dump_log_reads_equal_batch_headers(dumped, name):
    position, expected = 0, []
    for batch in batches(read(name)):
        expected.append(header_of(batch, position))
        position += len(batch)
    shown = [dict(FIELD.findall(line)) for line in dumped[name] if line.startswith("baseOffset")]
    assert shown == expected


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_kafka_dump_log_reads_equal_records(dumped, name):
    expected = [
        (record.offset, record.timestamp, *(-1 if it is None else len(it) for it in record[2:4]))
        for batch in batches(read(name))
        for record in batch
    ]
    found = [RECORD.match(line) for line in dumped[name] if line.startswith("|")]
    assert [tuple(int(one[part]) for part in (1, 3, 4, 5)) for one in found] == expected


@pytest.mark.oracle
def test_kafka_dump_log_reads_texts_headers_and_markers(dumped):
    for name in ("plain", "gzip", "snappy", "lz4", "zstd"):
        text = "\n".join(dumped[name])
        assert 'key: UA payload: {"flight": 1545, "delay": 2}' in text
        assert "headerKeys: [from,gate]" in text
        assert "headerKeys: [,\u00e9t\u00e9]" in text
    markers = [line for line in dumped["transactions"] if "endTxnMarker" in line]
    assert [re.search(r"endTxnMarker: (\w+)", line)[1] for line in markers] == ["COMMIT", "ABORT"]
