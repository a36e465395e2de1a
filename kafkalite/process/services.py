"""What runs beside the broker, together: the exporter and the gateway, each if it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafkalite.config.settings import Settings
from kafkalite.process.exporter_process import exporter
from kafkalite.process.gateway_process import endpoint_of, gateway, remove_paths
from kafkalite.process.ready import GatewayReady, Ready
from kafkalite.process.restart import Carried
from kafkalite.process.side_process import Side, SideProcess, StartReport
from kafkalite.transport.reactor import Reactor


class Wanted(NamedTuple):
    """What is to run beside the broker."""

    exporter: Side | None = None
    gateway: Side | None = None


def wanted_sides(settings: Settings, insecure: bool) -> Wanted:
    """What the settings want; Refusal when it must not be."""
    return Wanted(exporter(settings, insecure), gateway(settings, insecure))


class Sides:
    """Both processes; see the module."""

    def __init__(
        self, reactor: Reactor, data: Path, wanted: Wanted, report: StartReport
    ) -> None:
        self.exporter = SideProcess(reactor, data, wanted.exporter, report)
        self.gateway = SideProcess(reactor, data, wanted.gateway, report)

    @property
    def ready(self) -> bool:
        """True if every service that is wanted has started once."""
        return self.exporter.ready and self.gateway.ready

    @property
    def run(self) -> bool:
        """Whether one of them does."""
        return self.exporter.runs or self.gateway.runs

    def bind(self, carried: Carried | None = None) -> None:
        """Make their sockets, or take those that were left; Refusal says why not."""
        self.exporter.bind(carried.metrics if carried is not None else ())
        self.gateway.bind(carried.gateway if carried is not None else ())

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """Their sockets, as a later run finds them among what is carried."""
        return {"metrics": self.exporter.descriptors, "gateway": self.gateway.descriptors}

    def start(self) -> None:
        """Start them, and see that they run."""
        self.exporter.start()
        self.gateway.start()

    def end(self, ended: Callable[[], object]) -> None:
        """Let them end, the gateway with all that it has taken in, and say when both have."""
        self.gateway.end(lambda: self.exporter.end(ended))

    def close(self) -> None:
        """End them now, and let their places go."""
        remove_paths(self.gateway.listeners)
        self.exporter.close()
        self.gateway.close()

    def tell(self, ready: Ready) -> None:
        """Say where they are."""
        if self.exporter.where:
            ready["metrics"] = self.exporter.where
        if self.gateway.where:
            push, dealer = map(endpoint_of, self.gateway.listeners)
            ready["gateway"] = GatewayReady(push=push, dealer=dealer)
