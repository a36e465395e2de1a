"""ShareGroupHeartbeat, ShareGroupDescribe, and the start offsets of share groups (KIP-932).

The partitions of a group are initialized after the response that made it so; scenes wait for the
assignment with heartbeats that are not recorded.

Left out: sessions that expire, which takes seconds; start offsets of partitions that a group does
not have, for which Kafka does not respond.
"""

from __future__ import annotations

import time

from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_DELETE,
)
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.share import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
)
from tests.oracle.batches import batch
from tests.oracle.conversation import WAIT_S
from tests.oracle.members import Member, group_of
from tests.oracle.scenes import produce, scene
from tests.oracle.scenes.committed import at, commit, fetch

GROUP_RESOURCE = 32
GROUP_CONFIG = {"share.auto.offset.reset": "earliest"}
EPOCHS = ("group_epoch", "assignment_epoch", "member_epoch")
"""Not recorded: the number of epochs until the partitions of a group are initialized varies."""
AT_ONCE = {"share.assignment.interval.ms": "0"}
"""Kafka alone waits between two assignments of a share group."""


def prepared(talk, name="group", **config):
    """Return a group that begins at the first record, and computes assignments at once."""
    group = group_of(talk, name)
    configure(talk, group, AT_ONCE)
    more = {key.replace("_", "."): value for key, value in config.items()}
    answer = configure(talk, group, GROUP_CONFIG | more)
    assert answer.responses[0].error_code == 0, answer.responses[0]
    return group


def configure(talk, group, config):
    configs = [
        {"name": key, "value": value, "config_operation": 0} for key, value in config.items()
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": configs}
    return talk.quietly(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})


def assigned(answer):
    """Return the number of partitions that a heartbeat's response assigns."""
    topics = () if answer.assignment is None else answer.assignment.topic_partitions
    return sum(len(topic.partitions) for topic in topics)


class Sharing:
    """One member; each heartbeat has its member epoch."""

    def __init__(self, talk, group, name, **always):
        self.talk = talk
        self.group = group
        self.name = name
        self.always = always
        self.epoch = 0

    def body(self, **fields):
        body = {"group_id": self.group, "member_id": self.name, "member_epoch": self.epoch}
        return {**body, **self.always, **fields}

    def heard(self, answer):
        if answer is not None and answer.error_code == 0 and answer.member_epoch >= 0:
            self.epoch = answer.member_epoch
        return answer

    def beat(self, note, **fields):
        return self.heard(
            self.talk.ask(
                SHARE_GROUP_HEARTBEAT, 1, self.body(**fields), note=f"{self.name}: {note}",
                veil=["heartbeat_interval_ms", *EPOCHS],
            )
        )  # fmt: skip

    def join(self, *topics, note="joins", **fields):
        names = [topic.name for topic in topics]
        return self.beat(note, **{"subscribed_topic_names": names, **fields})

    def settle(self, count):
        """Send heartbeats that are not recorded until `count` partitions are assigned."""
        begun = time.monotonic()
        while True:
            answer = self.heard(self.talk.quietly(SHARE_GROUP_HEARTBEAT, 1, self.body()))
            assert answer is not None and answer.error_code == 0, f"{answer}"
            if assigned(answer) == count:
                return
            assert time.monotonic() - begun < WAIT_S, f"no assignment of {count} partitions"
            time.sleep(0.01)

    def began(self, *topics, count):
        """Join without a record, and wait for `count` partitions."""
        names = [topic.name for topic in topics]
        joined = self.talk.quietly(
            SHARE_GROUP_HEARTBEAT, 1, self.body(subscribed_topic_names=names)
        )
        assert joined is not None and joined.error_code == 0, f"{joined}"
        self.heard(joined)
        if assigned(joined) != count:
            self.settle(count)
        return self


def describe(talk, *groups, note="", **fields):
    body = {"group_ids": list(groups), **fields}
    talk.ask(SHARE_GROUP_DESCRIBE, 1, body, note=note, veil=EPOCHS)


def offsets(talk, version, group, note, *topics, everything=False):
    """Describe the start offsets of (topic, partitions), or all."""
    listed = [{"topic_name": topic.name, "partitions": list(which)} for topic, which in topics]
    wanted = [{"group_id": group, "topics": None if everything else listed}]
    talk.ask(DESCRIBE_SHARE_GROUP_OFFSETS, version, {"groups": wanted}, note=note)


def alter(talk, group, note, *topics):
    """Set the start offsets of (topic, {partition: offset})."""
    listed = [
        {
            "topic_name": topic.name,
            "partitions": [
                {"partition_index": index, "start_offset": start} for index, start in starts.items()
            ],
        }
        for topic, starts in topics
    ]
    talk.ask(ALTER_SHARE_GROUP_OFFSETS, 0, {"group_id": group, "topics": listed}, note=note)


