"""Several log directories: what may be lost, and how nodes and partitions use them."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys

import pytest

from kafkalite import Admin, Consumer, Producer, TopicPartition
from kafkalite.errors import Refusal
from kafkalite.protocol.schemas.topics import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from kafkalite.storage.files import layout
from kafkalite.testing import Broker
from tests.process.waiting import until

COUNT = 300
PARTITIONS = 6


@pytest.fixture
def broker():
    with Broker(workers=3, log_dirs=3) as broker:
        yield broker


def write(broker, topic, first=0):
    with Producer(broker.bootstrap) as producer:
        for number in range(first, first + COUNT):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


def read(broker, topic):
    """Return the numbers in a topic, in order."""
    found = []
    with Consumer(broker.bootstrap, topics=topic) as consumer:
        while consumer.lag():
            found += [int(message.value) for message in consumer.consume(5000, timeout=1)]
    return sorted(found)


def kafkalite(broker, *words, of="--data"):
    where = str(broker.data) if of == "--data" else broker.bootstrap
    command = [sys.executable, "-m", "kafkalite", *map(str, words), of, where]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def home(broker, node_id):
    return layout.log_directory(layout.node_directory(broker.data, node_id))


@pytest.mark.parametrize("lost", [*itertools.combinations(range(3), 2)])
def test_any_two_of_three_directories_may_be_lost(broker, lost):
    topic = broker.topic(PARTITIONS, replication_factor=3)
    write(broker, topic)
    broker.kill()
    gone = [broker.log_dirs[number] for number in lost]
    for directory in gone:
        shutil.rmtree(directory)
    broker.start(without_dirs=gone)
    assert read(broker, topic) == [*range(COUNT)]
    write(broker, topic, COUNT)
    # The metadata is whole, too: the topics are known, and more are decided.
    other = broker.topic(PARTITIONS, replication_factor=3)
    broker.stop()
    broker.start()  # with new, empty directories in their places
    assert read(broker, topic) == [*range(2 * COUNT)]
    write(broker, other)
    assert read(broker, other) == [*range(COUNT)]


@pytest.mark.parametrize("lost", [(0, 1), (1, 2)])
def test_committed_offsets_survive_the_loss_of_directories(lost):
    config = {"offsets.topic.replication.factor": 4}
    with Broker(workers=3, log_dirs=3, config=config) as broker:
        topic = broker.topic(1, replication_factor=3)
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, b"0").result()
        place = TopicPartition(topic, 0)
        with Admin(broker.bootstrap) as admin:
            admin.commit_offsets("group", {place: 1})
        broker.kill()
        gone = [broker.log_dirs[number] for number in lost]
        for directory in gone:
            shutil.rmtree(directory)
        broker.start(without_dirs=gone)
        with Admin(broker.bootstrap) as admin:
            assert admin.committed_offsets("group")[place] == 1


def test_directories_are_lost_one_after_another(broker):
    topic = broker.topic(PARTITIONS, replication_factor=3)
    for number, directory in enumerate([*broker.log_dirs[:2]]):
        write(broker, topic, number * COUNT)
        broker.kill()
        shutil.rmtree(directory)
        broker.start(without_dirs=broker.log_dirs[: number + 1])
        until(lambda: in_sync(broker, topic))
    assert read(broker, topic) == [*range(2 * COUNT)]


def in_sync(broker, topic):
    described = kafkalite(broker, "topic", "describe", topic, "--json", of="-b")
    return all(len(found["isr"]) == 3 for found in json.loads(described)[0]["partitions"])


def test_missing_directory_is_refused_without_any_change(broker):
    broker.topic(PARTITIONS, replication_factor=3)
    broker.stop()
    lost = broker.log_dirs[1]
    away = lost.with_name("away")
    lost.rename(away)
    # Broker.start removes everything if it fails.
    flags = [flag for path in broker.log_dirs for flag in ("--data", str(path))]
    command = [sys.executable, "-m", "kafkalite", "start", "--listen", "127.0.0.1:0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"--without-dir {lost}" in done.stderr and not lost.exists()
    away.rename(lost)
    broker.start()


def test_broker_without_workers_has_one_directory():
    with pytest.raises(Refusal, match="without workers only the first would hold logs"):
        Broker(log_dirs=2).start()


def test_partitions_with_one_replica_move_between_directories_by_copies(broker):
    topic = broker.topic(PARTITIONS)
    write(broker, topic)
    assert {home(broker, node_id) for node_id in (1, 2, 3)} == {*broker.log_dirs}
    kafkalite(broker, "node", "drain", "2")
    logs = layout.node_directory(broker.data, 2)
    assert not [*logs.glob(f"{topic}-?")]
    assert read(broker, topic) == [*range(COUNT)]
    kafkalite(broker, "node", "remove", "2")
    until(lambda: not (broker.log_dirs[1] / "nodes/2").exists())
    assert not (broker.data / "nodes/2").is_symlink()
    kafkalite(broker, "node", "add")
    until(lambda: (broker.log_dirs[1] / "nodes/4").exists())
    broker.restart()
    assert read(broker, topic) == [*range(COUNT)]


def test_worker_that_is_killed_returns_to_its_directory(broker):
    topic = broker.topic(PARTITIONS, replication_factor=3)
    broker.kill(2)
    write(broker, topic)
    broker.restart()
    assert home(broker, 2) == broker.log_dirs[1]
    assert read(broker, topic) == [*range(COUNT)]


def test_broker_with_several_directories_restarts_on_new_code(broker):
    topic = broker.topic(PARTITIONS, replication_factor=3)
    write(broker, topic)
    kafkalite(broker, "restart")
    write(broker, topic, COUNT)
    assert read(broker, topic) == [*range(2 * COUNT)]
    broker.kill()
    broker.start()
    assert read(broker, topic) == [*range(2 * COUNT)]


def test_status_names_the_directories_and_their_nodes(broker):
    text = kafkalite(broker, "status")
    for path, nodes in zip(broker.log_dirs, ("0, 1", "2", "3"), strict=True):
        assert f"log dir     {path}, nodes {nodes}\n" in text
    command = [sys.executable, "-m", "kafkalite", "status", "--data", str(broker.log_dirs[1])]
    assert subprocess.run(command, capture_output=True, text=True).stdout == text
    listed = json.loads(kafkalite(broker, "status", "--json"))["log_dirs"]
    assert [entry["path"] for entry in listed] == [*map(str, broker.log_dirs)]
    assert [entry["nodes"] for entry in listed] == [[0, 1], [2], [3]]


def test_kafka_clients_see_the_directory_of_each_node(broker):
    topic = broker.topic(1, replication_factor=3)
    for node_id, directory in enumerate(broker.log_dirs, 1):
        described = described_log_dirs(broker, node_id)
        assert [found.log_dir for found in described] == [str(directory / f"nodes/{node_id}")]
        assert [found.name for found in described[0].topics] == [topic]
        moves = {described[0].log_dir: 0, str(broker.data): 57, str(directory): 57}
        for path, code in moves.items():
            wanted = {"path": path, "topics": [{"name": topic, "partitions": [0]}]}
            answer = request(broker, node_id, ALTER_REPLICA_LOG_DIRS, {"dirs": [wanted]})
            assert answer.results[0].partitions[0].error_code == code


def described_log_dirs(broker, node_id):
    return request(broker, node_id, DESCRIBE_LOG_DIRS, {"topics": None}).results


def request(broker, node_id, api, body):
    with Admin(broker.bootstrap) as admin:
        return admin._cluster.request(node_id, api, body)
