"""TransactionCoordinator: requests, timeouts, expiry, reloads and failed writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafkalite.coordination.transaction import (
    EPOCH_MAX,
    IDLE,
    NO_PRODUCER,
    PREPARED,
    ProducerEpoch,
    is_kept,
    producer_after,
)
from kafkalite.coordination.transaction_coordinator import (
    SWEEP_COUNT,
    TICK_COUNT_MAX,
    TICK_PARTITIONS_MAX,
    Decision,
    TransactionCoordinator,
)
from kafkalite.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionRecord,
    TransactionState,
)
from tests.coordination.transactions import LIMITS, TIMEOUT_MS, A, B, TransactionHarness

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT


@pytest.fixture
def host() -> TransactionHarness:
    return TransactionHarness()


def test_transaction_is_committed_and_followed_by_another(host):
    producer = host.init()
    for _ in range(3):
        host.add(producer)
        host.add(producer, B)
        assert host.machine.describe("id").partitions == A | B
        after = host.end(producer, is_commit=True)
        assert host.state() is PREPARE_COMMIT
        host.complete()
        assert host.state() is COMPLETE_COMMIT
        assert after == (producer.producer_id, producer.epoch + 1)
        producer = after


def test_second_producer_aborts_the_transaction_and_fences_the_first(host):
    first = host.init()
    host.add(first)
    with pytest.raises(ConcurrentTransactions):
        host.init()
    assert host.state() is PREPARE_ABORT
    with pytest.raises(ConcurrentTransactions):
        host.init()
    host.complete()
    second = host.init()
    assert second == (first.producer_id, first.epoch + 2)
    with pytest.raises(ProducerFenced):
        host.add(first)
    with pytest.raises(ProducerFenced):
        host.end(first, is_commit=True)


@pytest.mark.parametrize("timeout_ms", [-1, 0, LIMITS.timeout_max_ms + 1])
def test_timeout_out_of_bounds_is_refused(host, timeout_ms):
    with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms=900000"):
        host.init(timeout_ms=timeout_ms)
    assert not host.log


def test_requests_with_an_empty_id_are_invalid(host):
    producer = ProducerEpoch(1, 0)
    for request in (
        lambda: host.init(name=""),
        lambda: host.add(producer, name=""),
        lambda: host.end(producer, True, name=""),
        lambda: host.machine.describe(""),
    ):
        with pytest.raises(InvalidRequest):
            request()


def test_describe_of_an_unknown_id_is_not_found(host):
    with pytest.raises(TransactionalIdNotFound):
        host.machine.describe("id")


def test_verification_names_the_partitions_outside_the_transaction(host):
    producer = host.init()

    def verify(producer: ProducerEpoch) -> dict[str, Any]:
        decision = host.machine.verify_partitions("id", producer, A | B, "token")
        assert not decision.records
        codes: dict[str, Any] = host.respond(decision)["codes"]
        return codes

    assert set(verify(producer).values()) == {TransactionAbortable.code}
    host.add(producer)
    outside = dict.fromkeys(B, TransactionAbortable.code)
    assert verify(producer) == {("a", 0): 0, **outside}
    with pytest.raises(InvalidProducerIdMapping):
        verify(ProducerEpoch(5, 0))
    with pytest.raises(ProducerFenced):
        verify(ProducerEpoch(producer.producer_id, 5))
    after = host.end(producer, is_commit=True)
    with pytest.raises(ConcurrentTransactions):
        verify(after)
    host.complete()
    assert set(verify(after).values()) == {TransactionAbortable.code}


def test_completion_of_an_earlier_transaction_changes_nothing(host):
    producer = host.init()
    host.add(producer)
    host.end(producer, is_commit=True, version=0)
    prepared = host.machine.describe("id")
    host.complete()
    assert not host.machine.complete("id", prepared, host.wall_ms).records
    host.wall_ms += 1
    host.add(producer)
    host.end(producer, is_commit=True, version=0)
    assert not host.machine.complete("id", prepared, host.wall_ms).records
    assert host.state() is PREPARE_COMMIT


# -- timeouts ------------------------------------------------------------------------------------


def test_transaction_is_aborted_and_fenced_after_its_timeout(host):
    producer = host.init(timeout_ms=1_000)
    host.add(producer)
    host.now_ms, host.wall_ms = host.now_ms + 900, host.wall_ms + 900
    host.add(producer, B)  # does not extend the timeout
    assert host.machine.next_due_ms == host.now_ms + 100
    assert host.tick(99) == 0
    assert host.tick(1) == 1
    assert host.state() is PREPARE_ABORT
    with pytest.raises(ProducerFenced):
        host.end(producer, is_commit=True, version=0)
    with pytest.raises(InvalidTxnState):
        host.end(producer, is_commit=True, version=2)
    host.complete()
    with pytest.raises(ProducerFenced):
        host.add(producer)


def test_wall_clock_change_aborts_nothing(host):
    host.add(host.init(timeout_ms=1_000))
    host.wall_ms += 86_400_000
    assert host.tick(999) == 0
    host.wall_ms -= 2 * 86_400_000
    assert host.tick(1) == 1


def test_prepared_transaction_has_no_timeout(host):
    producer = host.init(timeout_ms=1_000)
    host.add(producer)
    host.end(producer, is_commit=True)
    assert host.tick(10_000) == 0
    assert host.state() is PREPARE_COMMIT


def test_timeout_continues_after_a_reload(host):
    host.add(host.init(timeout_ms=1_000))
    host.now_ms, host.wall_ms = 5, host.wall_ms + 400
    host.reload()
    assert host.tick(599) == 0
    assert host.tick(1) == 1


@pytest.mark.parametrize("change_ms", [-86_400_000, 86_400_000])
def test_timeout_after_a_reload_is_within_its_bounds_whatever_the_clock(host, change_ms):
    host.add(host.init(timeout_ms=1_000))
    host.wall_ms += change_ms
    host.reload()
    assert host.machine.next_due_ms is not None
    assert host.now_ms <= host.machine.next_due_ms <= host.now_ms + 1_000


def test_expired_deadline_is_retried_after_a_failed_write(host):
    host.add(host.init(timeout_ms=1_000))
    host.now_ms += 1_000
    assert len(host.machine.tick(host.now_ms, host.wall_ms).records) == 1
    assert host.state() is ONGOING
    assert host.machine.next_due_ms is not None
    assert host.machine.next_due_ms > host.now_ms
    assert host.tick(host.machine.next_due_ms - host.now_ms) == 1


def test_timeout_waits_for_a_producer_id(host):
    producer = ProducerEpoch(7, EPOCH_MAX)
    transaction = Transaction(7, EPOCH_MAX, 1_000, EMPTY)
    host.machine.replay(TransactionRecord("id", transaction))
    host.add(producer)
    host.has_producer_ids = False
    assert host.tick(1_000) == 0
    assert host.state() is ONGOING
    host.has_producer_ids = True
    assert host.machine.next_due_ms is not None
    assert host.tick(host.machine.next_due_ms - host.now_ms) == 1
    host.complete()
    assert host.machine.describe("id").producer_id != 7


def test_many_timeouts_are_handled_in_parts(host):
    for index in range(TICK_COUNT_MAX + 1):
        host.add(host.init(name=str(index)), name=str(index))
    assert host.tick(TIMEOUT_MS) == TICK_COUNT_MAX
    assert host.machine.next_due_ms == host.now_ms
    assert host.tick() == 1


def test_timeouts_of_large_transactions_are_handled_in_parts(host):
    partitions = frozenset(("a", index) for index in range(TICK_PARTITIONS_MAX // 2))
    for name in ("1", "2", "3"):
        host.add(host.init(name=name), partitions, name)
    assert host.tick(TIMEOUT_MS) == 2
    assert host.machine.next_due_ms == host.now_ms
    assert host.tick() == 1


# -- after a power cut ---------------------------------------------------------------------------


def test_lost_tail_replaces_the_producer_id_once(host):
    first = host.init()
    host.reload()
    host.machine.replace_producer_ids()
    second = host.init()
    assert second.producer_id != first.producer_id and second.epoch == 0
    assert host.init() == (second.producer_id, 1)
    with pytest.raises(ProducerFenced):
        host.init(first)


def test_lost_tail_replaces_the_producer_id_after_the_abort_of_an_open_transaction(host):
    first = host.init()
    host.add(first)
    host.machine.replace_producer_ids()
    with pytest.raises(ConcurrentTransactions):
        host.init(first)
    host.complete()
    second = host.init()
    assert second.producer_id != first.producer_id and second.epoch == 0


def test_lost_tail_leaves_producers_and_new_ids_alone(host):
    producer = host.init()
    host.machine.replace_producer_ids()
    host.add(producer)
    after = host.end(producer, is_commit=True)
    host.complete()
    assert after == (producer.producer_id, producer.epoch + 1)
    new = host.init(name="new")
    assert host.init(name="new") == (new.producer_id, new.epoch + 1)
    recovered = host.init(after)
    assert recovered.producer_id != after.producer_id and recovered.epoch == 0


# -- expiry --------------------------------------------------------------------------------------


def test_idle_id_expires(host):
    limits = LIMITS._replace(expiration_ms=10_000, expiration_check_ms=1_000)
    host = TransactionHarness(limits)
    host.init(name="idle")
    producer = host.init(name="prepared")
    host.add(producer, name="prepared")
    host.end(producer, True, name="prepared")
    host.add(host.init(name="ongoing"), name="ongoing")
    assert host.tick(9_000) == 0
    assert host.tick(1_000) == 1
    with pytest.raises(TransactionalIdNotFound):
        host.machine.describe("idle")
    assert host.state("ongoing") is ONGOING
    assert host.state("prepared") is PREPARE_COMMIT
    host.reload()
    assert {name for name, _ in host.machine.transactions()} == {"prepared", "ongoing"}


def test_expired_id_begins_with_a_new_producer_id(host):
    host = TransactionHarness(LIMITS._replace(expiration_ms=1_000, expiration_check_ms=1_000))
    before = host.init()
    assert host.tick(1_000) == 1
    after = host.init()
    assert after.producer_id != before.producer_id
    assert after.epoch == 0


def test_expired_ids_are_searched_in_parts(host):
    host = TransactionHarness(LIMITS._replace(expiration_ms=1_000, expiration_check_ms=1_000))
    for index in range(SWEEP_COUNT + 1):
        host.init(name=str(index))
    assert host.tick(1_000) == SWEEP_COUNT
    assert host.machine.next_due_ms is not None
    assert host.machine.next_due_ms <= host.now_ms
    assert host.tick() == 1
    assert len(host.machine) == 0
    assert host.machine.next_due_ms == host.now_ms + 1_000


def test_new_check_interval_counts_from_now(host):
    host.machine.reconfigure(LIMITS._replace(expiration_check_ms=10), host.now_ms)
    assert host.machine.next_due_ms == host.now_ms + 10


# -- reloads -------------------------------------------------------------------------------------


def test_decision_that_was_not_written_is_repeated(host):
    producer = host.init()
    host.add(producer)
    machine = host.machine
    first, second = (machine.end("id", producer, True, 2, "token", host.wall_ms) for _ in range(2))
    assert first == second
    assert host.state() is ONGOING


def test_reload_returns_prepared_transactions(host):
    for name, is_commit in (("one", True), ("two", False)):
        producer = host.init(name=name)
        host.add(producer, name=name)
        host.end(producer, is_commit, name=name)
    host.init(name="idle")
    host.reload()
    found = {name: transaction.state for name, transaction in host.machine.prepared()}
    assert found == {"one": PREPARE_COMMIT, "two": PREPARE_ABORT}


def test_records_have_the_version_of_the_finalized_feature(host):
    host.init()
    host.machine.reconfigure(LIMITS._replace(transaction_version=0), host.now_ms)
    host.init(name="other")
    assert [record.version for record in host.log] == [1, 0]


def test_transaction_of_version_2_ends_once_version_0_is_finalized(host):
    producer = host.init()._replace(epoch=EPOCH_MAX)
    stored = host.machine.describe("id")._replace(producer_epoch=EPOCH_MAX)
    host.machine.replay(TransactionRecord("id", stored, 1))
    host.add(producer)
    host.machine.reconfigure(LIMITS._replace(transaction_version=0), host.now_ms)
    following = host.end(producer, True)
    assert following.producer_id != producer.producer_id
    host.reload()
    assert host.machine.describe("id").state is PREPARE_COMMIT
    host.complete()
    host.reload()
    assert host.end(producer, True) == following  # a repeated request


def test_version_2_is_refused_while_version_0_is_finalized(host):
    producer = host.init()
    host.add(producer)
    host.machine.reconfigure(LIMITS._replace(transaction_version=0), host.now_ms)
    host.add(producer)  # it has these partitions
    with pytest.raises(UnsupportedVersion):
        host.add(producer, A | B)
    host.machine.reconfigure(LIMITS._replace(transaction_version=1), host.now_ms)
    host.add(producer, A | B)
    assert host.machine.describe("id").partitions == A | B


# -- any order of requests -----------------------------------------------------------------------

LEGAL = {
    (EMPTY, EMPTY), (EMPTY, ONGOING), (EMPTY, PREPARE_ABORT),
    (ONGOING, ONGOING), (ONGOING, PREPARE_COMMIT), (ONGOING, PREPARE_ABORT),
    (PREPARE_COMMIT, COMPLETE_COMMIT), (PREPARE_ABORT, COMPLETE_ABORT),
    (COMPLETE_COMMIT, EMPTY), (COMPLETE_COMMIT, ONGOING), (COMPLETE_COMMIT, PREPARE_ABORT),
    (COMPLETE_ABORT, EMPTY), (COMPLETE_ABORT, ONGOING), (COMPLETE_ABORT, PREPARE_ABORT),
}  # fmt: skip

names = st.sampled_from(["one", "two"])


def stored_states(machine: TransactionCoordinator) -> dict[str, Transaction]:
    """Return the state of each transactional id without what its records lack."""
    return {name: each._replace(last_epoch=-1) for name, each in machine.transactions()}


class AnyOrder(RuleBasedStateMachine):
    """Clients of both versions with delayed and repeated requests, time, reloads, lost writes."""

    @initialize()
    def begin(self) -> None:
        limits = LIMITS._replace(expiration_ms=500_000, expiration_check_ms=100_000)
        self.host = TransactionHarness(limits)
        self.pairs: dict[str, list[ProducerEpoch]] = {"one": [], "two": []}
        self.owners: dict[int, str] = {}
        self.keepers: dict[str, ProducerEpoch] = {}
        """The producer that has kept the last transaction that was kept."""
        self.writers: dict[str, ProducerEpoch] = {}
        """The producer of the records of the last transaction."""
        self.outcomes: dict[tuple[int, int], bool] = {}
        self.states: dict[str, TransactionState] = {}
        self.checked_count = 0

    def attempt(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except (
            ConcurrentTransactions, InvalidProducerIdMapping, InvalidTxnState, ProducerFenced,
        ):  # fmt: skip
            return None

    def pair(self, name: str, data: st.DataObject) -> ProducerEpoch | None:
        pairs = self.pairs[name]
        return data.draw(st.sampled_from(pairs)) if pairs else None

    def learn(self, name: str, producer: ProducerEpoch | None) -> None:
        if producer is not None:
            assert 0 <= producer.epoch <= EPOCH_MAX
            assert self.owners.setdefault(producer.producer_id, name) == name
            self.pairs[name].append(producer)

    @rule(
        name=names, data=st.data(), is_named=st.booleans(),
        enable_2pc=st.booleans(), keep_prepared=st.booleans(),
    )  # fmt: skip
    def init(
        self,
        name: str,
        data: st.DataObject,
        is_named: bool,
        enable_2pc: bool,
        keep_prepared: bool,
    ) -> None:
        current = self.pair(name, data) if is_named else None
        before = dict(self.host.machine.transactions()).get(name)
        found = self.attempt(
            lambda: self.host.init(
                current or NO_PRODUCER,
                name=name,
                enable_2pc=enable_2pc,
                keep_prepared=keep_prepared,
            )  # fmt: skip
        )
        if found is not None and before is not None and before.state is ONGOING:
            after = self.host.machine.describe(name)
            assert keep_prepared and self.host.kept == before[:2] == after[:2]
            assert after.partitions == before.partitions and after.start_ms == before.start_ms
            assert found not in self.pairs[name]
            self.keepers[name] = found
        self.learn(name, found)

    @rule(name=names, data=st.data(), partitions=st.sampled_from([A, B]))
    def add(self, name: str, data: st.DataObject, partitions: frozenset) -> None:
        producer = self.pair(name, data)
        if producer is not None:
            self.attempt(lambda: self.host.add(producer, partitions, name))

    @rule(name=names, data=st.data(), is_commit=st.booleans(), version=st.sampled_from([0, 2]))
    def end(self, name: str, data: st.DataObject, is_commit: bool, version: int) -> None:
        producer = self.pair(name, data)
        if producer is not None:
            before = dict(self.host.machine.transactions()).get(name)
            found = self.attempt(lambda: self.host.end(producer, is_commit, version, name))
            if found is not None and before is not None and is_kept(before):
                assert producer == self.keepers[name]
                assert found not in self.pairs[name]
            self.learn(name, found)

    @rule(name=names)
    def complete(self, name: str) -> None:
        if dict(self.host.machine.prepared()).get(name) is not None:
            self.host.complete(name)

    @rule(milliseconds=st.sampled_from([0, 10_000, TIMEOUT_MS, 500_000]))
    def tick(self, milliseconds: int) -> None:
        self.host.tick(milliseconds)

    @rule(name=names)
    def exhaust(self, name: str) -> None:
        """Raise an epoch to the last ones, as thousands of transactions or restarts would."""
        found = dict(self.host.machine.transactions()).get(name)
        if found is not None and found.state in IDLE and found.producer_epoch < EPOCH_MAX - 1:
            raised = found._replace(state=EMPTY, producer_epoch=EPOCH_MAX - 1, last_epoch=-1)
            self.host.write(Decision([], [TransactionRecord(name, raised)]))
            self.learn(name, ProducerEpoch(raised.producer_id, raised.producer_epoch))
        elif found is not None and found.state is ONGOING and is_kept(found):
            raised = found._replace(
                next_producer_epoch=max(found.next_producer_epoch, EPOCH_MAX - 1)
            )
            self.host.write(Decision([], [TransactionRecord(name, raised)]))
            self.keepers[name] = producer_after(raised)
            self.learn(name, self.keepers[name])

    @rule()
    def reload(self) -> None:
        self.host.reload()

    @invariant()
    def transitions_are_legal_and_each_transaction_has_one_outcome(self) -> None:
        for name, after, _ in self.host.log[self.checked_count :]:
            before = self.states.pop(name, None)
            if after is None:
                assert before in IDLE
                continue
            assert (before, after.state) in LEGAL or (before, after.state) == (None, EMPTY)
            self.states[name] = after.state
            pair = ProducerEpoch(*after[:2])
            if after.state is ONGOING:
                self.writers[name] = pair
            elif after.state in PREPARED and is_kept(after):
                # The markers' pair is above that of the records, and below that of the next ones.
                writer = self.writers[name]
                assert pair == (writer.producer_id, writer.epoch + 1)
                assert pair.producer_id != after.next_producer_id or (
                    pair.epoch < after.next_producer_epoch
                )
                assert after.previous_producer_id == self.keepers[name].producer_id
            if after.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and after.transaction_version == 2:
                is_commit = after.state is COMPLETE_COMMIT
                assert self.outcomes.setdefault(pair, is_commit) is is_commit
        self.checked_count = len(self.host.log)

    @invariant()
    def counts_agree_with_the_states(self) -> None:
        machine = self.host.machine
        states = Counter(transaction.state for _, transaction in machine.transactions())
        assert +machine.counts == states

    @invariant()
    def last_records_reproduce_the_state(self) -> None:
        copy = TransactionCoordinator(LIMITS, lambda: 0)
        last = {record.transactional_id: record for record in self.host.log}
        for record in last.values():
            copy.replay(record)
        assert stored_states(copy) == stored_states(self.host.machine)


TestAnyOrder = AnyOrder.TestCase
