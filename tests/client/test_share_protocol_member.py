"""The member of a share group: its heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.client.group.membership import ChangeKind, MembershipState, SubscribedTopics
from kafkalite.client.group.share_protocol_member import ShareProtocolMember
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import FencedMemberEpoch, UnknownMemberId
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.share import SHARE_GROUP_HEARTBEAT
from tests.client.group_members import SETTINGS, metadata_of

TOPIC = metadata_of("t", 2)


class Member:
    """A member, and the exchange of its next heartbeat."""

    def __init__(self) -> None:
        self.membership = ShareProtocolMember(SETTINGS, "m")
        self.membership.subscribe(SubscribedTopics(("t",)), 0.0)

    def beat(self, now_s: float, **response: Any) -> Fields:
        request = self.membership.next_request(now_s)
        assert request is not None
        assert request.api is SHARE_GROUP_HEARTBEAT
        body = {"member_epoch": 1, "heartbeat_interval_ms": 1000, **response}
        encoded = SHARE_GROUP_HEARTBEAT.response.write(1, body)
        found = SHARE_GROUP_HEARTBEAT.response.read(1, encoded)
        self.membership.handle_response(request, found, now_s)
        fields = SHARE_GROUP_HEARTBEAT.request.write(1, request.fields(1))
        return SHARE_GROUP_HEARTBEAT.request.read(1, fields)

    def assigned(self, now_s: float, *partitions: int) -> None:
        topics = [{"topic_id": TOPIC.topic_id, "partitions": list(partitions)}]
        self.beat(now_s, assignment={"topic_partitions": topics})
        self.membership.update_topics({"t": TOPIC}, now_s)

    def apply(self, now_s: float) -> list[tuple[ChangeKind, list[TopicPartition]]]:
        changes = []
        while (change := self.membership.take_change()) is not None:
            changes.append((change.kind, list(change.partitions)))
            self.membership.applied(change, now_s)
        return changes


def test_member_joins_with_its_topics_and_names_them_once():
    member = Member()
    first = member.beat(0.0)
    assert (first.group_id, first.member_id, first.member_epoch) == ("g", "m", 0)
    assert first.subscribed_topic_names == ["t"]
    second = member.beat(1.0)
    assert (second.member_epoch, second.subscribed_topic_names) == (1, None)


def test_assignment_is_applied_and_replaced():
    member = Member()
    member.assigned(0.0, 0, 1)
    assert member.apply(0.0) == [(ChangeKind.ASSIGNED, [("t", 0), ("t", 1)])]
    member.assigned(1.0, 1)
    assert member.apply(1.0) == [(ChangeKind.REVOKED, [("t", 0)])]
    assert list(member.membership.owned) == [("t", 1)]


@pytest.mark.parametrize("error", [FencedMemberEpoch, UnknownMemberId])
def test_fenced_member_joins_again_with_the_same_id(error):
    member = Member()
    member.assigned(0.0, 0)
    member.apply(0.0)
    member.beat(1.0, error_code=error.code)
    assert member.apply(1.0) == [(ChangeKind.LOST, [("t", 0)])]
    again = member.beat(2.0)
    assert (again.member_id, again.member_epoch, again.subscribed_topic_names) == ("m", 0, ["t"])


def test_leave_is_sent_once_nothing_is_assigned():
    member = Member()
    member.assigned(0.0, 0)
    member.apply(0.0)
    member.membership.leave(1.0)
    assert member.beat(1.0).member_epoch == 1
    assert member.apply(1.0) == [(ChangeKind.REVOKED, [("t", 0)])]
    assert member.beat(1.0).member_epoch == -1
    assert member.membership.state is MembershipState.UNSUBSCRIBED
