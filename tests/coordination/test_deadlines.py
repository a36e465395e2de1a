"""Deadlines against a plain dict of them, by random operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.coordination import deadlines
from kafkalite.coordination.deadlines import Deadlines

KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("drop"), KEYS),
        st.tuples(st.just("due"), st.integers(0, 60)),
        st.tuples(st.just("next")),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_key_is_due_once_at_its_last_deadline(steps):
    mine, model = Deadlines(), {}
    for what, *how in steps:
        if what == "set":
            mine.set(*how)
            model[how[0]] = how[1]
        elif what == "drop":
            mine.drop(*how)
            model.pop(how[0], None)
        elif what == "next":
            assert mine.next_ms == min(model.values(), default=None)
        else:
            due = {key: at for key, at in model.items() if at <= how[0]}
            taken = [*mine.due(how[0])]
            assert sorted(taken) == sorted(due)
            assert [due[key] for key in taken] == sorted(due.values())
            model = {key: at for key, at in model.items() if key not in due}
        assert len(mine) == len(model)
        assert all(key in mine for key in model)


def test_postponed_deadlines_take_bounded_memory():
    mine = Deadlines()
    for at in range(20_000):
        mine.set("far", 1 << 40)
        mine.set("near", at)
        mine.set("far", 1 << 39)
        assert [*mine.due(at)] == ["near"]
        mine.drop("far")
    assert len(mine._queue) <= 2 * deadlines.SLACK


def test_deadline_set_while_iterating_is_returned():
    mine = Deadlines()
    mine.set("a", 1)
    taken = []
    for key in mine.due(5):
        taken.append(key)
        if key == "a":
            mine.set("b", 3)
            mine.set("c", 6)
    assert taken == ["a", "b"]
