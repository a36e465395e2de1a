"""Harness: a launcher over stand-in nodes (stand_in.py), with what they do and have received."""

import contextlib
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

from kafkalite.protocol.schemas.bus import DESIRED_NODES, FENCE, write_frame
from tests.process.waiting import WAIT_S_MAX, until


class LauncherHarness:
    """One data directory, and the launchers that the test starts on it."""

    def __init__(self, directory, listen="127.0.0.1:0", workers=2):
        self.directory = directory
        self.listen = listen
        self.workers = workers
        self.data = directory / "data"
        self.ready_file = directory / "ready.json"
        self.script = directory / "script"
        self.script.mkdir()
        self.launchers = []
        self.pidfds = {}

    # The launcher.

    def launch(self, **options):
        """Start a launcher without waiting for it."""
        given = {"listen": self.listen, "data": str(self.data), "workers": self.workers}
        given |= {"durability": "os", "ready_file": str(self.ready_file), **options}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.stand_in", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.launchers.append(process)
        return process

    def start(self, **options):
        """Start a launcher and wait until it is ready."""
        process = self.launch(**options)
        until(self.ready_file.exists, process)
        self.watch()
        return process

    @property
    def launcher(self):
        return self.launchers[-1]

    def end(self, number=signal.SIGTERM):
        """Send the launcher a signal; return its exit code."""
        self.watch()
        self.launcher.send_signal(number)
        return self.launcher.wait(WAIT_S_MAX)

    def wait_refused(self):
        """Wait for a launcher that does not start; return its exit code and output."""
        out, said = self.launcher.communicate(timeout=WAIT_S_MAX)
        assert out == "", out
        return self.launcher.returncode, said

    def status(self):
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.data / "status.json").read_text())
        return {"nodes": []}

    def node(self, node_id):
        """Return the entry of a node in status.json, or None."""
        return next((node for node in self.status()["nodes"] if node["id"] == node_id), None)

    def pid(self, node_id):
        return self.node(node_id)["pid"]

    def pids(self):
        """Return the process ids of all ready nodes."""
        return sorted(node["pid"] for node in self.status()["nodes"])

    def port(self, node_id):
        return self.node(node_id)["port"]

    def wait_restarted(self, node_id, pid):
        """Wait until the node is ready in another process."""
        until(lambda: (self.node(node_id) or {"pid": pid})["pid"] != pid, self.launcher)
        self.watch()

    @property
    def log(self):
        return (self.data / "kafkalite.log").read_text()

    # The nodes.

    def play(self, node_id, *words):
        """Set the behaviour of a node from its next start on."""
        (self.script / f"node-{node_id}").write_text(" ".join(words))

    def send(self, *frames):
        """Have the supervisor send these bytes to the launcher."""
        with (self.script / "say").open("a") as file:
            file.write("".join(frame.hex() + "\n" for frame in frames))

    def desired_nodes(self, *node_ids, dedicated=()):
        """Have the supervisor send these nodes as the desired processes."""
        self.send(write_frame(DESIRED_NODES(node_ids=list(node_ids), dedicated=list(dedicated))))

    def fence(self, node_id, incarnation):
        """Have the supervisor fence this process."""
        self.send(write_frame(FENCE(node_id=node_id, incarnation=incarnation)))

    def reported_nodes(self):
        """Return the nodes in the last message to the supervisor, by id."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "heard").read_text().split("\n")[:-1]
            if lines:
                return {node["node_id"]: node for node in json.loads(lines[-1])["nodes"]}
        return {}

    def lives(self, event):
        """Return (node, pid, incarnation) of each process that noted this event, in order."""
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in (self.directory / "lives").read_text().splitlines()]
            return [tuple(map(int, line[:3])) for line in lines if line[3] == event]
        return []

    # Remaining processes.

    def watch(self):
        """Open a pidfd of each current process, so that a reused pid is not mistaken for it."""
        for _, pid, _ in self.lives("born"):
            if pid not in self.pidfds:
                with contextlib.suppress(ProcessLookupError):
                    self.pidfds[pid] = os.pidfd_open(pid)

    def running_pids(self):
        """Return the pids of node processes that still run."""
        ended = select.select(list(self.pidfds.values()), [], [], 0)[0]
        return sorted(pid for pid, pidfd in self.pidfds.items() if pidfd not in ended)

    def close(self):
        """Kill the remaining processes; an orphan would keep the pipes open."""
        for process in self.launchers:
            process.kill()
        self.watch()
        for pidfd in self.pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for process in self.launchers:
            process.communicate()


def responds(port):
    """Return whether a node there responds; raise ConnectionRefusedError if none listens."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S_MAX) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        return client.recv(10)[4:] == struct.pack(">ih", 7, 0)


def is_refused(port):
    """Return whether connections to the port are refused."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S_MAX).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # the listener was closed just then
    return False


def free_range(count):
    """Return the first of `count` free ports outside the range of ephemeral ports."""
    while True:
        port = random.randrange(12_000, 32_000)
        with contextlib.ExitStack() as held:
            try:
                for number in range(count):
                    held.enter_context(socket.create_server(("127.0.0.1", port + number)))
            except OSError:
                continue
        return port


def descriptors(pid):
    """Return a process's open descriptors, each with the target of its link in /proc."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(path.name)] = os.readlink(path)
    return found
