from collections.abc import Iterable
from typing import final

from typing_extensions import Buffer

@final
class Message:
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int | None = None,
        timestamp_type: int = 0,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...

@final
class RowBuilder:
    def __init__(self, topic: str, partition: int, check_crcs: bool = True) -> None: ...
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
    def take(self) -> list[Message]: ...
