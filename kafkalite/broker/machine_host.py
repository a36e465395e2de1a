"""Runs a machine over its log: load, write, replay, answer.

    ask(decide) ─▶ Result ─▶ one batch at the log's end ─▶ replay ─┄ flush ┄─▶ on_change ─▶ answer

The records of one decision are one batch, so they are all there after a crash or none is.  The
machine goes on at once, and the next decision builds on this one; but what others see of it, the
answer and the change of the node, waits until the batch is on the disk itself, whatever
`durability` says.  An answer without records waits in the same queue, because it may rest on
records that are not safe yet.  After a failed flush the process ends (storage), so nothing that
was replayed and not answered is ever taken back.

So that the log stays short, a load that had to replay much of it leaves a snapshot: the machine's
fewest records, in a file of the log's directory named by the offset it stands for,

    00000000000000012345.checkpoint = batches of records as in the log, then 8 bytes XXH3-64 of them

and the log then begins at the snapshot before.  Thus there are always two ways to load: the newest
snapshot, or should it be damaged the one before, each with the log that follows it.

Left out: snapshots while running; a node that never restarts replays a longer log when it does.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import xxhash

from kafkalite.broker.later import Later
from kafkalite.coordination.machine import Machine, Result
from kafkalite.errors import CorruptMessage, KafkaError, KafkaStorageError, Refusal
from kafkalite.protocol.schemas import internal
from kafkalite.records import batch as record_batch
from kafkalite.storage.disk import DISK, DiskFailed, put_file
from kafkalite.storage.layout import file_name

if TYPE_CHECKING:
    from kafkalite.clock import Clock
    from kafkalite.storage.flusher import Flush, Flusher
    from kafkalite.storage.log import Log

M = TypeVar("M", bound=Machine)
T = TypeVar("T")

Changed = Callable[[Sequence[internal.Record], int], None]

LEADER_EPOCH = 0
READ_SIZE = 1 << 20
BATCH_COUNT_MAX = 10_000
SNAPSHOT_AFTER_COUNT = 10_000
"""How many records a load replays from the log before it leaves a snapshot."""

SNAPSHOT = ".checkpoint"
DIGEST_SIZE = 8

log = logging.getLogger("kafkalite.broker")


class Waiting(NamedTuple):
    """An answer that may go once the log is durable up to `end_offset`."""

    end_offset: int
    records: Sequence[internal.Record]
    settle: Callable[[], None]


class MachineHost(Generic[M]):
    """One machine and its log; see the module."""

    def __init__(self, machine: M, log: Log, flusher: Flusher, clock: Clock) -> None:
        self.machine = machine
        self.log = log
        self._flusher = flusher
        self._clock = clock
        self._flushing = False
        self._waiting: deque[Waiting] = deque()
        self._changed: list[Changed] = []

    def on_change(self, changed: Changed) -> None:
        """Call `changed(records, end_offset)` with each decision's records, once they are durable;
        `end_offset` is that of the log behind them."""
        self._changed.append(changed)

    def ask(self, decide: Callable[[M], Result[T]]) -> Later[T]:
        """Let the machine decide; the answer comes when what it rests on is durable."""
        later: Later[T] = Later()
        records: Sequence[internal.Record] = ()
        try:
            result = decide(self.machine)
            if result.records:
                self._append(result.records)
                records = result.records
        except KafkaError as raised:
            fault = raised
            self._waiting.append(Waiting(self.log.end_offset, (), lambda: later.fail(fault)))
        else:
            self._waiting.append(
                Waiting(self.log.end_offset, records, lambda: later.resolve(result.response))
            )
        self._flush()
        self._release()
        return later

    def ask_at_start(self, decide: Callable[[M], Result[T]]) -> T:
        """Ask before anything is served: the answer at once, durable; Refusal says why not."""
        try:
            result = decide(self.machine)
            if result.records:
                self._append(result.records)
        except KafkaError as fault:
            raise Refusal(
                f"the node cannot enter the metadata log in {self.log.directory}:"
                f" {str(fault).rstrip('.')}"
            ) from None
        flush = self.log.flush_begin()
        if flush is not None:
            flush.run(DISK)
            if flush.error is not None:
                raise DiskFailed(f"{self.log.directory} cannot be flushed: {flush.error}")
            self.log.flush_end(flush)
        return result.response

    def _append(self, records: Sequence[internal.Record]) -> None:
        batch = packed(records, self.log.end_offset, self._clock.wall_ms())
        self.log.append(batch, LEADER_EPOCH, from_client=False)
        for record in records:
            self.machine.replay(record)

    # -- durable, then told ------------------------------------------------------------------

    def _flush(self) -> None:
        if self._flushing or self.log.durable_offset >= self.log.end_offset:
            return
        flush = self.log.flush_begin()
        if flush is not None:
            self._flushing = True
            flush.done = self._flushed
            self._flusher.submit([flush])

    def _flushed(self, flush: Flush) -> None:
        self._flushing = False
        self.log.flush_end(flush)
        self.log.settle()
        self._flush()
        self._release()

    def _release(self) -> None:
        while self._waiting and self._waiting[0].end_offset <= self.log.durable_offset:
            answer = self._waiting.popleft()
            if answer.records:
                for changed in self._changed:
                    changed(answer.records, answer.end_offset)
            answer.settle()

    # -- loading -----------------------------------------------------------------------------

    def load(self) -> None:
        """Make the machine what its snapshot and its log say; Refusal when they cannot be read."""
        if self.log.fault is not None:
            raise self._unreadable(self.log.end_offset, self.log.fault)
        begin = self._load_snapshot()
        if not self.log.log_start_offset <= begin <= self.log.end_offset:
            raise self._unreadable(begin, "the log does not reach there.")
        offset = begin
        try:
            while offset < self.log.end_offset:
                offset = self._load_from(offset)
        except KafkaError as fault:
            raise self._unreadable(offset, fault) from None
        if offset - begin >= SNAPSHOT_AFTER_COUNT:
            self._leave_snapshot(offset)

    def _unreadable(self, offset: int, reason: object) -> Refusal:
        return Refusal(
            f"the metadata log in {self.log.directory} cannot be read at offset {offset}:"
            f" {str(reason).rstrip('.')}; restore the data directory from a copy, or start with"
            " another one"
        )

    def _load_from(self, offset: int) -> int:
        found = self.log.read(offset, READ_SIZE, self.log.end_offset)
        next_offset = offset
        for batch in record_batch.batches(found.read()) if found is not None else ():
            if batch.header.base_offset > next_offset:
                break
            for record in batch:
                if record.offset >= offset:
                    self.machine.replay(internal.read(record.value or b""))
            next_offset = batch.header.last_offset + 1
        if next_offset == offset:
            raise CorruptMessage("records are missing there.")
        return next_offset

    def _load_snapshot(self) -> int:
        """Replay the newest snapshot that is whole; the offset from which the log goes on."""
        for path in sorted(self._snapshots(), reverse=True):
            try:
                records = read_snapshot(path)
            except (KafkaError, OSError) as fault:
                log.warning("%s is passed over: %s", path, fault)
                continue
            for record in records:
                self.machine.replay(record)
            return int(path.stem)
        return 0

    def _leave_snapshot(self, offset: int) -> None:
        path = self.log.directory / file_name(offset, SNAPSHOT)
        try:
            write_snapshot(path, self.machine.records(), self._clock.wall_ms())
            # A segment that ends where a snapshot stands can go with the snapshot before.
            self.log.roll()
            snapshots = sorted(self._snapshots())
            for old in snapshots[:-2]:
                old.unlink()
            if len(snapshots) > 1:
                self.log.delete_records(int(snapshots[-2].stem))
        except (OSError, KafkaStorageError) as fault:
            log.warning("%s is not finished, the next start tries again: %s", path, fault)

    def _snapshots(self) -> Iterator[Path]:
        return self.log.directory.glob("?" * 20 + SNAPSHOT)


def packed(records: Sequence[internal.Record], base_offset: int, now_ms: int) -> bytes:
    """One batch of these records, without keys."""
    return record_batch.build(
        (record_batch.Record(timestamp=now_ms, value=internal.write(record)) for record in records),
        base_offset=base_offset,
        leader_epoch=LEADER_EPOCH,
    )


def write_snapshot(path: Path, records: Iterable[internal.Record], now_ms: int) -> None:
    """Write a machine's fewest records, whole or not at all."""
    left = iter(records)
    content = bytearray()
    offset = 0
    while chunk := list(islice(left, BATCH_COUNT_MAX)):
        content += packed(chunk, offset, now_ms)
        offset += len(chunk)
    put_file(DISK, path, bytes(content) + xxhash.xxh3_64_digest(content))


def read_snapshot(path: Path) -> list[internal.Record]:
    """The records of a snapshot; CorruptMessage when it is not what was written."""
    content = memoryview(path.read_bytes())
    batches, digest = content[:-DIGEST_SIZE], bytes(content[-DIGEST_SIZE:])
    if xxhash.xxh3_64_digest(batches) != digest:
        raise CorruptMessage("its checksum does not hold.")
    return [
        internal.read(record.value or b"")
        for batch in record_batch.batches(batches)
        for record in batch
    ]
