"""How far streams are behind: the figures of Spark's Kafka source, from every micro-batch's report.

    listener = LagListener()
    spark.streams.addListener(listener)
    …
    listener.lags                    {query id: {source: Lag}}

Spark asks a source of Python for no metrics of its own, but reports where it ended and what the
newest offsets were; the difference is the lag.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_kafkalite.offsets import heard

log = logging.getLogger("pyspark_kafkalite")


class Lag(NamedTuple):
    """Offsets behind the newest, over all partitions of a source."""

    minOffsetsBehindLatest: int
    maxOffsetsBehindLatest: int
    avgOffsetsBehindLatest: float


class LagListener(StreamingQueryListener):
    """Keeps the newest lags, and calls told(query, source, lag) if somebody wants to hear."""

    def __init__(self, told: Callable[[str, str, Lag], object] | None = None) -> None:
        self.lags: dict[str, dict[str, Lag]] = {}
        self._told = told

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        for number, source in enumerate(progress.sources):
            lag = lag_of(source.endOffset, source.latestOffset)
            if lag is None:
                continue
            name = f"{number}: {source.description}"
            self.lags.setdefault(str(progress.id), {})[name] = lag
            if self._told is not None:
                self._told(progress.name or str(progress.id), name, lag)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.lags.pop(str(event.id), None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Its first report tells more."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """It is where it was."""


def lag_of(end: Any, latest: Any) -> Lag | None:
    """The lag between two reported offsets; None of a source that is none of ours."""
    try:
        at, newest = (
            heard(json.loads(each) if isinstance(each, str) else each) for each in (end, latest)
        )
        behind = [max(0, offset - at.get(place, 0)) for place, offset in newest.items()]
    except (TypeError, ValueError, AttributeError):
        return None
    if not behind:
        return None
    return Lag(min(behind), max(behind), sum(behind) / len(behind))
