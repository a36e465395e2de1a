"""What a node counts of its requests: bumped once a request or a partition of it, never a record.

    RequestCounts   one API's: how many, which error codes, how long until the answer
    Traffic         one topic's on this node: what came, what went, what failed

`node_metrics.py` says under which names they are seen.  One thread bumps them; nothing is locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from kafkalite.errors import (
    CorruptMessage,
    KafkaStorageError,
    MessageTooLarge,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.metrics import Histogram
from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Struct

Path = tuple[str, ...]

EXPECTED = frozenset(
    fault.code
    for fault in (
        CorruptMessage,
        KafkaStorageError,
        MessageTooLarge,
        NotLeaderOrFollower,
        UnknownTopicId,
        UnknownTopicOrPartition,
    )
)
"""What Kafka does not count among a topic's failed requests: it passes, or has a count of its own.
As errors of the request they are counted all the same."""

ERROR_CODE_AT = 1
"""Where a partition's entry of Produce and Fetch has it (ext/wire.pyx)."""


class RequestCounts:
    """What is counted of one API."""

    __slots__ = ("api", "errors", "paths", "requests", "times")

    def __init__(self, api: Api) -> None:
        self.api = api
        self.requests = [0] * (api.versions[1] + 1)
        """By version; what was begun."""
        self.errors: Counter[int] = Counter()
        """By code: each response, and each entry of one, that says so."""
        self.times = Histogram()
        """From the whole frame to the answer that may be sent."""
        self.paths = [path for path in error_paths(api.response.struct) if len(path) <= 2]

    def failed(self, response: Mapping[str, Any]) -> None:
        """Count the error codes of a response shaped like the schema, to the second depth: an
        answer, its topics, their partitions."""
        for path in self.paths:
            entries: Sequence[Mapping[str, Any]] = [response]
            for name in path:
                # Large answers have one long list at the end, which one comprehension goes over.
                lists = [entry.get(name) or () for entry in entries]
                entries = lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
            for code in [code for entry in entries if (code := entry.get("error_code"))]:
                self.errors[code] += 1

    def failed_entries(self, response: Mapping[str, Any]) -> None:
        """The same for what Produce and Fetch answer."""
        if code := response.get("error_code"):
            self.errors[code] += 1
        for _, partitions in response.get("topics", ()):
            for entry in partitions:
                if entry[ERROR_CODE_AT]:
                    self.errors[entry[ERROR_CODE_AT]] += 1


def error_paths(struct: Struct) -> Iterator[Path]:
    """Through which lists one comes to the error codes of a response."""
    for name, field in struct.fields.items():
        if name == "error_code":
            yield ()
        elif isinstance(field, Array) and isinstance(field.element, Struct):
            for path in error_paths(field.element):
                yield (name, *path)


class Traffic:
    """What is counted of one topic."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
    )

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.bytes_out = self.bytes_rejected = 0
        self.produces = self.failed_produces = self.fetches = self.failed_fetches = 0

    def add(self, other: Traffic) -> None:
        """Take another's counts in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def refused_batch(self, code: int, size: int) -> None:
        """A batch was not appended."""
        self.produces += 1
        if code == MessageTooLarge.code:
            self.bytes_rejected += size
        elif code not in EXPECTED:
            self.failed_produces += 1
