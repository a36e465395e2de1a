"""A node's loop: the garbage collector's part of a tick."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from kafkalite.clock import ManualClock
from kafkalite.process import loop
from kafkalite.transport.reactor import Reactor

PROGRAM = """
import gc
from kafkalite.clock import ManualClock
from kafkalite.process.loop import rest_collector
from kafkalite.transport.reactor import Reactor
rest_collector(Reactor(ManualClock()))
searched = []
def measure(phase, info):
    if phase == "start":
        searched.append(sum(len(gc.get_objects(g)) for g in range(info["generation"] + 1)))
gc.callbacks.append(measure)
kept = []
for _ in range({rounds}):
    kept += [[] for _ in range(50_000)]
    {after}
print(len(searched), max(searched))
"""


@pytest.mark.parametrize(("rounds", "after"), [(6, ""), (400, "if len(kept) > 300_000: kept = []")])
def test_collector_searches_few_objects_at_a_time(rounds, after):
    """However many objects a request leaves, and however often: 300,000 are searched 20 to 60 ms
    at once otherwise."""
    program = PROGRAM.format(rounds=rounds, after=after)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    passes, most = map(int, found.stdout.split())
    assert passes >= 10
    # A pass of the middle generation takes what three of the young one left.
    assert most <= 45_000


def test_all_objects_are_searched_once_memory_has_doubled(monkeypatch):
    clock, blocks, searched = ManualClock(), [0], []
    reactor = Reactor(clock)

    def a_minute_later(now_blocks):
        blocks[0] = now_blocks
        clock.advance(loop.LOOK_MS)
        reactor.tick(0)
        return len(searched)

    monkeypatch.setattr(loop.sys, "getallocatedblocks", lambda: blocks[0])
    monkeypatch.setattr(gc, "collect", lambda: searched.append(blocks[0]) or 0)
    blocks[0] = 1_000_000
    loop.watch_memory(reactor)
    assert a_minute_later(1_900_000 + loop.GROWN_BLOCKS) == 0
    assert a_minute_later(2_000_000 + loop.GROWN_BLOCKS) == 1
    assert a_minute_later(2 * blocks[0]) == 1
    assert a_minute_later(2 * (2_000_000 + loop.GROWN_BLOCKS) + loop.GROWN_BLOCKS) == 2
    reactor.close()
