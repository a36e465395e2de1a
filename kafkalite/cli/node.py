"""kafkalite node: list, add and remove worker processes, and move partitions between them.

Each worker is a node with its own address.  The supervisor of the broker on a data directory
executes these commands; it is reached over the broker's bus, so only by the broker's own user on
the same machine.

Partitions move while clients use them, without copying or losing records.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafkalite.cli.broker import DATA, data_directory
from kafkalite.cli.command import argument, columns, command, print_stderr
from kafkalite.cli.progress import format_size
from kafkalite.clock import SystemClock
from kafkalite.errors import Refusal, raise_for
from kafkalite.process.run_directory import bus_path
from kafkalite.process.status.ready import Ready, not_ready, running
from kafkalite.protocol.schemas.bus import NODE_ORDER, NODE_REPORT, TypedRecord
from kafkalite.transport.bus import BusClient
from kafkalite.transport.reactor import Reactor

REQUEST_TIMEOUT_S = 10.0
"""Timeout of a request; a killed supervisor is restarted in less time."""
RETRY_INTERVAL_S = 1.0
READY_S = 30.0
POLL_INTERVAL_MS = 50
"""Interval between two requests for the number of remaining moves."""
ONCE = ("add", "remove")
"""Requests that must not be executed twice; the others are idempotent."""
STALL_S = 10.0
"""Time without progress after which the possible cause is printed."""
SUPERVISOR_ID = 0

NODE = argument("node", metavar="ID", type=int, help="id of the node (see: kafkalite node list)")
JSON = argument("--json", action="store_true", dest="as_json", help="print JSON")

NodeFields = dict[str, Any]
NodeReport = dict[str, Any]


@command(DATA, JSON, name="list")
def list_nodes(data: Path | None, as_json: bool) -> None:
    """List the nodes with address, state, number of partitions and size.

    PARTITIONS are those that the node leads, and SIZE is theirs; REPLICAS has followed ones, too.

    Examples:
      kafkalite node list
      kafkalite node list --json --data /tmp/try
    """
    with supervisor(data) as client:
        report = client.request("list")
    if as_json:
        nodes = [json_fields(node) for node in report["nodes"]]
        print(json.dumps({"nodes": nodes, "moves_left": report["moves_left"]}))
        return
    print(table(report["nodes"]))
    if report["moves_left"]:
        print_stderr(f"{partitions(report['moves_left'])} left to move")


@command(DATA, JSON)
def add(data: Path | None, as_json: bool) -> None:
    """Add a worker, and wait until it is ready.

    Partitions of new topics are placed on it; run `kafkalite node rebalance` to move existing ones.
    If `workers.leading` workers lead partitions already, the new worker is a standby.

    Examples:
      kafkalite node add && kafkalite node rebalance
    """
    with supervisor(data) as client:
        before = {node["node_id"] for node in client.request("list")["nodes"]}
        report = client.request_once(
            "add", -1, lambda report: any(node["node_id"] not in before for node in report["nodes"])
        )
        node = client.await_ready(report, before)
    if as_json:
        print(json.dumps(json_fields(node)))
    else:
        print(f"node {node['node_id']} added, listening at {address(node)}")
    if node["role"] == "standby":
        print_stderr(
            "the node is a standby: workers.leading workers lead partitions already.  To make it a"
            " leader, raise that key (kafkalite config set cluster workers.leading=N) and run"
            " kafkalite node rebalance"
        )


@command(NODE, DATA, JSON)
def remove(node: int, data: Path | None, as_json: bool) -> None:
    """Move a worker's partitions to other workers, then remove the worker.

    Examples:
      kafkalite node remove 3
    """
    with supervisor(data) as client:
        worker = client.worker(node)
        if worker["role"] == "dedicated":
            raise Refusal(
                f"node {node} is dedicated to one partition; delete its topic to remove the node"
            )
        moves = []
        if replica_count(worker) or not worker["draining"]:
            report = client.request("drain", node)
            moves = report["moves"]
            client.follow(report)
        client.request_once(
            "remove", node, lambda report: all(each["node_id"] != node for each in report["nodes"])
        )
        client.await_exit(node)
    if as_json:
        print(json.dumps({"node": node, "removed": True, "moves": moves}))
    else:
        print(f"node {node} removed, {replicas(replica_count(worker))} moved away")


@command(
    NODE,
    argument("--undo", action="store_true", help="allow partitions on the worker again"),
    DATA,
    JSON,
)
def drain(node: int, undo: bool, data: Path | None, as_json: bool) -> None:
    """Move a worker's partitions to other workers, and place no new ones on it.

    The setting is kept across restarts, until --undo.

    Examples:
      kafkalite node drain 2
      kafkalite node drain 2 --undo && kafkalite node rebalance
    """
    with supervisor(data) as client:
        moved = replica_count(client.worker(node))
        report = client.request("undrain" if undo else "drain", node)
        if not undo:
            client.follow(report)
    if as_json:
        print(json.dumps({"node": node, "draining": not undo, "moves": report["moves"]}))
    elif undo:
        print(f"node {node} accepts partitions again")
    else:
        print(f"node {node} drained, {replicas(moved)} moved away")


@command(
    argument("--dry-run", action="store_true", help="print the moves without executing them"),
    DATA,
    JSON,
)
def rebalance(dry_run: bool, data: Path | None, as_json: bool) -> None:
    """Distribute the partitions evenly over the workers.

    The number of partitions per worker is balanced first, then their size in bytes.

    Examples:
      kafkalite node rebalance --dry-run
      kafkalite node rebalance
    """
    with supervisor(data) as client:
        report = client.request("rebalance", dry_run=dry_run)
        if not dry_run:
            client.follow(report)
    moves = report["moves"]
    if as_json:
        print(json.dumps({"moves": moves, "dry_run": dry_run}))
    elif not moves:
        print("partitions are balanced: nothing to move")
    elif dry_run:
        rows = [[m["topic"], m["partition"], m["from_node"], m["to_node"]] for m in moves]
        print(columns(["TOPIC", "PARTITION", "FROM", "TO"], rows))
    else:
        print(f"{partitions(len(moves))} moved")


@contextmanager
def supervisor(data: Path | None) -> Iterator[SupervisorClient]:
    """Yield a client of the supervisor of the broker on this directory."""
    directory = data_directory(data)
    ready = running(directory)
    if ready is None:
        raise Refusal(not_ready(directory))
    if any(node["pid"] == ready["launcher_pid"] for node in ready["nodes"]):
        raise Refusal(
            f"the broker on {directory} runs as one process (workers=0) and has no worker nodes;"
            " start it with kafkalite start --workers 3"
        )
    client = SupervisorClient(directory, ready)
    try:
        yield client
    finally:
        client.close()


class SupervisorLost(Exception):
    """The supervisor ended after a request whose outcome is unknown."""


class SupervisorClient:
    """Sends requests to the supervisor of a running broker."""

    def __init__(self, directory: Path, ready: Ready) -> None:
        self.directory = directory
        self.reactor = Reactor(SystemClock())
        self.bus = BusClient(
            self.reactor, bus_path(ready), None, self._on_message, self._on_connection_change
        )
        self._lost = False
        self._ids = itertools.count(time.time_ns())
        self._request_id = -1
        self._report: NodeReport | None = None

    def request(self, verb: str, node: int = -1, dry_run: bool = False) -> NodeReport:
        """Send a request and return the supervisor's report.

        If the supervisor exits, the request is lost.  An idempotent request is sent again; for any
        other, SupervisorLost is raised.
        """
        self._report, self._request_id, self._lost = None, next(self._ids), False
        message = NODE_ORDER(request_id=self._request_id, verb=verb, node_id=node, dry_run=dry_run)
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while self._report is None and time.monotonic() < deadline:
            self.bus.send(message)
            self._wait(RETRY_INTERVAL_S if verb == "list" else REQUEST_TIMEOUT_S)
            if self._report is None and self._lost and verb in ONCE:
                raise SupervisorLost
            self._lost = False
        if self._report is None:
            raise Refusal(self._timeout_message(verb))
        report = self._report
        raise_for(report["error_code"], report["error_message"])
        return report

    def _wait(self, wait_s: float) -> None:
        """Wait for the report, for at most `wait_s`."""
        until = time.monotonic() + wait_s
        while self._report is None and (left_s := until - time.monotonic()) > 0:
            self.reactor.tick(int(left_s * 1000) + 1)
            if self._lost and self.bus.connected:
                return  # retry with the new supervisor

    def request_once(self, verb: str, node: int, done: Callable[[NodeReport], bool]) -> NodeReport:
        """Send a request that must not be executed twice; `done` returns True if it was."""
        while True:
            try:
                return self.request(verb, node)
            except SupervisorLost:
                report = self.request("list")
                if done(report):
                    return report

    def _on_connection_change(self, connected: bool) -> None:
        self._lost = self._lost or not connected

    def _on_message(self, message: TypedRecord) -> None:
        if message.kind is NODE_REPORT and message.fields["request_id"] == self._request_id:
            self._report = message.fields

    def _timeout_message(self, verb: str) -> str:
        if running(self.directory) is None:
            return f"the broker on {self.directory} has exited"
        unsure = "" if verb == "list" else "; check with kafkalite node list whether it was done"
        return f"request to the supervisor timed out after {REQUEST_TIMEOUT_S:.0f} s{unsure}"

    def worker(self, node: int) -> NodeFields:
        """Return the worker with this id; raise Refusal if there is none."""
        nodes = self.request("list")["nodes"]
        found: NodeFields | None = next((each for each in nodes if each["node_id"] == node), None)
        if found is None:
            known = ", ".join(str(each["node_id"]) for each in nodes)
            raise Refusal(f"node {node} does not exist; the nodes are {known}")
        if node == SUPERVISOR_ID:
            raise Refusal("node 0 is the supervisor; it has no partitions and cannot be removed")
        return found

    def await_ready(self, report: NodeReport, before: set[int]) -> NodeFields:
        """Wait until the added node is ready, and return it."""
        deadline = time.monotonic() + READY_S
        added: list[NodeFields] = []
        while time.monotonic() < deadline:
            added = [node for node in report["nodes"] if node["node_id"] not in before]
            if added and added[0]["state"] == "ready":
                return added[0]
            if not added or added[0]["state"] == "backoff":
                break
            self.pause()
            report = self.request("list")
        if not added:
            raise Refusal(
                "the broker restarted before the node was ready; run kafkalite node add again"
            )
        number = added[0]["node_id"]
        raise Refusal(
            f"node {number} was added but failed to start, and its start is retried; see"
            f" {self.directory}/kafkalite.log, or remove it with: kafkalite node remove {number}"
        )

    def await_exit(self, node: int) -> None:
        deadline = time.monotonic() + READY_S
        while any(each["node_id"] == node for each in self.request("list")["nodes"]):
            if time.monotonic() > deadline:
                raise Refusal(
                    f"node {node} was removed, but its process did not exit within {READY_S:.0f} s;"
                    f" see {self.directory}/kafkalite.log"
                )
            self.pause()

    def follow(self, report: NodeReport) -> None:
        """Wait until all partitions have moved, and show the progress on a terminal."""
        total = left = max(report["moves_left"], len(report["moves"]))
        if not total:
            return
        stalled_since, warned = time.monotonic(), False
        shown = StatusLine()
        try:
            while left:
                shown.show(f"{left} of {partitions(total)} left to move")
                self.pause()
                report = self.request("list")
                if report["moves_left"] != left:
                    left, stalled_since = report["moves_left"], time.monotonic()
                    total = max(total, left)
                elif not warned and time.monotonic() - stalled_since > STALL_S:
                    warned = True
                    shown.clear()
                    print_stderr(f"{stall_reason(report)}; see {self.directory}/kafkalite.log")
        except KeyboardInterrupt:
            shown.clear()
            print_stderr(
                f"the broker continues the {left} remaining moves (see: kafkalite node list)"
            )
            raise
        finally:
            shown.clear()

    def pause(self) -> None:
        """Wait until the next poll."""
        until = time.monotonic() + POLL_INTERVAL_MS / 1000
        while (left_s := until - time.monotonic()) > 0:
            self.reactor.tick(int(left_s * 1000) + 1)

    def close(self) -> None:
        self.bus.close()
        self.reactor.close()


class StatusLine:
    """A status line on a terminal; prints nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        self.text = ""
        self.drawn = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self.drawn and text != self.text:
            self.text = text
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.text:
            self.text = ""
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def json_fields(node: NodeFields) -> dict[str, Any]:
    """Return a node as --json prints it, with the names of `status` and of the table."""
    return {
        "id": node["node_id"],
        "role": node["role"],
        "state": node["state"],
        "host": node["host"],
        "port": node["port"],
        "pid": node["pid"],
        "partitions": node["led_count"],
        "replicas": replica_count(node),
        "size": node["size"],
        "draining": node["draining"],
    }


