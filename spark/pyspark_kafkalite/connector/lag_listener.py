"""LagListener: the lag of streams and their number of bad rows, after every micro-batch.

    listener = LagListener()
    spark.streams.addListener(listener)
    …
    listener.lags                    {query id: {source: Lag}}
    listener.bad_rows                {query id: rows}

Spark has no custom metrics for a Python data source, but reports its end offsets and the latest
offsets; the difference is the lag, with the metrics of Spark's Kafka source.  Tasks write the
counts of bad rows to files (bad_row_counts.py).

Spark calls a listener in its own threads, for one event of a query after the other.

Left out: the counts of bad rows in Spark's own progress (StreamingQueryProgress), to which a Python
data source cannot add.
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

from pyspark_kafkalite.connector.bad_row_counts import BadRowCounts
from pyspark_kafkalite.connector.offset_ranges import offsets_from_json

log = logging.getLogger("pyspark_kafkalite")


class Lag(NamedTuple):
    """Offsets behind the latest, over all partitions of a source."""

    minOffsetsBehindLatest: int
    maxOffsetsBehindLatest: int
    avgOffsetsBehindLatest: float


OnLag = Callable[[str, str, Lag], object]


class LagListener(StreamingQueryListener):
    """Collects the last lags and the numbers of bad rows of the streams.

    Args:
        on_lag: Called as on_lag(query, source, lag) with the name of a query, or its id without
            one, after every micro-batch.
        told: Former name of `on_lag`.

    Attributes:
        lags: By query id and source; a query that ended has none.
        bad_rows: By query id, the number of rows that `on_bad_rows` drop or quarantine left out
            since the listener was added; without entry for a query that had none, kept after its
            end.
    """

    def __init__(self, on_lag: OnLag | None = None, *, told: OnLag | None = None) -> None:
        if on_lag is not None and told is not None:
            raise TypeError("on_lag and its former name, told, are both given; pass on_lag")
        self.lags: dict[str, dict[str, Lag]] = {}
        self.bad_rows: dict[str, int] = {}
        self._on_lag = on_lag or told
        self._counts: dict[str, BadRowCounts | None] = {}
        """By run id, since events of one run may arrive after the next run has started."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._counts_of(str(event.id), str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        self._count(str(progress.id), str(progress.runId), progress.batchId)
        for number, source in enumerate(progress.sources):
            lag = lag_of(source.endOffset, source.latestOffset)
            if lag is None:
                continue
            name = f"{number}: {source.description}"
            self.lags.setdefault(str(progress.id), {})[name] = lag
            if self._on_lag is not None:
                self._on_lag(progress.name or str(progress.id), name, lag)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.lags.pop(str(event.id), None)
        counts = self._counts.pop(str(event.runId), None)
        if counts is not None:
            counts.close()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has no new lag."""

    def _counts_of(self, query: str, run: str) -> BadRowCounts | None:
        """Return the counts of a run; None if their directory cannot be created."""
        if run not in self._counts:
            try:
                self._counts[run] = BadRowCounts(query)
            except OSError as error:
                log.warning("Bad rows are not counted. query=%s error=%s", query, error)
                self._counts[run] = None
        return self._counts[run]

    def _count(self, query: str, run: str, batch: int) -> None:
        """Add the bad rows of a micro-batch, and log their number."""
        counts = self._counts_of(query, run)
        bad_rows = 0 if counts is None else counts.take(batch)
        if bad_rows:
            total = self.bad_rows[query] = self.bad_rows.get(query, 0) + bad_rows
            log.warning("Micro-batch left out bad rows; the executors' logs name the first of them."
                        " query=%s batch=%d bad_rows=%d bad_rows_total=%d",
                        query, batch, bad_rows, total)  # fmt: skip


def lag_of(end: Any, latest: Any) -> Lag | None:
    """Return the lag between two reported offsets; None for another data source."""
    try:
        at, newest = (
            offsets_from_json(json.loads(each) if isinstance(each, str) else each)
            for each in (end, latest)
        )
        behind = [max(0, offset - at.get(place, 0)) for place, offset in newest.items()]
    except (TypeError, ValueError, AttributeError):
        return None
    if not behind:
        return None
    return Lag(min(behind), max(behind), sum(behind) / len(behind))
