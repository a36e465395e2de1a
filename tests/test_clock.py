"""SystemClock and ManualClock."""

import time

from kafkalite.clock import ManualClock, SystemClock


def test_system_clock_returns_milliseconds():
    before = time.time() * 1000 - 1
    assert before <= SystemClock().wall_ms() <= time.time() * 1000
    assert SystemClock().monotonic_ms() <= time.monotonic() * 1000


def test_manual_clock_advances_only_when_moved():
    clock = ManualClock(wall_ms=5_000)
    first = (clock.wall_ms(), clock.monotonic_ms())
    assert (clock.wall_ms(), clock.monotonic_ms()) == first
    clock.advance(250)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (first[0] + 250, first[1] + 250)


def test_wall_clock_jump_keeps_monotonic_time():
    clock = ManualClock(wall_ms=5_000)
    before = clock.monotonic_ms()
    clock.jump_wall(-4_000)
    assert clock.wall_ms() == 1_000
    assert clock.monotonic_ms() == before
