"""Requests of transactional producers: the coordinator's error tables, on the wire.

The transitions themselves are tested in tests/coordination.
"""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.security import CLUSTER_ACTION, READ, WRITE
from kafkalite.protocol.schemas.transaction_records import Transaction, TransactionState
from kafkalite.protocol.schemas.transactions import ADD_PARTITIONS_TO_TXN, END_TXN
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying
from tests.handlers.grouping import find
from tests.handlers.transacting import (
    TRANSACTION_STATE,
    add,
    add_offsets,
    adding,
    complete,
    end,
    hold_markers,
    host,
    init,
    store,
    stored,
)

PID, EPOCH = 7_000, 4
CURRENT = (PID, EPOCH)
OTHER_PID, LOWER, HIGHER = (PID + 1, EPOCH), (PID, EPOCH - 1), (PID, EPOCH + 1)
EXHAUSTED = 32_766
WHERE = ("t", 0)

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState
STATES = tuple(TransactionState)

FENCED = errors.ProducerFenced.code
OLD_FENCED = errors.InvalidProducerEpoch.code
UNKNOWN = errors.InvalidProducerIdMapping.code
BUSY = errors.ConcurrentTransactions.code
BAD_STATE = errors.InvalidTxnState.code
INVALID = errors.InvalidRequest.code


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    """Return a node whose prepared transactions stay prepared."""
    node = InProcess(tmp_path_factory.mktemp("transactions") / "data")
    find(node, key_type=1)
    node.create("t", 3)
    hold_markers(node)
    node.names = iter(range(10_000))
    yield node
    node.close()


def given(broker, state, **changes):
    """Return a new transactional id in this state."""
    name = f"id-{next(broker.names)}"
    has_partitions = state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
    now_ms = broker.clock.wall_ms()
    transaction = Transaction(
        PID, EPOCH, 60_000, state, frozenset({WHERE} if has_partitions else ()), now_ms,
        now_ms if has_partitions else -1, previous_producer_id=PID,
    )  # fmt: skip
    store(broker, name, transaction._replace(**changes))
    return name


# -- InitProducerId ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_init_of_a_new_id_returns_epoch_0_and_raises_it_each_time(coordinator, version):
    name = f"new-{version}"
    code, producer_id, epoch = init(coordinator, version, name)
    assert (code, epoch) == (0, 0) and producer_id >= 0
    assert init(coordinator, version, name) == (0, producer_id, 1)
    assert stored(coordinator, name).timeout_ms == 60_000


def test_init_of_two_ids_at_once_returns_different_producer_ids(transactional):
    find(transactional, key_type=1)
    given = {init(transactional, name=name)[1] for name in "abcdefgh"}
    assert len(given) == 8


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_init_while_the_end_is_prepared_is_concurrent(coordinator, version, state):
    assert init(coordinator, version, given(coordinator, state)) == (BUSY, -1, -1)


@pytest.mark.parametrize("version", range(6))
def test_init_of_an_ongoing_transaction_aborts_it(coordinator, version):
    name = given(coordinator, ONGOING)
    assert init(coordinator, version, name) == (BUSY, -1, -1)
    assert (stored(coordinator, name).state, stored(coordinator, name).producer_epoch) == (
        PREPARE_ABORT,
        EPOCH + 1,
    )
    assert init(coordinator, version, name) == (BUSY, -1, -1)
    complete(coordinator, name)
    assert init(coordinator, version, name) == (0, PID, EPOCH + 2)


IDLE = [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT]


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize(
    "pair, expected",
    [
        ((-1, -1), (0, PID, EPOCH + 1)),
        (CURRENT, (0, PID, EPOCH + 1)),
        (OTHER_PID, (FENCED, -1, -1)),
        (LOWER, (FENCED, -1, -1)),
        (HIGHER, (FENCED, -1, -1)),
    ],
)
def test_init_in_an_idle_state_has_the_result_of_its_pair(coordinator, state, pair, expected):
    assert init(coordinator, 5, given(coordinator, state), pair=pair) == expected


