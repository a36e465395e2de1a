"""Topic names: legal names, internal topics, and collisions in metric names.

A name becomes a directory (`name-partition`) and part of metric names, so the rules are strict:
letters, digits, `.`, `_` and `-`, at most 249 characters, and neither `.` nor `..`.  Two names that
differ only in `.` and `_` would share a metric, so the second is refused.
"""

from __future__ import annotations

import re

from kafkalite.errors import InvalidPartitions, InvalidTopicException

LENGTH_MAX = 249

DIRECTORY_LENGTH_MAX = 255
"""Limit of the file system for a topic's name, a dash and the partition index."""

CONSUMER_OFFSETS = "__consumer_offsets"
"""The topic that stores groups and their committed offsets."""

TRANSACTION_STATE = "__transaction_state"
"""The topic that stores the state of each transactional id."""

SHARE_GROUP_STATE = "__share_group_state"
"""The topic that stores the state of share partitions."""

INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
"""Topics that coordinators write to and clients may only read."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check(name: str) -> None:
    """Raise InvalidTopicException if the name is not a legal topic name."""
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


def check_count(name: str, partition_count: int) -> None:
    """Raise InvalidPartitions if the last partition's directory name would be too long."""
    digits = len(str(partition_count - 1))
    if len(name) + 1 + digits > DIRECTORY_LENGTH_MAX:
        raise InvalidPartitions(
            f"A topic whose name has {len(name)} characters has at most"
            f" {10 ** (DIRECTORY_LENGTH_MAX - 1 - len(name))} partitions: directory names would be"
            f" longer than {DIRECTORY_LENGTH_MAX}."
        )


def metric_name(name: str) -> str:
    """Return the name as it appears in metric names; two topics may not share it."""
    return name.replace(".", "_")