def delete(talk, group, note, *topics):
    listed = [{"topic_name": topic.name} for topic in topics]
    talk.ask(DELETE_SHARE_GROUP_OFFSETS, 0, {"group_id": group, "topics": listed}, note=note)


@scene()
def a_heartbeat_is_checked_first(talk):
    group = prepared(talk)
    topic = talk.topic()

    def ask(note, **fields):
        Sharing(talk, group, "m").join(topic, note=note, **fields)

    ask("no group", group_id="")
    ask("a blank group", group_id=" ")
    ask("no member", member_id="")
    ask("a blank member", member_id=" ")
    ask("a long member", member_id="m" * 37)
    ask("no rack", rack_id="")
    ask("no subscription", subscribed_topic_names=None)
    ask("an empty subscription", subscribed_topic_names=[])
    ask("an epoch for a group that is not there", member_epoch=1)
    ask("leaves a group that is not there", member_epoch=-1)
    ask("epoch -2", member_epoch=-2)
    describe(talk, group, note="afterwards")


@scene()
def one_member_comes_stays_and_goes(talk):
    group = prepared(talk)
    topic, other = talk.topic(2), talk.topic()
    member = Sharing(talk, group, "m")
    member.join(topic)
    member.settle(2)
    member.beat("stays")
    member.beat("says all again", subscribed_topic_names=[topic.name])
    member.beat("a newer epoch", member_epoch=member.epoch + 1)
    member.beat("the epoch before", member_epoch=member.epoch - 1)
    describe(talk, group)
    member.beat("wants more", subscribed_topic_names=[topic.name, other.name])
    member.settle(3)
    member.beat("stays with more")
    describe(talk, group, note="with more")
    member.beat("wants less", subscribed_topic_names=[other.name])
    member.beat("wants what is not there", subscribed_topic_names=["nowhere"])
    member.join(other, note="joins again", member_epoch=0)
    member.beat("another one", member_id="n")
    member.beat("leaves", member_epoch=-1)
    member.beat("leaves twice", member_epoch=-1)
    member.beat("stays, though it left")
    describe(talk, group, note="empty")


@scene()
def two_members_share_a_partition(talk):
    group = prepared(talk)
    topic = talk.topic()
    one, two = Sharing(talk, group, "one"), Sharing(talk, group, "two", rack_id="r")
    one.join(topic)
    one.settle(1)
    two.join(topic)
    one.beat("stays")
    two.beat("stays")
    describe(talk, group, note="shared")
    one.beat("leaves", member_epoch=-1)
    two.beat("stays alone")
    describe(talk, group, note="of one", include_authorized_operations=True)
    two.beat("leaves", member_epoch=-1)
    describe(talk, group, note="empty")


@scene()
def share_groups_have_a_type(talk):
    group, classic = prepared(talk), group_of(talk, "classic")
    topic = talk.topic()
    member = Sharing(talk, group, "m").began(topic, count=1)
    old = Member(talk, classic)
    old.join()
    old.sync(given={old.id: b"all"})
    describe(talk, group, classic, f"{group}-unknown")
    talk.ask(DESCRIBE_GROUPS, 6, {"groups": [group]}, note="a share group")
    talk.ask(CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [group]}, note="a share group")
    for kinds in (["share"], ["Share"], ["classic"], []):
        body = {"states_filter": [], "types_filter": kinds}
        talk.ask(LIST_GROUPS, 5, body, note=f"types {kinds}", only=group)
    Sharing(talk, classic, "m").join(topic, note="joins a classic group")
    Member(talk, group).join("joins a share group")
    body = {"group_id": group, "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [topic.name], "topic_partitions": []}  # fmt: skip
    talk.ask(CONSUMER_GROUP_HEARTBEAT, 1, body, note="joins a share group")
    commit(talk, 9, group, "into a share group", (topic, [at()]))
    fetch(talk, 9, group, "of a share group", (topic, [0]))
    body = {"group_id": group, "topics": [{"name": topic.name, "partitions": [
        {"partition_index": 0}]}]}  # fmt: skip
    talk.ask(OFFSET_DELETE, 0, body, note="of a share group")
    talk.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, note="with a member")
    member.beat("leaves", member_epoch=-1)
    talk.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, note="empty")
    describe(talk, group, note="deleted")
    offsets(talk, 1, group, "deleted", (topic, [0]))


