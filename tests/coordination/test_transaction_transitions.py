"""Transitions of a transactional id, row by row of the tables of KIP-98, KIP-360 and KIP-890."""

from __future__ import annotations

from itertools import count

import pytest

from kafkalite.coordination.transaction import (
    EPOCH_MAX,
    FENCING_EPOCH,
    NO_PRODUCER,
    ProducerEpoch,
    add_partitions,
    complete,
    end_transaction,
    fence,
    init_producer,
    new_transaction,
    prepare,
    producer_after,
    was_committed,
)
from kafkalite.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
)
from kafkalite.protocol.schemas.transaction_records import Transaction, TransactionState

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
STATES = [EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT]

PID, NEW_PID, NOW_MS = 7, 1000, 50_000
PARTITIONS = frozenset({("a", 0), ("b", 1)})


def stored(state: TransactionState = EMPTY, epoch: int = 5, **changes: object) -> Transaction:
    partitions = PARTITIONS if state not in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT) else ()
    return Transaction(
        PID, epoch, 60_000, state, frozenset(partitions), 40_000, 30_000, PID, last_epoch=epoch - 1
    )._replace(**changes)


def new_producer_id() -> int:
    return NEW_PID


def no_producer_id() -> int:
    raise AssertionError("no producer id is needed")


# -- InitProducerId --------------------------------------------------------------------------------


def test_new_transactional_id_begins_with_epoch_0():
    found = init_producer(
        new_transaction(PID, 1_000, NOW_MS), NO_PRODUCER, 1_000, 2, no_producer_id, NOW_MS
    )
    assert producer_after(found) == (PID, 0)
    assert found.state is EMPTY
    assert found.start_ms == -1


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
@pytest.mark.parametrize(
    "epoch, current, expected, last_epoch",
    [
        (5, NO_PRODUCER, (PID, 6), -1),
        (5, ProducerEpoch(PID, 5), (PID, 6), 5),
        (5, ProducerEpoch(PID, 4), (PID, 5), 4),  # a repeated request
        (-1, ProducerEpoch(9, 3), (PID, 0), -1),
        (EPOCH_MAX - 1, NO_PRODUCER, (PID, EPOCH_MAX), -1),
        (EPOCH_MAX, NO_PRODUCER, (NEW_PID, 0), -1),
        (EPOCH_MAX, ProducerEpoch(PID, EPOCH_MAX), (NEW_PID, 0), EPOCH_MAX),
        (EPOCH_MAX, ProducerEpoch(PID, EPOCH_MAX - 1), (PID, EPOCH_MAX), EPOCH_MAX - 1),
        (FENCING_EPOCH, NO_PRODUCER, (NEW_PID, 0), -1),
    ],
)
def test_init_producer_of_an_idle_id(state, epoch, current, expected, last_epoch):
    before = stored(state, epoch)
    found = init_producer(before, current, 1_000, 2, new_producer_id, NOW_MS)
    assert (found.producer_id, found.producer_epoch) == expected
    assert found.last_epoch == last_epoch
    assert found.state is EMPTY
    assert found.timeout_ms == 1_000
    assert found.start_ms == -1
    assert found.last_update_ms == NOW_MS
    assert found.previous_producer_id == PID
    assert not found.partitions


def test_init_producer_names_the_pair_before_its_id_was_replaced():
    before = stored(COMPLETE_COMMIT, 0, previous_producer_id=3, last_epoch=EPOCH_MAX)
    current = ProducerEpoch(3, EPOCH_MAX)
    found = init_producer(before, current, 1_000, 2, no_producer_id, NOW_MS)
    assert (found.producer_id, found.producer_epoch, found.last_epoch) == (PID, 0, EPOCH_MAX)


