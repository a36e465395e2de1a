"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions: description of the cluster."""

from __future__ import annotations

from kafkalite.protocol.schemas.cluster import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
)
from tests.oracle.conversation import Conversation, Topic, is_led
from tests.oracle.scenes import scene

METADATA_SOME = (0, 1, 4, 8, 9, 10, 12, 13)
ILLEGAL_NAMES = ("", ".", "..", "a/b", "a b", "ü", "x" * 250)


@scene(API_VERSIONS)
def versions_are_told(talk, version):
    about = {"client_software_name": "oracle", "client_software_version": "1.0"}
    talk.ask(API_VERSIONS, version, about)
    for name in ("", "-dash", "sp ace"):
        asked = {**about, "client_software_name": name}
        talk.ask(API_VERSIONS, version, asked, note=f"from software {name!r}")


@scene()
def a_misrouted_client_is_told(talk):
    about = {"client_software_name": "oracle", "client_software_version": "1.0"}
    for note, more in (
        ("another cluster", {"cluster_id": "another"}),
        ("another node", {"node_id": 99}),
        ("this node", {"node_id": 0}),
        ("another of both", {"cluster_id": "another", "node_id": 99}),
    ):
        talk.ask(API_VERSIONS, 5, {**about, **more}, note=note)


def body(version: int, *topics: object, **more: object) -> dict[str, object]:
    # Below version 4 a requested topic is always created; the field does not exist.
    unasked = {"allow_auto_topic_creation": False} if version >= 4 else {}
    return {"topics": list(topics), **unasked, **more}


@scene(METADATA)
def topics_are_described(talk, version):
    topic = talk.topic(partitions=3)
    talk.ask(METADATA, version, body(version, {"name": topic.name}))
    both = body(version, {"name": topic.name}, {"name": "never-made"})
    if version >= 4:
        talk.ask(METADATA, version, both, note="one known, one not")
    twice = body(version, {"name": topic.name}, {"name": topic.name})
    talk.ask(METADATA, version, twice, note="twice")
    if version == 0:
        talk.ask(METADATA, version, body(version), note="all of them", only=topic.name)
    else:
        talk.ask(METADATA, version, body(version), note="none of them")
        everything = {**body(version), "topics": None}
        talk.ask(METADATA, version, everything, note="all of them", only=topic.name)


@scene(METADATA, versions=METADATA_SOME)
def illegal_names_are_refused(talk, version):
    for name in ILLEGAL_NAMES:
        made = {"allow_auto_topic_creation": True} if version >= 4 else {}
        allowed = body(version, {"name": name}, **made)
        talk.ask(METADATA, version, allowed, note=f"{name[:9]!r}, to be made")
        if version >= 4:
            talk.ask(METADATA, version, body(version, {"name": name}), note=f"{name[:9]!r}")


@scene(METADATA, versions=METADATA_SOME)
def a_topic_asked_for_is_made(talk, version):
    name = f"made-by-asking-{version}"
    asked = body(version, {"name": name})
    if version >= 4:
        asked["allow_auto_topic_creation"] = True
    talk.ask(METADATA, version, asked, note="not yet there")
    talk.await_metadata(name, lambda found: is_led(found, 1))
    talk.ask(METADATA, version, asked, note="there")


@scene(METADATA, versions=(10, 11, 12, 13))
def a_topic_may_be_asked_for_by_its_id(talk, version):
    topic = talk.topic()
    nowhere = b"\x07" * 16
    by_id = body(version, {"topic_id": topic.id, "name": None})
    talk.ask(METADATA, version, by_id, note="by id")
    unknown = body(version, {"topic_id": nowhere, "name": None})
    talk.ask(METADATA, version, unknown, note="unknown id")
    both = body(version, {"topic_id": topic.id, "name": topic.name})
    talk.ask(METADATA, version, both, note="by id and name")
    odd = body(version, {"topic_id": topic.id, "name": "another"})
    talk.ask(METADATA, version, odd, note="by id and another's name")
    talk.ask(METADATA, version, body(version, {"name": None}), note="by neither")
    mixed = body(version, {"topic_id": topic.id, "name": None}, {"name": topic.name})
    talk.ask(METADATA, version, mixed, note="one by id, one by name")


@scene(METADATA, versions=range(8, 14))
def operations_are_told_when_asked_for(talk, version):
    topic = talk.topic()
    cluster = {"include_cluster_authorized_operations": True} if version <= 10 else {}
    asked = body(version, {"name": topic.name}, include_topic_authorized_operations=True, **cluster)
    talk.ask(METADATA, version, asked)


@scene(DESCRIBE_CLUSTER)
def the_cluster_is_described(talk, version):
    talk.ask(DESCRIBE_CLUSTER, version, {})
    operations = {"include_cluster_authorized_operations": True}
    talk.ask(DESCRIBE_CLUSTER, version, operations, note="with operations")
    if version >= 1:
        for kind in (0, 2, 3):
            asked = {"endpoint_type": kind}
            talk.ask(DESCRIBE_CLUSTER, version, asked, note=f"endpoints of type {kind}")
    if version >= 2:
        talk.ask(DESCRIBE_CLUSTER, version, {"include_fenced_brokers": True}, note="with fenced")


def pages(talk: Conversation, topics: list[Topic], note: str, **more: object) -> None:
    asked = {"topics": [{"name": topic.name} for topic in topics], **more}
    talk.ask(DESCRIBE_TOPIC_PARTITIONS, 0, asked, note=note)


@scene()
def topics_are_described_page_by_page(talk):
    first, second = talk.topic(partitions=3), talk.topic(partitions=2)
    nowhere = Topic("never-made", bytes(16))
    both = [first, second]
    pages(talk, both, "both")
    pages(talk, [second, first], "the other way round")
    pages(talk, [first, first], "twice")
    pages(talk, [nowhere, first], "one unknown")
    for name in ILLEGAL_NAMES:
        pages(talk, [Topic(name, bytes(16))], f"{name[:9]!r}")
    for limit in (1, 3, 4, 5, 0, -1, 100_000):
        pages(talk, both, f"at most {limit}", response_partition_limit=limit)
    for name, index in ((first.name, 1), (first.name, 3), (second.name, 1), ("never-made", 0)):
        cursor = {"topic_name": name, "partition_index": index}
        pages(talk, both, f"from {name}/{index}", cursor=cursor)
    cursor = {"topic_name": first.name, "partition_index": -1}
    pages(talk, both, "from a negative partition", cursor=cursor)
