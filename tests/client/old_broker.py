"""A broker that looks as old as requested: a real one, behind a proxy that hides newer versions.

    with old_broker(KAFKA_2_1) as old:
        Producer(old.address)

The proxy changes only the ApiVersions response, and the broker advertises the proxy's address to
its clients.  A request in a hidden version would be served; the proxy records it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping

from kafkalite.errors import UnsupportedVersion
from kafkalite.protocol.frame import read_header
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.testing import Broker
from tests.client.scripted_broker import framed

# Newest versions by API key: Produce, Fetch, ListOffsets, Metadata, OffsetCommit, OffsetFetch,
# FindCoordinator, ApiVersions, InitProducerId.
KAFKA_2_1 = {0: 7, 1: 10, 2: 4, 3: 7, 8: 6, 9: 5, 10: 2, 18: 2, 22: 1}
KAFKA_2_8 = {0: 9, 1: 12, 2: 6, 3: 11, 8: 8, 9: 7, 10: 3, 18: 3, 22: 4}
KAFKA_3_9 = {0: 11, 1: 17, 2: 9, 3: 12, 8: 9, 9: 9, 10: 6, 18: 4, 22: 5}

TELLS_ITS_OWN_SINCE = 3
"""A broker that knows this version of ApiVersions lists it in a response to a newer one."""


class Proxy:
    """A proxy of requests and responses; `asked` has (API key, version) of each request."""

    def __init__(self, newest: Mapping[int, int]) -> None:
        self.newest = newest
        self.broker = ("", 0)
        self.requests: set[tuple[int, int]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _start(self, run, *arguments) -> None:
        self._threads.append(threading.Thread(target=run, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self.broker)
                self._sockets += [client, broker]
                answers: dict[int, int] = {}
                self._start(self._pass_requests, client, broker, answers)
                self._start(self._pass_answers, client, broker, answers)

    def _pass_requests(self, client, broker, answers: dict[int, int]) -> None:
        for frame in frames(client):
            header = read_header(frame)
            self.requests.add((header.api_key, header.version))
            if header.api_key == API_VERSIONS.key:
                if header.version > self.newest[API_VERSIONS.key]:
                    send(client, self._refusal(header.correlation_id))
                    continue
                answers[header.correlation_id] = header.version
            send(broker, frame)
        end(broker)

    def _pass_answers(self, client, broker, answers: dict[int, int]) -> None:
        for frame in frames(broker):
            (number,) = struct.unpack_from(">i", frame)
            if number in answers:
                frame = frame[:4] + self._aged(frame[4:], answers.pop(number))
            send(client, frame)
        end(client)

    def _refusal(self, number: int) -> bytes:
        newest = self.newest[API_VERSIONS.key]
        known = [{"api_key": API_VERSIONS.key, "min_version": 0, "max_version": newest}]
        told = known if newest >= TELLS_ITS_OWN_SINCE else []
        fields = {"error_code": UnsupportedVersion.code, "api_keys": told}
        return struct.pack(">i", number) + API_VERSIONS.response.write(0, fields)

    def _aged(self, answer: bytes, version: int) -> bytes:
        fields = API_VERSIONS.response.read(version, answer)
        fields["api_keys"] = [
            {**each, "max_version": self.newest[each.api_key]}
            for each in fields.api_keys
            if each.api_key in self.newest
        ]
        return API_VERSIONS.response.write(version, fields)


def frames(source: socket.socket) -> Iterator[bytes]:
    with source.makefile("rb") as stream, contextlib.suppress(OSError):
        while len(size := stream.read(4)) == 4:
            yield stream.read(int.from_bytes(size, "big"))


def send(target: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):
        target.sendall(framed(frame))


def end(target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def old_broker(newest: Mapping[int, int]) -> Iterator[Proxy]:
    """A broker that serves up to these versions, by API key, and no other API."""
    proxy = Proxy(newest)
    try:
        # The proxy's own port, on an address where no other test looks for free ones.
        proxy.broker = "127.0.0.2", proxy.port
        config = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        with Broker(listen=f"127.0.0.2:{proxy.port}", config=config):
            yield proxy
    finally:
        proxy.close()
