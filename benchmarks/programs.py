"""The Python programs that native.py times: one process each, as a user would write it.

    python -m benchmarks.programs MODE '{"option": value, …}'

prints a line of JSON: records and seconds, or the figures of the mode.  A sender counts from its
first record, after one that paid for connections and metadata, to the last acknowledgement.  A
receiver counts from the first records, without them, to the last: the time a client takes to find
a broker is not part of its speed.

A record is 100 bytes without a key.  Every client has its own defaults, and its delivery is
awaited by its own flush.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from benchmarks.harness import have_memory_at_hand

RECORD_SIZE = 100
ROWS_A_BATCH = 1 << 20
CONSUME_COUNT = 10_000
PATIENCE_S = 30.0

Wait = Callable[[], object]


class Stamps:
    """Times and counts of the first and the last records received."""

    def __init__(self) -> None:
        self.first_s = self.last_s = 0.0
        self.first = self.count = 0

    def add(self, count: int) -> None:
        self.last_s = time.monotonic()
        if not self.count:
            self.first_s, self.first = self.last_s, count
        self.count += count

    def told(self, begun_s: float) -> dict[str, float]:
        """Return records and seconds after the first ones; of all if there were no more."""
        if self.count == self.first:
            return {"records": self.count, "seconds": self.last_s - begun_s}
        return {"records": self.count - self.first, "seconds": self.last_s - self.first_s}


def table_of(count: int) -> Any:
    """Return `count` records as an Arrow table, in record batches of a million."""
    import numpy as np
    import pyarrow as pa

    block = os.urandom(1 << 20)
    schema = pa.schema([pa.field("value", pa.binary())])
    pieces = []
    for first in range(0, count, ROWS_A_BATCH):
        rows = min(ROWS_A_BATCH, count - first)
        content = pa.py_buffer((block * (rows * RECORD_SIZE // len(block) + 1))[: rows * 100])
        offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * RECORD_SIZE)
        value = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, content])
        pieces.append(pa.record_batch([value], schema=schema))
    return pa.Table.from_batches(pieces, schema)


# Sending; `go` is called after the first record is acknowledged, and waits for the other programs.


def at_once() -> None: ...


def begin(go: Wait, records: int) -> None:
    """Make memory for the log available and wait for the other programs; the clock starts next.

    Not earlier, because this program's own allocations would use that memory.
    """
    have_memory_at_hand(records * (RECORD_SIZE + 8))
    go()


def send_arrow(
    bootstrap: str, topic: str, records: int, go: Wait = at_once, **options: Any
) -> dict[str, float]:
    from kafkalite import Producer

    table = table_of(records)
    with Producer(bootstrap, **options) as producer:
        producer.send_arrow(topic, table_of(1)).result(PATIENCE_S)
        begin(go, records)
        begun_s = time.monotonic()
        sent = producer.send_arrow(topic, table)
        producer.flush(PATIENCE_S)
        seconds = time.monotonic() - begun_s
        assert sum(count for _, _, count in sent.result(PATIENCE_S)) == records
    return {"records": records, "seconds": seconds, "begun_s": begun_s}


def send_tables(
    bootstrap: str, topic: str, records: int, rows: int, **options: Any
) -> dict[str, float]:
    """Send the same table of `rows` rows repeatedly; return the CPU time as well."""
    from kafkalite import Producer

    table = table_of(rows)
    calls = records // rows
    with Producer(bootstrap, **options) as producer:
        producer.send_arrow(topic, table).result(PATIENCE_S)
        begin(at_once, records)
        begun_s, used_s = time.monotonic(), time.process_time()
        for _ in range(calls - 1):
            producer.send_arrow(topic, table)
        last = producer.send_arrow(topic, table)
        producer.flush(PATIENCE_S)
        seconds, used_s = time.monotonic() - begun_s, time.process_time() - used_s
        ends = [base + count for _, base, count in last.result(PATIENCE_S)]
        assert max(ends) == rows * (calls + 1)
    return {"records": rows * calls, "seconds": seconds, "cpu_s": used_s}


def send(
    bootstrap: str, topic: str, records: int, go: Wait = at_once, **options: Any
) -> dict[str, float]:
    from kafkalite import Producer

    value = os.urandom(RECORD_SIZE)
    with Producer(bootstrap, **options) as producer:
        producer.send(topic, value).result(PATIENCE_S)
        begin(go, records)
        begun_s = time.monotonic()
        for _ in range(records - 1):
            producer.send(topic, value)
        last = producer.send(topic, value)
        producer.flush(PATIENCE_S)
        seconds = time.monotonic() - begun_s
        assert last.result(PATIENCE_S).offset == records
    return {"records": records, "seconds": seconds, "begun_s": begun_s}


def confluent_producer(bootstrap: str, topic: str) -> Any:
    """Return a producer that has sent a record, and has room for the load."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    producer.produce(topic, b"first")
    assert producer.flush(PATIENCE_S) == 0
    return producer


