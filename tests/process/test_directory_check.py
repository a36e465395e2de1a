"""A data directory with a missing or duplicate part: refused before any file in it is changed."""

import shutil
import subprocess
import sys

import pytest

from kafkalite.testing import Broker

START_S_MAX = 60


@pytest.fixture
def stopped():
    """Yield a stopped broker with records at both of its workers."""
    with Broker(workers=2) as broker:
        topic = broker.topic(2)
        broker.stop()
        yield broker, topic


def listing(directory):
    return sorted(
        path.relative_to(directory)
        for path in directory.rglob("*")
        if path.name not in (".lock", "kafkalite.log")
    )


def refusal(broker, *flags):
    """Return the error of a start on this directory, which must leave all files unchanged."""
    before = listing(broker.data)
    command = [sys.executable, "-m", "kafkalite", "start", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--data", broker.data, *flags],
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert listing(broker.data) == before
    return done.stderr


def test_partition_copied_to_another_node_is_refused(stopped):
    broker, topic = stopped
    original = broker.data / "nodes" / "1" / f"{topic}-0"
    (original / f"{0:020d}.log").write_bytes(b"records")
    copy = broker.data / "nodes" / "2" / original.name
    shutil.copytree(original, copy)
    for flags in ((), ("--workers", "0"), ()):
        said = refusal(broker, *flags)
        assert str(original) in said and str(copy) in said and "exists twice" in said


def test_missing_node_directory_is_refused_until_restored(stopped):
    broker, topic = stopped
    part = broker.data / "nodes" / "2"
    part.rename(broker.directory / "away")
    for _ in range(2):
        assert f"{part} is missing" in refusal(broker)
    (broker.directory / "away").rename(part)
    broker.start()
    assert broker.nodes[2]["role"] == "worker"
    assert (part / f"{topic}-1").is_dir()
