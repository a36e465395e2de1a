"""A partition transfer, interrupted at every disk call: the call fails or the process is killed.

A life is: node 1 appends and transfers to node 2, which opens the log, appends, and writes its
checkpoint.  After every process has been restarted, the leader has the log with everything that
was appended, no other node has one, and a retry is recognized as a duplicate.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalite.config import topic as keys
from kafkalite.config.settings import Settings
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.disk import DiskFailed
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager import partition_transfer
from tests.simulation.crash import Crash, RecordingDisk
from tests.simulation.disk import CALLS, FaultyDisk, QuickDisk
from tests.storage.factories import TOPIC_ID, produced, settings, values_of
from tests.storage.nodes import Nodes, T
from tests.storage.test_faulty_disk import SWEEPS

VALUES = {keys.SEGMENT_BYTES: 400, keys.INDEX_INTERVAL_BYTES: 100}


class Killed(BaseException):
    """Ends a process: nothing after it runs there."""


class KillingDisk(QuickDisk):
    """A disk that ends the process before its N-th call, or halfway through a write."""

    def __init__(self, kill_at: int) -> None:
        self.calls = 0
        self.armed = True
        self._kill_at = kill_at
        for name in CALLS:
            setattr(self, name, self._counting(getattr(super(), name)))

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.calls += self.armed
            if self.armed and self.calls >= self._kill_at:
                raise Killed
            return call(*arguments)

        return counted


class Sent:
    """The batches a producer sent and had acknowledged."""

    def __init__(self) -> None:
        self.values: list[tuple[int, bytes]] = []
        self.start = 0
        """No records exist below this offset, at any point."""

    def append(self, log: Log) -> None:
        sequence = len(self.values)
        placed = log.append(produced(sequence, b"%d" % sequence), 0)
        assert placed.base_offset == sequence and not placed.duplicate
        self.values.append((sequence, b"%d" % sequence))

    def check(self, nodes: Nodes, log: Log) -> None:
        """Assert that the leader's log holds every batch and no other node has the log."""
        assert log.failure is None
        assert log.log_start_offset >= self.start
        assert values_of(log) == self.values[log.log_start_offset :]
        last = len(self.values) - 1
        assert log.append(produced(last, b"again"), 0).duplicate
        for node_id in (0, 1, 2):
            expected = ["t-0"] if node_id == nodes.leader else []
            assert [name for name in nodes.names(node_id) if "-stray" not in name] == expected


def live(nodes: Nodes, sent: Sent) -> None:
    """Run a life to its end, or to the failure that would end a process."""
    log = nodes.create()
    for _ in range(9):
        sent.append(log)
    if nodes.settings[keys.DURABILITY] != "os":
        log.flush()
    log.delete_records(2)
    retry(lambda: nodes.send(2), before=lambda: restored(nodes, log, sent))
    sent.start = 2
    log = retry(nodes.found)
    for _ in range(3):
        sent.append(log)
    nodes[2].checkpoint()
    sent.append(log)


def restored(nodes: Nodes, log: Log, sent: Sent) -> None:
    """Assert that a log that could not be transferred is unchanged and accepts appends."""
    nodes.leader = 1
    assert nodes[1].logs[T] is log and not log.is_released
    sent.append(log)


def retry(step: Callable[[], Any], before: Callable[[], None] = lambda: None) -> Any:
    """Retry a step that is refused, as the broker does."""
    for _ in range(3):
        try:
            return step()
        except KafkaStorageError as fault:
            assert fault.retriable
            before()
    raise DiskFailed("it is refused for good")


def restart_all_nodes(nodes: Nodes, sent: Sent) -> None:
    nodes.crash()
    for node_id in (0, 1, 2):
        assert nodes[node_id] is not None
    log = nodes.found()
    sent.check(nodes, log)
    sent.append(log)
    nodes.crash()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize(("code", "sticky"), SWEEPS)
def test_transfer_survives_the_failure_of_each_disk_call(
    tmp_path: Path, code: int, sticky: bool, durability: str
) -> None:
    seen: set[str] = set()
    for fail_at in range(1, 1000):
        nodes = Nodes(tmp_path / "data", disk := FaultyDisk(fail_at, code, sticky=sticky))
        nodes.settings = settings({**VALUES, keys.DURABILITY: durability})
        sent = Sent()
        disk.armed = False
        for node_id in (1, 2):
            assert nodes[node_id].logs == {}
        disk.armed = True
        try:
            live(nodes, sent)
        except (DiskFailed, KafkaStorageError, OSError):
            assert disk.failed
        disk.armed = False
        if sent.values:
            restart_all_nodes(nodes, sent)
        nodes.crash()
        shutil.rmtree(tmp_path / "data")
        seen.update(disk.failed)
        if not disk.failed:
            break
    else:
        pytest.fail("the sweep did not come to its end")
    assert seen >= {"open", "pwrite", "pwritev", "rename", "unlink", "mkdir"}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_transfer_survives_a_kill_before_each_disk_call(tmp_path: Path, durability: str) -> None:
    for kill_at in range(1, 1000):
        nodes = Nodes(tmp_path / "data", disk := KillingDisk(kill_at))
        nodes.settings = settings({**VALUES, keys.DURABILITY: durability})
        sent = Sent()
        disk.armed = False
        for node_id in (1, 2):
            assert nodes[node_id].logs == {}
        disk.armed = True
        killed = False
        try:
            live(nodes, sent)
        except Killed:
            killed = True
        disk.armed = False
        if sent.values:
            restart_all_nodes(nodes, sent)
        nodes.crash()
        shutil.rmtree(tmp_path / "data")
        if not killed:
            break
    else:
        pytest.fail("the sweep did not come to its end")
    assert kill_at > 50


