"""DescribeLogDirs, DescribeProducers, ElectLeaders, DescribeQuorum: administration of replicas."""

from __future__ import annotations

from kafkalite.protocol.schemas.cluster import DESCRIBE_QUORUM
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import DESCRIBE_LOG_DIRS, ELECT_LEADERS
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS
from tests.oracle.batches import batch
from tests.oracle.scenes import fetch, produce, scene

OF_THE_MACHINE = ("log_dir", "total_bytes", "usable_bytes")
OF_THE_QUORUM = (
    "leader_epoch", "high_watermark", "log_end_offset", "last_fetch_timestamp",
    "last_caught_up_timestamp", "replica_directory_id", "leader_id", "replica_id", "node_id",
    "listeners", "current_voters", "observers", "nodes",
)  # fmt: skip


@scene(DESCRIBE_LOG_DIRS)
def directories_tell_what_lies_in_them(talk, version):
    topic = fetch.filled(talk, partitions=3)
    empty = talk.topic()

    def ask(note, *topics, only=topic.name):
        listed = [{"topic": name, "partitions": list(which)} for name, which in topics]
        asked = {"topics": listed}
        talk.ask(DESCRIBE_LOG_DIRS, version, asked, note=note, only=only, veil=OF_THE_MACHINE)

    ask("a topic", (topic.name, [0, 1, 2]))
    ask("a part of it", (topic.name, [1]))
    ask("an empty one", (empty.name, [0]), only=empty.name)
    ask("a partition twice", (topic.name, [0, 0]))
    ask("a topic twice", (topic.name, [0]), (topic.name, [1]))
    ask("no such partition", (topic.name, [9, -1]))
    ask("no such topic", ("never-made", [0]), only="never-made")
    ask("no partitions", (topic.name, []))
    ask("nothing")
    asked = {"topics": None}
    talk.ask(DESCRIBE_LOG_DIRS, version, asked, only=topic.name, veil=OF_THE_MACHINE)


@scene()
def a_leader_tells_who_writes(talk):
    topic = talk.topic(partitions=2)

    def ask(note, *topics):
        listed = [{"name": name, "partition_indexes": list(which)} for name, which in topics]
        talk.ask(DESCRIBE_PRODUCERS, 0, {"topics": listed}, note=note)

    ask("nobody yet", (topic.name, [0, 1]))
    talk.quietly(PRODUCE, 7, produce.body(topic, {0: batch()}))
    ask("nobody who is known", (topic.name, [0]))
    for producer_id in (talk.producer_id(), talk.producer_id()):
        for sequence in (0, 3):
            records = batch(3, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            talk.quietly(PRODUCE, 7, produce.body(topic, {1: records}))
    ask("two", (topic.name, [1]))
    ask("both partitions", (topic.name, [0, 1]))
    ask("a partition twice", (topic.name, [1, 1]))
    ask("no such partition", (topic.name, [7, -1]))
    ask("no such topic", ("never-made", [0]))
    ask("an illegal topic", ("a/b", [0]), ("", [0]))
    ask("no partitions", (topic.name, []))
    ask("nothing")


@scene(ELECT_LEADERS)
def who_leads_already_is_not_elected(talk, version):
    topic = talk.topic(partitions=2)

    def elect(note, *topics, **more):
        listed = [{"topic": name, "partitions": list(which)} for name, which in topics]
        asked = {"topic_partitions": listed, "timeout_ms": 5000, **more}
        talk.ask(ELECT_LEADERS, version, asked, note=note)

    for kind in (0, 1, 2, -1) if version >= 1 else (0,):
        said = {"election_type": kind} if version >= 1 else {}
        elect(f"of kind {kind}", (topic.name, [0, 1]), **said)
        elect(f"of kind {kind}, unknown", ("never-made", [0]), (topic.name, [9]), **said)
    elect("the same twice", (topic.name, [0, 0]))
    elect("a topic twice", (topic.name, [0]), (topic.name, [1]))
    elect("a negative partition", (topic.name, [-1]))
    elect("no partitions", (topic.name, []))
    elect("nothing")
    elect("an illegal topic", ("a/b", [0]), ("", [0]))
    elect("without patience", (topic.name, [0]), timeout_ms=0)
    everything = {"topic_partitions": None}
    talk.ask(ELECT_LEADERS, version, everything, note="all of them", only=topic.name)


@scene(DESCRIBE_QUORUM)
def the_quorum_is_described(talk, version):
    def ask(note, *topics):
        listed = [
            {
                "topic_name": name,
                "partitions": [{"partition_index": index} for index in which],
            }
            for name, which in topics
        ]
        talk.ask(DESCRIBE_QUORUM, version, {"topics": listed}, note=note, veil=OF_THE_QUORUM)

    ask("as it should be asked for", ("__cluster_metadata", [0]))
    ask("another partition", ("__cluster_metadata", [1]))
    ask("its partition twice", ("__cluster_metadata", [0, 0]))
    ask("another topic", ("never-made", [0]))
    ask("it and another", ("__cluster_metadata", [0]), ("never-made", [0]))
    ask("no partitions", ("__cluster_metadata", []))
    ask("nothing")
