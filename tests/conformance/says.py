"""A command of a story of Kafka's tools, and its expected output."""

from __future__ import annotations

from typing import NamedTuple


class Says(NamedTuple):
    """A command, and its expected output, error output and exit code.  With `soon`, it is repeated
    until they match, because an earlier command takes effect with a delay.  With `act`, it is no
    command but a request that no tool makes, by its name."""

    command: str
    prints: str = ""
    complains: str = ""
    code: int = 0
    given: str = ""
    soon: bool = False
    act: str = ""