@scene()
def groups_with_offsets_alone_do_not_become_share_groups(talk):
    group, sharing, other = prepared(talk), group_of(talk, "sharing"), group_of(talk, "other")
    topic = talk.topic()
    body = {"member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [topic.name], "topic_partitions": []}  # fmt: skip
    commit(talk, 9, group, "without a member", (topic, [at()]))
    member = Sharing(talk, group, "m")
    member.join(topic, note="joins a group with offsets")
    alter(talk, group, "of a group with offsets", (topic, {0: 2}))
    fetch(talk, 9, group, "afterwards", (topic, [0]))
    describe(talk, group, note="of a group with offsets")
    talk.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, note="with offsets")
    Sharing(talk, sharing, "m").join(topic)
    Sharing(talk, sharing, "m").beat("leaves", member_epoch=-1)
    talk.ask(CONSUMER_GROUP_HEARTBEAT, 1, {"group_id": sharing, **body},
             note="joins an empty share group")  # fmt: skip
    commit(talk, 9, other, "without a member", (topic, [at()]))
    talk.ask(CONSUMER_GROUP_HEARTBEAT, 1, {"group_id": other, **body},
             note="joins a group with offsets", veil=["heartbeat_interval_ms"])  # fmt: skip
    Sharing(talk, other, "m").join(topic, note="joins a consumer group with offsets")
    leave = {**body, "group_id": other, "member_epoch": -1}
    talk.ask(CONSUMER_GROUP_HEARTBEAT, 1, leave, note="leaves")
    Sharing(talk, other, "m").join(topic, note="joins an empty consumer group")
    fetch(talk, 9, other, "afterwards", (topic, [0]))


@scene(DESCRIBE_SHARE_GROUP_OFFSETS)
def start_offsets_are_described(talk, version):
    group = prepared(talk)
    topic = talk.topic(2)
    talk.quietly(PRODUCE, 7, produce.body(topic, {0: batch(3)}))

    def ask(note, *topics, **which):
        offsets(talk, version, group, note, *topics, **which)

    ask("a group that is not there", (topic, [0]))
    ask("all of a group that is not there", everything=True)
    member = Sharing(talk, group, "m").began(topic, count=2)
    ask("all", everything=True)
    ask("some", (topic, [1, 0]))
    ask("what is not there", (topic._replace(name="nowhere"), [0]))
    ask("no topics")
    ask("no partitions", (topic, []))
    member.beat("leaves", member_epoch=-1)
    ask("all, of an empty group", everything=True)
    talk.ask(DESCRIBE_SHARE_GROUP_OFFSETS, version, {"groups": []}, note="no groups")


@scene()
def start_offsets_are_altered(talk):
    group = prepared(talk)
    topic, other = talk.topic(2), talk.topic()
    talk.quietly(PRODUCE, 7, produce.body(topic, {0: batch(3)}))
    nowhere = topic._replace(name="nowhere", id=b"\x07" * 16)
    alter(talk, group, "a group that is not there", (topic, {0: 2}))
    describe(talk, group, note="altered")
    offsets(talk, 1, group, "altered", everything=True)
    alter(talk, group, "back", (topic, {0: 1}))
    alter(talk, group, "both", (topic, {0: 3, 1: 0}), (other, {0: 5}))
    alter(talk, group, "what is not there", (topic, {2: 0}), (nowhere, {0: 0}))
    alter(talk, group, "nothing")
    alter(talk, group, "no partitions", (topic, {}))
    alter(talk, "", "no group", (topic, {0: 2}))
    offsets(talk, 1, group, "afterwards", everything=True)
    member = Sharing(talk, group, "m").began(topic, count=2)
    alter(talk, group, "with a member", (topic, {0: 2}))
    member.beat("leaves", member_epoch=-1)
    alter(talk, group, "without it", (topic, {0: 2}))
    offsets(talk, 1, group, "at the end", everything=True)


@scene()
def start_offsets_are_deleted(talk):
    group = prepared(talk)
    topic, other = talk.topic(2), talk.topic()
    nowhere = topic._replace(name="nowhere", id=b"\x07" * 16)
    delete(talk, group, "a group that is not there", topic)
    member = Sharing(talk, group, "m").began(topic, count=2)
    delete(talk, group, "with a member", topic)
    member.beat("leaves", member_epoch=-1)
    delete(talk, group, "what the group does not have", other, nowhere)
    delete(talk, group, "nothing")
    delete(talk, "", "no group", topic)
    offsets(talk, 1, group, "before", everything=True)
    delete(talk, group, "without a member", topic)
    offsets(talk, 1, group, "afterwards", everything=True)
    offsets(talk, 1, group, "afterwards, by name", (topic, [0, 1]))
    delete(talk, group, "twice", topic)
    describe(talk, group, note="afterwards")