@pytest.mark.parametrize(
    "current",
    [
        ProducerEpoch(PID, 3),
        ProducerEpoch(PID, 6),
        ProducerEpoch(3, 5),
        ProducerEpoch(3, EPOCH_MAX - 1),
    ],
)
@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_init_producer_with_an_old_pair_is_fenced(state, current):
    before = stored(state, previous_producer_id=3)
    with pytest.raises(ProducerFenced):
        init_producer(before, current, 1_000, 2, no_producer_id, NOW_MS)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_init_producer_before_the_end_is_complete_is_concurrent(state):
    with pytest.raises(ConcurrentTransactions):
        init_producer(stored(state), NO_PRODUCER, 1_000, 2, no_producer_id, NOW_MS)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT, ONGOING])
def test_init_producer_with_another_producer_id_is_fenced_in_every_state(state):
    with pytest.raises(ProducerFenced):
        init_producer(stored(state), ProducerEpoch(3, 5), 1_000, 2, no_producer_id, NOW_MS)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("current", [NO_PRODUCER, ProducerEpoch(PID, 5), ProducerEpoch(PID, 4)])
def test_init_producer_of_an_ongoing_transaction_aborts_it_and_raises_the_epoch_once(
    version, current
):
    found = init_producer(stored(ONGOING), current, 1_000, version, no_producer_id, NOW_MS)
    assert found.state is PREPARE_ABORT
    assert (found.producer_id, found.producer_epoch, found.last_epoch) == (PID, 6, -1)
    assert found.partitions == PARTITIONS
    assert found.start_ms == 30_000
    assert found.transaction_version == version


def test_fencing_an_exhausted_epoch_replaces_the_producer_id_in_version_2():
    found = fence(stored(ONGOING, EPOCH_MAX), 2, new_producer_id, NOW_MS)
    assert (found.producer_id, found.producer_epoch) == (PID, FENCING_EPOCH)
    assert producer_after(found) == (NEW_PID, 0)
    found = complete(found, NOW_MS + 1)
    assert (found.producer_id, found.producer_epoch) == (NEW_PID, 0)


@pytest.mark.parametrize("epoch", [EPOCH_MAX, FENCING_EPOCH])
def test_init_producer_succeeds_after_an_abort_with_the_fencing_epoch_in_version_0(epoch):
    aborted = complete(fence(stored(ONGOING, epoch), 0, no_producer_id, NOW_MS), NOW_MS)
    assert aborted.producer_epoch == FENCING_EPOCH
    found = init_producer(aborted, NO_PRODUCER, 1_000, 0, new_producer_id, NOW_MS)
    assert (found.producer_id, found.producer_epoch) == (NEW_PID, 0)


# -- partitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_first_partition_begins_a_transaction(state):
    before = stored(state)
    found = add_partitions(before, ProducerEpoch(PID, 5), PARTITIONS, 2, NOW_MS)
    assert found is not None
    assert found.state is ONGOING
    assert found.partitions == PARTITIONS
    assert found.start_ms == found.last_update_ms == NOW_MS
    assert found.transaction_version == 2


def test_partition_joins_an_ongoing_transaction():
    more = frozenset({("a", 0), ("c", 0)})
    found = add_partitions(stored(ONGOING), ProducerEpoch(PID, 5), more, 0, NOW_MS)
    assert found is not None
    assert found.partitions == PARTITIONS | more
    assert found.start_ms == 30_000
    assert found.last_update_ms == NOW_MS


@pytest.mark.parametrize("partitions", [PARTITIONS, {("a", 0)}, ()])
def test_partitions_of_the_transaction_are_not_added_again(partitions):
    producer = ProducerEpoch(PID, 5)
    added = add_partitions(stored(ONGOING), producer, frozenset(partitions), 0, NOW_MS)
    assert added is None


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "producer, error",
    [
        (ProducerEpoch(PID + 1, 5), InvalidProducerIdMapping),
        (ProducerEpoch(PID, 4), ProducerFenced),
        (ProducerEpoch(PID, 6), ProducerFenced),
    ],
)
def test_partitions_of_another_producer_are_refused(state, producer, error):
    with pytest.raises(error):
        add_partitions(stored(state), producer, PARTITIONS, 0, NOW_MS)


