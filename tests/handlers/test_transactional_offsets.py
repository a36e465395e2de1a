"""TxnOffsetCommit, and OffsetFetch with `require_stable`, through the dispatcher of a real node."""

from __future__ import annotations

from itertools import count

import pytest

from kafkalite import errors
from kafkalite.broker.future import Future
from kafkalite.broker.handlers.transactions import transactional_offsets
from kafkalite.broker.security import READ, WRITE
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.groups import OFFSET_COMMIT, OFFSET_FETCH
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS, TXN_OFFSET_COMMIT
from kafkalite.records.batch import batches
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.log import log_reader
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying
from tests.handlers.grouping import commit as plain_commit
from tests.handlers.grouping import find, member, pass_time
from tests.handlers.transacting import add, add_offsets, end, hold_markers, host, init

VERSIONS = range(7)
IMPLICIT_SINCE = 5
TRANSACTIONAL_UNTIL = 4
FIRST, SECOND = ("t", 0), ("t", 1)
CONSUMER_OFFSETS = "__consumer_offsets"

_names = count()


def opened(directory, **settings):
    node = InProcess(directory, **settings)
    find(node)
    find(node, key_type=1)
    node.topic_id = node.create("t", 2)
    return node


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    """Return a node for tests that use transactional ids and groups of their own."""
    node = opened(tmp_path_factory.mktemp("offsets") / "data")
    yield node
    node.close()


@pytest.fixture
def own(tmp_path):
    """Return a node of the test's own."""
    node = opened(tmp_path / "data")
    yield node
    node.close()


class TransactionalApp:
    """A producer that commits the offsets of a group in its transactions."""

    def __init__(self, broker, version, group=None):
        self.broker = broker
        self.version = version
        self.name = f"app-{next(_names)}"
        self.group = self.name if group is None else group
        code, *self.pair = init(broker, name=self.name)
        assert code == 0

    def begin(self):
        """Add the group to the transaction, as clients of the version do."""
        if self.version < IMPLICIT_SINCE:
            assert add_offsets(self.broker, 2, self.pair, self.name, self.group) == 0
        return self

    def entries(self, offsets, metadata):
        topics = {}
        for (topic, index), offset in offsets.items():
            entry = {"partition_index": index, "committed_offset": offset}
            entry["committed_metadata"] = metadata
            if self.version >= 2:
                entry["committed_leader_epoch"] = 3
            topics.setdefault(topic, []).append(entry)
        by_id = self.version >= 6
        return [
            {
                **({"topic_id": self.topic_id(topic)} if by_id else {"name": topic}),
                "partitions": entries,
            }
            for topic, entries in topics.items()
        ]

    def topic_id(self, name):
        image = self.broker.node.image.topics.get(name)
        return bytes([9]) * 16 if image is None else image.topic_id

    def send(self, offsets, metadata="why", pair=None, **fields):
        producer_id, epoch = self.pair if pair is None else pair
        request = {"transactional_id": self.name, "group_id": self.group, **fields}
        return self.broker.send(
            TXN_OFFSET_COMMIT, self.version, producer_id=producer_id, producer_epoch=epoch,
            topics=self.entries(offsets, metadata), **request,
        )  # fmt: skip

    def codes(self, wire):
        """Return the error codes of a response, in the order of its partitions."""

        def is_answered():
            self.broker.clock.advance(1)
            return wire.sent is not None or wire.closed

        self.broker.until(is_answered)
        answer = self.broker.response(wire, TXN_OFFSET_COMMIT, self.version)
        return [part.error_code for topic in answer.topics for part in topic.partitions]

    def commit(self, offsets=None, **fields):
        return self.codes(self.send({FIRST: 5} if offsets is None else offsets, **fields))

    def end(self, committed=True):
        """End the transaction, and wait for its markers."""
        version = 5 if self.version >= IMPLICIT_SINCE else 3
        code, *pair = end(self.broker, version, self.pair, self.name, committed)
        assert code == 0
        if version == 5:
            self.pair = pair
        self.broker.until(lambda: not self.is_open())

    def is_open(self):
        machine = self.broker.node.groups.host_of(self.group).machine
        return machine.offsets.pending.has_group(self.group)

    def fetch(self, version=8, require_stable=True, indexes=(0,)):
        """Return (offset, leader epoch, metadata, error code) of the partitions."""
        topic = {"partition_indexes": list(indexes)}
        topic |= {"topic_id": self.topic_id("t")} if version >= 10 else {"name": "t"}
        request = {"group_id": self.group, "topics": [topic]}
        stable = {} if version < 7 else {"require_stable": require_stable}
        if version < 8:
            answer = self.broker.request(OFFSET_FETCH, version, **request, **stable)
        else:
            response = self.broker.request(OFFSET_FETCH, version, groups=[request], **stable)
            (answer,) = response.groups
        return [
            (part.committed_offset, part.committed_leader_epoch if version >= 5 else None,
             part.metadata, part.error_code)
            for part in answer.topics[0].partitions
        ]  # fmt: skip


