"""SharePartition beside a model with one state for each offset, and single rules."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkalite.coordination.share.acquisition import AcquireLimits, ShareLimits
from kafkalite.coordination.share.delivery_states import TERMINAL, merge_batches
from kafkalite.coordination.share.share_partition import (
    AcknowledgementBatch,
    AcknowledgeType,
    ArchivingRange,
    FetchedBatch,
    SharePartition,
)
from kafkalite.errors import InvalidRecordState, InvalidRequest
from kafkalite.protocol.schemas.share_records import DeliveryState, StateBatch

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = DeliveryState
GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
ALL = AcquireLimits(1_000, 1_000)
MEMBERS = ("a", "b", "c")


def states(partition):
    """Return the state of each offset in the window, with its delivery count."""
    return {
        offset: (each.state, each.delivery_count)
        for each in partition
        for offset in range(each.first_offset, each.last_offset + 1)
    }


def acquire(partition, member="a", last=9, first=None, wanted=ALL, now_ms=0):
    """Acquire from one batch that ends at an offset."""
    begin = partition.next_fetch_offset
    batch = FetchedBatch(begin if first is None else first, last)
    return partition.acquire(member, begin, [batch], wanted, now_ms)


def acknowledge(partition, first, last, *types, member="a", now_ms=0):
    """Acknowledge and store; return the write."""
    write = partition.acknowledge(member, [AcknowledgementBatch(first, last, types)], now_ms)
    if write is not None:
        partition.complete(write.write_id)
    return write


# -- single rules --------------------------------------------------------------------------------


def test_acquired_records_go_to_one_member_until_they_are_released():
    partition = SharePartition(0)
    assert acquire(partition, "a", last=4) == [(0, 4, 1)]
    assert acquire(partition, "b", last=9) == [(5, 9, 1)]
    acknowledge(partition, 0, 4, RELEASE)
    assert acquire(partition, "b", last=4) == [(0, 4, 2)]


def test_each_type_of_acknowledgement_has_its_state():
    partition = SharePartition(0)
    acquire(partition, last=5)
    write = acknowledge(partition, 1, 4, ACCEPT, RELEASE, REJECT, GAP)
    assert states(partition) == {
        0: (ACQUIRED, 1),
        1: (ACKNOWLEDGED, 1),
        2: (AVAILABLE, 1),
        3: (ARCHIVED, 1),
        4: (ARCHIVED, 1),
        5: (ACQUIRED, 1),
    }
    assert [*write.batches] == [(1, 1, 2, 1), (2, 2, 0, 1), (3, 4, 4, 1)]
    assert (write.start_offset, write.delivery_complete_count) == (0, 3)


def test_start_offset_in_a_write_passes_what_the_write_completes():
    partition = SharePartition(0)
    acquire(partition, last=9)
    write = acknowledge(partition, 0, 6, ACCEPT)
    assert (write.start_offset, write.batches) == (7, [])
    assert partition.start_offset == 7


def test_start_offset_waits_for_an_earlier_write():
    partition = SharePartition(0)
    acquire(partition, last=9)
    first = partition.acknowledge("a", [AcknowledgementBatch(0, 4, [ACCEPT])], 0)
    second = partition.acknowledge("a", [AcknowledgementBatch(5, 9, [ACCEPT])], 0)
    assert (first.start_offset, second.start_offset) == (5, 0)
    partition.complete(second.write_id)
    assert partition.start_offset == 0
    partition.fail(first.write_id)
    assert states(partition)[0] == (ACQUIRED, 1)
    acknowledge(partition, 0, 4, ACCEPT)
    assert partition.start_offset == 10


def test_records_in_transition_are_neither_acquired_nor_acknowledged():
    partition = SharePartition(0)
    acquire(partition, last=4)
    write = partition.acknowledge("a", [AcknowledgementBatch(0, 4, [RELEASE])], 0)
    with pytest.raises(InvalidRecordState):
        partition.acknowledge("a", [AcknowledgementBatch(0, 4, [ACCEPT])], 0)
    assert partition.next_fetch_offset == 5
    assert partition.expire(40_000) is None
    partition.complete(write.write_id)
    assert partition.next_fetch_offset == 0


def test_lock_that_ends_between_acknowledgement_and_failed_write_releases_the_records():
    partition = SharePartition(0)
    acquire(partition, last=4)
    write = partition.acknowledge("a", [AcknowledgementBatch(0, 4, [ACCEPT])], 0)
    assert partition.expire(30_000) is None
    partition.fail(write.write_id)
    assert partition.next_due_ms == 30_000
    assert [*partition.expire(30_000).batches] == [(0, 4, AVAILABLE, 1)]


def test_renewal_extends_the_lock_and_counts_no_delivery():
    partition = SharePartition(0)
    acquire(partition, last=4)
    assert acknowledge(partition, 0, 4, RENEW, now_ms=20_000) is None
    assert partition.expire(30_000) is None
    assert [*partition.expire(50_000).batches] == [(0, 4, AVAILABLE, 1)]


def test_renewal_is_refused_if_the_group_does_not_allow_it():
    partition = SharePartition(0, limits=ShareLimits(allows_renewal=False))
    acquire(partition, last=4)
    with pytest.raises(InvalidRecordState):
        acknowledge(partition, 0, 4, RENEW)


def test_record_is_archived_after_the_last_delivery():
    partition = SharePartition(0, limits=ShareLimits(delivery_count_max=3))
    for count in (1, 2, 3):
        assert acquire(partition, last=0) == [(0, 0, count)]
        assert partition.start_offset == 0
        acknowledge(partition, 0, 0, RELEASE)
    assert partition.start_offset == 1


def test_redelivered_records_are_delivered_in_smaller_batches():
    partition = SharePartition(0)
    deliveries = []
    for _ in range(30):
        if partition.next_fetch_offset != 0:
            break
        ranges = acquire(partition, last=15)
        deliveries.append(ranges)
        acknowledge(partition, ranges[0][0], ranges[-1][1], RELEASE)
    assert deliveries[:3] == [[(0, 15, 1)], [(0, 15, 2)], [(0, 15, 3)]]
    assert deliveries[3] == [(0, 7, 4)]
    assert deliveries[4] == [(0, 0, 5)]
    assert partition.start_offset == 1


def test_redelivered_records_are_not_delivered_with_others():
    stored = [StateBatch(0, 1, AVAILABLE, 1), StateBatch(2, 5, AVAILABLE, 3)]
    partition = SharePartition(0, stored)
    assert acquire(partition, last=9) == [(0, 1, 2)]
    assert acquire(partition, last=9) == [(2, 3, 4)]


def test_full_window_delivers_only_what_was_released():
    partition = SharePartition(0, limits=ShareLimits(in_flight_max=10))
    assert acquire(partition, last=9) == [(0, 9, 1)]
    assert partition.next_fetch_offset is None
    acknowledge(partition, 3, 4, RELEASE)
    assert partition.next_fetch_offset == 3
    assert acquire(partition, last=20, first=0) == [(3, 4, 2)]


@pytest.mark.parametrize(
    ("is_exact", "ranges"), [(True, [(0, 6, 1)]), (False, [(0, 4, 1), (5, 9, 1)])]
)
def test_number_of_records_is_exact_or_rounded_up_to_batches(is_exact, ranges):
    partition = SharePartition(0)
    batches = [FetchedBatch(0, 4), FetchedBatch(5, 9), FetchedBatch(10, 14)]
    assert partition.acquire("a", 0, batches, AcquireLimits(7, 5, is_exact), 0) == ranges
    assert partition.next_fetch_offset == ranges[-1][1] + 1


def test_acquire_reads_no_batch_after_those_that_fill_the_window():
    partition = SharePartition(0, limits=ShareLimits(in_flight_max=10))
    batches = iter([FetchedBatch(0, 4), FetchedBatch(5, 9), FetchedBatch(10, 14)])
    assert partition.acquire("a", 0, batches, ALL, 0) == [(0, 9, 1)]
    assert list(batches) == [FetchedBatch(10, 14)]


def test_window_bounds_an_exact_request_and_rounds_up_another():
    limits = ShareLimits(in_flight_max=3)
    assert acquire(SharePartition(0, limits=limits), wanted=AcquireLimits(9, 9, True)) == [
        (0, 2, 1)
    ]
    assert acquire(SharePartition(0, limits=limits), wanted=AcquireLimits(9, 9)) == [(0, 9, 1)]


def test_offsets_without_records_are_archived():
    partition = SharePartition(0)
    batches = [FetchedBatch(3, 4), FetchedBatch(6, 7, is_skipped=True), FetchedBatch(9, 9)]
    assert partition.acquire("a", 0, batches, ALL, 0) == [(3, 4, 1), (9, 9, 1)]
    assert partition.start_offset == 3
    assert [offset for offset, (state, _) in states(partition).items() if state is ARCHIVED] == [
        5,
        6,
        7,
        8,
    ]


def test_acknowledgement_of_another_member_changes_nothing():
    partition = SharePartition(0)
    acquire(partition, "a", last=4)
    acquire(partition, "b", last=9)
    batches = [AcknowledgementBatch(0, 4, [ACCEPT]), AcknowledgementBatch(5, 9, [ACCEPT])]
    with pytest.raises(InvalidRecordState):
        partition.acknowledge("a", batches, 0)
    assert {state for state, _ in states(partition).values()} == {ACQUIRED}
    assert partition.acknowledge("a", batches[:1], 0) is not None


def test_acknowledgement_beyond_the_window_is_invalid_and_below_it_is_ignored():
    partition = SharePartition(10)
    assert acknowledge(partition, 0, 9, ACCEPT) is None
    with pytest.raises(InvalidRequest):
        acknowledge(partition, 10, 10, ACCEPT)


def test_offset_that_is_acknowledged_twice_in_a_request_is_refused():
    partition = SharePartition(0)
    acquire(partition, last=9)
    batches = [AcknowledgementBatch(0, 4, [ACCEPT]), AcknowledgementBatch(4, 9, [RELEASE])]
    with pytest.raises(InvalidRecordState):
        partition.acknowledge("a", batches, 0)


def test_log_that_deletes_records_moves_the_start():
    partition = SharePartition(0)
    acquire(partition, last=9)
    assert partition.advance_to(5)
    assert [*states(partition)] == [5, 6, 7, 8, 9]
    assert acknowledge(partition, 0, 4, ACCEPT) is None
    assert partition.advance_to(20)
    assert (partition.start_offset, partition.end_offset) == (20, 20)
    assert not partition.advance_to(20)


def test_offsets_between_stored_batches_are_available():
    stored = [StateBatch(2, 3, ACKNOWLEDGED, 1), StateBatch(6, 6, AVAILABLE, 2)]
    partition = SharePartition(0, stored)
    assert states(partition)[1] == (AVAILABLE, 0)
    assert acquire(partition, last=9) == [(0, 1, 1), (4, 5, 1), (6, 6, 3), (7, 9, 1)]


def alternating(count):
    """Return a partition whose first record is acquired; of the others, each second one is done."""
    partition = SharePartition(0, limits=ShareLimits(in_flight_max=count))
    acquire(partition, last=count - 1)
    for offset in range(1, count - 1, 2):
        acknowledge(partition, offset, offset, ACCEPT)
    return partition


def calls_of(work):
    """Return the number of Python calls that some work makes."""
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event) if event == "call" else None)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len(calls)


def test_cost_of_an_acknowledgement_does_not_depend_on_the_window():
    def work(partition):
        acknowledge(partition, 2, 2, ACCEPT)
        assert partition.next_fetch_offset is None
        acknowledge(partition, 4, 4, RELEASE)
        assert partition.next_fetch_offset == 4

    small, large = alternating(20), alternating(400)
    for partition in (small, large):
        assert partition.next_fetch_offset is None
    assert calls_of(lambda: work(large)) == calls_of(lambda: work(small))


def test_start_offset_does_not_pass_records_without_their_dead_letter():
    partition = SharePartition(0, limits=ShareLimits(has_dead_letters=True))
    acquire(partition, last=4)
    write = acknowledge(partition, 0, 4, REJECT)
    assert [*write.batches] == [(0, 4, ARCHIVING, 1)]
    taken = partition.take_archiving(100)
    assert taken == [(0, 4, 1, True)]
    assert partition.take_archiving(100) == []
    assert partition.start_offset == 0
    assert partition.archive(taken).start_offset == 5
    assert partition.start_offset == 5


def test_dead_letters_continue_after_a_load():
    stored = [StateBatch(0, 2, ARCHIVING, 5), StateBatch(4, 4, ARCHIVING, 2)]
    partition = SharePartition(0, stored)
    assert partition.take_archiving(100) == [(0, 2, 5, False), (4, 4, 2, True)]


def test_dead_letters_are_taken_in_parts():
    partition = SharePartition(0, limits=ShareLimits(has_dead_letters=True))
    acquire(partition, last=9)
    for first, last, kind in [(0, 3, REJECT), (4, 5, ACCEPT), (6, 9, REJECT)]:
        acknowledge(partition, first, last, kind)
    assert partition.take_archiving(3) == [(0, 2, 1, True)]
    assert partition.take_archiving(3) == [(3, 3, 1, True), (6, 7, 1, True)]
    assert partition.take_archiving(3) == [(8, 9, 1, True)]
    assert partition.take_archiving(3) == []


def test_dead_letters_are_taken_in_the_order_of_their_offsets():
    partition = SharePartition(0, limits=ShareLimits(has_dead_letters=True))
    acquire(partition, last=4)
    for offset in (4, 0, 2):
        acknowledge(partition, offset, offset, REJECT)
    taken = partition.take_archiving(100)
    assert taken == [(0, 0, 1, True), (2, 2, 1, True), (4, 4, 1, True)]
    archived = [(each, each, ARCHIVED, 1) for each in (2, 4)]
    assert [*partition.archive(taken).batches] == archived


def test_dead_letters_of_deleted_records_are_not_taken():
    partition = SharePartition(0, limits=ShareLimits(has_dead_letters=True))
    acquire(partition, last=9)
    acknowledge(partition, 0, 3, REJECT)
    partition.acknowledge("a", [AcknowledgementBatch(5, 9, [REJECT])], 0)
    partition.advance_to(2)
    assert partition.take_archiving(100) == [(2, 3, 1, True)]
    partition.advance_to(4)
    assert partition.archive([ArchivingRange(2, 3, 1, True)]) is None
    partition.complete(2)
    partition.advance_to(10)
    assert partition.take_archiving(100) == []


def test_rejection_that_is_not_stored_needs_no_dead_letter():
    partition = SharePartition(0, limits=ShareLimits(has_dead_letters=True))
    acquire(partition, last=1)
    write = partition.acknowledge("a", [AcknowledgementBatch(0, 1, [REJECT])], 0)
    partition.fail(write.write_id)
    assert partition.take_archiving(100) == []
    assert [(each.state, each.is_rejected) for each in partition] == [(ACQUIRED, False)]


def test_records_without_deliveries_left_need_dead_letters():
    limits = ShareLimits(delivery_count_max=2, has_dead_letters=True)
    partition = SharePartition(0, [StateBatch(0, 1, AVAILABLE, 1)], limits)
    acquire(partition, last=1)
    partition.release("a")
    assert partition.take_archiving(100) == [(0, 1, 2, False)]


# -- the model -----------------------------------------------------------------------------------


@dataclass
class Record:
    """One offset of the model."""

    state: DeliveryState = AVAILABLE
    count: int = 0
    member: str = ""
    deadline_ms: int = 0
    write_id: int = 0
    target: DeliveryState | None = None

    @property
    def is_held(self):
        return self.state is ACQUIRED and not self.write_id

    def move(self, state):
        self.state, self.member, self.deadline_ms, self.write_id, self.target = (
            state,
            "",
            0,
            0,
            None,
        )


class ShareModel(RuleBasedStateMachine):
    """Any history of requests, with writes that are stored, fail or are lost with the leader."""

    def __init__(self):
        super().__init__()
        self.limits = ShareLimits(lock_ms=100, delivery_count_max=4, in_flight_max=12)
        self.partition = SharePartition(0, limits=self.limits)
        self.records: dict[int, Record] = {}
        self.start = 0
        self.now_ms = 0
        self.writes: dict[int, object] = {}
        self.stored: tuple[StateBatch, ...] = ()
        self.stored_start = 0

    @property
    def end(self):
        return max(self.records, default=self.start - 1) + 1

    def advance(self):
        while self.records.get(self.start, Record()).state in TERMINAL:
            del self.records[self.start]
            self.start += 1

    def check_done_count(self, write):
        """Check the number of records that are done once this write is stored, and no other one."""
        states = [
            record.target if write.write_id and record.write_id == write.write_id else record.state
            for at, record in self.records.items()
            if at >= write.start_offset
        ]
        assert write.delivery_complete_count == sum(state in TERMINAL for state in states)

    def store(self, write):
        self.stored_start = max(self.stored_start, write.start_offset)
        self.stored = merge_batches([*self.stored, *write.batches], self.stored_start)

    @rule(
        member=st.sampled_from(MEMBERS),
        sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans()), max_size=4),
        max_records=st.integers(1, 8),
        is_exact=st.booleans(),
    )
    def fetch(self, member, sizes, max_records, is_exact):
        begin = self.partition.next_fetch_offset
        if begin is None:
            return
        batches, at = [], begin
        for gap, size, is_skipped in sizes:
            batches.append(FetchedBatch(at + gap, at + gap + size - 1, is_skipped))
            at += gap + size
        full = len(self.records) >= self.limits.in_flight_max
        wanted = AcquireLimits(max_records, 3, is_exact)
        ranges = self.partition.acquire(member, begin, batches, wanted, self.now_ms)
        acquired = {at: count for first, last, count in ranges for at in range(first, last + 1)}
        delivered = {
            at
            for each in batches
            if not each.is_skipped
            for at in range(each.base_offset, each.last_offset + 1)
        }
        assert acquired.keys() <= delivered
        assert all(first <= last for first, last, _ in ranges)
        assert all(a[1] < b[0] for a, b in pairwise(ranges))
        if is_exact:
            assert len(acquired) <= max_records
        # What was not deliverable up to the last acquired offset has no record.
        seen = states(self.partition)
        for at in range(self.end, self.partition.end_offset):
            self.records[at] = Record()
        for at, record in self.records.items():
            if at in acquired:
                assert record.state is AVAILABLE and acquired[at] == record.count + 1
                record.state, record.count, record.member = ACQUIRED, acquired[at], member
                record.deadline_ms = self.now_ms + 100
            elif record.state is AVAILABLE and seen.get(at, (ARCHIVED,))[0] is ARCHIVED:
                assert at not in delivered
                record.move(ARCHIVED)
        self.advance()
        if begin in delivered and not (full and begin >= self.end):
            assert begin in acquired

    @rule(member=st.sampled_from(MEMBERS), data=st.data())
    def acknowledge(self, member, data):
        last = data.draw(st.integers(self.start, max(self.start, self.end - 1)))
        first = data.draw(st.integers(max(0, self.start - 1), last))
        count = data.draw(st.sampled_from([1, last - first + 1]))
        types = data.draw(
            st.lists(st.sampled_from(AcknowledgeType), min_size=count, max_size=count)
        )
        batches = [AcknowledgementBatch(first, last, types)]
        wanted = [at for at in range(first, last + 1) if at >= self.start]
        own = [at for at in wanted if at in self.records]
        valid = own == wanted and all(
            self.records[at].is_held and self.records[at].member == member for at in own
        )
        try:
            write = self.partition.acknowledge(member, batches, self.now_ms)
        except (InvalidRecordState, InvalidRequest):
            assert not valid
            return
        assert valid
        for at in own:
            record, kind = self.records[at], types[0] if count == 1 else types[at - first]
            if kind is RENEW:
                record.deadline_ms = self.now_ms + 100
                continue
            record.write_id = write.write_id
            used_up = record.count >= self.limits.delivery_count_max
            record.target = {
                GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, REJECT: ARCHIVED,
                RELEASE: ARCHIVED if used_up else AVAILABLE,
            }[kind]  # fmt: skip
        if write is not None:
            self.check_done_count(write)
            self.writes[write.write_id] = write

    @precondition(lambda self: self.writes)
    @rule(data=st.data(), is_stored=st.booleans())
    def end_write(self, data, is_stored):
        write_id = data.draw(st.sampled_from(sorted(self.writes)))
        write = self.writes.pop(write_id)
        for record in self.records.values():
            if record.write_id == write_id:
                if is_stored:
                    record.move(record.target)
                else:
                    record.write_id, record.target = 0, None
        if is_stored:
            self.store(write)
            self.partition.complete(write_id)
        else:
            self.partition.fail(write_id)
        self.advance()

    def released(self, holds):
        for record in self.records.values():
            if record.is_held and holds(record):
                used_up = record.count >= self.limits.delivery_count_max
                record.move(ARCHIVED if used_up else AVAILABLE)
        self.advance()

    @rule(more_ms=st.integers(1, 120))
    def expire(self, more_ms):
        self.now_ms += more_ms
        due_ms = self.partition.next_due_ms
        before = [each for each in self.records.values() if each.is_held]
        if any(each.deadline_ms <= self.now_ms for each in before):
            assert due_ms is not None and due_ms <= self.now_ms
        write = self.partition.expire(self.now_ms)
        self.released(lambda record: record.deadline_ms <= self.now_ms)
        if write is not None:
            self.check_done_count(write)
            self.store(write)

    @rule(member=st.sampled_from(MEMBERS))
    def end_session(self, member):
        write = self.partition.release(member)
        self.released(lambda record: record.member == member)
        if write is not None:
            self.check_done_count(write)
            self.store(write)

    @rule(more=st.integers(1, 5))
    def delete_records(self, more):
        self.start += more
        self.records = {at: each for at, each in self.records.items() if at >= self.start}
        assert self.partition.advance_to(self.start)
        self.advance()

    @rule()
    def restart(self):
        """Load what is stored: records that were acquired are available, with the stored count."""
        self.partition = SharePartition(self.stored_start, self.stored, self.limits)
        self.writes = {}
        self.start = self.stored_start
        kept = self.records
        self.records = {at: Record() for at in range(self.start, 0)}
        ends = [each.last_offset for each in self.stored]
        self.records = {at: Record() for at in range(self.start, max(ends, default=-1) + 1)}
        for first, last, state, count in self.stored:
            for at in range(first, last + 1):
                self.records[at] = Record(DeliveryState(state), count)
                # Nothing that was stored as done comes back, and no count falls below it.
                assert count <= kept.get(at, Record(count=count)).count
        self.advance()

    @invariant()
    def is_the_model(self):
        assert self.partition.start_offset == self.start
        expected = {at: (each.state, each.count) for at, each in self.records.items()}
        assert states(self.partition) == expected
        for each in self.partition:
            for at in range(each.first_offset, each.last_offset + 1):
                record = self.records[at]
                assert (each.member_id, each.target) == (record.member, record.target)
                assert each.deadline_ms == record.deadline_ms
            assert each.delivery_count <= self.limits.delivery_count_max
        for before, after in pairwise(self.partition):
            assert before.last_offset + 1 == after.first_offset


ShareModel.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
TestShareModel = ShareModel.TestCase
