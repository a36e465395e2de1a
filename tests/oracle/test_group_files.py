"""`make oracle`: logs of groups of the consumer protocol, exchanged with Apache Kafka.

The members are librdkafka's: one is static, one subscribes to a regular expression, and one uses
the classic protocol.  The broker is killed while they are in the group, so its log has their
records.  The description of the group before is compared with that of a coordinator that has
loaded the log.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite.broker.coordinator.journal_loader import JournalLoader, RecordCodec
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.settings import producer_settings
from kafkalite.coordination.groups.assignment.subscribed_topics import KnownTopic
from kafkalite.coordination.groups.group_coordinator import GroupCoordinator
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.steps import result_of
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_DESCRIBE
from kafkalite.testing import Broker
from tests.coordination.groups.harness import LIMITS, ManualTopics
from tests.storage.factories import open_log
from tools import apache_kafka
from tools.apache_kafka import ApacheKafka, Unavailable

pytestmark = pytest.mark.oracle

WAIT_S = 60.0
GROUP, EMPTY_GROUP = "mixed", "left"
PARTITIONS = {"t": 6, "u": 2}
RECORDS = 10
"""Number of records of each partition."""
OFFSETS = "__consumer_offsets-0"
CONFIG = {"offsets.topic.num.partitions": "1", "group.min.session.timeout.ms": "500"}
MEMBERS = {
    "static": ("t", "consumer", "an-instance"),
    "pattern": ("^[tu]$", "consumer"),
    "classic": ("t", "range"),
}
"""Topic, strategy and instance id of each member."""
CODEC = RecordCodec(group_records.write, group_records.read, is_transactional=True)

Description = dict[str, Any]
Offsets = dict[tuple[str, int], int]


def until(found: Callable[[], Any], what: str) -> Any:
    """Return what `found` returns once that is true."""
    deadline = time.monotonic() + WAIT_S
    while not (result := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return result


# -- groups ------------------------------------------------------------------------------------


@contextmanager
def members(bootstrap: str) -> Iterator[None]:
    """Run the members, which are killed at the end."""
    processes = []
    try:
        for name, (topic, *words) in MEMBERS.items():
            command = [sys.executable, "-m", "tests.faults.librdkafka_member", bootstrap, topic]
            command += [GROUP, name, "1", *words]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def create_topics(admin: AdminClient) -> None:
    topics = [NewTopic(name, count, 1) for name, count in PARTITIONS.items()]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_S)


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for name, count in PARTITIONS.items():
        for number in range(count * RECORDS):
            producer.produce(name, b"%d" % number, partition=number % count)
    assert producer.flush(WAIT_S) == 0


def join_and_leave(bootstrap: str) -> None:
    """Leave a group of the consumer protocol without members."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": EMPTY_GROUP, "group.protocol": "consumer",
        "auto.offset.reset": "earliest", "log_level": 0,
    })  # fmt: skip
    consumer.subscribe(["u"])
    assert until(lambda: consumer.poll(1), "a record")
    consumer.close()


def committed(admin: AdminClient) -> Offsets:
    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])[GROUP]
    found: Sequence[TopicPartition] = future.result(WAIT_S).topic_partitions
    return {(each.topic, each.partition): each.offset for each in found}


def description(group: Any) -> Description:
    """Return a described group with its lists in a defined order."""

    def sort(partitions: Any) -> dict[str, list[int]]:
        return {
            each["topic_name"]: sorted(each["partitions"])
            for each in sorted(partitions["topic_partitions"], key=lambda each: each["topic_name"])
        }

    described = {key: group[key] for key in ("group_id", "group_state", "group_epoch")}
    described |= {key: group[key] for key in ("assignment_epoch", "assignor_name")}
    described["members"] = {
        member["member_id"]: {
            **member,
            "subscribed_topic_names": sorted(member["subscribed_topic_names"]),
            "assignment": sort(member["assignment"]),
            "target_assignment": sort(member["target_assignment"]),
        }
        for member in group["members"]
    }
    return described


