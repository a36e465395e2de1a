"""Delayed requests, with fake partitions and timers: no loop, no disk."""

from types import SimpleNamespace

import pytest

from kafkalite.broker.future import Future
from kafkalite.broker.replica.delayed_fetch import DelayedFetch, FetchItem, FetchLimits
from kafkalite.broker.replica.delayed_produce import DelayedProduce, UncommittedAppend
from kafkalite.broker.replica.purgatory import (
    AT_ONCE_UNITS,
    SLICE,
    SLICE_UNITS,
    UNITS_PER_TICK,
    Purgatory,
)
from kafkalite.errors import (
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimedOut,
)
from kafkalite.protocol.results import PartitionAppendResult, ProduceResponse


class Timers:
    """Timers that the test fires."""

    def __init__(self):
        self.due = []

    def call_later(self, ms, callback):
        timer = Timer(self, callback)
        self.due.append(timer)
        return timer

    def all_due(self):
        for timer in list(self.due):
            self.due.remove(timer)
            timer.callback()


class Timer:
    def __init__(self, timers, callback):
        self.timers = timers
        self.callback = callback

    def cancel(self):
        if self in self.timers.due:
            self.timers.due.remove(self)


class Partition:
    """A partition as delayed requests use it, with a size that the test sets."""

    touches = 0
    """Number of looks and reads, for all partitions together."""

    log = SimpleNamespace(log_start_offset=0)
    replication = None
    last_stable_offset = 0

    def __init__(self, index=0, high_watermark=0):
        self.index = index
        self.reads_of_high_watermark = 0
        self.high_watermark = high_watermark
        self.error = None
        self.waiting = {}
        self.bytes = self.looks = self.reads = 0

    @property
    def high_watermark(self):
        self.reads_of_high_watermark += 1
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset):
        self._high_watermark = offset

    def check_epoch(self, leader_epoch):
        if self.error:
            raise self.error

    def read(self, offset, size_max, isolation_level, *, whole_first):
        self.reads += 1
        Partition.touches += 1
        return SimpleNamespace(size=min(self.bytes, size_max)) if self.bytes else None

    def readable(self, offset, isolation_level):
        return self.available(offset, 1, isolation_level) > 0

    def available(self, offset, size_max, isolation_level):
        self.looks += 1
        Partition.touches += 1
        return min(self.bytes, size_max)


def results_of(future):
    news = []
    future.then(lambda value, fault: news.append((value, fault)))
    return news


@pytest.fixture
def timers():
    return Timers()


@pytest.fixture
def purgatory(timers):
    return Purgatory(timers)


def produced(*partitions, last_offset=4):
    results = [PartitionAppendResult(partition.index, 0, 0, -1, 0) for partition in partitions]
    uncommitted = [
        UncommittedAppend(partition, last_offset, results, position)
        for position, partition in enumerate(partitions)
    ]
    return DelayedProduce(uncommitted, ProduceResponse([("t", results)]))


def codes(response):
    assert response.has_errors == any(
        result.error_code for _, results in response.topics for result in results
    )
    return [result.error_code for _, results in response.topics for result in results]


def test_produce_waits_for_all_of_its_partitions(purgatory):
    a, b = Partition(0), Partition(1)
    news = results_of(purgatory.watch(produced(a, b), 1000))
    a.high_watermark = 5
    purgatory.wake(a)
    assert news == []
    b.high_watermark = 5
    purgatory.wake(b)
    ((response, fault),) = news
    assert fault is None
    assert codes(response) == [0, 0]


def test_produce_waits_while_high_watermark_is_at_last_offset(purgatory):
    partition = Partition()
    news = results_of(purgatory.watch(produced(partition, last_offset=4), 1000))
    partition.high_watermark = 4
    purgatory.wake(partition)
    assert news == []


def test_expired_produce_fails_only_uncommitted_partitions(purgatory, timers):
    a, b = Partition(0), Partition(1)
    news = results_of(purgatory.watch(produced(a, b), 1000))
    a.high_watermark = 5
    timers.all_due()
    ((response, _),) = news
    assert codes(response) == [0, RequestTimedOut.code]


def test_produce_fails_when_partition_moves_away(purgatory):
    partition = Partition()
    news = results_of(purgatory.watch(produced(partition), 1000))
    partition.error = NotLeaderOrFollower()
    purgatory.wake(partition)
    ((response, _),) = news
    assert codes(response) == [NotLeaderOrFollower.code]


def test_produce_checks_only_the_changed_partition(purgatory):
    partitions = [Partition(number) for number in range(500)]
    news = results_of(purgatory.watch(produced(*partitions), 1000))
    for partition in partitions:
        partition.high_watermark = 5
        purgatory.wake(partition)
    assert len(news) == 1
    assert sum(partition.reads_of_high_watermark for partition in partitions) == 500


