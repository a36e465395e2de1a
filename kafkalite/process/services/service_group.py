"""ServiceGroup: the processes of all configured services, in the order of the table."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from kafkalite.process.services.service_process import ServiceProcess, StartReport
from kafkalite.process.services.table import SERVICES, ConfiguredService
from kafkalite.process.status.ready import Ready
from kafkalite.transport.reactor import Reactor


class ServiceGroup:
    """The processes of the configured services."""

    def __init__(
        self,
        reactor: Reactor,
        data: Path,
        configured: Iterable[ConfiguredService],
        report: StartReport,
    ) -> None:
        self.processes = [
            ServiceProcess(reactor, data, service, plan, report) for service, plan in configured
        ]
        self._may_start = False

    @property
    def is_ready(self) -> bool:
        """True if every configured service has been ready once."""
        return all(process.is_ready for process in self.processes)

    @property
    def is_running(self) -> bool:
        """True if the process of a service exists."""
        return any(process.is_running for process in self.processes)

    def bind(self) -> None:
        """Bind their sockets; raise Refusal if that fails."""
        for process in self.processes:
            process.bind()

    def take_over(self, descriptors_of: Callable[[str], Sequence[int]]) -> None:
        """Adopt the sockets that were bound before a restart on new code, by the service's key.

        A service that was configured since gets new sockets; those of a service that is no longer
        configured are closed.
        """
        processes = {process.service.key: process for process in self.processes}
        for service in SERVICES:
            listeners = [adopt(descriptor) for descriptor in descriptors_of(service.key)]
            process = processes.get(service.key)
            if process is None:
                service.remove_files(listeners)
                for listener in listeners:
                    listener.close()
            elif listeners:
                process.adopt(listeners)
            else:
                process.bind()

    @property
    def descriptions(self) -> dict[str, str]:
        """Texts on their addresses for the banner, by the service's key."""
        return {
            process.service.key: process.service.describe(process.status)
            for process in self.processes
            if process.listeners
        }

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """Descriptors of their sockets, by the service's key."""
        return {process.service.key: process.descriptors for process in self.processes}

    def start(self) -> None:
        """Start them, and restart each one that exits."""
        self._may_start = True
        for process in self.processes:
            process.start()

    def demand(self, key: str) -> None:
        """Start a service that is started on demand, unless it runs or is not configured."""
        for process in self.processes:
            if process.service.key == key and not process.is_demanded:
                process.is_demanded = True
                if self._may_start:
                    process.start()

    def shut_down(self, on_exit: Callable[[], object]) -> None:
        """Shut them down one after another, the last one first, and then call `on_exit`.

        The gateway produces the messages that it has accepted before it exits.
        """
        self._may_start = False
        for process in self.processes:
            on_exit = shutdown_step(process, on_exit)
        on_exit()

    def close(self) -> None:
        """Kill them, and close their sockets and remove their files."""
        for process in self.processes:
            process.close()

    def add_status(self, ready: Ready) -> None:
        """Add their addresses to the state of the broker."""
        entries = cast(dict[str, Any], ready)
        for process in self.processes:
            if not process.listeners:
                continue
            entries[process.service.key] = process.status


def shutdown_step(process: ServiceProcess, then: Callable[[], object]) -> Callable[[], object]:
    """Return a function that shuts a service down and calls `then` once it has exited."""
    return lambda: process.shut_down(then)


def adopt(descriptor: int) -> socket.socket:
    """Return the socket with a descriptor that this process had before its exec."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)
