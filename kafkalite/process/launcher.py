"""Launcher: the process of `kafkalite start`, from its settings to a clean shutdown.

    settings → data directory locked → listeners bound → nodes forked → each node responds,
    services started → ready             (workers=0: one node, in this process: single.py)

The launcher is not a node.  It holds the listeners, so that no client is refused while a node is
restarted.  After every event it compares the nodes desired by the supervisor with the processes
that exist, and starts or ends processes (`settle`).

    supervisor ─▶ Roster    all nodes that shall run
               ─▶ Fence     the node's session expired: kill its process, reap it, start it again
               ─▶ Heartbeat the supervisor runs; without it, it is killed (supervisor_watch.py)
    launcher   ─▶ Nodes     all node processes, after each change

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

from kafkalite.clock import SystemClock
from kafkalite.config.broker import SOCKET_LISTEN_BACKLOG_SIZE, WORKERS, Listener
from kafkalite.config.settings import Settings
from kafkalite.config.topic import DURABILITY
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.errors import Refusal
from kafkalite.process.log_file import LOG_FILE, log_to, turn_when_large
from kafkalite.process.loop import ENDING, hear_signals, rest_collector
from kafkalite.process.nodes.control_channel import Orders
from kafkalite.process.nodes.node_process import Death, NodeProcess, State
from kafkalite.process.nodes.spawn_spec import REFUSED, WRITE_BACK_FAILED, Birth, Run
from kafkalite.process.nodes.supervisor_watch import SupervisorWatch
from kafkalite.process.options import (
    Options,
    data_directory,
    default_workers,
    listen_address,
    raise_descriptor_limit,
    ready_file,
    settings_of,
)
from kafkalite.process.ports import Ports, Remembered, recall, remember
from kafkalite.process.restart import Carried, Restarts, hear_again, lasting
from kafkalite.process.run_directory import RunDirectory
from kafkalite.process.services.service_group import ServiceGroup
from kafkalite.process.services.service_process import StartReport
from kafkalite.process.services.table import SOCKET_KEYS, ConfiguredService, configured_services
from kafkalite.process.single import SHAPE as SINGLE
from kafkalite.process.single import Single
from kafkalite.process.status.announcement import Announcement, NodeThere, role_of
from kafkalite.process.status.ready import Ready
from kafkalite.storage.log_directory import LogDirectory
from kafkalite.storage.node_directories import check_parts
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

SHAPE = "many"
GIVEN_UP = 3
"""Number of exits before it is ready after which a node counts as failing on new code."""


class Runs(NamedTuple):
    """The main functions of the two kinds of node processes."""

    supervisor: Run
    worker: Run


def start(options: Options, until: int | None = None, runs: Runs | None = None) -> int:
    """Run a broker until it is shut down and return the exit code of the process.

    End of file on the descriptor `until` shuts the broker down, too.
    """
    if sys.platform != "linux":
        raise Refusal(
            f"the broker runs on Linux, not on {sys.platform}; its clients run here as well"
        )
    carried = Carried.taken()
    os.umask(0o077)
    settings = settings_of(options)
    address = listen_address(settings, options.insecure)
    readiness = ready_file(options)
    services = configured_services(settings, options.insecure)
    data = data_directory(options, settings)
    single = workers_of(settings, data) == 0
    if not single:
        runs = runs or real_runs()
    if carried is not None:
        carried.check(SINGLE if single else SHAPE, lasting(settings, address, data, SOCKET_KEYS))
        if carried.trial:
            return 0
    raise_descriptor_limit()
    if runs is None or single:
        return Single(settings, data, address, readiness, carried, services).run(until)
    return Launcher(settings, data, address, readiness, runs, carried, services).run(until)


def workers_of(settings: Settings, data: Path) -> int:
    """Return the number of workers: as configured, else as in the last run, else by cores."""
    asked = settings[WORKERS]
    if asked is not None:
        return asked
    remembered = recall(data)
    if remembered is not None:
        return len(remembered.ports) - 1
    return default_workers()


def real_runs() -> Runs:
    """Import all modules that nodes need, so that forked processes share them."""
    from kafkalite.process import supervisor, worker

    return Runs(supervisor.run, worker.run)


def first_roster(workers: int | None, default: int, remembered: Remembered | None) -> set[int]:
    """Return the ids of the nodes to start before the supervisor has sent its list."""
    if remembered is None:
        return set(range((default if workers is None else workers) + 1))
    if workers is None:
        return set(remembered.ports)
    ordinary = sorted(remembered.ports.keys() - remembered.dedicated - {SUPERVISOR_ID})[:workers]
    known = {SUPERVISOR_ID, *ordinary, *remembered.dedicated}
    unknown = (node_id for node_id in itertools.count(1) if node_id not in known)
    return known.union(itertools.islice(unknown, workers - len(ordinary)))


class Launcher:
    """One run of the broker on one data directory, with several processes."""

    def __init__(
        self,
        settings: Settings,
        data: Path,
        address: Listener,
        readiness: Path | None,
        runs: Runs,
        carried: Carried | None = None,
        services: Sequence[ConfiguredService] = (),
    ) -> None:
        self.settings = settings
        self.data = data
        self.runs = runs
        self.carried = carried
        self.reactor = Reactor(SystemClock())
        report = StartReport(lambda: None, self.service_failed)
        self.services = ServiceGroup(self.reactor, data, services, report)
        self.directory = LogDirectory(data)
        self.remembered = recall(data)
        self.ports = Ports(address, self.remembered, settings[SOCKET_LISTEN_BACKLOG_SIZE])
        self.announcement = Announcement(settings, data, readiness)
        lasts = lasting(settings, address, data, SOCKET_KEYS)
        self.restarts = Restarts(self.reactor, SHAPE, lasts, lambda: None)
        self.nodes: dict[int, NodeProcess] = {}
        self.watch = SupervisorWatch(self.reactor, settings, lambda: self.node(SUPERVISOR_ID))
        self.orders = Orders(self.reactor, self.told_roster, self.fence, self.watch.heard)
        self.roster = first_roster(settings[WORKERS], workers_of(settings, data), self.remembered)
        self.dedicated = self.remembered.dedicated if self.remembered else frozenset()
        self.told = False
        """True if a supervisor has sent the list of nodes."""
        self.incarnation = self.reactor.clock.wall_ms()
        self.renewed_from = 0
        """Incarnations below this one were started on old code; 0 if none are left."""
        self.was_ready = False
        self.ending = self.killing = False
        self.signals = 0
        self.refusal: Refusal | None = None
        self.taken: set[int] = set()
        """The nodes whose port another program has, and for which that was logged."""

    # -- start and shutdown ------------------------------------------------------------------

    def run(self, until: int | None = None) -> int:
        """Start the nodes, keep the desired nodes running, and return the exit code."""
        self.begin(until)
        try:
            while not self.over:
                self.settle()
                self.reactor.tick()
        except Refusal:
            raise
        except Exception:
            log.critical("the broker ends because of a fault", exc_info=True)
            raise
        finally:
            self.leave_nothing()
        if self.refusal is not None:
            raise self.refusal
        log.info("ended")
        return 1 if self.killing else 0

    def begin(self, until: int | None) -> None:
        """Lock the data directory and bind the listeners, or adopt those of the last run."""
        if self.carried is None:
            self.directory.lock()
            check_parts(self.data)
            self.announcement.clear()
            for node_id in sorted(self.roster):
                self.node(node_id).listener = self.ports.bind_first(node_id)
            self.services.bind()
        else:
            self.take_over(self.carried)
        log_to(self.data / LOG_FILE, "launcher")
        self.run_directory = RunDirectory(self.directory.cluster_id, self.data)
        hear_signals(
            self.reactor, self.heard, *ENDING, signal.SIGUSR2, at_once=self.signalled_at_once
        )
        hear_again()
        if until is not None:
            self.reactor.watch(until, lambda: self.starter_gone(until))
        turn_when_large(self.reactor, self.data / LOG_FILE)
        self.services.start()
        log.info("starting nodes %s, data in %s", sorted(self.roster), self.data)
        rest_collector(self.reactor)

    @property
    def over(self) -> bool:
        """True if every process that must end has ended."""
        if not self.ending or (self.services.is_running and not self.killing):
            return False
        return not any(node.runs for node in self.nodes.values())

    def leave_nothing(self) -> None:
        """Kill the remaining processes and remove the files that announce the broker."""
        self.services.close()
        for node in self.nodes.values():
            node.kill()
        while any(node.runs for node in self.nodes.values()):
            self.reactor.tick()
        self.announcement.withdraw()
        self.run_directory.remove()

    def signalled_at_once(self, number: int) -> None:
        """Count a signal at once, before the event loop handles it: an exec must not lose it."""
        self.signals += number in ENDING

    def heard(self, number: int) -> None:
        """Restart on SIGUSR2; else shut down, and kill on the second signal."""
        if number == signal.SIGUSR2:
            self.restarts.asked += 1
        elif self.ending:
            self.killing = True
        else:
            self.end()

    def starter_gone(self, until: int) -> None:
        """Shut down because the starter closed its end of the descriptor `until`."""
        self.reactor.unwatch(until)
        self.end()

    def end(self) -> None:
        """Begin the shutdown: services first, then nodes."""
        log.info("ending")
        self.ending = True
        self.restarts.withdraw()
        self.services.shut_down(lambda: None)

    def service_failed(self, sentence: str) -> None:
        """Shut down because a configured service cannot start."""
        self.refusal = Refusal(sentence)
        self.end()

    # -- starting and ending processes -------------------------------------------------------

    def node(self, node_id: int) -> NodeProcess:
        """Return the record of a node's process, created if it is missing."""
        if node_id not in self.nodes:
            self.nodes[node_id] = NodeProcess(self.reactor, node_id, self.died)
        return self.nodes[node_id]

    @property
    def wanted(self) -> set[int]:
        """Ids of the nodes that shall run.  During shutdown the supervisor ends last, since workers
        may need it, and no node ends before the gateway, which has messages for them."""
        if not self.ending or self.services.is_running:
            return self.roster
        if any(node.runs for node_id, node in self.nodes.items() if node_id != SUPERVISOR_ID):
            return {SUPERVISOR_ID}
        return set()

    def settle(self) -> None:
        """Start and end processes towards the desired nodes, and publish the state."""
        wanted = self.wanted
        for node_id, node in sorted(self.nodes.items()):
            if self.killing:
                node.kill()
            elif node_id not in wanted:
                self.dismiss(node)
        if self.ending:
            return
        for node_id in sorted(wanted):
            if self.node(node_id).state is State.DUE:
                self.bear(self.node(node_id))
                if self.ending:
                    self.settle()  # now: no event would end the tick that follows
                    return
        self.renew_one()
        self.remember()
        self.orders.tell(self.nodes.values(), self.address_of)
        if self.was_ready:
            self.restarts.settle()
        self.announce()
        if self.restarts.passed:
            if self.services.is_running:
                self.services.shut_down(lambda: None)
            else:
                self.execute()

    def dismiss(self, node: NodeProcess) -> None:
        """Remove a node: close its listener, end its process, delete its record."""
        node.close_listener()
        node.end()
        if not node.runs:
            node.close()
            del self.nodes[node.node_id]
            if not self.ending:
                self.ports.forget(node.node_id)

    def bear(self, node: NodeProcess) -> None:
        """Start a node's process, or schedule a retry.

        If it cannot listen before the broker was ever ready, the start of the broker fails.
        """
        node_id = node.node_id
        try:
            if node.listener is None:
                bind = self.ports.bind if self.was_ready else self.ports.bind_first
                node.listener = bind(node_id)
        except Refusal as refusal:
            if not self.was_ready:
                self.refusal = refusal
                self.end()
                return
            if node_id not in self.taken:
                log.error("%s; it is tried again and again", refusal)
            self.taken.add(node_id)
            node.fail()
            return
        self.taken.discard(node_id)
        self.incarnation += 1
        try:
            self.bear_among(node)
        except OSError as fault:
            log.error(
                "Node %d cannot be forked; retrying. node=%d error=%r",
                node_id, node_id, fault.strerror,
            )  # fmt: skip
            node.fail()

    def bear_among(self, node: NodeProcess) -> None:
        """Fork a node's process with its arguments; raise OSError if that fails."""
        assert node.listener is not None
        kept = [self.directory.descriptor, self.run_directory.descriptor]
        orders: socket.socket | None = None
        if node.node_id == SUPERVISOR_ID:
            orders = self.orders.open()
            kept.append(orders.fileno())
        birth = Birth(
            node_id=node.node_id,
            incarnation=self.incarnation,
            listener=node.listener,
            orders=orders,
            settings=self.settings,
            data=self.data,
            cluster_id=self.directory.cluster_id,
            run_directory=self.run_directory.path,
            nodes={
                other_id: self.address_of(other)
                for other_id, other in sorted(self.nodes.items())
                if other.listener is not None or other.runs
            },
            explicit_workers=self.settings[WORKERS],
            first=not self.was_ready,
        )
        run = self.runs.worker if orders is None else self.runs.supervisor
        try:
            node.bear(birth, run, kept)
        finally:
            if orders is not None:
                orders.close()

    def died(self, death: Death) -> None:
        """Log the exit.  NodeProcess restarts a node that shall run, at once or after a delay."""
        node_id = death.node.node_id
        if node_id == SUPERVISOR_ID:
            self.orders.close()
        who = f"node {node_id} (process {death.pid})"
        how = death.how.rstrip(".")
        fields = f"node={node_id} pid={death.pid} exit_code={death.code}"
        if death.code == WRITE_BACK_FAILED:
            self.end_writers(who)
        if self.ending or death.state is State.ENDING:
            log.info("Node %d has shut down. %s", node_id, fields)
        elif death.state is State.READY:
            log.error("Node %d exited: %s; restarting it. %s", node_id, how, fields)
        elif not self.was_ready and (node_id == SUPERVISOR_ID or death.code == REFUSED):
            said = f"{who} ended before it was ready: {death.how}; see {self.data / LOG_FILE}"
            self.refusal = Refusal(death.words or said)
            self.end()
        else:
            log.error("Node %d exited before it was ready: %s; retrying. %s", node_id, how, fields)
            if self.renewing and death.node.failures >= GIVEN_UP and not self.restarts.under_way:
                self.restarts.fail(f"node {node_id} does not start on the new code: {death.how}")

    def end_writers(self, who: str) -> None:
        """Kill every process that writes to the file system on which a flush failed.

        The kernel reports a write-back error at most once to each descriptor, so the other
        processes may never see it.  They are killed, because a clean shutdown would mark their logs
        as complete.

        syncfs reports errors of all pages of the file system, so an error in a file of another
        program ends them as well; it cannot be distinguished from one of theirs.  A file system
        used only by the broker avoids that.
        """
        for node in self.nodes.values():
            if node.runs:
                log.error(
                    "Node %d is killed and recovers its logs: %s reported a failed flush of their"
                    " file system. node=%d pid=%d", node.node_id, who, node.node_id, node.pid,
                )  # fmt: skip
                node.kill()

    # -- messages of the supervisor, and the listeners ---------------------------------------

    def told_roster(self, roster: set[int], dedicated: frozenset[int]) -> None:
        """Replace the desired nodes by the supervisor's list."""
        self.roster, self.dedicated, self.told = {SUPERVISOR_ID, *roster}, dedicated, True
        self.ports.forget_all_but({*self.roster, *self.nodes})

    def fence(self, node_id: int, incarnation: int) -> None:
        """Kill a process whose session has expired, if it is still the same incarnation."""
        node = self.nodes.get(node_id)
        if node is not None and node.runs and node.incarnation == incarnation:
            log.error(
                "Node %d missed its heartbeat deadline; killing its process. node=%d pid=%d"
                " incarnation=%d", node_id, node_id, node.pid, incarnation,
            )  # fmt: skip
            node.kill()

    def address_of(self, node: NodeProcess) -> Listener:
        """Return the address of a node's listener, also while it has none."""
        first = self.nodes.get(SUPERVISOR_ID)
        for known in (node, first):
            if known is not None and known.listener is not None:
                host = known.listener.getsockname()[0]
                return Listener(host, self.ports.of(node.node_id))
        return self.ports.address._replace(port=self.ports.of(node.node_id))

    def remember(self) -> None:
        """Write the nodes' ports to the data directory if they have changed."""
        if not self.told or self.roster != self.nodes.keys():
            return
        known = {node_id: self.ports.of(node_id) for node_id in self.roster}
        now = Remembered(known, self.dedicated & self.roster, self.ports.free)
        if now != self.remembered and all(known.values()):
            self.remembered = now
            try:
                remember(self.data, now)
            except OSError as fault:
                log.warning("the listeners cannot be remembered: %s", fault.strerror)

    # -- what is published -------------------------------------------------------------------

    @property
    def calm(self) -> bool:
        """True if every desired node has responded."""
        return all(self.node(node_id).state is State.READY for node_id in self.roster)

    def announce(self) -> None:
        """Update status.json; once all nodes are ready for the first time, print the banner."""
        greet = not self.was_ready and self.told and self.calm and self.services.is_ready
        self.was_ready |= greet
        if not self.was_ready:
            return
        first = self.address_of(self.node(SUPERVISOR_ID))
        there = [
            NodeThere(node_id, role_of(node_id, self.dedicated), self.address_of(node), node.pid)
            for node_id, node in self.nodes.items()
            if node.state is State.READY
        ]
        ready = Ready(
            bootstrap=self.announcement.bootstrap(first),
            cluster_id=self.directory.cluster_id,
            data=str(self.data),
            durability=self.settings[DURABILITY],
            launcher_pid=os.getpid(),
            nodes=self.announcement.nodes(there, first),
            restarts=self.restarts.done,
        )
        self.services.add_status(ready)
        if self.restarts.asked:
            ready["restart"] = self.restarts.told(self.renewing)
        self.announcement.say(ready)
        if greet:
            self.announcement.greet(self.services.descriptions)

    # -- restarts ----------------------------------------------------------------------------

    @property
    def renewing(self) -> list[int]:
        """Ids of the nodes that are not yet ready on the new code."""
        if not self.renewed_from:
            return []
        return [
            node_id
            for node_id in sorted(self.roster)
            if self.node(node_id).incarnation < self.renewed_from
            or self.node(node_id).state is not State.READY
        ]

    def renew_one(self) -> None:
        """End a node that runs old code if all nodes are ready; the supervisor last."""
        left = self.renewing
        if not left:
            self.renewed_from = 0
        elif self.calm:
            self.node(next((node_id for node_id in left if node_id != SUPERVISOR_ID), 0)).end()

    def execute(self) -> None:
        """Execute the new code, which takes over all sockets and processes."""
        nodes = [
            {
                "node_id": node_id,
                "listener": -1 if node.listener is None else node.listener.fileno(),
                "pid": node.pid,
                "incarnation": node.incarnation,
                "state": node.state.value,
            }
            for node_id, node in self.nodes.items()
        ]
        held = [node.listener for node in self.nodes.values()]
        held.append(self.orders.socket)
        service_descriptors = self.services.descriptors
        self.restarts.execute(
            lambda: self.signals > 0,
            [
                self.directory.descriptor,
                *(each.fileno() for each in held if each is not None),
                *itertools.chain.from_iterable(service_descriptors.values()),
            ],
            lock=self.directory.descriptor,
            orders=-1 if self.orders.socket is None else self.orders.socket.fileno(),
            incarnation=self.incarnation,
            roster=sorted(self.roster),
            dedicated=sorted(self.dedicated),
            ports=self.ports.ports,
            free=self.ports.free,
            nodes=nodes,
            **service_descriptors,
        )
        self.services.start()  # the exec has failed

    def take_over(self, carried: Carried) -> None:
        """Take over the sockets and processes of the code before the exec."""
        self.directory.adopt(carried["lock"])
        self.restarts.take_over(carried)
        self.services.take_over(carried.service_descriptors)
        self.incarnation = max(self.incarnation, carried["incarnation"])
        self.renewed_from = self.incarnation + 1
        self.roster = set(carried["roster"])
        self.dedicated = frozenset(carried["dedicated"])
        self.ports.free = carried["free"]
        self.ports.ports = {int(node_id): port for node_id, port in carried["ports"].items()}
        self.told = self.was_ready = True
        for fields in carried["nodes"]:
            node = self.node(fields["node_id"])
            if fields["listener"] >= 0:
                os.set_inheritable(fields["listener"], False)
                node.listener = socket.socket(fileno=fields["listener"])
            if fields["pid"]:
                node.take_over(fields["pid"], fields["incarnation"], State(fields["state"]))
        if carried["orders"] >= 0:
            self.orders.take_over(carried["orders"])
