from collections.abc import Iterable

from typing_extensions import Buffer

# validity, offsets, bytes, the array's offset, True for 64-bit offsets
_Column = tuple[Buffer | None, Buffer | None, Buffer | None, int, bool]
# validity, offsets, the array's offset, names, values
_Headers = tuple[Buffer | None, Buffer | None, int, _Column | None, _Column | None]
# validity, milliseconds, the array's offset
_Timestamps = tuple[Buffer | None, Buffer | None, int]
_Field = Buffer | str | None

class BatchBuilder:
    """The records of one batch, appended row by row; grows as needed, up to a capacity."""

    closed: bool
    count: int
    size: int
    base_timestamp: int
    max_timestamp: int
    def __init__(self, capacity: int) -> None: ...
    def append(
        self,
        key: _Field,
        value: _Field,
        headers: Iterable[tuple[str, _Field]] | None,
        timestamp_ms: int,
    ) -> int: ...
    def append_columns(
        self,
        first: int,
        end: int,
        rows: Buffer | None,
        value: _Column | None,
        key: _Column | None,
        headers: _Headers | None,
        timestamps: _Timestamps | None,
        now_ms: int,
        size_max: int,
    ) -> tuple[int, int]: ...
    def append_table(
        self,
        count: int,
        value: _Column | None,
        key: _Column | None,
        timestamps: _Timestamps | None,
        now_ms: int,
        largest_max: int,
        size_max: int,
    ) -> int: ...
    def close(self) -> None: ...
    def widen(self, capacity: int) -> None: ...
    def payload(self) -> memoryview: ...
    def reset(self) -> None: ...
    def seal_into(
        self,
        out: Buffer,
        attributes: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
    ) -> int: ...

def record_size_max(
    key: _Field, value: _Field, headers: Iterable[tuple[str, _Field]] | None
) -> int: ...
def seal(
    out: Buffer,
    payload_size: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> int: ...
def encode_columns(
    out: Buffer,
    first: int,
    end: int,
    rows: Buffer | None,
    value: _Column | None,
    key: _Column | None,
    headers: _Headers | None,
    timestamps: _Timestamps | None,
    now_ms: int,
) -> tuple[int, int, int, int]: ...
def measure_columns(
    count: int,
    value: _Column | None,
    key: _Column | None,
    headers: _Headers | None,
    timestamps: _Timestamps | None,
) -> tuple[int, int, int, int]: ...
def use_block_cache(more: int) -> None: ...
