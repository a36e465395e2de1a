"""Factories for the storage tests: settings, logs and batches."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafkalite.clock import Clock, ManualClock
from kafkalite.config import topic as keys
from kafkalite.config.settings import Settings
from kafkalite.records.batch import Record, batches, build
from kafkalite.records.decode_steps import finish
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.log.timestamps import Search, TimestampOffset, search_timestamp
from kafkalite.storage.manager.log_directory import LogDirectory
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.storage.state.known_state import KnownEnd, KnownLogState
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from tests.simulation.disk import QuickDisk

TOPIC_ID = bytes(range(16))
IDENTITY = TopicIdPartition("t", 0, TOPIC_ID)
NOW = ManualClock().wall_ms()

SMALL = {
    keys.DURABILITY: "os",
    keys.SEGMENT_BYTES: 1000,
    keys.INDEX_INTERVAL_BYTES: 200,
    keys.FILE_DELETE_DELAY_MS: 1000,
}
"""Segments of a few batches, with an index entry for every second or third."""


def settings(values: dict[Any, Any] | None = None) -> Settings:
    """Return settings below their minimums: with small segments ten batches show every case."""
    return Settings.broker().for_topic().replacing({**SMALL, **(values or {})})


def open_log(
    directory: Path,
    values: dict[Any, Any] | None = None,
    clock: Clock | None = None,
    disk: Disk | None = None,
    *,
    shared: dict[str, Any] | None = None,
    **known: Any,
) -> Log:
    """Open a log; `shared` are fields of its LogEnvironment, `known` those of KnownLogState."""
    directory.mkdir(exist_ok=True)
    environment = LogEnvironment.of(directory, clock or ManualClock(), disk or QuickDisk())
    environment = environment._replace(**(shared or {}))
    config = LogConfig.of(settings(values))
    return Log.open(directory, IDENTITY, config, environment, KnownLogState(**known))


def open_below(directory: Path) -> list[str]:
    """Return the files below a directory that this process has open."""
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it since
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in paths if path.startswith(f"{directory}/")]


def close(log: Log) -> KnownEnd | None:
    """Settle, flush and release the log; return its end if it is clean."""
    end = log.finish()
    if end is not None:
        log.flush()
    log.release()
    return end and end._replace(durable_offset=None, is_contiguous=False)


def batch(*values: bytes, timestamp: int = NOW, **how: Any) -> bytes:
    """Return a batch of these values, with timestamps one millisecond apart."""
    return build(
        [Record(timestamp=timestamp + i, value=value) for i, value in enumerate(values)], **how
    )


def produced(sequence: int, *values: bytes, producer_id: int = 7, epoch: int = 0) -> bytes:
    """Return a batch of an idempotent producer."""
    return batch(
        *values or (b"v",), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def searched(search: Search) -> TimestampOffset | None:
    """Return the result of a search by time, opening its batches at once."""
    try:
        steps = next(search)
        while True:
            steps = search.send(finish(steps))
    except StopIteration as end:
        found: TimestampOffset | None = end.value
        return found


def found_since(log: Log, timestamp: int) -> TimestampOffset | None:
    """Return the first record of a log at or after this time."""
    return searched(search_timestamp(log, timestamp))


def records_of(log: Log, offset: int | None = None) -> list[Record]:
    """Return every record from an offset on, read slice by slice as a consumer does."""
    offset = log.log_start_offset if offset is None else offset
    found: list[Record] = []
    while (piece := read(log, offset, 300, log.end_offset)) is not None:
        for whole in batches(piece.read()):
            found += [record for record in whole if record.offset >= offset]
        assert found and found[-1].offset >= offset, "a read did not get on"
        offset = found[-1].offset + 1
    return found


def values_of(log: Log, offset: int | None = None) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records_of(log, offset)]


def manager(
    data: Path,
    clock: Clock | None = None,
    disk: Disk | None = None,
    node_id: int = 0,
    **broker: str,
) -> LogManager:
    """Return a log manager without a required free space.  No other process uses the directory, so
    the lock of the data directory is held only while it is created."""
    disk = disk or QuickDisk()
    directory = LogDirectory(data, QuickDisk())
    directory.lock()
    directory.close()
    found = LogManager(
        data,
        Settings.broker({"storage.min.free.bytes": "0", **broker}),
        clock or ManualClock(),
        disk,
    )
    found.open_directory(directory.cluster_id, node_id)
    return found
