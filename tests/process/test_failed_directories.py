"""A log directory whose disk fails while the broker runs takes down its replicas and nothing else.

Each directory is a file system of its own, on a loop device.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from kafkalite import Consumer, Producer
from kafkalite.process.log_file import LOG_FILE
from kafkalite.testing import Broker
from tests.process.disks import Disk
from tests.process.test_log_directories import kafkalite
from tests.process.waiting import until

PARTITIONS = 6
WRITTEN_MIN = 200


@pytest.fixture
def disks(tmp_path: Path):
    made: list[Disk] = []
    try:
        for name in ("data", "data-2", "data-3"):
            made.append(Disk(tmp_path / "broker" / name))
    except OSError as error:
        for disk in made:
            disk.close()
        pytest.skip(f"file systems that fail need root and loop devices: {error}")
    yield made
    for disk in made:
        disk.close()


@pytest.fixture
def broker(disks, request):
    """Yield a broker with three workers, each of which keeps its logs on another disk."""
    broker = Broker(workers=3, durability=request.param, log_dirs=3)
    broker.directory = disks[0].path.parent
    with broker:
        yield broker


class Writer:
    """Writes to all partitions until it is stopped, and knows what was acknowledged."""

    def __init__(self, broker, topic):
        self.acknowledged = set()
        self.failures = []
        self.running = True
        self.thread = threading.Thread(target=self.write, args=(broker.bootstrap, topic))
        self.thread.start()

    def write(self, bootstrap, topic):
        with Producer(bootstrap, linger_ms=2) as producer:
            number = 0
            while self.running:
                futures = []
                for _ in range(PARTITIONS):
                    value = b"%d" % number
                    futures.append((value, producer.send(topic, value, partition=number % 6)))
                    number += 1
                for value, future in futures:
                    try:
                        future.result()
                        self.acknowledged.add(value)
                    except Exception as error:
                        self.failures.append(error)

    def wait_for_more(self):
        goal = len(self.acknowledged) + WRITTEN_MIN
        until(lambda: len(self.acknowledged) >= goal)

    def stop(self):
        self.running = False
        self.thread.join()


def values(broker, topic):
    found = []
    with Consumer(broker.bootstrap, topics=topic) as consumer:
        while consumer.lag():
            found += [message.value for message in consumer.consume(5000, timeout=1)]
    return found


def partitions(broker, topic):
    described = kafkalite(broker, "topic", "describe", topic, "--json", of="-b")
    return json.loads(described)[0]["partitions"]


def pids(broker):
    return {node["id"]: node["pid"] for node in broker.status["nodes"]}


@pytest.mark.parametrize(
    ("broker", "failure", "number"),
    [
        ("fsync", Disk.lose_writes, 1),
        ("fsync", Disk.become_read_only, 2),
        ("os", Disk.become_read_only, 1),
    ],
    indirect=["broker"],
)
def test_disk_of_a_worker_fails_and_the_others_go_on(broker, disks, number, failure):
    topic = broker.topic(PARTITIONS, {"min.insync.replicas": 2}, replication_factor=3)
    before = pids(broker)
    writer = Writer(broker, topic)
    writer.wait_for_more()
    failure(disks[number])
    failed = number + 1
    until(lambda: all(failed not in found["isr"] for found in partitions(broker, topic)))
    writer.wait_for_more()
    writer.stop()
    assert all(found["leader"] not in (failed, None) for found in partitions(broker, topic))
    now = pids(broker)
    assert {n: pid for n, pid in now.items() if n != failed} == {
        n: pid for n, pid in before.items() if n != failed
    }
    assert writer.failures == []
    found = values(broker, topic)
    assert len(found) == len({*found}) and {*found} >= writer.acknowledged
    # Without the directory, the node begins anew in another one.
    broker.kill()
    disks[number].close()
    broker.start(without_dirs=[disks[number].path])
    until(lambda: all(len(found["isr"]) == 3 for found in partitions(broker, topic)))
    assert {*values(broker, topic)} >= writer.acknowledged


@pytest.mark.parametrize("broker", ["fsync"], indirect=True)
def test_disk_of_the_data_directory_fails_and_a_copy_takes_its_place(broker, disks):
    topic = broker.topic(PARTITIONS, {"min.insync.replicas": 2}, replication_factor=3)
    writer = Writer(broker, topic)
    writer.wait_for_more()
    disks[0].become_read_only()
    broker.kill()
    disks[0].close()
    broker.start(without_dirs=[disks[0].path])
    assert broker.data in (disks[1].path, disks[2].path)
    until(lambda: all(len(found["isr"]) == 3 for found in partitions(broker, topic)))
    writer.wait_for_more()
    writer.stop()
    found = values(broker, topic)
    assert len(found) == len({*found}) and {*found} >= writer.acknowledged


@pytest.mark.parametrize("broker", ["os"], indirect=True)
def test_worker_waits_for_its_directory_that_was_unmounted(broker, disks):
    topic = broker.topic(PARTITIONS, {"min.insync.replicas": 2}, replication_factor=3)
    alone = broker.topic(PARTITIONS, replication_factor=1)
    with Producer(broker.bootstrap) as producer:
        for number in range(PARTITIONS):
            producer.send(alone, b"%d" % number, partition=number)
    before = pids(broker)
    writer = Writer(broker, topic)
    writer.wait_for_more()
    disks[2].unmount()
    broker.topic(1, replication_factor=3)  # its third log cannot be made
    until(lambda: 3 not in pids(broker))
    until(lambda: all(3 not in found["isr"] for found in partitions(broker, topic)))
    writer.wait_for_more()
    writer.stop()
    assert pids(broker) == {n: pid for n, pid in before.items() if n != 3}
    assert [*disks[2].path.iterdir()] == []
    # A partition whose only replica is there is not made again without its records.
    assert {p["leader"] for p in partitions(broker, alone)} == {1, 2, None}
    disks[2].mount()
    until(lambda: all(3 in found["isr"] for found in partitions(broker, topic)))
    assert {*values(broker, topic)} >= writer.acknowledged
    assert len(values(broker, alone)) == PARTITIONS


@pytest.mark.parametrize("broker", ["os"], indirect=True)
def test_decisions_survive_an_unmounted_data_directory(broker, disks):
    topic = broker.topic(PARTITIONS, {"min.insync.replicas": 2}, replication_factor=3)
    writer = Writer(broker, topic)
    writer.wait_for_more()
    writer.stop()
    disks[0].unmount()
    os.kill(broker.nodes[0]["pid"], signal.SIGKILL)
    log = disks[0].path / LOG_FILE
    until(lambda: log.exists() and "Node 0 cannot be forked" in log.read_text())
    broker.kill()
    assert not (disks[0].path / "__cluster_metadata-0").exists()
    disks[0].close()
    broker.start(without_dirs=[disks[0].path])
    until(lambda: all(len(found["isr"]) == 3 for found in partitions(broker, topic)))
    assert {*values(broker, topic)} >= writer.acknowledged


@pytest.mark.parametrize("broker", ["os"], indirect=True)
def test_full_directory_stops_its_replicas_until_there_is_room(broker, disks):
    topic = broker.topic(PARTITIONS, {"min.insync.replicas": 2}, replication_factor=3)
    before = pids(broker)
    writer = Writer(broker, topic)
    writer.wait_for_more()
    fill = disks[1].path / "fill"
    with contextlib.suppress(OSError), fill.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    # Decisions do not wait for the copy of the metadata log that has no room.
    other = broker.topic(PARTITIONS, replication_factor=3)
    led = next(p["partition"] for p in partitions(broker, topic) if p["leader"] != 2)
    with Producer(broker.bootstrap, acks=1) as producer:
        producer.send(topic, b"led elsewhere", partition=led).result()
    fill.unlink()
    writer.wait_for_more()
    writer.stop()
    assert pids(broker) == before
    for each in (topic, other):
        until(lambda each=each: all(len(p["isr"]) == 3 for p in partitions(broker, each)))
    found = values(broker, topic)
    assert len(found) == len({*found}) and {*found} >= writer.acknowledged
