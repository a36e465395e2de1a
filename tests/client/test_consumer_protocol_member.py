"""The KIP-848 member against the coordinator's machine."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.client.group.consumer_protocol_member import MATCH_S, ConsumerProtocolMember
from kafkalite.client.group.membership import (
    ChangeKind,
    MemberRequest,
    MembershipState,
    SubscribedTopics,
)
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    GroupIdNotFound,
    InvalidRequest,
    KafkaError,
    NetworkException,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_HEARTBEAT
from tests.client.group_members import SETTINGS, SimulatedGroup

INTERVAL_MS = 5_000


def test_second_member_gets_half_after_the_first_has_revoked():
    group = SimulatedGroup()
    first = group.add_consumer()
    group.settle()
    assert len(first.membership.owned) == 5
    epoch = first.membership.epoch
    second = group.add_consumer()
    second.step(group.now_s)
    group.harness.after(INTERVAL_MS)
    first.step(group.now_s)
    assert first.membership.epoch == epoch, "it revokes in the epoch it has"
    first.begin_change(group.now_s)
    assert first.change is not None and first.change.kind is ChangeKind.REVOKED
    for _ in range(5):
        group.harness.after(INTERVAL_MS)
        first.step(group.now_s)
        second.poll(group.now_s)
        second.step(group.now_s)
        assert not second.membership.owned, "the first has not revoked them"
    first.end_change(group.now_s)
    group.settle()
    assert sorted(len(each.membership.owned) for each in group.members) == [2, 3]


def test_revocation_is_acknowledged_at_once():
    group = SimulatedGroup()
    first = group.add_consumer()
    group.settle()
    group.add_consumer().step(group.now_s)
    group.harness.after(INTERVAL_MS)
    first.step(group.now_s)
    assert first.membership.due_s > group.now_s
    first.poll(group.now_s)
    assert first.membership.due_s <= group.now_s
    request = first.membership.next_request(group.now_s)
    assert request is not None
    (topic,) = request.fields(1)["topic_partitions"]
    assert len(topic["partitions"]) == 3


def test_idle_heartbeat_has_no_field_that_did_not_change():
    group = SimulatedGroup()
    member = group.add_consumer()
    group.settle()
    group.harness.after(INTERVAL_MS)
    request = member.membership.next_request(group.now_s)
    assert request is not None
    fields = request.fields(1)
    assert not fields.keys() & {"topic_partitions", "subscribed_topic_names", "server_assignor"}
    member.membership.handle_failure(request, NetworkException(), group.now_s)
    request = member.membership.next_request(group.now_s + 1)
    assert request is not None
    assert request.fields(1)["topic_partitions"], "after an error everything is sent"


def test_fenced_member_loses_everything_and_joins_with_the_same_id():
    group = SimulatedGroup()
    member = group.add_consumer()
    group.settle()
    group.fence(member)
    group.harness.after(INTERVAL_MS)
    member.step(group.now_s)
    assert member.membership.state is MembershipState.FENCED
    assert member.membership.next_request(group.now_s) is None, "first the partitions are lost"
    group.settle()
    assert [kind for kind, _ in member.log][1:] == [ChangeKind.LOST, ChangeKind.ASSIGNED]


def test_member_that_does_not_poll_leaves_even_while_a_callback_blocks():
    group = SimulatedGroup()
    member = group.add_consumer()
    member.step(group.now_s)
    member.begin_change(group.now_s)
    for _ in range(8):
        group.harness.after(INTERVAL_MS)
        member.step(group.now_s)
    assert member.membership.state is MembershipState.STALE
    assert not group.known_ids()
    group.settle()
    assert [kind for kind, _ in member.log][1:] == [ChangeKind.LOST, ChangeKind.ASSIGNED]


def test_topic_of_unknown_id_is_held_back_until_metadata_has_it():
    group = SimulatedGroup()
    visible = dict(group.topics)
    member = group.add_consumer()
    member.topics = {}
    member.step(group.now_s)
    assert member.membership.topics_wanted == ("t",)
    assert not member.membership.has_change
    member.topics = visible
    group.settle()
    assert len(member.membership.owned) == 5


def test_recreated_topic_is_revoked_and_assigned_by_its_new_id():
    group = SimulatedGroup()
    member = group.add_consumer()
    group.settle()
    group.create(2)
    group.settle()
    kinds = [kind for kind, _ in member.log]
    assert kinds == [ChangeKind.ASSIGNED, ChangeKind.REVOKED, ChangeKind.ASSIGNED]
    assert len(member.membership.owned) == 2


def test_unsubscribe_leaves_and_subscribe_returns():
    group = SimulatedGroup()
    member = group.add_consumer()
    group.settle()
    member.membership.leave(group.now_s)
    member.subscribe("t", now_s=group.now_s)
    assert member.membership.state is MembershipState.PREPARE_LEAVING
    group.settle()
    kinds = [kind for kind, _ in member.log]
    assert kinds == [ChangeKind.ASSIGNED, ChangeKind.REVOKED, ChangeKind.ASSIGNED]


def test_static_member_leaves_with_its_own_epoch():
    membership = ConsumerProtocolMember(SETTINGS._replace(instance_id="i"), "m")
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    membership.next_request(0.0)
    membership.leave(1.0)
    request = membership.next_request(1.0)
    assert request is not None and request.fields(1)["member_epoch"] == -2


@pytest.mark.parametrize(
    "error", [GroupIdNotFound("no"), UnreleasedInstanceId("held"), InvalidRequest("bad")]
)
def test_error_without_a_retry_ends_the_membership_until_a_new_subscription(error):
    membership = ConsumerProtocolMember(SETTINGS, "m")
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    request = membership.next_request(0.0)
    assert request is not None
    answer(membership, request, error_code=error.code, error_message="because")
    assert membership.state is MembershipState.FATAL and isinstance(membership.error, type(error))
    assert membership.has_change and membership.take_change() is None
    assert membership.next_request(1e9) is None
    membership.subscribe(SubscribedTopics(("t",)), 2.0)
    assert membership.next_request(2.0) is not None and membership.error is None


def test_group_of_another_type_is_named_as_such():
    joining = ConsumerProtocolMember(SETTINGS, "m")
    joining.subscribe(SubscribedTopics(("t",)), 0.0)
    request = joining.next_request(0.0)
    assert request is not None
    answer(joining, request, error_code=GroupIdNotFound.code, error_message="no")
    assert "of another type" in str(joining.error)


def test_member_of_a_group_that_is_gone_loses_everything_and_joins_again():
    """As a member that was paused: its session has expired, and its group was deleted."""
    group = SimulatedGroup()
    member = group.add_consumer()
    group.settle()
    group.fence(member)
    assert group.harness.delete_groups("g") == {"g": 0}
    group.settle()
    kinds = [kind for kind, _ in member.log]
    assert kinds == [ChangeKind.ASSIGNED, ChangeKind.LOST, ChangeKind.ASSIGNED]
    assert member.membership.error is None


def test_unsupported_version_is_marked():
    membership = ConsumerProtocolMember(SETTINGS, "m")
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    request = membership.next_request(0.0)
    assert request is not None
    answer(membership, request, error_code=UnsupportedVersion.code)
    assert membership.is_unsupported


def test_expression_is_dropped_again_when_the_request_that_dropped_it_was_lost():
    membership = ConsumerProtocolMember(SETTINGS, "m")
    membership.subscribe(SubscribedTopics((), "t.*"), 0.0)
    request = membership.next_request(0.0)
    assert request is not None
    answer(membership, request, member_epoch=1)
    membership.subscribe(SubscribedTopics(("t",)), 1.0)
    for now_s in (1.0, 2.0):
        request = membership.next_request(now_s)
        assert request is not None
        assert request.fields(1)["subscribed_topic_regex"] == "", "null leaves it as it was"
        membership.handle_failure(request, NetworkException(), now_s)


def test_member_with_an_expression_waits_until_its_topics_may_be_assigned():
    membership = ConsumerProtocolMember(SETTINGS, "m")
    membership.subscribe(SubscribedTopics((), "t.*"), 0.0)
    empty = {"topic_partitions": []}
    for now_s, state in (
        (0.0, MembershipState.RECONCILING),
        (MATCH_S / 2, MembershipState.RECONCILING),
        (MATCH_S, MembershipState.STABLE),
    ):
        assert membership.due_s <= now_s
        request = membership.next_request(now_s)
        assert request is not None
        interval_ms = int(MATCH_S * 500) if now_s == 0.0 else INTERVAL_MS
        answer(
            membership, request, now_s, member_epoch=1, heartbeat_interval_ms=interval_ms,
            assignment=empty,
        )  # fmt: skip
        assert membership.state is state


def test_other_subscription_makes_the_member_unstable_until_the_response():
    membership = ConsumerProtocolMember(SETTINGS, "m")
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    request = membership.next_request(0.0)
    assert request is not None
    answer(membership, request, member_epoch=1, assignment={"topic_partitions": []})
    assert membership.state is MembershipState.STABLE
    membership.subscribe(SubscribedTopics(("u",)), 1.0)
    request = membership.next_request(1.0)
    assert request is not None
    assert membership.state is MembershipState.RECONCILING
    answer(membership, request, 1.0, member_epoch=2)
    assert membership.state is MembershipState.STABLE


def test_unsupported_version_is_marked_when_nothing_is_owned_any_more():
    group = SimulatedGroup()
    member = group.add_consumer()
    group.settle()
    group.harness.after(INTERVAL_MS)
    for is_marked in (False, True):
        request = member.membership.next_request(group.now_s)
        assert request is not None
        answer(member.membership, request, group.now_s, error_code=UnsupportedVersion.code)
        assert member.membership.is_unsupported is is_marked
        member.poll(group.now_s)
        assert not member.membership.owned
    assert member.log[-1][0] is ChangeKind.LOST


def test_member_that_leaves_keeps_its_topics_until_its_partitions_are_revoked():
    """A heartbeat without topics would move the partitions of a static member that restarts."""
    group = SimulatedGroup()
    member = group.add_consumer(instance_id="i")
    group.settle()
    member.membership.leave(group.now_s)
    group.harness.after(INTERVAL_MS)
    request = member.membership.next_request(group.now_s)
    assert request is not None
    assert "subscribed_topic_names" not in request.fields(1)


def test_member_that_leaves_and_hangs_in_its_callback_is_removed_after_the_poll_interval():
    group = SimulatedGroup()
    member = group.add_consumer()
    group.settle()
    member.membership.leave(group.now_s)
    member.begin_change(group.now_s)
    for _ in range(8):
        group.harness.after(INTERVAL_MS)
        member.step(group.now_s)
    assert not group.known_ids()
    member.end_change(group.now_s)
    assert member.membership.state is MembershipState.UNSUBSCRIBED


@pytest.mark.parametrize("interval_ms", [-5, 0, 2**31 - 1, 1])
def test_interval_out_of_bounds_is_not_used(interval_ms):
    membership = ConsumerProtocolMember(SETTINGS._replace(max_poll_interval_s=1e6), "m")
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    request = membership.next_request(0.0)
    assert request is not None
    answer(membership, request, member_epoch=1, heartbeat_interval_ms=interval_ms)
    assert 0.05 <= membership.due_s <= 300


@pytest.mark.parametrize(
    "fields",
    [
        {"member_epoch": 0},
        {"member_epoch": -7},
        {"member_epoch": 1, "partitions": [0, 0]},
        {"member_epoch": 1, "partitions": [-1]},
    ],
)
def test_invalid_response_ends_the_membership(fields):
    membership = ConsumerProtocolMember(SETTINGS, "m")
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    request = membership.next_request(0.0)
    assert request is not None
    partitions = fields.pop("partitions", None)
    if partitions is not None:
        topics = [{"topic_id": b"i" * 16, "partitions": partitions}]
        fields["assignment"] = {"topic_partitions": topics}
    answer(membership, request, **fields)
    assert isinstance(membership.error, InvalidRequest)


def test_join_after_repeated_fencing_waits_for_the_backoff():
    membership = ConsumerProtocolMember(SETTINGS, "m")
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    sent = 0
    for tick in range(1000):
        request = membership.next_request(tick / 1000)
        if request is not None:
            sent += 1
            answer(membership, request, tick / 1000, error_code=UnknownMemberId.code)
    assert sent < 12


def answer(
    membership: ConsumerProtocolMember, request: MemberRequest, now_s: float = 0.0, **fields: Any
) -> None:
    """Have the member handle a response with these fields."""
    schema = CONSUMER_GROUP_HEARTBEAT.response
    membership.handle_response(request, schema.read(1, schema.write(1, fields)), now_s)


def test_partition_counts_as_owned_while_its_callback_runs():
    """A heartbeat that left it out would be taken for the end of its revocation."""
    group = SimulatedGroup()
    member = group.add_consumer()
    member.step(group.now_s)
    member.begin_change(group.now_s)
    assert member.change is not None and member.change.kind is ChangeKind.ASSIGNED
    assert len(member.membership.owned) == 5
    assert TopicPartition("t", 0) in member.membership.owned
    assert isinstance(member.membership.error, KafkaError | None)
