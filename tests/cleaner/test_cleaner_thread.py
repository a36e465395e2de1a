"""A cleaner thread: offers of the nodes, and reports at the end of a job."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.cleaner import cleaner_thread
from kafkalite.cleaner.cleaner_thread import CleanedBroker, CleanerThread
from kafkalite.cleaner.node_connection import NodeConnection
from kafkalite.cleaner.throttle import Throttle
from kafkalite.config import topic as keys
from kafkalite.errors import NetworkException
from kafkalite.records.batch import Record, build
from kafkalite.storage.compaction import cleaning_files
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager.cleaner_candidates import OffsetMapLimits, cleanable_range, job_of
from tests.storage.factories import NOW, open_log

REQUEST = 5


class Connection:
    """A node's connection, without a node."""

    node_id = 0

    def __init__(self) -> None:
        self.cancelled: dict[int, str] = {}
        self.is_lost = False
        self.reads = 0

    def read_available(self) -> None:
        self.reads += 1
        if self.is_lost:
            raise NetworkException("The node closed its socket.")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = open_log(tmp_path, {keys.CLEANUP_POLICY: ("compact",)})
    for number in range(20):
        log.append(build([Record(timestamp=NOW, key=b"%d" % (number % 3), value=b"v")]), 0)
    log.roll()
    return log


@pytest.fixture
def job_file(log: Log) -> Iterator[int]:
    found = cleanable_range(log, log.end_offset, NOW)
    job = job_of(
        log, found, OffsetMapLimits(1 << 16, 0.9, 1 << 16),
        last_stable_offset=20, high_watermark=20, now_ms=NOW,
    )  # fmt: skip
    descriptor = os.memfd_create("job")
    cleaning_files.write_job(descriptor, job, b"", b"")
    yield descriptor
    os.close(descriptor)


def cleaned(connection: Connection, job_file: int, throttle: Throttle | None = None) -> Any:
    thread = CleanerThread(0, lambda: None, throttle or Throttle())
    return thread._clean(connection, REQUEST, job_file)  # type: ignore[arg-type]


def test_result_is_written_to_the_file_of_the_job(log: Log, job_file: int) -> None:
    assert cleaned(Connection(), job_file)["error_code"] == 0
    assert cleaning_files.read_result(job_file).end_offset == 20


def test_cancelled_job_leaves_no_files(log: Log, job_file: int) -> None:
    connection = Connection()
    connection.cancelled = {REQUEST: "the topic is deleted"}
    ended = cleaned(connection, job_file)
    assert (ended["error_message"], ended["retriable"]) == ("the topic is deleted", True)
    assert not list(log.directory.glob("*.cleaned"))


def test_job_is_cancelled_while_the_throttle_waits(
    log: Log, job_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, throttle = Connection(), Throttle()
    throttle.bytes_per_second = 1

    def sleep(seconds: float) -> None:
        if connection.reads > 3:
            connection.cancelled = {REQUEST: "the topic is deleted"}

    monkeypatch.setattr(cleaner_thread.time, "sleep", sleep)
    assert cleaned(connection, job_file, throttle)["error_message"] == "the topic is deleted"


def test_lost_connection_ends_the_job(log: Log, job_file: int) -> None:
    connection = Connection()
    connection.is_lost = True
    with pytest.raises(NetworkException):
        cleaned(connection, job_file)
    assert not list(log.directory.glob("*.cleaned"))


def test_damaged_segment_is_not_tried_again(log: Log, job_file: int) -> None:
    with open(log.segments[0].path, "r+b") as segment:
        segment.seek(30)
        segment.write(b"\xff" * 40)
    ended = cleaned(Connection(), job_file)
    assert ended["error_code"] and not ended["retriable"]


def test_missing_directory_may_be_tried_again(log: Log, job_file: int) -> None:
    log.directory.rename(log.directory.with_name("moved"))
    ended = cleaned(Connection(), job_file)
    assert ended["error_code"] and ended["retriable"]


class Offering(NodeConnection):
    """A node that has no log to be cleaned."""

    def __init__(self, path: Path, cluster_id: str, node_id: int) -> None:
        if not path.name.endswith("listening"):
            raise NetworkException("nobody listens")
        self.node_id = node_id
        self.is_awake = False
        self.offers = 0
        self._request_count = 0

    def request(self, *_: Any, **__: Any) -> Any:
        self.offers += 1
        return {"partition": -1, "threads": 1, "backoff_ms": 5_000, "bytes_per_second": 1}, -1

    def close(self) -> None:
        pass


def test_missing_node_does_not_shorten_the_pause_between_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [tmp_path / "0.listening", tmp_path / "1"]
    for path in nodes:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    monkeypatch.setattr(cleaner_thread, "NodeConnection", Offering)
    monkeypatch.setattr(cleaner_thread, "local_path", lambda _, node_id: nodes[node_id])
    monkeypatch.setattr(cleaner_thread, "cleaner_path", lambda _, node_id: nodes[node_id])
    thread = CleanerThread(0, lambda: CleanedBroker("c", (0, 1), tmp_path), Throttle())
    monkeypatch.setattr(thread, "_sleep", lambda timeout_ms: timeout_ms)
    seen = []

    def go_on() -> bool:
        first = thread._connections.get(0)
        seen.append(first.offers if first is not None else 0)
        if len(seen) == 12:  # the node begins to listen in the second pause
            nodes[1] = nodes[1].rename(tmp_path / "1.listening")
        return len(seen) < 16

    thread.run(go_on)
    assert seen == [0] + [1] * 5 + [2] * 5 + [3, 3, 4, 4, 4]
