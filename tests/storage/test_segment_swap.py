"""Segment swaps: crashes at every call (F7), failing calls (F8), readers during a swap; and the
cleaner checkpoint."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.records.batch import batches
from kafkalite.records.decode_steps import finish
from kafkalite.storage.compaction import cleaner_checkpoint, segment_swap
from kafkalite.storage.compaction.cleaner_checkpoint import CleanerCheckpoint
from kafkalite.storage.compaction.cleaning import clean
from kafkalite.storage.compaction.cleaning_job import CleanedGroup
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK, Disk, DiskFailed
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.log.timestamps import search_max_timestamp, search_timestamp
from tests.simulation.crash import Crash, RecordingDisk
from tests.simulation.disk import FaultyDisk, QuickDisk
from tests.storage.cleaning_harness import (
    Killed,
    KillingDisk,
    files_of,
    job_of,
    no_throttle,
    records_of,
    replace,
    run_pass,
)
from tests.storage.factories import (
    NOW,
    batch,
    close,
    found_since,
    manager,
    open_log,
    searched,
    settings,
)
from tests.storage.test_cleaning import COMPACT, end_txn, pairs, put, put_txn

SWAP_CALLS = ("open", "pwrite", "fdatasync", "fsync", "rename", "unlink")


def filled(directory: Path, disk: Disk | None = None, *, is_flushed: bool = True) -> Log:
    """Return a log of several segments with updates, tombstones and an aborted transaction."""
    log = open_log(directory, COMPACT, disk=disk or QuickDisk())
    for i in range(30):
        put(log, (b"k%d" % (i % 4), b"%d" % i), (b"gone", None))
    put_txn(log, 8, 0, (b"k0", b"aborted"))
    end_txn(log, 8, commit=False)
    log.roll()
    put(log, (b"dirty", b"1"))
    if is_flushed:
        log.flush()
    return log


def kept(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return what a read_committed reader has to see whether the log was cleaned or not."""
    found = {record.key: record for record in records_of(log)}
    return sorted((record.offset, record.key, record.value) for record in found.values())


# -- crashes -------------------------------------------------------------------------------------


def lived(source: Path) -> tuple[list[tuple], int, Log, list[list[tuple]]]:
    """Return the journal of a pass, its first entry, the log after it, and the records in each
    group before it."""
    disk = RecordingDisk()
    log = filled(source, disk)
    begin = len(disk.journal)
    disk.note("durable", log.durable_offset)
    result = clean(job_of(log), no_throttle, disk)
    groups = [within(pairs(log), group) for group in result.groups]
    assert len(groups) > 1
    replace(log, result)
    directory = disk.open(source, os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(directory.fileno())
    disk.note("clean", result.end_offset)
    return disk.journal, begin, log, groups


def within(found: list[tuple], group: CleanedGroup) -> list[tuple]:
    """Return the records in the range of a group."""
    first, end = group.segments[0].base_offset, group.segments[-1].end_offset
    return [each for each in found if first <= each[0] < end]


def crash_at(tmp_path: Path, every: int, seed: int) -> None:
    source, target = tmp_path / "t-0", tmp_path / "crashed"
    journal, begin, log, old = lived(source)
    new, expected = pairs(log), kept(log)
    chance, seen = random.Random(seed), set()
    bounds = [group[0][0] for group in old] + [log.active.base_offset]
    for point in [*range(begin + 1 + seed % every, len(journal), every), len(journal)]:
        crash = Crash(journal, point)
        for kind, image in crash.images(chance):
            target.mkdir()
            crash.restore(image, source, target)
            where = f"{kind} after {point}: {journal[point - 1][:3]}"
            found = open_log(
                target, COMPACT, recovery_point=log.durable_offset,
                cleaner_offset=crash.notes.get("clean", -1),
            )  # fmt: skip
            assert found.failure is None, where
            assert found.end_offset == log.end_offset, where
            assert kept(found) == expected, where
            is_new = pairs(found) == new
            assert is_new or "clean" not in crash.notes, where
            for first, end, before in zip(bounds, bounds[1:], old, strict=False):
                assert between(found, first, end) in (before, between(log, first, end)), where
            assert job_of(found).aborted == job_of(log).aborted, where
            assert not [name for name in os.listdir(target) if is_of_a_swap(name)], where
            before = files_of(target)
            found.release()
            open_log(target, COMPACT, recovery_point=log.durable_offset).release()
            assert files_of(target) == before, f"{where}: a second recovery changed something"
            seen.add(is_new)
            shutil.rmtree(target)
    assert seen == {True, False}


def between(log: Log, first: int, end: int) -> list[tuple]:
    return [each for each in pairs(log) if first <= each[0] < end]


def test_crash_at_sampled_calls_of_a_swap_leaves_old_or_new_segments(tmp_path):
    crash_at(tmp_path, every=17, seed=1)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(10))
