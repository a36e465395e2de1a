from typing_extensions import Buffer

AT_END: int
COMPRESSED: int

class JournalScan:
    latest: dict[bytes, tuple[int, bytes | None]]
    """Offset and value of the last valid record of each key."""
    pending: dict[int, dict[bytes, tuple[int, bytes | None, int]]]
    """Offset, value and producer epoch of the records of open transactions, by producer id."""
    next_offset: int
    def __init__(self, is_transactional: bool) -> None: ...
    def run(self, content: Buffer, position: int = 0) -> tuple[int, int]: ...
    def add_payload(self, batch: Buffer, payload: Buffer) -> int: ...
