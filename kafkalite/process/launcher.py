"""Launcher: the process of `kafkalite start`, from its settings to a clean shutdown.

    settings → data directory locked → listeners bound → nodes forked → each node responds,
    services started → ready             (workers=0: one node, in this process: single.py)

The launcher is not a node.  It holds the listeners, so that no client is refused while a node is
restarted.  After every event it compares the nodes desired by the supervisor with the processes
that exist (nodes/node_table.py), and starts or ends processes (`reconcile`).

It has one thread and no ZeroMQ context, because it forks.  It imports every module its children
need, so that they share those pages.  It waits for processes by pidfd.

SIGTERM and SIGINT shut down cleanly: the workers, then the supervisor, then the launcher's files.
A second one kills the processes.  SIGUSR2 restarts the launcher on new code (restart.py), and then
one node after another.  If the launcher is killed, the kernel kills its children.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kafkalite.broker.controller.replica_lookup import ReplicaLookup
from kafkalite.clock import SystemClock
from kafkalite.config.broker import WORKERS
from kafkalite.config.listener import Listener
from kafkalite.config.settings import Settings
from kafkalite.config.topic import DURABILITY
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.errors import Refusal
from kafkalite.process.log_file import LOG_FILE, log_to, rotate_when_large
from kafkalite.process.loop import SHUTDOWN_SIGNALS, disable_automatic_gc, handle_signals
from kafkalite.process.nodes.node_process import NodeProcess, NodeProcessState, ProcessExit
from kafkalite.process.nodes.node_table import NodeTable, workers_of
from kafkalite.process.nodes.spawn_spec import REFUSED, WRITE_BACK_FAILED, NodeMain, SpawnSpec
from kafkalite.process.options import (
    Options,
    listen_address,
    log_directories,
    raise_descriptor_limit,
    ready_file,
    settings_of,
)
from kafkalite.process.ports import load_ports
from kafkalite.process.restart import CarriedState, RestartManager, fixed_settings, unblock_signals
from kafkalite.process.run_directory import RunDirectory
from kafkalite.process.services.service_group import ServiceGroup
from kafkalite.process.services.service_process import StartReport
from kafkalite.process.services.table import SOCKET_KEYS, ConfiguredService, configured_services
from kafkalite.process.single import SHAPE as SINGLE
from kafkalite.process.single import SingleProcessBroker
from kafkalite.process.status.publisher import RunningNode, StatusPublisher, role_of
from kafkalite.process.status.ready import LogDirReady, Ready
from kafkalite.storage.files.layout import node_directory
from kafkalite.storage.files.write_back import share_file_system
from kafkalite.storage.manager.log_directories import LogDirectories
from kafkalite.storage.manager.node_directories import check_directories
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

SHAPE = "many"
FAILED_STARTS_MAX = 3
"""Number of exits before it is ready after which a node counts as failing on new code."""


class NodeMains(NamedTuple):
    """The main functions of the two kinds of node processes."""

    supervisor: NodeMain
    worker: NodeMain


def start(options: Options, until: int | None = None, mains: NodeMains | None = None) -> int:
    """Run a broker until it is shut down and return the exit code of the process.

    End of file on the descriptor `until` shuts the broker down, too.
    """
    if sys.platform != "linux":
        raise Refusal(
            f"the broker runs on Linux, not on {sys.platform}; its clients run here as well"
        )
    carried = CarriedState.take_from_environment()
    os.umask(0o077)
    settings = settings_of(options)
    address = listen_address(settings, options.insecure)
    readiness = ready_file(options)
    services = configured_services(settings, options.insecure)
    directories = log_directories(options, settings)
    workers = workers_of(settings, load_ports(directories.data), len(directories.paths))
    single = workers == 0
    if single and directories.others:
        raise Refusal(
            f"log.dirs has {len(directories.paths)} directories, but without workers only the first"
            " would hold logs; start with --workers 1 or more, or with one directory"
        )
    if not single:
        mains = mains or import_node_mains()
    if carried is not None:
        fixed = fixed_settings(settings, address, directories.paths, SOCKET_KEYS)
        carried.check(SINGLE if single else SHAPE, fixed)
        if carried.is_trial:
            return 0
    raise_descriptor_limit()
    if mains is None or single:
        return SingleProcessBroker(
            settings, directories, address, readiness, carried, services
        ).run(until)
    return Launcher(settings, directories, address, readiness, mains, carried, services).run(until)


def import_node_mains() -> NodeMains:
    """Import all modules that nodes need, so that forked processes share them."""
    from kafkalite.process import supervisor, worker

    return NodeMains(supervisor.run, worker.run)


class Launcher:
    """One run of the broker on one data directory, with several processes."""

    def __init__(
        self,
        settings: Settings,
        directories: LogDirectories,
        address: Listener,
        readiness: Path | None,
        mains: NodeMains,
        carried: CarriedState | None = None,
        services: Sequence[ConfiguredService] = (),
    ) -> None:
        self.settings = settings
        self.directories = directories
        self.data = data = directories.data
        self.mains = mains
        self.carried = carried
        self.reactor = Reactor(SystemClock())
        report = StartReport(lambda: None, self.service_failed)
        self.services = ServiceGroup(self.reactor, data, services, report)
        self.publisher = StatusPublisher(settings, data, readiness)
        fixed = fixed_settings(settings, address, directories.paths, SOCKET_KEYS)
        self.restarts = RestartManager(self.reactor, SHAPE, fixed, lambda: None)
        self.nodes = NodeTable(
            self.reactor, settings, directories.paths, address, self.node_exited,
            self.services.demand,
        )  # fmt: skip
        self.incarnation = self.reactor.clock.wall_ms()
        self.new_code_from = 0
        """Incarnations below this one were started on old code; 0 if none are left."""
        self.was_ready = False
        self.is_ending = self.is_killing = False
        self.signals = 0
        self.refusal: Refusal | None = None
        self.listed_nodes: list[int] = []
        self.listed_dirs: list[LogDirReady] = []
        """What `log_dirs` has, and the nodes for which that was found out."""
        self.blocked: set[int] = set()
        """The nodes whose port another program has, and for which that was logged."""

    # -- start and shutdown ------------------------------------------------------------------

    def run(self, until: int | None = None) -> int:
        """Start the nodes, keep the desired nodes running, and return the exit code."""
        self.begin(until)
        try:
            while not self.is_shut_down:
                self.reconcile()
                self.reactor.tick()
        except Refusal:
            raise
        except Exception:
            log.critical("Launcher exits because of an unexpected error.", exc_info=True)
            raise
        finally:
            self.kill_and_clean_up()
        if self.refusal is not None:
            raise self.refusal
        log.info("Broker has shut down.")
        return 1 if self.is_killing else 0

    def begin(self, until: int | None) -> None:
        """Lock the data directory and bind the listeners, or adopt those of the last run."""
        if self.carried is None:
            self.directories.lock()
            check_directories(self.data, ReplicaLookup(self.data))
            self.publisher.remove_files_or_refuse()
            for node_id in sorted(self.nodes.desired):
                self.nodes.process(node_id).listener = self.nodes.ports.bind_first(node_id)
            self.services.bind()
        else:
            self.take_over(self.carried)
        log_to(self.data / LOG_FILE, "launcher")
        self.run_directory = RunDirectory(self.directories.cluster_id, self.data)
        handle_signals(
            self.reactor,
            self.handle_signal,
            *SHUTDOWN_SIGNALS,
            signal.SIGUSR2,
            at_once=self.count_signal,
        )
        unblock_signals()
        if until is not None:
            self.reactor.watch(until, lambda: self.starter_exited(until))
        rotate_when_large(self.reactor, self.data / LOG_FILE)
        self.services.start()
        log.info("Broker starts. nodes=%s data=%s", sorted(self.nodes.desired), self.data)
        disable_automatic_gc(self.reactor)

    @property
    def is_shut_down(self) -> bool:
        """True if every process that must end has ended."""
        if not self.is_ending or (self.services.is_running and not self.is_killing):
            return False
        return not self.nodes.running

    def kill_and_clean_up(self) -> None:
        """Kill the remaining processes and remove the files that announce the broker."""
        self.services.close()
        self.nodes.kill()
        while self.nodes.running:
            self.reactor.tick()
        self.publisher.remove_files()
        self.run_directory.remove()

    def count_signal(self, number: int) -> None:
        """Count a signal at once, before the event loop handles it: an exec must not lose it."""
        self.signals += number in SHUTDOWN_SIGNALS

    def handle_signal(self, number: int) -> None:
        """Restart on SIGUSR2; else shut down, and kill on the second signal."""
        if number == signal.SIGUSR2:
            self.restarts.requested += 1
        elif self.is_ending:
            self.is_killing = True
        else:
            self.shut_down()

    def starter_exited(self, until: int) -> None:
        """Shut down because the starter closed its end of the descriptor `until`."""
        self.reactor.unwatch(until)
        self.shut_down()

    def shut_down(self) -> None:
        """Begin the shutdown: services first, then nodes."""
        log.info("Broker shuts down. nodes=%s", sorted(self.nodes.desired))
        self.is_ending = True
        self.nodes.control.send_broker_ends()
        self.restarts.cancel()
        self.services.shut_down(lambda: None)

    def service_failed(self, sentence: str) -> None:
        """Shut down because a configured service cannot start."""
        self.refusal = Refusal(sentence)
        self.shut_down()

    # -- starting and ending processes -------------------------------------------------------

    @property
    def nodes_to_run(self) -> set[int]:
        """Ids of the nodes that should run.

        During shutdown the supervisor ends last, since workers may need it, and no node ends before
        the gateway, which has messages for them.
        """
        if not self.is_ending or self.services.is_running:
            return self.nodes.desired
        if any(node.node_id != SUPERVISOR_ID for node in self.nodes.running):
            return {SUPERVISOR_ID}
        return set()

    def reconcile(self) -> None:
        """Start and end processes towards the desired nodes, and publish the state."""
        node_ids = self.nodes_to_run
        if self.is_killing:
            self.nodes.kill()
            return
        for node in self.nodes:
            if node.node_id not in node_ids:
                self.remove_node(node)
        if self.is_ending:
            return
        for node_id in sorted(node_ids):
            node = self.nodes.process(node_id)
            if node.state is NodeProcessState.DUE:
                self.start_node(node)
                if self.is_ending:
                    self.reconcile()  # now: no event would end the tick that follows
                    return
        self.restart_one_node()
        self.nodes.save_ports()
        self.nodes.send_to_supervisor()
        if self.was_ready:
            self.restarts.start_trial()
        self.publish()
        if self.restarts.passed:
            if self.services.is_running:
                self.services.shut_down(lambda: None)
            else:
                self.execute_new_code()

    def remove_node(self, node: NodeProcess) -> None:
        """Remove a node: close its listener, end its process, delete its record."""
        node.close_listener()
        node.terminate()
        if not node.is_running:
            self.nodes.remove(node.node_id)
            if not self.is_ending:
                self.nodes.ports.release(node.node_id)

    def start_node(self, node: NodeProcess) -> None:
        """Start a node's process, or schedule a retry.

        If it cannot listen before the broker was ever ready, the start of the broker fails.
        """
        node_id = node.node_id
        try:
            if node.listener is None:
                ports = self.nodes.ports
                bind = ports.bind if self.was_ready else ports.bind_first
                node.listener = bind(node_id)
        except Refusal as refusal:
            if not self.was_ready:
                self.refusal = refusal
                self.shut_down()
                return
            if node_id not in self.blocked:
                log.error(
                    "Node %d has no listener; retrying. node=%d error=%r",
                    node_id, node_id, str(refusal),
                )  # fmt: skip
            self.blocked.add(node_id)
            node.back_off()
            return
        self.blocked.discard(node_id)
        self.incarnation += 1
        try:
            self.fork_node(node)
        except OSError as error:
            log.error(
                "Node %d cannot be forked; retrying. node=%d error=%r",
                node_id, node_id, error.strerror,
            )  # fmt: skip
            node.back_off()

    def fork_node(self, node: NodeProcess) -> None:
        """Fork a node's process with its arguments; raise OSError if that fails."""
        assert node.listener is not None
        self.directories.make_node_directory(node.node_id)
        descriptors = [*self.directories.descriptors, self.run_directory.descriptor]
        control_socket: socket.socket | None = None
        if node.node_id == SUPERVISOR_ID:
            control_socket = self.nodes.control.open()
            descriptors.append(control_socket.fileno())
        spec = SpawnSpec(
            node_id=node.node_id,
            incarnation=self.incarnation,
            listener=node.listener,
            control_socket=control_socket,
            settings=self.settings,
            data=self.data,
            other_directories=self.directories.others,
            ran_in_this_boot=self.directories.ran_in_this_boot,
            cluster_id=self.directories.cluster_id,
            run_directory=self.run_directory.path,
            nodes=self.nodes.known_addresses,
            explicit_workers=self.settings[WORKERS],
            is_first_start=not self.was_ready,
        )
        main = self.mains.worker if control_socket is None else self.mains.supervisor
        try:
            node.fork(spec, main, descriptors)
        finally:
            if control_socket is not None:
                control_socket.close()

    def node_exited(self, exited: ProcessExit) -> None:
        """Log the exit.  NodeProcess restarts a node that should run, at once or after a delay."""
        node_id = exited.node.node_id
        if node_id == SUPERVISOR_ID:
            self.nodes.control.close()
        description = exited.description.rstrip(".")
        fields = f"node={node_id} pid={exited.pid} exit_code={exited.code}"
        if exited.code == WRITE_BACK_FAILED:
            self.kill_writers(node_id)
        if self.is_ending or exited.state is NodeProcessState.ENDING:
            log.info("Node %d has shut down. %s", node_id, fields)
        elif exited.state is NodeProcessState.READY:
            log.error("Node %d exited: %s; restarting it. %s", node_id, description, fields)
        elif not self.was_ready and (node_id == SUPERVISOR_ID or exited.code == REFUSED):
            self.refusal = Refusal(
                exited.reason
                or f"node {node_id} (process {exited.pid}) exited before it was"
                f" ready: {description}; see {self.data / LOG_FILE}"
            )
            self.shut_down()
        else:
            log.error(
                "Node %d exited before it was ready: %s; retrying. %s",
                node_id, description, fields,
            )  # fmt: skip
            failed = exited.node.failures >= FAILED_STARTS_MAX
            if self.nodes_to_restart and failed and not self.restarts.is_in_progress:
                self.restarts.fail(
                    f"node {node_id} does not start on the new code: {exited.description}"
                )

    def kill_writers(self, failed_node_id: int) -> None:
        """Kill every node whose logs are on the file system on which a flush failed.

        The kernel reports a write-back error at most once to each descriptor, so the other
        processes may never see it.  They are killed, because a clean shutdown would mark their logs
        as complete.

        syncfs reports errors of all pages of the file system, so an error in a file of another
        program ends them as well; it cannot be distinguished from one of theirs.  A file system
        used only by the broker avoids that.

        The supervisor also writes a copy of the metadata log to each other file system; it renews
        the copy because of the mark that the failed process has left (metadata_copy.py).
        """
        failed = node_directory(self.data, failed_node_id)
        for node in self.nodes.running:
            if not share_file_system(node_directory(self.data, node.node_id), failed):
                continue
            log.error(
                "Node %d is killed and recovers its logs: node %d reported a failed flush of"
                " their file system. node=%d pid=%d",
                node.node_id, failed_node_id, node.node_id, node.pid,
            )  # fmt: skip
            node.kill()

    # -- published state ---------------------------------------------------------------------

    def publish(self) -> None:
        """Update status.json; once all nodes are ready for the first time, print the banner."""
        is_first_time = not self.was_ready
        nodes = self.nodes
        if is_first_time and not (
            nodes.has_desired_nodes and nodes.all_ready and self.services.is_ready
        ):
            return
        self.was_ready = True
        first = nodes.address_of(nodes.process(SUPERVISOR_ID))
        running = [
            RunningNode(
                node.node_id,
                role_of(node.node_id, nodes.dedicated),
                nodes.address_of(node),
                node.pid,
            )
            for node in nodes
            if node.state is NodeProcessState.READY
        ]
        ready = Ready(
            bootstrap=self.publisher.bootstrap(first),
            cluster_id=self.directories.cluster_id,
            data=str(self.data),
            durability=self.settings[DURABILITY],
            launcher_pid=os.getpid(),
            nodes=self.publisher.node_entries(running, first),
            restarts=self.restarts.completed,
        )
        self.services.add_status(ready)
        if self.directories.others:
            ready["log_dirs"] = self.log_dirs
        if self.restarts.requested:
            ready["restart"] = self.restarts.status(self.nodes_to_restart)
        self.publisher.publish(ready)
        if is_first_time:
            self.directories.note_boot()
            self.publisher.print_banner(self.services.descriptions)

    @property
    def log_dirs(self) -> list[LogDirReady]:
        """The log directories and the nodes in each, as published."""
        node_ids = sorted(self.nodes.desired)
        if self.listed_nodes != node_ids:
            self.listed_nodes = node_ids
            nodes_in = self.directories.nodes_in(node_ids)
            self.listed_dirs = [
                LogDirReady(path=str(path), nodes=nodes) for path, nodes in nodes_in.items()
            ]
        return self.listed_dirs

    # -- restarts ----------------------------------------------------------------------------

    @property
    def nodes_to_restart(self) -> list[int]:
        """Ids of the nodes that are not yet ready on the new code."""
        if not self.new_code_from:
            return []
        return [
            node_id
            for node_id in sorted(self.nodes.desired)
            if self.nodes.process(node_id).incarnation < self.new_code_from
            or self.nodes.process(node_id).state is not NodeProcessState.READY
        ]

    def restart_one_node(self) -> None:
        """End a node that runs old code if all nodes are ready; the supervisor last."""
        node_ids = self.nodes_to_restart
        if not node_ids:
            self.new_code_from = 0
        elif self.nodes.all_ready:
            workers = (node_id for node_id in node_ids if node_id != SUPERVISOR_ID)
            self.nodes.process(next(workers, SUPERVISOR_ID)).terminate()

    def execute_new_code(self) -> None:
        """Execute the new code, which takes over all sockets and processes."""
        service_descriptors = self.services.descriptors
        self.restarts.execute(
            lambda: self.signals > 0,
            [
                *self.directories.descriptors,
                *self.nodes.descriptors,
                *itertools.chain.from_iterable(service_descriptors.values()),
            ],
            locks=self.directories.descriptors,
            incarnation=self.incarnation,
            **self.nodes.carried_fields,
            **service_descriptors,
        )
        self.services.start()  # the exec has failed

    def take_over(self, carried: CarriedState) -> None:
        """Take over the sockets and processes of the code before the exec."""
        self.directories.adopt(carried.locks)
        self.restarts.take_over(carried)
        self.services.take_over(carried.service_descriptors)
        self.incarnation = max(self.incarnation, carried["incarnation"])
        self.new_code_from = self.incarnation + 1
        self.nodes.take_over(carried)
        self.was_ready = True
