"""ConsumerGroupSettings: the configuration in force of one group of the consumer protocol."""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.config.group import (
    CONSUMER_ASSIGNMENT_INTERVAL_MS,
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
)
from kafkalite.config.group_bounds import CONSUMER_BOUNDED_KEYS, clamped
from kafkalite.config.settings import Settings


class ConsumerGroupSettings(NamedTuple):
    """The intervals of a group."""

    session_timeout_ms: int = CONSUMER_SESSION_TIMEOUT_MS.default
    heartbeat_interval_ms: int = CONSUMER_HEARTBEAT_INTERVAL_MS.default
    assignment_interval_ms: int = CONSUMER_ASSIGNMENT_INTERVAL_MS.default


def settings_in_force(settings: Settings) -> ConsumerGroupSettings:
    """Return the configuration of a group with these settings (Settings.for_group), clamped."""
    return ConsumerGroupSettings(
        *(clamped(settings, bounded) for bounded in CONSUMER_BOUNDED_KEYS)
    )
