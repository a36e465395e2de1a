"""Topic patterns: the regular expressions to which members of consumer groups subscribe (KIP-848).

    text ──check_pattern──▶ valid ──resolve, in steps──▶ the names of the topics that match

A pattern has RE2's syntax and matches whole names.  Its cost is bounded: WORK_MAX for all names
together, so that no pattern keeps the event loop busy for long; a pattern that needs more matches
no topic at all.

Left out: the syntax that regular_syntax.py leaves out, which Kafka's library accepts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence

from kafkalite.coordination.regular_expression import RegularExpression
from kafkalite.errors import InvalidRegularExpression

PATTERN_SIZE_MAX = 1_024
"""Maximum size of a pattern in bytes."""
PATTERNS_MAX = 100
"""Maximum number of different patterns of a group."""
WORK_MAX = 500_000
"""Maximum number of states that matching a pattern with all names may visit: half a second."""

LOGGED_LENGTH_MAX = 100

log = logging.getLogger("kafkalite.broker")


def check_pattern(text: str) -> None:
    """Raise InvalidRegularExpression unless members may subscribe to this pattern."""
    _compile(text)


def _compile(text: str) -> RegularExpression:
    size = len(text.encode())
    if size > PATTERN_SIZE_MAX:
        raise InvalidRegularExpression(
            f"The regular expression has {size} bytes; at most {PATTERN_SIZE_MAX} are allowed."
        )
    return RegularExpression(text)


def resolve(
    patterns: Iterable[str], names: Sequence[str], may_describe: Callable[[str], bool]
) -> Generator[None, None, dict[str, list[str]]]:
    """Return the names that match each pattern, of topics that the principal may describe.

    Yields between steps.  The names of a pattern are in the order of `names`.
    """
    resolved = {}
    allowed: dict[str, bool] = {}
    for text in patterns:
        try:
            matching = yield from _matching(_compile(text), names)
        except InvalidRegularExpression as error:
            # Too costly, or from the log of a broker that has another library.
            log.warning(
                "Regular expression matches no topic: %s pattern=%r",
                error, text[:LOGGED_LENGTH_MAX],
            )  # fmt: skip
            matching = []
        allowed.update((name, may_describe(name)) for name in matching if name not in allowed)
        resolved[text] = [name for name in matching if allowed[name]]
    return resolved


def _matching(
    expression: RegularExpression, names: Sequence[str]
) -> Generator[None, None, list[str]]:
    matching = []
    for name in names:
        if (yield from expression.matches(name)):
            matching.append(name)
        if expression.work > WORK_MAX:
            raise InvalidRegularExpression(
                f"The regular expression is too costly: its matches visit {WORK_MAX} states."
            )
        yield
    return matching
