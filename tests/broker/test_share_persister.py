"""SharePersister, with a queue of scheduled calls and share coordinators that the test plays."""

from __future__ import annotations

import pytest

from kafkalite.broker.future import Future
from kafkalite.broker.share.persister import BATCHES_MAX, REQUESTS_MAX, SharePersister
from kafkalite.coordination.share.state_requests import StateChange, StateRead
from kafkalite.errors import CoordinatorNotAvailable, RequestTimedOut, UnknownServerError
from kafkalite.protocol.schemas.share_records import SharePartitionKey, StateBatch

TOPIC_ID = bytes(range(16))
AVAILABLE, ACKNOWLEDGED = 0, 2


class Coordinators:
    """The other end of a persister: the messages in flight, and the calls that are scheduled."""

    def __init__(self, answers_at_once=False):
        self.answers_at_once = answers_at_once
        self.calls = []
        self.messages = []
        self.futures = []
        self.persister = SharePersister(self.send, self)

    def call_later(self, ms, callback):
        self.calls.append(callback)

    def tick(self):
        """Make the calls that are scheduled now."""
        calls, self.calls = self.calls, []
        for callback in calls:
            callback()

    def send(self, requests):
        self.messages.append(requests)
        self.futures.append(Future())
        if self.answers_at_once:
            self.answer()
        return self.futures[-1]

    def answer(self):
        self.futures[-1].resolve([None] * len(self.messages[-1]))


def key(index):
    return SharePartitionKey("g", TOPIC_ID, index)


def change(index, *offsets, leader_epoch=1):
    batches = [StateBatch(offset, offset, ACKNOWLEDGED, 1) for offset in offsets]
    return StateChange(key(index), 1, leader_epoch, 0, len(offsets), batches)


def outcome_of(future):
    found = []
    future.then(lambda outcome, _: found.append(outcome))
    return found[0] if found else "none yet"


def test_requests_of_a_tick_are_one_message_with_merged_changes():
    at = Coordinators()
    futures = [at.persister.submit(each) for each in (change(0, 3), change(1, 0), change(0, 4, 5))]
    at.tick()
    (message,) = at.messages
    assert [each.key for each in message] == [key(0), key(1)]
    assert [*message[0].batches] == [(3, 5, ACKNOWLEDGED, 1)]
    at.answer()
    assert [outcome_of(future) for future in futures] == [None] * 3


def test_requests_of_a_share_partition_are_sent_in_their_order():
    at = Coordinators()
    wanted = [change(0, 1), StateRead(key(0), 2), change(0, 2, leader_epoch=2), change(1, 1)]
    for each in wanted:
        at.persister.submit(each)
    at.tick()
    for _ in range(2):
        at.answer()
    assert at.messages == [[wanted[0], wanted[3]], [wanted[1]], [wanted[2]]]


def test_message_ends_with_a_change_of_many_batches():
    at = Coordinators()
    for index in range(3):
        at.persister.submit(change(index, *range(0, 4 * BATCHES_MAX // 3, 2)))
    at.tick()
    assert [len(message) for message in at.messages] == [2]
    at.answer()
    assert [len(message) for message in at.messages] == [2, 1]


def test_outcomes_that_come_at_once_are_taken_in_ticks_of_their_own():
    at = Coordinators(answers_at_once=True)
    for index in range(3 * REQUESTS_MAX):
        at.persister.submit(change(index, 1))
    for count in (1, 2, 3):
        at.tick()
        assert len(at.messages) == count
    at.persister.submit(change(0, 2))
    at.tick()
    assert len(at.messages) == 4


def test_message_that_times_out_fails_what_is_queued_behind_it():
    at = Coordinators()
    first = at.persister.submit(change(0, 1))
    at.tick()
    queued = [at.persister.submit(each) for each in (change(0, 2), change(1, 1))]
    at.futures[-1].fail(RequestTimedOut())
    for future in (first, *queued):
        assert isinstance(outcome_of(future), CoordinatorNotAvailable)
    at.persister.submit(change(0, 3))
    at.tick()
    assert at.messages[-1] == [change(0, 3)]


def test_message_that_is_refused_fails_alone():
    at = Coordinators()
    first = at.persister.submit(change(0, 1))
    at.tick()
    queued = at.persister.submit(change(0, 2))
    at.futures[-1].fail(UnknownServerError())
    assert isinstance(outcome_of(first), CoordinatorNotAvailable)
    at.answer()
    assert outcome_of(queued) is None


class CountedKey(SharePartitionKey):
    """A key that counts its comparisons."""

    comparisons = 0

    def __eq__(self, other):
        CountedKey.comparisons += 1
        return tuple.__eq__(self, other)

    def __ne__(self, other):
        CountedKey.comparisons += 1
        return tuple.__ne__(self, other)

    __hash__ = tuple.__hash__


@pytest.mark.parametrize("count", [100, 1_000])
def test_cost_of_a_request_does_not_depend_on_those_of_other_share_partitions(count):
    at = Coordinators()
    CountedKey.comparisons = 0
    for index in range(count):
        at.persister.submit(change(0, 1)._replace(key=CountedKey("g", TOPIC_ID, index)))
    assert CountedKey.comparisons < 2 * count
