"""Later is completed once; its callbacks run then, or at once if added afterwards."""

import gc
import weakref

import pytest

from kafkalite.broker.later import Later, all_of
from kafkalite.errors import InvalidRequest, UnknownTopicOrPartition


def heard(later):
    """Return a list to which a Later's callbacks append (value, error)."""
    news = []
    later.then(lambda value, fault: news.append((value, fault)))
    return news


def test_callback_is_called_with_the_value():
    later = Later()
    news = heard(later)
    assert news == []
    later.resolve(7)
    assert news == [(7, None)]


def test_callback_added_after_settling_is_called_immediately():
    later = Later()
    later.resolve(None)
    assert heard(later) == [(None, None)]


def test_error_passes_through_map_unchanged():
    later = Later()
    fault = UnknownTopicOrPartition()
    news = heard(later.map(lambda value: value + 1))
    later.fail(fault)
    assert news == [(None, fault)]


def test_error_raised_in_map_fails_the_result():
    def refuse(value):
        raise InvalidRequest("no")

    later = Later()
    news = heard(later.map(refuse))
    later.resolve(1)
    ((value, fault),) = news
    assert value is None
    assert isinstance(fault, InvalidRequest)


def test_settling_twice_raises_assertion_error():
    later = Later()
    later.resolve(1)
    with pytest.raises(AssertionError):
        later.resolve(2)


def test_abandoning_a_mapped_later_reaches_its_source():
    forgotten = []
    source = Later(lambda: forgotten.append(True))
    source.map(str).abandon()
    assert forgotten == [True]


def test_abandoning_a_settled_later_does_nothing():
    forgotten = []
    later = Later(lambda: forgotten.append(True))
    later.resolve(1)
    later.abandon()
    assert forgotten == []


def test_recover_turns_errors_into_values():
    assert heard(Later.of(1).recover(lambda fault: 2)) == [(1, None)]
    later = Later()
    recovered = later.recover(lambda fault: str(fault))
    later.fail(InvalidRequest("no"))
    assert heard(recovered) == [("no", None)]


def test_all_of_resolves_in_order_after_the_last():
    first, second = Later(), Later()
    both = all_of([first, second])
    second.resolve(2)
    assert not both.settled
    first.resolve(1)
    assert heard(both) == [([1, 2], None)]
    assert heard(all_of([])) == [([], None)]


def test_all_of_fails_with_the_first_error():
    first, second = Later(), Later()
    both = all_of([first, second])
    fault = InvalidRequest("no")
    second.fail(fault)
    first.resolve(1)
    assert heard(both) == [(None, fault)]


def test_abandoning_all_of_abandons_each():
    gone = []
    laters = [Later(lambda place=place: gone.append(place)) for place in range(2)]
    all_of(laters).abandon()
    assert gone == [0, 1]


class Large:
    """A large object, such as a request."""


def test_error_keeps_no_traceback():
    codes = []

    def refused():
        request, given = Large(), Later()

        def change(value):
            try:
                raise InvalidRequest(str(request))
            except InvalidRequest as fault:
                raise UnknownTopicOrPartition() from fault

        later = given.map(change).recover(lambda fault: fault.code)
        later.then(lambda code, _: codes.append(code))
        given.resolve(7)
        return weakref.ref(request)

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()
    assert codes == [UnknownTopicOrPartition.code]
