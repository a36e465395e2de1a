"""Single: the broker as one process (`workers=0`), from its flags to a clean end.

    data directory locked → listener bound → node opened → answers itself, services started → ready

The socket is bound before the logs are opened, so a client that comes early waits in the backlog
and is not refused.  SIGTERM and SIGINT end it cleanly; a second one ends it at once.  SIGHUP, sent
when a terminal closes, ends it cleanly too, unless it was ignored from the start (nohup).  SIGUSR2
restarts it: the node closes, and the process executes itself anew with the listener and the lock.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from pathlib import Path

from kafkalite.broker.assembly import node_alone
from kafkalite.broker.node import Node
from kafkalite.broker.node_metrics import keep_page
from kafkalite.broker.node_settings import reactor_limits
from kafkalite.clock import SystemClock
from kafkalite.config.broker import SOCKET_LISTEN_BACKLOG_SIZE, Listener
from kafkalite.config.settings import Settings
from kafkalite.config.topic import DURABILITY
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.errors import Refusal
from kafkalite.process.announcement import Announcement, NodeThere, role_of
from kafkalite.process.listening import Ports, Remembered, recall, remember
from kafkalite.process.log_file import LOG_FILE, log_to, turn_when_large
from kafkalite.process.loop import ENDING, hear_signals, rest_collector
from kafkalite.process.readiness_probe import Question
from kafkalite.process.ready import Ready
from kafkalite.process.restart import Carried, Restarts, hear_again, lasting
from kafkalite.process.run_directory import RunDirectory
from kafkalite.process.services import Sides, Wanted
from kafkalite.process.side_process import StartReport
from kafkalite.storage.log_directory import LogDirectory
from kafkalite.storage.log_manager import LogManager
from kafkalite.storage.node_directories import check_parts
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

SHAPE = "single"


class Single:
    """One run of the broker on one data directory, in this process."""

    def __init__(
        self,
        settings: Settings,
        data: Path,
        address: Listener,
        ready_file: Path | None,
        carried: Carried | None = None,
        sides: Wanted | None = None,
    ) -> None:
        self.settings = settings
        self.data = data
        self.address = address
        self.carried = carried
        self.reactor = Reactor(SystemClock(), reactor_limits(settings))
        report = StartReport(self.look_whether_ready, self.service_failed)
        self.sides = Sides(self.reactor, data, sides or Wanted(), report)
        self.directory = LogDirectory(data)
        self.announcement = Announcement(settings, data, ready_file)
        lasts = lasting(settings, address, data)
        self.restarts = Restarts(self.reactor, SHAPE, lasts, self.look_at_restarts)
        self.kept: socket.socket | None = None
        """The listener, once the node is to close for a restart."""
        self.answers = self.is_ready = False
        self.refusal: Refusal | None = None
        self.signals = 0
        self.run_directory: RunDirectory | None = None

    def run(self, until: int | None = None) -> int:
        """Open, serve and end; see the module."""
        self.listener = listener = self.begin()
        logs = LogManager(self.data, self.settings, self.reactor.clock)
        logs.open_directory(self.directory.cluster_id, SUPERVISOR_ID)
        hear_signals(
            self.reactor,
            self.signalled,
            *ENDING,
            signal.SIGUSR2,
            at_once=self.signalled_at_once,
        )
        hear_again()
        if until is not None:
            self.reactor.watch(until, lambda: self.starter_gone(until))
        turn_when_large(self.reactor, self.data / LOG_FILE)
        try:
            self.serve(node_alone(self.settings, self.reactor, logs, listener), listener)
            if self.kept is not None:
                lock, kept = self.directory.descriptor, self.kept.fileno()
                sides = self.sides.descriptors
                self.restarts.execute(
                    lambda: self.signals > 0,
                    [lock, kept, *sides["metrics"], *sides["gateway"]],
                    lock=lock, listener=kept, **sides,
                )  # fmt: skip
                self.kept.close()
        except Refusal:
            raise
        except Exception:
            log.critical("the broker ends because of a fault", exc_info=True)
            raise
        finally:
            self.sides.close()
            self.announcement.withdraw()
            if self.run_directory is not None:
                self.run_directory.remove()
        return 0

    def begin(self) -> socket.socket:
        """Lock the data directory and bind the listener, or go on with those that were left."""
        before = recall(self.data)
        ports = Ports(self.address, before, self.settings[SOCKET_LISTEN_BACKLOG_SIZE])
        if self.carried is None:
            self.directory.lock()
            check_parts(self.data)
            self.announcement.clear()
            listener = ports.bind_first(SUPERVISOR_ID)
            self.sides.bind()
        else:
            self.directory.adopt(self.carried["lock"])
            self.restarts.take_over(self.carried)
            self.sides.bind(self.carried)
            os.set_inheritable(self.carried["listener"], False)
            listener = socket.socket(fileno=self.carried["listener"])
        log_to(self.data / LOG_FILE, f"node-{SUPERVISOR_ID}")
        self.where = Listener(*listener.getsockname()[:2])
        remembered = Remembered({SUPERVISOR_ID: self.where.port}, free=ports.free)
        if remembered != before:
            remember(self.data, remembered)
        return listener

    def serve(self, node: Node, listener: socket.socket) -> None:
        """Open the node, say that it is ready when it is, and close it at the end."""
        log.info("starting on %s, data in %s", listener.getsockname(), self.data)
        node.open()
        self.meet_in_run_directory(node)
        rest_collector(self.reactor)
        try:
            Question(self.reactor, listener, self.answered)
            self.reactor.run()
        except Refusal:
            self.close(node)
            raise
        self.close(node)
        if self.refusal is not None:
            raise self.refusal

    def meet_in_run_directory(self, node: Node) -> None:
        """Keep the node's page where an exporter looks for it, and meet programs of this host
        there; without a run directory it serves as well."""
        try:
            self.run_directory = RunDirectory(self.directory.cluster_id, self.data)
        except Refusal as refusal:
            log.warning("no metrics, and TCP only: %s", refusal)
        else:
            node.serve_locally(self.run_directory.path)
            keep_page(node, self.run_directory.path)
        self.sides.start()

    def close(self, node: Node) -> None:
        """The clean end: what the logs hold is flushed, and the next start need not look."""
        log.info("ending")
        self.restarts.withdraw()
        node.close()
        log.info("ended")

    def signalled_at_once(self, number: int) -> None:
        """Told twice to end, end at once, whatever is being done."""
        if number in ENDING:
            self.signals += 1
            if self.signals > 1:
                os._exit(1)

    def signalled(self, number: int) -> None:
        """Told to end, or asked to restart."""
        if number in ENDING:
            self.finish()
        else:
            self.restarts.asked += 1
            self.look_at_restarts()

    def starter_gone(self, until: int) -> None:
        """The descriptor that says whether somebody wants this broker has ended."""
        self.reactor.unwatch(until)
        self.finish()

    def finish(self) -> None:
        """End, as soon as the gateway has produced what it took in."""
        self.sides.end(self.reactor.stop)

    def service_failed(self, sentence: str) -> None:
        """End, because a service that was asked for cannot start."""
        self.refusal = Refusal(sentence)
        self.finish()

    def answered(self) -> None:
        """Note that the node answers."""
        self.answers = True
        self.look_whether_ready()

    def look_whether_ready(self) -> None:
        """Write the ready file and the banner once the node answers and the services run."""
        if self.is_ready or not (self.answers and self.sides.ready):
            return
        self.is_ready = True
        self.look_at_restarts()
        if self.carried is None:
            self.announcement.greet()

    def look_at_restarts(self) -> None:
        """Begin a restart that somebody asked for; tell how far it is; end for it when it may."""
        if not self.is_ready:
            return
        self.restarts.settle()
        self.tell()
        if self.restarts.passed and self.kept is None:
            self.kept = self.listener.dup()  # the node closes its own
            self.finish()

    def tell(self) -> None:
        """Bring status.json to what is so."""
        ready = Ready(
            bootstrap=self.announcement.bootstrap(self.where),
            cluster_id=self.directory.cluster_id,
            data=str(self.data),
            durability=self.settings[DURABILITY],
            launcher_pid=os.getpid(),
            nodes=self.announcement.nodes(
                [NodeThere(SUPERVISOR_ID, role_of(SUPERVISOR_ID), self.where, os.getpid())],
                self.where,
            ),
            restarts=self.restarts.done,
        )
        self.sides.tell(ready)
        if self.restarts.asked:
            renewing = [SUPERVISOR_ID] if self.restarts.passed else []
            ready["restart"] = self.restarts.told(renewing)
        self.announcement.say(ready)
