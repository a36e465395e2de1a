"""Handling of rows whose values cannot be decoded.

    fail         raise BadRow with the location and the cause of the first
    drop         leave them out, and log their number and the causes
    quarantine   leave them out after writing them unchanged to another topic, with the headers
                 reason, topic, partition, offset

A task that runs again writes its bad rows again: a quarantine has each at least once.  The log is
the executor's; on the driver a LagListener has the number of rows that a stream left out.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite import Producer
from kafkalite.client import producer_keys
from pyspark_kafkalite.decoding.sifting import Bad

FAIL, DROP, QUARANTINE = "fail", "drop", "quarantine"
WAYS = (FAIL, DROP, QUARANTINE)
PLACE = ("topic", "partition", "offset")
NAMED_MAX = 3

log = logging.getLogger("pyspark_kafkalite")

_producers: dict[frozenset[tuple[str, str]], Producer] = {}
_left: list[Producer] = []


class BadRow(ValueError):
    """A value is not valid in its format."""


class BadRows:
    """The chosen handling of bad rows; `settings` are a client's, for the quarantine."""

    def __init__(
        self, way: str = FAIL, topic: str | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        way = way.strip().lower()
        if way not in WAYS:
            raise ValueError(f"on_bad_rows must be one of {', '.join(WAYS)}, not {way!r}.")
        if (way == QUARANTINE) != bool(topic):
            raise ValueError("on_bad_rows=quarantine requires quarantine_topic, and"
                             " quarantine_topic requires on_bad_rows=quarantine.")  # fmt: skip
        self.way = way
        self._topic = topic or ""
        keys = producer_keys()
        self._settings = {name: value for name, value in (settings or {}).items() if name in keys}

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns needed besides the value."""
        return ("key", *PLACE) if self.way == QUARANTINE else PLACE

    def without_bad_rows(self, batch: pa.RecordBatch, decoded: pa.RecordBatch, bad: Bad) -> Any:
        """Return the decoded batch without its bad rows, of which there are some."""
        if self.way == FAIL:
            at = min(bad)
            raise BadRow(
                f"{len(bad)} of {len(batch)} values cannot be read; the first,"
                f" {place_of(batch, at)}: {bad[at]}.  To continue without such rows, set"
                " on_bad_rows to drop, or to quarantine with a quarantine_topic."
            )
        if self.way == QUARANTINE:
            self._quarantine(batch, bad)
        for at in sorted(bad)[:NAMED_MAX]:
            log.warning("Bad row is left out, %s: %s.", place_of(batch, at), bad[at])
        log.warning("%d of %d rows were bad; on_bad_rows is %s.", len(bad), len(batch), self.way)
        keep = pc.invert(pc.is_in(pa.array(range(len(batch))), pa.array(list(bad), pa.int64())))
        return decoded.filter(keep)

    def _quarantine(self, batch: pa.RecordBatch, bad: Bad) -> None:
        """Write bad rows to the quarantine topic; wait until they are acknowledged, or raise."""
        places = sorted(bad)
        rows = batch.take(pa.array(places))
        names = [name for name in PLACE if name in batch.schema.names]
        located = rows.select(names).to_pylist()
        headers = [
            [("reason", bad[at].encode()), *((name, str(row[name]).encode()) for name in names)]
            for at, row in zip(places, located, strict=True)
        ]
        kind = pa.map_(pa.string(), pa.binary())
        columns = {"value": rows.column("value"), "headers": pa.array(headers, kind)}
        if "key" in batch.schema.names:
            columns["key"] = rows.column("key")
        producer = producer_of(self._settings)
        sent = producer.send_arrow(self._topic, pa.table(columns))
        producer.flush()
        sent.result()


def place_of(batch: pa.RecordBatch, at: int) -> str:
    """Return the topic, partition and offset of a row, if its batch has these columns."""
    if not set(PLACE) <= set(batch.schema.names):
        return f"row {at}"
    topic, partition, offset = (batch.column(name)[at].as_py() for name in PLACE)
    return f"{topic}-{partition} at offset {offset}"


def producer_of(settings: Mapping[str, str]) -> Producer:
    """Return this process's producer for these settings."""
    key = frozenset(settings.items())
    if key not in _producers:
        _producers[key] = Producer(settings)
    return _producers[key]


def close() -> None:
    for producer in _producers.values():
        producer.close()
    _producers.clear()


def leave() -> None:
    """Drop the producers in a forked child: threads and connections are the parent's."""
    _left.extend(_producers.values())
    _producers.clear()


atexit.register(close)
os.register_at_fork(after_in_child=leave)
