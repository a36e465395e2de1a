"""Group APIs at the handlers: schemas by version, topics, authorization, restarts.  The rules of
the groups themselves are tested in tests/coordination."""

from __future__ import annotations

import logging

import pytest

from kafkalite import errors
from kafkalite.broker.coordinator.coordinator_host import LATE_TIMER_PAUSE_MS
from kafkalite.broker.security import DELETE, DESCRIBE, READ
from kafkalite.config.resources import Resource
from kafkalite.config.settings import Source
from kafkalite.config.topic import SEGMENT_BYTES
from kafkalite.coordination.image import TopicImage
from kafkalite.errors import KafkaStorageError
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS
from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from kafkalite.protocol.schemas.internal import REMOVE_TOPIC
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying
from tests.handlers.grouping import (
    SESSION_MS,
    beat,
    commit,
    fetch,
    find,
    join,
    joining,
    member,
    pass_time,
    set_for_all,
)

# -- FindCoordinator -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_returns_the_address_the_client_connected_to(broker, version):
    answer = find(broker, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert found.error_code == 0
    assert (found.node_id, found.host, found.port) == (0, *broker.local)


def test_find_coordinator_creates_the_offsets_topic_once(broker):
    assert "__consumer_offsets" not in broker.node.image.topics
    find(broker)
    topic = broker.node.image.topic("__consumer_offsets")
    assert len(topic.partitions) == 1 and topic.config["cleanup.policy"] == "compact"
    find(broker, 4, "another")
    assert broker.node.image.topic("__consumer_offsets").topic_id == topic.topic_id
    (answer,) = broker.request(METADATA, 12, topics=[{"name": topic.name}]).topics
    assert answer.is_internal and answer.partitions[0].leader_id == 0


def test_offsets_topic_has_the_configured_partition_count(tmp_path):
    node = InProcess(tmp_path / "data", **{"offsets.topic.num.partitions": "7"})
    find(node)
    node.topic_id = node.create("t")
    for number in range(20):
        topic = {"name": "t", "partitions": [{"partition_index": 0, "committed_offset": number}]}
        topic["partitions"][0]["committed_metadata"] = None
        assert node.request(OFFSET_COMMIT, 5, group_id=f"g{number}", topics=[topic])
    listed = node.request(LIST_GROUPS, 4).groups
    assert sorted(group.group_id for group in listed) == sorted(f"g{n}" for n in range(20))
    assert sum(1 for _ in node.node.groups) > 1
    node.restart()
    assert len(node.request(LIST_GROUPS, 4).groups) == 20
    node.close()


@pytest.mark.parametrize("key_type", [2, 7])
def test_find_coordinator_of_other_key_types_returns_an_error(broker, key_type):
    assert find(broker, 3, key_type=key_type).error_code != 0
    (found,) = find(broker, 6, key_type=key_type).coordinators
    assert found.error_code != 0 and found.node_id == -1
    broker.request(FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=["g", "g"])
    assert "__consumer_offsets" not in broker.node.image.topics


def test_find_coordinator_without_offsets_topic_is_not_available(broker, monkeypatch):
    def full(*_, **__):
        raise KafkaStorageError("no room")

    monkeypatch.setattr(type(broker.node.local_controller.log), "append", full)
    assert find(broker, 2).error_code == errors.CoordinatorNotAvailable.code


@pytest.mark.parametrize(
    ("name", "key_type", "compression"),
    [("__consumer_offsets", 0, "producer"), ("__transaction_state", 1, "uncompressed")],
)
def test_internal_topic_is_described_as_compacted_and_its_logs_are(
    broker, name, key_type, compression
):
    find(broker, key_type=key_type)
    keys = ["cleanup.policy", "compression.type"]
    resource = {"resource_type": Resource.TOPIC, "resource_name": name, "configuration_keys": keys}
    (described,) = broker.request(DESCRIBE_CONFIGS, 4, resources=[resource]).results
    values = [(each.name, each.value, each.config_source) for each in described.configs]
    source = Source.TOPIC
    assert values == [
        ("cleanup.policy", "compact", source), ("compression.type", compression, source),
    ]  # fmt: skip
    config = broker.node.replicas.leader(name, 0).log.config
    assert (config.compacts, config.deletes) == (True, False)
    assert config.segment_bytes == 104_857_600


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topic_of_an_earlier_version_has_the_segment_size_of_its_kind(broker, name):
    # Its config is that with which it was created, and cannot be altered.
    settings = broker.node.metadata.log_settings_of(TopicImage(name, bytes(16)))
    assert settings[SEGMENT_BYTES] == 104_857_600
    own = TopicImage(name, bytes(16), config={"segment.bytes": "2097152"})
    assert broker.node.metadata.log_settings_of(own)[SEGMENT_BYTES] == 2_097_152


@pytest.mark.parametrize(
    ("name", "key_type"), [("__consumer_offsets", 0), ("__transaction_state", 1)]
)
def test_internal_topic_of_an_earlier_version_is_described_with_its_segment_size(
    broker, name, key_type
):
    find(broker, key_type=key_type)
    topic = broker.node.image.topic(name)
    topic.config = {"cleanup.policy": "compact"}
    keys = ["cleanup.policy", "segment.bytes"]
    resource = {"resource_type": Resource.TOPIC, "resource_name": name, "configuration_keys": keys}
    (described,) = broker.request(DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert [each.value for each in described.configs] == ["compact", "104857600"]


def test_find_coordinator_without_permission_is_refused(broker):
    broker.node.authorizer = Denying(DESCRIBE, names="g")
    answer = broker.request(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g", "other"])
    codes = [found.error_code for found in answer.coordinators]
    assert codes == [errors.GroupAuthorizationFailed.code, 0]


def test_clients_cannot_create_grow_or_delete_the_offsets_topic(groups):
    name = "__consumer_offsets"
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    (made,) = groups.request(CREATE_TOPICS, 5, topics=[topic]).topics
    (grown,) = groups.request(CREATE_PARTITIONS, 3, topics=[{"name": name, "count": 9}]).results
    (gone,) = groups.request(DELETE_TOPICS, 5, topic_names=[name]).responses
    assert {made.error_code, grown.error_code, gone.error_code} == {errors.InvalidRequest.code}
    assert len(groups.node.image.topic(name).partitions) == 1


# -- membership ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_join_group_of_every_version_makes_the_only_member_leader(groups, version):
    fields = joining()
    if version == 0:
        del fields["rebalance_timeout_ms"]
    answer = groups.request(JOIN_GROUP, version, **fields)
    if version >= 4:
        assert answer.error_code == errors.MemberIdRequired.code
        answer = groups.request(JOIN_GROUP, version, **{**fields, "member_id": answer.member_id})
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.leader == answer.member_id and answer.protocol_name == "range"
    assert [each.metadata for each in answer.members] == [b"m"]


def test_member_id_begins_with_the_client_id(groups):
    assert join(groups).member_id.startswith("a test-")


def test_join_group_waits_until_other_members_rejoin(groups):
    first = member(groups)
    wire = groups.send(JOIN_GROUP, 3, **joining())
    assert wire.sent is None
    assert beat(groups, first) == errors.RebalanceInProgress.code
    again = groups.send(JOIN_GROUP, 9, **joining(member_id=first.member_id))
    groups.until(lambda: wire.sent is not None and again.sent is not None)
    second, first = groups.response(wire, JOIN_GROUP, 3), groups.response(again, JOIN_GROUP, 9)
    assert second.generation_id == first.generation_id == 2
    assert len(first.members) == 2 and second.members == []


def test_disconnected_join_gets_no_response_and_may_be_retried(groups):
    first = join(groups)
    asked = groups.request(JOIN_GROUP, 9, **joining())
    again = joining(member_id=asked.member_id)
    wire = groups.send(JOIN_GROUP, 9, **again)
    assert wire.sent is None
    wire.abandoned()
    assert groups.node.groups.host_of("g").machine._waiting == {}
    wire = groups.send(JOIN_GROUP, 9, **again)
    groups.request(JOIN_GROUP, 9, **joining(member_id=first.member_id))
    assert groups.response(wire, JOIN_GROUP, 9).generation_id == 2


def test_member_without_heartbeats_is_removed_at_session_timeout(groups):
    joined = member(groups)
    pass_time(groups, SESSION_MS - 100)
    assert beat(groups, joined) == 0
    pass_time(groups, SESSION_MS - 100)
    (group,) = groups.request(DESCRIBE_GROUPS, 5, groups=["g"]).groups
    assert group.group_state == "Stable"
    pass_time(groups, 200)
    assert beat(groups, joined) == errors.UnknownMemberId.code


def test_pause_of_the_broker_expires_no_session(groups):
    joined = member(groups)
    groups.clock.advance(10 * SESSION_MS)
    groups.reactor.tick(0)
    assert beat(groups, joined) == 0
    groups.clock.advance(LATE_TIMER_PAUSE_MS)
    groups.reactor.tick(0)
    assert beat(groups, joined) == 0


def test_member_without_heartbeats_after_a_pause_is_removed(groups):
    member(groups)
    groups.clock.advance(10 * SESSION_MS)
    groups.reactor.tick(0)
    for _ in range(10):
        groups.request(HEARTBEAT, 4, group_id="g", generation_id=1, member_id="another")
        pass_time(groups, LATE_TIMER_PAUSE_MS // 2)
    (group,) = groups.request(DESCRIBE_GROUPS, 5, groups=["g"]).groups
    assert group.group_state == "Empty"


def test_generation_survives_a_restart(groups):
    joined = member(groups)
    assert commit(groups, joined=joined) == 0
    groups.restart()
    assert beat(groups, joined) == 0
    assert fetch(groups)["t", 0] == (5, 3, "why", 0)


def test_generation_survives_a_kill(groups):
    joined = member(groups)
    assert commit(groups, joined=joined) == 0
    copy = groups.killed()
    assert beat(copy, joined) == 0
    assert fetch(copy)["t", 0] == (5, 3, "why", 0)
    copy.close()


def test_each_generation_of_a_group_is_logged(groups, caplog):
    with caplog.at_level(logging.INFO, "kafkalite.broker"):
        joined = member(groups)
        commit(groups, joined=joined)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "Group 'g' is in generation 1 with 1 members."
        f" group='g' generation=1 members={joined.member_id!r}"
    )


def test_member_without_heartbeats_after_a_restart_is_removed(groups):
    joined = member(groups)
    groups.restart()
    pass_time(groups, SESSION_MS + 100)
    assert beat(groups, joined) == errors.UnknownMemberId.code


@pytest.mark.parametrize("at", [5, 70], ids=["seen by the recovery", "seen by the coordinator"])
def test_damaged_offsets_log_makes_the_coordinator_unavailable(groups, at):
    joined = member(groups)
    assert commit(groups, joined=joined) == 0
    groups.close()
    (segment,) = (groups.directory / "__consumer_offsets-0").glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[at] ^= 0xFF
    segment.write_bytes(damaged)
    groups.open()
    code = errors.CoordinatorNotAvailable.code
    assert beat(groups, joined) == commit(groups) == code
    asked = [{"group_id": "g", "topics": None}]
    assert groups.request(OFFSET_FETCH, 8, groups=asked).groups[0].error_code == code
    assert groups.request(LIST_GROUPS, 5).error_code == code
    assert segment.read_bytes() == damaged


@pytest.mark.parametrize("version", range(6))
def test_leave_group_of_every_version_reports_unknown_members(groups, version):
    joined = member(groups)
    asked = {"group_id": "g"}
    if version < 3:
        wrong, right = {"member_id": "nobody"}, {"member_id": joined.member_id}
    else:
        wrong, right = (
            {"members": [{"member_id": "nobody"}]},
            {"members": [{"member_id": joined.member_id}]},
        )
    refused = groups.request(LEAVE_GROUP, version, **asked, **wrong)
    if version < 3:
        assert refused.error_code == errors.UnknownMemberId.code
    else:
        assert refused.error_code == 0
        assert [each.error_code for each in refused.members] == [errors.UnknownMemberId.code]
    assert groups.request(LEAVE_GROUP, version, **asked, **right).error_code == 0
    assert beat(groups, joined) == errors.UnknownMemberId.code


def test_group_requests_without_offsets_topic_return_not_coordinator(broker):
    code = errors.NotCoordinator.code
    assert broker.request(JOIN_GROUP, 9, **joining()).error_code == code
    assert (
        broker.request(HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m").error_code
        == code
    )
    assert broker.request(OFFSET_FETCH, 7, group_id="g", topics=None).error_code == code
    (group,) = broker.request(DESCRIBE_GROUPS, 6, groups=["g"]).groups
    assert group.error_code == code
    (deleted,) = broker.request(DELETE_GROUPS, 2, groups_names=["g"]).results
    assert deleted.error_code == code
    assert broker.request(LIST_GROUPS, 5).groups == []


def test_join_and_commit_without_permission_are_refused(groups):
    groups.node.authorizer = Denying(READ, names="g")
    code = errors.GroupAuthorizationFailed.code
    assert groups.request(JOIN_GROUP, 9, **joining()).error_code == code
    assert commit(groups) == code


def test_lowered_offsets_retention_expires_offsets(groups):
    assert commit(groups) == 0
    set_for_all(groups, offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000")
    pass_time(groups, 62_000)
    assert groups.request(LIST_GROUPS, 5).groups == []


def test_altered_session_timeout_limit_applies_to_the_next_join(groups):
    set_for_all(groups, group_min_session_timeout_ms=str(SESSION_MS + 1))
    assert join(groups).error_code == errors.InvalidSessionTimeout.code
    groups.restart()
    assert join(groups).error_code == errors.InvalidSessionTimeout.code


def test_group_requests_on_a_full_disk_return_not_coordinator(groups, monkeypatch):
    joined = join(groups)
    partition = groups.node.replicas.leader("__consumer_offsets", 0)

    def full(*_, **__):
        raise KafkaStorageError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(type(partition.log), "append", full)
        synced = groups.request(
            SYNC_GROUP, 4, group_id="g", generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[{"member_id": joined.member_id, "assignment": b"a"}],
        )  # fmt: skip
        assert synced.error_code == errors.NotCoordinator.code
    joined = member(groups, member_id=joined.member_id)
    with monkeypatch.context() as patched:
        patched.setattr(type(partition.log), "append", full)
        assert commit(groups, joined=joined) == errors.NotCoordinator.code
    assert fetch(groups)["t", 0][0] == -1
    assert commit(groups, joined=joined) == 0


# -- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_fetch_of_any_version_returns_commits_of_any_version(groups, version):
    assert commit(groups, version) == 0
    epoch = 3 if version >= 6 else -1
    for asked in range(1, 10):
        there = fetch(groups, asked)["t", 0]
        assert there == (5, epoch if asked >= 5 else -1, "why", 0)
    topic_id = groups.topic_id
    assert fetch(groups, 10, [(topic_id, [0])])[topic_id, 0] == (5, epoch, "why", 0)


@pytest.mark.parametrize("version", range(1, 10))
def test_offset_fetch_without_commit_returns_minus_one(groups, version):
    found = fetch(groups, version, [("t", [0, 9]), ("nowhere", [0])])
    assert set(found.values()) == {(-1, -1, "", 0)} and len(found) == 3


def test_offset_fetch_of_all_topics_returns_the_committed_offsets(groups):
    commit(groups, index=0)
    commit(groups, index=1, offset=8)
    assert {place: at[0] for place, at in fetch(groups, 8, None).items()} == {
        ("t", 0): 5,
        ("t", 1): 8,
    }
    assert {place: at[0] for place, at in fetch(groups, 10, None).items()} == {
        (groups.topic_id, 0): 5,
        (groups.topic_id, 1): 8,
    }


def test_offset_commit_refuses_only_unknown_topics_and_partitions(groups):
    assert commit(groups, topic={"name": "nowhere"}) == errors.UnknownTopicOrPartition.code
    assert commit(groups, index=2) == errors.UnknownTopicOrPartition.code
    unknown = {"topic_id": bytes(15) + b"x"}
    assert commit(groups, 10, topic=unknown) == errors.UnknownTopicId.code
    assert fetch(groups, 10, [(bytes(15) + b"x", [0])])[bytes(15) + b"x", 0][3] == (
        errors.UnknownTopicId.code
    )
    parts = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": None}
        for index in (0, 7)
    ]
    answer = groups.request(
        OFFSET_COMMIT, 5, group_id="g", topics=[{"name": "t", "partitions": parts}]
    )
    codes = [part.error_code for part in answer.topics[0].partitions]
    assert codes == [0, errors.UnknownTopicOrPartition.code]
    assert fetch(groups)["t", 0] == (1, -1, "", 0)


def test_offset_commit_refuses_only_oversized_metadata(groups):
    parts = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": "x" * size}
        for index, size in ((0, 4096), (1, 4097))
    ]
    answer = groups.request(
        OFFSET_COMMIT, 5, group_id="g", topics=[{"name": "t", "partitions": parts}]
    )
    codes = [part.error_code for part in answer.topics[0].partitions]
    assert codes == [0, errors.OffsetMetadataTooLarge.code]


def test_offsets_of_a_denied_topic_are_refused_and_hidden(groups):
    commit(groups)
    code = errors.TopicAuthorizationFailed.code
    groups.node.authorizer = Denying(READ, DESCRIBE, names="t")
    assert commit(groups) == code
    assert fetch(groups)["t", 0] == (-1, -1, "", code)
    assert fetch(groups, 8, None) == {}


def test_offset_fetch_places_the_group_error_by_version(broker):
    topics = [{"name": "t", "partition_indexes": [0]}]
    code = errors.NotCoordinator.code
    old = broker.request(OFFSET_FETCH, 1, group_id="g", topics=topics)
    assert old.topics[0].partitions[0].error_code == code
    newer = broker.request(OFFSET_FETCH, 5, group_id="g", topics=topics)
    assert (newer.error_code, newer.topics) == (code, [])
    newest = broker.request(OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": topics}])
    assert newest.groups[0].error_code == code


def test_offsets_of_a_deleted_topic_are_removed(groups):
    commit(groups)
    groups.request(DELETE_TOPICS, 5, topic_names=["t"])
    assert fetch(groups, 8, None) == {}
    groups.create("t", 2)
    assert fetch(groups)["t", 0][0] == -1
    groups.restart()
    assert fetch(groups)["t", 0][0] == -1


def test_offsets_of_two_deleted_topics_of_one_name_are_removed(groups, monkeypatch):
    told = []
    monkeypatch.setattr(groups.node.groups, "delete_topics", told.append)
    for _ in range(2):
        groups.request(DELETE_TOPICS, 5, topic_names=["t"])
        groups.create("t", 2)
    one, other = (topic_id for names in told for topic_id in names["t"])
    records = [REMOVE_TOPIC(topic_id=topic_id) for topic_id in (one, other)]
    groups.node._on_metadata_change(records, 0)
    assert told[-1] == {"t": {one, other}}


def test_recreated_topic_has_no_committed_offsets(groups, monkeypatch):
    assert commit(groups) == 0
    with monkeypatch.context() as patched:  # the broker dies before it has written the removal
        patched.setattr(groups.node.groups, "delete_topics", lambda names: None)
        groups.request(DELETE_TOPICS, 5, topic_names=["t"], timeout_ms=1_000)
    groups.create("t", 2)
    assert fetch(groups)["t", 0][0] == -1
    assert commit(groups, offset=7) == 0
    assert fetch(groups)["t", 0][0] == 7


def test_offset_delete_removes_offsets(groups):
    commit(groups)
    topics = [
        {"name": "t", "partitions": [{"partition_index": 0}]},
        {"name": "nowhere", "partitions": [{"partition_index": 0}]},
    ]
    answer = groups.request(OFFSET_DELETE, 0, group_id="g", topics=topics)
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert (answer.error_code, codes) == (0, [0, errors.UnknownTopicOrPartition.code])
    assert fetch(groups)["t", 0][0] == -1
    missing = groups.request(OFFSET_DELETE, 0, group_id="nobody", topics=topics)
    assert (missing.error_code, missing.topics) == (errors.GroupIdNotFound.code, [])


# -- describing and deleting groups --------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_returns_the_members(groups, version):
    joined = member(groups, version=9, group_instance_id="static")
    (group,) = groups.request(DESCRIBE_GROUPS, version, groups=["g"]).groups
    assert (group.error_code, group.group_state) == (0, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (there,) = group.members
    assert (there.member_id, there.client_id) == (joined.member_id, "a test")
    assert (there.client_host, there.member_metadata) == ("/127.0.0.1", b"m")
    assert there.member_assignment == b"a"
    if version >= 4:
        assert there.group_instance_id == "static"


def test_repeated_group_entries_return_invalid_request(groups):
    assert commit(groups) == 0
    codes = [
        each.error_code for each in groups.request(DESCRIBE_GROUPS, 5, groups=["g"] * 3).groups
    ]
    assert codes == [errors.InvalidRequest.code] * 3
    for topics, times in (
        ([{"name": "t", "partition_indexes": [0] * 3}], 1),
        ([{"name": "t", "partition_indexes": [0]}] * 3, 1),
        (None, 3),
    ):
        asked = [{"group_id": "g", "topics": topics}] * times
        answers = groups.request(OFFSET_FETCH, 8, groups=asked).groups
        assert {answer.error_code for answer in answers} == {errors.InvalidRequest.code}
    codes = [
        each.error_code for each in groups.request(DESCRIBE_GROUPS, 5, groups=["g"] * 2).groups
    ]
    assert codes == [0, 0]
    assert fetch(groups, topics=[("t", [0, 0, 1])])["t", 0][0] == 5


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_of_unknown_group_is_dead_or_not_found(groups, version):
    (group,) = groups.request(DESCRIBE_GROUPS, version, groups=["nobody"]).groups
    assert group.group_state == "Dead"
    assert group.error_code == (errors.GroupIdNotFound.code if version == 6 else 0)


def test_list_groups_filters_by_state_and_type(groups):
    commit(groups)
    member(groups)
    topic = {"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    topic["partitions"][0]["committed_metadata"] = ""
    groups.request(OFFSET_COMMIT, 5, group_id="alone", topics=[topic])

    def listed(version=5, **filters):
        return {g.group_id for g in groups.request(LIST_GROUPS, version, **filters).groups}

    assert listed() == {"g", "alone"} == listed(0)
    assert listed(states_filter=["Stable"]) == {"g"}
    assert listed(states_filter=["Empty"]) == {"alone"}
    assert listed(types_filter=["classic"]) == {"g", "alone"}
    assert listed(types_filter=["consumer"]) == set()
    groups.node.authorizer = Denying(DESCRIBE, names="g|kafka-cluster")
    assert listed() == {"alone"}


@pytest.mark.parametrize("version", range(4))
def test_delete_groups_deletes_only_empty_groups(groups, version):
    joined = member(groups)
    names = ["g", "nobody"]
    codes = {
        result.group_id: result.error_code
        for result in groups.request(DELETE_GROUPS, version, groups_names=names).results
    }
    assert codes == {"g": errors.NonEmptyGroup.code, "nobody": errors.GroupIdNotFound.code}
    groups.request(LEAVE_GROUP, 3, group_id="g", members=[{"member_id": joined.member_id}])
    groups.node.authorizer = Denying(DELETE, names="g")
    (refused,) = groups.request(DELETE_GROUPS, version, groups_names=["g"]).results
    assert refused.error_code == errors.GroupAuthorizationFailed.code
    groups.node.authorizer = Denying()
    (deleted,) = groups.request(DELETE_GROUPS, version, groups_names=["g"]).results
    assert deleted.error_code == 0
    assert groups.request(LIST_GROUPS, 5).groups == []