def test_partitions_of_an_unknown_id_are_refused():
    with pytest.raises(InvalidProducerIdMapping):
        add_partitions(None, ProducerEpoch(PID, 5), PARTITIONS, 0, NOW_MS)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_partitions_before_the_end_is_complete_are_concurrent(state):
    with pytest.raises(ConcurrentTransactions):
        add_partitions(stored(state), ProducerEpoch(PID, 5), PARTITIONS, 0, NOW_MS)


@pytest.mark.parametrize("is_commit", [False, True])
def test_next_producer_id_is_concurrent_before_the_end_is_complete(is_commit):
    """The response to EndTxn names the next pair before the markers are written."""
    before = prepare(stored(ONGOING, EPOCH_MAX), is_commit, 2, lambda: 9, NOW_MS)
    following = ProducerEpoch(9, 0)
    with pytest.raises(ConcurrentTransactions):
        add_partitions(before, following, PARTITIONS, 2, NOW_MS)
    with pytest.raises(ConcurrentTransactions):
        init_producer(before, following, 1_000, 2, no_producer_id, NOW_MS)
    for repeated in (False, True):
        with pytest.raises(ConcurrentTransactions):
            end_transaction(before, following, repeated, 2, no_producer_id, NOW_MS)


# -- EndTxn ----------------------------------------------------------------------------------------

PREPARED, REPEATED = "prepared", "repeated"
BAD, BUSY, FENCED = InvalidTxnState, ConcurrentTransactions, ProducerFenced


def end(before: Transaction | None, producer: ProducerEpoch, is_commit: bool, version: int) -> str:
    """Return the outcome of EndTxn; raise its error."""
    found = end_transaction(before, producer, is_commit, version, new_producer_id, NOW_MS)
    if found is None:
        return REPEATED
    assert found.state is (PREPARE_COMMIT if is_commit else PREPARE_ABORT)
    assert found.last_update_ms == NOW_MS
    assert found.transaction_version == version
    return PREPARED


def check(outcome: str | type[KafkaError], *arguments: object) -> None:
    if isinstance(outcome, str):
        assert end(*arguments) == outcome
    else:
        with pytest.raises(outcome):
            end(*arguments)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "state, commit, abort",
    [
        (EMPTY, BAD, BAD),
        (ONGOING, PREPARED, PREPARED),
        (PREPARE_COMMIT, BUSY, BAD),
        (PREPARE_ABORT, BAD, BUSY),
        (COMPLETE_COMMIT, REPEATED, BAD),
        (COMPLETE_ABORT, BAD, REPEATED),
    ],
)
def test_end_in_versions_0_and_1(version, state, commit, abort):
    check(commit, stored(state), ProducerEpoch(PID, 5), True, version)
    check(abort, stored(state), ProducerEpoch(PID, 5), False, version)


@pytest.mark.parametrize(
    "state, commit, repeated_commit, abort, repeated_abort",
    [
        (EMPTY, BAD, FENCED, PREPARED, FENCED),
        (ONGOING, PREPARED, FENCED, PREPARED, FENCED),
        (PREPARE_COMMIT, FENCED, BUSY, FENCED, BAD),
        (PREPARE_ABORT, FENCED, BAD, FENCED, BUSY),
        (COMPLETE_COMMIT, BAD, REPEATED, PREPARED, BAD),
        (COMPLETE_ABORT, BAD, BAD, PREPARED, REPEATED),
    ],
)
def test_end_in_version_2(state, commit, repeated_commit, abort, repeated_abort):
    before = stored(state)
    check(commit, before, ProducerEpoch(PID, 5), True, 2)
    check(repeated_commit, before, ProducerEpoch(PID, 4), True, 2)
    check(abort, before, ProducerEpoch(PID, 5), False, 2)
    check(repeated_abort, before, ProducerEpoch(PID, 4), False, 2)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("is_commit", [True, False])
