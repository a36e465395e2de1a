"""A node's loop: the garbage collector's part of a tick."""

from __future__ import annotations

import gc
import subprocess
import sys

from kafkalite.clock import ManualClock
from kafkalite.process import loop
from kafkalite.transport.reactor import Reactor

PROGRAM = """
import gc
from kafkalite.clock import ManualClock
from kafkalite.process.loop import disable_automatic_gc
from kafkalite.transport.reactor import Reactor
disable_automatic_gc(Reactor(ManualClock()))
searched = []
gc.callbacks.append(lambda phase, info: searched.append(phase))
kept = [[] for _ in range(300_000)]
for _ in range(100):
    less = [[] for _ in range(10_000)]
print(len(searched))
"""


def test_automatic_collection_does_not_run():
    """A full collection of 300,000 objects that requests leave would take 20 to 60 ms at once."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert int(found.stdout) == 0


def test_full_collection_runs_when_memory_has_doubled(monkeypatch):
    clock, blocks, searched = ManualClock(), [0], []
    reactor = Reactor(clock)

    def after_a_minute(now_blocks):
        blocks[0] = now_blocks
        clock.advance(loop.MEMORY_CHECK_MS)
        reactor.tick(0)
        return len(searched)

    monkeypatch.setattr(loop.sys, "getallocatedblocks", lambda: blocks[0])
    monkeypatch.setattr(gc, "collect", lambda: searched.append(blocks[0]) or 0)
    blocks[0] = 1_000_000
    loop.watch_memory(reactor)
    assert after_a_minute(1_900_000 + loop.GROWTH_BLOCKS_MIN) == 0
    assert after_a_minute(2_000_000 + loop.GROWTH_BLOCKS_MIN) == 1
    assert after_a_minute(2 * blocks[0]) == 1
    assert after_a_minute(2 * (2_000_000 + loop.GROWTH_BLOCKS_MIN) + loop.GROWTH_BLOCKS_MIN) == 2
    reactor.close()
