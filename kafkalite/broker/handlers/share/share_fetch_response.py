"""ShareFetchResponse: the response to a ShareFetch, as bytes and slices of segment files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from kafkalite.broker.error_responses import error_fields
from kafkalite.coordination.share.acquisition import AcquiredRange
from kafkalite.errors import KafkaError
from kafkalite.protocol.frame import response_header
from kafkalite.protocol.schema import RESPONSE_UNITS_MAX, MessageSchema
from kafkalite.protocol.schemas.share import SHARE_FETCH
from kafkalite.protocol.types import Array, Struct
from kafkalite.records.file_slice import FileSlice

NO_LEADER = (0, 0)


class ShareFetchResult(NamedTuple):
    """The result of one partition."""

    partition_index: int
    error: KafkaError | None = None
    acknowledge_error: KafkaError | None = None
    current_leader: tuple[int, int] | None = None
    records: FileSlice | None = None
    acquired: Sequence[AcquiredRange] = ()

    @property
    def is_plain(self) -> bool:
        """True if there is no error, and no other leader."""
        return self.error is None and self.acknowledge_error is None and not self.current_leader

    @property
    def error_code(self) -> int:
        """The code of the error, or 0."""
        return self.error.code if self.error is not None else 0


class ShareFetchResponse:
    """The response to a ShareFetch."""

    def __init__(
        self,
        lock_timeout_ms: int = 0,
        topics: Sequence[tuple[bytes, Sequence[ShareFetchResult]]] = (),
        error: KafkaError | None = None,
    ) -> None:
        self.lock_timeout_ms = lock_timeout_ms
        self.topics = topics
        self.error = error
        self.node_endpoints: Sequence[tuple[int, str, int, str | None]] = ()

    @classmethod
    def failed(cls, error: KafkaError) -> ShareFetchResponse:
        """Return the response for an error of the whole request."""
        return cls(error=error.with_traceback(None))  # its frames would keep the response

    @property
    def error_code(self) -> int:
        """The code of the error of the whole request, or 0."""
        return self.error.code if self.error is not None else 0

    @property
    def has_errors(self) -> bool:
        """True if the request or a partition failed."""
        return self.error is not None or any(
            result.error is not None for _, results in self.topics for result in results
        )


def _part(name: str, struct: Struct, *, begin: str = "", end: str = "") -> MessageSchema:
    """Return the fields of a struct from `begin` on and before `end`."""
    names = [*struct.fields]
    first = names.index(begin) if begin else 0
    last = names.index(end) if end else len(names)
    fields: dict[str, Any] = {each: struct.fields[each] for each in names[first:last]}
    return MessageSchema(
        f"{name} of a ShareFetch response", Struct(**fields), versions="1-2", flexible="0+",
        units_max=RESPONSE_UNITS_MAX,
    )  # fmt: skip


def _element(struct: Struct, name: str) -> Struct:
    array = struct.fields[name]
    assert isinstance(array, Array) and isinstance(array.element, Struct)
    return array.element


RESPONSE = SHARE_FETCH.response.struct
PARTITION = _element(_element(RESPONSE, "responses"), "partitions")
BEGIN = _part("begin", RESPONSE, end="responses")
END = _part("end", RESPONSE, begin="node_endpoints")
BEFORE_RECORDS = _part("partition", PARTITION, end="records")
AFTER_RECORDS = _part("acquired records", PARTITION, begin="acquired_records")
NO_TAGS = b"\0"
KEPT_MAX = 1_024
"""Number of parts without errors that are kept encoded."""


def encode(version: int, correlation_id: int, response: ShareFetchResponse) -> list[Any]:
    """Return the response with its header, in chunks: bytes and file slices."""
    chunks: list[Any] = [response_header(correlation_id, flexible=True)]
    pending = bytearray(
        _begin(version, response.lock_timeout_ms)
        if response.error is None
        else _begin_with(version, response.lock_timeout_ms, response.error)
    )
    pending += length(len(response.topics))
    for topic_id, results in response.topics:
        pending += topic_id + length(len(results))
        for result in results:
            pending += (
                _before_records(version, result.partition_index)
                if result.is_plain
                else _before_records_with(version, result)
            )
            records = result.records
            pending += length(records.size if records is not None else 0)
            if records is not None:
                chunks += [bytes(pending), records]
                pending = bytearray()
            acquired = [
                {"first_offset": first, "last_offset": last, "delivery_count": count}
                for first, last, count in result.acquired
            ]
            pending += AFTER_RECORDS.write(version, {"acquired_records": acquired})
        pending += NO_TAGS
    pending += _end(version, tuple(response.node_endpoints))
    chunks.append(bytes(pending))
    return chunks


# Each part is encoded as a struct: the last byte, its number of tags, belongs to the next part.


def _begin_with(version: int, lock_timeout_ms: int, error: KafkaError | None) -> bytes:
    fields = {**_error_fields(error), "acquisition_lock_timeout_ms": lock_timeout_ms}
    return BEGIN.write(version, fields)[:-1]


@lru_cache(maxsize=KEPT_MAX)
def _begin(version: int, lock_timeout_ms: int) -> bytes:
    """Return the begin of a response without an error of the whole request."""
    return _begin_with(version, lock_timeout_ms, None)


def _before_records_with(version: int, result: ShareFetchResult) -> bytes:
    leader_id, leader_epoch = result.current_leader or NO_LEADER
    acknowledged = _error_fields(result.acknowledge_error)
    fields = {
        "partition_index": result.partition_index,
        **_error_fields(result.error),
        "acknowledge_error_code": acknowledged["error_code"],
        "acknowledge_error_message": acknowledged["error_message"],
        "current_leader": {"leader_id": leader_id, "leader_epoch": leader_epoch},
    }
    return BEFORE_RECORDS.write(version, fields)[:-1]


@lru_cache(maxsize=KEPT_MAX)
def _before_records(version: int, partition_index: int) -> bytes:
    """Return the begin of a partition without errors and without another leader."""
    return _before_records_with(version, ShareFetchResult(partition_index))


@lru_cache(maxsize=KEPT_MAX)
def _end(version: int, node_endpoints: tuple[tuple[int, str, int, str | None], ...]) -> bytes:
    """Return the end of a response; most have no endpoints."""
    endpoints = [
        {"node_id": node_id, "host": host, "port": port, "rack": rack}
        for node_id, host, port, rack in node_endpoints
    ]
    return END.write(version, {"node_endpoints": endpoints})


def _error_fields(error: KafkaError | None) -> dict[str, Any]:
    return error_fields(error) if error is not None else {"error_code": 0, "error_message": None}


def length(size: int) -> bytes:
    """Return a compact length: the size plus one as an unsigned varint."""
    left, encoded = size + 1, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
