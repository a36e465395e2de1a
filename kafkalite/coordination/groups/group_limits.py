"""GroupLimits: the limits of all groups, from the broker's configuration.

Those of one group of the consumer protocol are in group_settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafkalite.coordination.groups.assignment.assignors import Assignor


class GroupLimits(NamedTuple):
    """The limits of a group coordinator."""

    min_session_ms: int
    max_session_ms: int
    initial_rebalance_delay_ms: int
    max_size: int
    metadata_size_max: int
    retention_ms: int
    retention_check_ms: int
    consumer_max_size: int
    consumer_assignors: Mapping[str, Assignor]
    """By name; the first one is used if no member names any."""
    migration_policy: str
    pattern_refresh_ms: int
