"""Members of groups for a scene: each on its own connection, each in any version.

A Member keeps its id and its generation, as a client does, and sends them unless other values are
given.  Its requests are recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.groups import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    SYNC_GROUP,
)
from tests.oracle.conversation import WAIT_S, Conversation

NOT_YET = (14, 15, 16)
MEMBER_ID_REQUIRED = 79
RANGE = (("range", b"what range wants"),)
SESSION_MS = 10_000


def group_of(talk: Conversation, name: str = "group") -> str:
    """Return a group name unique to the scene, after its coordinator is found and loaded."""
    group = f"{talk.scene}-{name}"
    begun = time.monotonic()
    while True:
        found = talk.quietly(FIND_COORDINATOR, 1, {"key": group, "key_type": 0})
        if found is not None and found.error_code == 0:
            told = talk.quietly(DESCRIBE_GROUPS, 0, {"groups": [group]})
            if told is not None and told.groups[0].error_code not in NOT_YET:
                return group
        assert found is not None, "a broker without groups"
        # The offsets topic may have to be created first.
        assert time.monotonic() - begun < WAIT_S, f"no coordinator: {found}"
        time.sleep(0.01)


def newest(api: Api, version: int) -> int:
    """Return the version of another API that a client of this version would use."""
    return min(version, api.versions[1])


class Member:
    """One member of one group."""

    def __init__(
        self,
        talk: Conversation,
        group: str,
        version: int = 9,
        *,
        name: str = "",
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        kind: str = "consumer",
    ) -> None:
        self.talk = talk.beside()
        self.group = group
        self.version = version
        self.name = name
        self.instance = instance
        self.protocols = protocols
        self.kind = kind
        self.id = ""
        self.generation = -1
        self.protocol = ""

    def body(self, **more: object) -> dict[str, object]:
        """Return the fields of the member that all these APIs share."""
        said: dict[str, object] = {"group_id": self.group, "member_id": self.id}
        if self.instance is not None:
            said["group_instance_id"] = self.instance
        return {**said, **more}

    def asked(self, api: Api, note: str, body: dict[str, object]) -> Fields | None:
        self.begin(api, body)
        return self.hear(api, note)

    def begin(self, api: Api, body: dict[str, object]) -> None:
        self.talk.begin(api, newest(api, self.version), body)

    def hear(self, api: Api, note: str) -> Fields | None:
        note = f"{self.name}: {note}" if self.name and note else note or self.name
        return self.talk.hear(api, newest(api, self.version), note=note)

    # Joining

    def wish(self, **more: object) -> dict[str, object]:
        wish = self.body(
            session_timeout_ms=SESSION_MS,
            protocol_type=self.kind,
            protocols=[{"name": name, "metadata": metadata} for name, metadata in self.protocols],
        )
        if self.version >= 1:
            wish["rebalance_timeout_ms"] = SESSION_MS
        return {**wish, **more}

    def join(self, note: str = "", **more: object) -> Fields | None:
        """Join, and join again with the id if the first response only assigned one."""
        self.begin_join(**more)
        joined = self.joined(note)
        if joined is not None and joined.error_code == MEMBER_ID_REQUIRED and not more:
            return self.join(f"{note} with the id it was given".strip())
        return joined

    def begin_join(self, **more: object) -> None:
        self.begin(JOIN_GROUP, self.wish(**more))

    def joined(self, note: str = "") -> Fields | None:
        joined = self.hear(JOIN_GROUP, note)
        if joined is not None and joined.error_code in (0, MEMBER_ID_REQUIRED):
            self.id = joined.member_id
        if joined is not None and joined.error_code == 0:
            self.generation = joined.generation_id
            self.protocol = joined.protocol_name
        return joined

    def named(self) -> Member:
        """Obtain a member id first, in versions that require it."""
        if self.version >= 4 and self.instance is None:
            answer = self.talk.quietly(
                JOIN_GROUP, newest(JOIN_GROUP, self.version), self.wish(member_id="")
            )
            assert answer is not None and answer.error_code == MEMBER_ID_REQUIRED, f"{answer}"
            self.id = answer.member_id
            # Members are numbered in the order of their appearance in the record.
            self.talk.plain(answer)
        return self

    # In the group

    def begin_sync(self, given: Mapping[str, bytes] | None = None, **more: object) -> None:
        assignments = [
            {"member_id": member, "assignment": share} for member, share in (given or {}).items()
        ]
        now: dict[str, object] = {"generation_id": self.generation, "assignments": assignments}
        if newest(SYNC_GROUP, self.version) >= 5:
            now |= {"protocol_type": self.kind, "protocol_name": self.protocol}
        self.begin(SYNC_GROUP, {**self.body(), **now, **more})

    def sync(
        self, note: str = "", given: Mapping[str, bytes] | None = None, **more: object
    ) -> Fields | None:
        self.begin_sync(given, **more)
        return self.hear(SYNC_GROUP, note)

    def heartbeat(self, note: str = "", **more: object) -> Fields | None:
        return self.asked(HEARTBEAT, note, self.body(**{"generation_id": self.generation, **more}))

    def commit(self, topic: str, note: str = "", **more: object) -> Fields | None:
        body = self.body(generation_id_or_member_epoch=self.generation)
        body["topics"] = [
            {"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 3}]}
        ]
        return self.asked_as(OFFSET_COMMIT, 7, note, {**body, **more})

    def asked_as(
        self, api: Api, version: int, note: str, body: dict[str, object]
    ) -> Fields | None:
        note = f"{self.name}: {note}" if self.name and note else note or self.name
        return self.talk.ask(api, version, body, note=note)

    def leave(self, note: str = "", **more: object) -> Fields | None:
        version = newest(LEAVE_GROUP, self.version)
        who: dict[str, object] = {"member_id": self.id}
        if version >= 3:
            who = {"members": [{**who, "group_instance_id": self.instance}]}
        return self.asked(LEAVE_GROUP, note, {"group_id": self.group, **who, **more})


def together(leader: Member, *followers: Member, note: str = "together") -> None:
    """Bring all members into one generation with the first as leader; record their responses.

    They join one after the other, so that on every broker the first is first.
    """
    if leader.generation < 0:
        leader.join(note)
    for count, follower in enumerate(followers, start=2):
        follower.named()
        follower.begin_join()
        await_members(leader, count)
    leader.begin_join()
    leader.joined(note)
    for follower in followers:
        follower.joined(note)


def await_members(member: Member, count: int) -> None:
    """Wait until the group has `count` members, including those that wait for a response."""
    await_group(member, lambda group: len(group.members) == count)


def await_state(member: Member, state: str) -> None:
    """Wait until the group is in this state."""
    await_group(member, lambda group: group.group_state == state)


def await_group(member: Member, wanted: Callable[[Fields], bool]) -> None:
    asked = {"groups": [member.group]}
    member.talk.await_answer(DESCRIBE_GROUPS, 0, asked, lambda answer: wanted(answer.groups[0]))
