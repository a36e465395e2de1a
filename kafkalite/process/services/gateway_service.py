"""The gateway service: its command line and its sockets.

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
from kafkalite.process.services.service import Listeners, Service, ServicePlan
from kafkalite.process.services.service_sockets import bind_error, bind_tcp
from kafkalite.process.status.ready import GatewayReady

BACKLOG = 100
KEY_PREFIX = "gateway."


class GatewayEndpoints(NamedTuple):
    """Endpoints of the gateway's two sockets."""

    push: Endpoint
    dealer: Endpoint


def gateway_endpoints(settings: Settings, insecure: bool) -> GatewayEndpoints | None:
    """Return the configured endpoints, or None; raise Refusal for an endpoint that other machines
    can reach, unless CURVE is configured or `insecure` is set."""
    listener, dealer_listener = settings[GATEWAY_LISTENER], settings[GATEWAY_DEALER_LISTENER]
    if listener is None:
        return None
    try:
        push = parse_endpoint(listener)
        dealer = beside(push) if dealer_listener is None else parse_endpoint(dealer_listener)
    except InvalidConfig as error:
        raise Refusal(str(error)) from None
    curve = settings[GATEWAY_CURVE_KEY_FILE] is not None
    if curve != (settings[GATEWAY_CURVE_CLIENTS] is not None):
        raise Refusal(
            f"CURVE needs both {GATEWAY_CURVE_KEY_FILE.name} and {GATEWAY_CURVE_CLIENTS.name}"
        )
    for endpoint in (push, dealer):
        if not (endpoint.path or insecure or curve or is_loopback(endpoint.host)):
            raise Refusal(
                f"{endpoint.host or 'every address'} can be reached from other machines, whose"
                " clients could write to every topic; use 127.0.0.1, or require keys"
                f" ({GATEWAY_CURVE_KEY_FILE.name}, {GATEWAY_CURVE_CLIENTS.name}), or add --insecure"
            )
    return GatewayEndpoints(push, dealer)


def plan_gateway(settings: Settings, insecure: bool) -> ServicePlan | None:
    """Return how to start the gateway, or None; its arguments repeat the `gateway.` settings."""
    endpoints = gateway_endpoints(settings, insecure)
    if endpoints is None:
        return None
    arguments = ["gateway", "serve"]
    for key in BROKER.values():
        if key.name.startswith(KEY_PREFIX) and settings.source(key) is not Source.DEFAULT:
            arguments += ["-o", f"{key.name}={key.format(settings[key])}"]
    return ServicePlan(arguments, lambda: bind_gateway(endpoints))


def bind_gateway(endpoints: GatewayEndpoints, flag: str = "--gateway") -> list[socket.socket]:
    """Bind both sockets; raise Refusal if that fails."""
    bound: list[socket.socket] = []
    try:
        bound.append(bind(endpoints.push, f"{flag} tcp://HOST:PORT (port 0 takes a free one)"))
        bound.append(bind(endpoints.dealer, f"-o {GATEWAY_DEALER_LISTENER.name}=tcp://HOST:PORT"))
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def bind(endpoint: Endpoint, alternative: str) -> socket.socket:
    """Bind one listening socket, non-blocking as ZeroMQ requires."""
    try:
        if endpoint.path:
            listener = bind_path(endpoint.path)
        else:
            listener = bind_tcp(endpoint.host, endpoint.port, BACKLOG)
    except OSError as error:
        raise Refusal(
            f"the gateway cannot listen on {endpoint}: {bind_error(error)};"
            f" choose another with {alternative}"
        ) from None
    listener.setblocking(False)
    return listener


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
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "the file is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
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


def gateway_status(listeners: Listeners) -> GatewayReady:
    """Return the gateway's entry in status.json."""
    push, dealer = map(endpoint_of, listeners)
    return GatewayReady(push=push, dealer=dealer)


def remove_paths(listeners: Listeners) -> None:
    """Remove the socket files of these listeners."""
    for listener in listeners:
        if listener.family == socket.AF_UNIX and listener.fileno() >= 0:
            with contextlib.suppress(OSError):
                Path(listener.getsockname()).unlink()


GATEWAY = Service(
    name="gateway",
    key="gateway",
    socket_keys=(GATEWAY_LISTENER, GATEWAY_DEALER_LISTENER),
    plan=plan_gateway,
    status=gateway_status,
    describe=lambda status: f"{status['push']} (PUSH), {status['dealer']} (DEALER)",
    remove_files=remove_paths,
)
