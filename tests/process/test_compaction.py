"""Compaction on a real broker of processes: the cleaner and a worker are killed in mid-pass."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite.testing import Broker
from tests.process.waiting import is_gone, until

KEYS = 500
SLOW, FAST = "600000", "1e12"
"""Bytes per second: a pass over the topic takes seconds, or none."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    config = {"log.cleaner.backoff.ms": 100_000, "log.cleaner.io.max.bytes.per.second": SLOW}
    with Broker(workers=2, config=config) as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def alter(broker: Broker, kafkalite, *words: str) -> None:
    ended = kafkalite("config", "set", *words, "-b", broker.bootstrap)
    assert ended.returncode == 0, ended.stderr


def create(
    admin: AdminClient, name: str, config: Mapping[str, str] | None = None, factor: int = 1
) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), **(config or {})}
    (future,) = admin.create_topics([NewTopic(name, 1, factor, config=config)]).values()
    future.result()


def write(broker: Broker, topic: str, rounds: int) -> dict[bytes, tuple[int, bytes]]:
    """Write each key so often; return the last offset and value of each.  Every tenth key ends
    with a tombstone."""
    written: dict[bytes, tuple[int, bytes]] = {}

    def delivered(error: object, message: object) -> None:
        assert error is None
        written[message.key()] = (message.offset(), message.value())

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": "zstd", "linger.ms": 5}
    )
    for number in range(rounds):
        for key in range(KEYS):
            is_last = number == rounds - 1
            value = None if is_last and key % 10 == 0 else os.urandom(150)
            producer.produce(topic, key=b"%d" % key, value=value, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(30) == 0
    return written


def read_all(broker: Broker, topic: str) -> list[tuple[bytes, int, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": "g",
            "enable.partition.eof": True, "enable.auto.commit": False,
        }  # fmt: skip
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "the end was not reached"
        if message.error():
            consumer.close()
            return found
        found.append((message.key(), message.offset(), message.value()))


def holds_latest(broker: Broker, topic: str, written: dict[bytes, tuple[int, bytes]]) -> bool:
    """Return whether the topic ends in the last value of each key, at its own offset."""
    return {key: rest for key, *rest in read_all(broker, topic)} == {
        key: [*place] for key, place in written.items()
    }


def cleaner_pid(broker: Broker) -> int:
    lines = (broker.data / "kafkalite.log").read_text()
    return int(re.findall(r"Log cleaner started\. pid=(\d+)", lines)[-1])


def pid_of(broker: Broker, node_id: int) -> int | None:
    """Return the process of a node that is ready."""
    pids = {node["id"]: node["pid"] for node in broker.status["nodes"]}
    return pids.get(node_id)


def leader_of(admin: AdminClient, topic: str) -> int:
    return admin.list_topics(topic).topics[topic].partitions[0].leader


def directory_of(broker: Broker, admin: AdminClient, topic: str) -> Path:
    return broker.data / "nodes" / str(leader_of(admin, topic)) / f"{topic}-0"


def cleaned_files(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.endswith((".cleaned", ".swap"))]


def begin_pass(broker: Broker, admin: AdminClient, topic: str, kafkalite) -> Path:
    """Request a pass, and return the directory once the cleaner writes there."""
    directory = directory_of(broker, admin, topic)
    words = ("topic", "compact", topic, "-b", broker.bootstrap, "--timeout", "0")
    assert "is not compacted yet" in kafkalite(*words).stderr
    until(lambda: cleaned_files(directory))
    return directory


def compact(broker: Broker, topic: str, kafkalite) -> dict:
    ended = kafkalite("topic", "compact", topic, "-b", broker.bootstrap, "--json")
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout)[0])


def test_kills_in_a_pass_lose_no_last_value_and_move_no_offset(broker, admin, kafkalite):
    create(admin, "prices")
    written = write(broker, "prices", 12)
    before = len(read_all(broker, "prices"))
    assert before == 12 * KEYS

    files = directory_of(broker, admin, "prices").glob("*.log")
    size_before = sum(each.stat().st_size for each in files)
    directory = begin_pass(broker, admin, "prices", kafkalite)
    killed = cleaner_pid(broker)
    os.kill(killed, signal.SIGKILL)
    until(lambda: is_gone(killed) and not cleaned_files(directory))
    assert holds_latest(broker, "prices", written)

    # The broker starts another cleaner, which takes the request up again.
    until(lambda: cleaner_pid(broker) != killed)
    until(lambda: cleaned_files(directory))
    leader = leader_of(admin, "prices")
    pid = pid_of(broker, leader)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(broker, leader) not in (None, pid))
    assert holds_latest(broker, "prices", written)

    alter(broker, kafkalite, "cluster", f"log.cleaner.io.max.bytes.per.second={FAST}")
    result = compact(broker, "prices", kafkalite)
    assert result["size_after"] < size_before / 5
    assert (result["clean_offset"], result["dirty_ratio_after"]) == (before, 0.0)
    assert len(read_all(broker, "prices")) == KEYS
    assert holds_latest(broker, "prices", written)


