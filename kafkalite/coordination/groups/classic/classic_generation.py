"""ClassicGeneration: what the members of a classic group have agreed on, and its forms.

    JoinGroup response    the generation, and for the leader the metadata of all members
    SyncGroup response    one member's assignment
    record                all of it, with the assignments
    description           members and protocol, as in a DescribeGroups response

It is soft state: a record is made of it when the leader has sent the assignments, and it is
restored from that record after a load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkalite.coordination.groups.classic.classic_members import ClassicMember, ClassicMembers
from kafkalite.coordination.groups.decision_draft import NO_TOKEN
from kafkalite.errors import IllegalGeneration, InconsistentGroupProtocol

GENERATION_MAX = (1 << 31) - 1


class ClassicGeneration:
    """The newest generation of a group; its members change while the next one is prepared."""

    def __init__(self, members: ClassicMembers) -> None:
        self.members = members
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: ClassicMember | None = None

    # -- leader and protocol -----------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member to the next generation; the first one leads, with its protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members.add(member)
        if self.leader is None:
            self.leader = member

    def remove(self, member: ClassicMember) -> None:
        """Remove a member; if it led, another one leads."""
        self.members.remove(member)
        if member is self.leader:
            self.leader = next(iter(self.members), None)

    def begin(self, joined: ClassicMember | None) -> None:
        """Begin the next generation; `joined` leads if the leader has not joined it."""
        if self.leader is None or self.leader.join_token is NO_TOKEN:
            self.leader = joined
        is_last = self.generation_id == GENERATION_MAX
        self.generation_id = 1 if is_last else self.generation_id + 1
        self.protocol = self.members.choose_protocol() if self.members else None

    def restore(self, recorded: dict[str, Any]) -> None:
        """Restore what a record contains besides the members, which were added before."""
        self.generation_id = max(recorded["generation"], 0)
        self.protocol_type = recorded["protocol_type"] or None
        if self.members:
            self.protocol = recorded["protocol"] or ""
            self.leader = self.members.by_id.get(recorded["leader"]) or next(iter(self.members))

    # -- checks ------------------------------------------------------------------------------

    def member(self, member_id: str, instance_id: str | None, generation_id: int) -> ClassicMember:
        """Return a member; raise an error unless it is known and in this generation."""
        member = self.members.known(member_id, instance_id)
        if generation_id != self.generation_id:
            raise IllegalGeneration()
        return member

    def check_protocol(self, protocol_type: str | None, protocol: str | None) -> None:
        """Raise InconsistentGroupProtocol unless the generation has these; None is not checked."""
        for requested, agreed in (
            (protocol_type, self.protocol_type),
            (protocol, self.protocol),
        ):
            if requested is not None and agreed is not None and requested != agreed:
                raise InconsistentGroupProtocol()

    # -- forms -------------------------------------------------------------------------------

    def join_response(self, member: ClassicMember) -> dict[str, Any]:
        """Return the response to a JoinGroup: the generation, and for the leader its members."""
        assert self.leader is not None and self.protocol is not None
        members = self.members if member is self.leader else ()
        return {
            "error_code": 0,
            "generation_id": self.generation_id,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader.member_id,
            "skip_assignment": False,
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "metadata": each.protocols[self.protocol],
                }
                for each in members
            ],
        }

    def sync_response(self, assignment: bytes) -> dict[str, Any]:
        """Return the response to a SyncGroup."""
        return {
            "error_code": 0,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": assignment,
        }

    def to_record(self, wall_ms: int, assigned: Mapping[str, bytes] | None) -> dict[str, Any]:
        """Return the value of the group's record, with the current or the new assignments."""
        return {
            "protocol_type": self.protocol_type or "",
            "generation": self.generation_id,
            "protocol": self.protocol,
            "leader": self.leader.member_id if self.leader is not None else None,
            "current_state_timestamp": wall_ms,
            "members": self.members.to_record(self.protocol, assigned),
        }

    def describe(self, is_stable: bool) -> dict[str, Any]:
        """Return the fields of a DescribeGroups response; only a stable group has a protocol."""
        agreed = self.protocol if is_stable else None
        return {
            "protocol_type": self.protocol_type or "",
            "protocol_data": agreed or "",
            "members": [member.describe(agreed) for member in self.members],
        }
