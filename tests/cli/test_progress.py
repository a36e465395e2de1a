"""Progress messages of long commands."""

from __future__ import annotations

import io
import sys

import pytest

from kafkalite.cli.progress import Progress, format_size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        (5 << 30, "5.0 GiB"),
        (5000 << 30, "5,000.0 GiB"),
    ],
)
def test_size_is_printed_in_binary_units(size, words):
    assert format_size(size) == words


@pytest.fixture
def clock(monkeypatch):
    """The time, as a list whose only element can be set."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_summary_rate_ends_with_the_work(clock):
    with Progress("to t") as progress:
        progress.add(10, 100)
        clock[0] += 2
        progress.add(10, 100)
    clock[0] += 100
    assert progress.summary() == "20 records, 200 B in 2.0 s (10 records/s)"


@pytest.mark.parametrize(
    ("stream", "drawn", "seconds", "appears"),
    [
        (Terminal, True, 2, True),
        (Terminal, True, 0.5, False),
        (Terminal, False, 2, False),
        (io.StringIO, True, 2, False),
    ],
)
def test_progress_bar_appears_for_long_work_on_a_terminal(
    stream, drawn, seconds, appears, clock, monkeypatch
):
    monkeypatch.setattr(sys, "stderr", stream())
    with Progress("to t", total_count=2, drawn=drawn) as progress:
        clock[0] += seconds
        progress.add(1, 5)
        assert (progress.bar is not None) == appears
    assert ("to t" in sys.stderr.getvalue()) == appears
