"""The exporter service: its command line and its socket (service_process.py)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from kafkalite.config.broker import METRICS_LISTENER, Listener
from kafkalite.config.settings import Settings
from kafkalite.errors import Refusal
from kafkalite.process.options import metrics_address
from kafkalite.process.services.service_process import Side

BACKLOG = 16


def bind_metrics(address: Listener, flag: str = "--metrics") -> socket.socket:
    """Bind the exporter's listening socket; raise Refusal if that fails."""
    host = address.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        where = socket.getaddrinfo(host, address.port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(where, family=family, backlog=BACKLOG)
    except OSError as fault:
        taken = isinstance(fault, OSError) and fault.errno == errno.EADDRINUSE
        why = "address already in use" if taken else (fault.strerror or str(fault)).lower()
        raise Refusal(
            f"cannot serve metrics on {host}:{address.port}: {why}; choose another with"
            f" {flag} HOST:PORT (port 0 takes a free one)"
        ) from None


def exporter(settings: Settings, insecure: bool) -> Side | None:
    """Return the exporter service, or None if it is not configured."""
    address = metrics_address(settings[METRICS_LISTENER], insecure)
    if address is None:
        return None
    return Side("metrics exporter", ["metrics"], lambda: [bind_metrics(address)], where_of)


def where_of(listeners: Sequence[socket.socket]) -> str:
    """Return HOST:PORT of the exporter's socket."""
    host, port = listeners[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
