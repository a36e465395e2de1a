"""CreateTopics, DeleteTopics and CreatePartitions: success, errors and their codes."""

from __future__ import annotations

from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tests.oracle.batches import batch
from tests.oracle.conversation import Conversation, is_gone
from tests.oracle.scenes import produce, scene
from tests.oracle.scenes.cluster import ILLEGAL_NAMES

SOME = (2, 4, 7)
NOBODY = b"\x07" * 16


def wish(name, partitions=1, replicas=1, configs=None, assignments=None):
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        "assignments": [
            {"partition_index": index, "broker_ids": nodes}
            for index, nodes in (assignments or {}).items()
        ],
    }


def create(talk: Conversation, version: int, note: str, *wishes: dict, **more: object) -> None:
    asked = {"topics": list(wishes), "timeout_ms": 5000, **more}
    talk.ask(CREATE_TOPICS, version, asked, note=note)


def described(talk: Conversation, name: str, partitions: int) -> None:
    talk.await_leaders(name, partitions)
    asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    talk.ask(METADATA, 12, asked, note="what was made")


@scene(CREATE_TOPICS)
def topics_are_made(talk, version):
    name = f"made-{version}"
    create(talk, version, "one", wish(f"{name}-one", 3))
    described(talk, f"{name}-one", 3)
    several = [wish(f"{name}-two"), wish(f"{name}-three", 2, configs={"retention.ms": "1000"})]
    create(talk, version, "several", *several)
    create(talk, version, "again", *several)
    create(talk, version, "tried", wish(f"{name}-four"), validate_only=True)
    create(talk, version, "tried, there already", wish(f"{name}-two"), validate_only=True)
    create(talk, version, "by assignment", wish(f"{name}-five", -1, -1, {}, {0: [0], 1: [0]}))
    create(talk, version, "by default", wish(f"{name}-six", -1, -1))
    create(talk, version, "none")
    create(talk, version, "without patience", wish(f"{name}-seven"), timeout_ms=0)
    create(talk, version, "with negative patience", wish(f"{name}-eight"), timeout_ms=-1)


@scene(CREATE_TOPICS, versions=SOME)
def bad_wishes_are_refused(talk, version):
    name = f"refused-{version}"
    for illegal in ILLEGAL_NAMES:
        create(talk, version, f"{illegal[:9]!r}", wish(illegal))
    for partitions in (0, -2):
        create(talk, version, f"{partitions} partitions", wish(name, partitions))
    for replicas in (0, 2, -2, 32767):
        create(talk, version, f"{replicas} replicas", wish(name, 1, replicas))
    for note, partitions, replicas, assignments in (
        ("a node nobody knows", -1, -1, {0: [5]}),
        ("a node twice", -1, -1, {0: [0, 0]}),
        ("no nodes", -1, -1, {0: []}),
        ("partitions with a gap", -1, -1, {0: [0], 2: [0]}),
        ("partitions not from 0", -1, -1, {1: [0]}),
        ("a negative partition", -1, -1, {-1: [0]}),
        ("a count as well", 2, -1, {0: [0]}),
        ("a factor as well", -1, 1, {0: [0]}),
    ):
        create(talk, version, note, wish(name, partitions, replicas, {}, assignments))
    create(talk, version, "the same twice", wish(name), wish(name))
    create(talk, version, "one good, one not", wish(f"{name}-good"), wish(f"{name}-bad", 0))
    create(talk, version, "the metadata log", wish("__cluster_metadata"))


@scene(CREATE_TOPICS, versions=SOME)
def names_that_differ_in_dots_collide(talk, version):
    create(talk, version, "first", wish(f"col.lide-{version}"))
    create(talk, version, "second", wish(f"col_lide-{version}"))


CONFIGS = {
    "unknown": {"no.such.key": "1"},
    "not a number": {"retention.ms": "soon"},
    "too large for its type": {"segment.bytes": "99999999999"},
    "null": {"retention.ms": None},
    "empty": {"retention.ms": ""},
    "a negative size": {"max.message.bytes": "-1"},
    "too small a segment": {"segment.bytes": "1000"},
    "no such policy": {"cleanup.policy": "keep"},
    "no such codec": {"compression.type": "brotli"},
    "no such clock": {"message.timestamp.type": "Sundial"},
    "no boolean": {"preallocate": "maybe"},
    "spaces around": {"retention.ms": " 1000 "},
    "a level out of range": {"compression.zstd.level": "99"},
    "no replicas in sync": {"min.insync.replicas": "0"},
    "kept forever": {"retention.ms": "-1", "retention.bytes": "-1"},
    "kept less than forever": {"retention.ms": "-2"},
    "one good, one not": {"retention.ms": "1", "segment.ms": "0"},
    "of an older Kafka": {"message.format.version": "2.8"},
    "a factor in a config": {"replication.factor": "1"},
}


