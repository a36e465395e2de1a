"""The exporter service: its command line and its socket."""

from __future__ import annotations

import socket

from kafkalite.config.broker import METRICS_LISTENER
from kafkalite.config.listener import Listener
from kafkalite.config.settings import Settings
from kafkalite.errors import Refusal
from kafkalite.process.options import metrics_address
from kafkalite.process.services.service import Listeners, Service, ServicePlan
from kafkalite.process.services.service_sockets import bind_error, bind_tcp

BACKLOG = 16


def bind_metrics(address: Listener, flag: str = "--metrics") -> socket.socket:
    """Bind the exporter's listening socket; raise Refusal if that fails."""
    try:
        return bind_tcp(address.host, address.port, BACKLOG)
    except OSError as error:
        raise Refusal(
            f"cannot serve metrics on {address.host or '0.0.0.0'}:{address.port}:"
            f" {bind_error(error)}; choose another with {flag} HOST:PORT (port 0 takes a free one)"
        ) from None


def plan_exporter(settings: Settings, insecure: bool) -> ServicePlan | None:
    """Return how to start the exporter, or None if it is not configured."""
    address = metrics_address(settings[METRICS_LISTENER], insecure)
    if address is None:
        return None
    return ServicePlan(["metrics"], lambda: [bind_metrics(address)])


def host_and_port(listeners: Listeners) -> str:
    """Return HOST:PORT of the exporter's socket."""
    host, port = listeners[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


EXPORTER = Service(
    name="metrics exporter",
    key="metrics",
    socket_keys=(METRICS_LISTENER,),
    plan=plan_exporter,
    status=host_and_port,
    describe=lambda address: f"http://{address}/metrics",
)
