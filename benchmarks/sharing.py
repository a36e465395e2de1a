"""Messaging between programs on one host: a sender and a receiver process per way.

    python -m benchmarks.sharing WAY '{"records": n, …}'

prints records and seconds, from the sender's first record until the receiver has the last.  Both
are Python processes; the sender begins when the receiver waits, or, with a broker between them,
when it has received a record.  Each way sends one record at a time, or a thousand where the
library supports that (a multipart message, a list).

Redis writes its append-only file and leaves the disk to the kernel, which is the guarantee of a
broker in `os` mode.  A queue and a socket guarantee and store nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from benchmarks import programs
from benchmarks.programs import PATIENCE_S, RECORD_SIZE, Wait

AT_A_TIME = 1000
STREAM = "records"
QUEUE_SIZE = 100_000

Receive = Callable[..., dict[str, float]]
Send = Callable[..., dict[str, float]]


def value() -> bytes:
    return os.urandom(RECORD_SIZE)


def chunks(records: int) -> list[int]:
    """Return the number of records of each chunk of a thousand; the last may have fewer."""
    return [min(AT_A_TIME, records - first) for first in range(0, records, AT_A_TIME)]


# multiprocessing.Queue.


def queue_send(queue: Any, records: int, go: Wait) -> dict[str, float]:
    one = value()
    go()
    begun_s = time.monotonic()
    for _ in range(records):
        queue.put(one)
    return {"begun_s": begun_s}


def queue_receive(queue: Any, records: int, ready: Wait) -> dict[str, float]:
    ready()
    for _ in range(records):
        assert queue.get()
    return {"ended_s": time.monotonic()}


def queue_send_lists(queue: Any, records: int, go: Wait) -> dict[str, float]:
    # Separate records: pickle would write one object once and then refer to it.
    ones = [value() for _ in range(AT_A_TIME)]
    go()
    begun_s = time.monotonic()
    for count in chunks(records):
        queue.put(ones[:count])
    return {"begun_s": begun_s}


def queue_receive_lists(queue: Any, records: int, ready: Wait) -> dict[str, float]:
    ready()
    count = 0
    while count < records:
        count += len(queue.get())
    return {"ended_s": time.monotonic()}


# pyzmq.


@contextmanager
def zmq_socket(kind: str, address: str) -> Iterator[Any]:
    import zmq

    context = zmq.Context()
    socket = context.socket(getattr(zmq, kind))
    socket.set_hwm(QUEUE_SIZE)
    socket.rcvtimeo = socket.sndtimeo = int(PATIENCE_S * 1000)
    if kind == "PULL":
        socket.bind(address)
    else:
        socket.connect(address)
    try:
        yield socket
    finally:
        socket.close()
        context.term()  # which waits until everything was sent


def zmq_send(address: str, records: int, go: Wait) -> dict[str, float]:
    one = value()
    with zmq_socket("PUSH", address) as push:
        go()
        begun_s = time.monotonic()
        for _ in range(records):
            push.send(one)
    return {"begun_s": begun_s}


def zmq_receive(address: str, records: int, ready: Wait) -> dict[str, float]:
    with zmq_socket("PULL", address) as pull:
        ready()
        for _ in range(records):
            pull.recv()
    return {"ended_s": time.monotonic()}


def zmq_send_multipart(address: str, records: int, go: Wait) -> dict[str, float]:
    ones = [value() for _ in range(AT_A_TIME)]
    with zmq_socket("PUSH", address) as push:
        go()
        begun_s = time.monotonic()
        for count in chunks(records):
            push.send_multipart(ones[:count])
    return {"begun_s": begun_s}


def zmq_receive_multipart(address: str, records: int, ready: Wait) -> dict[str, float]:
    count = 0
    with zmq_socket("PULL", address) as pull:
        ready()
        while count < records:
            count += len(pull.recv_multipart())
    return {"ended_s": time.monotonic()}


# Redis Streams; a thousand commands are in flight, or its round trips would be measured.


def redis_send(path: str, records: int, go: Wait) -> dict[str, float]:
    import redis

    one = value()
    with redis.Redis(unix_socket_path=path) as client:
        client.ping()
        go()
        begun_s = time.monotonic()
        for count in chunks(records):
            with client.pipeline(transaction=False) as commands:
                for _ in range(count):
                    commands.xadd(STREAM, {b"value": one})
                commands.execute()
    return {"begun_s": begun_s}


def redis_receive(path: str, records: int, ready: Wait) -> dict[str, float]:
    import redis

    last, count = b"0", 0
    with redis.Redis(unix_socket_path=path) as client:
        client.delete(STREAM)
        ready()
        while count < records:
            found = client.xread({STREAM: last}, count=AT_A_TIME, block=int(PATIENCE_S * 1000))
            assert found, f"{count} of {records} records came"
            entries = found[0][1]
            last = entries[-1][0]
            count += len(entries)
    return {"ended_s": time.monotonic()}


WAYS: dict[str, tuple[Receive, Send]] = {
    "kafkalite, rows": (programs.iterate, programs.send),
    "kafkalite, Arrow": (programs.batches, programs.send_arrow),
    "confluent-kafka": (programs.poll, programs.produce),
    "confluent-kafka, many": (programs.consume, programs.produce_batch),
    "Redis Streams": (redis_receive, redis_send),
    "multiprocessing.Queue": (queue_receive, queue_send),
    "multiprocessing.Queue, many": (queue_receive_lists, queue_send_lists),
    "pyzmq": (zmq_receive, zmq_send),
    "pyzmq, many": (zmq_receive_multipart, zmq_send_multipart),
}


def run(way: str, records: int, **options: Any) -> dict[str, float]:
    """Run the receiver in this process, and the sender in a forked one."""
    receive, send = WAYS[way]
    if "Queue" in way:
        options["queue"] = get_context("fork").Queue(QUEUE_SIZE)
    here, there = get_context("fork").Pipe()

    def sender() -> None:
        there.send(send(records=records, go=there.recv, **options)["begun_s"])

    process = get_context("fork").Process(target=sender)
    process.start()
    # A client sends a record to connect, which the receiver takes for the first.
    extra = 1 if send.__module__ == programs.__name__ else 0
    ended = receive(records=records + extra, ready=lambda: here.send(None), **options)
    assert here.poll(PATIENCE_S), "the sender has ended early"
    begun_s = here.recv()
    process.join()
    return {"records": records, "seconds": ended["ended_s"] - begun_s}


def main() -> None:
    print(json.dumps(run(sys.argv[1], **json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
