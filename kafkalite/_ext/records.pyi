from collections.abc import Iterable, Sequence

from typing_extensions import Buffer

# offset delta, timestamp delta, key, value, headers
_Headers = tuple[tuple[str, bytes | None], ...]
_Decoded = tuple[int, int, bytes | None, bytes | None, _Headers]
_Given = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

def decode(
    payload: Buffer, count: int, last_offset_delta: int | None = None
) -> list[_Decoded] | int: ...
def validate(
    payload: Buffer, count: int, last_offset_delta: int | None = None, *, keyed: bool = False
) -> int: ...
def encode(records: Iterable[_Given]) -> bytes: ...