@pytest.mark.parametrize("state", IDLE)
def test_init_with_the_last_epoch_repeats_the_response(coordinator, state):
    name = given(coordinator, state, last_epoch=EPOCH - 1)
    assert init(coordinator, 5, name, pair=LOWER) == (0, PID, EPOCH)
    assert init(coordinator, 5, name, pair=LOWER) == (0, PID, EPOCH)
    assert init(coordinator, 5, name, pair=CURRENT) == (0, PID, EPOCH + 1)
    assert init(coordinator, 5, name, pair=CURRENT) == (0, PID, EPOCH + 1)


def test_init_with_any_pair_takes_an_id_that_has_no_epoch_yet(coordinator):
    name = given(coordinator, EMPTY, producer_epoch=-1)
    assert init(coordinator, 5, name, pair=OTHER_PID) == (0, PID, 0)


@pytest.mark.parametrize("pair", [(-1, -1), (PID, EXHAUSTED)])
def test_init_of_an_exhausted_epoch_returns_a_new_producer_id(coordinator, pair):
    name = given(coordinator, COMPLETE_COMMIT, producer_epoch=EXHAUSTED)
    code, producer_id, epoch = init(coordinator, 5, name, pair=pair)
    assert (code, epoch) == (0, 0)
    assert producer_id not in (-1, PID)
    # A repeated request names the pair before; its producer is the same one.
    again = init(coordinator, 5, name, pair=(PID, EXHAUSTED))
    assert again == ((0, producer_id, 0) if pair != (-1, -1) else (FENCED, -1, -1))


@pytest.mark.parametrize("version, code", [(3, OLD_FENCED), (4, FENCED), (5, FENCED)])
def test_init_of_a_fenced_producer_has_the_code_of_its_version(coordinator, version, code):
    name = given(coordinator, EMPTY)
    assert init(coordinator, version, name, pair=LOWER) == (code, -1, -1)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_init_with_a_timeout_out_of_bounds_is_refused(coordinator, version, timeout_ms):
    code = errors.InvalidTransactionTimeout.code
    assert init(coordinator, version, "timeout", timeout_ms) == (code, -1, -1)


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_init_takes_the_timeouts_at_the_bounds(coordinator, timeout_ms):
    assert init(coordinator, 5, f"bound-{timeout_ms}", timeout_ms)[0] == 0


@pytest.mark.parametrize("pair", [(-1, 3), (3, -1)])
def test_init_with_half_a_pair_is_refused_before_the_id_and_the_timeout(coordinator, pair):
    assert init(coordinator, 5, "", 0, pair) == (INVALID, -1, -1)


