"""ShareGroupSettings: the configuration in force of one share group."""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.config.group_bounds import SHARE_BOUNDED_KEYS, clamped
from kafkalite.config.settings import Settings
from kafkalite.config.share_group import (
    ERRORS_DEADLETTERQUEUE_COPY_RECORD_ENABLE,
    ERRORS_DEADLETTERQUEUE_TOPIC_NAME,
    GROUP_SHARE_MAX_SIZE,
    SHARE_AUTO_OFFSET_RESET,
    SHARE_HEARTBEAT_INTERVAL_MS,
    SHARE_ISOLATION_LEVEL,
    SHARE_RENEW_ACKNOWLEDGE_ENABLE,
    SHARE_SESSION_TIMEOUT_MS,
)
from kafkalite.coordination.share.acquisition import ShareLimits

DELIVERS_COMMITTED = "read_committed"


class ShareGroupSettings(NamedTuple):
    """The settings of a share group, within the broker's bounds."""

    session_timeout_ms: int = SHARE_SESSION_TIMEOUT_MS.default
    heartbeat_interval_ms: int = SHARE_HEARTBEAT_INTERVAL_MS.default
    limits: ShareLimits = ShareLimits()
    offset_reset: str = SHARE_AUTO_OFFSET_RESET.default
    is_read_committed: bool = False
    max_size: int = GROUP_SHARE_MAX_SIZE.default
    dead_letter_topic: str = ""
    copies_dead_letters: bool = False


def share_settings(settings: Settings, *, has_dead_letters: bool = False) -> ShareGroupSettings:
    """Return the configuration of a group with these settings (Settings.for_group), clamped.

    `has_dead_letters` is true if the cluster has finalized a level of share.version with them.
    """
    dead_letter_topic = settings[ERRORS_DEADLETTERQUEUE_TOPIC_NAME] if has_dead_letters else ""
    session_timeout_ms, heartbeat_interval_ms, lock_ms, delivery_count_max, in_flight_max = (
        clamped(settings, bounded) for bounded in SHARE_BOUNDED_KEYS
    )
    return ShareGroupSettings(
        session_timeout_ms,
        heartbeat_interval_ms,
        ShareLimits(
            lock_ms,
            delivery_count_max,
            in_flight_max,
            settings[SHARE_RENEW_ACKNOWLEDGE_ENABLE],
            bool(dead_letter_topic),
        ),
        settings[SHARE_AUTO_OFFSET_RESET],
        settings[SHARE_ISOLATION_LEVEL] == DELIVERS_COMMITTED,
        settings[GROUP_SHARE_MAX_SIZE],
        dead_letter_topic,
        settings[ERRORS_DEADLETTERQUEUE_COPY_RECORD_ENABLE],
    )
