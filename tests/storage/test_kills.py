"""Repeated kills of a process that appends: each acknowledged batch is in the log exactly once.

The next process begins at the last acknowledged batch, so its first batches are retries of those
the killed process wrote without acknowledging them.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.clock import SystemClock
from kafkalite.config.settings import Settings
from kafkalite.storage.manager.log_directory import LogDirectory
from kafkalite.storage.manager.log_manager import LogManager
from tests.storage.factories import settings, values_of


def life(data: Path, first: int, batches: int) -> dict[int, int]:
    """Append at least `batches` batches in a process that is then killed; return the offset of each
    acknowledged sequence."""
    command = [sys.executable, "-m", "tests.storage.appending", str(data), str(first)]
    acked = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            for _ in range(batches):
                sequence, offset = process.stdout.readline().split()
                acked[int(sequence)] = int(offset)
        finally:
            process.kill()
        rest = process.stdout.read()
    for line in rest.splitlines(keepends=True):
        if line.endswith(b"\n"):
            sequence, offset = line.split()
            acked[int(sequence)] = int(offset)
    return acked


def kill_repeatedly(data: Path, lives: int, seed: int) -> None:
    chance = random.Random(seed)
    acked: dict[int, int] = {}
    for _ in range(lives):
        # Up to five batches may be repeated: the broker remembers five of each producer.
        first = max(0, len(acked) - chance.randrange(5))
        for sequence, offset in life(data, first, chance.randrange(1, 800)).items():
            assert acked.setdefault(sequence, offset) == offset, "a retry was written again"
    logs = LogManager(data, Settings.broker(), SystemClock())
    directory = LogDirectory(data)
    directory.lock()
    logs.open_directory(directory.cluster_id, 0)
    log = logs.load(lambda topic: settings())["t", 0]
    values = values_of(log)
    assert [value for _, value in values] == [b"%d" % number for number in range(len(values))]
    assert all(values[offset] == (offset, b"%d" % number) for number, offset in acked.items())
    logs.close()
    directory.close()


def test_records_acknowledged_by_a_killed_process_exist_once(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, lives=4, seed=1)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(10))
def test_repeatedly_killed_processes_lose_nothing(tmp_path: Path, seed: int) -> None:
    kill_repeatedly(tmp_path, lives=10, seed=seed)
