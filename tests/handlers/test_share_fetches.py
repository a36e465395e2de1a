"""ShareFetch and ShareAcknowledge, through the dispatcher of a real node."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

from kafkalite import errors
from kafkalite.broker.security import READ
from kafkalite.broker.share import led_share_partition, share_sessions
from kafkalite.coordination import features
from kafkalite.coordination.share.state_requests import StateInitialization, StateRead, StateSummary
from kafkalite.coordination.topic_names import SHARE_GROUP_STATE
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.internal import FEATURE
from kafkalite.protocol.schemas.share import SHARE_ACKNOWLEDGE, SHARE_FETCH
from kafkalite.protocol.schemas.share_records import SharePartitionKey
from kafkalite.records.batch import Record, batches, build
from tests.handlers.conftest import CORRELATION_ID, Wire
from tests.handlers.denying import Denying

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
MEMBER = "a" * 22
GROUP_RESOURCE = 32


class Member:
    """A member of share group `g` with a session."""

    def __init__(self, broker, topic_id, member_id=MEMBER):
        self.broker = broker
        self.topic_id = topic_id
        self.member_id = member_id
        self.epoch = 0
        self.wire = Wire(broker.local)

    def topics(self, partitions, acks):
        entries = [
            {
                "partition_index": index,
                "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": types}
                    for first, last, *types in acks
                ],
            }
            for index in partitions
        ]
        return [{"topic_id": self.topic_id, "partitions": entries}] if entries else []

    def send(self, api, partitions, acks, version, **fields):
        """Send a request of the session without waiting for the response."""
        request = {
            "group_id": "g", "member_id": self.member_id, "share_session_epoch": self.epoch,
            "topics": self.topics(partitions, acks), **fields,
        }  # fmt: skip
        on_close = self.wire._on_close
        self.wire = Wire(self.broker.local)
        self.wire._on_close = on_close
        header = write_header(api.key, version, CORRELATION_ID, "a test", True)
        frame = header + api.request.write(version, request)
        came = self.broker.node.dispatcher.serve(self.wire, memoryview(frame))
        if isinstance(came, list):
            self.wire.send(came)
        return self.wire

    def respond(self, wire, api, version):
        self.broker.until(lambda: wire.sent is not None)
        response = self.broker.response(wire, api, version)
        if not response.error_code and self.epoch >= 0:
            self.epoch += 1
        return response

    def begin_fetch(self, *partitions, acks=(), wait_ms=0, records=100, version=2, **fields):
        limits = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_records": records, "batch_size": 10}
        return self.send(SHARE_FETCH, partitions, acks, version, **limits, **fields)

    def fetch(self, *partitions, version=2, **fields):
        wire = self.begin_fetch(*partitions, version=version, **fields)
        return self.respond(wire, SHARE_FETCH, version)

    def poll(self, *partitions, **fields):
        """Fetch once the state of the partitions is loaded; return the acquired ranges."""
        response = self.fetch(*partitions, **fields)
        assert not response.error_code
        return {
            each.partition_index: [tuple(acquired.values()) for acquired in each.acquired_records]
            for topic in response.responses
            for each in topic.partitions
            if not each.error_code
        }

    def acknowledge(self, first, last, *types, partition=0, version=2, **fields):
        """Acknowledge; return the error code of the partition, or of the request."""
        acks = [(first, last, *types)]
        wire = self.send(SHARE_ACKNOWLEDGE, [partition], acks, version, **fields)
        response = self.respond(wire, SHARE_ACKNOWLEDGE, version)
        return response.error_code or response.responses[0].partitions[0].error_code


def open_state_topic(broker):
    """Create the topic of the share coordinators."""
    opened = broker.node.local_controller.open_internal_topic(SHARE_GROUP_STATE)
    broker.until(lambda: opened.settled)


@pytest.fixture
def topic_id(broker):
    """A topic with two partitions, whose share partitions start at offset 0."""
    topic_id = broker.create("t", 2)
    open_state_topic(broker)
    keys = [SharePartitionKey("g", topic_id, index) for index in range(2)]
    done = broker.node.share_coordinators.outcomes([StateInitialization(key, 1, 0) for key in keys])
    broker.until(lambda: done.settled)
    return topic_id


def wait_for_load(broker, topic_id, *indexes):
    """Run the node until the states of these share partitions are loaded."""
    shares = [broker.node.share_partitions.led.find("g", topic_id, index) for index in indexes]
    broker.until(lambda: all(share.records is not None for share in shares))


@pytest.fixture
def member(broker, topic_id):
    """A member whose session has both partitions, loaded."""
    member = Member(broker, topic_id)
    member.poll(0, 1)
    wait_for_load(broker, topic_id, 0, 1)
    return member


def produce(broker, topic, *values, partition=0):
    """Append one batch with these values."""
    led = broker.node.replicas.leader(topic, partition)
    now_ms = broker.clock.wall_ms()
    records = [Record(timestamp=now_ms, value=value) for value in values]
    broker.node.replicas.append_own(led, build(records))
    broker.reactor.tick(0)


def alter(broker, **config):
    """Set keys of the group."""
    configs = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": value}
        for name, value in config.items()
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": configs}
    response = broker.request(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    assert response.responses[0].error_code == 0, response.responses[0].error_message


def summary(broker, topic_id, index=0):
    key = SharePartitionKey("g", topic_id, index)
    done = broker.node.share_coordinators.outcomes([StateSummary(key)])
    broker.until(lambda: done.settled)
    found = []
    done.then(lambda outcomes, _: found.extend(outcomes))
    return found[0]


def test_acquired_records_are_acknowledged_and_not_delivered_again(broker, topic_id, member):
    produce(broker, "t", b"a", b"b", b"c")
    assert member.poll() == {0: [(0, 2, 1)]}
    assert member.acknowledge(0, 2, ACCEPT) == 0
    assert member.poll() == {}
    assert summary(broker, topic_id).start_offset == 3


def test_response_has_the_batches_as_they_are_in_the_log(broker, topic_id, member):
    for value in (b"a", b"b", b"c"):
        produce(broker, "t", value)
    response = member.fetch(records=1)
    (result,) = response.responses[0].partitions
    values = [record.value for batch in batches(result.records) for record in batch.records()]
    assert values == [b"a"]
    assert response.acquisition_lock_timeout_ms == 30_000
    assert member.poll(records=2) == {0: [(1, 2, 1)]}


def test_two_members_get_different_records(broker, topic_id, member):
    other = Member(broker, topic_id, "b")
    other.poll(0)
    for value in (b"a", b"b"):
        produce(broker, "t", value)
    assert member.poll(records=1) == {0: [(0, 0, 1)]}
    assert other.poll() == {0: [(1, 1, 1)]}
    assert other.acknowledge(0, 0, ACCEPT) == errors.InvalidRecordState.code


def test_fetch_waits_for_records(broker, topic_id, member):
    wire = member.begin_fetch(wait_ms=1_000)
    assert wire.sent is None
    produce(broker, "t", b"a", partition=1)
    response = member.respond(wire, SHARE_FETCH, 2)
    assert [
        tuple(each.values()) for each in response.responses[0].partitions[0].acquired_records
    ] == [(0, 0, 1)]


def test_fetch_is_woken_by_a_released_record(broker, topic_id, member):
    other = Member(broker, topic_id, "b")
    other.poll(0)
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    wire = other.begin_fetch(wait_ms=10_000)
    assert member.acknowledge(0, 0, RELEASE) == 0
    response = other.respond(wire, SHARE_FETCH, 2)
    assert [
        tuple(each.values()) for each in response.responses[0].partitions[0].acquired_records
    ] == [(0, 0, 2)]


def test_expired_lock_releases_records(broker, topic_id, member):
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    broker.clock.advance(30_000)
    broker.reactor.tick(0)
    assert member.acknowledge(0, 0, ACCEPT) == errors.InvalidRecordState.code
    assert member.poll() == {0: [(0, 0, 2)]}


def test_renewal_extends_the_lock(broker, topic_id, member):
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    broker.clock.advance(20_000)
    assert member.acknowledge(0, 0, RENEW) == errors.InvalidRequest.code
    assert member.acknowledge(0, 0, RENEW, is_renew_ack=True) == 0
    broker.clock.advance(20_000)
    broker.reactor.tick(0)
    assert member.acknowledge(0, 0, ACCEPT) == 0


def test_end_of_the_connection_releases_records(broker, topic_id, member):
    other = Member(broker, topic_id, "b")
    other.poll(0)
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    member.wire.disconnect()
    assert other.poll() == {0: [(0, 0, 2)]}
    assert member.acknowledge(0, 0, ACCEPT) == errors.ShareSessionNotFound.code


def test_final_epoch_acknowledges_and_releases(broker, topic_id, member):
    other = Member(broker, topic_id, "b")
    other.poll(0)
    produce(broker, "t", b"a", b"b")
    assert member.poll() == {0: [(0, 1, 1)]}
    member.epoch = -1
    assert member.acknowledge(0, 0, ACCEPT) == 0
    assert other.poll() == {0: [(1, 1, 2)]}
    assert len(broker.node.share_partitions.sessions) == 1


def test_last_session_drops_the_share_partitions(broker, topic_id, member):
    assert len(broker.node.share_partitions.led) == 2
    member.wire.disconnect()
    broker.reactor.tick(0)
    assert len(broker.node.share_partitions.led) == 0


def test_session_does_not_keep_share_partitions_that_were_loaded_again(broker, topic_id, member):
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    led = broker.node.share_partitions.led.find("g", topic_id, 0)
    led.fail(errors.FencedStateEpoch())
    failed = ref(led)
    del led
    member.poll()
    wait_for_load(broker, topic_id, 0)
    gc.collect()
    assert failed() is None
    assert member.poll() == {0: [(0, 0, 1)]}


def test_epochs_of_sessions_are_checked(broker, topic_id, member):
    expected = member.epoch
    member.epoch = expected + 1
    assert member.fetch().error_code == errors.InvalidShareSessionEpoch.code
    member.epoch = 0
    assert member.acknowledge(0, 0, ACCEPT) == errors.InvalidShareSessionEpoch.code
    assert member.fetch(0, acks=[(0, 0, ACCEPT)]).error_code == errors.InvalidRequest.code
    stranger = Member(broker, topic_id, "stranger")
    stranger.epoch = 1
    assert stranger.fetch().error_code == errors.ShareSessionNotFound.code


def test_fetch_of_a_session_that_has_ended_acquires_nothing(broker, topic_id, member):
    wire = member.begin_fetch(wait_ms=10_000)
    member.epoch = -1
    assert member.fetch(records=0).error_code == 0
    other = Member(broker, topic_id, "b")
    other.poll(0)
    wait_for_load(broker, topic_id, 0)
    produce(broker, "t", b"a")
    assert other.poll() == {0: [(0, 0, 1)]}
    broker.clock.advance(10_000)
    assert [*member.respond(wire, SHARE_FETCH, 2).responses] == []


def test_fetch_of_a_replaced_session_acquires_nothing(broker, topic_id, member):
    wire = member.begin_fetch(wait_ms=10_000)
    again = Member(broker, topic_id)
    again.poll(0)
    produce(broker, "t", b"a")
    assert again.poll() == {0: [(0, 0, 1)]}
    assert [*member.respond(wire, SHARE_FETCH, 2).responses] == []


def test_fetch_that_comes_too_late_for_the_records_waits_for_others(broker, topic_id, member):
    other = Member(broker, topic_id, "b")
    other.poll(0)
    wires = [each.begin_fetch(wait_ms=10_000) for each in (member, other)]
    produce(broker, "t", b"a")
    broker.until(lambda: wires[0].sent is not None)
    assert wires[1].sent is None
    produce(broker, "t", b"b")
    response = other.respond(wires[1], SHARE_FETCH, 2)
    assert [
        tuple(each.values()) for each in response.responses[0].partitions[0].acquired_records
    ] == [(1, 1, 1)]


def test_acknowledgements_ride_on_a_fetch(broker, topic_id, member):
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    produce(broker, "t", b"b")
    response = member.fetch(0, acks=[(0, 0, ACCEPT)])
    (result,) = response.responses[0].partitions
    assert (result.error_code, result.acknowledge_error_code) == (0, 0)
    assert [tuple(each.values()) for each in result.acquired_records] == [(1, 1, 1)]
    response = member.fetch(0, acks=[(5, 5, ACCEPT)])
    (result,) = response.responses[0].partitions
    assert result.acknowledge_error_code == errors.InvalidRequest.code


@pytest.mark.parametrize(
    "ack", [(1, 0, 1), (0, 1, 1, 1, 1), (0, 0), (0, 0, 5), (0, 0, -1), (-1, 0, 1)]
)
def test_acknowledgement_that_is_not_valid_is_refused(broker, topic_id, member, ack):
    produce(broker, "t", b"a", b"b")
    member.poll()
    assert member.acknowledge(*ack) == errors.InvalidRequest.code
    assert member.acknowledge(0, 1, ACCEPT, RELEASE) == 0


def test_exact_mode_acquires_parts_of_batches(broker, topic_id, member):
    produce(broker, "t", b"a", b"b", b"c")
    assert member.poll(records=2, share_acquire_mode=1) == {0: [(0, 1, 1)]}
    assert member.poll(records=2) == {0: [(2, 2, 1)]}


def test_fetch_acquires_in_place_of_what_it_acknowledges(broker, topic_id, member):
    alter(broker, share_partition_max_record_locks="100")
    produce(broker, "t", *[b"value"] * 200)
    assert member.poll(records=60, share_acquire_mode=1) == {0: [(0, 59, 1)]}
    found = member.poll(0, records=200, share_acquire_mode=1, acks=[(0, 59, ACCEPT)])
    assert found == {0: [(60, 159, 1)]}, "the window has room for 100 again"


def test_records_survive_a_restart_with_their_counts(broker, topic_id, member):
    produce(broker, "t", b"a", b"b", b"c")
    member.poll()
    member.acknowledge(0, 0, RELEASE)
    member.acknowledge(1, 1, ACCEPT)
    broker.restart()
    again = Member(broker, topic_id)
    again.poll(0)
    wait_for_load(broker, topic_id, 0)
    assert again.poll(0) == {0: [(0, 0, 2), (2, 2, 1)]}


def test_settings_of_the_group_count_at_once(broker, topic_id, member):
    alter(broker, share_record_lock_duration_ms="2000", share_delivery_count_limit="2")
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    broker.clock.advance(2_000)
    broker.reactor.tick(0)
    assert member.poll() == {0: [(0, 0, 2)]}
    assert member.acknowledge(0, 0, RELEASE) == 0
    assert member.poll() == {}


@pytest.mark.parametrize(
    ("reset", "expected"),
    [("latest", {}), ("earliest", {0: [(0, 1, 1)]}), ("by_duration:PT1H", {0: [(0, 1, 1)]})],
)
def test_new_share_partition_starts_as_configured(broker, reset, expected):
    topic_id = broker.create("u", 1)
    for value in (b"a", b"b"):
        produce(broker, "u", value)
    open_state_topic(broker)
    key = SharePartitionKey("g", topic_id, 0)
    done = broker.node.share_coordinators.outcomes([StateInitialization(key, 1, -1)])
    broker.until(lambda: done.settled)
    alter(broker, share_auto_offset_reset=reset)
    member = Member(broker, topic_id)
    member.poll(0)
    wait_for_load(broker, topic_id, 0)
    assert member.poll(0) == expected


def test_deleted_records_move_the_start(broker, topic_id, member):
    produce(broker, "t", b"a", b"b", b"c")
    member.poll()
    partition = broker.node.replicas.leader("t", 0)
    partition.log.roll()
    partition.log.delete_records(2)
    assert member.acknowledge(0, 2, RELEASE) == 0
    assert member.poll() == {0: [(2, 2, 2)]}


def test_fetch_waits_while_the_coordinator_is_unavailable(broker, topic_id, monkeypatch):
    produce(broker, "t", b"a")
    coordinators = broker.node.share_coordinators
    member = Member(broker, topic_id)
    with monkeypatch.context() as patched:
        patched.setattr(coordinators, "host_of", unavailable)
        wire = member.begin_fetch(0, wait_ms=10_000)
        for _ in range(3):
            broker.reactor.tick(0)
            broker.clock.advance(led_share_partition.LOAD_RETRY_MS)
    assert wire.sent is None
    broker.until(lambda: wire.sent is not None or broker.clock.advance(1))
    response = member.respond(wire, SHARE_FETCH, 2)
    assert [each.first_offset for each in response.responses[0].partitions[0].acquired_records] == [
        0
    ]


def unavailable(_):
    raise errors.CoordinatorLoadInProgress()


def test_state_that_is_not_initialized_is_an_error(broker):
    topic_id = broker.create("v", 1)
    open_state_topic(broker)
    member = Member(broker, topic_id)
    wire = member.begin_fetch(0, wait_ms=10_000)
    response = member.respond(wire, SHARE_FETCH, 2)
    assert response.responses[0].partitions[0].error_code == errors.UnknownServerError.code


def test_fetch_of_no_records_only_begins_the_session(broker, topic_id, member):
    produce(broker, "t", b"a")
    assert member.poll(records=0) == {}
    assert member.poll() == {0: [(0, 0, 1)]}


def test_unknown_acquire_mode_is_refused(broker, topic_id, member):
    response = member.fetch(share_acquire_mode=2)
    assert response.error_code == errors.UnknownServerError.code
    assert member.fetch(share_acquire_mode=1).error_code == 0


def test_requests_need_the_feature(broker, topic_id, member):
    broker.node.local_controller.machine.replay(FEATURE(name=features.SHARE_VERSION, level=0))
    assert member.fetch().error_code == errors.UnsupportedVersion.code
    assert member.acknowledge(0, 0, ACCEPT) == errors.UnsupportedVersion.code


def test_unknown_topic_and_unauthorized_group_are_refused(broker, topic_id, member):
    stranger = Member(broker, bytes(range(16)), "b")
    response = stranger.fetch(0)
    assert response.responses[0].partitions[0].error_code == errors.UnknownTopicId.code
    broker.node.authorizer = Denying(READ, names="t")
    response = member.fetch()
    assert {each.error_code for each in response.responses[0].partitions} == {29}
    broker.node.authorizer = Denying(READ, names="g")
    assert member.fetch().error_code == errors.GroupAuthorizationFailed.code


def test_session_beyond_the_limit_is_refused_late(broker, topic_id, member):
    broker.restart(**{"group.share.max.share.sessions": "1"})
    broker.reactor.tick(0)
    first, second = Member(broker, topic_id), Member(broker, topic_id, "b")
    first.poll(0)
    wire = second.begin_fetch(0, wait_ms=500)
    broker.reactor.tick(0)
    assert wire.sent is None
    broker.clock.advance(500)
    assert second.respond(wire, SHARE_FETCH, 2).error_code == errors.ShareSessionLimitReached.code


def test_refusal_is_dropped_with_its_connection(broker, topic_id, member):
    broker.restart(**{"group.share.max.share.sessions": "1"})
    broker.reactor.tick(0)
    first, second = Member(broker, topic_id), Member(broker, topic_id, "b")
    first.poll(0)
    wire = second.begin_fetch(0, wait_ms=500)
    wire.disconnect()
    broker.clock.advance(500)
    broker.reactor.tick(0)
    assert wire.sent is None


def test_sessions_of_a_connection_leave_one_callback(broker, topic_id, member):
    sessions = broker.node.share_partitions.sessions
    wire = Wire(broker.local)
    for name in ("a", "b", "a", "a"):
        sessions.begin(("other", name), wire, 10)
    assert len(wire._on_close) == 1
    assert len(sessions) == 3
    wire.disconnect()
    assert len(sessions) == 1


def test_partitions_of_sessions_are_limited(broker, topic_id, member, monkeypatch):
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX", 3)
    other = Member(broker, topic_id, "b")
    assert other.fetch(*range(4)).error_code == errors.InvalidRequest.code
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX_IN_ALL", 4)
    other.poll(0)
    broker.reactor.tick(0)
    wire = other.begin_fetch(1, 2)
    broker.reactor.tick(0)
    assert other.respond(wire, SHARE_FETCH, 2).error_code == errors.ShareSessionLimitReached.code
    assert len(broker.node.share_partitions.sessions) == 1


def test_settings_are_kept_only_of_groups_with_configs(broker, topic_id):
    settings_of = broker.node.share_partitions.settings_of
    assert settings_of("a") is settings_of("b")
    alter(broker, share_delivery_count_limit="2")
    assert settings_of("g").limits.delivery_count_max == 2
    assert settings_of("a") is settings_of("b")


def test_leader_of_an_older_epoch_is_fenced_and_its_clients_are_told(broker, topic_id, member):
    """A read of the state with a newer leader epoch, as of a new leader, fences the old one."""
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    key = SharePartitionKey("g", topic_id, 0)
    led = broker.node.share_partitions.led.find("g", topic_id, 0)
    read = broker.node.share_coordinators.outcomes([StateRead(key, led.leader_epoch + 1)])
    broker.until(lambda: read.settled)
    assert member.acknowledge(0, 0, ACCEPT) == errors.NotLeaderOrFollower.code
    assert not led.is_usable
    assert summary(broker, topic_id).start_offset == 0
    response = member.fetch(0, wait_ms=10_000)  # it waits until the state is read again
    (partition,) = response.responses[0].partitions
    assert partition.error_code == errors.NotLeaderOrFollower.code
    assert not partition.acquired_records
