"""Steps: a computation as a generator, so that a state machine can spread it over many decisions.

    def sum_of(entries):
        total = 0
        for _, part in parts(entries):
            total += sum(part)
            yield len(part)             the cost of what was done since the last yield
        return total

A cost is the number of entries that were processed, each some tenths of a microsecond.  It depends
on the input alone, not on the clock, so a computation takes the same steps every time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias, TypeVar

PART_SIZE = 4_000
"""Number of entries that are processed without a yield."""

E = TypeVar("E")
T = TypeVar("T")

Steps: TypeAlias = Generator[int, None, T]


def parts(entries: Sequence[E]) -> Iterator[tuple[int, Sequence[E]]]:
    """Yield `entries` in parts of PART_SIZE, each with the index of its first entry."""
    for begin in range(0, len(entries), PART_SIZE):
        yield begin, entries[begin : begin + PART_SIZE]


def result_of(steps: Steps[T]) -> T:
    """Run a computation to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result
