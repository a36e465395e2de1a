"""Members of groups that the command lines of the group tools find (KIP-848, KIP-932)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite import Admin
from kafkalite.errors import NonEmptyGroup
from tests.oracle.shell_transactions import UNVERIFIED, until

BROKER = {
    **UNVERIFIED,
    # A share group assigns partitions at the second heartbeat.
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
}
"""The configuration of brokers that play the command lines."""
TIMEOUT_S = 30.0
POLL_S = 0.1
PARTITIONS = 2


@contextmanager
def no_member(bootstrap: str, names: str) -> Iterator[None]:
    """Have no member."""
    yield


@contextmanager
def consumer_member(bootstrap: str, names: str) -> Iterator[None]:
    """Have a member of a consumer group, with a committed offset, and delete the group after it."""
    group = topic = f"{names}e"
    create(bootstrap, topic)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"}
    )
    consumer.subscribe([topic])

    def has_all() -> bool:
        consumer.poll(POLL_S)
        return len(consumer.assignment()) == PARTITIONS

    try:
        until(has_all)
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        yield
    finally:
        consumer.close()
    delete(bootstrap, group)


@contextmanager
def share_member(bootstrap: str, names: str) -> Iterator[None]:
    """Have a member of a share group, and delete the group after it."""
    group = topic = f"{names}m"
    create(bootstrap, topic)
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    try:
        with Admin(bootstrap) as admin:

            def has_all() -> bool:
                consumer.poll(POLL_S)
                listed = {each.group_id for each in admin.list_groups(["share"])}
                members = admin.describe_group(group).members if group in listed else ()
                return any(len(each.partitions) == PARTITIONS for each in members)

            until(has_all)
        yield
    finally:
        consumer.close()
    delete(bootstrap, group)


MEMBERS = {"epochs": consumer_member, "share-members": share_member}
"""The member that a family finds."""


def create(bootstrap: str, topic: str) -> None:
    """Create a topic with three records in its first partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(3):
        producer.produce(topic, b"record", partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def delete(bootstrap: str, group: str) -> None:
    """Delete a group as soon as its member has left."""
    with Admin(bootstrap) as admin:

        def is_deleted() -> bool:
            try:
                admin.delete_group(group)
            except NonEmptyGroup:
                return False
            return True

        until(is_deleted)


def member_ids(bootstrap: str, names: str) -> list[str]:
    """Return the ids of the members of groups with this prefix."""
    with Admin(bootstrap) as admin:
        groups = [each.group_id for each in admin.list_groups() if each.state != "Empty"]
        return [
            member.member_id
            for group in groups
            if group.startswith(names)
            for member in admin.describe_group(group).members
        ]
