"""PatternRefresh: the lookups of the topics of regular expressions, and when they are due.

    heartbeat ──due──▶ patterns ──topic_patterns.resolve──▶ resolved ──▶ records

One lookup is for all expressions of a group.  It begins with a heartbeat, if none is in progress
and

    an expression has no topics yet                  1 s after the last lookup
    topics were created                              10 s after it
    a principal's authorizations may have changed    group.consumer.regex.refresh.interval.ms after

Deleted topics need no lookup: a group leaves out what does not exist.

All of it is soft state, which is empty after a load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafkalite.coordination.groups.assignment.topic_patterns import PATTERNS_MAX, check_pattern
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.errors import InvalidRegularExpression

UNRESOLVED_INTERVAL_MS = 1_000
CREATED_INTERVAL_MS = 10_000
LOOKUP_MS_MAX = 60_000
"""A lookup without a result after this time has failed."""


@dataclass(slots=True)
class Lookup:
    """The last lookup of a group."""

    begun_ms: int
    created_count: int
    """The number of changes of topics before it."""
    is_running: bool = True


class PatternRefresh:
    """The lookups of all groups of one coordinator."""

    def __init__(self) -> None:
        self._lookups: dict[str, Lookup] = {}
        self._created_count = 0

    def topics_changed(self) -> None:
        """Note that topics may have been created."""
        self._created_count += 1

    def due(self, group: ConsumerGroup, refresh_ms: int, now_ms: int) -> Sequence[str]:
        """Return the expressions to look up now, and note that their lookup has begun."""
        if not group.pattern_members:
            self._lookups.pop(group.group_id, None)
            return ()
        last = self._lookups.get(group.group_id)
        if last is not None and now_ms - last.begun_ms < self._wait_ms(group, last, refresh_ms):
            return ()
        self._lookups[group.group_id] = Lookup(now_ms, self._created_count)
        return [*group.pattern_members]

    def _wait_ms(self, group: ConsumerGroup, last: Lookup, refresh_ms: int) -> int:
        """Return the time between the last lookup and the next one."""
        if last.is_running:
            return LOOKUP_MS_MAX
        if not group.pattern_members.keys() <= group.patterns.keys():
            return UNRESOLVED_INTERVAL_MS
        if last.created_count != self._created_count:
            return CREATED_INTERVAL_MS
        return refresh_ms

    def end(self, group_id: str) -> None:
        """Note that a lookup has ended."""
        last = self._lookups.get(group_id)
        if last is not None:
            last.is_running = False

    def forget(self, group_id: str) -> None:
        """Drop the lookup of a group that was deleted, or has no expressions left."""
        self._lookups.pop(group_id, None)


def check_new_pattern(group: ConsumerGroup, pattern: str | None) -> None:
    """Raise InvalidRegularExpression unless a member may subscribe to this expression."""
    if not pattern or pattern in group.pattern_members:
        return
    check_pattern(pattern)
    if len(group.pattern_members) >= PATTERNS_MAX:
        raise InvalidRegularExpression(
            f"The members of a group use at most {PATTERNS_MAX} different regular expressions."
        )
