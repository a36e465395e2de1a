"""A node applies its metadata log to its directory, and damage of one log affects no other.

A real node in this process, with a clock that does not advance; crash leftovers are made by hand.
"""

from __future__ import annotations

import gc
import itertools
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.broker.replica.partition import Partition
from kafkalite.broker.replica.partition_flushes import flush_rule
from kafkalite.broker.replica.reconciler import CREATE_RETRY_MS
from kafkalite.clock import SystemClock
from kafkalite.config.settings import Settings
from kafkalite.errors import KafkaStorageError, UnknownTopicId, UnknownTopicOrPartition
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from kafkalite.records.batch import Record, build
from tests.handlers.conftest import InProcess


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InProcess]:
    made = InProcess(tmp_path / "data")
    made.create("a")
    made.append("a", [1, 2, 3])
    yield made
    made.close()


def led(node: InProcess, topic: str = "a", partition: int = 0) -> Partition:
    return node.node.replicas.leader(topic, partition)


def delete(node: InProcess, topic: str) -> None:
    node.request(DELETE_TOPICS, 1, topic_names=[topic], timeout_ms=1_000)


def directories(node: InProcess, pattern: str) -> list[str]:
    return sorted(path.name for path in node.directory.glob(pattern))


def test_partition_keeps_its_records_across_a_restart(node):
    before = led(node).topic_id
    node.restart()
    assert (led(node).topic_id, led(node).high_watermark) == (before, 3)


def test_directory_of_an_unknown_topic_is_kept_as_stray(node):
    node.close()
    shutil.copytree(node.directory / "a-0", node.directory / "nobody-0")
    node.open()
    with pytest.raises(UnknownTopicOrPartition):
        led(node, "nobody")
    (kept,) = directories(node, "nobody*")
    assert kept.endswith("-stray")
    assert (node.directory / kept / f"{0:020d}.log").stat().st_size > 0


def test_log_of_a_deleted_topic_is_not_used_for_the_new_one(node):
    node.close()
    shutil.copytree(node.directory / "a-0", node.directory / "old")
    node.open()
    delete(node, "a")
    node.create("a")
    node.close()
    shutil.rmtree(node.directory / "a-0")
    (node.directory / "old").rename(node.directory / "a-0")
    node.open()
    assert led(node).log.end_offset == 0
    assert all(name == "a-0" or name.endswith("-delete") for name in directories(node, "a*"))


def test_missing_log_is_not_recreated_and_serves_when_restored(node):
    end_offset = led(node).log.end_offset
    node.close()
    (node.directory / "a-0").rename(node.directory.with_name("aside"))
    node.open()
    with pytest.raises(KafkaStorageError, match="restore it from a copy, or delete the topic"):
        led(node)
    assert not (node.directory / "a-0").exists()
    node.directory.with_name("aside").rename(node.directory / "a-0")
    node.clock.advance(CREATE_RETRY_MS)
    node.until(lambda: node.node.replicas.of_topic(node.node.image.topics["a"].topic_id))
    assert led(node).high_watermark == end_offset > 0


def test_log_damaged_below_its_recovery_point_is_not_served(node):
    node.create("b")
    node.append("b", [1])
    node.close()
    (node.directory / "clean-shutdown").unlink()
    segment = node.directory / "a-0" / f"{0:020d}.log"
    damaged = segment.read_bytes()[:-1]
    segment.write_bytes(damaged)
    node.open()
    with pytest.raises(KafkaStorageError):
        led(node).append(build([Record(timestamp=1, value=b"x")]))
    with pytest.raises(KafkaStorageError):
        led(node).read(0, 1 << 20, 0, whole_first=True)
    assert segment.read_bytes() == damaged
    node.append("b", [2])
    assert led(node, "b").high_watermark == 2


def test_deleted_topic_is_unknown_by_name_and_by_id(node):
    topic_id = led(node).topic_id
    delete(node, "a")
    with pytest.raises(UnknownTopicOrPartition):
        led(node)
    with pytest.raises(UnknownTopicId):
        node.node.replicas.leader(topic_id, 0)


