"""CoordinatorHost: the deadlines of several coordinators of a node."""

from __future__ import annotations

import pytest

from kafkalite.broker.coordinator.coordinator_host import DEADLINES_MS, DEADLINES_PAUSE_MS
from kafkalite.coordination.machine import DecisionResult
from tests.handlers.conftest import InProcess
from tests.handlers.grouping import find

COORDINATORS, TICKS = 3, 2


class Busy:
    """A state machine with deadlines that take time."""

    def __init__(self, number, node, duration_ms, ticks):
        self.number = number
        self.node = node
        self.duration_ms = duration_ms
        self.ticks = ticks
        self.left = TICKS
        self.due_ms = node.clock.monotonic_ms()

    @property
    def next_due_ms(self):
        return self.due_ms if self.left else None

    def tick(self, now_ms, wall_ms):
        self.ticks.append((self.node.reactor.tick_number, self.number))
        self.node.clock.advance(self.duration_ms)
        self.left -= 1
        return DecisionResult([])


@pytest.fixture
def coordinators(tmp_path):
    node = InProcess(tmp_path / "data", **{"offsets.topic.num.partitions": str(COORDINATORS)})
    find(node)
    node.node.groups.open()
    yield node
    node.close()


def handled(node, duration_ms):
    """Let the deadlines of each coordinator take this long; return the number of the event loop's
    tick and of the coordinator, for each time that one handled its deadlines."""
    ticks = []
    assert len([*node.node.groups]) == COORDINATORS
    for number, host in enumerate(node.node.groups):
        host.machine = Busy(number, node, duration_ms, ticks)
        host.schedule()
    for _ in range(100):
        if len(ticks) == COORDINATORS * TICKS:
            break
        node.reactor.tick(0)
        node.clock.advance(DEADLINES_PAUSE_MS)
    return ticks


def test_deadlines_of_coordinators_share_the_time_of_a_tick(coordinators):
    ticks = handled(coordinators, DEADLINES_MS)
    assert [number for _, number in ticks] == [*range(COORDINATORS)] * TICKS
    assert len({tick for tick, _ in ticks}) == len(ticks)


def test_short_deadlines_of_coordinators_are_handled_in_one_tick(coordinators):
    ticks = handled(coordinators, 0)
    assert len({tick for tick, _ in ticks[:COORDINATORS]}) == 1
