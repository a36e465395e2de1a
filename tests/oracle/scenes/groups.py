"""DescribeGroups, ListGroups, DeleteGroups: administration of groups."""

from __future__ import annotations

from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.cluster import DESCRIBE_TOPIC_PARTITIONS, METADATA
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    SYNC_GROUP,
)
from kafkalite.protocol.schemas.offsets import DELETE_RECORDS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS
from tests.oracle.batches import batch
from tests.oracle.conversation import Topic
from tests.oracle.members import Member, await_members, group_of, together
from tests.oracle.scenes import committed, configs, produce, scene

WHERE_IT_LIES = ("high_watermark", "last_stable_offset", "log_start_offset")
BOTH = (("range", b"r"), ("roundrobin", b"rr"))


@scene(DESCRIBE_GROUPS)
def groups_are_described_in_every_state(talk, version):
    group = group_of(talk)

    def describe(note, *groups, **more):
        asked = {"groups": list(groups or [group]), **more}
        talk.ask(DESCRIBE_GROUPS, version, asked, note=note)

    describe("unknown")
    describe("no name", "")
    first = Member(talk, group, name="first", protocols=BOTH)
    second = Member(talk, group, name="second", instance="i", protocols=BOTH)
    first.join()
    describe("while all is to be given")
    first.sync(given={first.id: b"all"})
    describe("stable")
    describe("the same twice", group, group)
    describe("one known, one not", group, "never-made")
    second.begin_join()
    await_members(first, 2)
    describe("while members join")
    first.begin_join()
    first.joined()
    second.joined()
    second.begin_sync()
    first.sync(given={first.id: b"a half", second.id: b"the other"})
    second.hear(SYNC_GROUP, "")
    describe("stable with two")
    if version >= 3:
        describe("with operations", include_authorized_operations=True)
        describe("unknown with operations", "never-made", include_authorized_operations=True)
    second.leave()
    first.leave()
    describe("empty")
    talk.ask(DESCRIBE_GROUPS, version, {"groups": []}, note="none")


@scene(DESCRIBE_GROUPS, versions=(0, 6))
def a_group_may_be_nothing_but_offsets(talk, version):
    group = group_of(talk)
    committed.commit(talk, 9, group, "", (talk.topic(), [committed.at()]))
    talk.ask(DESCRIBE_GROUPS, version, {"groups": [group]})
    talk.ask(LIST_GROUPS, min(version, 5), {}, only=group)


@scene(LIST_GROUPS)
def groups_are_listed(talk, version):
    group = group_of(talk)

    def listed(note, **more):
        talk.ask(LIST_GROUPS, version, more, note=note, only=group)

    listed("before it is there")
    member = Member(talk, group, kind="connect", protocols=BOTH)
    member.join()
    listed("while all is to be given")
    member.sync(given={member.id: b"all"})
    listed("stable")
    if version >= 4:
        for states in (
            ["Stable"], ["stable"], ["Empty"], ["Empty", "Stable"], ["Dead"], ["No"],
            ["No", "Stable"], [""], ["Assigning"], ["CompletingRebalance"],
        ):  # fmt: skip
            listed(f"in states {states}", states_filter=states)
    if version >= 5:
        for types in (["classic"], ["Classic"], ["consumer"], ["no"], [""], ["no", "classic"]):
            listed(f"of types {types}", types_filter=types)
        listed("of both", states_filter=["Stable"], types_filter=["classic"])
        listed("of neither", states_filter=["Empty"], types_filter=["classic"])
    member.leave()
    listed("empty")
    if version >= 4:
        listed("only the empty", states_filter=["Empty"])


@scene(DELETE_GROUPS)
def groups_are_deleted(talk, version):
    group = group_of(talk)
    topic = talk.topic()
    member = Member(talk, group)

    def delete(note, *groups):
        talk.ask(DELETE_GROUPS, version, {"groups_names": list(groups)}, note=note)

    delete("unknown", group)
    delete("no name", "")
    delete("none")
    member.named()
    delete("with somebody who only has an id", group)
    member.join()
    member.sync(given={member.id: b"all"})
    member.commit(topic.name)
    delete("not empty", group)
    member.heartbeat("unharmed")
    member.leave()
    delete("empty, and one unknown", group, "never-made")
    delete("again", group)
    committed.look(talk, group)
    talk.ask(DESCRIBE_GROUPS, 6, {"groups": [group]})
    committed.commit(talk, 9, group, "", (topic, [committed.at()]))
    delete("nothing but offsets, twice", group, group)
    back = Member(talk, group, name="back")
    back.join()


@scene()
def a_group_begins_anew_after_it_was_deleted(talk):
    group = group_of(talk)
    first, second = Member(talk, group, name="first"), Member(talk, group, name="second")
    together(first, second)
    for member in (first, second):
        member.leave()
    talk.ask(DELETE_GROUPS, 2, {"groups_names": [group]})
    again = Member(talk, group, name="again", kind="connect", protocols=BOTH)
    again.join()
    again.sync(given={again.id: b"all"})
    talk.ask(DESCRIBE_GROUPS, 6, {"groups": [group]})


@scene()
def what_groups_are_kept_in_is_not_for_everybody(talk):
    group_of(talk)
    internal = Topic("__consumer_offsets", NO_ID)
    asked = {"topics": [{"name": internal.name}], "allow_auto_topic_creation": False}
    talk.ask(METADATA, 9, asked, veil=("brokers",))
    pages = {"topics": [{"name": internal.name}]}
    talk.ask(DESCRIBE_TOPIC_PARTITIONS, 0, pages, veil=("topic_id",))
    wish = {"name": internal.name, "num_partitions": 1, "replication_factor": 1}
    talk.ask(CREATE_TOPICS, 7, {"topics": [wish], "timeout_ms": 5000})
    for version in (3, 7, 12):
        talk.ask(PRODUCE, version, produce.body(internal, {0: batch()}))
    resource = {
        "resource_type": configs.TOPIC, "resource_name": internal.name,
        "configuration_keys": ["cleanup.policy", "compression.type", "segment.bytes"],
    }  # fmt: skip
    talk.ask(DESCRIBE_CONFIGS, 4, {"resources": [resource]})
    deletion = [{"name": internal.name, "partitions": [{"partition_index": 0, "offset": 0}]}]
    talk.ask(DELETE_RECORDS, 2, {"topics": deletion, "timeout_ms": 5000})
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 0}]
    body = {"topics": [{"topic": internal.name, "partitions": wanted}], "max_bytes": 0}
    talk.ask(FETCH, 12, body, veil=("records", *WHERE_IT_LIES))
    committed.commit(talk, 9, f"{talk.scene}-of-itself", "of itself", (internal, [committed.at()]))
