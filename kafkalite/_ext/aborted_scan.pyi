from typing_extensions import Buffer

ENTRY_SIZE: int

def walk_transactions(
    fd: int, position: int, end: int, size: int, count_max: int
) -> tuple[int, int, int, bytes]: ...
def find_aborted(
    entries: Buffer, upper_offset: int, count_max: int, producer_ids: Buffer | None = None
) -> tuple[list[tuple[int, int]], int, bool, int, int]: ...
