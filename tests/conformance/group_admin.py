"""Scenarios of group administration: list, describe, delete, and offsets."""

from __future__ import annotations

import pytest

from tests.conformance.members import Group
from tests.conformance.table import GROUPS, STATIC, Client, Kafka, Refused, Sent, scenario, until

TEN = [Sent(b"%d" % i, b"k") for i in range(10)]


@scenario(GROUPS, "list_groups", "describe_group")
def a_group_is_listed_and_described_from_joining_to_leaving(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=3)
    with Group(client, kafka, topic, client_id="clerk") as group:
        assert group.name not in client.ask(kafka, "list_groups")
        member = group.join()
        group.settle()
        until(lambda: describe(client, kafka, group)["state"] == "Stable")
        (told,) = describe(client, kafka, group)["members"]
        assert told["client_id"] == "clerk"
        assert told["id"].startswith("clerk-")
        assert told["host"].strip("/") == "127.0.0.1"
        assert {(name, at) for name, at in told["assigned"]} == group.places
        listed = client.ask(kafka, "list_groups")
        assert listed[group.name] in ("Stable", None)
        group.leave(member)
        client.produce(kafka, topic, TEN, partition=0)
        until(lambda: describe(client, kafka, group)["state"] == "Empty")
        assert describe(client, kafka, group)["members"] == []
        assert client.ask(kafka, "list_groups")[group.name] in ("Empty", None)


def describe(client: Client, kafka: Kafka, group: Group) -> dict:
    return client.ask(kafka, "describe_group", group=group.name)


@scenario(GROUPS, "describe_group")
def members_of_a_group_are_described_each_with_its_partitions(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    with Group(client, kafka, topic) as group:
        for _ in range(2):
            group.join()
            group.settle()
        until(lambda: describe(client, kafka, group)["state"] == "Stable")
        told = describe(client, kafka, group)["members"]
        assert len({member["id"] for member in told}) == 2
        assert sorted(sorted(map(tuple, member["assigned"])) for member in told) == sorted(
            sorted(member.assigned) for member in group.members
        )


@scenario(GROUPS, STATIC, "describe_group")
def a_static_member_is_described_by_its_name(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with Group(client, kafka, topic) as group:
        group.join(group_instance_id="by-name")
        group.settle()
        (told,) = describe(client, kafka, group)["members"]
        # aiokafka requests a version without the instance id.
        assert told["instance"] in ("by-name", None)
        assert told["id"].startswith("by-name-")


@scenario(GROUPS, "group_offsets", "delete_group")
def a_group_is_deleted_with_its_offsets_once_nobody_is_in_it(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic) as group:
        member = group.join()
        group.has_read(len(TEN))
        with pytest.raises(Refused, match="not empty"):
            client.ask(kafka, "delete_group", group=group.name)
        group.leave(member)
        until(lambda: [topic, 0, 10, ""] in client.ask(kafka, "group_offsets", group=group.name))
        client.ask(kafka, "delete_group", group=group.name)
        assert kafka.committed(group.name) == {}
        with pytest.raises(Refused, match="does not exist"):
            client.ask(kafka, "delete_group", group=group.name)


@scenario("group_offsets", "set_group_offsets")
def offsets_set_are_those_that_are_listed(client: Client, kafka: Kafka) -> None:
    topics = [kafka.topic(partitions=2) for _ in range(2)]
    group = kafka.name()
    offsets = [[topic, at, 3 + at, ""] for topic in topics for at in range(2)]
    client.ask(kafka, "set_group_offsets", group=group, offsets=offsets)
    found = client.ask(kafka, "group_offsets", group=group)
    # Some clients request all partitions of a topic, and some those with an offset.
    assert sorted(found) == sorted(offsets)


@scenario(GROUPS, "set_group_offsets")
def offsets_of_a_group_with_members_are_not_set_by_others(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic, enable_auto_commit="false") as group:
        group.join()
        group.settle()
        with pytest.raises(Refused, match="(?i)unknown member|active|running"):
            client.ask(kafka, "set_group_offsets", group=group.name, offsets=[[topic, 0, 1, ""]])
        assert group.committed(topic) == -1


@scenario(GROUPS, "set_group_offsets", "delete_group_offsets")
def offsets_are_deleted_but_those_that_members_read_on_from(client: Client, kafka: Kafka) -> None:
    read, other = kafka.topic(), kafka.topic()
    client.produce(kafka, read, TEN)
    with Group(client, kafka, read) as group:
        offsets = [[read, 0, 5, ""], [other, 0, 5, ""]]
        client.ask(kafka, "set_group_offsets", group=group.name, offsets=offsets)
        member = group.join()
        group.settle()
        with pytest.raises(Refused, match="subscribed"):
            delete(client, kafka, group, read)
        delete(client, kafka, group, other)
        assert group.committed(other) == -1
        assert group.committed(read) >= 5
        group.leave(member)
        delete(client, kafka, group, read)
        assert group.committed(read) == -1


def delete(client: Client, kafka: Kafka, group: Group, topic: str) -> None:
    client.ask(kafka, "delete_group_offsets", group=group.name, partitions=[[topic, 0]])
