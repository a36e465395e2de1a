"""Waiting answers, with partitions and timers of the test's own: no loop, no disk."""

import pytest

from kafkalite.broker.purgatory import DelayedFetch, DelayedProduce, OpenEntry, Purgatory
from kafkalite.broker.replica_manager import Fetched
from kafkalite.errors import NotLeaderOrFollower, OffsetOutOfRange, RequestTimedOut


class Timers:
    """Calls to come, made by hand."""

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
    """What purgatory sees of one."""

    def __init__(self, index=0, high_watermark=0):
        self.index = index
        self.high_watermark = high_watermark
        self.fault = None
        self.waiting = {}


class Item:
    """One partition of a fetch, with as many bytes as the test says."""

    def __init__(self, partition):
        self.partition = partition
        self.bytes = 0
        self.fault = None

    def readable(self, isolation_level):
        return self.available(isolation_level) > 0

    def available(self, isolation_level):
        if self.fault:
            raise self.fault
        return self.bytes


class Replicas:
    def fetch(self, items, size_max, isolation_level):
        return Fetched([item.bytes for item in items], sum(item.bytes for item in items), False, [])


def heard(later):
    news = []
    later.then(lambda value, fault: news.append((value, fault)))
    return news


@pytest.fixture
def timers():
    return Timers()


@pytest.fixture
def purgatory(timers):
    return Purgatory(timers)


def produced(*partitions, last_offset=4):
    entries = [(partition.index, 0, 0, -1, 0, (), None, None) for partition in partitions]
    open_entries = [
        OpenEntry(partition, last_offset, entries, position)
        for position, partition in enumerate(partitions)
    ]
    return DelayedProduce({"topics": [("t", entries)]}, open_entries)


def codes(response):
    return [entry[1] for _, entries in response["topics"] for entry in entries]


def test_a_produce_waits_for_all_of_its_partitions(purgatory):
    a, b = Partition(0), Partition(1)
    news = heard(purgatory.park(produced(a, b), 1000))
    a.high_watermark = 5
    purgatory.wake(a)
    assert news == []
    b.high_watermark = 5
    purgatory.wake(b)
    ((response, fault),) = news
    assert fault is None
    assert codes(response) == [0, 0]


def test_a_high_watermark_at_the_last_record_is_not_past_it(purgatory):
    partition = Partition()
    news = heard(purgatory.park(produced(partition, last_offset=4), 1000))
    partition.high_watermark = 4
    purgatory.wake(partition)
    assert news == []


def test_a_produce_out_of_time_says_so_for_the_open_partitions_only(purgatory, timers):
    a, b = Partition(0), Partition(1)
    news = heard(purgatory.park(produced(a, b), 1000))
    a.high_watermark = 5
    timers.all_due()
    ((response, _),) = news
    assert codes(response) == [0, RequestTimedOut.code]


def test_a_produce_to_a_partition_taken_away_is_answered_with_the_reason(purgatory):
    partition = Partition()
    news = heard(purgatory.park(produced(partition), 1000))
    partition.fault = NotLeaderOrFollower()
    purgatory.wake(partition)
    ((response, _),) = news
    assert codes(response) == [NotLeaderOrFollower.code]


def fetched(*items, min_bytes=10):
    return DelayedFetch(Replicas(), items, min_bytes, 1 << 20, 0, lambda found: found.size)


def test_a_fetch_waits_for_min_bytes_over_all_partitions(purgatory):
    a, b = Item(Partition(0)), Item(Partition(1))
    news = heard(purgatory.park(fetched(a, b), 1000))
    a.bytes = 6
    purgatory.wake(a.partition)
    assert news == []
    b.bytes = 4
    purgatory.wake(b.partition)
    assert news == [(10, None)]


def test_a_fetch_out_of_time_gives_what_there_is(purgatory, timers):
    item = Item(Partition())
    item.bytes = 3
    news = heard(purgatory.park(fetched(item), 1000))
    timers.all_due()
    assert news == [(3, None)]


def test_a_fetch_that_would_fail_is_answered_at_once(purgatory):
    item = Item(Partition())
    news = heard(purgatory.park(fetched(item), 1000))
    item.fault = OffsetOutOfRange()
    purgatory.wake(item.partition)
    assert len(news) == 1


def test_what_was_answered_leaves_nothing_behind(purgatory, timers):
    a, b = Item(Partition(0)), Item(Partition(1))
    purgatory.park(fetched(a, b), 1000)
    assert purgatory.size == 1
    a.bytes = 10
    purgatory.wake(a.partition)
    assert (purgatory.size, a.partition.waiting, b.partition.waiting, timers.due) == (0, {}, {}, [])


def test_what_was_abandoned_leaves_nothing_behind(purgatory, timers):
    item = Item(Partition())
    later = purgatory.park(fetched(item), 2**31 - 1)
    news = heard(later)
    later.abandon()
    assert (purgatory.size, item.partition.waiting, timers.due, news) == (0, {}, [], [])


def test_two_that_wait_for_one_partition_are_both_answered(purgatory):
    partition = Partition()
    first, second = Item(partition), Item(partition)
    news = heard(purgatory.park(fetched(first), 1000)), heard(purgatory.park(fetched(second), 1000))
    first.bytes = second.bytes = 10
    purgatory.wake(partition)
    assert [len(each) for each in news] == [1, 1]
