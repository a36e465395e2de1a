"""Topic patterns: which topics match, for whom, and at what cost."""

from __future__ import annotations

import random
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.coordination.groups.assignment import topic_patterns
from kafkalite.coordination.groups.assignment.topic_patterns import (
    PATTERN_SIZE_MAX,
    WORK_MAX,
    check_pattern,
    resolve,
)
from kafkalite.coordination.regular_expression import STATES_MAX
from kafkalite.errors import InvalidRegularExpression

NAMES = ["__consumer_offsets", "logs", "logs-1", "logs-2", "my-logs-1", "orders"]


def resolved(*patterns, names=NAMES, may_describe=lambda name: True):
    """Return the matching names by pattern, and the number of steps."""
    work, steps = resolve(patterns, names, may_describe), 0
    while True:
        try:
            next(work)
            steps += 1
        except StopIteration as ended:
            return ended.value, steps


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("logs", ["logs"]),
        ("logs-.*", ["logs-1", "logs-2"]),
        (".*logs.*", ["logs", "logs-1", "logs-2", "my-logs-1"]),
        ("logs|orders", ["logs", "orders"]),
        ("__.*", ["__consumer_offsets"]),
        ("none", []),
        ("", []),
    ],
)
def test_pattern_matches_whole_names(pattern, matching):
    assert resolved(pattern)[0] == {pattern: matching}


def test_denied_topics_are_absent_from_every_pattern():
    looked_up = []

    def may_describe(name):
        looked_up.append(name)
        return name != "logs-1"

    assert resolved("logs.*", "l.*", may_describe=may_describe)[0] == {
        "logs.*": ["logs", "logs-2"],
        "l.*": ["logs", "logs-2"],
    }
    assert looked_up == ["logs", "logs-1", "logs-2"]


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "(?=a)b", r"(a)\1", "a" * (PATTERN_SIZE_MAX + 1), "é" * 600, "a{1001}"]
)
def test_invalid_or_long_pattern_is_refused(pattern):
    with pytest.raises(InvalidRegularExpression):
        check_pattern(pattern)


def test_pattern_of_the_maximum_size_is_accepted():
    check_pattern("[" + "a" * (PATTERN_SIZE_MAX - 2) + "]")


def test_costly_pattern_matches_nothing_and_leaves_the_others(caplog):
    costly = "[ab]*a[ab]{150}"
    dice = random.Random(1)
    names = ["".join(dice.choices("ab", k=200)) for _ in range(100)]
    found, steps = resolved(costly, "b.*", names=names)
    assert found == {costly: [], "b.*": [name for name in names if name[0] == "b"]}
    assert "too costly" in caplog.text
    # A step visits each state at most once.
    assert steps <= WORK_MAX + 2 * len(names)


def test_pattern_of_another_library_matches_nothing():
    assert resolved(r"\p{Greek}", "logs")[0] == {r"\p{Greek}": [], "logs": ["logs"]}


def test_each_name_is_a_step_of_its_own():
    names = [f"logs-{number}" for number in range(5_000)]
    found, steps = resolved("logs-.*", names=names)
    assert found["logs-.*"] == names
    assert steps >= len(names)


@given(st.text(max_size=60), st.lists(st.text(max_size=30), max_size=5))
@settings(max_examples=150)
def test_any_text_is_an_error_or_bounded_work(text, names):
    try:
        check_pattern(text)
    except InvalidRegularExpression:
        return
    _, steps = resolved(text, names=names)
    assert steps <= sum(len(name) + 1 for name in names) + len(names)
    expression = topic_patterns.RegularExpression(text)
    for name in names:
        for _ in expression.matches(name):
            pass
    assert expression.work <= sum(map(len, names)) * (STATES_MAX + 1)


@given(st.text("ab|.*()?[]^$", max_size=12))
@settings(max_examples=150)
def test_patterns_match_as_those_of_python(text):
    try:
        check_pattern(text)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            compiled = re.compile(text)
    except (InvalidRegularExpression, re.error, FutureWarning):
        return
    names = ["a", "b", "ab", "ba", "aab"]
    expected = [name for name in names if compiled.fullmatch(name)]
    assert resolved(text, names=names)[0] == {text: expected}
