"""A scripted broker: a table of responses, correct or not, by API.

    with ScriptedBroker({METADATA: lambda request: {"brokers": [...]}}) as there:
        Cluster(producer_settings(there.address, {}))

A response is a dict of fields, written in the requested version; or bytes, which are sent
unchanged; or None, and nothing is sent.  Raising CloseConnection closes the connection.  Unless
the table has its own entry, the ApiVersions response lists the APIs of the table.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from kafkalite.protocol.frame import read_header, response_header
from kafkalite.protocol.schema import BY_KEY, Api, Fields
from kafkalite.protocol.schemas.cluster import API_VERSIONS


class CloseConnection(Exception):
    """An exception that closes the connection instead of a response."""


class ReceivedRequest(NamedTuple):
    """A request, and the number of the connection that it came over."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body: Fields
    connection: int


Responder = Callable[[ReceivedRequest], dict[str, Any] | bytes | None]


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


class ScriptedBroker:
    """A broker that listens from its construction on."""

    def __init__(
        self,
        answers: Mapping[Api, Responder] = {},
        versions: Mapping[Api, tuple[int, int]] = {},
        port: int = 0,
    ) -> None:
        self.responders = {API_VERSIONS: self.versions_served, **answers}
        self.versions = {api: versions.get(api, api.versions) for api in self.responders}
        self.requests: list[ReceivedRequest] = []
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.close()

    def hang_up(self) -> None:
        """Close the open connections; new ones are still accepted."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def count(self, api: Api) -> int:
        """Return how many requests of an API were received."""
        return sum(request.api is api for request in self.requests)

    def versions_served(self, request: ReceivedRequest) -> dict[str, Any]:
        return {
            "api_keys": [
                {"api_key": api.key, "min_version": low, "max_version": high}
                for api, (low, high) in self.versions.items()
            ]
        }

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                self._connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection, self.accepted))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            with connection.makefile("rb") as stream, contextlib.suppress(OSError, CloseConnection):
                while len(size := stream.read(4)) == 4:
                    frame = stream.read(int.from_bytes(size, "big"))
                    answer = self._answer(frame, number)
                    if answer is not None:
                        connection.sendall(answer)
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, frame: bytes, number: int) -> bytes | None:
        header = read_header(frame)
        api = BY_KEY[header.api_key]
        body = api.request.read(header.version, frame, header.body_position)
        request = ReceivedRequest(
            api, header.version, header.correlation_id, header.client_id, body, number
        )
        self.requests.append(request)
        said = self.responders[api](request)
        return response_frame(request, said) if isinstance(said, dict) else said


def response_frame(request: ReceivedRequest, fields: dict[str, Any]) -> bytes:
    """Return a response frame with these fields."""
    flexible = request.api.response_header_flexible(request.version)
    content = request.api.response.write(request.version, fields)
    return framed(response_header(request.correlation_id, flexible) + content)


def metadata(
    nodes: Mapping[int, int],
    topics: Mapping[str, Mapping[int, tuple[int, int]]] = {},
    cluster_id: str = "cluster",
) -> dict[str, Any]:
    """Return Metadata fields: ports by node; leaders and epochs by topic and partition."""
    return {
        "cluster_id": cluster_id,
        "brokers": [
            {"node_id": node_id, "host": "127.0.0.1", "port": port}
            for node_id, port in nodes.items()
        ],
        "topics": [
            {
                "name": name,
                "topic_id": name.encode().ljust(16, b"."),
                "partitions": [
                    {"partition_index": index, "leader_id": leader, "leader_epoch": epoch}
                    for index, (leader, epoch) in partitions.items()
                ],
            }
            for name, partitions in topics.items()
        ],
    }