def test_end_by_another_producer_is_refused(version, state, is_commit):
    check(InvalidProducerIdMapping, None, ProducerEpoch(PID, 5), is_commit, version)
    check(InvalidProducerIdMapping, stored(state), ProducerEpoch(8, 5), is_commit, version)
    check(FENCED, stored(state), ProducerEpoch(PID, 6), is_commit, version)
    check(FENCED, stored(state), ProducerEpoch(PID, 3), is_commit, version)


def test_end_in_version_2_repeated_after_the_producer_id_was_replaced():
    before = stored(COMPLETE_COMMIT, 0, previous_producer_id=3)
    old = ProducerEpoch(3, EPOCH_MAX)
    check(REPEATED, before, old, True, 2)
    check(BAD, before, old, False, 2)
    check(InvalidProducerIdMapping, before, ProducerEpoch(3, EPOCH_MAX - 1), True, 2)
    later = before._replace(producer_epoch=1)
    check(InvalidProducerIdMapping, later, old, True, 2)


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_keeps_the_epoch_in_version_0(is_commit):
    prepared = prepare(stored(ONGOING), is_commit, 0, no_producer_id, NOW_MS)
    assert (prepared.producer_id, prepared.producer_epoch) == (PID, 5)
    assert prepared.partitions == PARTITIONS
    completed = complete(prepared, NOW_MS)
    assert (completed.producer_id, completed.producer_epoch) == (PID, 5)


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_raises_the_epoch_in_version_2(is_commit):
    prepared = prepare(stored(ONGOING), is_commit, 2, no_producer_id, NOW_MS)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.last_epoch) == (PID, 6, 5)
    completed = complete(prepared, NOW_MS + 1)
    assert completed.state is (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT)
    assert (completed.producer_id, completed.producer_epoch) == (PID, 6)
    assert completed.last_update_ms == NOW_MS + 1
    assert not completed.partitions


def test_end_of_an_exhausted_epoch_replaces_the_producer_id_in_version_2():
    prepared = prepare(stored(ONGOING, EPOCH_MAX), True, 2, new_producer_id, NOW_MS)
    assert (prepared.producer_id, prepared.producer_epoch) == (PID, FENCING_EPOCH)
    assert producer_after(prepared) == (NEW_PID, 0)
    completed = complete(prepared, NOW_MS)
    assert (completed.producer_id, completed.producer_epoch) == (NEW_PID, 0)
    assert completed.previous_producer_id == PID
    assert completed.next_producer_id == -1


def test_abort_without_a_transaction_in_version_2_has_no_partitions():
    prepared = prepare(stored(EMPTY), False, 2, no_producer_id, NOW_MS)
    assert not prepared.partitions
    assert prepared.start_ms == NOW_MS


def test_ten_transactions_across_the_last_epoch_never_repeat_a_pair():
    pids = count(NEW_PID)
    transaction = stored(EMPTY, EPOCH_MAX - 3)
    pairs = []
    for is_commit in [True, False] * 5:
        producer = producer_after(transaction)
        pairs.append(producer)
        ongoing = add_partitions(transaction, producer, PARTITIONS, 2, NOW_MS)
        assert ongoing is not None
        prepared = end_transaction(ongoing, producer, is_commit, 2, lambda: next(pids), NOW_MS)
        assert prepared is not None
        assert producer.epoch <= EPOCH_MAX
        transaction = complete(prepared, NOW_MS)
        # The response was lost: the client repeats its request.
        assert end(transaction, producer, is_commit, 2) == REPEATED
    assert len(set(pairs)) == 10


# -- two-phase commit ------------------------------------------------------------------------------


def keep(
    before: Transaction, current: ProducerEpoch = NO_PRODUCER, pid: int = NEW_PID
) -> Transaction:
    return init_producer(before, current, 1_000, 2, lambda: pid, NOW_MS, keep_prepared=True)


def test_kept_transaction_has_a_next_pair_and_is_otherwise_as_before():
    kept = keep(stored(ONGOING))
    assert kept == stored(ONGOING)._replace(
        next_producer_id=PID, next_producer_epoch=6, last_update_ms=NOW_MS
    )
    assert producer_after(kept) == (PID, 6)
    again = keep(kept)
    assert again == kept._replace(next_producer_epoch=7)


