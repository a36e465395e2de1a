"""FileSlice and OpenFile: lifetime of the descriptor, and files that were cut."""

import gc
import os
from contextlib import suppress

import pytest

from kafkalite.records.file_slice import FileSlice, OpenFile


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def segment(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(range(100)))
    return path


def test_slice_keeps_its_file_open(segment):
    file = OpenFile(segment, os.O_RDONLY)
    descriptor = file.fileno()
    quoted = FileSlice(file, 10, 5)
    del file
    segment.unlink()
    assert quoted.read() == bytes(range(10, 15))
    assert is_open(descriptor)
    del quoted
    assert not is_open(descriptor)


def test_fileno_after_close_raises_assertion_error(segment):
    file = OpenFile(segment, os.O_RDONLY)
    descriptor = file.fileno()
    file.close()
    file.close()
    assert not is_open(descriptor)
    with pytest.raises(AssertionError):
        file.fileno()


def test_descriptor_is_not_inheritable(segment):
    assert not os.get_inheritable(OpenFile(segment, os.O_RDONLY).fileno())


def open_paths():
    """Return what this process has open; another thread may close one of them meanwhile."""
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return paths


def test_open_of_missing_file_raises_and_leaves_no_descriptor(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        OpenFile(tmp_path / "absent", os.O_RDONLY)
    # The traceback holds the file, whose finalizer runs here; an error in it fails the test.
    del raised
    gc.collect()
    assert not [path for path in open_paths() if path.startswith(str(tmp_path))]


def test_slice_of_a_truncated_file_is_short(segment):
    cut = FileSlice(OpenFile(segment, os.O_RDONLY), 90, 50)
    assert (cut.size, len(cut), len(cut.read())) == (50, 50, 10)


def test_slice_of_a_new_file_is_read(tmp_path):
    file = OpenFile(tmp_path / "new", os.O_RDWR | os.O_CREAT)
    os.pwrite(file.fileno(), b"abc", 0)
    assert FileSlice(file, 1, 2).read() == b"bc"
