"""Topic patterns of Kafka's tools: a regular expression for the whole name."""

from __future__ import annotations

import re
from collections.abc import Callable

from kafkalite.errors import Refusal

Matches = Callable[[str], object]


def matcher(pattern: str) -> Matches:
    """Return a function that matches names; commas separate patterns, quotes are ignored."""
    expression = pattern.strip().replace(",", "|").replace(" ", "")
    try:
        return re.compile(expression.lstrip("\"'").rstrip("\"'")).fullmatch
    except re.error as error:
        raise Refusal(f"{pattern!r} is not a valid regular expression: {error}") from None
