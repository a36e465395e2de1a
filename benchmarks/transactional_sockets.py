"""Transactions over plain sockets: producers that cost little beside the broker they measure.

Each producer commits one transaction after the other: a Produce (version 12, which adds its
partitions to the transaction) to each leader, then an EndTxn (version 5, whose response has the
producer id and epoch of the next transaction).  Requests are encoded once; for each transaction
its epoch and the checksums are written into them.
"""

from __future__ import annotations

import heapq
import select
import struct
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.frames import batch_of
from benchmarks.harness import Run, cpu_s
from benchmarks.subjects import Subject
from benchmarks.wire import SILENCE_S_MAX, Wire, frame, header_size, leaders
from kafkalite._ext.record_batch import TRANSACTIONAL, crc32c
from kafkalite.errors import ConcurrentTransactions
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transactions import END_TXN, INIT_PRODUCER_ID

VERSIONS = {FIND_COORDINATOR: 4, INIT_PRODUCER_ID: 4, PRODUCE: 12, END_TXN: 5}
TRANSACTION_TYPE = 1
TIMEOUT_MS = 60_000
RETRY_S = 0.001
# Positions in a record batch.
CRC_AT, ATTRIBUTES_AT, PRODUCER_AT = 17, 21, 43
NO_SEQUENCE = b"\xff" * 14
"""Producer id, epoch and sequence of a batch without them."""


class Exchange:
    """A request that is sent again and again on one connection, with another producer epoch."""

    def __init__(self, wire: Wire, api: Api, body: Mapping[str, object]) -> None:
        self.wire = wire
        self._api = api
        request = frame(api, VERSIONS[api], body)
        self._request = bytearray(len(request).to_bytes(4, "big") + request)

    def send(self, producer_id: int, epoch: int) -> None:
        self._stamp(self._request, producer_id, epoch)
        self.wire.socket.sendall(self._request)

    def _stamp(self, request: bytearray, producer_id: int, epoch: int) -> None:
        raise NotImplementedError

    def receive(self) -> Fields:
        body = self.wire.take(int.from_bytes(self.wire.take(4), "big"))
        version = VERSIONS[self._api]
        return self._api.response.read(version, body, header_size(self._api, version))


class ProduceExchange(Exchange):
    """The Produce to one leader: one record for each of its partitions."""

    def __init__(self, wire: Wire, transactional_id: str, topic: str, indexes: list[int]) -> None:
        batch = bytearray(batch_of(1))
        assert batch[PRODUCER_AT : PRODUCER_AT + 14] == NO_SEQUENCE
        batch[ATTRIBUTES_AT + 1] |= TRANSACTIONAL
        data = [{"index": index, "records": bytes(batch)} for index in indexes]
        super().__init__(wire, PRODUCE, {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout_ms": TIMEOUT_MS,
            "topic_data": [{"name": topic, "partition_data": data}],
        })  # fmt: skip
        self._size = len(batch)
        self._places = []
        place = self._request.find(batch)
        while place >= 0:
            self._places.append(place)
            place = self._request.find(batch, place + len(batch))
        assert len(self._places) == len(indexes)

    def _stamp(self, request: bytearray, producer_id: int, epoch: int) -> None:
        for place in self._places:
            struct.pack_into(">qhi", request, place + PRODUCER_AT, producer_id, epoch, 0)
            crc = crc32c(request[place + ATTRIBUTES_AT : place + self._size])
            struct.pack_into(">I", request, place + CRC_AT, crc)

    def error_code(self) -> int:
        """Return the first error of the response."""
        for topic in self.receive().responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    return int(partition.error_code)
        return 0


class EndExchange(Exchange):
    """The EndTxn that commits."""

    def __init__(self, wire: Wire, transactional_id: str) -> None:
        mark = struct.pack(">qh", 0x5EEDBEEF5EEDBEEF, 0x5EED)
        producer_id, epoch = struct.unpack(">qh", mark)
        super().__init__(wire, END_TXN, {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": True,
        })  # fmt: skip
        self._place = self._request.index(mark)

    def _stamp(self, request: bytearray, producer_id: int, epoch: int) -> None:
        struct.pack_into(">qh", request, self._place, producer_id, epoch)


