"""Topic names: which are legal, which are the broker's own, which two cannot live together.

A name becomes a directory (`name-partition`) and part of metric names, so the rules are strict:
letters, digits, `.`, `_` and `-`, at most 249 of them, and neither `.` nor `..`.  Two names that
differ only in `.` against `_` would be one metric, so the second is refused.
"""

from __future__ import annotations

import re

from kafkalite.errors import InvalidTopicException

LENGTH_MAX = 249

CONSUMER_OFFSETS = "__consumer_offsets"
"""Where groups and their offsets are kept."""

INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, "__transaction_state", "__share_group_state"})
"""Topics that coordinators write and clients only read."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check(name: str) -> None:
    """Refuse a name that no topic may have."""
    if not name:
        raise InvalidTopicException("A topic name cannot be empty.")
    if name in (".", ".."):
        raise InvalidTopicException(f"A topic cannot be called {name!r}: it would be a directory.")
    if len(name) > LENGTH_MAX:
        raise InvalidTopicException(
            f"A topic name has at most {LENGTH_MAX} characters; this one has {len(name)}."
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicException(
            f"The topic name {name!r} has characters other than letters, digits, '.', '_' and '-'."
        )


def metric_name(name: str) -> str:
    """What becomes of a name inside metric names; two topics may not share it."""
    return name.replace(".", "_")