@pytest.mark.parametrize("letter", ["x", "ß"])
def test_init_of_an_id_that_no_record_can_have_is_refused(coordinator, letter):
    longest = letter * ((1 << 15) // len(letter.encode()) - 1)
    assert init(coordinator, 5, longest)[0] == 0
    assert init(coordinator, 5, longest + letter) == (INVALID, -1, -1)


def test_init_refuses_in_the_order_of_kafka(transactional):
    denied = errors.TransactionalIdAuthorizationFailed.code
    timeout = errors.InvalidTransactionTimeout.code
    transactional.node.authorizer = Denying(WRITE, names="secret|")
    assert init(transactional, 5, "secret", 0, (-1, 3))[0] == denied
    assert init(transactional, 5, "", 0)[0] == denied
    transactional.node.authorizer = Denying(WRITE, names="secret")
    assert init(transactional, 5, "", 0)[0] == INVALID
    assert init(transactional, 5, "a", 0)[0] == timeout
    assert init(transactional, 5, "a")[0] == errors.NotCoordinator.code


def test_init_on_a_full_disk_is_retriable_until_there_is_space(transactional):
    find(transactional, key_type=1)
    space = transactional.node.controller.log._space
    space.kept_free, space.room = 1 << 60, 0
    code = init(transactional)[0]
    assert errors.BY_CODE[code].retriable
    space.kept_free = 0
    assert init(transactional)[0] == 0


# -- AddPartitionsToTxn --------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT, ONGOING])
def test_add_begins_or_extends_a_transaction(coordinator, version, state):
    name = given(coordinator, state)
    wanted = ("t", 1), ("t", 2)
    assert add(coordinator, version, CURRENT, *wanted, name=name) == dict.fromkeys(wanted, 0)
    now = stored(coordinator, name)
    assert now.state is ONGOING
    assert now.partitions == {*wanted, *([WHERE] if state is ONGOING else ())}
    assert now.start_ms == coordinator.clock.wall_ms()
    assert now.transaction_version == (2 if version >= 4 else 0)


def test_add_of_known_partitions_writes_no_record(coordinator):
    name = given(coordinator, ONGOING)
    end_offset = host(coordinator, name).journal.end_offset
    assert add(coordinator, 3, CURRENT, WHERE, name=name) == {WHERE: 0}
    assert host(coordinator, name).journal.end_offset == end_offset


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("verify_only", [False, True])
@pytest.mark.parametrize(
    "pair, state, code",
    [
        (OTHER_PID, ONGOING, UNKNOWN),
        (OTHER_PID, PREPARE_COMMIT, UNKNOWN),
        (LOWER, ONGOING, FENCED),
        (HIGHER, EMPTY, FENCED),
        (LOWER, PREPARE_ABORT, FENCED),
        (CURRENT, PREPARE_COMMIT, BUSY),
        (CURRENT, PREPARE_ABORT, BUSY),
    ],
)
def test_add_is_refused_as_a_whole(coordinator, version, verify_only, pair, state, code):
    name = given(coordinator, state)
    if version < 2 and code == FENCED:
        code = OLD_FENCED
    wanted = ("t", 1), WHERE
    before = stored(coordinator, name)
    verify_only = verify_only and version >= 4
    found = add(coordinator, version, pair, *wanted, name=name, verify_only=verify_only)
    assert found == dict.fromkeys(wanted, code)
    assert stored(coordinator, name) == before


@pytest.mark.parametrize("version", range(6))
def test_add_to_an_unknown_or_empty_id_is_refused(coordinator, version):
    assert add(coordinator, version, CURRENT, WHERE, name="unknown") == {WHERE: UNKNOWN}
    assert add(coordinator, version, CURRENT, WHERE, name="") == {WHERE: INVALID}


@pytest.mark.parametrize("version", range(6))
def test_add_of_an_unknown_partition_adds_nothing(coordinator, version):
    name = given(coordinator, EMPTY)
    wanted = WHERE, ("t", 3), ("gone", 0), ("t", -1)
    assert add(coordinator, version, CURRENT, *wanted, name=name) == {
        WHERE: errors.OperationNotAttempted.code,
        **dict.fromkeys(wanted[1:], errors.UnknownTopicOrPartition.code),
    }
    assert stored(coordinator, name).state is EMPTY


@pytest.mark.parametrize("version", [0, 3])
def test_add_without_write_on_a_topic_adds_nothing(coordinator, version, monkeypatch):
    coordinator.create(f"secret{version}")
    name, secret = given(coordinator, EMPTY), (f"secret{version}", 0)
    monkeypatch.setattr(coordinator.node, "authorizer", Denying(WRITE, names=secret[0]))
    found = add(coordinator, version, CURRENT, WHERE, secret, (TRANSACTION_STATE, 0), name=name)
    denied = errors.TopicAuthorizationFailed.code
    assert found == {
        WHERE: errors.OperationNotAttempted.code, secret: denied, (TRANSACTION_STATE, 0): denied,
    }  # fmt: skip
    assert stored(coordinator, name).state is EMPTY


@pytest.mark.parametrize("version", [0, 3])
def test_add_without_write_on_the_id_is_refused(coordinator, version, monkeypatch):
    name = given(coordinator, EMPTY)
    monkeypatch.setattr(coordinator.node, "authorizer", Denying(WRITE, names=name))
    denied = errors.TransactionalIdAuthorizationFailed.code
    found = add(coordinator, version, CURRENT, WHERE, ("gone", 0), name=name)
    assert found == {WHERE: denied, ("gone", 0): denied}


@pytest.mark.parametrize("version", [4, 5])
def test_add_of_a_broker_requires_cluster_action_and_nothing_else(
    coordinator, version, monkeypatch
):
    name = given(coordinator, EMPTY)
    monkeypatch.setattr(coordinator.node, "authorizer", Denying(CLUSTER_ACTION))
    answer = coordinator.request(ADD_PARTITIONS_TO_TXN, version, transactions=[])
    assert answer.error_code == errors.ClusterAuthorizationFailed.code
    assert answer.results_by_transaction == []
    monkeypatch.setattr(coordinator.node, "authorizer", Denying(WRITE))
    assert add(coordinator, version, CURRENT, WHERE, name=name) == {WHERE: 0}


def test_verification_returns_a_code_for_each_partition(coordinator):
    name = given(coordinator, ONGOING)
    before = stored(coordinator, name)
    found = add(coordinator, 5, CURRENT, WHERE, ("t", 2), name=name, verify_only=True)
    assert found == {WHERE: 0, ("t", 2): errors.TransactionAbortable.code}
    assert stored(coordinator, name) == before


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_verification_without_a_transaction_is_abortable(coordinator, state):
    name = given(coordinator, state)
    found = add(coordinator, 4, CURRENT, WHERE, name=name, verify_only=True)
    assert found == {WHERE: errors.TransactionAbortable.code}


def test_add_of_a_broker_has_many_transactions(coordinator):
    names = [given(coordinator, state) for state in (EMPTY, PREPARE_COMMIT, ONGOING)]
    answer = coordinator.request(
        ADD_PARTITIONS_TO_TXN, 5,
        transactions=[
            {
                "transactional_id": name, "producer_id": PID, "producer_epoch": EPOCH,
                "verify_only": name == names[2], "topics": adding([WHERE]),
            }
            for name in names
        ],
    )  # fmt: skip
    found = {
        each.transactional_id: each.topic_results[0].results_by_partition[0].partition_error_code
        for each in answer.results_by_transaction
    }
    assert found == dict(zip(names, (0, BUSY, 0), strict=True))


# -- AddOffsetsToTxn -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_adds_the_partition_of_the_group(tmp_path, version):
    node = InProcess(tmp_path / "data", **{"offsets.topic.num.partitions": "7"})
    find(node, key_type=1)
    _, *pair = init(node)
    # Its topic is created if no group has needed it before.
    assert add_offsets(node, version, pair, group="g") == 0
    transaction = stored(node)
    assert transaction.state is ONGOING
    # Java: "g".hashCode() is 103.
    assert transaction.partitions == {("__consumer_offsets", 103 % 7)}
    assert transaction.transaction_version == 0
    node.close()


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_of_a_wrong_producer_is_refused(coordinator, version):
    fenced = OLD_FENCED if version < 2 else FENCED
    assert add_offsets(coordinator, version, CURRENT, given(coordinator, PREPARE_ABORT)) == BUSY
    assert add_offsets(coordinator, version, LOWER, given(coordinator, ONGOING)) == fenced
    assert add_offsets(coordinator, version, OTHER_PID, given(coordinator, ONGOING)) == UNKNOWN
    assert add_offsets(coordinator, version, CURRENT, "unknown") == UNKNOWN
    assert add_offsets(coordinator, version, CURRENT, "") == INVALID


def test_add_offsets_requires_write_on_the_id_and_read_on_the_group(coordinator, monkeypatch):
    name = given(coordinator, ONGOING)
    monkeypatch.setattr(coordinator.node, "authorizer", Denying(WRITE, names=name))
    denied = errors.TransactionalIdAuthorizationFailed.code
    assert add_offsets(coordinator, 4, CURRENT, name) == denied
    monkeypatch.setattr(coordinator.node, "authorizer", Denying(READ, names="g"))
    assert add_offsets(coordinator, 4, CURRENT, name) == errors.GroupAuthorizationFailed.code


# -- EndTxn --------------------------------------------------------------------------------------

# The codes by state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort.
ENDS_V1 = {
    True: (BAD_STATE, 0, BUSY, BAD_STATE, 0, BAD_STATE),
    False: (BAD_STATE, 0, BAD_STATE, BUSY, BAD_STATE, 0),
}
ENDS_V2 = {
    # (committed, whether it is repeated)
    (True, False): (BAD_STATE, 0, FENCED, FENCED, BAD_STATE, BAD_STATE),
    (True, True): (FENCED, FENCED, BUSY, BAD_STATE, 0, BAD_STATE),
    (False, False): (0, 0, FENCED, FENCED, 0, 0),
    (False, True): (FENCED, FENCED, BAD_STATE, BUSY, BAD_STATE, 0),
}


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("committed", [True, False])
def test_end_in_version_1_has_the_code_of_the_state(coordinator, version, committed):
    for state, code in zip(STATES, ENDS_V1[committed], strict=True):
        name = given(coordinator, state)
        assert end(coordinator, version, CURRENT, name, committed)[0] == code, state
        now = stored(coordinator, name)
        assert now.producer_epoch == EPOCH
        if state is ONGOING:
            assert now.state is (PREPARE_COMMIT if committed else PREPARE_ABORT)
            assert now.partitions == {WHERE}


@pytest.mark.parametrize("committed, is_repeated", ENDS_V2)
def test_end_in_version_2_has_the_code_of_the_state(coordinator, committed, is_repeated):
    for state, code in zip(STATES, ENDS_V2[committed, is_repeated], strict=True):
        name = given(coordinator, state)
        pair = LOWER if is_repeated else CURRENT
        found = end(coordinator, 5, pair, name, committed)
        epoch = EPOCH if is_repeated else EPOCH + 1
        assert found == ((0, PID, epoch) if code == 0 else (code, -1, -1)), state
        if code == 0 and not is_repeated and state is ONGOING:
            assert stored(coordinator, name).state is (
                PREPARE_COMMIT if committed else PREPARE_ABORT
            )


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("state", STATES)
def test_end_of_a_wrong_producer_is_refused(coordinator, version, state):
    fenced = OLD_FENCED if version < 2 else FENCED
    assert end(coordinator, version, OTHER_PID, given(coordinator, state))[0] == UNKNOWN
    assert end(coordinator, version, HIGHER, given(coordinator, state))[0] == fenced
    far = (PID, EPOCH - 2)
    assert end(coordinator, version, far, given(coordinator, state))[0] == fenced


@pytest.mark.parametrize("version", range(6))
def test_end_of_an_unknown_or_empty_id_is_refused(coordinator, version):
    assert end(coordinator, version, CURRENT, "unknown")[0] == UNKNOWN
    assert end(coordinator, version, CURRENT, "")[0] == INVALID


def test_end_requires_write_on_the_id(coordinator, monkeypatch):
    name = given(coordinator, ONGOING)
    monkeypatch.setattr(coordinator.node, "authorizer", Denying(WRITE, names=name))
    denied = errors.TransactionalIdAuthorizationFailed.code
    assert end(coordinator, 5, CURRENT, name) == (denied, -1, -1)


def test_end_of_an_exhausted_epoch_returns_the_pair_of_a_new_producer_id(coordinator):
    name = given(coordinator, ONGOING, producer_epoch=EXHAUSTED)
    prepared = coordinator.node.transactions.prepare_producer_id()
    coordinator.until(lambda: prepared.settled)
    code, producer_id, epoch = end(coordinator, 5, (PID, EXHAUSTED), name)
    assert (code, epoch) == (0, 0) and producer_id not in (-1, PID)
    assert end(coordinator, 5, (PID, EXHAUSTED), name) == (BUSY, -1, -1)
    complete(coordinator, name)
    assert end(coordinator, 5, (PID, EXHAUSTED), name) == (0, producer_id, 0)


def test_end_responds_when_its_record_is_committed(transactional):
    transactional.restart(durability="fsync")
    find(transactional, key_type=1)
    transactional.create("t")
    hold_markers(transactional)
    _, *pair = init(transactional)
    add(transactional, 3, pair, WHERE)
    partition = transactional.node.replicas.leader(TRANSACTION_STATE, 0)
    wire = transactional.send(
        END_TXN, 1, transactional_id="payments", producer_id=pair[0], producer_epoch=pair[1],
        committed=True,
    )  # fmt: skip
    host(transactional).decide_waiting()
    assert stored(transactional).state is PREPARE_COMMIT
    assert wire.sent is None and partition.high_watermark < partition.log.end_offset
    transactional.until(lambda: wire.sent is not None)
    assert partition.high_watermark == partition.log.end_offset


# -- all of them ---------------------------------------------------------------------------------


def test_node_without_the_coordinator_is_not_coordinator(transactional):
    transactional.create("t")
    code = errors.NotCoordinator.code
    assert init(transactional)[0] == code
    assert add(transactional, 5, CURRENT, WHERE) == {WHERE: code}
    assert add_offsets(transactional, 4, CURRENT) == code
    assert end(transactional, 5, CURRENT)[0] == code


def test_requests_during_a_load_are_refused_as_loading(transactional):
    find(transactional, key_type=1)
    transactional.create("t")
    host(transactional).is_loading = True
    code = errors.CoordinatorLoadInProgress.code
    assert init(transactional)[0] == code
    assert add(transactional, 5, CURRENT, WHERE) == {WHERE: code}
    assert add_offsets(transactional, 4, CURRENT) == code
    assert end(transactional, 5, CURRENT)[0] == code


def test_requests_after_a_storage_error_are_not_coordinator(transactional, monkeypatch):
    find(transactional, key_type=1)
    transactional.create("t")
    _, *pair = init(transactional)

    def fail(*_, **__):
        raise errors.KafkaStorageError("no room")

    monkeypatch.setattr(transactional.node.replicas, "append_own", fail)
    code = errors.NotCoordinator.code
    assert init(transactional)[0] == code
    assert add(transactional, 5, pair, WHERE) == {WHERE: code}
    assert add_offsets(transactional, 4, pair) in (code, errors.CoordinatorNotAvailable.code)
    monkeypatch.undo()
    assert add(transactional, 5, pair, WHERE) == {WHERE: 0}


def test_state_survives_a_restart(transactional):
    find(transactional, key_type=1)
    transactional.create("t")
    hold_markers(transactional)
    _, *pair = init(transactional)
    assert add(transactional, 3, pair, WHERE) == {WHERE: 0}
    before = stored(transactional)
    transactional.restart()
    assert stored(transactional) == before


def test_expired_id_is_unknown(transactional):
    transactional.restart(
        **{
            "transactional.id.expiration.ms": "1000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        }
    )
    find(transactional, key_type=1)
    transactional.create("t")
    _, *pair = init(transactional)
    for _ in range(40):
        transactional.clock.advance(100)
        transactional.reactor.tick(0)
    assert add(transactional, 3, pair, WHERE) == {WHERE: UNKNOWN}
    # The next producer of the id gets a new producer id.
    code, producer_id, epoch = init(transactional)
    assert (code, epoch) == (0, 0) and producer_id != pair[0]
