"""Recovery without a reboot: everything that a killed process wrote is still there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import FAILURE_MARK
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.manager.log_manager import LogManager
from tests.storage.factories import TOPIC_ID, batch, manager, open_log, settings, values_of
from tests.storage.nodes import Nodes

COUNT = 6
ONE_SEGMENT = {keys.SEGMENT_BYTES: 1 << 20}


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(partition_transfer, "boot_id", lambda: "the next")


def written(directory: Path, segment_size: int = 1 << 20) -> Log:
    """Return a log of COUNT batches whose process was killed."""
    log = open_log(directory, {keys.SEGMENT_BYTES: segment_size})
    append(log)
    log.release()
    return log


def append(log: Log) -> None:
    for number in range(COUNT):
        log.append(batch(b"value %d" % number), 0)


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def loaded(logs: LogManager) -> Log:
    (log,) = logs.load(lambda topic: settings(ONE_SEGMENT)).values()
    return log


def test_damage_before_whole_batches_quarantines_the_log(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    flip_bit(log.active.path, log.active.size // 2)
    before = log.active.path.read_bytes()
    again = open_log(tmp_path / "t-0", ONE_SEGMENT, same_boot=True)
    assert again.is_quarantined and "valid batches follow" in str(again.failure)
    assert log.active.path.read_bytes() == before
    assert 0 < again.damaged_to <= COUNT


@pytest.mark.parametrize("how", [{}, {"same_boot": True, "drop_cache": True}])
def test_same_damage_is_a_torn_tail_after_a_power_cut(tmp_path: Path, how: dict[str, bool]) -> None:
    log = written(tmp_path / "t-0")
    flip_bit(log.active.path, log.active.size // 2)
    again = open_log(tmp_path / "t-0", ONE_SEGMENT, **how)
    assert again.failure is None and 0 < again.end_offset < COUNT


@pytest.mark.parametrize("zeros", [0, 4096])
def test_incomplete_batch_is_truncated(tmp_path: Path, zeros: int) -> None:
    log = written(tmp_path / "t-0")
    with log.active.path.open("r+b") as file:
        file.truncate(log.active.size - 3)
        file.truncate(log.active.size - 3 + zeros)  # preallocated space
    again = open_log(tmp_path / "t-0", ONE_SEGMENT, same_boot=True)
    assert again.failure is None
    assert [offset for offset, _ in values_of(again)] == list(range(COUNT - 1))


@pytest.mark.parametrize("lost", ["a tail", "a segment"])
def test_gap_before_a_later_segment_quarantines_the_log(tmp_path: Path, lost: str) -> None:
    log = written(tmp_path / "t-0", segment_size=200)
    assert len(log.segments) == 3
    second = log.segments[1]
    if lost == "a tail":
        with second.path.open("r+b") as file:
            file.truncate(second.size - second.size // 2)
    else:
        second.path.unlink()
    names = sorted(path.name for path in (tmp_path / "t-0").glob("*.log"))
    again = open_log(tmp_path / "t-0", {keys.SEGMENT_BYTES: 200}, same_boot=True)
    assert again.is_quarantined
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.log")) == names


def test_quarantined_log_is_not_truncated_after_a_power_cut(
    tmp_path: Path, reboot: Callable[[], None]
) -> None:
    logs = manager(tmp_path)
    logs.load(lambda topic: settings(ONE_SEGMENT))
    log = logs.create("t", TOPIC_ID, 0, settings(ONE_SEGMENT))
    logs.checkpoint()
    append(log)
    path, size = log.active.path, log.active.size
    log.release()
    flip_bit(path, size // 2)
    before = path.read_bytes()
    for _ in range(2):
        logs = manager(tmp_path)
        log = loaded(logs)
        assert log.is_quarantined and path.read_bytes() == before
        logs.checkpoint()
        log.release()
        reboot()


def test_damage_is_a_torn_tail_if_the_checkpoint_is_of_another_boot(
    tmp_path: Path, reboot: Callable[[], None]
) -> None:
    logs = manager(tmp_path)
    logs.load(lambda topic: settings(ONE_SEGMENT))
    log = logs.create("t", TOPIC_ID, 0, settings(ONE_SEGMENT))
    logs.checkpoint()
    append(log)
    log.release()
    flip_bit(log.active.path, log.active.size // 2)
    reboot()
    logs = manager(tmp_path)
    log = loaded(logs)
    assert log.failure is None and log.end_offset < COUNT
    logs.checkpoint()
    assert checkpoint.read(tmp_path / layout.RECOVERY_CHECKPOINT)["boot_id"] == ""
    logs.note_new_epoch(log)
    logs.checkpoint()
    assert checkpoint.read(tmp_path / layout.RECOVERY_CHECKPOINT)["boot_id"] == "the next"
    logs.close()


@pytest.mark.parametrize("opened", ["and renewed", "only", ""])
def test_transfer_marks_same_boot_only_after_the_epoch_renewal(
    tmp_path: Path, reboot: Callable[[], None], opened: str
) -> None:
    nodes = Nodes(tmp_path)
    nodes.settings = settings(ONE_SEGMENT)
    nodes.create(1)
    nodes[1].checkpoint()
    reboot()
    nodes.crash()
    if opened:
        append(nodes.found())
        if opened == "and renewed":
            nodes[1].note_new_epoch(nodes.found())
        nodes.send(2)
    else:  # node 1 transfers it before it opens its logs
        nodes.leader = 2
        assert nodes[1].logs == {}
    left = partition_transfer.read(next(nodes.path(2).glob("*-arrived")))
    assert left is not None and left[1].same_boot is (opened == "and renewed")
    nodes.crash()


def boot_id_of(data: Path) -> str:
    """Return the boot id in a node's checkpoint."""
    return str(checkpoint.read(data / layout.RECOVERY_CHECKPOINT)["boot_id"])


