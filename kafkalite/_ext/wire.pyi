from collections.abc import Sequence
from typing import Any, TypeAlias

Frame: TypeAlias = bytes | bytearray | memoryview
Topic: TypeAlias = str | bytes
Pair: TypeAlias = tuple[int, int]
NodeEndpoint: TypeAlias = tuple[int, str, int, str | None]
Produced: TypeAlias = tuple[
    int, int, int, int, int, Sequence[tuple[int, str | None]], str | None, Pair | None
]
# Records are None, bytes, or any object with a `size`; the connection knows how to send it.
Fetched: TypeAlias = tuple[
    int, int, int, int, int, Sequence[Pair] | None, int, Any, Pair | None, Pair | None, int
]
ProduceRequest: TypeAlias = tuple[
    str | None, int, int, list[tuple[Topic, list[tuple[int, memoryview | None]]]]
]
FetchRequest: TypeAlias = tuple[
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    list[tuple[Topic, list[tuple[int, ...]]]] | None,
    list[tuple[Topic, list[int]]],
    str,
    int,
]

def decode_header(
    frame: Frame, flexible_from: bytes
) -> tuple[int, int, int, str | None, int] | int: ...
def decode_produce(version: int, frame: Frame, position: int) -> ProduceRequest | int: ...
def encode_produce(
    version: int,
    correlation_id: int,
    responses: Sequence[tuple[Topic, Sequence[Produced]]],
    throttle_ms: int,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes: ...
FETCH_NAMES_MAX: int

def decode_fetch(version: int, frame: Frame, position: int) -> FetchRequest | int: ...
def encode_fetch(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[Topic, Sequence[Fetched]]],
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Any]: ...
