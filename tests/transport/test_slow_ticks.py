"""Ticks of the loop are timed, and the slow ones name the request or function that took longest."""

import logging
import time
from functools import partial

import pytest

from kafkalite.clock import ManualClock
from kafkalite.transport.slow_ticks import SLOW_NS, SlowTicks
from tests.transport.conftest import framed

FETCH = 1
LOG = "kafkalite.transport"


def compute(cpu_ms):
    """Use this much processor time of this thread."""
    end_ns = time.thread_time_ns() + cpu_ms * 1_000_000
    while time.thread_time_ns() < end_ns:
        pass


def request(api_key):
    return api_key.to_bytes(2, "big") + bytes(6)


@pytest.fixture
def slow():
    """Return the slow-tick timer of a loop, without the loop."""
    clock = ManualClock()
    return clock, SlowTicks(clock)


def test_slow_request_is_counted_under_its_api_with_its_processor_time(world):
    def serve(connection, frame):
        if bytes(frame[:2]) == request(FETCH)[:2]:
            compute(60)
        return [b"done"]

    here = world(serve)
    here.reactor.slow_ticks.name_api = {FETCH: "Fetch", 3: "Metadata"}.__getitem__
    client = here.client().send(framed(request(3)) + framed(request(FETCH)) + framed(request(3)))
    client.responses(3)
    ticks = here.reactor.slow_ticks
    # On a busy machine other ticks may be slow as well, but none uses so much processor time.
    assert ticks.counts["Fetch"] == 1
    assert ticks.cpu_counts == {"Fetch": 1}
    assert ticks.longest_ns >= ticks.longest_cpu_ns >= SLOW_NS


def test_slow_timer_is_counted_under_its_function(world):
    here = world(lambda connection, frame: [b"done"])
    here.reactor.call_later(0, lambda: compute(60))
    here.tick()
    assert here.reactor.slow_ticks.counts == {"test_slow_timer_is_counted_under_its_function": 1}


def test_slow_partial_is_counted_under_the_function_it_calls(world):
    here = world(lambda connection, frame: [b"done"])
    here.reactor.call_later(0, partial(partial(compute), 60))
    here.tick()
    assert here.reactor.slow_ticks.counts == {"compute": 1}


def test_tick_that_waits_is_slow_without_processor_time(world):
    here = world(lambda connection, frame: [b"done"])
    here.reactor.call_later(0, lambda: time.sleep(0.06))
    here.tick()
    ticks = here.reactor.slow_ticks
    assert ticks.counts.total() == 1 and ticks.longest_ns >= 60_000_000
    assert ticks.longest_cpu_ns < 40_000_000


def test_tick_time_excludes_waiting_and_time_between_ticks(world):
    here = world(lambda connection, frame: [b"done"])
    here.quiet()
    compute(60)
    here.reactor.call_later(60, lambda: None)
    before = sum(here.reactor.tick_times[1:])
    here.reactor.tick(100)
    total_ns, *counts = here.reactor.tick_times
    assert sum(counts) == before + 1
    assert here.reactor.slow_ticks.cpu_counts.total() == 0


def test_ticks_are_counted_by_time(world):
    here = world(lambda connection, frame: [b"done"])
    here.tick(3)
    here.reactor.call_later(0, lambda: time.sleep(0.02))
    here.tick()
    total_ns, *counts = here.reactor.tick_times
    assert sum(counts) == here.reactor.counters["ticks"]
    assert total_ns >= 20_000_000
    assert sum(counts[(20_000_000 >> 10).bit_length() :]) >= 1


def test_log_names_the_cause_once_in_ten_seconds_and_counts_the_rest(slow, caplog):
    clock, ticks = slow
    with caplog.at_level(logging.WARNING, LOG):
        for _ in range(3):
            ticks.add(SLOW_NS, 0, SLOW_NS, None)
        ticks.add(2 * SLOW_NS, SLOW_NS, SLOW_NS, 7)
        clock.advance(10_000)
        ticks.add(SLOW_NS, 0, SLOW_NS, None)
    lines = [record.message for record in caplog.records]
    assert [line.partition("cause=")[2] for line in lines] == [
        "'sending responses' tick_ms=50 cpu_ms=0 step_ms=50 suppressed=0",
        "'API key 7' tick_ms=100 cpu_ms=50 step_ms=50 suppressed=0",
        "'sending responses' tick_ms=50 cpu_ms=0 step_ms=50 suppressed=2",
    ]


def test_causes_are_bounded(slow):
    _, ticks = slow
    for api_key in range(1_000):
        ticks.add(SLOW_NS, 0, SLOW_NS, api_key)
    assert len(ticks.counts) <= 201 and ticks.counts.total() == 1_000
    assert ticks.counts["other"] == 800
