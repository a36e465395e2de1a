"""The stored state of share partitions, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker import stepping
from kafkalite.broker.controller.share_messages import (
    read_outcomes,
    read_requests,
    share_outcomes,
    share_states,
)
from kafkalite.broker.coordinator import share_coordinators
from kafkalite.broker.coordinator.share_coordinators import PRUNE_MS
from kafkalite.broker.security import CLUSTER_ACTION
from kafkalite.coordination.features import SHARE_VERSION
from kafkalite.coordination.share.share_coordinator import ShareCoordinator
from kafkalite.coordination.share.state_requests import StateChange, StateRead
from kafkalite.coordination.topic_names import SHARE_GROUP_STATE
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.internal import FEATURE
from kafkalite.protocol.schemas.share_records import SharePartitionKey, ShareSnapshot, StateBatch
from kafkalite.protocol.schemas.share_state import (
    DELETE_SHARE_GROUP_STATE,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
    WRITE_SHARE_GROUP_STATE,
)
from tests.handlers.denying import Denying

BATCH = {"first_offset": 3, "last_offset": 5, "delivery_state": 2, "delivery_count": 1}


@pytest.fixture
def topic_id(broker):
    topic_id = broker.create("t", 2)
    find(broker, f"g:{SharePartitionKey('g', topic_id, 0).coordinator_key.split(':')[1]}:0")
    return topic_id


def find(broker, key, version=6):
    names = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
    response = broker.request(FIND_COORDINATOR, version, key_type=2, **names)
    return response.coordinators[0] if version >= 4 else response


def send(broker, api, topic_id, *partitions, version=None, group_id="g"):
    """Send a request for these partitions; return their results."""
    topics = [{"topic_id": topic_id, "partitions": [*partitions]}]
    version = api.versions[1] if version is None else version
    response = broker.request(api, version, group_id=group_id, topics=topics)
    return response.results[0].partitions


def initialize(broker, topic_id, *indexes):
    entries = ({"partition": index, "state_epoch": 1, "start_offset": 2} for index in indexes)
    return send(broker, INITIALIZE_SHARE_GROUP_STATE, topic_id, *entries)


def write(broker, topic_id, leader_epoch=0, batch=BATCH, index=0):
    return send(
        broker, WRITE_SHARE_GROUP_STATE, topic_id,
        {
            "partition": index, "state_epoch": 1, "leader_epoch": leader_epoch, "start_offset": 3,
            "delivery_complete_count": 3, "state_batches": [batch],
        },
    )[0]  # fmt: skip


def read(broker, topic_id, leader_epoch=0):
    partition = {"partition": 0, "leader_epoch": leader_epoch}
    return send(broker, READ_SHARE_GROUP_STATE, topic_id, partition)[0]


def test_share_coordinator_is_found_by_its_key(broker, topic_id):
    key = SharePartitionKey("g:with:colons", topic_id, 1).coordinator_key
    found = find(broker, key)
    assert (found.error_code, found.node_id) == (0, 0)
    assert SHARE_GROUP_STATE in broker.node.image.topics
    assert find(broker, "g").error_code == errors.InvalidRequest.code
    assert find(broker, key, version=5).error_code == errors.InvalidRequest.code
    broker.node.authorizer = Denying(CLUSTER_ACTION)
    assert find(broker, key).error_code == errors.ClusterAuthorizationFailed.code


def test_state_is_initialized_written_read_and_deleted(broker, topic_id):
    assert read(broker, topic_id).error_code == errors.InvalidRequest.code
    assert [each.error_code for each in initialize(broker, topic_id, 0, 1, 7)] == [0, 0, 3]
    assert write(broker, topic_id).error_code == 0
    state = read(broker, topic_id)
    assert (state.error_code, state.state_epoch, state.start_offset) == (0, 1, 3)
    assert [dict(each) for each in state.state_batches] == [BATCH]
    partition = {"partition": 0, "leader_epoch": -1}
    (summary,) = send(broker, READ_SHARE_GROUP_STATE_SUMMARY, topic_id, partition)
    assert (summary.start_offset, summary.delivery_complete_count) == (3, 3)
    assert send(broker, DELETE_SHARE_GROUP_STATE, topic_id, {"partition": 0})[0].error_code == 0
    (summary,) = send(broker, READ_SHARE_GROUP_STATE_SUMMARY, topic_id, partition)
    assert (summary.error_code, summary.start_offset) == (0, -1)


def test_states_of_many_partitions_are_decided_in_parts_and_steps(broker, topic_id, monkeypatch):
    decided = []
    decide = ShareCoordinator.decide
    monkeypatch.setattr(
        ShareCoordinator,
        "decide",
        lambda self, requests, *args: (
            decided.append(len(requests)) or decide(self, requests, *args)
        ),
    )
    monkeypatch.setattr(share_coordinators, "ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr(stepping, "STEP_MS", 0)
    entries = [{"partition": n % 2, "state_epoch": 1, "start_offset": 2} for n in range(5)]
    topics = [{"topic_id": topic_id, "partitions": entries}]
    wire = broker.send(INITIALIZE_SHARE_GROUP_STATE, 0, group_id="g", topics=topics)
    steps = 0
    while wire.sent is None:
        steps += 1
        assert steps < 30
        broker.clock.advance(stepping.STEP_PAUSE_MS)
        broker.reactor.tick(0)
    assert steps >= len(entries) + 2
    assert decided == [2, 2, 1]
    response = broker.response(wire, INITIALIZE_SHARE_GROUP_STATE, 0)
    assert [each.error_code for each in response.results[0].partitions] == [0] * 5


def test_state_is_the_same_after_a_restart(broker, topic_id):
    initialize(broker, topic_id, 0)
    write(broker, topic_id)
    write(broker, topic_id, batch={**BATCH, "first_offset": 9, "last_offset": 9})
    before = read(broker, topic_id, leader_epoch=4)
    assert len(before.state_batches) == 2
    broker.restart()
    assert read(broker, topic_id, leader_epoch=4) == before
    assert write(broker, topic_id, leader_epoch=3).error_code == errors.FencedLeaderEpoch.code


def test_invalid_batches_are_refused(broker, topic_id):
    initialize(broker, topic_id, 0)
    for wrong in ({"first_offset": 6}, {"delivery_state": 1}, {"delivery_count": -1}):
        refused = write(broker, topic_id, batch={**BATCH, **wrong})
        assert refused.error_code == errors.InvalidRequest.code


def test_principal_without_cluster_action_changes_nothing(broker, topic_id):
    broker.node.authorizer = Denying(CLUSTER_ACTION)
    (refused,) = initialize(broker, topic_id, 0)
    assert refused.error_code == errors.ClusterAuthorizationFailed.code


def test_log_is_pruned_to_the_snapshots(broker, topic_id):
    initialize(broker, topic_id, 0, 1)
    for _ in range(10):
        write(broker, topic_id, index=1)
    (host,) = broker.node.share_coordinators
    log = host.partition.log

    def prune():
        broker.clock.advance(PRUNE_MS)
        broker.reactor.tick(0)
        broker.reactor.tick(0)

    prune()  # from here on, the states are of a new generation
    boundary = log.end_offset
    write(broker, topic_id)
    prune()
    assert log.log_start_offset == boundary
    expected = read(broker, topic_id)
    broker.restart()
    assert read(broker, topic_id) == expected
    assert write(broker, topic_id, index=1).error_code == 0


def test_pruning_that_fails_is_repeated(broker, topic_id, monkeypatch):
    initialize(broker, topic_id, 0)
    (host,) = broker.node.share_coordinators
    log = host.partition.log

    def fail(offset):
        raise errors.KafkaStorageError()

    for failing in (False, True, False):
        write(broker, topic_id)
        with monkeypatch.context() as patched:
            if failing:
                patched.setattr(type(log), "delete_records", lambda self, offset: fail(offset))
            broker.clock.advance(PRUNE_MS)
            for _ in range(3):
                broker.reactor.tick(0)
    assert log.log_start_offset > 0
    assert read(broker, topic_id).start_offset == 3


def test_requests_and_outcomes_pass_the_bus_unchanged():
    key = SharePartitionKey("g", bytes(range(16)), 3)
    batch = StateBatch(1, 2, 4, 5)
    wanted = [StateRead(key, 7), StateRead(key, 8), StateChange(key, 1, 2, 3, 4, [batch])]
    message = bus.read_frame(bus.write_frame(share_states(9, wanted)))
    assert read_requests(message.fields) == wanted
    state = ShareSnapshot(0, 5, 7, 6, -1, -1, -1, [batch])
    outcomes = [state, errors.FencedLeaderEpoch(), errors.FencedStateEpoch()]
    sent = bus.read_frame(bus.write_frame(share_outcomes(message.fields, outcomes, None)))
    read_state, *refused = read_outcomes(message, sent.fields)
    assert read_state == state
    assert [type(each) for each in refused] == [type(each) for each in outcomes[1:]]
    with pytest.raises(errors.UnknownServerError):
        read_outcomes(message, {"reads": [], "changes": []})


def test_state_is_served_without_the_feature(broker, topic_id):
    broker.node.local_controller.machine.replay(FEATURE(name=SHARE_VERSION, level=0))
    assert [each.error_code for each in initialize(broker, topic_id, 0)] == [0]


def test_outcomes_without_a_coordinator_keep_no_frames(broker):
    topic_id = broker.create("t", 2)
    requests = [StateRead(SharePartitionKey("g", topic_id, index), 0) for index in range(2)]
    found = []
    broker.node.share_coordinators.outcomes(requests).then(lambda all, error: found.extend(all))
    assert [type(error) for error in found] == [errors.NotCoordinator] * 2
    assert all(error.__traceback__ is None for error in found)