@pytest.mark.parametrize("how", ["killed", "closed", "power cut", "write-back failed"])
def test_log_may_have_lost_its_tail_after_a_power_cut_only(
    tmp_path: Path, reboot: Callable[[], None], how: str
) -> None:
    logs = manager(tmp_path)
    logs.load(lambda topic: settings(ONE_SEGMENT))
    log = logs.create("t", TOPIC_ID, 0, settings(ONE_SEGMENT))
    assert not log.may_have_lost_tail
    append(log)
    if how == "closed":
        logs.close()
    log.release()
    if how != "killed":
        reboot()
    if how == "write-back failed":
        (tmp_path / FAILURE_MARK).touch()
    lost = how not in ("killed", "closed")
    logs = manager(tmp_path)
    log = loaded(logs)
    assert log.may_have_lost_tail is lost
    assert (boot_id_of(tmp_path) == partition_transfer.boot_id()) is not lost
    log.release()


def test_node_killed_before_epoch_renewals_requests_them_again(
    tmp_path: Path, reboot: Callable[[], None]
) -> None:
    logs = manager(tmp_path)
    logs.load(lambda topic: settings(ONE_SEGMENT))
    logs.create("t", TOPIC_ID, 0, settings(ONE_SEGMENT)).release()
    reboot()
    for _ in range(2):
        logs = manager(tmp_path)
        log = loaded(logs)
        assert log.may_have_lost_tail
        logs.checkpoint()
        log.release()
    logs.note_new_epoch(log)
    logs.tick(1 << 40)
    assert boot_id_of(tmp_path) == "the next"
    logs = manager(tmp_path)
    assert not loaded(logs).may_have_lost_tail


@pytest.mark.parametrize("later", ["it goes", "it is left", "the node is killed"])
def test_checkpoint_with_an_unopened_log_has_no_boot_id(
    tmp_path: Path, reboot: Callable[[], None], later: str
) -> None:
    nodes = Nodes(tmp_path)
    nodes.settings = settings(ONE_SEGMENT)
    append(nodes.create(1))
    nodes[1].checkpoint()
    reboot()
    nodes.crash()
    nodes.leader = 2  # of which the node has no confirmation yet
    logs = manager(tmp_path, node_id=1)
    logs.transfer_foreign_logs(nodes.belongs, is_image_current=False)
    assert logs.load(lambda topic: nodes.settings) == {}
    logs.checkpoint()
    assert boot_id_of(nodes.path(1)) == ""
    if later == "it goes":
        logs.set_strays()
        logs.checkpoint()
        assert boot_id_of(nodes.path(1)) == "the next"
        left = partition_transfer.read(next(nodes.path(2).glob("*-arrived")))
        assert left is not None and not left[1].same_boot
    nodes.leader = 1 if later != "it goes" else 2
    if later == "it is left":
        found = logs.open_transferred("t", 0, TOPIC_ID, nodes.settings)
        assert found is not None and found.may_have_lost_tail
        logs.close_log(found)
        logs.checkpoint()
        assert boot_id_of(nodes.path(1)) == ""
    assert nodes.found().may_have_lost_tail
    nodes.crash()