def test_failed_log_creation_is_the_error_of_its_partition(node, monkeypatch):
    def full(*_: object) -> None:
        raise KafkaStorageError("no room")

    monkeypatch.setattr(node.node.logs, "create", full)
    topic_id = node.create("b")
    for topic in ("b", topic_id):
        with pytest.raises(KafkaStorageError, match="no room"):
            node.node.replicas.leader(topic, 0)
    delete(node, "b")
    with pytest.raises(UnknownTopicOrPartition):
        led(node, "b")


# -- flushes -------------------------------------------------------------------------------------


def rule(broker: dict[str, str] | None = None, **topic: str):
    overrides = {name.replace("_", "."): value for name, value in topic.items()}
    return flush_rule(Settings.broker(broker or {}).for_topic(overrides))


def test_durability_fsync_and_os_have_no_flush_interval():
    assert rule(durability="fsync") is None
    assert rule(durability="os") is None


def test_interval_flushes_by_time_and_bytes():
    found = rule(durability="interval", flush_ms="50", flush_bytes="1000")
    assert (found.ms_max, found.bytes_max) == (50, 1000)


@pytest.mark.parametrize(
    ("broker", "topic"),
    [({}, {"flush_messages": "10"}), ({"log.flush.interval.messages": "10"}, {})],
)
def test_durability_os_applies_the_flush_keys_of_kafka(broker, topic):
    found = rule(broker, durability="os", **topic)
    assert found.messages_max == 10
    assert found.ms_max > 10**15


def test_durability_interval_flushes_after_flush_ms(tmp_path):
    settings = {"durability": "interval", "log.flush.interval.ms": "200"}
    node = InProcess(tmp_path / "data", **settings)
    node.create("a")
    node.append("a", [1])
    node.reactor.tick(0)
    node.clock.advance(199)
    node.reactor.tick(0)
    assert led(node).log.durable_offset == 0
    node.clock.advance(1)
    node.until(lambda: led(node).log.durable_offset == 1)
    node.close()


def test_durability_interval_flushes_after_flush_bytes(tmp_path):
    node = InProcess(tmp_path / "data", durability="interval", **{"flush.bytes": "10"})
    node.create("a")
    node.append("a", [1])
    node.until(lambda: led(node).log.durable_offset == 1)
    node.close()


def test_durability_interval_flushes_again_after_appends_in_a_flush(tmp_path):
    node = InProcess(tmp_path / "data", durability="interval", **{"flush.bytes": "10"})
    node.create("a")
    for timestamp in (1, 2):
        node.append("a", [timestamp])
        node.node.replicas.settle()
    assert led(node).log.durable_offset == 0, "the first flush is under way"
    node.until(lambda: led(node).log.durable_offset == 2)
    node.close()


def test_node_reserves_descriptors_for_the_files_of_led_partitions(node):
    node.create("many", 20)
    node.reactor.tick(0)
    assert node.reactor.files_reserved == 3 * node.node.replicas.led_count >= 60
    delete(node, "many")
    node.until(lambda: node.reactor.files_reserved == 3 * node.node.replicas.led_count < 60)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Allow descriptors for some twenty more files than are open, and for temporary ones."""
    gc.collect()  # garbage of other tests would release its descriptors meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = itertools.islice((number for number in itertools.count() if number not in used), 64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_node_survives_more_partitions_than_descriptors(tmp_path, few_descriptors, durability):
    # The machine's clock: a flush that found no descriptor is tried again after a second.
    node = InProcess(tmp_path / "data", SystemClock(), durability=durability)
    node.create("many", 60)
    written = []
    for index in range(60):
        try:
            batch = build([Record(timestamp=1, value=b"v")])
            node.node.replicas.append_own(led(node, "many", index), batch)
        except KafkaStorageError:
            continue
        written.append(index)
        node.reactor.tick(0)
    assert len(written) > 5  # a first flush holds four files and its directory
    if durability == "os":  # the threads that flush release descriptors, at a time of their own
        assert len(written) < 60
    for index in written:
        node.until(lambda index=index: led(node, "many", index).high_watermark == 1)
    node.restart()
    assert [led(node, "many", index).high_watermark for index in written] == [1] * len(written)
    led(node, "many", 59).append(build([Record(timestamp=1, value=b"v")]))
    delete(node, "many")
    assert directories(node, "many-[0-9]*[0-9]") == []
    node.close()
