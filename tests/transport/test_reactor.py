"""The reactor's tick: the order of its calls, and that an idle tick makes none."""

import os
import time

import pytest

from kafkalite.clock import ManualClock

RESPONSE = b"\0\0\0\4done"
"""The body `done` behind its size."""


@pytest.fixture
def here(world):
    made = world(clock=ManualClock())
    made.quiet()
    return made


def test_timer_is_called_once_and_not_before_its_time(here):
    called = []
    here.reactor.call_later(100, lambda: called.append("it"))
    here.clock.advance(99)
    here.reactor.tick(0)
    assert called == []
    here.clock.advance(1)
    here.reactor.tick(0)
    here.clock.advance(1000)
    here.reactor.tick(0)
    assert called == ["it"]


def test_timers_are_called_in_order_of_time_and_creation(here):
    called = []
    for name, delay_ms in (("c", 30), ("a", 10), ("b1", 20), ("b2", 20)):
        here.reactor.call_later(delay_ms, lambda name=name: called.append(name))
    here.clock.advance(30)
    here.reactor.tick(0)
    assert called == ["a", "b1", "b2", "c"]


def test_cancelled_timer_is_not_called_and_is_removed(here):
    called = []
    timers = [here.reactor.call_later(10, lambda: called.append(1)) for _ in range(1000)]
    for timer in timers[1:]:
        timer.cancel()
        timer.cancel()
    assert len(here.reactor._timers) < 300
    here.clock.advance(10)
    here.reactor.tick(0)
    assert called == [1]
    timers[0].cancel()


def test_timer_may_start_another_that_is_due_at_once(here):
    called = []
    here.reactor.call_later(0, lambda: here.reactor.call_later(0, lambda: called.append(1)))
    here.reactor.tick(0)
    here.reactor.tick(0)
    assert called == [1]


def test_commit_runs_once_a_tick_after_its_frames_and_before_their_responses(world):
    seen, answers, sent = [], [], []

    def serve(connection, frame):
        seen.append(bytes(frame))
        answers.append(connection.defer())
        return answers[-1]

    def received():
        for client in clients:
            client.take()
        return sum(len(client.received) for client in clients)

    def settle():
        if answers:
            assert received() <= len(sent) * len(RESPONSE)
            seen.append("settled")
        while answers:
            answers.pop().send([b"done"])
            sent.append(b"done")

    here = world(serve)
    here.reactor.at_commit(settle)
    clients = [here.client() for _ in range(3)]
    here.connected(3)
    for client in clients:
        client.request(b"x", b"y")
    before = here.reactor.counters["ticks"]
    # A thread that is preempted ends its tick early: the frames may take more than one.
    here.until(lambda: received() == 6 * len(RESPONSE))
    assert 1 <= seen.count("settled") <= here.reactor.counters["ticks"] - before
    assert sorted(each for each in seen if each != "settled") == [b"x"] * 3 + [b"y"] * 3
    assert seen[-1] == "settled"


def test_watch_calls_while_the_descriptor_is_readable(here):
    woken, wake = os.pipe()
    called = []
    here.reactor.watch(woken, lambda: called.append(1))
    here.reactor.tick(0)
    assert called == []
    os.write(wake, b"x")
    here.tick(3)
    assert called == [1, 1, 1]
    os.read(woken, 1)
    here.tick()
    assert called == [1, 1, 1]
    os.write(wake, b"x")
    here.reactor.unwatch(woken)
    here.tick()
    assert called == [1, 1, 1]
    os.close(woken)
    os.close(wake)


def test_unwatch_takes_effect_within_the_tick(here):
    pipes = [os.pipe() for _ in range(2)]
    called = []

    def first_wins(mine, other):
        called.append(mine)
        here.reactor.unwatch(other)

    (one, wake_one), (two, wake_two) = pipes
    here.reactor.watch(one, lambda: first_wins(one, two))
    here.reactor.watch(two, lambda: first_wins(two, one))
    os.write(wake_one, b"x")
    os.write(wake_two, b"x")
    here.reactor.tick(0)
    assert len(called) == 1
    for descriptor in (*pipes[0], *pipes[1]):
        os.close(descriptor)


def test_stop_writes_completed_responses(world):
    def serve(connection, frame):
        here.reactor.stop()
        return [bytes(frame)]

    here = world(serve)
    client = here.client().request(b"the last words")
    here.reactor.run()
    client.take()
    assert bytes(client.received[4:]) == b"the last words"


def test_idle_loop_sleeps_until_its_next_timer(world):
    here = world()
    here.quiet()
    called = []
    here.reactor.call_later(30, lambda: called.append(1))
    begun = here.reactor.counters["ticks"]
    while not called:
        here.reactor.tick()
    assert here.reactor.counters["ticks"] - begun <= 3


def test_idle_loop_stops_polling_after_a_moment(world):
    here = world()
    client = here.client()
    for number in range(200):
        assert client.request(b"%d" % number).response() == b"%d" % number
    used = time.process_time()
    here.reactor.tick(500)
    assert time.process_time() - used < 0.1, "it looked for an event instead of waiting for one"


def test_close_leaves_no_descriptor_open(world, open_descriptors):
    before = open_descriptors()
    here = world()
    clients = [here.client() for _ in range(5)]
    here.connected(5)
    here.reactor.close()
    for client in clients:
        client.close()
    assert open_descriptors() == before
