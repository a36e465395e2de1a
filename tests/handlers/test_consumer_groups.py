"""Requests of the consumer protocol of groups, to a node through its dispatcher."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker import stepping
from kafkalite.broker.security import AclOperation
from kafkalite.coordination import features
from kafkalite.coordination.features import GROUP_VERSION
from kafkalite.protocol.schemas.cluster import API_VERSIONS, UPDATE_FEATURES
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from kafkalite.protocol.schemas.transactions import TXN_OFFSET_COMMIT
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying
from tests.handlers.grouping import find, member, pass_time, set_for_all
from tests.handlers.transacting import init

KEYS = {CONSUMER_GROUP_HEARTBEAT.key, CONSUMER_GROUP_DESCRIBE.key}
SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1"}
READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE


@pytest.fixture
def node(monkeypatch, tmp_path):
    """Yield a node that supports the consumer protocol, with a topic `t` of two partitions."""
    monkeypatch.setitem(features.SUPPORTED_LEVELS, GROUP_VERSION, 1)
    node = InProcess(tmp_path / "data")
    find(node)
    node.topic_id = node.create("t", 2)
    yield node
    node.close()


def beat(node, epoch=0, member_id="m", version=1, **fields):
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 5_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
            **fields,
        }
    return node.request(
        CONSUMER_GROUP_HEARTBEAT, version,
        **{"group_id": "g", "member_id": member_id, "member_epoch": epoch, **fields},
    )  # fmt: skip


def describe(node, *group_ids, version=1, **fields):
    return node.request(CONSUMER_GROUP_DESCRIBE, version, group_ids=group_ids, **fields).groups


def partitions(response):
    return {each.topic_id: each.partitions for each in response.assignment.topic_partitions}


def listed(node):
    return {each.api_key for each in node.request(API_VERSIONS, 4, **SOFTWARE).api_keys} & KEYS


# -- the feature ---------------------------------------------------------------------------------


def set_level(node, level, upgrade_type=1):
    entry = {"feature": GROUP_VERSION, "max_version_level": level, "upgrade_type": upgrade_type}
    answer = node.request(UPDATE_FEATURES, 2, feature_updates=[entry])
    assert answer.error_code == 0, answer.error_message


def refused(node):
    """Return the error codes of both APIs."""
    return beat(node).error_code, describe(node, "g")[0].error_code


def test_apis_are_listed_and_served_from_level_1(node):
    assert listed(node) == KEYS
    assert refused(node) == (0, 0)
    set_level(node, 0, upgrade_type=2)
    unsupported = errors.UnsupportedVersion.code
    assert listed(node) == set()
    assert refused(node) == (unsupported, unsupported)
    set_level(node, 1)
    assert listed(node) == KEYS
    assert refused(node) == (0, 0)


def test_apis_are_not_listed_while_the_feature_is_not_supported(broker):
    find(broker)
    assert listed(broker) == set() if GROUP_VERSION not in features.SUPPORTED_LEVELS else KEYS


def test_key_without_consumer_disables_the_protocol(node):
    set_for_all(node, group_coordinator_rebalance_protocols="classic")
    unsupported = errors.UnsupportedVersion.code
    assert refused(node) == (unsupported, unsupported)


# -- heartbeats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_member_joins_stays_and_leaves(node, version):
    joined = beat(node, version=version)
    assert (joined.error_code, joined.member_id) == (0, "m")
    assert partitions(joined) == {node.topic_id: [0, 1]}
    stays = beat(node, joined.member_epoch, version=version)
    assert (stays.error_code, stays.member_epoch) == (0, joined.member_epoch)
    assert stays.assignment is None
    assert stays.heartbeat_interval_ms == 5_000
    left = beat(node, -1, version=version)
    assert (left.error_code, left.member_epoch) == (0, -1)
    again = beat(node, joined.member_epoch, version=version)
    assert again.error_code == errors.UnknownMemberId.code


def test_client_of_version_0_gets_a_member_id(node):
    joined = beat(node, member_id="", version=0)
    assert joined.error_code == 0
    assert joined.member_id
    assert beat(node, joined.member_epoch, joined.member_id, version=0).error_code == 0


def test_second_member_gets_half_after_the_first_has_revoked(node):
    first = beat(node)
    assert partitions(beat(node, member_id="n")) == {}
    asked = beat(node, first.member_epoch)
    ((topic_id, (left,)),) = partitions(asked).items()
    owned = [{"topic_id": topic_id, "partitions": [left]}]
    released = beat(node, first.member_epoch, topic_partitions=owned)
    assert released.member_epoch > first.member_epoch
    second = beat(node, 0, "n")
    assert partitions(second) == {topic_id: [1 - left]}


@pytest.mark.parametrize(
    ("denied", "error"),
    [
        (Denying(READ, names="g"), errors.GroupAuthorizationFailed),
        (Denying(DESCRIBE, names="t"), errors.TopicAuthorizationFailed),
        (Denying(DESCRIBE, names="u"), errors.TopicAuthorizationFailed),
    ],
)
def test_unauthorized_heartbeat_changes_nothing(node, denied, error):
    node.node.authorizer = denied
    answer = beat(node, subscribed_topic_names=["t", "u"])
    assert answer.error_code == error.code
    node.node.authorizer = Denying()
    assert describe(node, "g")[0].error_code == errors.GroupIdNotFound.code


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, errors.InvalidRequest),
        ({"member_id": ""}, errors.InvalidRequest),
        ({"rebalance_timeout_ms": -1}, errors.InvalidRequest),
        ({"server_assignor": "sticky"}, errors.UnsupportedAssignor),
        ({"subscribed_topic_regex": "("}, errors.InvalidRegularExpression),
        ({"epoch": 3}, errors.GroupIdNotFound),
        ({"subscribed_topic_names": ["u"] * 10_001}, errors.InvalidRequest),
    ],
)
def test_invalid_heartbeat_is_refused_with_a_message(node, fields, error):
    answer = beat(node, **fields)
    assert answer.error_code == error.code
    assert answer.error_message
    assert answer.assignment is None


def test_assignor_must_be_configured(node):
    set_for_all(node, group_consumer_assignors="uniform")
    assert beat(node, server_assignor="range").error_code == errors.UnsupportedAssignor.code
    assert beat(node, server_assignor="uniform").error_code == 0


def test_group_of_limited_size_refuses_another_member(node):
    set_for_all(node, group_consumer_max_size="1")
    assert beat(node).error_code == 0
    assert beat(node, member_id="n").error_code == errors.GroupMaxSizeReached.code


def configure(node, **texts):
    changes = [
        {"name": name.replace("_", "."), "value": text, "config_operation": 0}
        for name, text in texts.items()
    ]
    resource = {"resource_type": 32, "resource_name": "g", "configs": changes}
    (answer,) = node.request(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
    assert answer.error_code == 0, answer.error_message


def test_config_of_a_group_counts_from_the_next_heartbeat(node, caplog):
    configure(node, consumer_heartbeat_interval_ms="400", consumer_session_timeout_ms="2000")
    joined = beat(node)
    assert joined.heartbeat_interval_ms == 400
    configure(node, consumer_heartbeat_interval_ms="300")
    assert beat(node, joined.member_epoch).heartbeat_interval_ms == 300
    set_for_all(node, group_consumer_min_heartbeat_interval_ms="350")
    for _ in range(2):
        assert beat(node, joined.member_epoch).heartbeat_interval_ms == 350
    assert caplog.text.count("outside of the broker's bounds") == 1
    pass_time(node, 2_100)
    assert beat(node, joined.member_epoch).error_code == errors.UnknownMemberId.code


# -- regular expressions -------------------------------------------------------------------------


def resolved(node):
    """Run the node until the topics of the group's expressions are known."""
    group = node.node.groups.host_of("g").machine.groups.get("g")
    node.until(lambda: group.patterns.keys() == group.pattern_members.keys())


