"""Topics named by pattern, as Kafka's tools name them: a regular expression for the whole name."""

from __future__ import annotations

import re
from collections.abc import Callable

from kafkalite.errors import Refusal

Matches = Callable[[str], object]


def matcher(pattern: str) -> Matches:
    """Whether a name is meant; commas separate patterns, quotes around them do not count."""
    plain = pattern.strip().replace(",", "|").replace(" ", "")
    try:
        return re.compile(plain.lstrip("\"'").rstrip("\"'")).fullmatch
    except re.error as fault:
        raise Refusal(f"{pattern!r} is no regular expression: {fault}") from None
