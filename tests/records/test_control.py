"""Markers of transactions: the bytes of their batches."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from kafkalite._ext.record_batch import control_record
from kafkalite.records.batch import Record, build
from kafkalite.records.control import TransactionMarker

markers = st.builds(
    TransactionMarker,
    st.integers(-1, (1 << 63) - 1),
    st.integers(-1, (1 << 15) - 1),
    st.booleans(),
    st.integers(-1, (1 << 31) - 1),
)


@given(markers, st.integers(0, (1 << 62)))
def test_marker_is_a_control_batch_with_one_record(marker, timestamp_ms):
    key = struct.pack(">hh", 0, int(marker.is_commit))
    value = struct.pack(">hi", 0, marker.coordinator_epoch)
    batch = marker.batch(timestamp_ms)
    assert batch == build(
        [Record(timestamp=timestamp_ms, key=key, value=value)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )
    assert control_record(batch) == (int(marker.is_commit), marker.coordinator_epoch)