def test_kept_transaction_of_an_exhausted_epoch_has_a_new_producer_id():
    kept = keep(stored(ONGOING, EPOCH_MAX))
    assert (kept.producer_id, kept.producer_epoch) == (PID, EPOCH_MAX)
    assert producer_after(kept) == (NEW_PID, 0)
    assert producer_after(keep(kept)) == (NEW_PID, 1)
    exhausted = kept._replace(next_producer_epoch=EPOCH_MAX)
    assert producer_after(keep(exhausted, pid=NEW_PID + 1)) == (NEW_PID + 1, 0)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_keep_without_a_transaction_is_an_ordinary_request(state):
    ordinary = init_producer(stored(state), NO_PRODUCER, 1_000, 2, no_producer_id, NOW_MS)
    assert keep(stored(state)) == ordinary


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_keep_before_the_end_is_complete_is_concurrent(state):
    with pytest.raises(ConcurrentTransactions):
        keep(stored(state))


def test_keep_with_the_pair_of_another_producer_is_fenced():
    for other in (ProducerEpoch(PID, 4), ProducerEpoch(PID, 6), ProducerEpoch(PID + 1, 5)):
        with pytest.raises(ProducerFenced):
            keep(stored(ONGOING), other)
    assert producer_after(keep(stored(ONGOING), ProducerEpoch(PID, 5))) == (PID, 6)


@pytest.mark.parametrize("keep_prepared", [True, False])
def test_only_the_newest_producer_of_a_kept_transaction_may_name_its_pair(keep_prepared):
    kept = keep(keep(stored(ONGOING)))
    for old in (ProducerEpoch(PID, 5), ProducerEpoch(PID, 6), ProducerEpoch(PID, 8)):
        with pytest.raises(ProducerFenced):
            init_producer(kept, old, 1_000, 2, no_producer_id, NOW_MS, keep_prepared=keep_prepared)
    found = init_producer(
        kept, ProducerEpoch(PID, 7), 1_000, 2, no_producer_id, NOW_MS, keep_prepared=keep_prepared
    )
    assert found.state is (ONGOING if keep_prepared else PREPARE_ABORT)


def test_nothing_is_added_to_a_kept_transaction():
    kept = keep(stored(ONGOING))
    more = frozenset({("c", 0)})
    for producer, error in (
        (ProducerEpoch(PID, 5), ProducerFenced),
        (ProducerEpoch(PID, 6), InvalidTxnState),
        (ProducerEpoch(PID + 1, 6), InvalidProducerIdMapping),
    ):
        for partitions in (more, PARTITIONS):
            with pytest.raises(error):
                add_partitions(kept, producer, partitions, 2, NOW_MS)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_kept_transaction_is_ended_by_its_newest_producer_only(version, is_commit):
    kept = keep(keep(stored(ONGOING)))
    for old in (ProducerEpoch(PID, 5), ProducerEpoch(PID, 6), ProducerEpoch(PID, 8)):
        check(FENCED, kept, old, is_commit, version)
    check(InvalidProducerIdMapping, kept, ProducerEpoch(PID + 1, 7), is_commit, version)
    check(PREPARED, kept, ProducerEpoch(PID, 7), is_commit, version)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_end_of_a_kept_transaction_raises_both_epochs(version, is_commit):
    kept = keep(keep(stored(ONGOING)))
    prepared = end_transaction(
        kept, ProducerEpoch(PID, 7), is_commit, version, no_producer_id, NOW_MS
    )
    assert prepared is not None
    assert prepared.partitions == PARTITIONS
    # Of the markers: the pair of the records, its epoch raised by one.
    assert (prepared.producer_id, prepared.producer_epoch) == (PID, 6)
    # Of the next transaction: a delayed request of the producer that ended this one is fenced.
    assert producer_after(prepared) == (PID, 8)
    completed = complete(prepared, NOW_MS + 1)
    assert completed.state is (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT)
    assert (completed.producer_id, completed.producer_epoch, completed.last_epoch) == (PID, 8, 7)
    assert (completed.next_producer_id, completed.next_producer_epoch) == (-1, -1)