def fetch_of(*partitions, min_bytes=10, max_bytes=1 << 20, waits=True):
    return DelayedFetch(partitions, Sizes(), FetchLimits(min_bytes, max_bytes, 0, waits))


class Sizes:
    """A response that is the bytes of each partition."""

    def __init__(self):
        self.sizes = {}

    def find(self, wanted):
        return [
            FetchItem("t", partition.index, partition, None, -1, 0, -1, 1 << 20)
            for partition in wanted
        ]

    def add(self, items, results):
        for item, result in zip(items, results, strict=True):
            self.sizes[item.partition_index] = 0 if result.records is None else result.records.size

    def response(self):
        return self.sizes


def begun(purgatory, *partitions, **limits):
    """Start a fetch that waits; return the list of its outcomes."""
    future = purgatory.begin(fetch_of(*partitions, **limits), 1000)
    assert isinstance(future, Future)
    return results_of(future)


def moved(purgatory, partition, size):
    partition.bytes = size
    purgatory.wake(partition)


def test_fetch_with_enough_bytes_completes_immediately(purgatory):
    a, b = Partition(0), Partition(1)
    a.bytes, b.bytes = 6, 4
    assert purgatory.begin(fetch_of(a, b), 1000) == {0: 6, 1: 4}
    assert (purgatory.size, a.waiting) == (0, {})


def test_fetch_waits_for_min_bytes_over_all_partitions(purgatory):
    a, b = Partition(0), Partition(1)
    news = begun(purgatory, a, b)
    moved(purgatory, a, 6)
    purgatory.run()
    assert news == []
    moved(purgatory, b, 4)
    purgatory.run()
    assert news == [({0: 6, 1: 4}, None)]


def test_waiting_fetch_holds_no_records(purgatory):
    a, b = Partition(0), Partition(1)
    a.bytes = 6
    fetch = fetch_of(a, b)
    news = results_of(purgatory.begin(fetch, 1000))
    assert [result.records for result in fetch._results] == [None, None]
    moved(purgatory, b, 4)
    purgatory.run()
    assert news == [({0: 6, 1: 4}, None)]


def test_expired_fetch_returns_available_bytes(purgatory, timers):
    partition = Partition()
    news = begun(purgatory, partition)
    moved(purgatory, partition, 3)
    timers.all_due()
    purgatory.run()
    assert news == [({0: 3}, None)]


def test_fetch_returns_at_most_max_bytes_after_waiting(purgatory):
    partitions = [Partition(number) for number in range(3)]
    news = begun(purgatory, *partitions, min_bytes=20, max_bytes=25)
    for partition in partitions:
        moved(purgatory, partition, 10)
    purgatory.run()
    assert news == [({0: 10, 1: 10, 2: 5}, None)]


def test_fetch_with_error_completes_in_same_tick(purgatory):
    partition = Partition()
    news = begun(purgatory, partition)
    partition.error = OffsetOutOfRange()
    purgatory.wake(partition)
    purgatory.run()
    assert len(news) == 1


def test_completed_fetch_is_unregistered(purgatory, timers):
    a, b = Partition(0), Partition(1)
    begun(purgatory, a, b)
    assert purgatory.size == 1
    moved(purgatory, a, 10)
    purgatory.run()
    assert (purgatory.size, a.waiting, b.waiting, timers.due) == (0, {}, {}, [])


def test_abandoned_fetch_is_unregistered(purgatory, timers):
    partition = Partition()
    future = purgatory.begin(fetch_of(partition), 2**31 - 1)
    news = results_of(future)
    future.abandon()
    purgatory.run()
    assert (purgatory.size, partition.waiting, timers.due, news) == (0, {}, [], [])


def test_two_fetches_of_one_partition_both_complete(purgatory):
    partition = Partition()
    news = begun(purgatory, partition), begun(purgatory, partition)
    moved(purgatory, partition, 10)
    purgatory.run()
    assert [len(each) for each in news] == [1, 1]


# -- cost ------------------------------------------------------------------------------------------

MANY = 5_000


@pytest.fixture
def many():
    return [Partition(number) for number in range(MANY)]


def looks(partitions):
    return sum(partition.looks for partition in partitions)


def reads(partitions):
    return sum(partition.reads for partition in partitions)


def ticks_until(purgatory, holds):
    """Run ticks until the condition holds; return the most partitions touched in one tick, and the
    number of ticks."""
    most = count = 0
    while not holds():
        before = Partition.touches
        purgatory.run()
        most = max(most, Partition.touches - before)
        count += 1
        assert count < 10_000, "it never comes to it"
    return most, count


