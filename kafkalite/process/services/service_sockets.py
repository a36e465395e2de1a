"""Listening sockets of services: binding, addresses as text, error texts."""

from __future__ import annotations

import errno
import socket


def bind_tcp(host: str, port: int, backlog: int) -> socket.socket:
    """Bind a listening TCP socket, on every address if `host` is empty; raise OSError."""
    host = host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
    return socket.create_server(address, family=family, backlog=backlog)


def bind_error(error: OSError) -> str:
    """Return the reason why a socket cannot be bound, for an error text."""
    if error.errno == errno.EADDRINUSE:
        return "address already in use"
    return (error.strerror or str(error)).lower()