@pytest.mark.parametrize("epoch, next_pid", [(7, PID), (EPOCH_MAX, NEW_PID)])
def test_repeated_end_of_a_kept_transaction(epoch, next_pid):
    kept = stored(ONGOING, next_producer_id=PID, next_producer_epoch=epoch)
    producer = ProducerEpoch(PID, epoch)
    prepared = end_transaction(kept, producer, True, 2, new_producer_id, NOW_MS)
    assert prepared is not None
    check(BUSY, prepared, producer, True, 2)
    check(BAD, prepared, producer, False, 2)
    check(FENCED, prepared, ProducerEpoch(PID, 5), True, 2)
    completed = complete(prepared, NOW_MS)
    assert completed.producer_id == next_pid
    check(REPEATED, completed, producer, True, 2)
    check(BAD, completed, producer, False, 2)


def test_repeated_end_by_a_producer_whose_id_is_not_of_the_records():
    kept = keep(stored(ONGOING, EPOCH_MAX))._replace(next_producer_epoch=EPOCH_MAX)
    producer = ProducerEpoch(NEW_PID, EPOCH_MAX)
    prepared = end_transaction(kept, producer, True, 2, lambda: NEW_PID + 1, NOW_MS)
    assert prepared is not None
    assert (prepared.producer_id, prepared.producer_epoch) == (PID, FENCING_EPOCH)
    assert producer_after(prepared) == (NEW_PID + 1, 0)
    check(BUSY, prepared, producer, True, 2)
    check(FENCED, prepared, ProducerEpoch(PID, EPOCH_MAX), True, 2)
    check(REPEATED, complete(prepared, NOW_MS), producer, True, 2)


@pytest.mark.parametrize("before", [stored(ONGOING, EPOCH_MAX), keep(keep(stored(ONGOING)))])
def test_next_transaction_waits_until_the_end_is_complete(before):
    prepared = prepare(before, True, 2, new_producer_id, NOW_MS)
    after = producer_after(prepared)
    with pytest.raises(ConcurrentTransactions):
        add_partitions(prepared, after, PARTITIONS, 2, NOW_MS)
    assert add_partitions(complete(prepared, NOW_MS), after, PARTITIONS, 2, NOW_MS) is not None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_init_producer_aborts_a_kept_transaction_and_fences_its_producer(version):
    kept = keep(keep(stored(ONGOING)))
    aborted = init_producer(kept, NO_PRODUCER, 1_000, version, no_producer_id, NOW_MS)
    assert aborted.state is PREPARE_ABORT
    assert (aborted.producer_id, aborted.producer_epoch, aborted.last_epoch) == (PID, 6, -1)
    assert aborted.partitions == PARTITIONS
    completed = complete(aborted, NOW_MS)
    assert (completed.producer_id, completed.producer_epoch) == (PID, 8)
    check(FENCED if version < 2 else BAD, completed, ProducerEpoch(PID, 7), True, version)


# -- the outcome of the last transaction -----------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("epoch", [5, EPOCH_MAX])
def test_outcome_is_known_by_the_pair_of_the_records(is_commit, version, epoch):
    prepared = prepare(stored(ONGOING, epoch), is_commit, version, new_producer_id, NOW_MS)
    assert not was_committed(prepared, ProducerEpoch(PID, epoch))
    completed = complete(prepared, NOW_MS)
    assert was_committed(completed, ProducerEpoch(PID, epoch)) is is_commit
    for other in (
        ProducerEpoch(PID, epoch - 1), ProducerEpoch(PID, epoch - 2), ProducerEpoch(PID + 1, epoch),
    ):  # fmt: skip
        assert not was_committed(completed, other)
    if version == 2:
        assert not was_committed(completed, ProducerEpoch(*completed[:2]))
