"""The gateway service: its command line and its sockets (service_process.py).

The broker binds its two sockets, one for PUSH and one for DEALER clients.  A Unix socket has a mode
that admits its owner only.  A socket file left by a killed broker is removed; one on which a
process listens is not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kafkalite.config.broker import (
    BROKER,
    GATEWAY_CURVE_CLIENTS,
    GATEWAY_CURVE_KEY_FILE,
    GATEWAY_DEALER_LISTENER,
    GATEWAY_LISTENER,
)
from kafkalite.config.endpoints import Endpoint, beside, parse_endpoint
from kafkalite.config.settings import Settings, Source
from kafkalite.errors import InvalidConfig, Refusal
from kafkalite.process.options import is_loopback
from kafkalite.process.services.service_process import Side

BACKLOG = 100
KEYS = "gateway."


class Doors(NamedTuple):
    """Endpoints of the gateway's two sockets."""

    push: Endpoint
    dealer: Endpoint


def gateway_doors(settings: Settings, insecure: bool) -> Doors | None:
    """Return the configured endpoints, or None; raise Refusal for an endpoint that other machines
    can reach, unless CURVE is configured or `insecure` is set."""
    asked = settings[GATEWAY_LISTENER]
    if asked is None:
        return None
    try:
        push = parse_endpoint(asked)
        other = settings[GATEWAY_DEALER_LISTENER]
        doors = Doors(push, parse_endpoint(other) if other is not None else beside(push))
    except InvalidConfig as fault:
        raise Refusal(str(fault)) from None
    curve = settings[GATEWAY_CURVE_KEY_FILE] is not None
    if curve != (settings[GATEWAY_CURVE_CLIENTS] is not None):
        raise Refusal(
            f"CURVE needs both {GATEWAY_CURVE_KEY_FILE.name} and {GATEWAY_CURVE_CLIENTS.name}"
        )
    for door in doors:
        if not (door.path or insecure or curve or is_loopback(door.host)):
            raise Refusal(
                f"{door.host or 'every address'} can be reached from other machines, and whoever"
                " reaches the gateway may write to every topic; use 127.0.0.1, or let in only who"
                f" has a key ({GATEWAY_CURVE_KEY_FILE.name}, {GATEWAY_CURVE_CLIENTS.name}), or add"
                " --insecure"
            )
    return doors


def gateway(settings: Settings, insecure: bool) -> Side | None:
    """Return the gateway service, or None; its command line repeats the `gateway.` settings."""
    doors = gateway_doors(settings, insecure)
    if doors is None:
        return None
    words = ["gateway", "serve"]
    for key in BROKER.values():
        if key.name.startswith(KEYS) and settings.source(key) is not Source.DEFAULT:
            words += ["-o", f"{key.name}={key.format(settings[key])}"]
    return Side("gateway", words, lambda: bind_doors(doors), where_of)


def bind_doors(doors: Doors, flag: str = "--gateway") -> list[socket.socket]:
    """Bind both sockets; raise Refusal if that fails."""
    bound: list[socket.socket] = []
    try:
        bound.append(bind(doors.push, f"{flag} tcp://HOST:PORT (port 0 takes a free one)"))
        bound.append(bind(doors.dealer, f"-o {GATEWAY_DEALER_LISTENER.name}=tcp://HOST:PORT"))
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def bind(endpoint: Endpoint, instead: str) -> socket.socket:
    """Bind one listening socket, non-blocking as ZeroMQ requires."""
    try:
        listener = bind_path(endpoint.path) if endpoint.path else bind_address(endpoint)
    except OSError as fault:
        why = (fault.strerror or str(fault)).lower()
        if fault.errno == errno.EADDRINUSE:
            why = "address already in use"
        raise Refusal(
            f"the gateway cannot listen on {endpoint}: {why}; choose another with {instead}"
        ) from None
    listener.setblocking(False)
    return listener


def bind_address(endpoint: Endpoint) -> socket.socket:
    host = endpoint.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    where = socket.getaddrinfo(host, endpoint.port, family, socket.SOCK_STREAM)[0][4]
    return socket.create_server(where, family=family, backlog=BACKLOG)


def bind_path(path: str) -> socket.socket:
    """Bind a Unix socket of mode 600; raise OSError if the path is in use."""
    remove_abandoned(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o077)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def remove_abandoned(path: str) -> None:
    """Remove a socket file on which no process listens; raise OSError if one does, or if the file
    is not a socket."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        try:
            asker.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def endpoint_of(listener: socket.socket) -> str:
    """Return a listening socket's endpoint in ZeroMQ's notation."""
    if listener.family == socket.AF_UNIX:
        return str(Endpoint(path=listener.getsockname()))
    host, port = listener.getsockname()[:2]
    return str(Endpoint(host, port))


def where_of(listeners: Sequence[socket.socket]) -> str:
    push, dealer = map(endpoint_of, listeners)
    return f"{push} (PUSH), {dealer} (DEALER)"


def remove_paths(listeners: Sequence[socket.socket]) -> None:
    """Remove the socket files of these listeners."""
    for listener in listeners:
        if listener.family == socket.AF_UNIX and listener.fileno() >= 0:
            with contextlib.suppress(OSError):
                Path(listener.getsockname()).unlink()
