"""The recovery checkpoint before a truncation: no version that a start may read is greater."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.storage.files import layout
from tests.simulation.disk import FaultyDisk, QuickDisk
from tests.storage.factories import TOPIC_ID, batch, manager, settings

VALUES = {keys.DURABILITY: "fsync", keys.SEGMENT_BYTES: 500, keys.INDEX_INTERVAL_BYTES: 100}


def test_recovery_point_is_checkpointed_before_records_are_removed(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.create("t", TOPIC_ID, 0, settings(VALUES))
    for number in range(9):
        log.append(batch(b"%d" % number), 0)
    log.flush()
    logs.checkpoint()
    log.append(batch(b"9"), 0)
    log.flush()
    logs._housekeeping._set_point(log)
    late = logs._points.begin_write()
    assert late is not None
    log.truncate_to(4)
    late.run(QuickDisk())
    logs._points.written(late)
    assert late.is_superseded
    for name in (layout.RECOVERY_CHECKPOINT, layout.RECOVERY_CHECKPOINT + ".previous"):
        assert '"t-0":[4,0' in (tmp_path / name).read_text()


def versions(data: Path) -> tuple[bytes, bytes]:
    path = data / layout.RECOVERY_CHECKPOINT
    return path.read_bytes(), path.with_name(path.name + ".previous").read_bytes()


def test_truncation_above_every_checkpointed_point_writes_no_checkpoint(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.create("t", TOPIC_ID, 0, settings(VALUES))
    for number in range(4):
        log.append(batch(b"%d" % number), 0)
        log.flush()
        logs.checkpoint()
    before = versions(tmp_path)
    log.append(batch(b"4"), 0)
    log.flush()
    log.truncate_to(4)
    assert versions(tmp_path) == before
    assert log.durable_offset == 4


@pytest.mark.parametrize("state", ["current", "previous", "in flight", "refused"])
def test_truncation_below_a_point_in_any_version_writes_the_checkpoint(
    tmp_path: Path, state: str
) -> None:
    disk = FaultyDisk(1, errno.ENOSPC, sticky=True, torn=True)
    disk.armed = False
    logs = manager(tmp_path, disk=disk)
    log = logs.create("t", TOPIC_ID, 0, settings(VALUES))
    logs.checkpoint()
    for number in range(9):
        log.append(batch(b"%d" % number), 0)
    log.flush()
    logs._housekeeping._set_point(log)
    write = logs._points.begin_write()
    assert write is not None
    if state == "refused":
        disk.armed = True
    if state != "in flight":
        write.run(disk)
        logs._points.written(write)
    disk.armed = False
    if state == "previous":
        point = [2, 0, *logs._points._points["t-0"][2:]]
        logs._points.set_point("t-0", point)
        lower = logs._points.begin_write()
        assert lower is not None
        lower.run(disk)
        logs._points.written(lower)
    log.truncate_to(4)
    if state == "in flight":
        write.run(disk)
        logs._points.written(write)
    for version in versions(tmp_path):
        assert b'"t-0":[4,0' in version or b'"t-0":[2,0' in version
