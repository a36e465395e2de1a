"""Every difference between what Kafka's tools print and what ours do, with its reason.

A difference that is not listed here is a bug; one that is listed and no longer occurs is a lie,
and fails as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.oracle.shell_recording import Both


class Listed(NamedTuple):
    """The steps that differ, by their words, and why."""

    steps: str
    why: str


FAILED = "what failed is exit code 1; theirs says so and ends with 0"
OWN_WORDS = "what is wrong is said in our own words"
FLAGS = "a command line that cannot be read is refused on stderr, before a broker is asked"
DIRTY = "what does nothing is refused; theirs warns, or is silent, and goes on"

DIFFERENCES: tuple[Listed, ...] = ()


def judge(found: Iterable[Both], listed: Iterable[Listed]) -> tuple[list[Both], list[Listed]]:
    """The differing steps that nobody listed, and the entries that nobody needed."""
    unlisted, needed = [], set()
    for both in found:
        reasons = [entry for entry in listed if fnmatchcase(both.words, entry.steps)]
        needed.update(reasons)
        if not reasons:
            unlisted.append(both)
    return unlisted, [entry for entry in listed if entry not in needed]
