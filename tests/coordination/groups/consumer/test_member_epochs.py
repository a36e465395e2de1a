"""Offsets of consumer groups: the member epochs with which they may be committed and fetched."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups.consumer.consumer_member import MemberState
from kafkalite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    KafkaError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from tests.coordination.groups.consumers import ConsumerClient
from tests.coordination.groups.harness import CHECK_MS, GroupHarness

STALE = StaleMemberEpoch.code


@pytest.fixture
def harness():
    harness = GroupHarness()
    harness.topic_id = harness.topics.create("t", 4)
    return harness


def member(harness, name, *topics):
    client = ConsumerClient(harness, name, *(topics or "t"))
    client.join()
    return client


def settled(*clients):
    for _ in range(5):
        for client in clients:
            client.step()


def commit(harness, client, *indexes, epoch=None, **options):
    """Commit an offset of each of these partitions; return the error code."""
    return harness.commit(
        "g",
        dict.fromkeys((("t", index) for index in indexes), 5),
        generation=client.epoch if epoch is None else epoch,
        member_id=client.name,
        topic_id=harness.topic_id,
        **options,
    ).code


def fetch(harness, member_id, epoch):
    """Return the error code of an OffsetFetch."""
    try:
        harness.machine.check_fetch("g", member_id, epoch)
    except KafkaError as error:
        return error.code
    return 0


def state(harness, client):
    return harness.machine.groups.get("g").members[client.name].current


@pytest.fixture
def shared(harness):
    """Return two members that share; the first one has had its partitions since an older epoch."""
    first = member(harness, "a")
    first.step()
    older = first.epoch
    second = member(harness, "b")
    settled(first, second)
    assert first.epoch > older and len(first.partitions) == 2
    return harness, first, second, older


def test_current_epoch_commits_any_partition(shared):
    harness, first, second, _ = shared
    assert commit(harness, first, *range(4)) == 0
    assert commit(harness, second, *range(4)) == 0


def test_newer_epoch_is_stale(shared):
    harness, first, _, _ = shared
    assert commit(harness, first, *first.partitions, epoch=first.epoch + 1) == STALE


def test_older_epoch_commits_what_the_member_has_had_since_then(shared):
    harness, first, second, older = shared
    assert commit(harness, first, *first.partitions, epoch=older) == 0
    assert harness.committed("g").keys() == {("t", index) for index in first.partitions}
    assert commit(harness, first, *first.partitions, epoch=older - 1) == STALE
    assert commit(harness, first, second.partitions[0], epoch=older) == STALE
    assert commit(harness, second, *second.partitions, epoch=second.epoch - 1) == STALE


def test_one_partition_with_a_stale_epoch_refuses_all(shared):
    harness, first, second, older = shared
    assert commit(harness, first, first.partitions[0], second.partitions[0], epoch=older) == STALE
    assert not harness.committed("g")


def test_older_epoch_commits_a_partition_that_is_to_be_revoked(shared):
    harness, first, second, older = shared
    others = [member(harness, name) for name in "cd"]
    for client in others:
        client.step()
    first.beat()  # it is told what to revoke, and has not done it yet
    current = state(harness, first)
    assert current.state is MemberState.UNREVOKED_PARTITIONS and current.epoch > older
    ((pending,),) = current.pending.values()
    assert commit(harness, first, pending, epoch=older) == 0
    settled(first, second, *others)
    assert commit(harness, first, pending, epoch=older) == STALE


def test_partition_of_a_recreated_topic_needs_the_current_epoch(shared):
    harness, first, _, older = shared
    harness.topic_id = bytes(16)
    assert commit(harness, first, *first.partitions, epoch=older) == STALE


def test_unknown_member_is_refused(shared):
    harness, first, _, _ = shared
    first.name = "x"
    assert commit(harness, first, 0) == UnknownMemberId.code
    assert commit(harness, first, 0, epoch=-1) == UnknownMemberId.code


def test_member_of_the_consumer_protocol_needs_version_9(shared):
    harness, first, _, _ = shared
    assert commit(harness, first, 0, version=8) == UnsupportedVersion.code


def test_commit_without_a_member_needs_an_empty_group(shared):
    harness, first, second, _ = shared
    nobody = ConsumerClient(harness, "")
    assert commit(harness, nobody, 0, epoch=-1) == UnknownMemberId.code
    first.leave()
    second.leave()
    assert commit(harness, nobody, 0, epoch=-1) == 0
    assert commit(harness, first, 0, epoch=3) == UnknownMemberId.code


def test_epoch_for_an_unknown_group_is_refused(harness):
    assert commit(harness, ConsumerClient(harness, "a"), 0, epoch=3) == GroupIdNotFound.code


def test_commit_does_not_extend_the_session(shared):
    harness, first, second, _ = shared
    for _ in range(50):
        harness.after(1_000)
        second.step()
        commit(harness, first, 0)
    assert commit(harness, first, 0) == UnknownMemberId.code


def in_transaction(harness, client, *indexes, epoch=None, **options):
    return harness.commit_in_transaction(
        "g",
        dict.fromkeys((("t", index) for index in indexes), 5),
        generation=client.epoch if epoch is None else epoch,
        member_id=client.name,
        topic_id=harness.topic_id,
        **options,
    ).code


def test_commit_in_a_transaction_has_the_same_rules(shared):
    harness, first, second, older = shared
    assert in_transaction(harness, first, 0, 1, 2, 3) == 0
    assert in_transaction(harness, first, *first.partitions, epoch=older) == 0
    assert in_transaction(harness, first, second.partitions[0], epoch=older) == STALE
    assert in_transaction(harness, first, 0, epoch=first.epoch + 1) == STALE
    nobody = ConsumerClient(harness, "")
    assert in_transaction(harness, nobody, 0, epoch=-1) == 0
    assert in_transaction(harness, nobody, 0, epoch=-1, instance_id="i") == UnknownMemberId.code


def test_fetch_needs_the_current_epoch_of_a_member(shared):
    harness, first, _, older = shared
    assert fetch(harness, "a", first.epoch) == 0
    assert fetch(harness, None, -1) == 0
    assert fetch(harness, "a", older) == STALE
    assert fetch(harness, "a", first.epoch + 1) == STALE
    assert fetch(harness, "x", first.epoch) == UnknownMemberId.code
    assert fetch(harness, None, 3) == UnknownMemberId.code


def test_any_member_may_fetch_of_an_unknown_or_classic_group(harness):
    assert fetch(harness, "a", 3) == 0
    harness.stable(harness.client("c"))
    assert fetch(harness, "a", 3) == 0


def test_offsets_of_subscribed_topics_are_neither_deleted_nor_expired(shared):
    harness, first, second, _ = shared
    harness.topics.create("u", 1)
    assert commit(harness, first, 0) == 0
    harness.commit(
        "g", {("u", 0): 7}, generation=first.epoch, member_id=first.name, topic_id=bytes(16)
    )
    deleted = harness.decide(
        "OffsetDelete",
        lambda token: harness.machine.delete_offsets("g", [("t", 0)], token, harness.now_ms),
    )
    assert deleted.codes == {("t", 0): GroupSubscribedToTopic.code}
    harness.machine.limits = harness.machine.limits._replace(retention_ms=CHECK_MS)
    for _ in range(2 * CHECK_MS // 30_000 + 1):
        harness.after(30_000)
        first.step()
        second.step()
    assert harness.committed("g").keys() == {("t", 0)}
