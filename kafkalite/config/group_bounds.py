"""Bounds of the keys of groups: the broker's minimum and maximum of a value of one group.

A value that is set outside of the bounds is refused, with Kafka's message.  The bounds may change
later; then the value is clamped.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.config.group import (
    CONSUMER_ASSIGNMENT_INTERVAL_MS,
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
    GROUP_CONSUMER_MAX_ASSIGNMENT_INTERVAL_MS,
    GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS,
    GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS,
    GROUP_CONSUMER_MIN_ASSIGNMENT_INTERVAL_MS,
    GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS,
    GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS,
)
from kafkalite.config.key import ConfigKey
from kafkalite.config.settings import Settings, Source
from kafkalite.config.share_group import (
    GROUP_SHARE_MAX_DELIVERY_COUNT_LIMIT,
    GROUP_SHARE_MAX_HEARTBEAT_INTERVAL_MS,
    GROUP_SHARE_MAX_PARTITION_MAX_RECORD_LOCKS,
    GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS,
    GROUP_SHARE_MAX_SESSION_TIMEOUT_MS,
    GROUP_SHARE_MIN_DELIVERY_COUNT_LIMIT,
    GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS,
    GROUP_SHARE_MIN_PARTITION_MAX_RECORD_LOCKS,
    GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS,
    GROUP_SHARE_MIN_SESSION_TIMEOUT_MS,
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_HEARTBEAT_INTERVAL_MS,
    SHARE_PARTITION_MAX_RECORD_LOCKS,
    SHARE_RECORD_LOCK_DURATION_MS,
    SHARE_SESSION_TIMEOUT_MS,
)
from kafkalite.errors import InvalidConfig


class BoundedKey(NamedTuple):
    """A key of groups, and the broker's keys of its bounds."""

    key: ConfigKey[int]
    low: ConfigKey[int]
    high: ConfigKey[int]


CONSUMER_BOUNDED_KEYS = (
    BoundedKey(
        CONSUMER_SESSION_TIMEOUT_MS,
        GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS,
        GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS,
    ),
    BoundedKey(
        CONSUMER_HEARTBEAT_INTERVAL_MS,
        GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS,
        GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS,
    ),
    BoundedKey(
        CONSUMER_ASSIGNMENT_INTERVAL_MS,
        GROUP_CONSUMER_MIN_ASSIGNMENT_INTERVAL_MS,
        GROUP_CONSUMER_MAX_ASSIGNMENT_INTERVAL_MS,
    ),
)
"""In the order of the fields of ConsumerGroupSettings."""

SHARE_BOUNDED_KEYS = (
    BoundedKey(
        SHARE_SESSION_TIMEOUT_MS,
        GROUP_SHARE_MIN_SESSION_TIMEOUT_MS,
        GROUP_SHARE_MAX_SESSION_TIMEOUT_MS,
    ),
    BoundedKey(
        SHARE_HEARTBEAT_INTERVAL_MS,
        GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS,
        GROUP_SHARE_MAX_HEARTBEAT_INTERVAL_MS,
    ),
    BoundedKey(
        SHARE_RECORD_LOCK_DURATION_MS,
        GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS,
        GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS,
    ),
    BoundedKey(
        SHARE_DELIVERY_COUNT_LIMIT,
        GROUP_SHARE_MIN_DELIVERY_COUNT_LIMIT,
        GROUP_SHARE_MAX_DELIVERY_COUNT_LIMIT,
    ),
    BoundedKey(
        SHARE_PARTITION_MAX_RECORD_LOCKS,
        GROUP_SHARE_MIN_PARTITION_MAX_RECORD_LOCKS,
        GROUP_SHARE_MAX_PARTITION_MAX_RECORD_LOCKS,
    ),
)
"""Those of share groups, in the order in which coordination/share/share_settings.py reads them."""


def clamped(settings: Settings, bounded: BoundedKey) -> int:
    """Return the value of a key, within the broker's bounds."""
    key, low, high = bounded
    return max(min(settings[key], settings[high]), settings[low])


def check_group_configs(settings: Settings) -> None:
    """Raise InvalidConfig if a group's values contradict each other or the broker's bounds."""
    for key, low, high in (*CONSUMER_BOUNDED_KEYS, *SHARE_BOUNDED_KEYS):
        if settings.source(key) is not Source.GROUP:
            continue
        if settings[key] < settings[low]:
            raise InvalidConfig(f"{key.name} must be greater than or equal to {low.name}")
        if settings[key] > settings[high]:
            raise InvalidConfig(f"{key.name} must be less than or equal to {high.name}")
    for session, heartbeat in (
        (CONSUMER_SESSION_TIMEOUT_MS, CONSUMER_HEARTBEAT_INTERVAL_MS),
        (SHARE_SESSION_TIMEOUT_MS, SHARE_HEARTBEAT_INTERVAL_MS),
    ):
        if settings[session] <= settings[heartbeat]:
            raise InvalidConfig(f"{session.name} must be greater than {heartbeat.name}")
