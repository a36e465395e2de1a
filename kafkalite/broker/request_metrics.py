"""Request metrics: counters incremented once per request or per partition of it, never per record.

    RequestCounts   of one API: number of requests, error codes, time until the response
    TopicTraffic    of one topic on this node: records, bytes, requests and failed requests

`node_metrics.py` has their exported names.  Not thread-safe: only the event loop updates them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from kafkalite.errors import (
    CorruptMessage,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    MissingKey,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.metrics import Histogram
from kafkalite.protocol.results import FetchResponse, ProduceResponse
from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Struct

Path = tuple[str, ...]

EXPECTED = frozenset(
    error.code
    for error in (
        CorruptMessage,
        KafkaStorageError,
        MessageTooLarge,
        NotLeaderOrFollower,
        UnknownTopicId,
        UnknownTopicOrPartition,
    )
)
"""Errors that Kafka does not count as a topic's failed requests: they are transient or have a
counter of their own.  They are counted as errors of the API."""


class RequestCounts:
    """The counters of one API."""

    __slots__ = ("api", "errors", "paths", "requests", "times")

    def __init__(self, api: Api) -> None:
        self.api = api
        self.requests = [0] * (api.versions[1] + 1)
        """Number of requests received, by version."""
        self.errors: Counter[int] = Counter()
        """Number of responses and response entries with an error, by error code."""
        self.times = Histogram()
        """Time from the complete frame until the response may be sent."""
        self.paths = list(error_paths(api.response.struct))

    def failed(self, response: Mapping[str, Any]) -> None:
        """Count the error codes of a response in schema form, and those of its entries."""
        for path in self.paths:
            entries: Sequence[Mapping[str, Any]] = [response]
            for name in path:
                # Large responses end in one long list, which one comprehension iterates over.
                lists = [entry.get(name) or () for entry in entries]
                entries = lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
            for code in [code for entry in entries if (code := entry.get("error_code"))]:
                self.errors[code] += 1

    def failed_results(self, response: ProduceResponse | FetchResponse) -> None:
        """Count the error codes of a Produce or Fetch response."""
        if response.error_code:
            self.errors[response.error_code] += 1
        for _, results in response.topics:
            for result in results:
                if result.error_code:
                    self.errors[result.error_code] += 1


def error_paths(struct: Struct) -> Iterator[Path]:
    """Yield the path of list fields to each error code in a response."""
    for name, field in struct.fields.items():
        if name == "error_code":
            yield ()
        elif isinstance(field, Array) and isinstance(field.element, Struct):
            for path in error_paths(field.element):
                yield (name, *path)


class TopicTraffic:
    """The counters of one topic."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "keyless_records",
        "messages_in",
        "produces",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.bytes_out = self.bytes_rejected = 0
        self.produces = self.failed_produces = self.fetches = self.failed_fetches = 0
        self.keyless_records = self.replication_bytes_out = 0

    def add(self, other: TopicTraffic) -> None:
        """Add the counters of another topic."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def batch_rejected(self, error: KafkaError, size: int) -> None:
        """Count a batch that was rejected with this error."""
        self.produces += 1
        if error.code == MessageTooLarge.code:
            self.bytes_rejected += size
        elif error.code not in EXPECTED:
            self.failed_produces += 1
            if isinstance(error, MissingKey):
                self.keyless_records += error.record_count
