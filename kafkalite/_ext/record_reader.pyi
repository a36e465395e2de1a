from typing import Any, final

from typing_extensions import Buffer

KEY: int
VALUE: int
OFFSET: int
TIMESTAMP: int
HEADERS: int
TIMESTAMP_TYPE: int
AT_END: int
COMPRESSED: int
FULL: int

@final
class Memory(Buffer):
    def __len__(self) -> int: ...

@final
class ColumnBuilder:
    def __init__(
        self, wanted: int, check_crcs: bool = True, ticks: int = 1, room: int = 0x7FFFFFFF
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    def add(self, batch: Buffer, payload: Buffer | None, first_offset: int) -> int: ...
    def add_set(
        self,
        record_set: Buffer,
        position: int,
        first_offset: int,
        size_max: int,
        aborted: Buffer | None = None,
    ) -> tuple[int, int, int]: ...
    def take(self) -> dict[str, Any]: ...

def whole_batches(record_set: Buffer) -> tuple[int, int]: ...
