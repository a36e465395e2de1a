"""send_arrow against real brokers, over ring and TCP: each row once, in order and unchanged."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pyarrow as pa
import pytest

from kafkalite._ext.hashing import partition_of
from kafkalite.client.producer.arrow_columns import columns_of
from kafkalite.client.producer.column_batches import PartitionRows
from kafkalite.client.producer.column_sender import ColumnSender
from kafkalite.client.producer.producer import Producer
from kafkalite.errors import BufferExhausted, MessageTooLarge
from kafkalite.testing import Broker
from tests.client.reading_back import read_back
from tests.simulation.producer import Harness

WAIT_S = 30


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two workers"])
def broker(request):
    with Broker(workers=request.param) as made:
        yield made


@pytest.fixture(params=["auto", "off"], ids=["ring", "tcp"])
def native(request):
    return request.param


def producer(broker, native, **keywords):
    return Producer(broker.bootstrap, native=native, **keywords)


def total(result) -> int:
    return sum(count for _, _, count in result)


def test_send_arrow_delivers_all_columns(broker, native):
    topic = broker.topic()
    rows = pa.table(
        {
            "value": pa.array([b"a", None, b"c"], pa.binary()),
            "key": pa.array(["k1", "k2", None], pa.string()),
            "timestamp": pa.array([1_700_000_000_001, 1_700_000_000_000, 1_700_000_000_002]),
            "headers": pa.array(
                [[("h", b"1"), ("h", None)], [], None], pa.map_(pa.string(), pa.binary())
            ),
        }
    )
    with producer(broker, native) as made:
        assert made.send_arrow(topic, rows).result(WAIT_S) == [(0, 0, 3)]
    found = read_back(broker, topic)
    assert [(each.key(), each.value(), each.timestamp()[1], each.headers()) for each in found] == [
        (b"k1", b"a", 1_700_000_000_001, [("h", b"1"), ("h", None)]),
        (b"k2", None, 1_700_000_000_000, None),
        (None, b"c", 1_700_000_000_002, None),
    ]


def test_large_table_is_sent_in_several_batches_in_order(broker, native):
    topic = broker.topic()
    values = [b"%09d" % number * 20 for number in range(30_000)]
    rows = pa.table(
        {"value": pa.chunked_array([values[:7_000], values[7_000:]], pa.large_binary())}
    )
    with producer(broker, native) as made:
        sent = made.send_arrow(topic, rows)
        places = sent.result(WAIT_S)
        assert sent.done() and len(sent) == len(places) > 5
    offset = 0
    for partition, base_offset, count in places:
        assert (partition, base_offset) == (0, offset)
        offset += count
    assert offset == 30_000
    assert [each.value() for each in read_back(broker, topic)] == values


def test_rows_and_tables_keep_their_send_order(broker, native):
    topic = broker.topic()
    with producer(broker, native, linger_ms=1_000) as made:
        for number in range(20):
            made.send(topic, b"row %d" % number)
            made.send_arrow(topic, pa.table({"value": [b"column %d" % number]}))
        made.flush(WAIT_S)
    expected = [word % n for n in range(20) for word in (b"row %d", b"column %d")]
    assert [each.value() for each in read_back(broker, topic)] == expected


def test_table_keys_select_the_partitions_of_row_keys(broker, native):
    topic = broker.topic(partitions=5)
    keys = [b"key %d" % (number % 100) for number in range(5_000)]
    values = [b"%d" % number for number in range(5_000)]
    with producer(broker, native) as made:
        assert (
            total(made.send_arrow(topic, pa.table({"key": keys, "value": values})).result())
            == 5_000
        )
        by_row = made.send(topic, b"row", key=keys[3]).result(WAIT_S)
    assert by_row.partition == partition_of(keys[3], 5)
    expected = [[] for _ in range(5)]
    for key, value in zip(keys, values, strict=True):
        expected[partition_of(key, 5)].append(value)
    expected[by_row.partition].append(b"row")
    found = [[] for _ in range(5)]
    for each in read_back(broker, topic):
        found[each.partition()].append(each.value())
    assert found == expected


def test_partition_column_is_used_and_null_leaves_the_choice(broker, native):
    topic = broker.topic(partitions=3)
    rows = pa.table(
        {
            "value": [b"%d" % n for n in range(300)],
            "key": [b"a key" if n % 3 == 0 else None for n in range(300)],
            "partition": pa.array([None if n % 3 == 0 else n % 3 for n in range(300)], pa.int64()),
        }
    )
    with producer(broker, native) as made:
        assert total(made.send_arrow(topic, rows).result(WAIT_S)) == 300
    for each in read_back(broker, topic):
        number = int(each.value())
        expected = partition_of(b"a key", 3) if number % 3 == 0 else number % 3
        assert each.partition() == expected


def test_rows_without_key_are_spread_in_contiguous_parts(broker, native):
    topic = broker.topic(partitions=3)
    values = [b"%06d" % number for number in range(60_000)]
    with producer(broker, native) as made:
        assert total(made.send_arrow(topic, pa.table({"value": values})).result(WAIT_S)) == 60_000
        made.send_arrow(topic, pa.table({"value": [b"few"] * 100})).result(WAIT_S)
    found = [[] for _ in range(3)]
    for each in read_back(broker, topic):
        found[each.partition()].append(each.value())
    few = [part for part in found if part[-100:] == [b"few"] * 100]
    assert len(few) == 1, "a few rows stay together"
    parts = sorted([value for value in part if value != b"few"] for part in found)
    assert [value for part in parts for value in part] == values
    assert all(len(part) == 20_000 for part in parts)


def test_rows_with_null_keys_go_to_one_partition(broker, native):
    topic = broker.topic(partitions=4)
    keys = [None if n % 2 else b"%d" % n for n in range(1_000)]
    rows = pa.table(
        {"value": [b"%d" % n for n in range(1_000)], "key": pa.array(keys, pa.binary())}
    )
    with producer(broker, native) as made:
        made.send_arrow(topic, rows).result(WAIT_S)
    found = read_back(broker, topic)
    assert sorted(int(each.value()) for each in found) == list(range(1_000))
    for each in found:
        if each.key() is not None:
            assert each.partition() == partition_of(each.key(), 4)
    assert len({each.partition() for each in found if each.key() is None}) == 1


def test_custom_partitioner_is_called_for_each_row(broker, native):
    topic = broker.topic(partitions=2)
    keys = ["a", None, "b", "ccc"]
    with producer(
        broker, native, partitioner=lambda topic, key, count: len(key or b"") % 2
    ) as made:
        rows = pa.table({"value": ["v"] * 4, "key": pa.array(keys, pa.large_string()).slice(0)})
        made.send_arrow(topic, rows.slice(1)).result(WAIT_S)
    by_partition = sorted(
        (each.partition(), each.key() or b"") for each in read_back(broker, topic)
    )
    assert by_partition == [(0, b""), (1, b"b"), (1, b"ccc")]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_tables_are_compressed(broker, native, codec):
    topic = broker.topic()
    values = [b"%d is a number " % number * 10 for number in range(8_000)]
    with producer(broker, native, compression_type=codec) as made:
        assert total(made.send_arrow(topic, pa.table({"value": values})).result(WAIT_S)) == 8_000
    assert [each.value() for each in read_back(broker, topic)] == values


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"value": [1, 2]}, "value is int64"),
        ({"value": [b"x"], "colour": ["red"]}, "colour"),
        ({"key": [b"x"]}, "no column value"),
        ({"value": [b"x"], "key": [1.5]}, "key is double"),
        ({"value": [b"x"], "timestamp": ["now"]}, "timestamp is string"),
    ],
)
def test_unsupported_table_is_rejected_with_name_and_type(broker, native, rows, words):
    topic = broker.topic()
    with producer(broker, native) as made:
        with pytest.raises(TypeError, match=words):
            made.send_arrow(topic, pa.table(rows))
        with pytest.raises(TypeError, match="list"):
            made.send_arrow(topic, [b"x"])
        with pytest.raises(ValueError, match="partition"):
            made.send_arrow(topic, pa.table({"value": [b"x"], "partition": [7]}))
        made.send_arrow(topic, pa.table({"value": pa.array([], pa.binary())})).result(WAIT_S)
        made.send_arrow(topic, pa.table({"value": [b"good"]})).result(WAIT_S)
    assert [each.value() for each in read_back(broker, topic)] == [b"good"]


def test_row_above_max_request_size_is_rejected_with_its_number(broker, native):
    topic = broker.topic()
    with producer(broker, native) as made:
        rows = pa.table({"value": [b"small", b"x" * (1 << 20), b"behind"]})
        with pytest.raises(MessageTooLarge, match="Row 1 "):
            made.send_arrow(topic, rows)
        made.send_arrow(topic, pa.table({"value": [b"x" * 900_000]})).result(WAIT_S)


def test_oversized_row_is_rejected_before_any_row_is_sent(broker, native):
    topic = broker.topic()
    values = [b"small"] * 50_000 + [b"x" * (1 << 20)]
    rows = pa.table({"value": pa.chunked_array([[b"first"], values], pa.binary())})
    with producer(broker, native) as made:
        made.send_arrow(topic, pa.table({"value": [b"before"]})).result(WAIT_S)
        with pytest.raises(MessageTooLarge, match="Row 50001 takes 10486.. bytes.*No row was sent"):
            made.send_arrow(topic, rows)
        made.send_arrow(topic, pa.table({"value": [b"behind"]})).result(WAIT_S)
    assert [each.value() for each in read_back(broker, topic)] == [b"before", b"behind"]


def test_send_arrow_error_holds_the_deliveries_of_sent_rows():
    values = [b"%06d" % number * 100 for number in range(4_000)]
    with Broker() as broker:
        topic = broker.topic()
        with producer(broker, "off", buffer_memory=800_000, max_block_ms=20) as made:
            made.partitions_for(topic, WAIT_S)  # the sends below must not wait for metadata
            made.send_arrow(topic, pa.table({"value": [b"first"]})).result(WAIT_S)
            os.killpg(broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(BufferExhausted) as found:
                    made.send_arrow(topic, pa.table({"value": values}))
            finally:
                os.killpg(broker.pid, signal.SIGCONT)
            sent = found.value.deliveries
            count = total(sent.result(WAIT_S))
        read = [each.value() for each in read_back(broker, topic)]
    assert 0 < count < 4_000
    assert read == [b"first", *values[:count]]


def test_batches_too_large_for_the_topic_are_split(broker, native):
    topic = broker.topic(config={"max.message.bytes": "30000"})
    values = [b"%06d" % number * 10 for number in range(4_000)]
    with producer(broker, native) as made:
        sent = made.send_arrow(topic, pa.table({"value": values}))
        assert total(sent.result(WAIT_S)) == 4_000
        assert made.metrics()["buffer_memory_left"] == made.metrics()["buffer_memory"]
    assert [each.value() for each in read_back(broker, topic)] == values


def test_table_delivery_completes_after_all_batches(broker, native):
    topic = broker.topic()
    told = threading.Event()
    with producer(broker, native) as made:
        sent = made.send_arrow(topic, pa.table({"value": [b"x" * 100] * 50_000}))
        sent.add_done_callback(lambda deliveries: told.set())
        assert told.wait(WAIT_S)
        assert sent.done() and sent.exception(0) is None
        again = threading.Event()
        sent.add_done_callback(lambda deliveries: again.set())
        assert again.is_set()


def test_small_ring_and_memory_lose_no_row(native):
    with Broker(config={"native.ring.bytes": "65536"}) as broker:
        topic = broker.topic()
        values = [b"%06d" % number * 20 for number in range(20_000)]
        with producer(broker, native, buffer_memory=300_000) as made:
            sent = made.send_arrow(topic, pa.table({"value": values}))
            for number in range(2_000):
                made.send(topic, b"row %d" % number)
            assert total(sent.result(WAIT_S)) == 20_000
            made.flush(WAIT_S)
            if native == "auto":
                assert made.metrics()["ring_batches"] > 100
        rows = [b"row %d" % number for number in range(2_000)]
        assert [each.value() for each in read_back(broker, topic)] == values + rows


def test_resent_columns_have_the_same_bytes(broker):
    # A batch of columns keeps the positions of its rows, not their encoded bytes.
    topic = broker.topic()
    values = [b"%06d" % number * 15 for number in range(30_000)]
    with producer(broker, "auto") as made:
        made.send_arrow(topic, pa.table({"value": [b"first"]})).result(WAIT_S)
        sender = made._sender
        whole = ColumnSender.send

        def lose_half_way(self, run, now_ms, number, block_s, batches):
            middle = (run.first + run.end) // 2
            whole(self, run._replace(end=middle), now_ms, number, block_s, batches)
            for node in list(sender.nodes.values()):
                sender.locked(sender.abandon_ring, node, MessageTooLarge("on purpose"))
            whole(self, run._replace(first=middle), now_ms, number, block_s, batches)

        made._columns.send = lose_half_way.__get__(made._columns)
        assert total(made.send_arrow(topic, pa.table({"value": values})).result(WAIT_S)) == 30_000
        counted = made.metrics()
    assert counted["rings_lost"] == 1 and counted["tcp_batches"] > 0
    assert [each.value() for each in read_back(broker, topic)] == [b"first", *values]


@pytest.mark.parametrize("row_count", [1, 100, 1_500, 20_000])
def test_columns_without_a_ring_are_counted_in_buffer_memory(tmp_path, row_count):
    harness = Harness(tmp_path)
    harness.node.ring = None
    (columns,) = columns_of(pa.table({"value": [b"x" * 100] * row_count}))
    run = PartitionRows(harness.queue, columns, None, 0, row_count)
    pieces = []
    try:
        for _ in range(max(1, 800 // row_count)):
            harness.columns.send(run, 0, 0, 0.0, pieces)
    except BufferExhausted:
        pass
    accumulator = harness.accumulator
    counted = accumulator.memory_size - accumulator.memory_left
    contents = [piece.batch.content for piece in dict.fromkeys(pieces)]
    open_batch = harness.queue.open_batch
    if open_batch is not None:  # few rows share one batch, counted with its full capacity
        assert {piece.batch for piece in pieces} == {open_batch}
        assert open_batch.content.size <= counted == open_batch.memory_size
    else:
        held = sum(sys.getsizeof(content.buffer) for content in contents)
        assert contents and held <= counted <= accumulator.memory_size
        assert counted <= 2 * sum(content.size + 1024 for content in contents)
    harness.close()


def numbered_table(first, count):
    return pa.table({"value": [b"%06d" % number for number in range(first, first + count)]})


def check_places(broker, topic, outcomes, values):
    """Check that each piece is at the offsets of its outcome, and that all are there."""
    read = [each.value() for each in read_back(broker, topic)]
    assert sorted(read) == sorted(values)
    for first, pieces in outcomes:
        for _, offset, count in pieces:
            assert read[offset : offset + count] == values[first : first + count]
            first += count


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_small_tables_share_batches_with_rows_in_order(broker, native, codec):
    topic = broker.topic()
    tables, rows, sent = 300, 7, []
    with producer(broker, native, linger_ms=60_000, compression_type=codec) as made:
        for first in range(0, tables * (rows + 1), rows + 1):
            sent.append((first, made.send_arrow(topic, numbered_table(first, rows))))
            row = made.send(topic, b"%06d" % (first + rows))
        made.flush(WAIT_S)
        assert row.result(0).offset == tables * (rows + 1) - 1
        outcomes = [(first, each.result(0)) for first, each in sent]
        assert [total(pieces) for _, pieces in outcomes] == [rows] * tables
        assert made.metrics()["batches"] < tables / 10
    values = [b"%06d" % number for number in range(tables * (rows + 1))]
    assert [each.value() for each in read_back(broker, topic)] == values
    check_places(broker, topic, outcomes, values)


def test_small_tables_without_key_fill_a_batch_of_one_partition(broker, native):
    topic = broker.topic(partitions=4)
    with producer(broker, native, linger_ms=60_000) as made:
        sent = [made.send_arrow(topic, numbered_table(first, 10)) for first in range(0, 1_000, 10)]
        made.flush(WAIT_S)
        partitions = [partition for each in sent for partition, _, _ in each.result(0)]
        assert len(set(partitions)) == 1
        made.send_arrow(topic, numbered_table(0, 10)).result(WAIT_S)


def test_small_tables_in_split_batches_have_exact_offsets(broker, native):
    topic = broker.topic(config={"max.message.bytes": "600"})
    with producer(broker, native, linger_ms=60_000) as made:
        sent = [(first, made.send_arrow(topic, numbered_table(first, 9)))
                for first in range(0, 900, 9)]  # fmt: skip
        outcomes = [(first, each.result(WAIT_S)) for first, each in sent]
        assert max(len(pieces) for _, pieces in outcomes) > 1
        assert {total(pieces) for _, pieces in outcomes} == {9}
    check_places(broker, topic, outcomes, [b"%06d" % number for number in range(900)])


def test_small_table_is_delivered_with_and_without_linger(broker, native):
    topic = broker.topic()
    with producer(broker, native, linger_ms=0) as made:
        delivered = threading.Event()
        sent = made.send_arrow(topic, numbered_table(0, 5))
        sent.add_done_callback(lambda _: delivered.set())
        assert delivered.wait(WAIT_S)
        assert sent.result(0) == [(0, 0, 5)]
    with producer(broker, native, linger_ms=20) as made:
        sent = made.send_arrow(topic, numbered_table(0, 5))
        delivered = threading.Event()
        sent.add_done_callback(lambda _: delivered.set())
        assert delivered.wait(WAIT_S)


def test_small_tables_wait_for_memory_and_fail_after_max_block_ms():
    with Broker() as broker:
        topic = broker.topic()
        with producer(broker, "off", buffer_memory=40_000, max_block_ms=20) as made:
            made.partitions_for(topic, WAIT_S)  # the sends below must not wait for metadata
            made.send_arrow(topic, numbered_table(0, 10)).result(WAIT_S)
            sent, first = [], 10
            os.killpg(broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(BufferExhausted) as found:
                    for first in range(10, 100_000, 500):
                        sent.append((first, made.send_arrow(topic, numbered_table(first, 500))))
            finally:
                os.killpg(broker.pid, signal.SIGCONT)
            last = found.value.deliveries.result(WAIT_S)
            outcomes = [(0, [(0, 0, 10)])]
            outcomes += [(begin, each.result(WAIT_S)) for begin, each in sent]
            outcomes.append((first, last))
        assert sent
        values = [b"%06d" % number for number in range(first + total(last))]
        check_places(broker, topic, outcomes, values)