def table(nodes: list[NodeFields]) -> str:
    titles = [
        "NODE", "ROLE", "STATE", "ADDRESS", "PID", "PARTITIONS", "REPLICAS", "SIZE", "DRAINING",
    ]  # fmt: skip
    rows = [
        [
            node["node_id"],
            node["role"],
            node["state"],
            address(node),
            node["pid"] if node["pid"] > 0 else None,
            node["led_count"],
            replica_count(node),
            format_size(node["size"]),
            "yes" if node["draining"] else None,
        ]
        for node in nodes
    ]
    return columns(titles, rows)


def replica_count(node: NodeFields) -> int:
    """Return the number of replicas on a node, those that lead included.

    The supervisor of an earlier version reports only those that lead.
    """
    count: int = max(node["replica_count"] or 0, node["led_count"])
    return count


def address(node: NodeFields) -> str | None:
    """Return the node's address, or None for a node in back-off."""
    if node["port"] <= 0:
        return None
    host = f"[{node['host']}]" if ":" in node["host"] else node["host"]
    return f"{host}:{node['port']}"


def stall_reason(report: NodeReport) -> str:
    """Return a warning that no partition moves, with the nodes that are not ready."""
    away = [
        f"node {node['node_id']} is {node['state']}"
        for node in report["nodes"]
        if node["state"] != "ready"
    ]
    waiting = f"no partition has moved for {STALL_S:.0f} s"
    return f"{waiting}: {', '.join(away)}" if away else f"{waiting}; all nodes are ready"


def partitions(count: int) -> str:
    return f"{count:,} partition{'' if count == 1 else 's'}"


def replicas(count: int) -> str:
    return f"{count:,} replica{'' if count == 1 else 's'}"
