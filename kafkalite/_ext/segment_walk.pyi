WHOLE: int
DAMAGED: int
STORAGE_ERROR: int
AT_END: int
TORN: int
ZEROS: int
GAP: int

def find_offset(
    fd: int, position: int, end: int, offset: int, expected: int = -1
) -> tuple[int, int, int, int, int, int]: ...
def find_timestamp(
    fd: int, position: int, end: int, timestamp: int, offset: int
) -> tuple[int, int, int]: ...
def walk_to_end(fd: int, position: int, end: int) -> tuple[int, int, int, int, int]: ...
def walk_seams(
    fd: int, position: int, end: int, segment_base: int, next_offset: int, size: int
) -> tuple[int, int, int]: ...
def scan(
    fd: int,
    position: int,
    end: int,
    segment_base: int,
    next_offset: int,
    interval: int,
    since_entry: int,
    max_timestamp: int,
    offset_of_max: int,
    timestamp_entered: int,
    leader_epoch: int,
    gaps_to: int = ...,
) -> tuple[
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    int,
    bytes,
    bytes,
    list[tuple[int, int, int, int, int, int, int, int, int]],
    list[tuple[int, int]],
]: ...
def next_whole(fd: int, position: int, end: int, offset_min: int) -> int: ...
def syncfs(fd: int) -> int: ...
def file_system_type(fd: int) -> int: ...
