"""Records of __transaction_state: bytes of both versions, and bytes that are not records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.errors import CorruptMessage
from kafkalite.protocol.schemas import transaction_records
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionRecord,
    TransactionState,
)

ids = st.integers(-1, (1 << 63) - 1)
epochs = st.integers(-1, (1 << 15) - 1)
partitions = st.frozensets(st.tuples(st.text(max_size=10), st.integers(0, (1 << 31) - 1)))


@st.composite
def transactions(draw: st.DrawFn, version: int) -> Transaction:
    state = draw(st.sampled_from(TransactionState))
    transaction = Transaction(
        draw(ids), draw(epochs), draw(st.integers(0, (1 << 31) - 1)), state,
        frozenset() if state is TransactionState.EMPTY else draw(partitions),
        draw(ids), draw(ids),
    )  # fmt: skip
    if version == 0:
        return transaction
    return transaction._replace(
        previous_producer_id=draw(ids),
        next_producer_id=draw(ids),
        transaction_version=draw(st.integers(0, 2)),
        next_producer_epoch=draw(epochs),
    )


@given(st.text(max_size=20), st.data(), st.sampled_from([0, 1]))
def test_record_is_read_as_it_was_written(transactional_id, data, version):
    transaction = data.draw(st.none() | transactions(version))
    record = TransactionRecord(transactional_id, transaction, version)
    key, value = transaction_records.write(record)
    found = transaction_records.read(key, value)
    assert found is not None
    assert found[:2] == record[:2]
    if transaction is not None:
        assert found.version == version


def test_version_0_has_the_bytes_of_the_format():
    transaction = Transaction(
        7, 3, 60_000, TransactionState.ONGOING, frozenset({("b", 1), ("a", 2), ("a", 0)}), 11, 10
    )
    key, value = transaction_records.write(TransactionRecord("id", transaction, 0))
    assert key == bytes.fromhex("0000 0002 6964")
    assert value == bytes.fromhex(
        "0000 0000000000000007 0003 0000ea60 01"
        "00000002 0001 61 00000002 00000000 00000002 0001 62 00000001 00000001"
        "000000000000000b 000000000000000a"
    )


def test_version_1_is_flexible_and_omits_default_tags():
    transaction = Transaction(7, 3, 60_000, TransactionState.EMPTY, last_update_ms=11)
    _, value = transaction_records.write(TransactionRecord("id", transaction))
    assert value == bytes.fromhex(
        "0001 0000000000000007 0003 0000ea60 00 00 000000000000000b ffffffffffffffff 00"
    )


def test_version_1_has_producer_ids_version_and_next_epoch_as_tags():
    transaction = Transaction(
        7, 3, 1, TransactionState.COMPLETE_ABORT, frozenset(), 11, 10, 6, 8, 2, 5
    )
    _, value = transaction_records.write(TransactionRecord("id", transaction))
    assert value is not None
    assert value.endswith(
        bytes.fromhex("04 00 08 0000000000000006 01 08 0000000000000008 02 02 0002 03 02 0005")
    )


def test_tags_of_later_versions_are_ignored():
    transaction = Transaction(7, 3, 1, TransactionState.EMPTY, last_update_ms=11)
    key, value = transaction_records.write(TransactionRecord("id", transaction))
    assert value is not None
    found = transaction_records.read(key, value[:-1] + bytes.fromhex("02 04 02 0005 09 01 ff"))
    assert found is not None
    assert found.transaction == transaction


@pytest.mark.parametrize("key, value", [("0001 0002 6964", ""), ("0000 0002 6964", "0002 00")])
def test_record_of_an_unknown_version_is_skipped(key, value):
    assert transaction_records.read(bytes.fromhex(key), bytes.fromhex(value)) is None


@pytest.mark.parametrize(
    "key, value",
    [
        ("", None),
        ("00", None),
        ("0000 0003 6964", None),
        ("0000 0002 6964", ""),
        ("0000 0002 6964", "0000 00"),
        ("0000 0001 ff", None),
    ],
)
def test_record_that_is_cut_short_or_is_not_text_is_corrupt(key, value):
    with pytest.raises(CorruptMessage):
        content = None if value is None else bytes.fromhex(value)
        transaction_records.read(bytes.fromhex(key), content)


def test_record_with_an_unknown_state_is_corrupt():
    transaction = Transaction(7, 3, 1, TransactionState.EMPTY)
    key, value = transaction_records.write(TransactionRecord("id", transaction, 0))
    assert value is not None
    at = 2 + 8 + 2 + 4
    with pytest.raises(CorruptMessage, match="unknown state 6"):
        transaction_records.read(key, value[:at] + b"\x06" + value[at + 1 :])
