"""PatternLookups: lookups of many groups share the time of one stepped request."""

from __future__ import annotations

import pytest

from kafkalite.broker import stepping
from kafkalite.broker.coordinator.pattern_lookups import PatternLookups
from kafkalite.clock import ManualClock
from kafkalite.transport.reactor import Reactor


@pytest.fixture
def reactor(monkeypatch):
    monkeypatch.setattr(stepping, "STEP_MS", 0)
    reactor = Reactor(ManualClock())
    yield reactor
    reactor.close()


def tick(reactor):
    reactor.clock.advance(stepping.STEP_PAUSE_MS)
    reactor.tick(0)


def test_lookups_take_steps_in_turn_and_one_a_tick(reactor):
    lookups, steps = PatternLookups(reactor), []

    def lookup(name, count):
        for _ in range(count):
            steps.append(name)
            yield

    for name, count in (("a", 3), ("b", 2), ("a", 9)):
        lookups.add(name, lookup(name, count))
    while lookups:
        before = len(steps)
        tick(reactor)
        assert len(steps) <= before + 1
    assert steps == ["a", "a", "b", "a", "b"]
    lookups.add("c", lookup("c", 1))
    tick(reactor)
    assert steps[-1] == "c"


def test_lookup_that_fails_does_not_keep_others_waiting(reactor):
    lookups, steps = PatternLookups(reactor), []

    def lookup(name):
        yield
        steps.append(name)
        if name == "a":
            raise ValueError

    for name in "ab":
        lookups.add(name, lookup(name))
    for _ in range(9):
        tick(reactor)
    assert steps == ["a"]
    lookups.add("c", lookup("c"))
    for _ in range(9):
        tick(reactor)
    assert steps == ["a", "b", "c"]
