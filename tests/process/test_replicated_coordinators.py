"""Committed offsets with replicated internal topics, in real processes: kills, and removed logs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import kafkalite
from kafkalite.cli import main
from kafkalite.testing import Broker
from tests.process.waiting import WAIT_S_MAX, until

INTERNAL = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
LOGS = "__*-[0-9]*"
METADATA_LOG = "__cluster_metadata-0"
NODES = {0, 1, 2}
GROUPS = ("a", "b", "c")


@pytest.fixture
def broker() -> Iterator[Broker]:
    config = {f"{topic}.replication.factor": 3 for topic in INTERNAL}
    with Broker(workers=2, config={**config, "offsets.topic.num.partitions": 3}) as broker:
        yield broker


def consumer(broker: Broker, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    )


def commit(client: confluent_kafka.Consumer, topic: str, offset: int) -> None:
    """Commit an offset; return once it is acknowledged."""
    (done,) = client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    assert done.error is None


def committed(broker: Broker, group: str, topic: str) -> int:
    client = consumer(broker, group)
    (found,) = client.committed([TopicPartition(topic, 0)], timeout=WAIT_S_MAX)
    client.close()
    return int(found.offset)


def replicas(broker: Broker, topic: str) -> list[tuple[int, set[int], set[int]]]:
    """Return leader, replicas and in-sync replicas of each partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partitions = admin.list_topics(topic, timeout=WAIT_S_MAX).topics[topic].partitions.values()
    return [(each.leader, {*each.replicas}, {*each.isrs}) for each in partitions]


def are_in_sync(broker: Broker, topic: str = "__consumer_offsets") -> bool:
    return all(each == (0, NODES, NODES) for each in replicas(broker, topic))


def remove_logs(directory: Path) -> list[str]:
    """Remove the logs of internal topics in a node's directory; return their names."""
    removed = [path for path in directory.glob(LOGS) if path.name != METADATA_LOG]
    for path in removed:
        shutil.rmtree(path)
    return sorted(path.name for path in removed)


class Committing:
    """Groups whose committed offsets only grow, each in a thread of its own."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.acknowledged = dict.fromkeys(GROUPS, 0)
        self._is_ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(group,)) for group in GROUPS]
        for thread in self._threads:
            thread.start()

    def _run(self, group: str) -> None:
        client = consumer(self.broker, group)
        offset = 0
        while not self._is_ending.is_set():
            offset += 1
            try:
                commit(client, self.topic, offset)
            except confluent_kafka.KafkaException:
                continue
            self.acknowledged[group] = offset
        client.close()

    def until_all_have_committed(self) -> None:
        before = dict(self.acknowledged)
        until(lambda: all(self.acknowledged[g] > before[g] + 1 for g in GROUPS))

    def end(self) -> None:
        self._is_ending.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def committing(broker: Broker) -> Iterator[Committing]:
    made = Committing(broker, broker.topic())
    yield made
    made.end()


KILLS: dict[str, Callable[[Broker], object]] = {
    "supervisor": lambda broker: broker.kill(0),
    "worker": lambda broker: broker.kill(1),
    "both": lambda broker: (broker.kill(0), broker.kill(2)),
}


def test_no_acknowledged_commit_is_lost_by_kills(broker, committing):
    committing.until_all_have_committed()
    for _ in range(2):
        for kill in KILLS.values():
            kill(broker)
            committing.until_all_have_committed()
            for group in GROUPS:
                acknowledged = committing.acknowledged[group]
                assert committed(broker, group, committing.topic) >= acknowledged
    until(lambda: are_in_sync(broker))


def test_no_acknowledged_commit_is_lost_with_the_logs_of_a_killed_supervisor(broker, committing):
    committing.until_all_have_committed()
    until(lambda: are_in_sync(broker))
    for _ in range(2):
        removed = remove_logs(broker.data)
        broker.kill(0)
        assert len(removed) == 3
        committing.until_all_have_committed()
        for group in GROUPS:
            acknowledged = committing.acknowledged[group]
            assert committed(broker, group, committing.topic) >= acknowledged
        until(lambda: are_in_sync(broker))


def test_committed_offsets_are_there_after_logs_were_removed_from_a_stopped_broker(broker):
    topic = broker.topic()
    directories = [broker.data, broker.data / "nodes" / "1", broker.data / "nodes" / "2"]
    for number, kept in enumerate(directories, 1):
        client = consumer(broker, "g")
        commit(client, topic, number)
        client.close()
        until(lambda: are_in_sync(broker))
        broker.stop()
        for directory in directories:
            assert directory == kept or remove_logs(directory)
        broker.start()
        assert committed(broker, "g", topic) == number
        until(lambda: are_in_sync(broker))


def test_transactions_and_share_states_are_there_after_node_0_lost_its_logs(broker):
    topic = broker.topic()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "id"}
    )
    producer.init_transactions(WAIT_S_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"0")
    producer.commit_transaction(WAIT_S_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    assert producer.flush(WAIT_S_MAX) == 0
    with kafkalite.Admin(broker.bootstrap) as admin:
        admin.alter_config("group", "s", {"share.auto.offset.reset": "earliest"})
    # Members of share groups read uncommitted records by default.
    with kafkalite.ShareConsumer(broker.bootstrap, topic, group_id="s") as member:
        first = member.poll(WAIT_S_MAX)
        assert first is not None and first.value == b"0"
        first.accept()
        assert set(member.commit(WAIT_S_MAX).values()) == {None}
    for name in ("__transaction_state", "__share_group_state"):
        until(lambda name=name: are_in_sync(broker, name))
    broker.stop()
    assert len(remove_logs(broker.data)) == 5
    broker.start()
    producer.commit_transaction(WAIT_S_MAX)
    with kafkalite.ShareConsumer(broker.bootstrap, topic, group_id="s") as member:
        second = member.poll(WAIT_S_MAX)
        assert second is not None and second.value == b"1"


def test_operator_adds_replicas_to_an_existing_topic(capsys):
    def run(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    with Broker(workers=2) as broker:
        topic = broker.topic()
        client = consumer(broker, "g")
        commit(client, topic, 1)
        assert replicas(broker, "__consumer_offsets") == [(0, {0}, {0})]
        run("replica", "move", "__consumer_offsets", "--to", "0,1,2", "-b", broker.bootstrap)
        assert are_in_sync(broker)
        described = run("topic", "describe", "__consumer_offsets", "-b", broker.bootstrap)
        assert "min.insync.replicas=2" in described
        assert " 0,1,2 " in described
        found = run("doctor", "--data", str(broker.data))
        assert "all replicas in sync" in found and "cleaner" not in found
        commit(client, topic, 2)
        client.close()
        broker.stop()
        remove_logs(broker.data)
        broker.start()
        assert committed(broker, "g", topic) == 2
