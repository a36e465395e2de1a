"""Deadlines and retry backoff."""

from kafkalite.client.net.deadline import Backoff, Deadline, backoff_s
from kafkalite.errors import NetworkException


def test_backoff_doubles_up_to_its_limit_with_jitter():
    for failures, longest_s in [(1, 0.05), (2, 0.1), (3, 0.2), (6, 1.0), (60, 1.0), (10_000, 1.0)]:
        rests = [backoff_s(failures, 50, 1000) for _ in range(100)]
        assert all(longest_s * 0.8 <= rest <= longest_s * 1.2 for rest in rests)
        assert max(rests) - min(rests) > longest_s * 0.1


def test_success_resets_backoff():
    backoff = Backoff(60_000, 600_000)
    assert backoff.left_s == 0
    for _ in range(3):
        backoff.failed(NetworkException("away"))
    assert backoff.left_s > 150
    assert str(backoff.last_error()) == "away"
    backoff.succeeded()
    assert backoff.left_s == 0
    backoff.failed(NetworkException())
    assert 40 < backoff.left_s <= 72


def test_deadline_is_limited_and_extended():
    deadline = Deadline(1000)
    assert 900 < deadline.left_s <= 1000
    assert deadline.within(10).left_s <= 10
    assert deadline.within(10_000) is deadline
    assert 900 < Deadline(10).at_least(1000).left_s <= 1000
    assert deadline.at_least(10) is deadline
    assert Deadline(0).passed
    assert Deadline(-5).left_s == 0