class SocketProducer:
    """One transactional producer, with a connection to each leader and to its coordinator."""

    def __init__(self, subject: Subject, topic: str, transactional_id: str) -> None:
        self.times_us: list[float] = []
        self._id = transactional_id
        self._stack = ExitStack()
        coordinator = self._stack.enter_context(Wire(self._coordinator(subject)))
        self._end = EndExchange(coordinator, transactional_id)
        by_leader = defaultdict(list)
        for index, address in enumerate(leaders(subject, topic)):
            by_leader[address].append(index)
        self._produces = [
            ProduceExchange(
                self._stack.enter_context(Wire(address)), transactional_id, topic, indexes
            )
            for address, indexes in by_leader.items()
        ]
        self._by_socket = {each.wire.socket.fileno(): each for each in self._produces}
        self._producer_id, self._epoch = self._init()
        self._unanswered = 0
        self._began_s = 0.0

    def __enter__(self) -> SocketProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def sockets(self) -> list[int]:
        return [*self._by_socket, self._end.wire.socket.fileno()]

    def _coordinator(self, subject: Subject) -> str:
        body = {"key_type": TRANSACTION_TYPE, "coordinator_keys": [self._id]}
        deadline = time.monotonic() + SILENCE_S_MAX
        with Wire(subject.bootstrap) as wire:
            while time.monotonic() < deadline:
                response = wire.ask(FIND_COORDINATOR, VERSIONS[FIND_COORDINATOR], body)
                (found,) = response.coordinators
                if not found.error_code:
                    return f"{found.host}:{found.port}"
                time.sleep(RETRY_S)  # its topic is being created
        raise RuntimeError(f"FindCoordinator fails with error {found.error_code}")

    def _init(self) -> tuple[int, int]:
        body: dict[str, object] = {
            "transactional_id": self._id,
            "transaction_timeout_ms": TIMEOUT_MS,
        }
        deadline = time.monotonic() + SILENCE_S_MAX
        while time.monotonic() < deadline:
            response = self._end.wire.ask(INIT_PRODUCER_ID, VERSIONS[INIT_PRODUCER_ID], body)
            if not response.error_code:
                return response.producer_id, response.producer_epoch
            time.sleep(RETRY_S)  # the coordinator is loading
        raise RuntimeError(f"InitProducerId fails with error {response.error_code}")

    def begin(self) -> None:
        """Send the records of the next transaction."""
        self._began_s = time.perf_counter()
        self._unanswered = len(self._produces)
        for produce in self._produces:
            produce.send(self._producer_id, self._epoch)

    def retry(self, socket: int) -> None:
        """Send a request again whose response said CONCURRENT_TRANSACTIONS."""
        self._by_socket.get(socket, self._end).send(self._producer_id, self._epoch)

    def receive(self, socket: int) -> int:
        """Take the response on a socket and send what follows; return an error code."""
        produce = self._by_socket.get(socket)
        if produce is not None:
            code = produce.error_code()
            if not code:
                self._unanswered -= 1
                if not self._unanswered:
                    self._end.send(self._producer_id, self._epoch)
            return code
        response = self._end.receive()
        if not response.error_code:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch
            self.times_us.append((time.perf_counter() - self._began_s) * 1e6)
            self.begin()
        return int(response.error_code)


def commit_transactions(subject: Subject, topic: str, producers: int, count: int) -> Run:
    """Commit `count` transactions in all; return the times of one, and the broker's CPU time.

    Raises:
        RuntimeError: A request failed, or the broker did not respond for SILENCE_S_MAX.
    """
    with ExitStack() as stack:
        by_socket: dict[int, SocketProducer] = {}
        for number in range(producers):
            name = f"{topic}-sockets-{number}"
            producer = stack.enter_context(SocketProducer(subject, topic, name))
            by_socket.update(dict.fromkeys(producer.sockets, producer))
        everyone = {*by_socket.values()}
        readable = select.poll()
        for socket in by_socket:
            readable.register(socket, select.POLLIN)
        user_s, system_s = cpu_s(subject.pids)
        began_s = time.perf_counter()
        for producer in everyone:
            producer.begin()
        retries: list[tuple[float, int]] = []
        while sum(len(producer.times_us) for producer in everyone) < count:
            _serve(by_socket, readable, retries)
        seconds = time.perf_counter() - began_s
        user_after_s, system_after_s = cpu_s(subject.pids)
        times = sorted(each for producer in everyone for each in producer.times_us)
        figures = {
            "records": float(len(times)),
            "seconds": seconds,
            "p50_us": times[len(times) // 2],
            "p99_us": times[len(times) * 99 // 100],
        }
    return Run(figures, user_after_s - user_s, system_after_s - system_s)


def _serve(
    by_socket: Mapping[int, SocketProducer],
    readable: select.poll,
    retries: list[tuple[float, int]],
) -> None:
    """Wait for responses and retries that are due, and handle them."""
    wait_s = max(0.0, retries[0][0] - time.perf_counter()) if retries else SILENCE_S_MAX
    events = readable.poll(wait_s * 1e3)
    if not events and not retries:
        raise RuntimeError(f"no response for {SILENCE_S_MAX:.0f} s")
    for socket, _ in events:
        code = by_socket[socket].receive(socket)
        if code == ConcurrentTransactions.code:
            heapq.heappush(retries, (time.perf_counter() + RETRY_S, socket))
        elif code:
            raise RuntimeError(f"a request of a transaction fails with error {code}")
    while retries and retries[0][0] <= time.perf_counter():
        _, socket = heapq.heappop(retries)
        by_socket[socket].retry(socket)