NONE = (-1, -1, "", 0)
UNSTABLE = (-1, -1, "", errors.UnstableOffsetCommit.code)


@pytest.mark.parametrize("version", VERSIONS)
def test_offset_is_unstable_until_the_transaction_commits(coordinator, version):
    app = TransactionalApp(coordinator, version).begin()
    assert app.commit() == [0]
    for fetch_version in (7, 8, 9, 10):
        assert app.fetch(fetch_version) == [UNSTABLE]
        assert app.fetch(fetch_version, require_stable=False) == [NONE]
    assert app.fetch(6) == [NONE]
    app.end()
    committed = (5, 3 if version >= 2 else -1, "why", 0)
    assert app.fetch() == [committed]
    assert app.fetch(6) == [committed]


@pytest.mark.parametrize("version", VERSIONS)
def test_aborted_offset_is_dropped_and_the_next_transaction_commits(coordinator, version):
    app = TransactionalApp(coordinator, version).begin()
    assert app.commit() == [0]
    app.end(committed=False)
    assert app.fetch() == [NONE]
    app.begin()
    coordinator.until(lambda: app.commit({FIRST: 7}) == [0])
    app.end()
    assert app.fetch()[0][0] == 7


def test_plain_commit_after_the_transactional_one_stays(coordinator):
    app = TransactionalApp(coordinator, 3).begin()
    assert app.commit({FIRST: 5, SECOND: 6}) == [0, 0]
    assert plain_commit(coordinator, offset=9, group_id=app.group) == 0
    app.end()
    assert [each[0] for each in app.fetch(indexes=(0, 1))] == [9, 6]


def test_pending_offset_survives_a_restart_and_bounds_the_last_stable_offset(own):
    app = TransactionalApp(own, 3, "g").begin()
    assert plain_commit(own, offset=1, index=1) == 0
    assert app.commit() == [0]
    begun = own.node.replicas.leader(CONSUMER_OFFSETS, 0).last_stable_offset
    assert plain_commit(own, offset=2, index=1) == 0
    own.restart()
    own.until(lambda: [*own.node.groups] and [*own.node.transactions])
    partition = own.node.replicas.leader(CONSUMER_OFFSETS, 0)
    assert partition.last_stable_offset == begun < partition.high_watermark
    assert app.fetch(indexes=(0, 1)) == [UNSTABLE, (2, 3, "why", 0)]
    app.end()
    assert partition.last_stable_offset == partition.high_watermark
    assert [each[0] for each in app.fetch(indexes=(0, 1))] == [5, 2]
    own.restart()
    own.until(lambda: [*own.node.groups])
    assert [each[0] for each in app.fetch(indexes=(0, 1))] == [5, 2]


# -- verification ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(IMPLICIT_SINCE))
def test_group_that_was_not_added_is_refused(coordinator, version):
    app = TransactionalApp(coordinator, version)
    assert add(coordinator, 3, app.pair, FIRST, name=app.name) == {FIRST: 0}
    error = errors.InvalidTxnState if version < 4 else errors.TransactionAbortable
    assert app.commit() == [error.code]
    assert app.fetch() == [NONE]


@pytest.mark.parametrize("version", VERSIONS)
def test_other_producers_are_refused(coordinator, version):
    app = TransactionalApp(coordinator, version).begin()
    producer_id, epoch = app.pair
    unknown = errors.InvalidProducerIdMapping.code
    assert app.commit(pair=(producer_id + 1_000, epoch)) == [unknown]
    assert app.commit(transactional_id="unheard of") == [unknown]
    assert app.commit(pair=(producer_id, epoch + 1)) == [errors.InvalidProducerEpoch.code]
    assert app.commit(transactional_id="") == [errors.InvalidRequest.code]
    assert not app.is_open()


def test_fenced_producer_is_refused_by_the_log(coordinator):
    app = TransactionalApp(coordinator, 3).begin()
    assert app.commit() == [0]
    app.end()
    old = app.pair
    code, *app.pair = init(coordinator, name=app.name)
    assert code == 0
    app.begin()
    assert app.commit() == [0]
    assert app.commit(pair=old) == [errors.InvalidProducerEpoch.code]


def test_verification_can_be_disabled(tmp_path):
    node = opened(tmp_path / "data", **{"transaction.partition.verification.enable": "false"})
    app = TransactionalApp(node, 3)
    assert app.commit() == [0]
    assert app.fetch() == [UNSTABLE]
    node.close()