# -- power cuts --------------------------------------------------------------------------------


def recorded(nodes: Nodes, disk: RecordingDisk, sent: Sent) -> None:
    """Run a life on three nodes, recording its guarantees in the journal."""
    log = nodes.create()
    disk.note("leader", 1)
    for to in (2, 3, 1):
        for number in range(6):
            sent.append(log)
            if number == 3:
                log.flush()
                disk.note("durable", log.durable_offset)
        log.delete_records(log.log_start_offset + 2)
        nodes[nodes.leader].checkpoint()
        disk.note("start", log.log_start_offset)
        if nodes.settings[keys.DURABILITY] != "os":
            log.flush()
            disk.note("durable", log.durable_offset)
        disk.note("leader", to)
        log = nodes.move(to)
    sent.append(log)
    nodes[1].checkpoint()


def check_image(target: Path, crash: Crash, sent: Sent, kind: str, values: Settings) -> None:
    nodes = Nodes(target)
    nodes.settings = values
    nodes.leader = crash.notes.get("leader", 1)
    for node_id in (3, 2, 1):
        assert nodes[node_id] is not None
    durable, start = crash.notes.get("durable", 0), crash.notes.get("start", 0)
    log = nodes[nodes.leader].open_transferred("t", 0, TOPIC_ID, values)
    if log is None:
        assert not durable, kind
    else:
        assert log.failure is None, kind
        assert log.end_offset >= durable and log.log_start_offset >= start, kind
        assert values_of(log) == sent.values[log.log_start_offset : log.end_offset], kind
        places = [node_id for node_id in (1, 2, 3) if nodes.names(node_id)]
        assert places == [nodes.leader], kind
    nodes.crash()


def enumerate_images(tmp_path: Path, durability: str, every: int, seed: int) -> int:
    source, target = tmp_path / "data", tmp_path / "crashed"
    nodes, sent = Nodes(source, disk := RecordingDisk()), Sent()
    nodes.settings = settings({**VALUES, keys.DURABILITY: durability})
    for node_id in (1, 2, 3):
        assert nodes[node_id].logs == {}
    recorded(nodes, disk, sent)
    nodes.crash()
    chance = random.Random(seed)
    count = 0
    for point in range(1 + seed % every, len(disk.journal) + 1, every):
        crash = Crash(disk.journal, point)
        for kind, image in crash.images(chance):
            target.mkdir()
            crash.restore(image, source, target)
            shutil.copy(source / "meta.properties", target)
            with pytest.MonkeyPatch.context() as patch:
                if kind != "killed":
                    patch.setattr(partition_transfer, "boot_id", lambda: "the next")
                kind = f"{kind} after {point}: {disk.journal[point - 1][:2]}"
                check_image(target, crash, sent, kind, nodes.settings)
            shutil.rmtree(target)
            count += 1
    return count


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_transfer_survives_a_crash_at_sampled_writes(tmp_path: Path, durability: str) -> None:
    assert enumerate_images(tmp_path, durability, every=5, seed=1) > 100


@pytest.mark.faults
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", range(4))
def test_transfer_survives_a_crash_at_more_writes(
    tmp_path: Path, durability: str, seed: int
) -> None:
    assert enumerate_images(tmp_path, durability, every=4, seed=seed) > 150


def test_tick_continues_while_the_node_directory_cannot_be_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path)
    nodes.create(1)
    node, receiver = nodes[1], nodes[2]
    nodes.path(2).rename(aside := tmp_path / "aside")
    for _ in range(2):
        assert receiver.tick(nodes.clock.monotonic_ms()) > 0
    complaints = [record for record in caplog.records if "cannot be listed" in record.getMessage()]
    assert len(complaints) == 1
    aside.rename(nodes.path(2))
    nodes.leader = 2
    node.transfer(node.logs["t", 0], nodes.path(2))
    receiver.tick(nodes.clock.monotonic_ms())
    assert list(receiver._foreign_logs.paths) == [next(nodes.path(2).glob("t-0*"))]