def test_policy_may_change_both_ways(broker, admin, kafkalite):
    alter(broker, kafkalite, "cluster", f"log.cleaner.io.max.bytes.per.second={FAST}")
    # No pass begins by itself, which would remove records before the policy is changed.
    create(admin, "audit", {"min.cleanable.dirty.ratio": "1"})
    written = write(broker, "audit", 3)
    alter(broker, kafkalite, "topic", "audit", "cleanup.policy=delete")
    refused = kafkalite("topic", "compact", "audit", "-b", broker.bootstrap)
    assert refused.returncode == 1 and "audit is not compacted" in refused.stderr
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("audit", value=b"no key")
    assert producer.flush(10) == 0
    assert len(read_all(broker, "audit")) == 3 * KEYS + 1
    alter(broker, kafkalite, "topic", "audit", "cleanup.policy=compact,delete")
    compact(broker, "audit", kafkalite)
    assert holds_latest(broker, "audit", written)
    described = ("topic", "describe", "audit", "-b", broker.bootstrap)
    (partition,) = json.loads(kafkalite(*described, "--json").stdout)[0]["partitions"]
    assert partition["compaction"]["state"] == "none"
    assert partition["compaction"]["last_cleaned_ms"] > 0
    row = kafkalite(*described).stdout.splitlines()[-1]
    assert " s ago" in row and "0 %" in row
    examined = kafkalite("doctor", "--data", broker.data).stdout
    assert re.search(r"ok +compaction +the log cleaner runs", examined)


def test_each_replica_is_compacted_on_its_own():
    with Broker(workers=3, config={"log.cleaner.backoff.ms": 50}) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        create(admin, "prices", {"min.insync.replicas": "2"}, factor=3)
        written = write(running, "prices", 40)
        logs = [running.data / "nodes" / str(node_id) / "prices-0" for node_id in (1, 2, 3)]
        whole = 40 * KEYS * 150
        until(lambda: all(is_smaller(log, whole / 2) for log in logs))
        leader = leader_of(admin, "prices")
        pid = pid_of(running, leader)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: leader_of(admin, "prices") not in (-1, leader))
        assert holds_latest(running, "prices", written)


def is_smaller(log: Path, size: float) -> bool:
    """Return whether a log is smaller; not while the cleaner replaces its segments."""
    try:
        return sum(path.stat().st_size for path in log.glob("*.log")) < size
    except FileNotFoundError:
        return False


def test_dirty_log_is_cleaned_by_itself_also_without_local_clients():
    config = {"native.enable": "false", "log.cleaner.backoff.ms": 50}
    with Broker(workers=0, config=config) as single:
        broker_log = single.data / "kafkalite.log"
        admin = AdminClient({"bootstrap.servers": single.bootstrap})
        single.topic()
        assert "Log cleaner started" not in broker_log.read_text()
        create(admin, "state")
        written = write(single, "state", 16)
        until(lambda: "Log was compacted. partition=state-0" in broker_log.read_text())
        assert len(read_all(single, "state")) < 16 * KEYS
        assert holds_latest(single, "state", written)
        pid = cleaner_pid(single)
    until(lambda: is_gone(pid))


def test_internal_topic_is_compacted_when_it_has_a_closed_segment(kafkalite):
    with Broker(workers=0) as single:
        consumer = Consumer({"bootstrap.servers": single.bootstrap, "group.id": "g"})
        place = TopicPartition(single.topic(), 0)
        for offset in range(50):
            place.offset = offset
            consumer.commit(offsets=[place], asynchronous=False)
        assert "Log cleaner started" not in (single.data / "kafkalite.log").read_text()
        compact(single, "__consumer_offsets", kafkalite)
        logged = (single.data / "kafkalite.log").read_text()
        assert re.search(r"compacted\. partition=__consumer_offsets-0 .* records_read=50 ", logged)
        assert consumer.committed([place], timeout=30)[0].offset == 49
        consumer.close()


def test_disabled_cleaner_is_not_started(kafkalite):
    with Broker(workers=0, config={"log.cleaner.enable": "false"}) as single:
        create(AdminClient({"bootstrap.servers": single.bootstrap}), "state")
        refused = kafkalite("topic", "compact", "state", "-b", single.bootstrap)
        assert refused.returncode == 1 and "log.cleaner.enable is false" in refused.stderr
        assert "Log cleaner started" not in (single.data / "kafkalite.log").read_text()