def test_marker_between_verification_and_append_is_detected(own, monkeypatch):
    app = TransactionalApp(own, 3).begin()
    partition = own.node.replicas.leader(CONSUMER_OFFSETS, 0)
    answered = Future()
    monkeypatch.setattr(host(own, app.name), "request", lambda *_: answered)
    wire = app.send({FIRST: 5})
    own.reactor.tick(0)
    assert wire.sent is None
    own.node.replicas.append_marker(partition, TransactionMarker(*app.pair, False, 0))
    answered.resolve({"error_code": 0, "codes": {(CONSUMER_OFFSETS, 0): 0}})
    assert app.codes(wire) == [errors.InvalidTxnState.code]
    assert not app.is_open()


def test_later_commit_of_the_group_waits_for_the_verification(own, monkeypatch):
    app = TransactionalApp(own, 3, "g").begin()
    answered = Future()
    with monkeypatch.context() as patched:
        patched.setattr(host(own, app.name), "request", lambda *_: answered)
        wire = app.send({FIRST: 5})
        own.reactor.tick(0)
    topic = {"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 9}]}
    later = own.send(
        OFFSET_COMMIT, 9, group_id="g", generation_id_or_member_epoch=-1, topics=[topic]
    )
    pass_time(own, 500)
    assert wire.sent is None and later.sent is None
    answered.resolve({"error_code": 0, "codes": {}})
    assert app.codes(wire) == [0]
    own.until(lambda: own.clock.advance(1) or later.sent is not None)
    app.end()
    assert app.fetch()[0][0] == 9
    assert not own.node.groups.commit_queues


def test_commit_to_a_failed_log_is_not_coordinator(own):
    app = TransactionalApp(own, 3).begin()
    own.node.groups.host_of(app.group).partition.log.failure = "its disk is gone"
    assert app.commit() == [errors.NotCoordinator.code]


@pytest.mark.parametrize("version", [3, 5])
def test_commit_while_the_previous_transaction_ends_is_concurrent(own, version):
    app = TransactionalApp(own, version).begin()
    assert app.commit() == [0]
    hold_markers(own)
    end_version = 5 if version == 5 else 3
    assert end(own, end_version, app.pair, app.name)[0] == 0
    # The marker is in the log, and the coordinator has no response to it.
    pair = (app.pair[0], app.pair[1] + 1) if version == 5 else app.pair
    marker = TransactionMarker(*pair, True, 1 << 20, 2 if version == 5 else 0)
    own.node.groups.host_of(app.group).partition.append_marker(marker)
    wire = app.send({FIRST: 6}, pair=pair)
    if version == 5:
        for _ in range(90):  # add.partitions.to.txn.retry.backoff.max.ms is 100
            own.clock.advance(1)
            own.reactor.tick(0)
        assert wire.sent is None
    assert app.codes(wire) == [errors.ConcurrentTransactions.code]


def test_transaction_begins_once_the_previous_one_has_ended(own):
    app = TransactionalApp(own, 5)
    assert app.commit() == [0]
    append_marker = own.node.replicas.append_marker
    hold_markers(own)
    code, *app.pair = end(own, 5, app.pair, app.name)
    wire = app.send({SECOND: 6})
    for _ in range(5):
        own.reactor.tick(0)
    assert code == 0 and wire.sent is None
    own.node.replicas.append_marker = append_marker
    own.node.transactions.markers.wake()
    assert app.codes(wire) == [0]
    assert app.fetch(indexes=(0, 1)) == [(5, 3, "why", 0), UNSTABLE]


def test_records_of_a_coordinator_have_no_sequence(coordinator):
    app = TransactionalApp(coordinator, 3).begin()
    assert app.commit({FIRST: 1, SECOND: 2}) == [0, 0]
    topic = {"name": CONSUMER_OFFSETS, "partition_indexes": [0]}
    answer = coordinator.request(DESCRIBE_PRODUCERS, 0, topics=[topic])
    (producer,) = [
        each for each in answer.topics[0].partitions[0].active_producers
        if each.producer_id == app.pair[0]
    ]  # fmt: skip
    assert producer.last_sequence == -1
    assert producer.current_txn_start_offset >= 0


# -- rights and topics ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_rights_are_checked_in_order(coordinator, version, monkeypatch):
    app = TransactionalApp(coordinator, version).begin()
    offsets = {FIRST: 1, ("secret", 0): 1, ("gone", 0): 1}

    def deny(*operations, names):
        monkeypatch.setattr(coordinator.node, "authorizer", Denying(*operations, names=names))

    denied = errors.TransactionalIdAuthorizationFailed.code
    deny(WRITE, READ, names=f"{app.name}|secret")
    assert app.commit(offsets) == [denied] * 3
    deny(READ, names=f"{app.name}|secret")
    assert app.commit(offsets) == [errors.GroupAuthorizationFailed.code] * 3
    deny(READ, names="secret")
    unknown = errors.UnknownTopicId if version >= 6 else errors.UnknownTopicOrPartition
    forbidden = errors.TopicAuthorizationFailed if version < 6 else errors.UnknownTopicId
    assert app.commit(offsets) == [0, forbidden.code, unknown.code]


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_partition_is_an_error_of_its_own(coordinator, version):
    app = TransactionalApp(coordinator, version).begin()
    unknown = errors.UnknownTopicOrPartition.code
    assert app.commit({("t", 9): 1, FIRST: 2}) == [unknown, 0]


def test_request_without_valid_partitions_does_not_ask(coordinator):
    app = TransactionalApp(coordinator, 3)
    unknown = errors.UnknownTopicOrPartition.code
    assert app.commit({("t", 9): 1}) == [unknown]
    assert app.commit({}) == []


def test_metadata_too_large_is_an_error_of_the_partition(coordinator):
    app = TransactionalApp(coordinator, 3).begin()
    assert app.commit(metadata="x" * 4_097) == [errors.OffsetMetadataTooLarge.code]
    assert not app.is_open()


# -- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_generation_for_an_unknown_group_is_refused(coordinator, version):
    app = TransactionalApp(coordinator, version).begin()
    error = errors.GroupIdNotFound if version >= 6 else errors.IllegalGeneration
    zombie = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    assert app.commit(**zombie) == [error.code]


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_group_id_is_refused(coordinator, version):
    app = TransactionalApp(coordinator, version)
    assert app.commit(group_id="") == [errors.InvalidGroupId.code]


def test_replaced_member_is_refused(own):
    joined = member(own, group_instance_id="i")
    app = TransactionalApp(own, 3, "g").begin()
    current = {
        "generation_id_or_member_epoch": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": "i",
    }
    assert app.commit(**current) == [0]
    old = current | {"generation_id_or_member_epoch": joined.generation_id - 1}
    assert app.commit(**old) == [errors.IllegalGeneration.code]
    replaced = current | {"member_id": "old"}
    assert app.commit(**replaced) == [errors.FencedInstanceId.code]
    unknown = current | {"member_id": "m", "group_instance_id": None}
    assert app.commit(**unknown) == [errors.UnknownMemberId.code]
    unnamed = {"generation_id_or_member_epoch": -1, "member_id": ""}
    assert app.commit(**unnamed) == [0]


@pytest.mark.parametrize("version", VERSIONS)
def test_commit_and_marker_while_the_group_is_loading_are_retriable(coordinator, version):
    app = TransactionalApp(coordinator, version).begin()
    groups = coordinator.node.groups.host_of(app.group)
    groups.is_loading = True
    loading = errors.CoordinatorNotAvailable if version < 2 else errors.CoordinatorLoadInProgress
    assert app.commit() == [loading.code]
    with pytest.raises(errors.NotLeaderOrFollower):
        coordinator.node.replicas.append_marker(
            groups.partition, TransactionMarker(*app.pair, True, 0)
        )
    groups.is_loading = False
    assert app.commit() == [0]


@pytest.mark.parametrize("version", VERSIONS)
def test_transaction_coordinator_elsewhere_is_not_available(coordinator, version, monkeypatch):
    app = TransactionalApp(coordinator, version).begin()

    def elsewhere(_):
        raise errors.NotCoordinator

    with monkeypatch.context() as patched:
        patched.setattr(coordinator.node.transactions, "host_of", elsewhere)
        assert app.commit() == [errors.CoordinatorNotAvailable.code]
    monkeypatch.setattr(coordinator.node.groups, "host_of", elsewhere)
    assert app.commit() == [errors.NotCoordinator.code]


def test_many_offsets_are_committed_in_parts(own, monkeypatch):
    monkeypatch.setattr(transactional_offsets, "ENTRIES_AT_ONCE", 1)
    app = TransactionalApp(own, 5, "g")
    end_offset = own.node.replicas.leader(CONSUMER_OFFSETS, 0).log.end_offset
    assert app.commit({FIRST: 5, SECOND: 6}) == [0, 0]
    log = own.node.replicas.leader(CONSUMER_OFFSETS, 0).log
    found = log_reader.read(log, end_offset, 1 << 20, log.end_offset)
    assert [batch.header.count for batch in batches(found.read())] == [1, 1]
    app.end()
    assert [each[0] for each in app.fetch(indexes=(0, 1))] == [5, 6]


def test_topic_ids_of_v6_are_those_of_the_topics(coordinator):
    app = TransactionalApp(coordinator, 6)
    answer = coordinator.response(app_wire(app), TXN_OFFSET_COMMIT, 6)
    (topic,) = answer.topics
    assert topic.topic_id == coordinator.topic_id != NO_ID


def app_wire(app):
    wire = app.send({FIRST: 1})
    app.broker.until(lambda: wire.sent is not None)
    return wire
