"""SeededBug: a bug that is put into a copy of the sources."""

from __future__ import annotations

from typing import NamedTuple


class SeededBug(NamedTuple):
    """A bug: what it is, the text it replaces, and the tests that catch it."""

    number: str
    what: str
    file: str
    old: str
    new: str
    tests: str
