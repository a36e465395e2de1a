"""OffsetCommit, OffsetFetch, OffsetDelete: committed offsets.

Left out: offsets of transactions, and offsets that expire, which takes a week.
"""

from __future__ import annotations

import struct

from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from tests.oracle.conversation import Conversation, Topic, is_gone
from tests.oracle.members import Member, group_of
from tests.oracle.scenes import scene

# Retention times until 4, leader epochs from 6, instance ids from 7, topic ids from 10.
SOME = (2, 4, 5, 6, 7, 9, 10)
NOWHERE = Topic("never-made", b"\x07" * 16)


def at(index=0, offset=5, metadata: str | None = "", **more):
    return {
        "partition_index": index, "committed_offset": offset, "committed_metadata": metadata, **more
    }  # fmt: skip


def named(version, topic, **more):
    """Return a topic with the name or id that this version uses."""
    return {"topic_id": topic.id, **more} if version >= 10 else {"name": topic.name, **more}


def commit(talk, version, group, note, *topics, **more):
    listed = [named(version, topic, partitions=partitions) for topic, partitions in topics]
    body = {"group_id": group, "topics": listed, **more}
    talk.ask(OFFSET_COMMIT, version, body, note=note)


def fetch(talk, version, group, note, *topics, everything=False, **more):
    """Fetch the offsets of (topic, partitions), or all."""
    listed = [named(version, topic, partition_indexes=list(which)) for topic, which in topics]
    wanted = {"group_id": group, "topics": None if everything else listed}
    if version < 8:
        talk.ask(OFFSET_FETCH, version, {**wanted, **more}, note=note)
    else:
        stable = {"require_stable": more.pop("require_stable", False)}
        talk.ask(OFFSET_FETCH, version, {"groups": [{**wanted, **more}], **stable}, note=note)


def look(talk, group, note=""):
    """Fetch all committed offsets, in the version with the most fields."""
    fetch(talk, 9, group, note or "afterwards", everything=True)


@scene(OFFSET_COMMIT)
def whoever_reads_without_a_group_may_commit(talk, version):
    group = group_of(talk)
    topic, other = talk.topic(partitions=2), talk.topic()

    def ask(note, *topics, **more):
        commit(talk, version, group, note, *topics, **more)

    ask("one", (topic, [at()]))
    ask("two", (topic, [at(0, 6), at(1, 7)]), (other, [at(0, 8)]))
    ask("back", (topic, [at(0, 2)]))
    ask("the same twice", (topic, [at(0, 1), at(0, 3)]))
    ask("a topic twice", (topic, [at(0, 4)]), (topic, [at(1, 4)]))
    ask("an unknown topic", (NOWHERE, [at()]), (topic, [at(1, 9)]))
    ask("an unknown partition", (topic, [at(7), at(0, 10)]))
    ask("a negative partition", (topic, [at(-1)]))
    ask("beyond the end", (topic, [at(0, 1 << 60)]))
    for offset in (-1, -2, -1000):
        ask(f"offset {offset}", (topic, [at(1, offset)]))
    ask("nothing")
    ask("no partitions", (topic, []))
    ask("no group", (topic, [at()]), group_id="")
    # Other scenes use the group without a name, too, and must not find this.
    talk.quietly(DELETE_GROUPS, 2, {"groups_names": [""]})
    if version >= 6:
        ask("with an epoch", (topic, [at(0, 11, committed_leader_epoch=3)]))
        ask("with a negative epoch", (topic, [at(1, 11, committed_leader_epoch=-7)]))
    look(talk, group)


@scene(OFFSET_COMMIT, versions=SOME)
def a_note_may_be_left_with_an_offset(talk, version):
    group = group_of(talk)
    topic = talk.topic(partitions=3)
    notes = {
        "null": None, "a word": "wörd", "the most": "x" * 4096, "one more": "x" * 4097,
        "the most in two bytes each": "ü" * 2048, "more in bytes than in letters": "ü" * 4096,
    }  # fmt: skip
    for what, metadata in notes.items():
        commit(talk, version, group, what, (topic, [at(0, 5, metadata)]))
    both = [at(1, 6, "x" * 4097), at(2, 6, "good")]
    commit(talk, version, group, "one good, one too long", (topic, both))
    commit(talk, version, group, "null to where a word was", (topic, [at(2, 7, None)]))
    fetch(talk, 9, group, "afterwards", (topic, [1, 2]))