@pytest.mark.parametrize("min_bytes", [1, 1 << 30])
def test_change_costs_one_check_in_a_fetch_of_many_partitions(purgatory, many, min_bytes):
    begun(purgatory, *many, min_bytes=min_bytes, max_bytes=1 << 30)
    ticks_until(purgatory, lambda: not purgatory.steps)
    before = looks(many), reads(many)
    assert before == (MANY, MANY)
    for _ in range(100):
        purgatory.wake(many[7])
        purgatory.run()
    assert (looks(many), reads(many)) == (MANY + 100, MANY)


def test_response_rereads_only_changed_partitions(purgatory, many):
    news = begun(purgatory, *many, min_bytes=1)
    ticks_until(purgatory, lambda: not purgatory.steps)
    moved(purgatory, many[3], 5)
    moved(purgatory, many[4999], 6)
    ticks_until(purgatory, lambda: news)
    ((sizes, _),) = news
    assert reads(many) == MANY + 2
    assert {index: size for index, size in sizes.items() if size} == {3: 5, 4999: 6}


def test_fetch_of_many_partitions_is_read_in_slices(purgatory, many):
    before = Partition.touches
    news = begun(purgatory, *many, min_bytes=1)
    at_once = Partition.touches - before
    most, count = ticks_until(purgatory, lambda: not purgatory.steps)
    assert at_once <= AT_ONCE_UNITS // SLICE_UNITS * SLICE
    assert most <= (UNITS_PER_TICK // SLICE_UNITS + 1) * SLICE
    assert count > 10
    assert news == []


def test_change_during_the_read_of_a_fetch_is_not_missed(purgatory, many):
    news = begun(purgatory, *many, min_bytes=1)
    purgatory.run()
    moved(purgatory, many[0], 8)
    ticks_until(purgatory, lambda: news)
    ((sizes, _),) = news
    assert sizes[0] == 8


def test_fetch_that_expires_during_its_read_completes(purgatory, timers, many):
    news = begun(purgatory, *many, min_bytes=1)
    timers.all_due()
    ticks_until(purgatory, lambda: news)
    ((sizes, _),) = news
    assert len(sizes) == MANY
    assert (purgatory.size, sum(len(each.waiting) for each in many)) == (0, 0)


def test_fetch_of_disconnected_client_is_removed_during_its_read(purgatory, many):
    future = purgatory.begin(fetch_of(*many, min_bytes=1), 1000)
    purgatory.run()
    future.abandon()
    before = Partition.touches
    purgatory.run()
    assert Partition.touches == before
    assert (purgatory.size, len(purgatory.steps)) == (0, 0)


def test_fetches_completed_per_tick_are_bounded(purgatory):
    partition = Partition()
    news = [begun(purgatory, partition, min_bytes=1) for _ in range(1_000)]
    partition.bytes = 1
    purgatory.wake(partition)
    answered = 0
    while answered < 1_000:
        purgatory.run()
        now = sum(map(len, news))
        assert 0 <= now - answered <= UNITS_PER_TICK
        answered = now
    assert partition.looks == 2_000, "one look to register, and one for the move"


def test_many_expired_fetches_complete_over_several_ticks(purgatory, timers):
    partition = Partition()
    news = [begun(purgatory, partition) for _ in range(200)]
    timers.all_due()
    purgatory.run()
    assert sum(map(len, news)) == UNITS_PER_TICK
    ticks_until(purgatory, lambda: sum(map(len, news)) == 200)


def test_produce_completes_before_many_waiting_fetches(purgatory):
    partition = Partition()
    for _ in range(1_000):
        begun(purgatory, partition, min_bytes=1)
    news = results_of(purgatory.watch(produced(partition), 1000))
    partition.high_watermark = 5
    purgatory.wake(partition)
    assert len(news) == 1


@pytest.mark.parametrize("is_urgent", [True, False])
def test_unreadable_log_fails_only_its_delayed_request(purgatory, is_urgent):
    partition = Partition(0)
    broken, whole = produced(partition), produced(partition)

    def build_response():
        raise FileNotFoundError(2, "No such file or directory", "00000000000000000000.log")

    broken.build_response, broken.is_urgent = build_response, is_urgent
    failed, answered = (results_of(purgatory.watch(each, 1000)) for each in (broken, whole))
    partition.high_watermark = 5
    purgatory.wake(partition)
    purgatory.run()
    assert isinstance(failed[0][1], KafkaStorageError)
    assert codes(answered[0][0]) == [0] and purgatory.size == 0
