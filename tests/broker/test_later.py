"""A Later is settled once; what hangs on it runs at that moment or at once."""

import pytest

from kafkalite.broker.later import Later
from kafkalite.errors import InvalidRequest, UnknownTopicOrPartition


def heard(later):
    """What a Later's callbacks were told, as it is told."""
    news = []
    later.then(lambda value, fault: news.append((value, fault)))
    return news


def test_a_callback_hears_the_value_when_it_comes():
    later = Later()
    news = heard(later)
    assert news == []
    later.resolve(7)
    assert news == [(7, None)]


def test_a_callback_added_too_late_hears_it_at_once():
    later = Later()
    later.resolve(None)
    assert heard(later) == [(None, None)]


def test_a_fault_passes_through_map_untouched():
    later = Later()
    fault = UnknownTopicOrPartition()
    news = heard(later.map(lambda value: value + 1))
    later.fail(fault)
    assert news == [(None, fault)]


def test_a_fault_raised_by_map_becomes_the_results_fault():
    def refuse(value):
        raise InvalidRequest("no")

    later = Later()
    news = heard(later.map(refuse))
    later.resolve(1)
    ((value, fault),) = news
    assert value is None
    assert isinstance(fault, InvalidRequest)


def test_settling_twice_is_a_bug():
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
