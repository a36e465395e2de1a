"""Less common requests of other clients to a broker of several nodes: old modes."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kafkalite.testing import Broker

WAIT_S = 30


@pytest.fixture(scope="module")
def bootstrap():
    with Broker(workers=2, config={"num.partitions": "6"}) as broker:
        yield broker.bootstrap


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_with_old_version_fallback_reads_every_partition(bootstrap):
    # kcat still asks for versions; otherwise its ListOffsets 0 would be closed, as in Kafka 4.
    values = [f"{number}" for number in range(100)]
    client = ["kcat", "-b", bootstrap, "-t", "old", "-X", "broker.version.fallback=0.9.0"]
    subprocess.run([*client, "-P"], input="\n".join(values), text=True, check=True, timeout=WAIT_S)
    read = subprocess.run(
        [*client, "-C", "-q", "-e", "-o", "beginning"],
        capture_output=True, text=True, check=True, timeout=WAIT_S,
    )  # fmt: skip
    assert sorted(read.stdout.split()) == sorted(values)
    assert read.stderr == ""
