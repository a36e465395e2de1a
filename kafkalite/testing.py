"""A real Kafka broker for tests, without a container: ready in a fraction of a second, gone after.

    from kafkalite.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

Or with pytest, which knows these fixtures as soon as kafkalite is installed:

    def test_it(kafka_broker, kafka_topic):      # one broker for the session, a topic for the test

    @pytest.mark.parametrize("kafka_topic", [6], indirect=True)     # a topic of six partitions

It takes the place of brokers started in containers: every client works against it unchanged, it
needs no daemon and no image, and it listens on a free port of the loopback address, so any number
run beside each other.

A Broker is a process of its own over a temporary directory.  Process and directory are gone when
the `with` block ends, when the interpreter exits, and also when the test process is killed: the
broker holds one end of a pipe, and ends when the other is closed (process/parent_watch.py).  Only
if both are killed at once does the directory stay, until the next Broker of the same user finds it.

`durability` is "os" here: tests are not about power cuts, and need not wait for the disk.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from kafkalite.errors import Refusal, raise_for
from kafkalite.process.log_file import LOG_FILE
from kafkalite.process.ready import STATUS_FILE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS

READY_S_MAX = 60.0
STOP_S_MAX = 30.0
READY_LOOK_S = 0.002
DIRECTORY_PREFIX = "kafkalite-test-"
SLOW_TICK = re.compile(r"Event loop .* tick_ms=\d+ cpu_ms=(\d+)")
"""Written by transport/slow_ticks.py."""
TOPIC_VERSION = 4
"""Of CreateTopics: the last whose header is of the old, plain kind."""


class Broker:
    """A broker in a process of its own, over a directory of its own.

    `config` holds broker keys (`{"num.partitions": 3}`), `listen` the address; port 0 takes a
    free one.  `workers` is how many processes share the partitions; 0 is one process that does
    everything.  Starting one raises Refusal, with the broker's own sentence, if it cannot start.
    """

    def __init__(
        self,
        *,
        durability: str = "os",
        config: Mapping[str, str | int | float] | None = None,
        listen: str = "127.0.0.1:0",
        workers: int = 0,
    ) -> None:
        self.durability = durability
        self.config = texts(config)
        self.listen = listen
        self.workers = workers
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

    # Where it is; RuntimeError before `start`.

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        self._check_started()
        return str(self.ready["bootstrap"])

    @property
    def pid(self) -> int:
        """The process that started last."""
        self._check_started()
        assert self._process is not None
        return self._process.pid

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Its nodes when it was ready: each with id, role, host, port and pid."""
        self._check_started()
        return list(self.ready["nodes"])

    @property
    def status(self) -> dict[str, Any]:
        """What it says of itself now, in the same words as `ready`."""
        return dict(json.loads((self.data / STATUS_FILE).read_text()))

    @property
    def data(self) -> Path:
        """Its data directory, which a restart keeps."""
        if not self.directory.name:
            raise RuntimeError("The broker has no data before start() and after close().")
        return self.directory / "data"

    # Its life.

    def start(self) -> None:
        """Start it, and wait until it answers."""
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
        }
        command = [sys.executable, "-m", "kafkalite.process.parent_watch", str(self.directory)]
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*command, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # the test's own Ctrl-C is not the broker's
                start_new_session=True,
            )
        self._await_ready(self._process)
        self.listen = self.bootstrap

    def kill(self, node_id: int | None = None) -> None:
        """End it as a crash would: SIGKILL, and nothing is tidied up.

        With a node's id only that node's process, which the broker then starts again; a node that
        is being started is waited for.  Raises ValueError if there is no such node.
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
            if node_id in pids:
                return int(pids[node_id])
            known = pids.keys() | {node["id"] for node in self.ready["nodes"]}
            if node_id not in known:
                raise ValueError(f"The broker has no node {node_id}, but {sorted(known)}.")
            time.sleep(READY_LOOK_S)
        raise Refusal(f"Node {node_id} was not ready again within {READY_S_MAX:.0f} s.")

    def stop(self) -> None:
        """End it cleanly; the data stays for `restart`."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start it again on the same data and port, after stopping it if it runs."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it and remove its directory; closing twice is nothing."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self._end(signal.SIGTERM)
        if self.directory.name:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = Path()

    # What tests ask of it.

    def topic(
        self,
        partitions: int = 1,
        config: Mapping[str, str | int | float] | None = None,
        name: str = "",
    ) -> str:
        """Create a topic that nobody else uses, and answer its name."""
        name = name or f"topic-{os.getpid()}-{next(self._topics)}"
        configs = [{"name": key, "value": value} for key, value in texts(config).items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
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
        """Return the log's lines about ticks of an event loop that were too long.

        While a tick lasts, its node serves no other request.  One that makes a broker compute for
        long delays every client of it:

            assert broker.slow_ticks() == []

        Args:
            cpu_ms: The processor time from which a tick over 50 ms is too long; 0 returns also
                those that only waited for a disk, or for a busy machine.  Leave a margin where
                tests share processors.

        Returns:
            Lines with the cause and the time, of each cause at most one in ten seconds.
        """
        with contextlib.suppress(FileNotFoundError):
            lines = (self.data / LOG_FILE).read_text(errors="replace").splitlines()
            found = ((SLOW_TICK.search(line), line) for line in lines)
            return [line for match, line in found if match and int(match[1]) >= cpu_ms]
        return []

    def _ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """One request on a connection of its own; the answer without its header."""
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
                said = (self.directory / "output").read_text(errors="replace").strip()
                self.close()
                raise Refusal(f"the broker did not start: {said}")
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
    """Return configuration values as the texts of a properties file: 3, 0.5, true."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (config or {}).items()
    }


def owner(pid: int | None = None) -> str:
    """A process so that no later one is taken for it: its pid and the tick it began at."""
    pid = os.getpid() if pid is None else pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid}-{fields[19]}"


def remove_abandoned() -> None:
    """Remove the directories of tests that were killed together with their brokers."""
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        pid, began, *_ = directory.name.removeprefix(DIRECTORY_PREFIX).split("-")
        try:
            alive = owner(int(pid)) == f"{pid}-{began}"
        except (OSError, ValueError):
            alive = False
        # The broker of one that was killed alone is just about to do it itself, as are others here.
        with contextlib.suppress(FileNotFoundError):
            if not alive and directory.stat().st_uid == os.geteuid():
                shutil.rmtree(directory, ignore_errors=True)


with contextlib.suppress(ImportError):  # pytest is the test's own, not a dependency of ours
    import pytest

    @pytest.fixture(scope="session")
    def kafka_broker() -> Iterator[Broker]:
        """One broker for the whole session."""
        with Broker() as broker:
            yield broker

    @pytest.fixture
    def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> str:
        """The name of a fresh topic, of one partition or as many as it is parametrized with."""
        return kafka_broker.topic(getattr(request, "param", 1))