@scene(CREATE_TOPICS, versions=SOME)
def configs_are_checked(talk, version):
    for place, (note, configs) in enumerate(CONFIGS.items()):
        create(talk, version, note, wish(f"configured-{version}-{place}", configs=configs))
    twice = wish(f"configured-{version}-twice")
    twice["configs"] = [{"name": "retention.ms", "value": value} for value in ("1", "2")]
    create(talk, version, "a key twice", twice)


@scene(CREATE_TOPICS, versions=SOME)
def policies_may_be_both(talk, version):
    both = {"cleanup.policy": "compact,delete"}
    create(talk, version, "both policies", wish(f"both-policies-{version}", configs=both))


@scene(DELETE_TOPICS, versions=range(1, 6))
def topics_are_deleted_by_name(talk, version):
    topic = talk.topic()
    talk.quietly(PRODUCE, 7, produce.body(topic, {0: batch()}))

    def delete(note, *names, **more):
        asked = {"topic_names": list(names), "timeout_ms": 5000, **more}
        talk.ask(DELETE_TOPICS, version, asked, note=note)

    delete("unknown", "never-made")
    delete("illegal", "a/b")
    delete("nothing")
    delete("one known, one not", topic.name, "never-made")
    talk.await_metadata(topic.name, is_gone)
    delete("again", topic.name)
    talk.ask(PRODUCE, 7, produce.body(topic, {0: batch()}), note="to what is gone")
    twice = talk.topic()
    delete("twice in one breath", twice.name, twice.name)
    delete("without patience", talk.topic().name, timeout_ms=0)


@scene()
def topics_are_deleted_by_name_or_id(talk):
    def delete(note, *topics):
        talk.ask(DELETE_TOPICS, 6, {"topics": list(topics), "timeout_ms": 5000}, note=note)

    first, second, third = talk.topic(), talk.topic(), talk.topic()
    delete("by id", {"name": None, "topic_id": first.id})
    delete("by name", {"name": second.name})
    delete("by both", {"name": third.name, "topic_id": third.id})
    delete("by neither", {"name": None})
    delete("unknown id", {"name": None, "topic_id": NOBODY})
    delete("unknown name", {"name": "never-made"})
    delete("an id twice", *[{"name": None, "topic_id": third.id}] * 2)
    fourth = talk.topic()
    delete("by id and by name", {"name": None, "topic_id": fourth.id}, {"name": fourth.name})
    talk.await_metadata(first.name, is_gone)
    talk.ask(PRODUCE, 13, produce.body(first, {0: batch()}), note="to an id that is gone")


@scene()
def a_name_may_be_used_again_with_another_id(talk):
    topic = talk.topic()
    talk.quietly(PRODUCE, 7, produce.body(topic, {0: batch(4)}))
    talk.ask(DELETE_TOPICS, 6, {"topics": [{"name": topic.name}], "timeout_ms": 5000})
    talk.await_metadata(topic.name, is_gone)
    create(talk, 7, "again", wish(topic.name))
    described(talk, topic.name, 1)
    produce.ends(talk, topic)
    talk.ask(PRODUCE, 13, produce.body(topic, {0: batch()}), note="to the old id")


def widened(name, count, assignments=None):
    placed = None if assignments is None else [{"broker_ids": nodes} for nodes in assignments]
    return {"name": name, "count": count, "assignments": placed}


@scene(CREATE_PARTITIONS)
def topics_are_widened(talk, version):
    topic = talk.topic(partitions=2)

    def widen(note, *wishes, **more):
        asked = {"topics": list(wishes), "timeout_ms": 5000, "validate_only": False, **more}
        talk.ask(CREATE_PARTITIONS, version, asked, note=note)

    widen("tried", widened(topic.name, 3), validate_only=True)
    widen("to 3", widened(topic.name, 3))
    talk.await_leaders(topic.name, 3)
    for count in (3, 2, 0, -1):
        widen(f"to {count}", widened(topic.name, count))
    widen("unknown", widened("never-made", 5))
    widen("illegal", widened("a/b", 5))
    widen("nothing")
    widen("by assignment", widened(topic.name, 5, [[0], [0]]))
    widen("assigned too few", widened(topic.name, 7, [[0]]))
    widen("assigned too many", widened(topic.name, 6, [[0], [0]]))
    widen("assigned none", widened(topic.name, 6, []))
    widen("assigned to nobody", widened(topic.name, 6, [[]]))
    widen("assigned to a stranger", widened(topic.name, 6, [[8]]))
    widen("assigned two replicas", widened(topic.name, 6, [[0, 0]]))
    widen("the same twice", widened(topic.name, 7), widened(topic.name, 8))
    widen("one good, one not", widened(topic.name, 6), widened("never-made", 2))
    described(talk, topic.name, 6)
    talk.ask(PRODUCE, 7, produce.body(topic, {5: batch()}), note="to a new partition")
