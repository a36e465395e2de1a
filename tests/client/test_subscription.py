"""Patterns of topics: what they match here, and what is sent to a broker that matches them."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

from kafkalite.client.group.subscription import Subscription
from kafkalite.coordination.regular_expression import RegularExpression
from kafkalite.errors import InvalidConfig

NAMES = ["orders", "Orders", "orders-2", "a b", "ab", "x"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (re.compile("orders"), ["orders"]),
        (re.compile("ORDERS", re.IGNORECASE), ["orders", "Orders"]),
        (re.compile("orders|x", re.DOTALL | re.MULTILINE), ["orders", "x"]),
        (re.compile("(?i)ORDERS.*"), ["orders", "Orders", "orders-2"]),
        (re.compile("or|ab", re.ASCII), ["ab"]),
        ("^or", ["orders", "orders-2"]),
    ],
)
def test_pattern_matches_the_same_names_here_and_at_the_broker(pattern, names):
    subscription = Subscription(pattern)
    assert [*subscription.on_client(NAMES).names] == sorted(names)
    expression = RegularExpression(subscription.on_broker().regex or "")
    assert [name for name in NAMES if result(expression.matches(name))] == names


def result(steps: Generator[None, None, bool]) -> bool:
    """Run a generator to its end and return its value."""
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        return bool(ended.value)


@pytest.mark.parametrize("pattern", [re.compile("a b", re.VERBOSE), re.compile("(?x)a b")])
def test_pattern_with_a_flag_that_brokers_do_not_know_is_refused(pattern):
    with pytest.raises(InvalidConfig, match="re.VERBOSE"):
        Subscription(pattern)
