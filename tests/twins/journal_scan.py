"""The twin of ext/log/journal_scan.pyx."""

from __future__ import annotations

from tests.twins import records
from tests.twins.record_reader import COMPRESSED, Batch

TRANSACTIONAL, CONTROL = 0x10, 0x20


def control_type_of(batch: bytes) -> int:
    """Return the type of a control record, -1 if there is none."""
    found = records.decode(batch[61:], int.from_bytes(batch[57:61], "big"), 1 << 31)
    return int.from_bytes(found[0][2][2:4], "big") if found else -1


class JournalScan:
    def __init__(self, is_transactional: bool) -> None:
        self.latest: dict[bytes, tuple] = {}
        self.pending: dict[int, dict[bytes, tuple]] = {}
        self.next_offset = 0
        self.is_transactional = is_transactional

    def run(self, content: bytes, position: int = 0) -> tuple[int, int]:
        while True:
            batch = Batch(content[position:], check_crcs=True)
            code = batch.code
            if not code:
                whole = content[position : position + batch.size]
                if batch.attributes & CONTROL:
                    self.end_transaction(whole)
                    self.next_offset = batch.last_offset + 1
                elif batch.attributes % 8:
                    code = COMPRESSED
                else:
                    code = self.add_payload(whole, whole[61:])
            if code:
                return code, position
            position += batch.size

    def add_payload(self, content: bytes, payload: bytes) -> int:
        batch = Batch(content, check_crcs=True)
        if batch.code:
            return batch.code
        rows = records.decode(payload, batch.count, batch.last_offset - batch.base_offset)
        if isinstance(rows, int):
            return rows
        is_pending = self.is_transactional and batch.attributes & TRANSACTIONAL
        producer_id = int.from_bytes(content[43:51], "big", signed=True)
        epoch = int.from_bytes(content[51:53], "big", signed=True)
        for delta, _, key, value, _ in rows:
            into = self.pending.setdefault(producer_id, {}) if is_pending else self.latest
            if key is not None:
                into.pop(key, None)
                more = (epoch,) if is_pending else ()
                into[key] = (batch.base_offset + delta, value, *more)
                if value is None and not is_pending:
                    for undecided in self.pending.values():
                        undecided.pop(key, None)
        self.next_offset = batch.last_offset + 1
        return 0

    def end_transaction(self, batch: bytes) -> None:
        control_type = control_type_of(batch)
        if control_type not in (0, 1):
            return
        ended = self.pending.pop(int.from_bytes(batch[43:51], "big", signed=True), {})
        if control_type == 1:
            for key, (offset, value, _) in ended.items():
                if self.latest.get(key, (-1,))[0] < offset:
                    self.latest.pop(key, None)
                    self.latest[key] = (offset, value)