def test_crash_at_every_call_of_a_swap_leaves_old_or_new_segments(tmp_path, seed):
    crash_at(tmp_path, every=1, seed=seed)


def test_power_cut_between_two_groups_of_an_unflushed_log_loses_no_last_value(tmp_path):
    source, target = tmp_path / "t-0", tmp_path / "crashed"
    disk = RecordingDisk()
    log = filled(source, disk, is_flushed=False)
    end_offset = log.active.base_offset
    expected = [record for record in kept(log) if record[0] < end_offset]
    result = clean(job_of(log), no_throttle, disk)
    assert len(result.groups) > 1
    begin = len(disk.journal)
    replace(log, result)
    chance = random.Random(1)
    for point in range(begin + 1, len(disk.journal) + 1, 5):
        crash = Crash(disk.journal, point)
        for kind, image in crash.images(chance):
            target.mkdir()
            crash.restore(image, source, target)
            found = open_log(target, COMPACT)
            where = f"{kind} after {point}: {disk.journal[point - 1][:3]}"
            assert [record for record in kept(found) if record[0] < end_offset] == expected, where
            found.release()
            shutil.rmtree(target)


def is_of_a_swap(name: str) -> bool:
    return name.endswith((layout.CLEANED, layout.SWAP))


def test_start_that_is_killed_while_it_completes_a_swap_is_repeated(tmp_path):
    source = tmp_path / "t-0"
    log = filled(source)
    result = clean(job_of(log), no_throttle, QuickDisk())
    (group,) = result.groups[:1]
    segment_swap.commit(DISK, source, group)
    expected = kept(log)
    log.release()
    for again in range(1, 40):
        target = tmp_path / f"crashed-{again}"
        shutil.copytree(source, target)
        try:
            open_log(target, COMPACT, disk=KillingDisk(again))
        except Killed:
            pass
        else:
            break
        found = open_log(target, COMPACT)
        assert found.failure is None
        assert kept(found) == expected
        assert len(found.segments) < len(log.segments) or len(pairs(found)) < 61
    assert again > 10


def test_process_killed_in_a_swap_of_several_segments_leaves_all_old_or_all_new(tmp_path):
    seen = []
    for kill_at in range(1, 200):
        directory = tmp_path / str(kill_at)
        log = filled(directory)
        old, expected = pairs(log), kept(log)
        groups = clean(job_of(log), no_throttle, QuickDisk()).groups
        group = CleanedGroup(
            tuple(source for each in groups for source in each.sources),
            tuple(segment for each in groups for segment in each.segments),
        )
        disk = log._disk = KillingDisk(kill_at)
        for segment in log.segments:
            segment._disk = disk
        try:
            log.replace_segments(group)
        except Killed:
            pass
        found = open_log(directory, COMPACT)
        assert found.failure is None
        assert kept(found) == expected
        assert len(pairs(found)) in (len(old), len(expected))
        seen.append(len(pairs(found)) == len(old))
        if disk.left > 0:
            break
    assert sorted(seen, reverse=True) == seen
    assert seen.count(True) > 5 < seen.count(False)


# -- failing calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failing_call_cancels_the_pass(tmp_path, code):
    log = filled(tmp_path)
    before, expected = files_of(tmp_path), kept(log)
    for fail_at in range(1, 200):
        disk = FaultyDisk(fail_at, code, only=SWAP_CALLS)
        try:
            clean(job_of(log), no_throttle, disk)
        except OSError:
            assert disk.failed
            if disk.failed == ["unlink"]:
                continue
            assert files_of(tmp_path) == before, disk.failed
        else:
            break
    assert fail_at > 10
    assert kept(log) == expected


def test_failing_call_of_a_swap_cancels_it_or_is_repeated(tmp_path):
    outcomes = set()
    for fail_at in range(1, 100):
        directory = tmp_path / str(fail_at)
        log = filled(directory)
        expected = kept(log)
        result = clean(job_of(log), no_throttle, QuickDisk())
        disk = log._disk = FaultyDisk(fail_at, errno.ENOSPC, only=("rename", "unlink"))
        for segment in log.segments:
            segment._disk = disk
        try:
            for group in result.groups:
                log.replace_segments(group)
            outcomes.add("replaced")
        except KafkaStorageError:
            assert not list(directory.glob("*.swap"))
            assert not list(directory.glob("*.cleaned"))
            outcomes.add("cancelled")
        assert log.failure is None
        assert kept(log) == expected
        put(log, (b"more", b"1"))
        if not disk.failed:
            break
    assert outcomes == {"replaced", "cancelled"}
    assert fail_at > 20


