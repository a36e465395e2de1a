"""Subscription: topics of which a consumer reads all partitions, by name or by pattern.

A topic that starts with ^ is a pattern, as in librdkafka: a regular expression that is searched for
in the names of all topics.  Patterns are matched again with each metadata refresh
(metadata.max.age.ms).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from kafkalite.client.net.arguments import topic_names
from kafkalite.errors import InvalidConfig

PATTERN = "^"


class Subscription:
    """Names and patterns, and the topics that matched at the last metadata refresh."""

    def __init__(self, topics: str | Iterable[str] | None = None) -> None:
        """Raise InvalidConfig for a pattern that is not a regular expression."""
        given = topic_names(topics)
        self._names = [name for name in given if not name.startswith(PATTERN)]
        self._patterns = [_compiled(name) for name in given if name.startswith(PATTERN)]
        self._matched: set[str] = set()
        self._new_topics: set[str] = set()
        self._was_matched = False
        self.is_due = bool(self._patterns)
        """True if the names of all topics must be requested."""

    def __bool__(self) -> bool:
        return bool(self._names or self._patterns)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read, as far as they are known."""
        return (*self._names, *sorted(self._matched.difference(self._names)))

    def is_pattern_only(self, topic: str) -> bool:
        """Return whether a topic is subscribed by pattern only, and so not auto-created."""
        return topic in self._matched and topic not in self._names

    def is_new(self, topic: str) -> bool:
        """Return whether a topic appeared after the patterns were first matched."""
        return topic in self._new_topics

    def expire(self) -> None:
        """Mark the patterns to be matched again."""
        self.is_due = bool(self._patterns)

    def match_known(self, topics: Collection[str]) -> None:
        """Match the patterns with known names until the names of all topics are known."""
        self._matched = self._matching(topics)

    def match(self, existing: Collection[str]) -> None:
        """Match the patterns with the names of all topics."""
        matched = self._matching(existing)
        if self._was_matched:
            self._new_topics |= matched - self._matched
        self._new_topics &= matched
        self._matched = matched
        self._was_matched = True
        self.is_due = False

    def _matching(self, topics: Collection[str]) -> set[str]:
        return {name for name in topics if any(each.search(name) for each in self._patterns)}


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidConfig(
            f"The topic pattern {pattern!r} is not a regular expression: {error}."
        ) from None
