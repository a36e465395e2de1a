"""Small state files: their checksum, and the previous version that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalite.storage.files import checkpoint
from kafkalite.storage.files.disk import DISK

DAMAGED = b"kafkalite 1 0000000000000000\n{}\n"


def test_write_keeps_the_previous_version(tmp_path: Path) -> None:
    path = tmp_path / "points"
    for content in ({"a": 1}, {"a": 2}):
        checkpoint.write(DISK, path, content)
    assert checkpoint.read(path) == {"a": 2}
    path.write_bytes(DAMAGED)
    assert checkpoint.read(path) == {"a": 1}


@pytest.mark.parametrize("damaged", [DAMAGED, b"", b"noise"])
def test_write_does_not_replace_a_valid_version_by_a_damaged_file(
    tmp_path: Path, damaged: bytes
) -> None:
    path = tmp_path / "points"
    for content in ({"a": 1}, {"a": 2}):
        checkpoint.write(DISK, path, content)
    path.write_bytes(damaged)
    checkpoint.write(DISK, path, {"a": 3})
    path.write_bytes(damaged)
    assert checkpoint.read(path) == {"a": 1}


def test_file_without_a_valid_version_reads_as_none(tmp_path: Path) -> None:
    path = tmp_path / "points"
    assert checkpoint.read(path) is None
    path.write_bytes(DAMAGED)
    assert checkpoint.read(path) is None