def test_log_stops_if_committed_files_cannot_be_renamed(tmp_path):
    log = filled(tmp_path)
    expected = kept(log)
    result = clean(job_of(log), no_throttle, QuickDisk())
    log._disk = FaultyDisk(4, errno.EIO, sticky=True, only=("rename",))
    with pytest.raises(DiskFailed, match="completes the segment swap"):
        log.replace_segments(result.groups[0])
    log.release()
    assert kept(open_log(tmp_path, COMPACT)) == expected


def test_group_of_other_segments_is_refused(tmp_path):
    log = filled(tmp_path)
    result = clean(job_of(log), no_throttle, QuickDisk())
    log.delete_records(log.segments[1].base_offset)
    with pytest.raises(KafkaStorageError, match="has changed since"):
        log.replace_segments(result.groups[0])
    assert not list(tmp_path.glob("*.cleaned"))
    assert log.failure is None


def test_result_that_does_not_match_its_files_is_refused(tmp_path):
    log = filled(tmp_path)
    group = clean(job_of(log), no_throttle, QuickDisk()).groups[0]
    (segment,) = group.segments
    for wrong in (
        segment._replace(size=segment.size + 1),
        segment._replace(end_offset=segment.end_offset + 1),
        segment._replace(base_offset=segment.base_offset + 1),
    ):
        with pytest.raises(KafkaStorageError):
            list(segment_swap.check(tmp_path, group._replace(segments=(wrong,))))
    list(segment_swap.check(tmp_path, group))


def test_missing_file_of_the_result_cancels_the_swap(tmp_path):
    log = filled(tmp_path)
    result = clean(job_of(log), no_throttle, QuickDisk())
    group = next(g for g in result.groups if any(s.aborted_count for s in g.segments))
    next(iter(tmp_path.glob("*.txnindex.cleaned"))).unlink()
    before = pairs(log)
    with pytest.raises(KafkaStorageError, match="cannot be cleaned"):
        log.replace_segments(group)
    assert pairs(log) == before


# -- readers -------------------------------------------------------------------------------------


def test_slice_read_before_a_swap_stays_valid(tmp_path):
    log = filled(tmp_path)
    piece = read(log, 0, 300, log.end_offset)
    assert piece is not None
    generation = log.generation
    run_pass(log)
    assert log.generation > generation
    whole = [record for found in batches(piece.read()) for record in found.records()]
    assert whole[0].value == b"0"


def test_time_search_restarts_after_a_swap(tmp_path):
    log = filled(tmp_path)
    search = search_timestamp(log, NOW)
    next(search)
    run_pass(log)
    steps = search.send(None)  # the batch had no such record
    with pytest.raises(StopIteration) as ended:
        search.send(finish(steps))
    assert ended.value.value == searched(search_timestamp(log, NOW))
    assert ended.value.value.offset == pairs(log)[0][0]


