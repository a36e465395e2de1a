"""A real Kafka broker for tests, without a container: starts in a fraction of a second.

    from kafkalite.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

Or with pytest, for which installing kafkalite registers these fixtures:

    def test_it(kafka_broker, kafka_topic):      # one broker for the session, a topic for the test

    @pytest.mark.parametrize("kafka_topic", [6], indirect=True)     # a topic of six partitions

It replaces brokers in containers: every client works with it unchanged, it needs no daemon and no
image, and it listens on a free port of the loopback address, so any number can run in parallel.

A Broker is a separate process with a temporary directory.  Both are removed when the `with` block
ends, when the interpreter exits, and also when the test process is killed: the broker holds one end
of a pipe and stops when the other is closed (process/parent_watch.py).  Only if both processes are
killed at once does the directory remain, until the user's next Broker removes it.

`durability` is "os" by default: tests do not simulate power failures, and need not wait for fsync.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from kafkalite.errors import Refusal, raise_for
from kafkalite.process.log_file import LOG_FILE
from kafkalite.process.nodes.process_state import has_ended
from kafkalite.process.status.ready import STATUS_FILE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS

READY_S_MAX = 60.0
STOP_S_MAX = 30.0
READY_LOOK_S = 0.002
DIRECTORY_PREFIX = "kafkalite-test-"
SLOW_TICK = re.compile(r"Event loop .* tick_ms=\d+ cpu_ms=(\d+)")
"""Log line of transport/slow_ticks.py."""
TOPIC_VERSION = 4
"""Version of CreateTopics, the last one without tagged fields in the header."""


class Broker:
    """Kafka broker in a separate process, with a temporary directory.

    Usable as a context manager: starts on entry, is closed on exit.
    """

    def __init__(
        self,
        *,
        durability: str = "os",
        config: Mapping[str, str | int | float] | None = None,
        listen: str = "127.0.0.1:0",
        workers: int = 0,
        log_dirs: int = 1,
    ) -> None:
        """Configure a broker; start() or the `with` statement starts it.

        Args:
            durability: When records are flushed to disk: "fsync" before they are acknowledged,
                "interval" after flush.ms or flush.bytes, "os" when the kernel writes them.
            config: Broker settings by Kafka's keys ({"num.partitions": 3}).
            listen: HOST:PORT to listen on; port 0 takes a free one.
            workers: Number of processes that share the partitions; 0 runs everything in one
                process.
            log_dirs: Number of directories that hold the logs, as if each was a disk; more than one
                needs workers, which share them.
        """
        self.durability = durability
        self.config = texts(config)
        self.listen = listen
        self.workers = workers
        self._directory_count = log_dirs
        self.directory = Path()
        self.ready: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._topics = itertools.count(1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Addresses and state.

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`.

        Raises:
            RuntimeError: The broker was not started.
        """
        self._check_started()
        return str(self.ready["bootstrap"])

    @property
    def pid(self) -> int:
        """The process id of the broker's last start.

        Raises:
            RuntimeError: The broker was not started.
        """
        self._check_started()
        assert self._process is not None
        return self._process.pid

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes at the start, each a dict with id, role, host, port and pid.

        Raises:
            RuntimeError: The broker was not started.
        """
        self._check_started()
        return list(self.ready["nodes"])

    @property
    def status(self) -> dict[str, Any]:
        """The current state as the broker reports it, with the keys of `ready`.

        Raises:
            RuntimeError: The broker was not started, or is closed.
        """
        return dict(json.loads((self.data / STATUS_FILE).read_text()))

    @property
    def data(self) -> Path:
        """The data directory, which a restart keeps.

        Raises:
            RuntimeError: The broker was not started, or is closed.
        """
        if not self.directory.name:
            raise RuntimeError("The broker has no data before start() and after close().")
        return Path(self.ready["data"]) if self.ready else self.log_dirs[0]

    @property
    def log_dirs(self) -> list[Path]:
        """The directories that hold the logs, which a restart keeps; the first is `data` as long as
        it is not left out.

        Raises:
            RuntimeError: The broker was not started, or is closed.
        """
        if not self.directory.name:
            raise RuntimeError("The broker has no data before start() and after close().")
        return [self.directory / name for name in self._directory_names]

    @property
    def _directory_names(self) -> list[str]:
        return ["data", *(f"data-{number}" for number in range(2, self._directory_count + 1))]

    # Lifecycle.

    def start(self, without_dirs: Iterable[Path] = ()) -> None:
        """Start the broker and wait until it accepts connections.

        Args:
            without_dirs: Directories of `log_dirs` to give up, as with --without-dir.

        Raises:
            Refusal: The broker did not start, with its message.
            RuntimeError: The Broker was created in another process.
        """
        self._check_owner()
        if not self.directory.name:
            remove_abandoned()
            self.directory = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{owner()}-"))
            atexit.register(self.close)
        options = {
            "listen": self.listen,
            "workers": self.workers,
            "durability": self.durability,
            "overrides": self.config,
            "log_dirs": self._directory_names[1:],
            "without_dirs": [path.name for path in without_dirs],
        }
        # -P: a folder of the test's working directory must not be imported in kafkalite's place.
        command = [sys.executable, "-P", "-m", "kafkalite.process.parent_watch"]
        command.append(str(self.directory))
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*command, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # Ctrl-C in the test's terminal must not reach the broker
                start_new_session=True,
            )
        self._await_ready(self._process)
        self.listen = self.bootstrap

    def kill(self, node_id: int | None = None) -> None:
        """Kill the broker with SIGKILL, as a crash would end it.

        Args:
            node_id: Kill only this node's process, which the broker then restarts; a node that is
                starting is waited for.  None: all of the broker.

        Raises:
            ValueError: There is no such node.
        """
        if node_id is None:
            self._end(signal.SIGKILL)
        else:
            os.kill(self._pid_of(node_id), signal.SIGKILL)

    def _pid_of(self, node_id: int) -> int:
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline:
            nodes = self.status["nodes"]
            pids = {node["id"]: node["pid"] for node in nodes}
            # The broker's status names a process that has ended until the launcher has reaped it.
            if node_id in pids and not has_ended(pids[node_id]):
                return int(pids[node_id])
            known = pids.keys() | {node["id"] for node in self.ready["nodes"]}
            if node_id not in known:
                raise ValueError(f"The broker has no node {node_id}, but {sorted(known)}.")
            time.sleep(READY_LOOK_S)
        raise Refusal(f"Node {node_id} was not ready again within {READY_S_MAX:.0f} s.")

    def stop(self) -> None:
        """Stop the broker cleanly; the data is kept for restart()."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same data and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker and remove its directory; a second call does nothing."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self._end(signal.SIGTERM)
        if self.directory.name:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = Path()

    # Topics and diagnostics.

    def topic(
        self,
        partitions: int = 1,
        config: Mapping[str, str | int | float] | None = None,
        name: str = "",
        replication_factor: int = -1,
    ) -> str:
        """Create a topic.

        Args:
            partitions: Number of partitions.
            config: Topic settings by Kafka's keys.
            name: Name of the topic; empty: one that is unique in this broker.
            replication_factor: Number of replicas of each partition, at most as many as there are
                workers; -1: the broker's default.

        Returns:
            The name of the topic.

        Raises:
            KafkaError: The broker refused the request, for example TopicAlreadyExists.
        """
        name = name or f"topic-{os.getpid()}-{next(self._topics)}"
        configs = [{"name": key, "value": value} for key, value in texts(config).items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": [],
            "configs": configs,
        }
        request = {"topics": [topic], "timeout_ms": 30_000, "validate_only": False}
        body = CREATE_TOPICS.request.write(TOPIC_VERSION, request)
        reply = self._ask(CREATE_TOPICS.key, TOPIC_VERSION, body)
        (created,) = CREATE_TOPICS.response.read(TOPIC_VERSION, reply).topics
        raise_for(created.error_code, created.error_message)
        return name

    def slow_ticks(self, cpu_ms: int = 50) -> list[str]:
        """Return the log lines about ticks of an event loop that took too long.

        During a tick its node serves no other request, so a request that makes a broker compute for
        long delays every client:

            assert broker.slow_ticks() == []

        Args:
            cpu_ms: Minimum processor time in ms of a tick that lasted over 50 ms; 0 includes ticks
                that only waited for a disk or for a processor.  Leave a margin where tests share
                processors.

        Returns:
            Log lines with cause and duration, per cause at most one in ten seconds.
        """
        with contextlib.suppress(FileNotFoundError):
            lines = (self.data / LOG_FILE).read_text(errors="replace").splitlines()
            found = ((SLOW_TICK.search(line), line) for line in lines)
            return [line for match, line in found if match and int(match[1]) >= cpu_ms]
        return []

    def _ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """Send one request over a new connection; return the response without its header."""
        host, _, port = self.bootstrap.rpartition(":")
        frame = struct.pack(">hhih", api_key, version, 0, -1) + body
        with socket.create_connection((host.strip("[]"), int(port)), READY_S_MAX) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            with connection.makefile("rb") as answers:
                (size,) = struct.unpack(">i", answers.read(4))
                return answers.read(size)[4:]

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        ready_file = self.directory / "ready.json"
        deadline = time.monotonic() + READY_S_MAX
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                output = (self.directory / "output").read_text(errors="replace").strip()
                self.close()
                raise Refusal(f"the broker did not start: {output}")
            time.sleep(READY_LOOK_S)
        self.ready = json.loads(ready_file.read_text())

    def _check_started(self) -> None:
        if not self.ready:
            raise RuntimeError(
                "The broker has no address before it is started: call start(), or use it as"
                " `with Broker() as broker:`."
            )

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"This Broker belongs to process {self._owner}: start and stop it there, or make"
                f" one of your own in process {os.getpid()}."
            )

    def _end(self, number: signal.Signals) -> None:
        self._check_owner()
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdin.close()
            (self.directory / "ready.json").unlink(missing_ok=True)


