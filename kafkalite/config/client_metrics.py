"""Keys of a client-metrics subscription (KIP-714), which selects the metrics that clients push.

A subscription has a name and is not created explicitly: it exists while one of its keys is set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kafkalite.config.key import Check, Scope, Type, UpdateMode, between, quoted
from kafkalite.errors import InvalidConfig

CLIENT_METRICS = Scope("client-metrics subscription", UpdateMode.CLUSTER_WIDE)

SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""The client properties that a pattern may match."""

PATTERN_LENGTH_MAX = 200
REPETITIONS_MAX = 3
"""Patterns are matched on the one event loop of a node.  Without groups and with so few repetitions
a mismatch is found quickly; other patterns may take practically forever (backtracking)."""

LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Matches the parts of a pattern that match one character: an escape, or a set of characters."""


def parse_match(entries: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Return the patterns by selector, which must match in full; raise InvalidConfig if invalid."""
    patterns = {}
    for entry in entries:
        selector, equals, text = entry.partition("=")
        selector = selector.strip()
        if not equals or selector not in SELECTORS:
            raise InvalidConfig(
                f"An entry of match must be SELECTOR=PATTERN with one of the selectors"
                f" {', '.join(SELECTORS)}, not {quoted(entry)}."
            )
        if selector in patterns:
            raise InvalidConfig(f"match has the selector {selector} more than once.")
        _check_quick(text)
        try:
            patterns[selector] = re.compile(text.strip())
        except (re.error, OverflowError, RecursionError) as error:
            words = f"{quoted(text)} is not a regular expression: {error}"
            raise InvalidConfig(f"match: {words}.") from None
    return patterns


def _check_quick(text: str) -> None:
    """Raise InvalidConfig for a pattern whose mismatches may take a long time."""
    if len(text) > PATTERN_LENGTH_MAX:
        raise InvalidConfig(f"match: a pattern has at most {PATTERN_LENGTH_MAX} characters.")
    bare = LITERAL.sub("", text)
    if "(" in bare and ")" in bare:
        raise InvalidConfig(
            f"match: {quoted(text)} has a group; list each alternative, as in x-a|x-b."
        )
    if sum(map(bare.count, "*+?{")) > REPETITIONS_MAX:
        raise InvalidConfig(
            f"match: {quoted(text)} has more than {REPETITIONS_MAX} repetitions (*, +, ? or {{)."
        )


METRICS = CLIENT_METRICS.declare(
    "metrics", Type.LIST, (),
    """Prefixes of the names of the metrics that clients push; `*` selects all of them, and an empty
    list none.""",
)
INTERVAL_MS = CLIENT_METRICS.declare(
    "interval.ms", Type.INT, 300_000,
    """Interval of the pushes.""",
    check=between(100, 3_600_000),
)
MATCH = CLIENT_METRICS.declare(
    "match", Type.LIST, (),
    """Clients that push: selector=pattern, all of which must match; an empty list selects every
    client.  A pattern is a regular expression without groups and with few repetitions.""",
    check=Check("selectors with patterns", lambda entries: parse_match(entries) is not None),
)
