"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup: members and leaders of groups.

Left out: coordinators of transactions (coordinator.py); sessions that expire, which takes at least
six seconds.
"""

from __future__ import annotations

from kafkalite.protocol.schemas.groups import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
)
from tests.oracle.members import Member, await_members, await_state, group_of, together
from tests.oracle.scenes import scene

# Ids first from 4 on, static members from 5, protocol types from 7, a skipped assignment from 9.
SOME = (0, 1, 3, 4, 5, 7, 9)
TWO = (3, 9)
BOTH = (("range", b"r"), ("roundrobin", b"rr"))
GROUP, TRANSACTION, SHARE = 0, 1, 2


@scene(FIND_COORDINATOR)
def a_group_has_a_coordinator(talk, version):
    group = group_of(talk)

    def find(note, *keys, kind=GROUP):
        asked = {"coordinator_keys": list(keys)} if version >= 4 else {"key": keys[0]}
        if version >= 1:
            asked["key_type"] = kind
        talk.ask(FIND_COORDINATOR, version, asked, note=note)

    find("a group", group)
    find("an empty name", "")
    find("a long name", "g" * 300)
    if version >= 4:
        find("two", group, f"{group}-2")
        find("the same twice", group, group)
        find("nobody")
        find("one empty", group, "")
    if version >= 1:
        for kind in (-1, 3, 127):
            find(f"a thing of kind {kind}", group, kind=kind)
        for key in ("", "nothing", "a:b:c", f"{group}:AAAAAAAAAAAAAAAAAAAAAQ:0"):
            if version < 6 or key.count(":") != 2 or key == "a:b:c":
                find(f"a share {key[:7]!r}", key, kind=SHARE)


@scene(JOIN_GROUP)
def one_joins_alone(talk, version):
    member = Member(talk, group_of(talk), version)
    member.join()
    member.heartbeat("before it is given anything")
    member.sync(given={member.id: b"everything"})
    member.heartbeat()
    member.sync("again", given={member.id: b"another"})
    member.join("again")
    member.sync("of the next generation")
    old = member.generation - 1
    member.heartbeat("of the past", generation_id=old)
    member.sync("of the past", generation_id=old)
    member.heartbeat("of the future", generation_id=99)
    member.leave()
    member.leave("again")
    member.heartbeat("after it left")
    member.join("after it left")


@scene(JOIN_GROUP, versions=SOME)
def wishes_that_cannot_be(talk, version):
    group = group_of(talk)

    def wish(note, **more):
        Member(talk, group, version).join(note, **more)

    wish("no group", group_id="")
    for session_ms in (-1, 0, 1, 5_999, 1_800_001, 0x7FFFFFFF):
        wish(f"a session of {session_ms}", session_timeout_ms=session_ms)
    for member_id in ("nobody", "oracle-00000000-0000-4000-8000-000000000000"):
        wish(f"as {member_id[:9]}", member_id=member_id)
    wish("no kind", protocol_type="")
    wish("no protocols", protocols=[])
    wish("neither", protocols=[], protocol_type="")
    if version >= 5:
        wish("a static nobody", group_instance_id="i", member_id="nobody")
        wish("an empty instance", group_instance_id="")


@scene(JOIN_GROUP, versions=(5, 9))
def any_name_does_for_an_instance(talk, version):
    for place, name in enumerate(("..", "a/b", "ü", "i" * 300)):
        member = Member(talk, group_of(talk, f"group-{place}"), version, instance=name)
        member.join(f"an instance {name[:9]!r}")


@scene(JOIN_GROUP, versions=SOME)
def odd_wishes_that_can_be(talk, version):
    for place, (note, wish) in enumerate(
        {
            "a session at the least": {"session_timeout_ms": 6_000},
            "a session at the most": {"session_timeout_ms": 1_800_000},
            "a protocol without a name": {"protocols": [{"name": "", "metadata": b""}]},
            "another kind": {"protocol_type": "connect"},
        }.items()
    ):
        member = Member(talk, group_of(talk, f"group-{place}"), version).named()
        member.join(note, **wish)
        member.leave(note)
    if version >= 1:
        for patience_ms in (-1, 0, 0x7FFFFFFF):
            member = Member(talk, group_of(talk, f"group{patience_ms}"), version).named()
            member.join(f"patience of {patience_ms}", rebalance_timeout_ms=patience_ms)


@scene(JOIN_GROUP)
def two_share(talk, version):
    group = group_of(talk)
    first = Member(talk, group, version, name="first", protocols=BOTH)
    second = Member(talk, group, version, name="second", protocols=BOTH[::-1])
    first.join()
    first.sync(given={first.id: b"all"})
    second.named().begin_join()
    await_members(first, 2)
    first.heartbeat("while the other joins")
    first.sync("while the other joins")
    first.commit("nowhere", "while the other joins")
    first.begin_join()
    first.joined("again")
    second.joined()
    second.begin_sync()
    first.heartbeat("before it gave")
    first.sync(given={first.id: b"a half", second.id: b"the other"})
    second.hear(SYNC_GROUP, "")
    for member in (first, second):
        member.heartbeat()
        member.sync("again")
    second.join("again, as before")
    second.sync("after that")
    first.heartbeat("after that")
    second.protocols = (("range", b"changed"), ("roundrobin", b"rr"))
    second.begin_join()
    await_state(first, "PreparingRebalance")
    first.heartbeat("while the other changes")
    first.begin_join()
    first.joined("a third time")
    second.joined("changed")
    first.leave()
    second.heartbeat("alone")
    second.join("alone")


@scene(JOIN_GROUP, versions=SOME)
def a_leader_may_give_less_or_more(talk, version):
    group = group_of(talk)
    first = Member(talk, group, version, name="first")
    second = Member(talk, group, version, name="second")
    together(first, second)
    second.join("again, while nothing is given")
    first.join("again, while nothing is given")
    first.sync(given={first.id: b"a half", "nobody": b"the rest"})
    second.sync()
    first.heartbeat()
    second.heartbeat()


@scene(JOIN_GROUP, versions=SOME)
def strangers_do_not_share(talk, version):
    group = group_of(talk)
    first = Member(talk, group, version, name="first", protocols=BOTH)
    first.join()
    first.sync(given={first.id: b"all"})
    stranger = Member(talk, group, version, name="stranger")
    stranger.join("of another kind", protocol_type="connect")
    stranger.join("of no kind", protocol_type="")
    stranger.join("without a common protocol", protocols=[{"name": "sticky", "metadata": b""}])
    stranger.join("without protocols", protocols=[])
    first.heartbeat("unmoved")
    first.join("as another kind", protocol_type="connect")
    first.join("with another protocol", protocols=[{"name": "sticky", "metadata": b""}])


@scene(JOIN_GROUP, versions=SOME)
def the_protocol_is_the_one_most_want_of_those_all_know(talk, version):
    group = group_of(talk)
    wanted = {
        "first": ("a", "b", "c"), "second": ("c", "b"), "third": ("b", "c", "d"),
    }  # fmt: skip
    members = [
        Member(talk, group, version, name=name, protocols=[(each, name.encode()) for each in names])
        for name, names in wanted.items()
    ]
    together(*members)


@scene(SYNC_GROUP)
def who_may_sync(talk, version):
    member = Member(talk, group_of(talk), 9 if version == 5 else min(version + 1, 4))
    if version == 3:
        member.version = 5

    def sync(note, **more):
        asked = {
            "group_id": member.group, "member_id": member.id, "generation_id": member.generation,
            "assignments": [{"member_id": member.id, "assignment": b"all"}],
        }  # fmt: skip
        if version == 5:
            asked |= {"protocol_type": "consumer", "protocol_name": "range"}
        talk.ask(SYNC_GROUP, version, {**asked, **more}, note=note)

    sync("before anybody is in")
    member.join()
    sync("no group", group_id="")
    sync("another group", group_id="never-made")
    sync("nobody", member_id="nobody")
    sync("an empty member", member_id="")
    sync("another generation", generation_id=7)
    sync("no generation", generation_id=-1)
    if version >= 3:
        sync("an instance nobody has", group_instance_id="i")
    if version == 5:
        sync("another kind", protocol_type="connect")
        sync("another protocol", protocol_name="sticky")
        sync("no kind", protocol_type=None)
        sync("no protocol", protocol_name=None)
        sync("neither", protocol_name=None, protocol_type=None)
    sync("rightly")
    if version == 5:
        sync("another kind, after all was given", protocol_type="connect")
        sync("another protocol, after all was given", protocol_name="sticky")


@scene(HEARTBEAT)
def who_may_live(talk, version):
    member = Member(talk, group_of(talk), 9 if version >= 3 else version)

    def beat(note, **more):
        asked = {
            "group_id": member.group, "member_id": member.id, "generation_id": member.generation,
        }  # fmt: skip
        talk.ask(HEARTBEAT, version, {**asked, **more}, note=note)

    beat("before anybody is in")
    if member.version >= 4:
        member.named()
        beat("only with an id", generation_id=0)
    member.join()
    beat("before all is given")
    member.sync(given={member.id: b"all"})
    beat("well")
    beat("no group", group_id="")
    beat("another group", group_id="never-made")
    beat("nobody", member_id="nobody")
    beat("no member", member_id="")
    for generation in (-1, 0, 2):
        beat(f"in generation {generation}", generation_id=generation)
    if version >= 3:
        beat("an instance nobody has", group_instance_id="i")


@scene(LEAVE_GROUP, versions=range(3))
def a_member_leaves(talk, version):
    member = Member(talk, group_of(talk), 3)

    def leave(note, **more):
        asked = {"group_id": member.group, "member_id": member.id}
        talk.ask(LEAVE_GROUP, version, {**asked, **more}, note=note)

    leave("before anybody is in")
    member.join()
    leave("no group", group_id="")
    leave("another group", group_id="never-made")
    leave("nobody", member_id="nobody")
    leave("no member", member_id="")
    leave("well")
    leave("again")
    stays = Member(talk, member.group, 9).named()
    stays.leave("only with an id")


@scene(LEAVE_GROUP, versions=range(3, 6))
def members_leave_together(talk, version):
    group = group_of(talk)

    def leave(note, *members, group=group):
        listed = [{"member_id": id, "group_instance_id": instance} for id, instance in members]
        if version >= 5:
            listed = [{**each, "reason": "because"} for each in listed]
        talk.ask(LEAVE_GROUP, version, {"group_id": group, "members": listed}, note=note)

    leave("before anybody is in", ("nobody", None))
    leave("nobody of nothing")
    first = Member(talk, group, 9, name="first", protocols=[("range", b"1")])
    second = Member(talk, group, 9, name="second", protocols=[("range", b"2")])
    fixed = Member(talk, group, 9, name="fixed", instance="i-1", protocols=[("range", b"3")])
    moored = Member(talk, group, 9, name="moored", instance="i-2", protocols=[("range", b"4")])
    together(first, second, fixed, moored)
    leave("nobody")
    leave("no group", (first.id, None), group="")
    leave("another group", (first.id, None), group="never-made")
    leave("a stranger", ("nobody", None))
    leave("an instance nobody has", ("", "i-9"))
    leave("one instance with another's id", (moored.id, "i-1"))
    leave("a plain one with an instance", (first.id, "i-1"))
    leave("one and a stranger", (first.id, None), ("nobody", None))
    leave("an instance by its name", ("", "i-1"))
    leave("an instance and its id", (moored.id, "i-2"))
    leave("one twice", (second.id, None), (second.id, None))
    second.heartbeat("after it left")


@scene(JOIN_GROUP, versions=range(5, 10))
def a_static_member_comes_back(talk, version):
    group = group_of(talk)
    member = Member(talk, group, version, name="i", instance="i")
    member.join()
    member.sync(given={member.id: b"all"})
    again = Member(talk, group, version, name="i again", instance="i")
    again.join("from elsewhere")
    again.sync(given={again.id: b"more"})
    again.heartbeat()
    member.heartbeat("the one it was")
    member.sync("the one it was")
    member.commit("nowhere", "the one it was")
    member.join("the one it was", member_id=member.id)
    member.leave("the one it was")
    again.heartbeat("under another name", group_instance_id="j")
    again.heartbeat("without its name", group_instance_id=None)
    again.join("with its id")
    changed = Member(talk, group, version, name="i changed", instance="i")
    changed.protocols = [("range", b"something else")]
    changed.join()
    changed.sync(given={changed.id: b"else"})
    changed.leave(members=[{"member_id": "", "group_instance_id": "i"}])
    changed.heartbeat("after it left")


@scene(JOIN_GROUP, versions=range(5, 10))
def a_static_follower_comes_back(talk, version):
    group = group_of(talk)
    leader = Member(talk, group, version, name="leader", instance="l")
    follower = Member(talk, group, version, name="follower", instance="f")
    together(leader, follower)
    follower.begin_sync()
    leader.sync(given={leader.id: b"a half", follower.id: b"the other"})
    follower.hear(SYNC_GROUP, "")
    again = Member(talk, group, version, name="follower again", instance="f")
    again.join()
    again.sync()
    leader.heartbeat("unmoved")
    follower.heartbeat("fenced")
    back = Member(talk, group, version, name="leader again", instance="l")
    back.join()
    back.sync(given={back.id: b"most", again.id: b"little"})
    again.heartbeat("of the leader that came back")
    again.sync("of the leader that came back")


@scene(JOIN_GROUP, versions=(1, 4, 9))
def who_does_not_come_again_is_out(talk, version):
    group = group_of(talk)
    slow = Member(talk, group, version, name="slow")
    slow.named().join(rebalance_timeout_ms=300)
    slow.sync(given={slow.id: b"all"})
    second = Member(talk, group, version, name="second")
    second.named().begin_join(rebalance_timeout_ms=300)
    second.joined("once the patience is over")
    slow.heartbeat("out")
    slow.sync("out")
    second.heartbeat("in")


@scene(JOIN_GROUP, versions=TWO)
def metadata_may_be_large_or_nothing(talk, version):
    group = group_of(talk)
    member = Member(talk, group, version, protocols=[("range", bytes(100_000))])
    member.join("large")
    member.sync("large", given={member.id: bytes(100_000)})
    member.protocols = [("range", b"")]
    member.join("nothing")
    member.sync("nothing", given={member.id: b""})