def produce(bootstrap: str, topic: str, records: int, go: Wait = at_once) -> dict[str, float]:
    value = os.urandom(RECORD_SIZE)
    producer = confluent_producer(bootstrap, topic)
    begin(go, records)
    begun_s = time.monotonic()
    for _ in range(records):
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    return {"records": records, "seconds": time.monotonic() - begun_s, "begun_s": begun_s}


def produce_batch(bootstrap: str, topic: str, records: int, go: Wait = at_once) -> dict[str, float]:
    """Send with confluent-kafka's own batch call, ten thousand records at a time."""
    messages = [{"value": os.urandom(RECORD_SIZE)}] * min(CONSUME_COUNT, records)
    producer = confluent_producer(bootstrap, topic)
    begin(go, records)
    begun_s = time.monotonic()
    for left in range(records, 0, -len(messages)):
        chunk = messages[:left]
        assert producer.produce_batch(topic, chunk) == len(chunk)
    assert producer.flush(PATIENCE_S) == 0
    return {"records": records, "seconds": time.monotonic() - begun_s, "begun_s": begun_s}


def write(path: str, records: int) -> dict[str, float]:
    """Write the same bytes into a file, by plain `write` of as much as a batch holds."""
    from kafkalite._ext.record_writer import encode_columns, seal
    from kafkalite.client.producer.arrow_columns import columns_of
    from kafkalite.client.producer.column_batches import CHUNK_SIZE_MAX as batch_size

    log = bytearray()
    for columns in columns_of(table_of(records)):
        first = 0
        while first < columns.row_count:
            batch = bytearray(batch_size)
            taken, size, base, newest = encode_columns(
                batch, first, columns.row_count, None, *columns[1:5], 1
            )
            log += batch[: seal(batch, size, taken, base, newest, 0, -1, -1, -1)]
            first += taken
    bytes_left = memoryview(log)
    with open(path, "wb", buffering=0) as file:
        begin(at_once, records)
        begun_s = time.monotonic()
        while bytes_left:
            bytes_left = bytes_left[file.write(bytes_left[:batch_size]) :]
        return {"records": records, "seconds": time.monotonic() - begun_s}


