"""BatchBuilder.append_table: the twin's records, all or none; and the memory of large builders."""

from __future__ import annotations

from array import array

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafkalite._ext import record_writer
from tests.records.columns import NOW, ROWS, column, columns_of, times_column
from tests.twins import record_writer as twin


@given(
    ROWS, ROWS, st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(60, 3_000),
    st.integers(0, 5),
)  # fmt: skip
def test_append_table_appends_the_rows_of_the_twin_or_none(rows, more, kind, room, before):
    more = [(key, value, (), time) for key, value, _, time in more]
    value, key, _, times = columns_of(more, kind, before=before, after=2)
    builder = record_writer.BatchBuilder(room)
    taken = twin.fitting(rows, room)
    for row in rows[:taken]:
        assert builder.append(*row) >= 0
    _, _, all_of_them, _ = record_writer.measure_columns(len(more), value, key, None, times)
    limit = 61 + all_of_them
    together = rows[:taken]
    place = builder.append_table(len(more), value, key, times, NOW, limit, limit)
    if place >= 0:
        assert place == taken
        together = together + more
    else:
        assert builder.size + all_of_them + 15 * len(more) > room, "it would have fitted"
    assert bytes(builder.payload()) == (twin.payload(together) if together else b"")
    if together:
        found = [row[3] for row in together]
        assert (builder.base_timestamp, builder.max_timestamp) == (found[0], max(found))


def test_append_table_rejects_limits_invalid_rows_and_closed_builder():
    value = column(pa.array([b"v" * 9, b"w" * 20]))
    largest, _, all_of_them, _ = record_writer.measure_columns(2, value, None, None, None)
    limits = 61 + largest, 61 + all_of_them
    builder = record_writer.BatchBuilder(1_000)
    invalid = (None, array("i", [0, 2, 9]), b"abc", 0, False)
    early = times_column(pa.array([NOW, -1], pa.int64()))
    for count, columns, largest_max, size_max in (
        (2, (value, None, None), limits[0] - 1, limits[1]),
        (2, (value, None, None), limits[0], limits[1] - 1),
        (2, (invalid, None, None), *limits),
        (2, (value, invalid, None), 1_000, 1_000),
        (2, (value, None, early), 1_000, 1_000),
        (3, (value, None, None), 1_000, 1_000),
        (0, (value, None, None), *limits),
    ):
        assert builder.append_table(count, *columns, NOW, largest_max, size_max) == -1
        assert builder.count == builder.size == 0
    assert builder.append_table(2, value, None, None, NOW, *limits) == 0
    builder.close()
    assert builder.append_table(2, value, None, None, NOW, *limits) == -1


def test_memory_of_a_large_builder_is_reused(request):
    record_writer.use_block_cache(1)
    request.addfinalizer(lambda: record_writer.use_block_cache(-1))
    sizes = [1_000, 70_000, 100_000, 300_000, 200_000, 600_000, 90_000]
    builders = {}
    for number in range(40):
        capacity = sizes[number % len(sizes)]
        builder = builders[number % 12] = record_writer.BatchBuilder(capacity)
        records = []
        while builder.append(None, b"%09d" % (number + len(records)) * 30, None, NOW) >= 0:
            records.append((None, b"%09d" % (number + len(records)) * 30, (), NOW))
        assert capacity - 300 < builder.size <= capacity
        assert bytes(builder.payload()) == twin.payload(records)
