"""Endpoint: the address of a ZeroMQ socket, in ZeroMQ's notation.

    tcp://127.0.0.1:5555     tcp://[::1]:5555     tcp://*:5555     ipc:///run/me/kafkalite.sock

Port 0 takes a free one.  Names of Linux's abstract namespace (ipc://@name) are refused: they have
no owner and no mode, so every user of the machine could connect.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from kafkalite.config.key import quoted
from kafkalite.errors import InvalidConfig

PORT_MAX = 65_535
PATH_SIZE_MAX = 107
"""Maximum length of a Unix socket's path."""
DEALER = "-dealer"


class Endpoint(NamedTuple):
    """A TCP address, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"ipc://{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else (
            f"tcp://{self.host or '*'}:{self.port}"
        )  # fmt: skip


def parse_endpoint(text: str) -> Endpoint:
    """Parse an endpoint in ZeroMQ's notation; raise InvalidConfig if it is not valid."""
    transport, separator, address = text.partition("://")
    if not separator or transport not in ("tcp", "ipc"):
        raise InvalidConfig(
            f"An endpoint must be tcp://HOST:PORT or ipc://PATH, not {quoted(text)}."
        )
    if transport == "ipc":
        if not address or address.startswith("@") or "\0" in address:
            raise InvalidConfig(f"The path after ipc:// must name a file, not {quoted(address)}.")
        path = str(Path(address).absolute())
        if len(os.fsencode(path + DEALER)) > PATH_SIZE_MAX:
            raise InvalidConfig(
                f"The path of a Unix socket can have {PATH_SIZE_MAX - len(DEALER)} bytes, without"
                f" the suffix {DEALER}; {quoted(path)} is longer."
            )
        return Endpoint(path=path)
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise InvalidConfig(f"A TCP endpoint must be tcp://HOST:PORT, not {quoted(text)}.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidConfig(f"An IPv6 address must be in brackets: tcp://[{host}]:{port}.")
    return Endpoint("" if host == "*" else host, int(port))


def beside(endpoint: Endpoint) -> Endpoint:
    """Return the default endpoint for DEALERs beside that for PUSHes: the next port (any free one
    beside port 0), or the same path with `-dealer`."""
    if endpoint.path:
        return Endpoint(path=endpoint.path + DEALER)
    if endpoint.port == PORT_MAX:
        raise InvalidConfig(f"Port {PORT_MAX} is the highest; set gateway.dealer.listener.")
    return endpoint._replace(port=endpoint.port + 1 if endpoint.port else 0)
