"""Subjects of the benchmarks: kafkalite, Apache Kafka, and yardsticks that only move the bytes.

A subject is a context manager that listens at `bootstrap` while it is entered, and knows its
processes.  All may use all cores and are pinned to none, as is the client.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, Self, cast

from benchmarks.kafka_cluster import ApacheKafkaCluster
from kafkalite.process.status.ready import NodeReady, Ready, running
from tools.apache_kafka import ApacheKafka, answers

ROOT = Path(__file__).resolve().parent.parent
READY_S_MAX = 30.0
STOP_S_MAX = 30.0
TRANSFER_BYTES = 1 << 20


class Subject(Protocol):
    """A server that can be loaded and measured."""

    @property
    def name(self) -> str: ...
    @property
    def bootstrap(self) -> str: ...
    @property
    def pids(self) -> list[int]: ...


class Kafkalite:
    """A kafkalite broker, started by the command a user would type; one process by default.

    With `workers=None` the command does not say how many workers there are.
    """

    def __init__(
        self,
        directory: Path,
        *,
        durability: str = "os",
        options: Mapping[str, str] | None = None,
        workers: int | None = 0,
        name: str = "kafkalite",
    ) -> None:
        self.name = name
        self.workers = workers
        self.directory = directory
        self.data = directory / "data"
        self.durability = durability
        self.options = dict(options or {})
        self.ready: Ready | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.startup_s = 0.0

    @property
    def bootstrap(self) -> str:
        assert self.ready is not None, "it was not started"
        return self.ready["bootstrap"]

    @property
    def pids(self) -> list[int]:
        """Return the launcher's and every node's current process ids."""
        assert self.ready is not None, "it was not started"
        return sorted({self.ready["launcher_pid"], *(node["pid"] for node in self.nodes)})

    @property
    def nodes(self) -> list[NodeReady]:
        """Return what the broker reports of its nodes now; they start, end and restart."""
        now = running(self.data)
        assert now is not None, f"{self.name} has ended"
        return now["nodes"]

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        ready_file = self.directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kafkalite", "start", "--listen", "127.0.0.1:0"]
        command += ["--data", str(self.data), "--ready-file", str(ready_file)]
        command += ["--durability", self.durability]
        if self.workers is not None:
            command += ["--workers", str(self.workers)]
        command += [word for pair in self.options.items() for word in ("-o", "=".join(pair))]
        begun = time.monotonic()
        with (self.directory / "output.log").open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        while not self._is_ready(ready_file):
            if self.process.poll() is not None or time.monotonic() - begun > READY_S_MAX:
                self.__exit__()
                said = (self.directory / "output.log").read_text(errors="replace")
                raise RuntimeError(f"kafkalite did not start:\n{said}")
            time.sleep(0.002)
        self.startup_s = time.monotonic() - begun
        return self

    def _is_ready(self, ready_file: Path) -> bool:
        if not ready_file.exists():
            return False
        self.ready = cast(Ready, json.loads(ready_file.read_text()))
        host, _, port = self.bootstrap.rpartition(":")
        return answers(host, int(port))

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the started process, and wait until it has ended."""
        assert self.process is not None
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Kafka(ApacheKafka):
    """An Apache Kafka broker; see tools/apache_kafka.py for its settings."""

    name = "Apache Kafka"


class KafkaCluster(ApacheKafkaCluster):
    """Three Apache Kafka brokers and their controller."""

    name = "Apache Kafka"


class Yardstick:
    """A process that does one thing with system calls only, on Kafka's size-prefixed frames.

    `receive_and_write`  receives requests, writes their bytes to a file, responds with 8 bytes;
    `sendfile`           responds to each request with the next MiB of a file by sendfile.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.bootstrap = ""
        self.pid = 0

    @property
    def pids(self) -> list[int]:
        return [self.pid]

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        listener = socket.create_server(("127.0.0.1", 0))
        self.bootstrap = "{}:{}".format(*listener.getsockname())
        serve = {"receive_and_write": receive_and_write, "sendfile": send_file}[self.name]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                while True:
                    serve(listener.accept()[0], self.directory / "bytes")
            finally:
                os._exit(0)
        listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def receive_and_write(connection: socket.socket, path: Path) -> None:
    room = memoryview(bytearray(64 << 20))
    # A new file for each run, and none removed, as with a broker: a page of memory that was
    # just freed, and is in the processor's cache, costs a fraction of one that was not.
    with path.with_name(f"bytes-{time.monotonic_ns()}").open("wb", buffering=0) as file:
        while size := read_size(connection):
            read_exactly(connection, room[:size])
            file.write(room[:size])
            connection.sendall(b"\0\0\0\x08" + bytes(8))


def send_file(connection: socket.socket, path: Path) -> None:
    if not path.exists():
        path.write_bytes(bytes(64 * TRANSFER_BYTES))
    room = memoryview(bytearray(1 << 16))
    with path.open("rb") as file:
        position, end = 0, path.stat().st_size
        while size := read_size(connection):
            read_exactly(connection, room[:size])
            connection.sendall(TRANSFER_BYTES.to_bytes(4, "big"), socket.MSG_MORE)
            sent = 0
            while sent < TRANSFER_BYTES:
                sent += os.sendfile(
                    connection.fileno(), file.fileno(), position + sent, TRANSFER_BYTES - sent
                )
            position = (position + TRANSFER_BYTES) % end


def read_size(connection: socket.socket) -> int:
    """Return the next frame's size, or 0 if the peer has closed the connection."""
    prefix = connection.recv(4, socket.MSG_WAITALL)
    return int.from_bytes(prefix, "big")


def read_exactly(connection: socket.socket, room: memoryview) -> None:
    got = 0
    while got < len(room):
        count = connection.recv_into(room[got:])
        if count == 0:
            raise ConnectionError("the client left in the middle of a frame")
        got += count