@scene(OFFSET_COMMIT, versions=range(2, 5))
def a_commit_may_say_how_long_it_is_kept(talk, version):
    group = group_of(talk)
    topic = talk.topic()
    for kept_ms in (-1, -2, 1, 1 << 40):
        commit(talk, version, group, f"{kept_ms} ms", (topic, [at()]), retention_time_ms=kept_ms)
        look(talk, group)


@scene(OFFSET_COMMIT, versions=SOME)
def a_group_with_members_has_offsets_of_members_only(talk, version):
    group = group_of(talk)
    topic = talk.topic()
    member = Member(talk, group)

    def ask(note, generation=-1, member_id="", **more):
        who = {"generation_id_or_member_epoch": generation, "member_id": member_id, **more}
        commit(talk, version, group, note, (topic, [at()]), **who)

    ask("a generation of an unknown group", generation=3)
    ask("a member of an unknown group", member_id="nobody")
    ask("both of an unknown group", generation=3, member_id="nobody")
    member.join()
    ask("before all is given", member.generation, member.id)
    member.sync(given={member.id: b"all"})
    ask("a member", member.generation, member.id)
    ask("a member without its generation", -1, member.id)
    ask("a generation without its member", member.generation, "")
    ask("neither")
    ask("a member of another generation", 99, member.id)
    ask("a stranger", member.generation, "nobody")
    if version >= 7:
        ask("an instance nobody has", member.generation, member.id, group_instance_id="i")
    member.leave()
    ask("after it left", member.generation, member.id)
    ask("neither, after it left")
    ask("a generation without a member, after it left", member.generation, "")
    ask("a stranger, after it left", -1, "nobody")
    look(talk, group)


@scene(OFFSET_FETCH)
def what_was_committed_is_told(talk, version):
    group = group_of(talk)
    topic, other = talk.topic(partitions=3), talk.topic()

    def ask(note, *topics, **more):
        fetch(talk, version, group, note, *topics, **more)

    ask("before anything", (topic, [0, 1]))
    if version >= 2:
        ask("everything, before anything", everything=True)
    many = [at(0, 5, "word", committed_leader_epoch=4), at(1, 0, None)]
    commit(talk, 9, group, "", (topic, many), (other, [at(0, 7, "")]))
    ask("all of it", (topic, [0, 1]), (other, [0]))
    ask("one without", (topic, [2, 0]))
    ask("no such partition", (topic, [9, -1]))
    ask("no such topic", (NOWHERE, [0]))
    ask("one such topic and one not", (NOWHERE, [0]), (topic, [0]))
    ask("the same twice", (topic, [0, 0]))
    ask("a topic twice", (topic, [0]), (topic, [1]))
    ask("nothing")
    ask("no partitions", (topic, []))
    fetch(talk, version, "", "no group", (topic, [0]))
    fetch(talk, version, "never-made", "unknown group", (topic, [0]))
    if version >= 2:
        ask("everything", everything=True)
        fetch(talk, version, "never-made", "everything of an unknown group", everything=True)
    if version >= 7:
        ask("only what is decided", (topic, [0, 2]), require_stable=True)


@scene(OFFSET_FETCH, versions=range(8, 11))
def several_groups_may_be_asked_for(talk, version):
    group, second = group_of(talk), group_of(talk, "second")
    topic = talk.topic()
    for each in (group, second):
        commit(talk, 9, each, "", (topic, [at()]))

    def ask(note, *groups):
        talk.ask(OFFSET_FETCH, version, {"groups": list(groups)}, note=note)

    def wish(name, **more):
        return {"group_id": name, "topics": [named(version, topic, partition_indexes=[0])], **more}

    ask("two", wish(group), wish(second))
    ask("one twice", wish(group), wish(group))
    ask("one known, one not", wish(group), wish("never-made"))
    ask("one named, one not", wish(group), wish(""))
    ask("none")
    ask("one wholly, one in part", wish(group, topics=None), wish(second))
    if version >= 9:
        for member_id, epoch in ((None, -1), ("", -1), ("nobody", -1), ("nobody", 0), (None, 4)):
            as_one = wish(group, member_id=member_id, member_epoch=epoch)
            ask(f"as {member_id} in epoch {epoch}", as_one)