def test_regular_expression_matches_topics_that_may_be_described(node):
    for name in ("logs-1", "logs-2", "my-logs"):
        node.create(name)
    node.node.authorizer = Denying(DESCRIBE, names="logs-2")
    joined = beat(node, subscribed_topic_names=None, subscribed_topic_regex="logs-.*")
    assert (joined.error_code, partitions(joined)) == (0, {})
    resolved(node)
    stays = beat(node, joined.member_epoch)
    assert partitions(stays) == {node.node.image.topics["logs-1"].topic_id: [0]}
    (found,) = describe(node, "g")
    assert found.members[0].subscribed_topic_regex == "logs-.*"


def test_topic_created_later_joins_an_expression(node):
    joined = beat(node, subscribed_topic_names=None, subscribed_topic_regex="new.*|t")
    resolved(node)
    stays = beat(node, joined.member_epoch)
    assert partitions(stays) == {node.topic_id: [0, 1]}
    created = node.create("new")
    pass_time(node, 10_000)
    owned = [{"topic_id": node.topic_id, "partitions": [0, 1]}]
    assert beat(node, stays.member_epoch, topic_partitions=owned).assignment is None
    group = node.node.groups.host_of("g").machine.groups.get("g")
    node.until(lambda: "new" in group.pattern_topics("new.*|t"))
    assert partitions(beat(node, stays.member_epoch)) == {node.topic_id: [0, 1], created: [0]}


