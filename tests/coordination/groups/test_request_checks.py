"""Checks of ConsumerGroupHeartbeat that do not depend on the group's state."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups.offsets.commit_records import TEXT_SIZE_MAX
from kafkalite.coordination.groups.request_checks import check_consumer_heartbeat
from kafkalite.errors import InvalidRequest, UnsupportedAssignor
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_HEARTBEAT
from tests.coordination.groups.harness import read_as

JOINING = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
STAYING = {"group_id": "g", "member_id": "m", "member_epoch": 3}


def check(fields, version=1):
    request = read_as(CONSUMER_GROUP_HEARTBEAT, version, **fields)
    check_consumer_heartbeat(request, version, ("uniform", "range"))


@pytest.mark.parametrize(
    "fields",
    [
        JOINING,
        {**JOINING, "subscribed_topic_names": []},
        {**JOINING, "subscribed_topic_names": None, "subscribed_topic_regex": ""},
        {**JOINING, "instance_id": "i", "rack_id": "r", "server_assignor": "range"},
        STAYING,
        {**STAYING, "topic_partitions": [{"topic_id": bytes(16), "partitions": [0]}]},
        {**STAYING, "member_epoch": -1},
        {**STAYING, "member_epoch": -2, "instance_id": "i"},
    ],
)
def test_valid_heartbeat_is_accepted(fields):
    check(fields)


def test_client_of_version_0_joins_without_a_member_id():
    check({**JOINING, "member_id": ""}, version=0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**JOINING, "group_id": ""}, "GroupId"),
        ({**JOINING, "group_id": " "}, "GroupId"),
        ({**JOINING, "member_id": ""}, "MemberId"),
        ({**JOINING, "member_id": "\t"}, "MemberId"),
        ({**JOINING, "instance_id": ""}, "InstanceId"),
        ({**JOINING, "instance_id": " "}, "InstanceId"),
        ({**JOINING, "rack_id": ""}, "RackId"),
        ({**JOINING, "rebalance_timeout_ms": -1}, "RebalanceTimeoutMs"),
        ({**JOINING, "topic_partitions": None}, "TopicPartitions"),
        (
            {**JOINING, "topic_partitions": [{"topic_id": bytes(16), "partitions": []}]},
            "TopicPartitions",
        ),
        ({**JOINING, "subscribed_topic_names": None}, "SubscribedTopicRegex must be non-null"),
        ({**STAYING, "member_epoch": -2}, "InstanceId can't be null"),
        ({**STAYING, "member_epoch": -3}, "MemberEpoch"),
        ({**STAYING, "member_epoch": -3, "instance_id": "i"}, "MemberEpoch"),
        ({**JOINING, "group_id": "g" * (TEXT_SIZE_MAX + 1)}, "at most"),
        ({**JOINING, "subscribed_topic_names": ["é" * TEXT_SIZE_MAX]}, "at most"),
    ],
)
def test_invalid_heartbeat_is_refused(fields, words):
    with pytest.raises(InvalidRequest, match=words):
        check(fields)


@pytest.mark.parametrize("epoch", [1, -1])
def test_only_a_joining_client_of_version_0_may_lack_a_member_id(epoch):
    with pytest.raises(InvalidRequest, match="MemberId"):
        check({**STAYING, "member_id": "", "member_epoch": epoch}, version=0)


def test_unknown_assignor_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedAssignor, match="sticky is not supported.*uniform, range"):
        check({**STAYING, "server_assignor": "sticky"})
