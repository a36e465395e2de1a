from typing_extensions import Buffer

class RecordScan:
    code: int
    max_timestamp: int
    keyless_count: int
    def __init__(
        self, count: int, last_offset_delta: int, size_max: int, base_timestamp: int = 0
    ) -> None: ...
    def collect(
        self,
        low: int,
        high: int,
        *,
        inside: bool,
        offset_delta_min: int = 0,
        hits_max: int = 100,
    ) -> None: ...
    @property
    def hits(self) -> list[tuple[int, int]]: ...
    @property
    def keyless(self) -> list[int]: ...
    @property
    def hit_all(self) -> bool: ...
    def feed(self, piece: Buffer) -> int: ...
    def end(self) -> int: ...
