"""Ctrl-C at any moment leaves no lock behind, and consumers usable."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from kafkalite import Consumer, Producer
from kafkalite._ext.locking import LockGuard
from kafkalite.testing import Broker

INTERRUPTS = 100
CALLS_MAX = 1_000_000


@pytest.fixture(autouse=True)
def interrupt() -> Iterator[None]:
    """Give SIGALRM the handler of Ctrl-C."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


def interrupt_calls(call: Callable[[], object], check: Callable[[], object]) -> None:
    """Interrupt the calls INTERRUPTS times, and check after each.

    An interrupt that meets a finalizer is raised nowhere: Python reports it to sys.unraisablehook.
    The finalizer may be one of an earlier test, whose garbage is collected during a call.
    """
    ignored: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda report: ignored.append(report.exc_type))
        for number in range(INTERRUPTS):
            ignored.clear()
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + number * 1e-6)
                for _ in range(CALLS_MAX):
                    call()
                    if KeyboardInterrupt in ignored:
                        break
                else:
                    pytest.fail("the interrupt was raised nowhere")
            check()


def test_interrupt_during_a_finalizer_is_counted():
    class Finalized:
        def __del__(self) -> None:
            for _ in range(10_000):
                pass

    interrupt_calls(Finalized, lambda: None)


@pytest.mark.parametrize("timeout_s", [None, 0])
def test_interrupted_lock_guard_releases_its_lock(timeout_s):
    lock = threading.Lock()

    def call():
        with LockGuard(lock, timeout_s) as is_locked:
            assert is_locked

    def check():
        assert not lock.locked()

    interrupt_calls(call, check)


def test_lock_guard_without_the_lock_does_not_release_it():
    lock = threading.Lock()
    with LockGuard(lock), LockGuard(lock, 0) as is_locked:
        assert not is_locked
    assert not lock.locked()
    with LockGuard(lock), LockGuard(lock, 0.001) as is_locked:
        assert not is_locked
    with pytest.raises(ZeroDivisionError), LockGuard(lock):
        raise ZeroDivisionError
    assert not lock.locked()


def test_lock_guard_returns_what_is_read_once_it_has_the_lock():
    lock = threading.Lock()

    def read(is_locked):
        return is_locked, lock.locked()

    with LockGuard(lock, 0, read) as first, LockGuard(lock, 0, read) as second:
        assert (first, second) == ((True, True), (False, True))
    assert not lock.locked()


def test_lock_guard_releases_the_lock_if_its_function_raises():
    lock = threading.Lock()

    def fail(is_locked):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), LockGuard(lock, None, fail):
        raise AssertionError("the body is not entered")
    assert not lock.locked()


def test_lock_guard_waits_for_another_thread():
    lock = threading.Lock()
    lock.acquire()
    threading.Timer(0.01, lock.release).start()
    with LockGuard(lock) as is_locked:
        assert is_locked


# A socket that was created and not yet stored at the interrupt is closed with a warning.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_consumer_stays_usable():
    with Broker() as broker:
        topic = broker.topic(1)
        with Consumer(broker.bootstrap, topics=[topic]) as consumer:
            interrupt_calls(lambda: consumer.poll(0), lambda: consumer.poll(0))
            with Producer(broker.bootstrap) as producer:
                producer.send(topic, b"x").result(30)
            message = consumer.poll(30)
            assert message is not None and message.value == b"x"
