"""Listener: an address that a broker listens on or advertises, in Kafka's notation.

    PLAINTEXT://127.0.0.1:9092     PLAINTEXT://[::1]:9092     PLAINTEXT://:0

An empty host means every address of the machine; port 0 takes a free one.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.config.endpoints import PORT_MAX
from kafkalite.config.key import quoted
from kafkalite.errors import InvalidConfig


class Listener(NamedTuple):
    """An address to listen on, or to advertise to clients."""

    host: str
    port: int


def parse_listener(text: str) -> Listener:
    """Parse `PLAINTEXT://HOST:PORT`; an IPv6 host is in brackets."""
    protocol, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not (port.isascii() and port.isdigit() and len(port) < 6):
        raise InvalidConfig(f"A listener must be PLAINTEXT://HOST:PORT, not {quoted(text)}.")
    if protocol.upper() != "PLAINTEXT":
        raise InvalidConfig(f"Only PLAINTEXT is supported in this version, not {quoted(text)}.")
    if int(port) > PORT_MAX:
        raise InvalidConfig(f"A port must be at most {PORT_MAX}, not {port}.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidConfig(f"An IPv6 address must be in brackets: PLAINTEXT://[{host}]:{port}.")
    return Listener(host, int(port))