@scene(OFFSET_FETCH, versions=(9, 10))
def members_may_say_who_they_are(talk, version):
    group = group_of(talk)
    topic = talk.topic()
    member = Member(talk, group)
    member.join()
    member.sync(given={member.id: b"all"})
    member.commit(topic.name)
    for note, member_id, epoch in (
        ("a member", member.id, member.generation),
        ("a member of another generation", member.id, 99),
        ("a member of no generation", member.id, -1),
        ("a stranger", "nobody", member.generation),
        ("nobody", None, -1),
    ):
        fetch(talk, version, group, note, (topic, [0]), member_id=member_id, member_epoch=epoch)


@scene(OFFSET_COMMIT, versions=(9, 10))
def offsets_go_with_their_topic(talk, version):
    group = group_of(talk)
    topic, other = talk.topic(), talk.topic()
    commit(talk, version, group, "", (topic, [at()]), (other, [at()]))
    talk.quietly(DELETE_TOPICS, 6, {"topics": [{"name": topic.name}], "timeout_ms": 5000})
    talk.await_metadata(topic.name, is_gone)
    talk.await_answer(OFFSET_FETCH, 9, everything_of(group), has_one_topic)
    fetch(talk, version, group, "what is gone", (topic, [0]), (other, [0]))
    fetch(talk, version, group, "everything", everything=True)
    commit(talk, version, group, "of what is gone", (topic, [at()]), (other, [at(0, 6)]))


def everything_of(group):
    return {"groups": [{"group_id": group, "topics": None}]}


def has_one_topic(answer):
    return len(answer.groups[0].topics) == 1


def subscription(*topics: str) -> bytes:
    """Return a consumer's subscription in the consumer protocol."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def delete(talk: Conversation, group, note, *topics):
    listed = [
        {"name": topic.name, "partitions": [{"partition_index": index} for index in which]}
        for topic, which in topics
    ]
    talk.ask(OFFSET_DELETE, 0, {"group_id": group, "topics": listed}, note=note)


@scene()
def offsets_are_deleted(talk):
    group = group_of(talk)
    topic = talk.topic(partitions=3)
    delete(talk, group, "of an unknown group", (topic, [0]))
    delete(talk, "", "of no group", (topic, [0]))
    commit(talk, 9, group, "", (topic, [at(0), at(1), at(2)]))
    delete(talk, group, "one", (topic, [0]))
    delete(talk, group, "again", (topic, [0]))
    delete(talk, group, "no such partition", (topic, [9, -1]))
    delete(talk, group, "no such topic", (NOWHERE, [0]), (topic, [1]))
    delete(talk, group, "nothing")
    delete(talk, group, "no partitions", (topic, []))
    look(talk, group)
    delete(talk, group, "the same twice", (topic, [2, 2]))
    look(talk, group, "when all are gone")
    delete(talk, group, "of a group without offsets", (topic, [0]))


@scene()
def offsets_of_what_is_read_are_not_deleted(talk):
    group = group_of(talk)
    read, unread = talk.topic(), talk.topic()
    member = Member(talk, group, protocols=[("range", subscription(read.name))])
    member.join()
    member.sync(given={member.id: b""})
    member.commit(read.name)
    member.commit(unread.name)
    delete(talk, group, "of both", (read, [0]), (unread, [0]))
    look(talk, group)
    member.leave()
    delete(talk, group, "after it left", (read, [0]))
    other = Member(talk, group_of(talk, "other"), kind="connect", protocols=[("x", b"\0")])
    other.join()
    other.commit(read.name)
    delete(talk, other.group, "of a group that is no consumer's", (read, [0]))
