"""A real node in this process without sockets: encoded requests go through its dispatcher."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.broker.assembly import single_node
from kafkalite.clock import ManualClock
from kafkalite.config.settings import Settings
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.topics import CREATE_TOPICS
from kafkalite.records.batch import Record, build
from kafkalite.storage.manager.log_directory import LogDirectory
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.transport.reactor import Reactor
from tests.handlers.grouping import find

CORRELATION_ID = 7
TICKS_MAX = 1_000


class Wire:
    """A client's connection, as a handler sees it."""

    id = 1
    peer = ("127.0.0.1", 50_000)

    def __init__(self, local: tuple[str, int]) -> None:
        self.local = local
        self.sent: list[Any] | None = None
        self.closed = False
        self.abandoned: Any = None
        self._on_close: list[Any] = []

    def on_close(self, callback: Any) -> None:
        self._on_close.append(callback)

    def disconnect(self) -> None:
        """Close the connection, as its client does."""
        for callback in self._on_close:
            callback()
        if self.abandoned is not None:
            self.abandoned()

    def defer(self) -> Wire:
        return self

    def send(self, chunks: list[Any]) -> None:
        assert self.sent is None, "a request is answered once"
        self.sent = chunks

    @property
    def bytes(self) -> bytes:
        """The whole response, with slices read from their files."""
        assert self.sent is not None, "there is no answer yet"
        return b"".join(chunk if isinstance(chunk, bytes) else chunk.read() for chunk in self.sent)

    def close(self) -> None:
        self.closed = True


class InProcess:
    """One node on a directory; its clock does not advance unless another is given."""

    def __init__(self, directory: Path, clock: Any = None, **settings: str) -> None:
        self.directory = directory
        self.settings = {"durability": "os", **settings}
        self.clock: Any = ManualClock() if clock is None else clock
        self.open()

    def open(self) -> None:
        settings = Settings.broker(self.settings)
        self.reactor = Reactor(self.clock)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.local = ("localhost", self.listener.getsockname()[1])
        self.locked = LogDirectory(self.directory)
        self.locked.lock()
        logs = LogManager(self.directory, settings, self.clock)
        logs.open_directory(self.locked.cluster_id, 0)
        self.node = single_node(settings, self.reactor, logs, self.listener)
        self.node.open()

    def close(self) -> None:
        self.node.close()
        self.locked.close()

    def killed(self, name: str = "copy") -> InProcess:
        """Return a node on a copy of the directory, as if this node had been killed now."""
        copy = self.directory.with_name(name)
        # A checkpoint that another thread is writing may be renamed meanwhile.
        shutil.copytree(self.directory, copy, ignore=shutil.ignore_patterns("*.tmp"))
        return InProcess(copy)

    def restart(self, **settings: str) -> None:
        self.close()
        self.settings |= settings
        self.open()

    def until(self, holds: Any) -> None:
        """Run the node until the condition holds."""
        for _ in range(TICKS_MAX):
            if holds():
                return
            self.reactor.tick(10)
        raise AssertionError("the node never came to it")

    def send_frame(self, frame: bytes) -> Wire:
        """Send a frame without waiting for the response."""
        wire = Wire(self.local)
        came = self.node.dispatcher.serve(wire, memoryview(frame))  # type: ignore[arg-type]
        if isinstance(came, list):
            wire.send(came)
        return wire

    def send(self, api: Api, version: int, **request: Any) -> Wire:
        """Encode and send a request without waiting for the response."""
        flexible = api.request_header_flexible(version)
        header = write_header(api.key, version, CORRELATION_ID, "a test", flexible)
        return self.send_frame(header + api.request.write(version, request))

    def request(self, api: Api, version: int, **request: Any) -> Fields:
        """Encode and send a request, and return the decoded response."""
        wire = self.send(api, version, **request)
        self.until(lambda: wire.sent is not None or wire.closed)
        return self.response(wire, api, version)

    def response(self, wire: Wire, api: Api, version: int) -> Fields:
        """Return the received response, decoded."""
        assert not wire.closed, "the connection was closed"
        answer = wire.bytes
        assert int.from_bytes(answer[:4], "big") == CORRELATION_ID
        begin = 5 if api.response_header_flexible(version) else 4
        return api.response.read(version, answer, begin)

    def create(self, name: str, partitions: int = 1, **config: str) -> bytes:
        """Create a topic and return its id."""
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": configs,
        }
        (answer,) = self.request(CREATE_TOPICS, 7, topics=[topic]).topics
        assert answer.error_code == 0, answer.error_message
        return bytes(answer.topic_id)

    def append(self, name: str, timestamps: list[int], partition: int = 0) -> None:
        """Append one batch with a record at each of these times."""
        found = self.node.replicas.leader(name, partition)
        batch = build([Record(timestamp=timestamp, value=b"v") for timestamp in timestamps])
        last_offset = self.node.replicas.append_own(found, batch).last_offset
        self.until(lambda: found.high_watermark > last_offset)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcess]:
    """Yield a node of the test's own."""
    node = InProcess(tmp_path / "data")
    yield node
    node.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """Yield a node for tests that leave it unchanged."""
    node = InProcess(tmp_path_factory.mktemp("lasting") / "data")
    yield node
    node.close()


@pytest.fixture
def groups(broker: InProcess) -> InProcess:
    """Return a node that has served a coordinator request, with a topic to read."""
    find(broker)
    broker.topic_id = broker.create("t", 2)  # type: ignore[attr-defined]
    return broker


@pytest.fixture
def transactional(tmp_path: Path) -> Iterator[InProcess]:
    """Yield a node of this test alone."""
    node = InProcess(tmp_path / "data")
    yield node
    node.close()
