"""SingleProcessBroker: the broker as one process (`workers=0`), from start to clean shutdown.

    data directory locked → listener bound → node opened → responds, services started → ready

The socket is bound before the logs are opened, so an early client waits in the backlog and is not
refused.  SIGTERM and SIGINT shut down cleanly; a second one exits at once.  SIGHUP, sent when a
terminal closes, shuts down cleanly too, unless it was ignored from the start (nohup).  SIGUSR2
restarts: the node closes, and the process executes itself with the same listener and lock.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from kafkalite.broker.assembly import single_node
from kafkalite.broker.controller.compaction_demand import CompactionDemand
from kafkalite.broker.controller.replica_lookup import ReplicaLookup
from kafkalite.broker.node import Node
from kafkalite.broker.node_metrics import start_metrics
from kafkalite.broker.node_settings import reactor_limits
from kafkalite.clock import SystemClock
from kafkalite.config.broker import SOCKET_LISTEN_BACKLOG_SIZE
from kafkalite.config.listener import Listener
from kafkalite.config.settings import Settings
from kafkalite.config.topic import DURABILITY
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.errors import Refusal
from kafkalite.process.log_file import LOG_FILE, log_to, rotate_when_large
from kafkalite.process.loop import SHUTDOWN_SIGNALS, disable_automatic_gc, handle_signals
from kafkalite.process.nodes.readiness_probe import ReadinessProbe
from kafkalite.process.ports import Ports, SavedPorts, load_ports, save_ports
from kafkalite.process.restart import CarriedState, RestartManager, fixed_settings, unblock_signals
from kafkalite.process.run_directory import RunDirectory
from kafkalite.process.services.cleaner_service import CLEANER
from kafkalite.process.services.service_group import ServiceGroup
from kafkalite.process.services.service_process import StartReport
from kafkalite.process.services.table import SOCKET_KEYS, ConfiguredService
from kafkalite.process.status.publisher import RunningNode, StatusPublisher, role_of
from kafkalite.process.status.ready import Ready
from kafkalite.storage.manager.log_directories import LogDirectories
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.storage.manager.node_directories import check_directories
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

SHAPE = "single"


class SingleProcessBroker:
    """One run of the broker on one data directory, in this process."""

    def __init__(
        self,
        settings: Settings,
        directories: LogDirectories,
        address: Listener,
        ready_file: Path | None,
        carried: CarriedState | None = None,
        services: Sequence[ConfiguredService] = (),
    ) -> None:
        self.settings = settings
        self.directories = directories
        self.data = data = directories.data
        self.address = address
        self.carried = carried
        self.reactor = Reactor(SystemClock(), reactor_limits(settings))
        report = StartReport(self.check_ready, self.service_failed)
        self.services = ServiceGroup(self.reactor, data, services, report)
        self.publisher = StatusPublisher(settings, data, ready_file)
        fixed = fixed_settings(settings, address, directories.paths, SOCKET_KEYS)
        self.restarts = RestartManager(self.reactor, SHAPE, fixed, self.check_restarts)
        self.listener_copy: socket.socket | None = None
        """Duplicate of the listener, kept for a restart while the node closes."""
        self.is_responding = self.is_ready = False
        self.refusal: Refusal | None = None
        self.signals = 0
        self.run_directory: RunDirectory | None = None

    def run(self, until: int | None = None) -> int:
        """Open the node, serve, shut down, and return the exit code."""
        self.listener = listener = self.begin()
        logs = LogManager(self.data, self.settings, self.reactor.clock)
        logs.open_directory(self.directories.cluster_id, SUPERVISOR_ID)
        handle_signals(
            self.reactor,
            self.handle_signal,
            *SHUTDOWN_SIGNALS,
            signal.SIGUSR2,
            at_once=self.exit_on_second_signal,
        )
        unblock_signals()
        if until is not None:
            self.reactor.watch(until, lambda: self.starter_exited(until))
        rotate_when_large(self.reactor, self.data / LOG_FILE)
        try:
            self.serve(single_node(self.settings, self.reactor, logs, listener), listener)
            if self.listener_copy is not None:
                locks, copy = self.directories.descriptors, self.listener_copy.fileno()
                services = self.services.descriptors
                self.restarts.execute(
                    lambda: self.signals > 0,
                    [*locks, copy, *itertools.chain.from_iterable(services.values())],
                    locks=locks, listener=copy, **services,
                )  # fmt: skip
                self.listener_copy.close()
        except Refusal:
            raise
        except Exception:
            log.critical("Broker exits because of an unexpected error.", exc_info=True)
            raise
        finally:
            self.services.close()
            self.publisher.remove_files()
            if self.run_directory is not None:
                self.run_directory.remove()
        return 0

    def begin(self) -> socket.socket:
        """Lock the data directory and bind the listener, or adopt those of the last run."""
        before = load_ports(self.data)
        ports = Ports(self.address, before, self.settings[SOCKET_LISTEN_BACKLOG_SIZE])
        if self.carried is None:
            self.directories.lock()
            check_directories(self.data, ReplicaLookup(self.data))
            self.publisher.remove_files_or_refuse()
            listener = ports.bind_first(SUPERVISOR_ID)
            self.services.bind()
        else:
            self.directories.adopt(self.carried.locks)
            self.restarts.take_over(self.carried)
            self.services.take_over(self.carried.service_descriptors)
            os.set_inheritable(self.carried["listener"], False)
            listener = socket.socket(fileno=self.carried["listener"])
        log_to(self.data / LOG_FILE, f"node-{SUPERVISOR_ID}")
        self.where = Listener(*listener.getsockname()[:2])
        saved = SavedPorts({SUPERVISOR_ID: self.where.port}, free=ports.free)
        if saved != before:
            save_ports(self.data, saved)
        return listener

    def serve(self, node: Node, listener: socket.socket) -> None:
        """Open the node, run the event loop, and close the node."""
        host, port = listener.getsockname()[:2]
        log.info("Broker starts. host=%s port=%d data=%s", host, port, self.data)
        node.open()
        self.serve_run_directory(node)
        disable_automatic_gc(self.reactor)
        try:
            CompactionDemand(
                node.local_controller,
                lambda: node.settings,
                node.replicas,
                self.reactor,
                lambda: self.services.demand(CLEANER.key),
            )
            ReadinessProbe(self.reactor, listener, self.responded)
            self.reactor.run()
        except Refusal:
            self.close(node)
            raise
        self.close(node)
        if self.refusal is not None:
            raise self.refusal

    def serve_run_directory(self, node: Node) -> None:
        """Create the run directory with the local listener and the node's metrics page, then start
        the services.  Without a run directory the node serves TCP only."""
        try:
            self.run_directory = RunDirectory(self.directories.cluster_id, self.data)
        except Refusal as refusal:
            log.warning(
                "Run directory cannot be created: no metrics, and clients use TCP only. error=%r",
                str(refusal),
            )
        else:
            node.serve_locally(self.run_directory.path)
            start_metrics(node, self.run_directory.path)
        self.services.start()

    def close(self, node: Node) -> None:
        """Shut down cleanly: flush the logs, so that the next start needs no recovery."""
        log.info("Broker shuts down.")
        self.restarts.cancel()
        node.close()
        log.info("Broker has shut down.")

    def exit_on_second_signal(self, number: int) -> None:
        """Exit at once on the second signal that ends the broker."""
        if number in SHUTDOWN_SIGNALS:
            self.signals += 1
            if self.signals > 1:
                os._exit(1)

    def handle_signal(self, number: int) -> None:
        """Shut down or restart, by the number of the signal."""
        if number in SHUTDOWN_SIGNALS:
            self.shut_down()
        else:
            self.restarts.requested += 1
            self.check_restarts()

    def starter_exited(self, until: int) -> None:
        """Shut down because the starter closed its end of the descriptor `until`."""
        self.reactor.unwatch(until)
        self.shut_down()

    def shut_down(self) -> None:
        """Shut down once the gateway has produced the messages it accepted."""
        self.services.shut_down(self.reactor.stop)

    def service_failed(self, sentence: str) -> None:
        """Shut down because a configured service cannot start."""
        self.refusal = Refusal(sentence)
        self.shut_down()

    def responded(self) -> None:
        """Note that the node has responded to a request."""
        self.is_responding = True
        self.check_ready()

    def check_ready(self) -> None:
        """Write the ready file and the banner once the node responds and the services run."""
        if self.is_ready or not (self.is_responding and self.services.is_ready):
            return
        self.is_ready = True
        self.check_restarts()
        if self.carried is None:
            self.publisher.print_banner(self.services.descriptions)

    def check_restarts(self) -> None:
        """Begin a requested restart, report its progress, and shut down for it once the new code
        has passed its trial."""
        if not self.is_ready:
            return
        self.restarts.start_trial()
        self.publish()
        if self.restarts.passed and self.listener_copy is None:
            self.listener_copy = self.listener.dup()  # the node closes its own
            self.shut_down()

    def publish(self) -> None:
        """Write the current state to status.json if it has changed."""
        ready = Ready(
            bootstrap=self.publisher.bootstrap(self.where),
            cluster_id=self.directories.cluster_id,
            data=str(self.data),
            durability=self.settings[DURABILITY],
            launcher_pid=os.getpid(),
            nodes=self.publisher.node_entries(
                [RunningNode(SUPERVISOR_ID, role_of(SUPERVISOR_ID), self.where, os.getpid())],
                self.where,
            ),
            restarts=self.restarts.completed,
        )
        self.services.add_status(ready)
        if self.restarts.requested:
            renewing = [SUPERVISOR_ID] if self.restarts.passed else []
            ready["restart"] = self.restarts.status(renewing)
        self.publisher.publish(ready)
