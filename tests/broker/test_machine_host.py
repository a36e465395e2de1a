"""Decisions of a controller on a real log: when they complete, and what a crash leaves of them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite import errors
from kafkalite.broker.controller import metadata_log, snapshot
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import NodeImage
from kafkalite.coordination.topics import PartitionGrowth
from kafkalite.errors import Fatal, KafkaStorageError, Refusal
from kafkalite.protocol.schemas import internal
from kafkalite.records.batch import batches
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from tests.broker.hosted import Hosted


@pytest.fixture
def hosted(tmp_path: Path) -> Hosted:
    hosted = Hosted(tmp_path / "__cluster_metadata-0")
    hosted.decide(lambda controller: controller.set_cluster_id("a-cluster"))
    hosted.decide(lambda controller: controller.register_nodes({0: ("localhost", 9092)}, {}))
    return hosted


def bad(controller: Controller) -> Any:
    """Raise an error, as a decision that is refused."""
    raise errors.PolicyViolation("no")


# -- decisions -----------------------------------------------------------------------------------


def test_decision_completes_after_its_records_are_durable(hosted):
    came = hosted.begin(hosted.create("a"))
    assert came == []
    hosted.flusher.go()
    assert came[0][0]["a"].name == "a"
    assert hosted.log.durable_offset == hosted.log.end_offset


def test_decision_without_records_waits_for_preceding_records(hosted):
    hosted.begin(hosted.create("a"))
    exists = hosted.begin(hosted.create("a"))
    refused = hosted.begin(bad)
    assert exists == refused == []
    hosted.flusher.go()
    assert isinstance(exists[0][0]["a"], errors.TopicAlreadyExists)
    assert isinstance(refused[0][1], errors.PolicyViolation)


def test_decision_without_pending_records_completes_at_once(hosted):
    assert len(hosted.begin(lambda controller: controller.set_cluster_id("a-cluster"))) == 1
    assert len(hosted.begin(bad)) == 1


def test_decisions_complete_in_order(hosted):
    order: list[str] = []
    for name in "abc":
        future = hosted.host.decide(hosted.create(name))
        future.then(lambda value, fault: order.extend(value))
    hosted.flusher.go()
    assert order == ["a", "b", "c"]


def test_change_listener_runs_after_the_flush_before_the_result(hosted):
    told: list[Any] = []
    hosted.host.on_change(lambda records, _: told.append([record.kind.name for record in records]))
    future = hosted.host.decide(hosted.create("a", 2))
    future.then(lambda value, fault: told.append("answer"))
    assert told == []
    hosted.flusher.go()
    assert told == [["Topic", "Partitions"], "answer"]


def test_decisions_during_a_flush_share_the_next_flush(hosted):
    before = hosted.flusher.count
    for name in "abcde":
        hosted.begin(hosted.create(name))
    hosted.flusher.go()
    assert hosted.flusher.count == before + 2


def test_decision_on_a_full_disk_changes_nothing(hosted):
    before = hosted.state
    hosted.log.release()
    hosted.open(kept_free=1 << 60)
    with pytest.raises(errors.KafkaStorageError):
        hosted.decide(hosted.create("a"))
    assert hosted.state == before


def test_decisions_made_together_share_a_batch(hosted):
    told: list[Any] = []
    hosted.host.on_change(lambda records, _: told.append(len(records)))
    before = hosted.log.end_offset
    same = lambda controller: controller.set_cluster_id("a-cluster")  # noqa: E731
    futures = hosted.host.decide_all([hosted.create("a"), bad, same, hosted.create("b", 2)])
    assert not any(future.settled for future in futures)
    hosted.flusher.go()
    outcomes: list[Any] = []
    for future in futures:
        future.then(lambda value, error: outcomes.append(error or value))
    assert outcomes[0]["a"].name == "a" and outcomes[3]["b"].name == "b"
    assert isinstance(outcomes[1], errors.PolicyViolation)
    assert batch_sizes(hosted.log, before) == [4] and told == [2, 2]


def batch_sizes(log: Log, offset: int) -> list[int]:
    found = read(log, offset, 1 << 20, log.end_offset)
    assert found is not None
    return [batch.header.count for batch in batches(found.read())]


def test_decisions_with_many_units_have_several_batches(hosted, monkeypatch):
    monkeypatch.setattr("kafkalite.broker.machine_host.BATCH_UNITS_MAX", 3)
    before = hosted.log.end_offset
    hosted.host.decide_all([hosted.create(name) for name in "abc"])
    hosted.flusher.go()
    assert batch_sizes(hosted.log, before) == [4, 2]


def test_decisions_together_on_a_full_disk_fail_if_they_have_records(hosted):
    before = hosted.state
    hosted.log.release()
    hosted.open(kept_free=1 << 60)
    same = lambda controller: controller.set_cluster_id("a-cluster")  # noqa: E731
    outcomes: list[Any] = []
    for future in hosted.host.decide_all([hosted.create("a"), same, hosted.create("b")]):
        future.then(lambda value, error: outcomes.append(error))
    assert [type(each) for each in outcomes] == [
        errors.KafkaStorageError, type(None), errors.KafkaStorageError
    ]  # fmt: skip
    assert outcomes[0] is not outcomes[2] and hosted.state == before


def test_decision_at_start_is_durable_when_it_returns(hosted):
    moved = {0: ("localhost", 9093)}
    hosted.host.decide_at_start(lambda controller: controller.register_nodes(moved, {}))
    assert hosted.host.machine.image.nodes == {0: NodeImage(0, "localhost", 9093)}
    assert hosted.log.durable_offset == hosted.log.end_offset
    assert hosted.flusher.held == []


def test_failed_decision_at_start_is_a_refusal(hosted):
    with pytest.raises(
        Refusal, match="belongs to cluster a-cluster and the rest of the directory to another"
    ):
        hosted.host.decide_at_start(lambda controller: controller.set_cluster_id("another"))
    hosted.log.release()
    hosted.open(kept_free=1 << 60)
    with pytest.raises(Refusal, match="cannot be updated"):
        hosted.host.decide_at_start(
            lambda controller: controller.register_nodes({0: ("localhost", 9093)}, {})
        )
    assert hosted.host.machine.image.nodes == {0: NodeImage(0, "localhost", 9092)}


# -- loading -------------------------------------------------------------------------------------


def test_state_is_restored_from_the_log(hosted):
    hosted.decide(hosted.create("a", 3))
    hosted.decide(lambda controller: controller.create_partitions([PartitionGrowth("a", 5)]))
    hosted.decide(lambda controller: controller.allocate_producer_ids(0))
    before = hosted.state
    hosted.crash()
    assert hosted.state == before
    assert len(hosted.host.machine.image.topics["a"].partitions) == 5


def test_incomplete_last_batch_is_discarded(hosted):
    hosted.decide(hosted.create("a"))
    before = hosted.state
    hosted.decide(hosted.create("b", 100))
    size = hosted.log.active.size
    hosted.log.release()
    with hosted.log.active.path.open("r+b") as file:
        file.truncate(size - 1)
    hosted.open()
    assert hosted.state == before


def test_damaged_log_is_refused(hosted):
    hosted.decide(hosted.create("a"))
    end = hosted.log.finish()
    hosted.log.release()
    with hosted.log.active.path.open("r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff\xff")
    for clean in (end, None):
        with pytest.raises(Refusal, match="cannot be read at offset"):
            hosted.open(end=clean, recovery_point=end.end_offset)


def test_log_damaged_after_recovery_is_refused(hosted):
    with hosted.log.active.path.open("r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff\xff")
    with pytest.raises(Refusal, match="cannot be read at offset 0"):
        hosted.host.load()


def test_unreadable_log_is_refused(hosted):
    hosted.decide(hosted.create("a"))
    hosted.decide(hosted.create("b"))
    active = hosted.log.active
    active._file = OpenFile(active.path, os.O_WRONLY)  # pread: EBADF
    active._descriptor = active._file.fileno()
    hosted.log.last_batch_position = 0  # otherwise the scan to the batch would fail first
    hosted.log.last_batch_offset = 0
    with pytest.raises(Refusal, match="cannot be read at offset 0"):
        hosted.host.load()


def test_flush_is_retried_when_descriptors_are_exhausted(hosted, monkeypatch):
    def short(**_: Any) -> None:
        raise KafkaStorageError("too many files are open")

    with monkeypatch.context() as context:
        context.setattr(hosted.log, "flush_begin", short)
        came = [hosted.begin(hosted.create(name)) for name in "ab"]
        assert not hosted.flusher.held and len(hosted.timers) == 1
        hosted.timers.pop()()
        assert len(hosted.timers) == 1, "the second attempt fails, and there is a third"
    hosted.timers.pop()()
    hosted.flusher.go()
    assert [fault for ((_, fault),) in came] == [None, None]


def test_flush_is_retried_when_the_disk_is_full(hosted, monkeypatch):
    came = hosted.begin(hosted.create("a"))
    (flush,) = hosted.flusher.held
    flush.refused = OSError(28, "No space left on device")
    hosted.flusher.go()
    assert came == [] and len(hosted.timers) == 1
    hosted.timers.pop()()
    hosted.flusher.go()
    assert [fault for _, fault in came] == [None]


def test_removed_metadata_log_ends_the_node(hosted):
    hosted.decide(hosted.create("a"))
    hosted.log.roll()  # so that names are flushed, too
    hosted.begin(hosted.create("b"))
    shutil.rmtree(hosted.log.directory)
    with pytest.raises(Fatal, match="was removed"):
        hosted.flusher.go()


def test_log_of_a_newer_version_is_refused(hosted, monkeypatch):
    monkeypatch.setattr(internal.TOPIC, "version", 9)
    monkeypatch.setattr(internal, "write", lambda record: bytes((record.kind.key, 9)))
    hosted.begin(hosted.create("a"))
    with pytest.raises(Refusal, match="newer kafkalite"):
        hosted.crash()


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["create", "grow", "ids", "flush"]), max_size=12),
    kept=st.floats(0, 1),
)
def test_power_cut_keeps_completed_decisions_and_no_partial_ones(steps, kept):
    with TemporaryDirectory() as directory:
        hosted = Hosted(Path(directory) / "__cluster_metadata-0")
        hosted.decide(lambda controller: controller.register_nodes({0: ("localhost", 9092)}, {}))
        states = {hosted.log.active.size: hosted.state}
        durable_size = hosted.log.active.size
        for step in steps:
            if step == "flush":
                hosted.flusher.go()
                durable_size = hosted.log.active.size
            else:
                hosted.begin(hosted.decision(step))
            states[hosted.log.active.size] = hosted.state
        cut = durable_size + int(kept * (hosted.log.active.size - durable_size))
        hosted.log.release()
        with hosted.log.active.path.open("r+b") as file:
            file.truncate(cut)
        hosted.open()
        assert hosted.state == states[max(size for size in states if size <= cut)]


# -- snapshots -----------------------------------------------------------------------------------


@pytest.fixture
def short(hosted, monkeypatch):
    """Return a host that writes a snapshot after replaying five records."""
    monkeypatch.setattr(metadata_log, "SNAPSHOT_AFTER_COUNT", 5)
    return hosted


def snapshots(hosted: Hosted) -> list[Path]:
    return sorted(hosted.directory.glob("*.checkpoint"))


def grown(hosted: Hosted, times: int) -> None:
    """Restart `times` times, adding five topics each time."""
    for _ in range(times):
        for _ in range(5):
            hosted.decide(hosted.create(f"t{hosted.topics}"))
        hosted.crash()


def test_short_log_has_no_snapshot(short):
    short.crash()
    assert snapshots(short) == []


def test_state_is_restored_from_snapshot_and_log(short):
    grown(short, 1)
    assert len(snapshots(short)) == 1
    short.decide(short.create("after"))
    before = short.state
    short.crash()
    assert short.state == before
    assert short.host.machine.image.topics.keys() >= {"t0", "t4", "after"}


def test_two_snapshots_are_kept_and_the_log_starts_at_the_older(short):
    grown(short, 4)
    older, newer = snapshots(short)
    assert short.log.log_start_offset == int(older.stem) > 0
    assert int(newer.stem) == short.log.end_offset
    assert short.log.segments[0].base_offset == int(older.stem)


def test_damaged_snapshot_is_skipped_for_the_previous_one(short):
    grown(short, 3)
    before = short.state
    newest = snapshots(short)[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    short.crash()
    assert short.state == before


def test_trimmed_log_without_valid_snapshot_is_refused(short):
    grown(short, 3)
    for path in snapshots(short):
        path.write_bytes(b"")
    with pytest.raises(Refusal, match="cannot be read"):
        short.crash()


def test_log_that_ends_before_its_snapshot_is_refused(short, tmp_path):
    grown(short, 1)
    (found,) = snapshots(short)
    found.rename(found.with_name(f"{10_000:020d}.checkpoint"))
    with pytest.raises(Refusal, match="does not reach"):
        short.crash()


def test_failed_snapshot_write_does_not_prevent_the_start(short, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    for _ in range(5):
        short.decide(short.create(f"t{short.topics}"))
    before = short.state
    monkeypatch.setattr(snapshot, "put_file", full)
    short.crash()
    assert (short.state, snapshots(short)) == (before, [])


def test_damaged_snapshot_raises_corrupt_message(short):
    grown(short, 1)
    (path,) = snapshots(short)
    whole = path.read_bytes()
    for cut in (whole[:-1], whole[1:], whole + b"\0", b"", whole[: len(whole) // 2]):
        path.write_bytes(cut)
        with pytest.raises(errors.CorruptMessage):
            snapshot.read_snapshot(path)
