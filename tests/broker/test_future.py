"""Future is settled once; its callbacks run then, or at once if added afterwards."""

import gc
import weakref

import pytest

from kafkalite.broker.future import Future, all_of
from kafkalite.errors import InvalidRequest, UnknownTopicOrPartition


def results_of(future):
    """Return a list to which a Future's callbacks append (value, error)."""
    news = []
    future.then(lambda value, fault: news.append((value, fault)))
    return news


def test_callback_is_called_with_the_value():
    future = Future()
    news = results_of(future)
    assert news == []
    future.resolve(7)
    assert news == [(7, None)]


def test_callback_added_after_settling_is_called_immediately():
    future = Future()
    future.resolve(None)
    assert results_of(future) == [(None, None)]


def test_error_passes_through_map_unchanged():
    future = Future()
    fault = UnknownTopicOrPartition()
    news = results_of(future.map(lambda value: value + 1))
    future.fail(fault)
    assert news == [(None, fault)]


def test_error_raised_in_map_fails_the_result():
    def refuse(value):
        raise InvalidRequest("no")

    future = Future()
    news = results_of(future.map(refuse))
    future.resolve(1)
    ((value, fault),) = news
    assert value is None
    assert isinstance(fault, InvalidRequest)


def test_settling_twice_raises_assertion_error():
    future = Future()
    future.resolve(1)
    with pytest.raises(AssertionError):
        future.resolve(2)


def test_abandoning_a_mapped_later_reaches_its_source():
    forgotten = []
    source = Future(lambda: forgotten.append(True))
    source.map(str).abandon()
    assert forgotten == [True]


def test_abandoning_a_settled_later_does_nothing():
    forgotten = []
    future = Future(lambda: forgotten.append(True))
    future.resolve(1)
    future.abandon()
    assert forgotten == []


def test_recover_turns_errors_into_values():
    assert results_of(Future.of(1).recover(lambda fault: 2)) == [(1, None)]
    future = Future()
    recovered = future.recover(lambda fault: str(fault))
    future.fail(InvalidRequest("no"))
    assert results_of(recovered) == [("no", None)]


def test_all_of_resolves_in_order_after_the_last():
    first, second = Future(), Future()
    both = all_of([first, second])
    second.resolve(2)
    assert not both.settled
    first.resolve(1)
    assert results_of(both) == [([1, 2], None)]
    assert results_of(all_of([])) == [([], None)]


def test_all_of_fails_with_the_first_error():
    first, second = Future(), Future()
    both = all_of([first, second])
    fault = InvalidRequest("no")
    second.fail(fault)
    first.resolve(1)
    assert results_of(both) == [(None, fault)]


def test_abandoning_all_of_abandons_each():
    gone = []
    futures = [Future(lambda place=place: gone.append(place)) for place in range(2)]
    all_of(futures).abandon()
    assert gone == [0, 1]


class Large:
    """A large object, such as a request."""


def test_error_keeps_no_traceback():
    codes = []

    def refused():
        request, given = Large(), Future()

        def change(value):
            try:
                raise InvalidRequest(str(request))
            except InvalidRequest as fault:
                raise UnknownTopicOrPartition() from fault

        future = given.map(change).recover(lambda fault: fault.code)
        future.then(lambda code, _: codes.append(code))
        given.resolve(7)
        return weakref.ref(request)

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()
    assert codes == [UnknownTopicOrPartition.code]
