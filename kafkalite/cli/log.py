"""kafkalite log: print and verify segment files and indexes, without a broker.

The commands read the files of a kafkalite or an Apache Kafka log, and change nothing.  For a
directory, they read all log files in it.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kafkalite._ext import segment_walk
from kafkalite._ext.offset_index import count_valid_offsets, count_valid_times
from kafkalite._ext.record_batch import HEADER_SIZE, header
from kafkalite.cli.command import argument, command
from kafkalite.errors import KafkaError, Refusal
from kafkalite.records.batch import BatchHeader, Record, RecordBatch
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout
from kafkalite.storage.segment.segment import RELATIVE_OFFSET_MAX
from kafkalite.storage.segment.segment_scan import LEADER_EPOCHS_KNOWN, SegmentScan
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from kafkalite.storage.state.producer_state import decoded

KINDS = (layout.LOG, layout.OFFSET_INDEX, layout.TIME_INDEX, layout.SNAPSHOT)
PROGRESS_S = 0.2
JSON_FLAG = argument("--json", action="store_true", help="print one JSON object per line")


class FileDamage(NamedTuple):
    """Damage in a file: its path, a description, and whether it is a torn batch at the end."""

    path: Path
    description: str
    torn_tail: bool = False


@command(
    argument("file", nargs="+", type=Path, help="segment, index, snapshot, or directory of a log"),
    argument("--records", action="store_true", help="print the records of each batch"),
    JSON_FLAG,
)
def dump(file: list[Path], records: bool, json: bool) -> int:
    """Print the contents of log files.

    Prints the batches of a segment, the entries of an index, the producers of a snapshot.  If a
    file is corrupt, prints the position and exits with code 1.

    Examples:
      kafkalite log dump data/flights-0
      kafkalite log dump --records --json data/flights-0/00000000000000000000.log
    """
    code = 0
    for path in files_of(file):
        show = as_json if json else as_text
        if not json:
            print(f"{path}")
        try:
            for entry in entries_of(path, with_records=records):
                print(show(path, entry))
        except (ValueError, KafkaError) as error:
            print(f"kafkalite: {path}: {error}", file=sys.stderr)
            code = 1
    return code


@command(
    argument(
        "file", nargs="+", type=Path, help="segments, indexes, snapshots, or directories of logs"
    ),
    JSON_FLAG,
)
def verify(file: list[Path], json: bool) -> int:
    """Verify the CRC of every batch, and every index against its segment.

    After a crash a segment may end in a torn batch, which is truncated at the next start of the
    broker.  Damage before valid batches is reported differently: it cannot be repaired.  The exit
    code is 0 if no damage was found.

    Examples:
      kafkalite log verify data/flights-0
      kafkalite log verify data/*/00000000000000000000.log && echo valid
    """
    paths = files_of(file)
    damages = []
    for path in paths:
        for damage in damages_of(path):
            damages.append(damage)
            print(damage_as_json(damage) if json else f"{damage.path}: {damage.description}")
    if not json:
        files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
        print(f"{files} verified, {len(damages) or 'no'} errors")
    return 1 if damages else 0


# -- which files -----------------------------------------------------------------------------------


def files_of(paths: list[Path]) -> list[Path]:
    """Return the given files, and the log files in the given directories."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(entry for entry in path.rglob("*") if kind_of(entry) is not None)
            if not inside:
                raise Refusal(f"{path} contains no log files")
            found += inside
        elif not path.exists():
            raise Refusal(f"{path} does not exist")
        elif kind_of(path) is None:
            raise Refusal(
                f"{path} is not a log file: its name must be twenty digits and one of"
                f" {', '.join(KINDS)}, or {layout.LEADER_EPOCHS}"
            )
        else:
            found.append(path)
    return found


def kind_of(path: Path) -> str | None:
    if path.name == layout.LEADER_EPOCHS:
        return layout.LEADER_EPOCHS
    suffix = path.suffix
    known = suffix in KINDS and layout.offset_of(path.name, suffix) is not None
    return suffix if known and path.is_file() else None


def base_offset_of(path: Path) -> int:
    found = layout.offset_of(path.name, path.suffix)
    assert found is not None
    return found


# -- dump ------------------------------------------------------------------------------------------


def entries_of(path: Path, with_records: bool) -> Iterator[dict[str, Any]]:
    """Yield a file's entries; raise ValueError or KafkaError at the first damage."""
    kind = kind_of(path)
    if kind == layout.LOG:
        yield from batches_of(path, with_records)
    elif kind == layout.OFFSET_INDEX:
        base = base_offset_of(path)
        for relative, position in struct.iter_unpack(">ii", whole_entries(path, 8)):
            yield {"offset": base + relative, "position": position}
    elif kind == layout.TIME_INDEX:
        base = base_offset_of(path)
        for timestamp, relative in struct.iter_unpack(">qi", whole_entries(path, 12)):
            yield {"timestamp": timestamp, "offset": base + relative}
    elif kind == layout.SNAPSHOT:
        for producer in decoded(path.read_bytes()):
            last = producer.batches[-1] if producer.batches else None
            yield {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": last.last_sequence if last else -1,
                "last_offset": last.last_offset if last else -1,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "txn_first_offset": producer.txn_first_offset,
            }
    else:
        cache = LeaderEpochCache.load(path)
        if cache is None:
            raise ValueError("not a valid leader epoch checkpoint")
        for epoch, start_offset in zip(cache.epochs, cache.starts, strict=True):
            yield {"leader_epoch": epoch, "start_offset": start_offset}


def whole_entries(path: Path, size: int) -> bytes:
    content = path.read_bytes()
    if len(content) % size:
        raise ValueError(f"size {len(content)} is not a multiple of the entry size {size}")
    return content


def batches_of(path: Path, with_records: bool) -> Iterator[dict[str, Any]]:
    """Yield the batches of a segment, with their records if requested."""
    file = OpenFile(path, os.O_RDONLY)
    end = path.stat().st_size
    position = 0
    while position < end:
        code, position, size, *_ = segment_walk.find_offset(file.fileno(), position, end, -1)
        if code != segment_walk.WHOLE:
            if remainder_is_zeros(file, position, end):
                return
            raise ValueError(f"no valid batch at byte {position}")
        fields = BatchHeader(*header(os.pread(file.fileno(), HEADER_SIZE, position)))
        entry = {"position": position, "size": size, **described(fields)}
        if with_records:
            batch = RecordBatch(os.pread(file.fileno(), size, position))
            entry["records"] = [described_record(record) for record in batch.records()]
        yield entry
        position += size


def remainder_is_zeros(file: OpenFile, position: int, end: int) -> bool:
    """Return True if the rest of the file is preallocated space."""
    code = segment_walk.scan(
        file.fileno(), position, end, 0, 0, 0, 0, -1, 0, -1, LEADER_EPOCHS_KNOWN
    )[0]
    return code == segment_walk.ZEROS


def described(fields: BatchHeader) -> dict[str, Any]:
    return {
        "base_offset": fields.base_offset,
        "last_offset": fields.last_offset,
        "count": fields.count,
        "leader_epoch": fields.leader_epoch,
        "codec": fields.codec.name.lower(),
        "timestamp_type": fields.timestamp_type.name.lower(),
        "max_timestamp": fields.max_timestamp,
        "producer_id": fields.producer_id,
        "producer_epoch": fields.producer_epoch,
        "base_sequence": fields.base_sequence,
        "transactional": fields.is_transactional,
        "control": fields.is_control,
        "crc": fields.crc,
    }


def described_record(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": written(record.key),
        "value": written(record.value),
        "headers": {name: written(value) for name, value in record.headers},
    }


def written(content: bytes | None) -> Any:
    """Return bytes as text if they are UTF-8, else as base64 in an object."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def as_json(path: Path, entry: dict[str, Any]) -> str:
    return json.dumps({"file": str(path), **entry})


def as_text(path: Path, entry: dict[str, Any]) -> str:
    lines = ["  " + "  ".join(f"{key}={value}" for key, value in entry.items() if key != "records")]
    lines += ["    " + json.dumps(record) for record in entry.get("records", ())]
    return "\n".join(lines)


# -- verify ----------------------------------------------------------------------------------------


def damages_of(path: Path) -> Iterator[FileDamage]:
    """Yield the damage of a file; an index is compared with its segment."""
    kind = kind_of(path)
    if kind == layout.LOG:
        yield from segment_damages(path)
    elif kind in (layout.OFFSET_INDEX, layout.TIME_INDEX):
        yield from index_damages(path)
    else:
        try:
            for _ in entries_of(path, with_records=False):
                pass
        except ValueError as error:
            yield FileDamage(path, str(error))


def segment_damages(path: Path) -> Iterator[FileDamage]:
    base = base_offset_of(path)
    file = OpenFile(path, os.O_RDONLY)
    end = path.stat().st_size
    position, next_offset = 0, base
    progress = FileProgress(path, end)
    while True:
        step = SegmentScan(
            *segment_walk.scan(
                file.fileno(), position, end, base, next_offset, 1 << 62, 0, -1, base, -1,
                LEADER_EPOCHS_KNOWN,
            )
        )  # fmt: skip
        position, next_offset = step.position, step.next_offset
        progress.at(position)
        if step.code == segment_walk.WHOLE:
            continue
        if step.code in (segment_walk.AT_END, segment_walk.ZEROS):
            break
        if step.code == segment_walk.STORAGE_ERROR:
            yield FileDamage(path, f"read error at byte {position}")
            break
        next_valid = segment_walk.next_whole(file.fileno(), position + 1, end, next_offset)
        if next_valid < 0:
            yield FileDamage(
                path,
                f"torn batch at the end: {end - position} bytes from byte {position}, offset"
                f" {next_offset}; unless they were flushed, the next start of the broker truncates"
                " them",
                torn_tail=True,
            )
            break
        yield FileDamage(
            path,
            f"corrupt batch at byte {position}, offset {next_offset}; the next valid batch begins"
            f" at byte {next_valid}",
        )
        position = next_valid
    progress.done()


def index_damages(path: Path) -> Iterator[FileDamage]:
    segment = path.with_suffix(layout.LOG)
    is_offsets = path.suffix == layout.OFFSET_INDEX
    size = 8 if is_offsets else 12
    content = path.read_bytes()
    if len(content) % size:
        yield FileDamage(path, f"size {len(content)} is not a multiple of the entry size {size}")
    content = content[: len(content) // size * size]
    # Kafka preallocates an open index, filled with zeros.
    while content.endswith(bytes(size)):
        content = content[:-size]
    if not segment.exists():
        yield FileDamage(path, f"segment {segment.name} is missing")
        return
    end = segment.stat().st_size
    if is_offsets:
        valid = count_valid_offsets(content, end)
    else:
        valid = count_valid_times(content, RELATIVE_OFFSET_MAX)
    if valid < len(content) // size:
        yield FileDamage(
            path, f"entry {valid} is not greater than the previous entry, or not in the segment"
        )
    elif is_offsets:
        yield from wrong_entries(path, segment, content, end)


def wrong_entries(path: Path, segment: Path, content: bytes, end: int) -> Iterator[FileDamage]:
    """Yield damage if an entry does not point to the batch that ends with its offset."""
    file = OpenFile(segment, os.O_RDONLY)
    base = base_offset_of(path)
    for number, (relative, position) in enumerate(struct.iter_unpack(">ii", content)):
        code, *_ = segment_walk.find_offset(
            file.fileno(), position, end, base + relative, base + relative
        )
        if code != segment_walk.WHOLE:
            yield FileDamage(
                path,
                f"entry {number} points to byte {position}, which is not the position of its batch",
            )
            return


def damage_as_json(damage: FileDamage) -> str:
    return json.dumps(
        {"file": str(damage.path), "fault": damage.description, "torn_tail": damage.torn_tail}
    )


class FileProgress:
    """Progress of reading a large file, on one line of a terminal."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._shown_s = time.monotonic()
        self._shown = False
        self._is_drawn = sys.stderr.isatty()

    def at(self, position: int) -> None:
        now_s = time.monotonic()
        if self._is_drawn and now_s - self._shown_s >= PROGRESS_S:
            self._shown_s, self._shown = now_s, True
            print(f"\r{self._path.name} {position * 100 // self._size} %", end="", file=sys.stderr)

    def done(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr)
