"""Less common requests of other clients to a broker of several nodes: transactions, old modes."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from confluent_kafka import KafkaException, Producer

from kafkalite.testing import Broker

WAIT_S = 30


@pytest.fixture(scope="module")
def bootstrap():
    with Broker(workers=2, config={"num.partitions": "6"}) as broker:
        yield broker.bootstrap


def test_init_transactions_fails_before_its_timeout(bootstrap):
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})
    with pytest.raises(KafkaException, match="Transactions are not supported") as raised:
        producer.init_transactions(WAIT_S)
    assert raised.value.args[0].fatal()


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
