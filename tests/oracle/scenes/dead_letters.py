"""Dead letters of share groups (KIP-1191): what a group and a topic are configured with, and the
records of the dead letter topic.

Dead letters are read by librdkafka.  They are recorded in the order of their offsets, without their
batches: a broker may write those of one request as several.

Left out: dead letters that cannot be written for a while; both brokers pause between attempts.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.share import DESCRIBE_SHARE_GROUP_OFFSETS
from tests.oracle.batches import Sent, batch
from tests.oracle.conversation import WAIT_S
from tests.oracle.members import group_of
from tests.oracle.scenes import produce, scene
from tests.oracle.scenes.configs import BROKER, DELETE, GROUP, SET, TOPIC, keys_of
from tests.oracle.scenes.share_records import (
    ACCEPT,
    REJECT,
    RELEASE,
    WAIT_MS,
    Session,
    started,
)

NAME = "errors.deadletterqueue.topic.name"
COPY = "errors.deadletterqueue.copy.record.enable"
PERMIT = "errors.deadletterqueue.group.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
CREATE = "errors.deadletterqueue.auto.create.topics.enable"
LATEST = -1
RECORDS = [
    Sent(b"one", b"k1", headers=[(b"h", b"1"), (b"h", None)]),
    Sent(None, b"k2"),
    Sent(b"three", None),
]


def change(talk, note, kind, name, *changes):
    """Change configs, each (operation, key, value)."""
    configs = [
        {"name": key, "value": value, "config_operation": operation}
        for operation, key, value in changes
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    talk.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]}, note=note)


def dead_letter_topic(talk, partitions=1):
    return talk.topic(partitions, prefix="dlq.", errors_deadletterqueue_group_enable="true")


def send(talk, topic, records=RECORDS, index=0):
    answer = talk.quietly(PRODUCE, 7, produce.body(topic, {index: batch(records)}))
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def letters(talk, note, topic, count, partition=0):
    """Record the first `count` dead letters of a partition."""
    settings = {"group.id": "dead letters", "enable.metrics.push": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": talk.bootstrap, **settings})
    found = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} dead letters come"
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(
                    {
                        "offset": message.offset(),
                        "key": text(message.key()),
                        "value": text(message.value()),
                        "headers": [[name, text(value)] for name, value in message.headers() or []],
                    }
                )
    finally:
        consumer.close()
    talk.said.append({"asked": f"dead letters {note}".strip(), "answer": found})


def text(content):
    return None if content is None else content.decode()


def ends(talk, note, topic, partitions=1):
    """Record the end offsets of a dead letter topic."""
    wanted = [{"partition_index": index, "timestamp": LATEST} for index in range(partitions)]
    body = {"replica_id": -1, "topics": [{"name": topic.name, "partitions": wanted}]}
    talk.ask(LIST_OFFSETS, 5, body, note=note)


def await_lag(talk, group, topic, lag):
    """Wait until so many records of a partition are left to the group."""
    wanted = [{"group_id": group, "topics": [{"topic_name": topic.name, "partitions": [0]}]}]
    talk.await_answer(
        DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": wanted},
        lambda answer: answer.groups[0].topics[0].partitions[0].lag == lag,
    )  # fmt: skip


@scene()
def a_group_names_its_topic(talk):
    group = group_of(talk, "group")

    def alter(note, *changes):
        change(talk, note, GROUP, group, *changes)

    keys_of(talk, group, NAME, COPY, kind=GROUP, note="before")
    for name in ("dlq.jobs", "jobs", "__jobs", "", "dlq./", "d" * 250):
        alter(f"names {name[:9]!r}", (SET, NAME, name))
    alter("names none", (SET, NAME, None))
    for value in ("true", "TRUE", "maybe", ""):
        alter(f"copies {value!r}", (SET, COPY, value))
    keys_of(talk, group, NAME, COPY, kind=GROUP)
    alter("both, one of them wrong", (SET, NAME, "dlq.other"), (SET, COPY, "2"))
    keys_of(talk, group, NAME, COPY, kind=GROUP)
    alter("back", (DELETE, NAME, None), (DELETE, COPY, None))
    keys_of(talk, group, NAME, COPY, kind=GROUP)
    resource = {"resource_type": GROUP, "resource_name": group, "configuration_keys": [NAME, COPY]}
    talk.ask(DESCRIBE_CONFIGS, 4, {"resources": [resource], "include_documentation": True})


@scene()
def a_topic_permits_dead_letters(talk):
    topic = talk.topic()
    for value in ("true", "maybe", ""):
        change(talk, f"permits {value!r}", TOPIC, topic.name, (SET, PERMIT, value))
    keys_of(talk, topic.name, PERMIT)
    change(talk, "no more", TOPIC, topic.name, (DELETE, PERMIT, None))
    keys_of(talk, topic.name, PERMIT)


@scene()
def a_broker_has_defaults_of_dead_letters(talk):
    keys_of(talk, "0", PREFIX, CREATE, kind=BROKER)
    for key, value in ((PREFIX, "x."), (CREATE, "true"), (CREATE, "maybe")):
        change(talk, f"node 0, {key} {value}", BROKER, "0", (SET, key, value))
        change(talk, f"all nodes, {key} {value}", BROKER, "", (SET, key, value))
    keys_of(talk, "0", PREFIX, CREATE, kind=BROKER)
    for name in ("0", ""):
        for key in (PREFIX, CREATE):
            change(talk, f"{name} {key} back", BROKER, name, (DELETE, key, None))
    keys_of(talk, "0", PREFIX, CREATE, kind=BROKER, note="at the end")


@scene()
def rejected_records_have_dead_letters(talk):
    queue = dead_letter_topic(talk)
    group, topic = started(talk, errors_deadletterqueue_topic_name=queue.name)
    send(talk, topic)
    one = Session(talk, group, "one")
    one.fetch("gets all", (topic, 0))
    one.acknowledge("accepts one", (topic, 0, (1, 3, REJECT, ACCEPT, REJECT)))
    letters(talk, "of two", queue.name, 2)
    await_lag(talk, group, topic, 0)
    ends(talk, "at the end", queue)


@scene()
def dead_letters_have_copies(talk):
    queue = dead_letter_topic(talk)
    group, topic = started(
        talk, errors_deadletterqueue_topic_name=queue.name,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    send(talk, topic)
    one = Session(talk, group, "one")
    one.fetch("gets all", (topic, 0))
    one.acknowledge("rejects all", (topic, 0, (1, 3, REJECT)))
    letters(talk, "with copies", queue.name, 3)
    await_lag(talk, group, topic, 0)
    ends(talk, "at the end", queue)


@scene()
def records_delivered_too_often_have_dead_letters(talk):
    queue = dead_letter_topic(talk)
    group, topic = started(
        talk, errors_deadletterqueue_topic_name=queue.name, share_delivery_count_limit="2"
    )
    send(talk, topic, RECORDS[:1])
    one = Session(talk, group, "one")
    one.fetch("first", (topic, 0))
    one.acknowledge("releases", (topic, 0, (1, 1, RELEASE)))
    one.fetch("second", max_wait_ms=WAIT_MS)
    one.acknowledge("releases again", (topic, 0, (1, 1, RELEASE)))
    letters(talk, "of one", queue.name, 1)
    await_lag(talk, group, topic, 0)
    send(talk, topic, RECORDS[:1])
    one.fetch("the next", max_wait_ms=WAIT_MS)
    one.acknowledge("rejects it", (topic, 0, (2, 2, REJECT)))
    letters(talk, "of both", queue.name, 2)


@scene()
def dead_letters_go_to_the_partition_of_the_record(talk):
    queue = dead_letter_topic(talk, 2)
    group, topic = started(talk, partitions=3, errors_deadletterqueue_topic_name=queue.name)
    one = Session(talk, group, "one")
    one.fetch("opens", *((topic, index) for index in range(3)))
    for index in range(3):
        send(talk, topic, RECORDS[:1], index)
        one.fetch(f"of partition {index}", max_wait_ms=WAIT_MS)
        one.acknowledge("rejects", (topic, index, (1, 1, REJECT)))
        letters(talk, f"in {index % 2}", queue.name, 1 + index // 2, index % 2)
    ends(talk, "at the end", queue, 2)


@scene()
def dead_letters_that_are_not_permitted_are_given_up(talk):
    plain = talk.topic(prefix="dlq.")
    wrong = talk.topic(errors_deadletterqueue_group_enable="true")
    group, topic = started(talk, errors_deadletterqueue_topic_name=plain.name)
    one = Session(talk, group, "one")
    one.fetch("opens", (topic, 0))
    for offset, name in enumerate((plain.name, wrong.name, "dlq.nowhere"), start=1):
        change(talk, f"names {offset}", GROUP, group, (SET, NAME, name))
        send(talk, topic, RECORDS[:1])
        one.fetch("gets the next", max_wait_ms=WAIT_MS)
        one.acknowledge("rejects it", (topic, 0, (offset, offset, REJECT)))
        await_lag(talk, group, topic, 0)
    ends(talk, "without permission", plain)
    ends(talk, "without the prefix", wrong)
    ends(talk, "not there", plain._replace(name="dlq.nowhere"))


@scene()
def a_broker_creates_the_topic(talk):
    name = "dlq.created"
    group, topic = started(
        talk, errors_deadletterqueue_topic_name=name,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    change(talk, "creates topics", BROKER, "", (SET, CREATE, "true"))
    keys_of(talk, "0", CREATE, kind=BROKER)
    send(talk, topic)
    one = Session(talk, group, "one")
    one.fetch("gets all", (topic, 0))
    one.acknowledge("rejects all", (topic, 0, (1, 3, REJECT)))
    letters(talk, "in the created topic", name, 3)
    change(talk, "creates none", BROKER, "", (DELETE, CREATE, None))
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    talk.ask(METADATA, 9, body, note="of the created topic")
    keys_of(talk, name, PERMIT, "message.timestamp.type", "cleanup.policy")
    await_lag(talk, group, topic, 0)
