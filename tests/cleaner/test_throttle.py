"""The rate limit of the cleaner, by a clock that the test moves."""

from __future__ import annotations

from kafkalite.cleaner.throttle import WINDOW_S, Throttle


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_unlimited_throttle_never_waits():
    throttle = Throttle(Clock())
    assert [throttle.spend(1 << 30) for _ in range(5)] == [0.0] * 5


def test_average_over_many_windows_is_the_limit():
    clock = Clock()
    throttle = Throttle(clock)
    throttle.bytes_per_second = 1_000
    spent = 0
    while clock.now < 110:
        clock.now += 0.001
        clock.now += throttle.spend(50)
        spent += 50
    assert 0.95 <= spent / (clock.now - 100) / 1_000 <= 1.05


def test_slow_reader_does_not_wait():
    clock = Clock()
    throttle = Throttle(clock)
    throttle.bytes_per_second = 1_000
    for _ in range(100):
        clock.now += 0.1
        assert throttle.spend(90) == 0.0


def test_large_step_waits_until_the_average_is_reached():
    clock = Clock()
    throttle = Throttle(clock)
    throttle.bytes_per_second = 1_000
    clock.now += WINDOW_S
    assert round(throttle.spend(5_300), 6) == 5.0