# -- descriptions --------------------------------------------------------------------------------


def test_description_has_epochs_members_and_assignments(node):
    joined = beat(node, instance_id="i", rack_id="r", server_assignor="range")
    (found,) = describe(node, "g", include_authorized_operations=True)
    assert (found.error_code, found.error_message) == (0, None)
    assert (found.group_id, found.group_state, found.assignor_name) == ("g", "Stable", "range")
    assert found.group_epoch == found.assignment_epoch == joined.member_epoch
    assert found.authorized_operations == sum(1 << each for each in (3, 6, 8, 10, 11))
    (entry,) = found.members
    assert (entry.member_id, entry.instance_id, entry.rack_id) == ("m", "i", "r")
    assert (entry.client_id, entry.client_host) == ("a test", "/127.0.0.1")
    assert (entry.subscribed_topic_names, entry.member_type) == (["t"], 1)
    for assignment in (entry.assignment, entry.target_assignment):
        (assigned,) = assignment.topic_partitions
        assert (assigned.topic_name, assigned.partitions) == ("t", [0, 1])
        assert assigned.topic_id == node.topic_id


def test_members_of_a_group_are_described_in_steps(node, monkeypatch):
    names = [f"m{at}" for at in range(5)]
    for name in names:
        beat(node, member_id=name)
    monkeypatch.setattr(stepping, "STEP_MS", 0)
    wire = node.send(CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"])
    steps = 0
    while wire.sent is None:
        steps += 1
        assert steps < 50
        node.clock.advance(stepping.STEP_PAUSE_MS)
        node.reactor.tick(0)
    assert steps >= 2 * len(names)
    (found,) = node.response(wire, CONSUMER_GROUP_DESCRIBE, 1).groups
    assert [each.member_id for each in found.members] == names


def test_description_without_rights_on_an_assigned_topic_has_no_members(node):
    beat(node)
    node.node.authorizer = Denying(DESCRIBE, names="t")
    (found,) = describe(node, "g")
    assert (found.error_code, found.members) == (errors.TopicAuthorizationFailed.code, [])


def test_errors_of_described_groups_are_their_own(node):
    beat(node)
    node.node.authorizer = Denying(DESCRIBE, names="denied")
    found = describe(node, "g", "", "none", "denied")
    assert [each.error_code for each in found] == [
        0,
        errors.InvalidGroupId.code,
        errors.GroupIdNotFound.code,
        errors.GroupAuthorizationFailed.code,
    ]
    assert found[2].error_message


def test_classic_group_is_not_described_as_a_consumer_group(node):
    member(node)
    assert describe(node, "g")[0].error_code == errors.GroupIdNotFound.code


def test_group_is_listed_with_its_type(node):
    beat(node)
    (found,) = node.request(LIST_GROUPS, 5, types_filter=["Consumer"], states_filter=[]).groups
    assert (found.group_id, found.protocol_type) == ("g", "consumer")
    assert (found.group_state, found.group_type) == ("Stable", "consumer")


def test_group_survives_a_restart(node):
    joined = beat(node)
    node.restart()
    find(node)
    stays = beat(node, joined.member_epoch)
    assert (stays.error_code, stays.member_epoch) == (0, joined.member_epoch)
    (found,) = describe(node, "g")
    assert found.group_state == "Stable"


# -- offsets -------------------------------------------------------------------------------------


def commit(node, epoch, version=10, member_id="m"):
    topic = {"partitions": [{"partition_index": 0, "committed_offset": 5}]}
    topic |= {"topic_id": node.topic_id} if version >= 10 else {"name": "t"}
    answer = node.request(
        OFFSET_COMMIT, version, group_id="g", generation_id_or_member_epoch=epoch,
        member_id=member_id, topics=[topic],
    )  # fmt: skip
    return answer.topics[0].partitions[0].error_code


def fetched(node, epoch, version=10, member_id="m"):
    topic = {"topic_id": node.topic_id} if version >= 10 else {"name": "t"}
    wanted = {
        "group_id": "g",
        "member_id": member_id,
        "member_epoch": epoch,
        "topics": [{**topic, "partition_indexes": [0]}],
    }
    (found,) = node.request(OFFSET_FETCH, version, groups=[wanted]).groups
    offsets = [each.committed_offset for topic in found.topics for each in topic.partitions]
    return found.error_code, offsets


@pytest.mark.parametrize("version", [9, 10])
def test_offsets_are_committed_and_fetched_with_the_member_epoch(node, version):
    epoch = beat(node).member_epoch
    stale, unknown = errors.StaleMemberEpoch.code, errors.UnknownMemberId.code
    assert commit(node, epoch, version) == 0
    assert commit(node, epoch + 1, version) == stale
    assert commit(node, epoch, version, "x") == unknown
    assert fetched(node, epoch, version) == (0, [5])
    assert fetched(node, epoch - 1, version) == (stale, [])
    assert fetched(node, epoch, version, "x") == (unknown, [])
    assert fetched(node, -1, version, None) == (0, [5])


def test_commit_of_a_member_in_an_older_version_is_not_supported(node):
    assert commit(node, beat(node).member_epoch, version=8) == errors.UnsupportedVersion.code


def test_transactional_commit_has_errors_that_old_clients_know(node):
    epoch = beat(node).member_epoch
    find(node, key_type=1)
    _, *pair = init(node, name="id")
    for version, error in ((5, errors.IllegalGeneration), (6, errors.StaleMemberEpoch)):
        partition = {"partition_index": 0, "committed_offset": 5}
        topic = {"name": "t", "topic_id": node.topic_id, "partitions": [partition]}
        answer = node.request(
            TXN_OFFSET_COMMIT, version, transactional_id="id", group_id="g", producer_id=pair[0],
            producer_epoch=pair[1], generation_id_or_member_epoch=epoch + 1, member_id="m",
            topics=[topic],
        )  # fmt: skip
        assert answer.topics[0].partitions[0].error_code == error.code


def test_describe_groups_returns_a_consumer_group_as_dead(node):
    beat(node)
    for version, code in ((5, 0), (6, errors.GroupIdNotFound.code)):
        (found,) = node.request(DESCRIBE_GROUPS, version, groups=["g"]).groups
        assert (found.error_code, found.group_state) == (code, "Dead")


def test_group_with_members_is_not_deleted(node):
    beat(node)
    commit(node, beat(node).member_epoch)
    (refused,) = node.request(DELETE_GROUPS, 2, groups_names=["g"]).results
    assert refused.error_code == errors.NonEmptyGroup.code
    beat(node, -1)
    (deleted,) = node.request(DELETE_GROUPS, 2, groups_names=["g"]).results
    assert deleted.error_code == 0
    assert describe(node, "g")[0].error_code == errors.GroupIdNotFound.code
    assert fetched(node, -1, 9, None) == (0, [-1])
