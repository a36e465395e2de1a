"""Requests that librdkafka has no words for, over a plain connection of one's own.

    wire = Wire(cluster)
    wire.ask(LIST_CONFIG_RESOURCES, {"resource_types": []}).config_resources

Each request takes a connection, says which version it is of after the broker has said which ones
it serves, and goes again.  What librdkafka can ask is left to it: it knows TLS and logins, and
this does not.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from kafkalite.cli.clients import ANSWER_TIMEOUT_S, Cluster
from kafkalite.errors import KafkaError, Refusal, UnsupportedVersion
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.cluster import API_VERSIONS

CLIENT_ID = "kafkalite"
PORT_DEFAULT = 9092
ANSWER_SIZE_MAX = 1 << 30

Address = tuple[str, int]


class Wire:
    """Asks a cluster's brokers in Kafka's own protocol."""

    def __init__(self, cluster: Cluster, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.cluster = cluster
        self.timeout_s = timeout_s

    def ask(self, api: Api, request: Mapping[str, Any], at: Address | None = None) -> Fields:
        """One answer, of the newest version that both sides know.

        `at` names a broker; else it is the first that takes a connection.  What the answer says of
        faults is the caller's to look at.
        """
        there = self.cluster.bootstrap
        security = self.cluster.properties.get("security.protocol", "plaintext")
        if security.lower() != "plaintext":
            raise Refusal(f"{api.name} is only asked over a plain connection yet, not {security}")
        try:
            with self._connection(at) as stream:
                served = asked(stream, API_VERSIONS, 0, {}).api_keys
                version = version_of(api, served)
                if version is None:
                    raise Refusal(f"the broker at {there} does not serve {api.name}")
                return asked(stream, api, version, dict(request))
        except UnsupportedVersion as fault:
            raise Refusal(f"the broker at {there} is too old: {fault}") from None
        except KafkaError as fault:
            raise Refusal(f"{there} does not answer as Kafka does: {fault}") from None
        except OSError as fault:
            words = fault.strerror or str(fault) or "no answer"
            raise Refusal(f"{there} is lost: {words}") from None

    @contextmanager
    def _connection(self, at: Address | None) -> Iterator[BinaryIO]:
        addresses = [at] if at else list(map(address, self.cluster.bootstrap.split(",")))
        while True:
            try:
                connection = socket.create_connection(addresses.pop(0), self.timeout_s)
                break
            except OSError:
                if not addresses:
                    raise
        with connection, connection.makefile("rwb", buffering=0) as stream:
            yield stream  # type: ignore[misc]


def asked(stream: BinaryIO, api: Api, version: int, request: dict[str, Any]) -> Fields:
    """Send a request and read its answer."""
    header = write_header(api.key, version, 0, CLIENT_ID, api.request_header_flexible(version))
    frame = header + api.request.write(version, request)
    stream.write(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", exactly(stream, 4))
    if not 4 <= size <= ANSWER_SIZE_MAX:
        raise OSError(f"an answer of {size:,} bytes")
    answer = exactly(stream, size)
    return api.response.read(version, answer, 4 + api.response_header_flexible(version))


def exactly(stream: BinaryIO, size: int) -> bytes:
    """So many bytes, and no fewer."""
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            raise OSError("it closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def version_of(api: Api, served: list[Fields]) -> int | None:
    """The newest version that is known here and served there."""
    low, high = api.versions
    for each in served:
        if each.api_key == api.key and each.min_version <= high and each.max_version >= low:
            return min(high, int(each.max_version))
    return None


def address(words: str) -> Address:
    """HOST:PORT as librdkafka takes it: a scheme before it, or no port, are no fault."""
    host, colon, port = words.strip().rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return words.strip("[] "), PORT_DEFAULT
    return host.strip("[]"), int(port)
