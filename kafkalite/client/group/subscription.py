"""Subscription: topics that a consumer reads, by name or by pattern.

Without a group all their partitions are read, in a group those that the group assigns.  There are
two kinds of pattern: text that starts with ^, a regular expression that is searched for in the
names of topics, as in librdkafka; and a compiled re.Pattern, which matches whole names, as in
Kafka.  Patterns are matched again with each metadata refresh (metadata.max.age.ms), or by the
broker, if the group's protocol leaves that to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TypeAlias

from kafkalite.client.group.membership import SubscribedTopics
from kafkalite.client.net.arguments import topic_names
from kafkalite.errors import InvalidConfig

PATTERN = "^"

RE2_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
"""Flags in RE2's syntax; those that concern other than ASCII text do not matter for topics."""

Topics: TypeAlias = str | re.Pattern[str] | Iterable[str | re.Pattern[str]]
"""One or several names or patterns of topics."""


class TopicPattern:
    """A regular expression over topic names; `is_whole`: it matches whole names."""

    def __init__(self, expression: re.Pattern[str], is_whole: bool) -> None:
        """Raise InvalidConfig for a flag that the broker's expressions do not have."""
        if expression.flags & re.VERBOSE:
            raise InvalidConfig(
                f"The topic pattern {expression.pattern!r} has the flag re.VERBOSE, which the"
                " broker's regular expressions do not have; write it without spaces and comments."
            )
        self.expression = expression
        self.is_whole = is_whole

    def matches(self, name: str) -> bool:
        found = self.expression.fullmatch if self.is_whole else self.expression.search
        return found(name) is not None

    @property
    def whole_regex(self) -> str:
        """The expression in RE2's syntax, for matches of whole names."""
        given = self.expression.flags
        flags = "".join(letter for flag, letter in RE2_FLAGS.items() if given & flag)
        words = f"(?{flags}){self.expression.pattern}" if flags else self.expression.pattern
        return f"(?:{words})" if self.is_whole else f".*(?:{words}).*"


class Subscription:
    """Names and patterns, and the topics that matched at the last metadata refresh."""

    def __init__(self, topics: Topics | None = None) -> None:
        """Raise InvalidConfig for a pattern that is not a regular expression."""
        given = [topics] if isinstance(topics, re.Pattern) else topics
        if given is not None and not isinstance(given, str | bytes) and isinstance(given, Iterable):
            given = list(given)
            compiled = [each for each in given if isinstance(each, re.Pattern)]
            given = [each for each in given if not isinstance(each, re.Pattern)]
        else:
            compiled = []
        names = topic_names(given)
        for each in compiled:
            if not isinstance(each.pattern, str):
                raise TypeError(f"a topic pattern must be of text, not {each.pattern!r}")
        self._names = [name for name in names if not name.startswith(PATTERN)]
        self._patterns = [
            TopicPattern(_compiled(name), False) for name in names if name.startswith(PATTERN)
        ]
        self._patterns += [TopicPattern(each, True) for each in compiled]
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

    @property
    def has_patterns(self) -> bool:
        return bool(self._patterns)

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are subscribed by name."""
        return tuple(self._names)

    def on_broker(self) -> SubscribedTopics:
        """Return the subscription of a member whose patterns the broker matches."""
        regex = "|".join(pattern.whole_regex for pattern in self._patterns)
        return SubscribedTopics(tuple(sorted(self._names)), regex or None)

    def on_client(self, existing: Iterable[str]) -> SubscribedTopics:
        """Return the subscription of a member that matches patterns with the existing names."""
        return SubscribedTopics(tuple(sorted({*self._names, *self._matching(existing)})))

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

    def _matching(self, topics: Iterable[str]) -> set[str]:
        return {name for name in topics if any(each.matches(name) for each in self._patterns)}


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidConfig(
            f"The topic pattern {pattern!r} is not a regular expression: {error}."
        ) from None
