"""Sides: the services that run beside the broker, the exporter and the gateway, if configured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafkalite.config.settings import Settings
from kafkalite.process.restart import Carried
from kafkalite.process.services.exporter_service import exporter
from kafkalite.process.services.gateway_service import endpoint_of, gateway, remove_paths
from kafkalite.process.services.service_process import Side, SideProcess, StartReport
from kafkalite.process.status.ready import GatewayReady, Ready
from kafkalite.transport.reactor import Reactor


class Wanted(NamedTuple):
    """The configured services."""

    exporter: Side | None = None
    gateway: Side | None = None


def wanted_sides(settings: Settings, insecure: bool) -> Wanted:
    """Return the configured services; raise Refusal if a setting is not allowed."""
    return Wanted(exporter(settings, insecure), gateway(settings, insecure))


class Sides:
    """The processes of both services."""

    def __init__(
        self, reactor: Reactor, data: Path, wanted: Wanted, report: StartReport
    ) -> None:
        self.exporter = SideProcess(reactor, data, wanted.exporter, report)
        self.gateway = SideProcess(reactor, data, wanted.gateway, report)

    @property
    def ready(self) -> bool:
        """True if every configured service has been ready once."""
        return self.exporter.ready and self.gateway.ready

    @property
    def run(self) -> bool:
        """True if the process of a service exists."""
        return self.exporter.runs or self.gateway.runs

    def bind(self, carried: Carried | None = None) -> None:
        """Bind their sockets, or adopt those of an earlier run; raise Refusal if that fails."""
        self.exporter.bind(carried.metrics if carried is not None else ())
        self.gateway.bind(carried.gateway if carried is not None else ())

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """Descriptors of their sockets, by their names in the carried state (restart.py)."""
        return {"metrics": self.exporter.descriptors, "gateway": self.gateway.descriptors}

    def start(self) -> None:
        """Start them, and restart each one that ends."""
        self.exporter.start()
        self.gateway.start()

    def end(self, ended: Callable[[], object]) -> None:
        """Shut them down and call `ended`; the gateway first produces the messages it accepted."""
        self.gateway.end(lambda: self.exporter.end(ended))

    def close(self) -> None:
        """Kill them and close their sockets."""
        remove_paths(self.gateway.listeners)
        self.exporter.close()
        self.gateway.close()

    def tell(self, ready: Ready) -> None:
        """Add their addresses to the broker's state."""
        if self.exporter.where:
            ready["metrics"] = self.exporter.where
        if self.gateway.where:
            push, dealer = map(endpoint_of, self.gateway.listeners)
            ready["gateway"] = GatewayReady(push=push, dealer=dealer)