def decoded(response: Description) -> Description:
    """Return a response as decoded from its bytes."""
    content = CONSUMER_GROUP_DESCRIBE.response.write(1, {"throttle_time_ms": 0, **response})
    return described_fields(CONSUMER_GROUP_DESCRIBE.response.read(1, content))


def described_fields(response: Any) -> Description:
    return {each.group_id: description(plain(each)) for each in response.groups}


def lines(described: Any) -> list[str]:
    """Return descriptions as lines, so that a difference is easy to read."""
    return json.dumps(described, indent=1, sort_keys=True).splitlines()


def plain(value: Any) -> Any:
    """Return decoded fields as dictionaries."""
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [plain(each) for each in value]
    names = getattr(value, "_fields", None) or getattr(value, "__slots__", None)
    if names:
        return {name: plain(getattr(value, name)) for name in names}
    return value


def describe(bootstrap: str) -> dict[str, Description]:
    """Return the descriptions of both groups."""
    cluster = Cluster(producer_settings(bootstrap, {}))
    try:
        cluster.topic("t", WAIT_S)
        (node_id,) = cluster.nodes
        body = {"group_ids": [GROUP, EMPTY_GROUP], "include_authorized_operations": False}
        return described_fields(cluster.request(node_id, CONSUMER_GROUP_DESCRIBE, body))
    finally:
        cluster.close()


def settled(bootstrap: str) -> dict[str, Description] | None:
    """Return the descriptions once all members have their partitions."""
    described = describe(bootstrap)
    group = described[GROUP]
    is_settled = group["group_state"] == "Stable" and len(group["members"]) == len(MEMBERS)
    owned = Counter(
        (topic, index)
        for member in group["members"].values()
        for topic, indexes in member["assignment"].items()
        for index in indexes
    )
    is_settled = is_settled and set(owned) == {
        (name, index) for name, count in PARTITIONS.items() for index in range(count)
    }
    return described if is_settled else None


def groups_of(bootstrap: str) -> tuple[dict[str, Description], Offsets]:
    """Have both groups made; return their descriptions and offsets when nothing changes any more.
    The member with the regular expression does not commit."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    produce(bootstrap)
    join_and_leave(bootstrap)
    described = until(lambda: settled(bootstrap), "the members are settled")
    owned = [
        (topic, index)
        for member in described[GROUP]["members"].values()
        for topic, indexes in member["assignment"].items()
        for index in indexes
        if member["client_id"] != "pattern"
    ]

    def all_committed() -> bool:
        offsets = committed(admin)
        return all(offsets.get(each) == RECORDS for each in owned)

    until(all_committed, "everything is committed")
    assert settled(bootstrap) == described, "the group has changed meanwhile"
    return described, committed(admin)


# -- logs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory):
    """Yield groups, their offsets, the topic ids, and the log, of a killed Apache Kafka."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), CONFIG)
    try:
        kafka.start()
    except Unavailable as missing:
        pytest.skip(str(missing))
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        create_topics(admin)
        with members(kafka.bootstrap):
            described, offsets = groups_of(kafka.bootstrap)
            cluster = Cluster(producer_settings(kafka.bootstrap, {}))
            topic_ids = {name: cluster.topic(name, WAIT_S).topic_id for name in PARTITIONS}
            cluster.close()
            kafka.kill()
        yield described, offsets, topic_ids, kafka.data / OFFSETS
    finally:
        if kafka.process is not None:
            kafka.stop()


@pytest.fixture(scope="module")
def ours():
    """Yield groups, their offsets, and the log, of a killed broker."""
    with Broker(config=CONFIG) as broker:
        create_topics(AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}))
        with members(broker.bootstrap):
            described, offsets = groups_of(broker.bootstrap)
            broker.kill()
        yield described, offsets, broker.data / OFFSETS


class NamedTopics(ManualTopics):
    """Topics with the ids of another cluster."""

    def __init__(self, topic_ids: dict[str, bytes]) -> None:
        super().__init__()
        self._by_name = {
            name: KnownTopic(name, topic_id, PARTITIONS[name])
            for name, topic_id in topic_ids.items()
        }


