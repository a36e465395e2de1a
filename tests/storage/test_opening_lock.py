"""OpeningLock: one thread opens logs; other threads get the lock only during a long scan."""

import threading

from kafkalite.storage.files.opening_lock import SCANNED_FROM, OpeningLock


def is_free_to_others(lock):
    """Return whether another thread gets the lock at once."""
    got = []

    def take():
        if lock._lock.acquire(blocking=False):
            lock._lock.release()
            got.append(True)

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return bool(got)


def test_lock_is_kept_during_a_short_scan():
    lock = OpeningLock()
    with lock:
        with lock.scanning(SCANNED_FROM - 1):
            assert not is_free_to_others(lock)
        assert not is_free_to_others(lock)
    assert is_free_to_others(lock)


def test_lock_is_released_during_a_long_scan_and_taken_again():
    lock = OpeningLock()
    with lock:
        with lock.scanning(SCANNED_FROM):
            assert is_free_to_others(lock)
        assert not is_free_to_others(lock)
    assert is_free_to_others(lock)


def test_lock_is_taken_again_after_a_scan_that_fails():
    lock = OpeningLock()
    with lock:
        try:
            with lock.scanning(SCANNED_FROM):
                raise OSError
        except OSError:
            assert not is_free_to_others(lock)
    assert is_free_to_others(lock)
