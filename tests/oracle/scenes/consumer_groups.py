"""ConsumerGroupHeartbeat, ConsumerGroupDescribe, and offsets with member epochs (KIP-848).

The groups compute their assignments without an interval, as small groups of kafkalite do.

Left out: sessions and rebalances that expire, which takes seconds; lookups of regular expressions,
which have no time at which they must be done.
"""

from __future__ import annotations

from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_DELETE,
)
from tests.oracle.members import Member, group_of
from tests.oracle.scenes import scene
from tests.oracle.scenes.committed import at, commit, fetch

GROUP_RESOURCE = 32


def prepared(talk, name="group"):
    """Return a group without an assignment interval."""
    group = group_of(talk, name)
    config = {"name": "consumer.assignment.interval.ms", "value": "0", "config_operation": 0}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
    answer = talk.quietly(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
    assert answer.responses[0].error_code == 0, answer.responses[0]
    return group


def owned(*partitions):
    """Return partitions, given as (topic, index, …), as in a heartbeat."""
    return [{"topic_id": topic.id, "partitions": list(which)} for topic, *which in partitions]


class Beating:
    """One member; each heartbeat has its member epoch."""

    def __init__(self, talk, group, name, version=1, **always):
        self.talk = talk
        self.group = group
        self.name = name
        self.version = version
        self.always = always
        self.epoch = 0

    def beat(self, note, **fields):
        body = {"group_id": self.group, "member_id": self.name, "member_epoch": self.epoch}
        heard = self.talk.ask(
            CONSUMER_GROUP_HEARTBEAT, self.version, {**body, **self.always, **fields},
            note=f"{self.name}: {note}", veil=["heartbeat_interval_ms"],
        )  # fmt: skip
        if heard is not None and heard.error_code == 0 and heard.member_epoch >= 0:
            self.epoch = heard.member_epoch
        return heard

    def join(self, *topics, note="joins", **fields):
        names = [topic.name for topic in topics]
        wanted = {"subscribed_topic_names": names, "topic_partitions": []}
        return self.beat(note, **{"rebalance_timeout_ms": 60_000, **wanted, **fields})


def describe(talk, *groups, note="", version=1):
    talk.ask(CONSUMER_GROUP_DESCRIBE, version, {"group_ids": list(groups)}, note=note)


@scene(CONSUMER_GROUP_HEARTBEAT)
def a_heartbeat_is_checked_first(talk, version):
    group = prepared(talk)
    topic = talk.topic()

    def ask(note, **fields):
        Beating(talk, group, "m", version).join(topic, note=note, **fields)

    ask("no group", group_id="")
    ask("a blank group", group_id=" ")
    ask("a blank member", member_id=" ")
    ask("no instance", instance_id="")
    ask("a blank instance", instance_id=" ")
    ask("no rack", rack_id="")
    ask("no rebalance timeout", rebalance_timeout_ms=-1)
    ask("nothing owned", topic_partitions=None)
    ask("something owned", topic_partitions=owned((topic, 0)))
    ask("no subscription", subscribed_topic_names=None)
    ask("an assignor nobody has", server_assignor="sticky")
    ask("an epoch for a group that is not there", member_epoch=1)
    ask("leaves a group that is not there", member_epoch=-1)
    ask("a static leave without an instance", member_epoch=-2)
    ask("epoch -3", member_epoch=-3)
    if version >= 1:
        ask("no member", member_id="")
        ask("an invalid expression", subscribed_topic_names=None, subscribed_topic_regex="(")
        ask("look-ahead", subscribed_topic_names=None, subscribed_topic_regex="(?=a)b")
    describe(talk, group, note="afterwards")


@scene(CONSUMER_GROUP_HEARTBEAT)
def one_member_comes_stays_and_goes(talk, version):
    group = prepared(talk)
    topic, other = talk.topic(2), talk.topic()
    member = Beating(talk, group, "m", version)
    member.join(topic)
    member.beat("stays")
    member.beat("owns all", topic_partitions=owned((topic, 0, 1)))
    member.beat("says all again", rebalance_timeout_ms=60_000,
                subscribed_topic_names=[topic.name],
                topic_partitions=owned((topic, 0, 1)))  # fmt: skip
    member.beat("a newer epoch", member_epoch=member.epoch + 1)
    member.beat("an older epoch", member_epoch=member.epoch - 1)
    describe(talk, group)
    member.beat("wants more", subscribed_topic_names=[topic.name, other.name])
    member.beat("owns it", topic_partitions=owned((topic, 0, 1), (other, 0)))
    member.beat("wants less", subscribed_topic_names=[other.name])
    describe(talk, group, note="before it lets go")
    member.beat("lets go", topic_partitions=owned((other, 0)))
    member.beat("wants what is not there", subscribed_topic_names=["nowhere"])
    member.beat("lets go again", topic_partitions=[])
    member.join(other, note="joins again", member_epoch=0)
    member.beat("another one", member_id="n")
    member.beat("leaves", member_epoch=-1)
    member.beat("leaves twice", member_epoch=-1)
    member.beat("stays")
    describe(talk, group, note="empty")


@scene()
def two_members_share_what_one_had(talk):
    group = prepared(talk)
    topic = talk.topic(4)
    one, two = Beating(talk, group, "one"), Beating(talk, group, "two")
    one.join(topic)
    one.beat("owns all", topic_partitions=owned((topic, 0, 1, 2, 3)))
    two.join(topic)
    two.beat("waits", topic_partitions=[])
    before = one.epoch
    heard = one.beat("learns what to revoke")
    (kept,) = heard.assignment.topic_partitions
    one.beat("has not let go", topic_partitions=owned((topic, 0, 1, 2, 3)))
    one.beat("does not say what it owns")
    describe(talk, group, note="while one has to revoke")
    two.beat("still waits", topic_partitions=[])
    mine = owned((topic, *kept.partitions))
    one.beat("has let go", topic_partitions=mine)
    one.beat("lost the response", member_epoch=before, topic_partitions=mine)
    one.beat("lost it, and owns others'", member_epoch=before,
             topic_partitions=owned((topic, 0, 1, 2, 3)))  # fmt: skip
    one.beat("lost it, and does not say what it owns", member_epoch=before)
    two.beat("gets the rest", topic_partitions=[])
    describe(talk, group, note="shared")
    one.beat("leaves", member_epoch=-1)
    two.beat("gets all")
    two.beat("leaves", member_epoch=-1)
    describe(talk, group, note="empty")


@scene()
def a_static_member_goes_away_and_comes_back(talk):
    group = prepared(talk)
    topic = talk.topic(2)
    first = Beating(talk, group, "first", instance_id="i")
    second = Beating(talk, group, "second", instance_id="i")
    first.join(topic)
    second.join(topic, note="joins under a name in use")
    second.beat("stays under a name in use", member_epoch=first.epoch)
    second.beat("leaves under a name in use", member_epoch=-2)
    first.beat("goes away", member_epoch=-2)
    describe(talk, group, note="away")
    first.beat("stays, though away")
    second.join(topic, note="takes the place")
    first.beat("was replaced")
    describe(talk, group, note="replaced")
    second.beat("leaves for good", member_epoch=-1)
    second.beat("an instance nobody has", member_epoch=3)
    describe(talk, group, note="empty")


@scene()
def members_choose_an_assignor(talk):
    group = prepared(talk)
    topic = talk.topic(3)
    one, two = Beating(talk, group, "one"), Beating(talk, group, "two")
    one.join(topic, server_assignor="range")
    two.join(topic, server_assignor="range")
    describe(talk, group, note="range")
    for _ in range(2):
        one.beat("chooses", server_assignor="uniform")
        two.beat("chooses", server_assignor="uniform")
    describe(talk, group, note="uniform")


@scene()
def offsets_have_member_epochs(talk):
    group = prepared(talk)
    topic = talk.topic(2)
    one, two = Beating(talk, group, "one"), Beating(talk, group, "two")
    one.join(topic)
    older = one.epoch
    two.join(topic)
    heard = one.beat("learns what to revoke")
    (mine,) = heard.assignment.topic_partitions[0].partitions

    def offsets(note):
        for version in (8, 9, 10):
            for words, epoch in (("now", one.epoch), ("then", older), ("soon", one.epoch + 1)):
                who = {"generation_id_or_member_epoch": epoch, "member_id": "one"}
                for index in (mine, 1 - mine):
                    owns = "its own" if index == mine else "the other"
                    commit(talk, version, group, f"{note}, {words}, {owns}",
                           (topic, [at(index)]), **who)  # fmt: skip
        for version in (9, 10):
            for words, epoch in (("now", one.epoch), ("then", older), ("soon", one.epoch + 1)):
                fetch(talk, version, group, f"{note}, {words}", (topic, [0, 1]),
                      member_id="one", member_epoch=epoch)  # fmt: skip

    offsets("before it lets go")
    one.beat("has let go", topic_partitions=owned((topic, mine)))
    two.beat("gets the rest", topic_partitions=[])
    offsets("shared")
    for version in (9, 10):
        commit(talk, version, group, "nobody", (topic, [at()]), member_id="nobody",
               generation_id_or_member_epoch=one.epoch)  # fmt: skip
        commit(talk, version, group, "without a member", (topic, [at()]))
        fetch(talk, version, group, "nobody", (topic, [0]), member_id="nobody",
              member_epoch=one.epoch)  # fmt: skip
        fetch(talk, version, group, "an epoch alone", (topic, [0]), member_epoch=one.epoch)
        fetch(talk, version, group, "without a member", (topic, [0]))
    body = {"group_id": group, "topics": [{"name": topic.name, "partitions": [
        {"partition_index": 0}]}]}  # fmt: skip
    talk.ask(OFFSET_DELETE, 0, body, note="of a subscribed topic")
    for member in (one, two):
        member.beat("leaves", member_epoch=-1)
    talk.ask(OFFSET_DELETE, 0, body, note="of an empty group")
    commit(talk, 9, group, "into an empty group", (topic, [at()]))


@scene(CONSUMER_GROUP_DESCRIBE)
def groups_are_described_listed_and_deleted_by_their_type(talk, version):
    group, classic = prepared(talk), group_of(talk, "classic")
    topic = talk.topic(2)
    member = Beating(talk, group, "m", rack_id="r")
    member.join(topic)
    old = Member(talk, classic)
    old.join()
    old.sync(given={old.id: b"all"})
    describe(talk, group, classic, f"{group}-unknown", "", version=version)
    for of_groups in (5, 6):
        body = {"groups": [group]}
        talk.ask(DESCRIBE_GROUPS, of_groups, body, note="a consumer group")
    for kinds in (["consumer"], ["Consumer"], ["classic"], []):
        body = {"states_filter": [], "types_filter": kinds}
        talk.ask(LIST_GROUPS, 5, body, note=f"types {kinds}", only=group)
    talk.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, note="with a member")
    Beating(talk, classic, "x").join(topic, note="joins a group of unknown metadata")
    member.beat("leaves", member_epoch=-1)
    talk.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, note="empty")
    describe(talk, group, note="deleted", version=version)
