"""The exporter's main function: its sources, its socket, and its end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from kafkalite.exporter.broker_readiness import Address, unready_reason
from kafkalite.exporter.client_metrics import ClientMetrics
from kafkalite.exporter.group_lag import GroupLag
from kafkalite.exporter.http_pages import ExporterPages
from kafkalite.exporter.page_metrics import PageMetrics
from kafkalite.exporter.push_receiver import PushReceiver
from kafkalite.http.server import HttpServer


class MonitoredBroker(NamedTuple):
    """The parts of a running broker's state that the exporter needs."""

    bootstrap: str
    nodes: dict[int, Address]
    run_directory: Path


def export(
    listener: socket.socket,
    broker: Callable[[], MonitoredBroker | None],
    until: int | None,
    ready: Callable[[], object] = lambda: None,
) -> int:
    """Serve until SIGTERM, SIGINT or end of file on `until`; return the exit code of the process.

    `broker` returns the state of the running broker, or None.  `ready` is called when all that
    is needed to serve exists.
    """

    def run_directory() -> Path | None:
        found = broker()
        return found.run_directory if found is not None else None

    def bootstrap() -> str | None:
        found = broker()
        return found.bootstrap if found is not None else None

    def nodes() -> dict[int, Address] | None:
        found = broker()
        return found.nodes if found is not None else None

    clients = ClientMetrics()
    registry = CollectorRegistry()
    for source in (PageMetrics(run_directory), GroupLag(bootstrap), clients):
        registry.register(source)
    PushReceiver(run_directory, clients)
    pages = ExporterPages(registry, lambda: unready_reason(nodes()))
    server = HttpServer(listener, pages.respond)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    if until is not None:
        threading.Thread(target=end_with, args=[until], name="until", daemon=True).start()
    ready()
    server.serve_forever()
    return 0


def end_with(descriptor: int) -> None:
    """Exit when the process that holds the other end of this pipe ends."""
    while os.read(descriptor, 1):
        pass
    os._exit(0)
