"""Members of a classic group: their protocols, assignments and pending requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafkalite.coordination.groups.decision_draft import NO_TOKEN
from kafkalite.errors import FencedInstanceId, UnknownMemberId
from kafkalite.protocol.schemas.consumer_protocol import subscribed_topics

MEMBER_SIZE = 1_000
PROTOCOL_SIZE = 300
"""Approximate memory use of a member, and of each of its protocols, besides their texts."""

TOPICS_MAX = 100_000


@dataclass(slots=True)
class ClassicMember:
    """One member; `protocols` are in the order of its preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    is_new: bool = False  # its member id was not sent to it yet
    join_token: Any = NO_TOKEN
    sync_token: Any = NO_TOKEN
    size: int = field(default=0, compare=False)

    @property
    def excused(self) -> bool:
        """True if its session cannot expire, since it waits for a response."""
        waits = self.join_token is not NO_TOKEN or self.sync_token is not NO_TOKEN
        return waits and not self.is_new

    def total_size(self) -> int:
        """Return the approximate memory use in bytes."""
        texts = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        return protocols_size(self.protocols.items()) + sum(map(len, texts)) + len(self.assignment)

    def to_record(self, protocol: str | None, assignment: bytes) -> dict[str, Any]:
        """Return the member as in the group's record."""
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
    def from_record(cls, recorded: dict[str, Any], protocol: str | None) -> ClassicMember:
        """Return a member from a group's record, which has its agreed protocol only."""
        rebalance_timeout_ms = recorded["rebalance_timeout"]
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = recorded["session_timeout"]
        return cls(
            recorded["member_id"],
            recorded["group_instance_id"],
            recorded["client_id"],
            recorded["client_host"],
            rebalance_timeout_ms,
            recorded["session_timeout"],
            {protocol or "": recorded["subscription"]},
            recorded["assignment"],
        )

    def describe(self, protocol: str | None) -> dict[str, Any]:
        """Return the member as in a DescribeGroups response, with its metadata in `protocol`."""
        return {
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "member_metadata": b"" if protocol is None else self.protocols.get(protocol, b""),
            "member_assignment": self.assignment,
        }


def protocols_size(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Return the approximate memory use of a member with these protocols."""
    size = MEMBER_SIZE
    for name, metadata in protocols:
        size += PROTOCOL_SIZE + len(name) + len(metadata)
    return size


class AnyTopic:
    """A container of every topic."""

    def __contains__(self, topic: object) -> bool:
        return True


ANY_TOPIC = AnyTopic()


class ClassicMembers:
    """The members of one group, in the order in which they joined."""

    def __init__(self) -> None:
        self.by_id: dict[str, ClassicMember] = {}
        self.by_instance: dict[str, ClassicMember] = {}
        self.joined_count = 0
        """Number of members with a pending JoinGroup."""
        self.size = 0
        """Approximate memory use in bytes."""
        self._protocol_counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter([*self.by_id.values()])

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    # -- membership --------------------------------------------------------------------------

    def add(self, member: ClassicMember) -> None:
        assert member.member_id not in self.by_id
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.by_instance
            self.by_instance[member.instance_id] = member
        self._protocol_counts.update([*member.protocols])
        self.joined_count += member.join_token is not NO_TOKEN
        self.update_size(member)

    def remove(self, member: ClassicMember) -> None:
        """Remove a member; its pending requests must have been completed before."""
        assert member.join_token is member.sync_token is NO_TOKEN
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        self._remove_protocols(member)
        self.size -= member.size
        member.size = 0

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member the member id of the process that replaces it."""
        del self.by_id[member.member_id]
        member.member_id = member_id
        self.by_id[member_id] = member
        self.update_size(member)

    def known(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return the member; raise FencedInstanceId if its instance has another member id."""
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

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        added = len(assignment) - len(member.assignment)
        member.assignment = assignment
        member.size += added
        self.size += added

    def size_of(self, member_id: str, instance_id: str | None) -> int:
        """Return the memory use of this member, or of the one it replaces; 0 for a new one."""
        member = self.by_id.get(member_id) or self.by_instance.get(instance_id or "")
        return 0 if member is None else member.size

    def update_size(self, member: ClassicMember) -> None:
        """Update the memory use of a member."""
        self.size -= member.size
        member.size = member.total_size()
        self.size += member.size

    # -- pending requests --------------------------------------------------------------------

    def wait_to_join(self, member: ClassicMember, token: Any) -> Any:
        """Set the token of the pending JoinGroup and return the previous one."""
        before, member.join_token = member.join_token, token
        self.joined_count += (token is not NO_TOKEN) - (before is not NO_TOKEN)
        return before

    def wait_to_sync(self, member: ClassicMember, token: Any) -> Any:
        """Set the token of the pending SyncGroup and return the previous one."""
        before, member.sync_token = member.sync_token, token
        return before

    # -- protocols ---------------------------------------------------------------------------

    def set_protocols(self, member: ClassicMember, protocols: dict[str, bytes]) -> None:
        """Replace a member's protocols."""
        self._remove_protocols(member)
        member.protocols = protocols
        self._protocol_counts.update([*protocols])
        self.update_size(member)

    def supports(self, protocols: dict[str, bytes]) -> bool:
        """Return whether every member supports one of these protocols."""
        return any(self._protocol_counts[name] == len(self.by_id) for name in protocols)

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer, among those that all support.

        There is one: a member is accepted, or changes its protocols, only with a common one.
        """
        count = len(self.by_id)
        common = {name for name, supporting in self._protocol_counts.items() if supporting == count}
        votes = Counter(
            next(name for name in member.protocols if name in common)
            for member in self.by_id.values()
        )
        return max(votes, key=lambda name: votes[name])

    def _remove_protocols(self, member: ClassicMember) -> None:
        for name in member.protocols:
            self._protocol_counts[name] -= 1
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]

    def topics(self, protocol: str | None) -> Container[str]:
        """Return the topics that the consumers subscribe to.

        Any topic, if a subscription cannot be decoded or more than TOPICS_MAX topics are named.
        """
        topics: set[str] = set()
        for member in self.by_id.values():
            named = subscribed_topics(member.protocols.get(protocol or "", b""))
            topics |= named or set()
            if named is None or len(topics) > TOPICS_MAX:
                return ANY_TOPIC
        return topics

    def to_record(
        self, protocol: str | None, assigned: Mapping[str, bytes] | None
    ) -> list[dict[str, Any]]:
        """Return the members as in the group's record, with their current or new assignments."""
        return [
            member.to_record(
                protocol,
                member.assignment if assigned is None else assigned.get(member.member_id, b""),
            )
            for member in self.by_id.values()
        ]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max([0, *(member.rebalance_timeout_ms for member in self.by_id.values())])
