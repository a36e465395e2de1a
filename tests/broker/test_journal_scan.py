"""JournalScan: agrees with its twin, and rejects what is not valid."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite._ext.journal_scan import AT_END, COMPRESSED, JournalScan
from kafkalite.records.batch import Record, RecordBatch, build
from kafkalite.records.compression import Codec
from kafkalite.records.control import TransactionMarker
from tests.twins import journal_scan as twin
from tests.twins import record_batch as batch_twin

KEYS = st.sampled_from([None, b"", b"a", b"b"])
VALUES = st.sampled_from([None, b"", b"1", b"2" * 200])
PAIRS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3)
PRODUCERS = st.integers(1, 2)
BATCHES = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), PAIRS, st.sampled_from([Codec.NONE, Codec.GZIP])),
        st.tuples(st.just("transactional"), PAIRS, PRODUCERS),
        st.tuples(st.just("marker"), st.booleans(), PRODUCERS),
        st.just(("emptied",)),
    ),
    max_size=12,
)


def batch_of(kind, *arguments, base_offset):
    if kind == "marker":
        is_commit, producer_id = arguments
        marker = bytearray(TransactionMarker(producer_id, 3, is_commit, 0).batch(0))
        marker[:8] = base_offset.to_bytes(8, "big")
        return bytes(marker)
    if kind == "emptied":
        return bytes(batch_twin.build(b"", base_offset=base_offset, count=0, attributes=0x30))
    records = [Record(timestamp=0, key=key, value=value) for key, value in arguments[0]]
    if kind == "plain":
        return build(records, base_offset=base_offset, codec=arguments[1])
    return build(
        records, base_offset=base_offset, producer_id=arguments[1], producer_epoch=3,
        transactional=True,
    )  # fmt: skip


def log_of(steps):
    content, offset = b"", 0
    for step in steps:
        content += batch_of(*step, base_offset=offset)
        offset += len(step[1]) if step[0] in ("plain", "transactional") else 1
    return content


def run(scan, content):
    """Run to the end, and return the code and the position."""
    code, position = scan.run(content)
    while code == COMPRESSED:
        size = int.from_bytes(content[position + 8 : position + 12], "big") + 12
        batch = RecordBatch(content[position : position + size])
        assert scan.add_payload(bytes(batch), batch.payload()) == 0
        code, position = scan.run(content, position + size)
    return code, position


def state(scan):
    """Return what a scan has found, with the order of the keys."""
    pending = {producer_id: [*found.items()] for producer_id, found in scan.pending.items()}
    return [*scan.latest.items()], pending, scan.next_offset


@given(steps=BATCHES, is_transactional=st.booleans(), more=st.binary(max_size=70))
@settings(max_examples=150, deadline=None)
def test_scan_finds_what_its_twin_finds(steps, is_transactional, more):
    content = log_of(steps)
    found, expected = JournalScan(is_transactional), twin.JournalScan(is_transactional)
    assert run(found, content) == run(expected, content) == (AT_END, len(content))
    assert state(found) == state(expected)
    assert found.run(content + more, len(content)) == expected.run(content + more, len(content))


@given(steps=BATCHES, at=st.integers(0, 1 << 16), flip=st.integers(1, 255), end=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_scan_of_changed_bytes_finds_what_its_twin_finds(steps, at, flip, end):
    content = bytearray(log_of(steps))
    if content:
        content[at % len(content)] ^= flip
    content = bytes(content[: len(content) - end])
    found, expected = JournalScan(True), twin.JournalScan(True)
    assert found.run(content) == expected.run(content)
    assert state(found) == state(expected)


def test_records_that_do_not_fit_their_batch_are_invalid():
    """The CRC is valid: the log was not damaged, but written wrongly."""
    whole = RecordBatch(build([Record(timestamp=0, key=b"k")] * 2))
    payload = bytes(whole.packed)
    for count, delta in ((1, 1), (3, 2), (2, 0), (-1, 1)):
        batch = bytes(batch_twin.build(payload, count=count, last_offset_delta=delta))
        assert JournalScan(True).run(batch) == (87, 0)
        assert JournalScan(True).add_payload(batch, payload) == 87
