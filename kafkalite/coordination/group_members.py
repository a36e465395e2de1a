"""The members of a classic group: who is there, what they speak, and who waits for an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kafkalite.coordination.group_turn import NOBODY
from kafkalite.errors import FencedInstanceId, UnknownMemberId
from kafkalite.protocol.schemas.group_records import subscribed_topics

MEMBER_SIZE = 1_000
PROTOCOL_SIZE = 300
"""What a member, and each protocol that it speaks, take in memory besides their texts, about."""

TOPICS_MAX = 100_000


class State(StrEnum):
    """Where a group stands; a Dead one is not there at all."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Member:
    """One member; `protocols` are those it speaks, the one it likes best first."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    is_new: bool = False  # it has not been told yet that it is a member
    join_token: Any = NOBODY
    sync_token: Any = NOBODY
    size: int = field(default=0, compare=False)

    @property
    def excused(self) -> bool:
        """Whether it need not be heard, since it waits for an answer from here."""
        waits = self.join_token is not NOBODY or self.sync_token is not NOBODY
        return waits and not self.is_new

    def weighed(self) -> int:
        """What it takes in memory, about."""
        texts = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        return spoken_size(self.protocols.items()) + sum(map(len, texts)) + len(self.assignment)

    def kept(self, protocol: str | None, assignment: bytes) -> dict[str, Any]:
        """As the group's record says it."""
        return {
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "rebalance_timeout": self.rebalance_timeout_ms,
            "session_timeout": self.session_timeout_ms,
            "subscription": b"" if protocol is None else self.protocols[protocol],
            "assignment": assignment,
        }

    @classmethod
    def restored(cls, kept: dict[str, Any], protocol: str | None) -> Member:
        """The member that a group's record tells of; it spoke more, but this was agreed on."""
        rebalance_timeout_ms = kept["rebalance_timeout"]
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = kept["session_timeout"]
        return cls(
            kept["member_id"],
            kept["group_instance_id"],
            kept["client_id"],
            kept["client_host"],
            rebalance_timeout_ms,
            kept["session_timeout"],
            {protocol or "": kept["subscription"]},
            kept["assignment"],
        )

    def described(self, protocol: str | None) -> dict[str, Any]:
        """As DescribeGroups shows it; its metadata in a protocol that is agreed on."""
        return {
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "member_metadata": b"" if protocol is None else self.protocols.get(protocol, b""),
            "member_assignment": self.assignment,
        }


def spoken_size(protocols: Iterable[tuple[str, bytes]]) -> int:
    """What a member that speaks these takes in memory at least, about."""
    return MEMBER_SIZE + sum(
        PROTOCOL_SIZE + len(name) + len(metadata) for name, metadata in protocols
    )


class AnyTopic:
    """All topics there are."""

    def __contains__(self, topic: object) -> bool:
        return True


ANY_TOPIC = AnyTopic()


class Members:
    """The members of one group, in the order in which they came."""

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.by_instance: dict[str, Member] = {}
        self.joined_count = 0
        """How many wait for the answer to their JoinGroup."""
        self.size = 0
        """What they take in memory, about."""
        self._speakers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter([*self.by_id.values()])

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    # -- who is there ------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        assert member.member_id not in self.by_id
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.by_instance
            self.by_instance[member.instance_id] = member
        self._speakers.update([*member.protocols])
        self.joined_count += member.join_token is not NOBODY
        self.weigh(member)

    def remove(self, member: Member) -> None:
        """Its tokens are answered before."""
        assert member.join_token is member.sync_token is NOBODY
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        self._silence(member)
        self.size -= member.size
        member.size = 0

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member the id of the process that has taken its place."""
        del self.by_id[member.member_id]
        member.member_id = member_id
        self.by_id[member_id] = member
        self.weigh(member)

    def known(self, member_id: str, instance_id: str | None) -> Member:
        """The member of this id, if it still is the one of its instance."""
        if instance_id is not None:
            owner = self.by_instance.get(instance_id)
            if owner is not None and owner.member_id != member_id:
                raise FencedInstanceId()
            if owner is None:
                raise UnknownMemberId()
        member = self.by_id.get(member_id)
        if member is None:
            raise UnknownMemberId()
        return member

    def assign(self, member: Member, assignment: bytes) -> None:
        member.assignment = assignment
        self.weigh(member)

    def size_of(self, member_id: str, instance_id: str | None) -> int:
        """What the member takes that this is, or takes the place of; 0 for a new one."""
        member = self.by_id.get(member_id) or self.by_instance.get(instance_id or "")
        return 0 if member is None else member.size

    def weigh(self, member: Member) -> None:
        """Take its size anew."""
        self.size -= member.size
        member.size = member.weighed()
        self.size += member.size

    # -- who waits ---------------------------------------------------------------------------

    def wait_to_join(self, member: Member, token: Any) -> Any:
        """The token it waited under before."""
        before, member.join_token = member.join_token, token
        self.joined_count += (token is not NOBODY) - (before is not NOBODY)
        return before

    def wait_to_sync(self, member: Member, token: Any) -> Any:
        """The token it waited under before."""
        before, member.sync_token = member.sync_token, token
        return before

    # -- what they speak ---------------------------------------------------------------------

    def speak(self, member: Member, protocols: dict[str, bytes]) -> None:
        """A member speaks these from now on."""
        self._silence(member)
        member.protocols = protocols
        self._speakers.update([*protocols])
        self.weigh(member)

    def understand(self, protocols: dict[str, bytes]) -> bool:
        """Whether one of these is spoken by every member."""
        return any(self._speakers[name] == len(self.by_id) for name in protocols)

    def vote(self) -> str:
        """The protocol that most members like best, of those that all speak.

        There is one: nobody comes, or changes what he speaks, without one that all understand.
        """
        count = len(self.by_id)
        common = {name for name, speakers in self._speakers.items() if speakers == count}
        votes = Counter(
            next(name for name in member.protocols if name in common)
            for member in self.by_id.values()
        )
        return max(votes, key=lambda name: votes[name])

    def _silence(self, member: Member) -> None:
        for name in member.protocols:
            self._speakers[name] -= 1
            if not self._speakers[name]:
                del self._speakers[name]

    def topics(self, protocol: str | None) -> Container[str]:
        """What consumers subscribe to, all together.

        Any topic, when one of them cannot be understood or they name more than anybody has.
        """
        topics: set[str] = set()
        for member in self.by_id.values():
            named = subscribed_topics(member.protocols.get(protocol or "", b""))
            topics |= named or set()
            if named is None or len(topics) > TOPICS_MAX:
                return ANY_TOPIC
        return topics

    def kept(
        self, protocol: str | None, assigned: Mapping[str, bytes] | None
    ) -> list[dict[str, Any]]:
        """As a record says them, with what is assigned to them, or is to be."""
        return [
            member.kept(
                protocol,
                member.assignment if assigned is None else assigned.get(member.member_id, b""),
            )
            for member in self.by_id.values()
        ]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time that any of them may take to come back."""
        return max([0, *(member.rebalance_timeout_ms for member in self.by_id.values())])
