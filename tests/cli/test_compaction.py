"""The line of `kafkalite topic compact` while it waits for the log cleaner."""

from __future__ import annotations

import pytest

from kafkalite.cli import compaction
from kafkalite.cli.compaction import CompactionLine, PartitionAddress
from kafkalite.protocol.schemas.cleaning import CleaningState

ADDRESS = PartitionAddress("prices", bytes(16), 0, 1)


class Seconds:
    """A clock that the test advances."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Seconds:
    seconds = Seconds()
    monkeypatch.setattr(compaction, "time", seconds)
    return seconds


def status(**fields: int) -> dict[str, int]:
    return {"state": CleaningState.CLEANING, "log_size": 5, "passes": 0, **fields}


def test_without_a_terminal_a_line_says_that_nothing_changes(clock, capsys):
    with CompactionLine(2) as line:
        for _ in range(4):
            line.draw(ADDRESS, status())
            clock.now += 5
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith("0/2 partitions; prices-0: cleaning; no change for 10 s: ")
    assert "kafkalite doctor" in printed


def test_without_a_terminal_nothing_is_printed_while_something_changes(clock, capsys):
    with CompactionLine(2) as line:
        for passes in range(10):
            line.draw(ADDRESS, status(passes=passes))
            clock.now += 9
    assert capsys.readouterr().err == ""


def test_on_a_terminal_the_line_is_redrawn(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with CompactionLine(2) as line:
        line.draw(ADDRESS, status())
        clock.now += 1
        line.draw(ADDRESS, status())
        line.draw(ADDRESS, status())
    assert capsys.readouterr().err == "\r\x1b[K0/2 partitions; prices-0: cleaning\r\x1b[K"
