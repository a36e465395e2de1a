"""Truncation and replicated appends of a log, against a list of batches."""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkalite._ext.record_batch import header
from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files import layout
from kafkalite.storage.files.deferred_delete import DeferredDeletes
from kafkalite.storage.files.disk import DiskFailed
from kafkalite.storage.log import segment_grants
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.replicated_append import InvalidReplicatedBatch
from tests.simulation.crash import Crash, RecordingDisk
from tests.simulation.disk import FaultyDisk, QuickDisk
from tests.storage.factories import (
    batch,
    close,
    open_log,
    produced,
    values_of,
)
from tests.storage.replicated import (
    bytes_of,
    last_offset,
    marker,
    placed,
    state_of,
    transactional,
)

VALUES = {keys.DURABILITY: "fsync", keys.SEGMENT_BYTES: 500, keys.INDEX_INTERVAL_BYTES: 100}


class CountingDisk(QuickDisk):
    """A disk that counts the writes of batches."""

    def __init__(self) -> None:
        self.count = 0

    def pwritev(self, descriptor: int, buffers: Any, position: int) -> int:
        self.count += 1
        return super().pwritev(descriptor, buffers, position)


def contents(log: Log) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.directory.iterdir()}


def sent(count: int, first: int = 0, epoch: int = 0) -> list[bytes]:
    return [placed(batch(b"v%d" % i), i, epoch) for i in range(first, first + count)]


def test_replicated_batches_are_appended_as_they_are_in_one_write(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20}, disk=disk)
    batches = [*sent(3), placed(batch(b"a", b"b"), 3, 2), placed(marker(7, commit=True), 5, 4)]
    result = log.append_replicated(b"".join(batches))
    assert (result.batch_count, result.end_offset, disk.count) == (5, 6, 1)
    assert bytes_of(log) == b"".join(batches)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 2, 4], [0, 3, 5])


def test_replicated_batches_leave_the_same_files_as_appends(tmp_path: Path) -> None:
    one, other = open_log(tmp_path / "t-0", VALUES), open_log(tmp_path / "t-1", VALUES)
    for number in range(30):
        one.append(produced(number, b"%d" % number), number // 10)
    other.append_replicated(bytes_of(one))
    assert state_of(one) == state_of(other)
    one.finish()
    other.finish()
    assert contents(one) == contents(other)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(placed(batch(b"v"), 2, 5)[:-1] + b"!", id="CRC"),
        pytest.param(placed(batch(b"v"), 1, 5), id="offset below the end"),
        pytest.param(placed(batch(b"v"), 2, 4), id="older epoch"),
        pytest.param(b"\0" * 100, id="zeros"),
    ],
)
def test_replicated_append_ends_before_an_invalid_batch(tmp_path: Path, bad: bytes) -> None:
    log = open_log(tmp_path, VALUES)
    good = b"".join(sent(2, epoch=5))
    with pytest.raises(InvalidReplicatedBatch) as raised:
        log.append_replicated(good + bad + placed(batch(b"w"), 3, 5))
    assert raised.value.appended == (2, 2)
    assert bytes_of(log) == good


def test_replicated_append_ignores_an_incomplete_last_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path, VALUES)
    for size in (5, 20, 65):
        whole, cut = sent(2, log.end_offset)
        log.append_replicated(whole + cut[:size])
    assert log.end_offset == 3
    with pytest.raises(InvalidReplicatedBatch):
        log.append_replicated(sent(1, 3)[0][:65])


def test_log_with_offsets_that_the_leader_compacted_is_recovered(tmp_path: Path) -> None:
    known: dict[str, Any] = {}
    log = open_log(
        tmp_path, VALUES,
        shared={"checkpoint": lambda *_: known.update(gaps_to=log.gaps_to)},
    )  # fmt: skip
    batches = [placed(batch(b"%d" % i), at) for i, at in enumerate((3, 4, 9, 3 << 30, 4 << 30))]
    log.append_replicated(b"".join(batches))
    content = bytes_of(log)
    log.release()
    for same_boot in (True, False):
        again = open_log(tmp_path, VALUES, cleaner_offset=0, same_boot=same_boot, **known)
        assert (again.failure, again.end_offset) == (None, (4 << 30) + 1)
        assert bytes_of(again) == content
        again.release()
    again = open_log(tmp_path, VALUES, **known)
    assert again.truncate_to(7) == 5
    assert [offset for offset, _ in values_of(again, 3)] == [3, 4]