def round_trips(bootstrap: str, topic: str, count: int, **options: Any) -> dict[str, float]:
    """Measure one record, its acknowledgement, the next record."""
    from kafkalite import Producer

    value = os.urandom(RECORD_SIZE)
    taken_ns = []
    with Producer(bootstrap, acks=1, linger_ms=0, **options) as producer:
        for _ in range(min(count, 200)):
            producer.send(topic, value).result(PATIENCE_S)
        for _ in range(count):
            begun_ns = time.monotonic_ns()
            producer.send(topic, value).result(PATIENCE_S)
            taken_ns.append(time.monotonic_ns() - begun_ns)
    taken_ns.sort()
    return {
        "p50_us": taken_ns[len(taken_ns) // 2] / 1e3,
        "p99_us": taken_ns[len(taken_ns) * 99 // 100] / 1e3,
    }


def idle(bootstrap: str, topic: str, producers: int, seconds: float) -> dict[str, float]:
    """Return the CPU time here of producers that have sent a record and are idle.

    Prints the line `idle` when the measurement begins, and `busy` when it ends.
    """
    from kafkalite import Producer

    made = [Producer(bootstrap) for _ in range(producers)]
    for producer in made:
        producer.send(topic, b"one").result(PATIENCE_S)
    time.sleep(seconds / 4)
    print("idle", flush=True)
    before_s = time.process_time()
    time.sleep(seconds)
    used_s = time.process_time() - before_s
    print("busy", flush=True)
    for producer in made:
        producer.close()
    return {"used_s": used_s, "seconds": seconds}


# Receiving; `ready` is called when the first records have been received.


def batches(
    bootstrap: str,
    topic: str,
    records: int,
    ready: Wait = at_once,
    **options: Any,
) -> dict[str, float]:
    from kafkalite import Consumer

    stamps, begun_s = Stamps(), time.monotonic()
    with Consumer(bootstrap, topics=[topic], **options) as consumer:
        for batch in consumer.batches():
            if not stamps.count:
                ready()
            stamps.add(batch.num_rows)
            if stamps.count >= records:
                return {**stamps.told(begun_s), "ended_s": stamps.last_s}
    raise RuntimeError(f"{stamps.count} of {records} records came")


def iterate(
    bootstrap: str,
    topic: str,
    records: int,
    ready: Wait = at_once,
    **options: Any,
) -> dict[str, float]:
    from kafkalite import Consumer

    begun_s = first_s = time.monotonic()
    count = 0
    with Consumer(bootstrap, topics=[topic], **options) as consumer:
        for message in consumer:
            count += 1
            if count == 1:
                ready()
                first_s = time.monotonic()
            assert message.value
            if count >= records:
                break
        ended_s = time.monotonic()
    return told_by_ones(count, begun_s, first_s, ended_s)


def told_by_ones(count: int, begun_s: float, first_s: float, ended_s: float) -> dict[str, float]:
    seconds = ended_s - first_s if count > 1 else ended_s - begun_s
    return {"records": max(count - 1, 1), "seconds": seconds, "ended_s": ended_s}


def confluent_consumer(bootstrap: str, topic: str) -> Any:
    """Return a consumer that reads partition 0 from its beginning without pauses.

    By default librdkafka pauses for a second when it holds 100,000 records.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def consume(bootstrap: str, topic: str, records: int, ready: Wait = at_once) -> dict[str, float]:
    stamps, begun_s = Stamps(), time.monotonic()
    with closing(confluent_consumer(bootstrap, topic)) as consumer:
        while stamps.count < records:
            # First one alone: the sender sends more only after the receiver is ready.
            count_max = min(CONSUME_COUNT, records - stamps.count) if stamps.count else 1
            found = consumer.consume(count_max, PATIENCE_S)
            assert found, f"{stamps.count} of {records} records came"
            if not stamps.count:
                ready()
            stamps.add(len(found))
    return {**stamps.told(begun_s), "ended_s": stamps.last_s}


def poll(bootstrap: str, topic: str, records: int, ready: Wait = at_once) -> dict[str, float]:
    begun_s = first_s = time.monotonic()
    with closing(confluent_consumer(bootstrap, topic)) as consumer:
        for place in range(records):
            message = consumer.poll(PATIENCE_S)
            assert message.value(), f"{place} of {records} records came"
            if place == 0:
                ready()
                first_s = time.monotonic()
        ended_s = time.monotonic()
    return told_by_ones(records, begun_s, first_s, ended_s)


# Receiving as a member of a share group: the time ends when the last record is acknowledged.


def share_batches(bootstrap: str, topic: str, records: int, group: str) -> dict[str, float]:
    from kafkalite import ShareConsumer

    stamps, begun_s = Stamps(), time.monotonic()
    with ShareConsumer(bootstrap, topics=[topic], group=group) as consumer:
        for batch in consumer.batches(timeout=PATIENCE_S):
            stamps.add(len(batch))
            if stamps.count >= records:
                break
        assert stamps.count >= records, f"{stamps.count} of {records} records came"
        assert not any(consumer.commit(PATIENCE_S).values())
    stamps.add(0)
    return stamps.told(begun_s)


def share_consume(bootstrap: str, topic: str, records: int, group: str) -> dict[str, float]:
    from confluent_kafka import ShareConsumer

    stamps, begun_s = Stamps(), time.monotonic()
    with closing(ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})) as consumer:
        consumer.subscribe([topic])
        while stamps.count < records:
            found = sum(message.error() is None for message in consumer.poll(PATIENCE_S))
            assert found, f"{stamps.count} of {records} records came"
            stamps.add(found)
        assert not any(consumer.commit_sync(PATIENCE_S).values())
        stamps.add(0)
    return stamps.told(begun_s)


MODES: dict[str, Callable[..., dict[str, float]]] = {
    mode.__name__: mode
    for mode in (
        send_arrow, send_tables, send, produce, produce_batch, write, round_trips, idle, batches,
        iterate, consume, poll, share_batches, share_consume,
    )
}  # fmt: skip


def main() -> None:
    mode, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(MODES[mode](**options)))


if __name__ == "__main__":
    main()
