"""The high watermark checkpoint: a replica never starts with one that is too high."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config.replication import REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files import layout, offset_checkpoint
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.log.log import Log
from tests.simulation.disk import FaultyDisk
from tests.storage.factories import TOPIC_ID, batch, manager, settings
from tests.storage.nodes import Nodes, T

INTERVAL_MS = REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS.default


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    made.replicas = (1, 2)
    made[0].open_metadata()
    yield made
    made.crash()


def replica(nodes: Nodes, high_watermark: int, count: int = 5) -> Log:
    log = nodes.create_replica(1, *[b"v"] * count)
    nodes[1].high_watermarks.source = lambda: {T: high_watermark}
    return log


def tick(nodes: Nodes) -> int:
    nodes.clock.advance(INTERVAL_MS)
    return nodes[1].tick(nodes.clock.monotonic_ms())


def written(nodes: Nodes) -> offset_checkpoint.Offsets:
    return offset_checkpoint.read(nodes.path(1) / layout.HIGH_WATERMARK_CHECKPOINT)


def test_high_watermark_is_written_periodically(nodes: Nodes) -> None:
    replica(nodes, 3)
    assert 0 < tick(nodes) <= INTERVAL_MS
    path = nodes.path(1) / layout.HIGH_WATERMARK_CHECKPOINT
    assert path.read_text() == "0\n1\nt 0 3\n"
    nodes.crash()
    assert nodes[1].logs[T].high_watermark_at_start == 3
    assert nodes[2].create("t", TOPIC_ID, 0, nodes.settings).high_watermark_at_start == 0


def test_interval_of_the_writes_is_the_configured_one(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(
        tmp_path, clock, **{REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS.name: "200"}
    )  # fmt: skip
    log = logs.create("t", TOPIC_ID, 0, settings())
    log.is_replicated = True
    log.append(batch(b"v"), 0)
    path = tmp_path / layout.HIGH_WATERMARK_CHECKPOINT
    for high_watermark, elapsed_ms, expected in ((0, 0, 0), (1, 199, 0), (1, 1, 1)):
        logs.high_watermarks.source = lambda offset=high_watermark: {T: offset}
        clock.advance(elapsed_ms)
        logs.tick(clock.monotonic_ms())
        assert offset_checkpoint.read(path) == {T: expected}
    logs.close()


def test_flusher_writes_the_high_watermarks(nodes: Nodes) -> None:
    replica(nodes, 3)
    flusher = nodes[1].flusher = Flusher()
    try:
        tick(nodes)
    finally:
        flusher.close()
    assert written(nodes) == {T: 3}


def test_clean_shutdown_writes_the_high_watermarks(nodes: Nodes) -> None:
    replica(nodes, 4)
    nodes.close(1)
    assert nodes[1].logs[T].high_watermark_at_start == 4


def test_full_disk_does_not_prevent_a_clean_shutdown(nodes: Nodes, tmp_path: Path) -> None:
    nodes.disk = FaultyDisk(10**9, errno.ENOSPC)
    replica(nodes, 4)
    watermarks = nodes[1].high_watermarks
    watermarks._disk = FaultyDisk(1, errno.ENOSPC)
    nodes.close(1)
    assert written(nodes) == {}
    assert (nodes.path(1) / layout.CLEAN_SHUTDOWN).exists()


def test_high_watermark_at_start_is_within_the_log(nodes: Nodes) -> None:
    log = replica(nodes, 9)
    tick(nodes)
    assert written(nodes) == {T: 5}
    path = nodes.path(1) / layout.HIGH_WATERMARK_CHECKPOINT
    log.delete_records(2)
    nodes[1].checkpoint()
    nodes.crash()
    for entry, expected in ((9, 5), (1, 2), (3, 3)):
        path.write_bytes(offset_checkpoint.encoded({T: entry}))
        assert nodes[1].logs[T].high_watermark_at_start == expected
        nodes.crash()
    for content in (b"", b"1\n0\n", b"0\n1\nt 0 -3\n", b"noise"):
        path.write_bytes(content)
        assert nodes[1].logs[T].high_watermark_at_start == 2
        nodes.crash()


def test_truncation_lowers_the_entry_on_the_disk_first(nodes: Nodes) -> None:
    log = replica(nodes, 4)
    tick(nodes)
    log.truncate_to(4)
    assert written(nodes) == {T: 4}
    log.truncate_to(2)
    assert written(nodes) == {T: 2}


def test_truncation_of_unflushed_records_leaves_an_entry_below_it(nodes: Nodes) -> None:
    log = replica(nodes, 3)
    tick(nodes)
    log.flush_state.durable_offset = 0
    log.truncate_to(4)
    assert written(nodes) == {T: 3}


def test_entry_is_not_raised_before_a_log_was_restarted_at_a_greater_offset(nodes: Nodes) -> None:
    log = replica(nodes, 3)
    tick(nodes)
    log.truncation_begin(100, is_whole_log=True)
    nodes[1].high_watermarks.source = lambda: {T: 100}
    tick(nodes)
    assert written(nodes) == {T: 3}
    log.finish_truncation()
    tick(nodes)
    assert written(nodes) == {T: 100}


def test_truncation_is_refused_if_the_entry_cannot_be_lowered(nodes: Nodes) -> None:
    log = replica(nodes, 4)
    tick(nodes)
    nodes[1].high_watermarks._disk = FaultyDisk(1, errno.ENOSPC)
    with pytest.raises(KafkaStorageError):
        log.truncate_to(2)
    assert log.end_offset == 5 and log.failure is None


def test_late_write_does_not_replace_a_lowered_entry(nodes: Nodes) -> None:
    log = replica(nodes, 4)
    watermarks = nodes[1].high_watermarks
    watermarks._collect()
    late = watermarks._begun()
    watermarks._in_flight = late
    log.truncate_to(2)
    late.run(FaultyDisk(10**9, errno.EIO))
    assert late.is_superseded and written(nodes) == {T: 2}


def test_entry_of_a_removed_log_is_not_used_for_a_new_one(nodes: Nodes) -> None:
    log = replica(nodes, 4)
    tick(nodes)
    nodes[1].delete(log)
    nodes.replicas = (1, 2)
    nodes[1].create("t", TOPIC_ID, 0, nodes.settings)
    assert written(nodes) == {}


def test_log_with_one_replica_has_no_entry(nodes: Nodes) -> None:
    log = replica(nodes, 4)
    tick(nodes)
    log.is_replicated = False
    nodes[1].high_watermarks.source = dict
    tick(nodes)
    assert written(nodes) == {}