def test_flush_that_returns_after_a_truncation_does_not_count(tmp_path: Path) -> None:
    log = open_log(tmp_path, VALUES)
    for number in range(4):
        log.append(batch(b"%d" % number), number)
    flush = log.flush_begin()
    assert flush is not None
    log.truncate_to(2)
    log.append(batch(b"other"), 9)
    flush.run(QuickDisk())
    log.flush_end(flush)
    assert (log.durable_offset, log.end_offset, log.is_flushing) == (0, 3, False)
    log.flush()
    assert log.durable_offset == 3
    content = (tmp_path / layout.LEADER_EPOCHS).read_text()
    assert content.split()[2:] == ["0", "0", "1", "1", "9", "2"]


def test_removed_leader_epoch_is_not_known_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path, VALUES)
    log.append_replicated(b"".join([*sent(2, epoch=3), *sent(2, 2, epoch=9)]))
    log.flush()
    log.truncate_to(2)
    log = open_log(tmp_path, VALUES, end=close(log))
    log.append_replicated(sent(1, 2, epoch=8)[0])
    assert log.leader_epochs.epochs == [3, 8]


def test_state_after_a_truncation_is_that_of_the_batches_left(tmp_path: Path) -> None:
    batches: list[bytes] = []
    for number in range(12):
        producer = 7 + number % 2
        for content in (
            transactional(producer, number // 2, b"%d" % number),
            batch(b"other"),
            marker(producer, commit=number % 3 == 0),
        ):
            batches.append(placed(content, len(batches), number // 4))
    for end in range(len(batches)):
        log = open_log(tmp_path / "t-0", VALUES)
        log.append_replicated(b"".join(batches))
        log.active.write_indexes()
        log.truncate_to(end)
        built = open_log(tmp_path / "t-1", VALUES)
        if end:
            built.append_replicated(b"".join(batches[:end]))
        assert state_of(log) == state_of(built)
        for each in (log, built):
            each.release()
            shutil.rmtree(each.directory)


def test_truncation_revokes_segment_grants(tmp_path: Path) -> None:
    clock = ManualClock()
    deletes = DeferredDeletes(clock, QuickDisk())
    log = open_log(tmp_path, VALUES, clock, shared={"deferred_deletes": deletes})
    for number in range(20):
        log.append(batch(b"%d" % number), 0)
    granted = [segment_grants.grant(log, at, 99999, 20) for at in (0, 19)]
    files = [each.segment.file for each in granted if each is not None]
    sizes = [each.segment.size for each in granted if each is not None]
    generation = log.generation
    log.truncate_to(2)
    for number in range(20):
        log.append(batch(b"other %d" % number), 0)
    deletes.remove_due()
    assert log.generation > generation
    assert Path(f"/proc/self/fd/{files[0].fileno()}").stat().st_size < sizes[0]
    assert Path(f"/proc/self/fd/{files[1].fileno()}").stat().st_size == 0


def test_truncation_refused_by_the_checkpoint_removes_nothing(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise KafkaStorageError("full")

    log = open_log(tmp_path, VALUES, shared={"checkpoint": refuse})
    for number in range(9):
        log.append(batch(b"%d" % number), 0)
    log.flush()
    before = values_of(log)
    for truncate, offset in ((log.truncate_to, 8), (log.truncate_fully_and_start_at, 50)):
        with pytest.raises(KafkaStorageError):
            truncate(offset)
        assert values_of(log) == before
    log.append(batch(b"more"), 0)


# -- crashes -----------------------------------------------------------------------------------


def lived(directory: Path, seed: int, steps: int) -> tuple[RecordingDisk, Log]:
    """Run a log's life of truncations; note in the journal what may be found after a crash."""
    disk, chance = RecordingDisk(), random.Random(seed)
    clock = ManualClock()
    log = None

    def checkpoint(*_: object) -> None:
        if log is not None:
            known = (log.durable_offset, log.log_start_offset, log.gaps_to)
            disk.note("known", known)

    log = open_log(directory, VALUES, clock, disk, shared={"checkpoint": checkpoint})
    batches: list[bytes] = []

    def note(may_be_empty: bool = False) -> None:
        disk.note("batches", (list(batches), may_be_empty))

    for step in range(steps):
        run: list[bytes] = []
        for number in range(chance.randint(1, 6)):
            base = log.end_offset if not run else last_offset(run[-1]) + 1
            # Batches of one size: after a cut, old ones would follow new ones without a gap.
            content = batch(b"value %04d" % (1000 * step + number) + b"x" * 3000 * (seed % 2))
            run.append(placed(content, base, step // 5))
        batches += run
        note()
        log.append_replicated(b"".join(run))
        log.write_index_page()
        if step % 3 == 2:
            flush = log.flush_begin()
            if flush is not None:
                flush.run(disk)
                log.flush_end(flush)
            checkpoint()
        if step % 4 == 3:
            at = chance.randint(max(0, log.end_offset - 12), log.end_offset)
            kept = [each for each in batches if last_offset(each) < at]
            if log.truncate_to(at) == at:
                batches = kept
            note()
        if step % 13 == 12:
            note(may_be_empty=True)
            log.truncate_fully_and_start_at(log.end_offset + chance.randint(-3, 3))
            batches = []
            note()
        clock.advance(2000)
        log.deferred_deletes.remove_due()
    return disk, log


def check(target: Path, notes: dict[str, Any], kind: str) -> None:
    recovery_point, start, gaps_to = notes.get("known", (0, 0, 0))
    batches, may_be_empty = notes.get("batches", ([], False))
    killed = kind.startswith("killed")
    log = open_log(
        target, VALUES, recovery_point=recovery_point, log_start_offset=start, gaps_to=gaps_to,
        same_boot=killed,
    )  # fmt: skip
    assert log.failure is None, (kind, log.failure)
    assert log.end_offset >= recovery_point, kind
    found = bytes_of(log)
    expected = b"".join(batches)
    assert expected.startswith(found) or (may_be_empty and not found), kind
    epochs = [int.from_bytes(each[12:16], "big") for each in batches]
    assert set(log.leader_epochs.epochs) <= set(epochs), kind
    first = bytes_of(log)
    log.release()
    again = open_log(
        target, VALUES, recovery_point=recovery_point, log_start_offset=start, gaps_to=gaps_to
    )
    assert (again.failure, bytes_of(again)) == (None, first), kind
    again.release()


def enumerate_images(tmp_path: Path, seed: int, steps: int, every: int) -> int:
    source, target = tmp_path / "t-0", tmp_path / "crashed-0"
    disk, log = lived(source, seed, steps)
    log.release()
    chance = random.Random(seed)
    count = 0
    for point in range(1, len(disk.journal) + 1, every):
        crash = Crash(disk.journal, point)
        for kind, image in crash.images(chance):
            target.mkdir()
            crash.restore(image, source, target)
            check(target, crash.notes, f"{kind} after {point}: {disk.journal[point - 1][:2]}")
            shutil.rmtree(target)
            count += 1
    return count


@pytest.mark.parametrize("seed", [0, 1])
def test_truncated_log_is_recovered_after_a_crash_at_sampled_writes(
    tmp_path: Path, seed: int
) -> None:
    assert enumerate_images(tmp_path, seed, steps=16, every=4) > 100


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(20))
def test_truncated_log_is_recovered_after_a_crash_at_every_write(tmp_path: Path, seed: int) -> None:
    assert enumerate_images(tmp_path, seed, steps=40 + seed, every=1) > 1000


@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_truncation_survives_the_failure_of_each_disk_call(
    tmp_path: Path, code: int, sticky: bool
) -> None:
    directory = tmp_path / "t-0"
    for fail_at in range(1, 1000):
        old = [placed(batch(b"old %02d" % i), i, i // 8) for i in range(24)]
        new = [placed(batch(b"new %02d" % i), i, 5) for i in range(9, 20)]
        disk = FaultyDisk(fail_at, code, sticky=sticky, torn=True)
        disk.armed = False
        log = open_log(directory, VALUES, disk=disk)
        log.append_replicated(b"".join(old))
        log.flush()
        disk.armed = True
        allowed = [b"".join(old)]
        try:
            log.truncate_to(9)
            allowed = [b"".join(old[:9])]
            durable, start = log.durable_offset, 0
            allowed = [b"".join(old[:9] + new)]
            log.append_replicated(b"".join(new))
            start = 30
            allowed.append(b"")
            log.truncate_fully_and_start_at(30)
            allowed = [b""]
        except (DiskFailed, OSError, KafkaStorageError):
            assert disk.failed
        disk.armed = False
        if log.failure is None:
            assert any(whole.startswith(bytes_of(log)) for whole in allowed)
            at = log.end_offset
            log.append_replicated(placed(batch(b"after"), at, 6))
            assert log.end_offset == at + 1
            log.truncate_to(at)
        durable, start = log.durable_offset, log.log_start_offset
        log.release()
        again = open_log(
            directory, VALUES, recovery_point=durable, log_start_offset=start, same_boot=True
        )
        assert again.failure is None
        assert any(whole.startswith(bytes_of(again)) for whole in allowed)
        again.release()
        shutil.rmtree(directory)
        if not disk.failed:
            break
    else:
        pytest.fail("the sweep did not come to its end")


# -- against a model ---------------------------------------------------------------------------


class Truncations(RuleBasedStateMachine):
    """A log beside the list of its batches."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.batches: list[bytes] = []
        self.start = self.count = self.epoch = 0
        self.opened({})

    def opened(self, known: dict[str, Any]) -> None:
        self.log = open_log(
            self.root / "t-0", VALUES, shared={"checkpoint": lambda *_: self.checkpoint()}, **known
        )
        self.checkpoint()

    def checkpoint(self) -> None:
        self.known = {
            "recovery_point": self.log.durable_offset if hasattr(self, "log") else 0,
            "log_start_offset": self.log.log_start_offset,
            "gaps_to": self.log.gaps_to,
        }

    def new(self, base_offset: int, kind: int) -> bytes:
        self.count += 1
        producer = 7 + kind % 2
        known = self.log.producers.get(producer)
        sequence = known.batches[-1].last_sequence + 1 if known and known.batches else 0
        is_open = producer in self.log.producers.transactions
        value = b"value %d" % self.count
        if kind < 2:
            content = transactional(producer, sequence, value)
        elif kind < 4 and is_open:
            content = marker(producer, commit=self.count % 3 == 0)
        elif kind < 6 and not is_open:
            content = produced(sequence, value, value, producer_id=producer)
        else:
            content = batch(value, value)
        return placed(content, base_offset, self.epoch)

    @rule(kinds=st.lists(st.integers(0, 9), min_size=1, max_size=4), raised=st.integers(0, 1))
    def append(self, kinds: list[int], raised: int) -> None:
        self.epoch += raised
        for kind in kinds:
            content = self.new(self.log.end_offset, kind)
            self.log.append(content, self.epoch, from_client=False, guard=_guard(self.log, content))
            self.batches.append(content)

    @rule(
        values=st.lists(st.integers(1, 3), min_size=1, max_size=9),
        gap=st.sampled_from([0, 0, 0, 1, 5]),
        raised=st.integers(0, 1),
        kind=st.integers(0, 9),
    )
    def append_replicated(self, values: list[int], gap: int, raised: int, kind: int) -> None:
        self.epoch += raised
        run = [self.new(self.log.end_offset + gap, kind)]
        for number in values:
            self.count += 1
            content = batch(*[b"v %d" % self.count] * number)
            run.append(placed(content, last_offset(run[-1]) + 1, self.epoch))
        self.log.append_replicated(b"".join(run))
        self.batches += run

    @rule(share=st.floats(0, 1))
    def truncate_to(self, share: float) -> None:
        start = self.log.segments[0].base_offset
        offset = start + round(share * (self.log.end_offset - start))
        end = self.log.truncate_to(offset)
        assert end <= offset
        self.batches = [each for each in self.batches if last_offset(each) < offset]
        self.epoch = max(self.epoch, self.log.leader_epochs.latest)

    @precondition(lambda self: self.count % 4 == 3)
    @rule(by=st.integers(-3, 9))
    def truncate_fully(self, by: int) -> None:
        offset = max(0, self.log.end_offset + by)
        self.log.truncate_fully_and_start_at(offset)
        assert self.log.end_offset == self.log.log_start_offset == self.log.durable_offset == offset
        self.batches = []

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.log.take_snapshot_if_due()
        self.checkpoint()

    @rule()
    def close_and_open(self) -> None:
        self.checkpoint()
        start = self.log.log_start_offset
        gaps_to = self.log.gaps_to
        self.opened({"end": close(self.log), "log_start_offset": start, "gaps_to": gaps_to})

    @rule(same_boot=st.booleans())
    def kill_and_open(self, same_boot: bool) -> None:
        self.log.release()
        self.opened({**self.known, "same_boot": same_boot})

    @invariant()
    def has_the_batches(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert log.failure is None
        assert bytes_of(log) == b"".join(self.batches)
        if self.batches:
            assert log.end_offset == last_offset(self.batches[-1]) + 1
        found = state_of(log)
        first = log.segments[0].base_offset
        rebuilt = open_log(self.root / "rebuilt-0", VALUES, log_start_offset=first)
        if self.batches:
            rebuilt.append_replicated(b"".join(self.batches))
            assert state_of(rebuilt) == found
        else:
            assert not found["aborted"] and not found["epochs"][0] and not found["producers"]
        rebuilt.release()
        shutil.rmtree(self.root / "rebuilt-0")

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.release()
            shutil.rmtree(self.root)


def _guard(log: Log, content: bytes) -> Any:
    _, _, _, _, _, attributes, _, _, _, producer_id, epoch, sequence, _ = header(content)
    if attributes & 0x30 != 0x10:
        return None
    return log.begin_verification(producer_id, epoch, sequence, is_implicit=False)


Truncations.TestCase.settings = hypothesis_settings(
    max_examples=20, stateful_step_count=25, deadline=None
)
test_log_agrees_with_its_batches_after_any_history = Truncations.TestCase


def test_truncation_to_the_end_removes_an_epoch_without_records(tmp_path):
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"a"), 3)
    log.leader_epochs.assign(5, log.end_offset)
    assert log.truncate_to(1) == 1
    assert log.leader_epochs.epochs == [3]