def test_emptied_batch_is_not_found_by_time(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"), timestamp=NOW + 50, producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, (b"a", b"2"), timestamp=NOW)
    put(log, (b"b", b"3"), timestamp=NOW + 20)
    log.roll()
    put(log, (b"c", b"4"), timestamp=NOW + 60)
    run_pass(log)
    found = found_since(log, NOW + 10)
    assert found is not None
    assert found.offset == 2


def test_time_index_of_an_emptied_batch_is_rebuilt(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"), timestamp=NOW + 50, producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, (b"a", b"2"), timestamp=NOW)
    put(log, (b"b", b"3"), timestamp=NOW + 20)
    log.roll()
    run_pass(log)
    log.release()
    # Apache Kafka enters the time of records that the batch no longer has.
    log.segments[0].time_index.path.write_bytes(struct.pack(">qi", NOW + 50, 0))
    found = searched(search_max_timestamp(open_log(tmp_path, COMPACT)))
    assert found is not None
    assert (found.timestamp, found.offset) == (NOW + 20, 2)


def test_snapshot_of_a_removed_segment_is_deleted(tmp_path):
    log = filled(tmp_path)
    run_pass(log)
    log.cleaner_offset = 0
    run_pass(log)
    bases = {segment.base_offset for segment in log.segments}
    assert set(log.producers.snapshots()) <= bases


# -- the checkpoint ------------------------------------------------------------------------------


def test_checkpoint_has_the_text_format_of_kafka(tmp_path):
    checkpoint = CleanerCheckpoint(tmp_path, QuickDisk())
    checkpoint.set("prices", 0, 48211, tmp_path)
    checkpoint.set("prices", 1, 47310)
    checkpoint.write(None)
    path = tmp_path / "cleaner-offset-checkpoint"
    assert path.read_text() == "0\n2\nprices 0 48211\nprices 1 47310\n"
    found = CleanerCheckpoint(tmp_path, QuickDisk())
    assert (found.offset_of("prices", 1), found.offset_of("prices", 2)) == (47310, -1)
    found.remove("prices", 0)
    found.write(None)
    assert path.read_text() == "0\n1\nprices 1 47310\n"


@pytest.mark.parametrize(
    "text",
    ["", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na 0 -1\n", "0\nx\n", "0\n1\na b c\n"],
)
def test_damaged_checkpoint_is_ignored(tmp_path, text):
    path = tmp_path / layout.CLEANER_CHECKPOINT
    path.write_text(text)
    assert cleaner_checkpoint.read(path) == {}


def test_full_disk_delays_the_checkpoint(tmp_path):
    checkpoint = CleanerCheckpoint(tmp_path, disk := FaultyDisk(2, errno.ENOSPC))
    checkpoint.set("t", 0, 5, tmp_path)
    checkpoint.write(None)
    assert disk.failed
    assert cleaner_checkpoint.read(checkpoint.where) == {}
    checkpoint.write(None)
    assert cleaner_checkpoint.read(checkpoint.where) == {("t", 0): 5}


def test_checkpoint_is_written_again_when_the_write_in_flight_has_ended(tmp_path):
    checkpoint = CleanerCheckpoint(tmp_path, disk := QuickDisk())
    submitted: list[CleanerCheckpoint] = []
    flusher: Any = SimpleNamespace(submit=submitted.extend)

    def end_write() -> None:
        submitted.pop().run(disk)
        checkpoint.done(checkpoint)

    checkpoint.set("t", 0, 5)
    checkpoint.write(flusher)
    checkpoint.set("t", 0, 6)
    checkpoint.write(flusher)
    assert len(submitted) == 1
    end_write()
    assert cleaner_checkpoint.read(checkpoint.where) == {("t", 0): 5}
    end_write()
    assert cleaner_checkpoint.read(checkpoint.where) == {("t", 0): 6}
    assert not submitted


def test_shutdown_writes_the_checkpoint_after_a_write_in_flight(tmp_path):
    checkpoint = CleanerCheckpoint(tmp_path, disk := QuickDisk())
    flusher: Any = SimpleNamespace(submit=lambda jobs: [each.run(disk) for each in jobs])
    checkpoint.set("t", 0, 5)
    checkpoint.write(flusher)
    checkpoint.set("t", 0, 6)
    checkpoint.write(flusher)
    assert cleaner_checkpoint.read(checkpoint.where) == {("t", 0): 5}
    checkpoint.write(None)
    assert cleaner_checkpoint.read(checkpoint.where) == {("t", 0): 6}


def test_checkpoint_entry_lives_as_long_as_its_log(tmp_path):
    logs = manager(tmp_path)
    made = logs.create("t", bytes(range(16)), 0, settings())
    put(made, (b"a", b"1"))
    logs.note_cleaned(made, 1)
    path = tmp_path / layout.CLEANER_CHECKPOINT
    assert cleaner_checkpoint.read(path) == {("t", 0): 1}
    logs.close()
    logs = manager(tmp_path)
    (found,) = logs.load(lambda _: settings()).values()
    assert found.cleaner_offset == 1
    logs.delete(found)
    assert cleaner_checkpoint.read(path) == {}
    logs.close()


def test_checkpoint_past_the_log_end_is_lowered(tmp_path):
    log = open_log(tmp_path)
    log.append(batch(b"1"), 0)
    close(log)
    assert open_log(tmp_path, cleaner_offset=10).cleaner_offset == 1


# -- missing offsets -----------------------------------------------------------------------------


def test_missing_offsets_are_accepted_up_to_the_checkpoint_only(tmp_path):
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 100_000}, ManualClock())
    for i in range(3):
        put(log, (b"a", b"%d" % i))
    log.release()
    path = log.segments[0].path
    content = path.read_bytes()
    (first, _, third) = batches(content)
    path.write_bytes(bytes(first) + bytes(third))
    for cleaner_offset, is_sound in ((-1, False), (1, False), (2, True), (3, True)):
        found = open_log(tmp_path, cleaner_offset=cleaner_offset)
        assert (found.failure is None) is is_sound
        found.release()
    assert open_log(tmp_path, COMPACT).failure is None
