"""The memory orders of ring_atomics.h are sufficient, and each order and each fence is needed.

ThreadSanitizer checks what the memory model guarantees, not what this processor does: it detects a
missing release on x86 too, where nothing fails without it.  It does not model fences; that they
are needed is shown by removing them and counting the failures.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
RACE = 66

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: cc, gcc, clang")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Return a function that builds one of the C programs with given compiler arguments."""
    directory = tmp_path_factory.mktemp("orders")

    def built(source, *words):
        made = directory / f"{source}{len(list(directory.iterdir()))}"
        command = [COMPILER, "-std=gnu11", "-O2", "-g", "-pthread", f"-I{ROOT / 'ext/net'}", *words]
        command += [str(HERE / f"{source}.c"), "-o", str(made)]
        came = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert came.returncode == 0, came.stderr
        return made

    return built


def play(made, count):
    return subprocess.run(
        [made, str(count)],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "TSAN_OPTIONS": f"exitcode={RACE}"},
    )


@pytest.fixture(scope="module")
def watched(build):
    """Return a function that builds under ThreadSanitizer; skip where it is missing."""
    words = "-fsanitize=thread", "-Wno-tsan"
    try:
        came = play(build("ring_orders", *words), 1)
    except AssertionError as fault:
        pytest.skip(f"{COMPILER} has no ThreadSanitizer here: {str(fault)[-200:]}")
    if came.returncode != 0:
        pytest.skip(f"ThreadSanitizer does not run here: {came.stderr[-200:]}")
    return lambda *more: build("ring_orders", *words, *more)


def test_ring_has_no_data_race(watched):
    came = play(watched(), 60_000)
    assert came.returncode == 0, came.stderr[:2_000]


@pytest.mark.parametrize("order", ["RING_ACQUIRE", "RING_RELEASE"])
def test_relaxed_memory_order_is_a_data_race(watched, order):
    came = play(watched(f"-D{order}=memory_order_relaxed"), 2_000)
    assert came.returncode == RACE and "data race" in came.stderr, came.stderr[:2_000]


def missed(made, count):
    came = play(made, count)
    assert came.returncode == 0, came.stderr
    return int(came.stdout)


def test_sleep_and_publish_never_miss_each_other(build):
    assert missed(build("ring_fences"), 200_000) == 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it takes two processors")
def test_sleep_and_publish_without_fences_miss_each_other(build):
    unfenced = build("ring_fences", "-DRING_FENCE=memory_order_relaxed")
    assert any(missed(unfenced, 200_000) for _ in range(20))


def test_two_threads_lose_no_wakeup(build):
    came = play(build("ring_orders"), 200_000)
    assert came.returncode == 0, came.stderr


@pytest.mark.faults
def test_two_threads_lose_no_wakeup_in_ten_million_frames(build):
    came = play(build("ring_orders"), 10_000_000)
    assert came.returncode == 0, came.stderr
    assert missed(build("ring_fences"), 10_000_000) == 0