def texts(config: Mapping[str, str | int | float] | None) -> dict[str, str]:
    """Return configuration values as text for a properties file.

    Args:
        config: Values by key; None is an empty configuration.

    Returns:
        Text by key: "3", "0.5", "true".
    """
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (config or {}).items()
    }


def owner(pid: int | None = None) -> str:
    """Return an identifier of a process that is not reused.

    Args:
        pid: Process id; None: this process.

    Returns:
        The pid and the start time of the process in clock ticks, "4711-123456".
    """
    pid = os.getpid() if pid is None else pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid}-{fields[19]}"


def remove_abandoned() -> None:
    """Remove the directories of test processes that were killed together with their brokers."""
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        pid, began, *_ = directory.name.removeprefix(DIRECTORY_PREFIX).split("-")
        try:
            alive = owner(int(pid)) == f"{pid}-{began}"
        except (OSError, ValueError):
            alive = False
        # If only the test process was killed, its broker is about to remove the directory, and so
        # may be other tests.
        with contextlib.suppress(FileNotFoundError):
            if not alive and directory.stat().st_uid == os.geteuid():
                shutil.rmtree(directory, ignore_errors=True)


with contextlib.suppress(ImportError):  # pytest is optional
    import pytest

    @pytest.fixture(scope="session")
    def kafka_broker() -> Iterator[Broker]:
        """A broker for the whole session."""
        with Broker() as broker:
            yield broker

    @pytest.fixture
    def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> str:
        """The name of a new topic with one partition, or as many as the parameter says."""
        return kafka_broker.topic(getattr(request, "param", 1))