def test_groups_are_loaded_from_the_log_of_apache_kafka(kafkas, tmp_path):
    described, offsets, topic_ids, directory = kafkas
    (tmp_path / "log").mkdir()
    for segment in directory.glob("*.log"):
        shutil.copy(segment, tmp_path / "log")
    settings = ConsumerGroupSettings()
    machine = GroupCoordinator(LIMITS, str, NamedTopics(topic_ids), lambda _: settings)
    log = open_log(tmp_path / "log")
    partition: Any = SimpleNamespace(log=log)
    for _ in JournalLoader(partition, CODEC, machine).steps():
        pass
    machine.loaded(0)
    loaded = [result_of(machine.describe_consumer(group_id)) for group_id in (GROUP, EMPTY_GROUP)]
    assert lines(decoded({"groups": loaded})) == lines(described)
    assert {
        (topic, index): each.offset
        for topic, by_index in machine.fetch_offsets(GROUP, None).items()
        for index, each in by_index.items()
    } == offsets
    log.release()


def test_dump_tool_decodes_the_records_of_groups(ours):
    described, _, directory = ours
    found = []
    for segment in sorted(directory.glob("*.log")):
        try:
            found.append(apache_kafka.dump(["--offsets-decoder", "--files", str(segment)]))
        except Unavailable as missing:
            pytest.skip(str(missing))
    text = "".join(found)
    keys = [json.loads(each) for each in re.findall(r"key: (\{.*?\})(?: payload|$)", text)]
    assert {"1", "3", "5", "6", "7", "8", "16"} <= {key["type"] for key in keys}
    current: dict[str, Any] = {}
    for key, value in re.findall(r"key: (\{.*?\}) payload: (.*)", text):
        parsed = json.loads(key)
        if parsed["type"] == "8" and parsed["data"]["groupId"] == GROUP:
            current[parsed["data"]["memberId"]] = json.loads(value)
    for member_id, member in described[GROUP]["members"].items():
        data = current[member_id]["data"]
        assert data["memberEpoch"] == member["member_epoch"]
        partitions = [sorted(each["partitions"]) for each in data["assignedPartitions"]]
        assert sorted(partitions) == sorted(member["assignment"].values())


def test_apache_kafka_loads_the_groups(ours, tmp_path):
    described, offsets, directory = ours
    kafka = ApacheKafka(tmp_path / "kafka", CONFIG)
    try:
        kafka.start()
    except Unavailable as missing:
        pytest.skip(str(missing))
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        create_topics(admin)
        produce(kafka.bootstrap)
        join_and_leave(kafka.bootstrap)  # creates the internal topic
        kafka.stop()
        replace_log(kafka.data, directory)
        kafka.restart()
        until(lambda: is_loaded(kafka.bootstrap), "the coordinator is loaded")
        found = describe(kafka.bootstrap)
        assert lines(without_topics(found)) == lines(without_topics(described))
        assert committed(admin) == offsets
        errors = [line for line in kafka.log_file.read_text().splitlines() if " ERROR " in line]
        # Kafka builds the indexes that were removed.
        assert all("Could not find offset index file" in line for line in errors)
    finally:
        kafka.stop()


def replace_log(data: Path, directory: Path) -> None:
    """Put our segments in place of Kafka's, which then recovers the partition."""
    for file in (data / OFFSETS).iterdir():
        if file.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            file.unlink()
    (data / OFFSETS / "leader-epoch-checkpoint").unlink(missing_ok=True)
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for segment in directory.glob("*.log"):
        shutil.copy(segment, data / OFFSETS)


def is_loaded(bootstrap: str) -> bool:
    return all(group["group_state"] for group in describe(bootstrap).values())


def without_topics(described: dict[str, Description]) -> dict[str, Description]:
    """Return descriptions without assignments: the topics have other ids in the other cluster."""
    plain_groups = json.loads(json.dumps(described))
    for group in plain_groups.values():
        for member in group["members"].values():
            del member["assignment"], member["target_assignment"]
    return plain_groups
