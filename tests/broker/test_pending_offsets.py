"""Offsets in transactions against a dictionary: any commits, markers and reloads.

The journal, its loader and the group coordinator are real; the log is a list of batches.  The model
knows the log offset of each record and applies Kafka's rule literally: a commit marker makes a
pending offset the committed one unless the committed one's record has a higher log offset.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kafkalite._ext.record_batch import HEADER_SIZE, assign_offset
from kafkalite.broker.coordinator import journal_loader
from kafkalite.broker.coordinator.journal_loader import RecordCodec
from kafkalite.broker.coordinator.partition_journal import PartitionJournal
from kafkalite.broker.machine_host import MachineHost
from kafkalite.clock import ManualClock
from kafkalite.coordination.groups.group_coordinator import OffsetToCommit
from kafkalite.coordination.groups.offsets.committed_offsets import UNSTABLE
from kafkalite.coordination.machine import TransactionEnd
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas import group_records
from kafkalite.records.batch import batches
from kafkalite.records.control import TransactionMarker
from tests.coordination.groups.harness import LIMITS, coordinator

GROUPS = st.sampled_from(["g", "g", "h"])
INDEXES = st.integers(0, 1)
PRODUCERS = st.integers(1, 2)
TOPIC = "t"


class ListLog:
    """A log that is a list of batches, each with its first offset."""

    directory = "a list"
    failure = None

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start_offset = self.end_offset = self.size = 0

    def append(self, batch: bytes) -> int:
        placed = bytearray(batch)
        head = placed[:HEADER_SIZE]
        assign_offset(head, self.end_offset, 0)
        placed[:HEADER_SIZE] = head
        self.batches.append((self.end_offset, bytes(placed)))
        self.size += len(batch)
        (read,) = batches(placed)
        self.end_offset = read.header.last_offset + 1
        return read.header.base_offset

    def read(self, offset: int, *_: Any) -> Any:
        content = b"".join(batch for base, batch in self.batches if base >= offset)
        return SimpleNamespace(read=lambda: content)


class Stored(NamedTuple):
    """An offset in the model, and the log offset of its record."""

    log_offset: int
    offset: int


class PendingOffsetsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = ListLog()
        self.committed: dict[tuple[str, int], Stored] = {}
        self.pending: dict[int, dict[tuple[str, int], Stored]] = {}
        self.offset = 0
        self.patch = mock.patch.object(journal_loader, "read", ListLog.read)
        self.patch.start()
        self.load()

    def teardown(self) -> None:
        self.patch.stop()

    def load(self) -> None:
        log = self.log
        partition = SimpleNamespace(
            log=log, waiting={}, error=None, high_watermark=1 << 60, replication=None
        )
        replicas = SimpleNamespace(append_own=lambda _, batch, __: log.append(batch))
        reactor = SimpleNamespace(clock=ManualClock())
        self.journal = PartitionJournal(
            partition, replicas, reactor,  # type: ignore[arg-type]
            RecordCodec(group_records.write, group_records.read, is_transactional=True),
        )  # fmt: skip
        self.groups = coordinator(LIMITS)
        for _ in self.journal.load(self.groups):
            pass
        self.groups.loaded(0)
        self.host = MachineHost(self.groups, self.journal)

    def next_offset(self) -> int:
        self.offset += 1
        return self.offset

    @rule(group=GROUPS, index=INDEXES)
    def commit(self, group: str, index: int) -> None:
        offset, log_offset = self.next_offset(), self.log.end_offset
        request = Fields(
            group_id=group, generation_id_or_member_epoch=-1, member_id="",
            group_instance_id=None, retention_time_ms=-1,
        )  # fmt: skip
        commits = [OffsetToCommit(TOPIC, index, offset)]
        self.host.decide(lambda groups: groups.commit_offsets(request, commits, None, 0, 0))
        self.committed[group, index] = Stored(log_offset, offset)

    @rule(producer_id=PRODUCERS, group=GROUPS, indexes=st.sets(INDEXES, min_size=1))
    def commit_in_transaction(self, producer_id: int, group: str, indexes: set[int]) -> None:
        request = Fields(
            group_id=group, generation_id_or_member_epoch=-1, member_id="",
            group_instance_id=None, producer_id=producer_id, producer_epoch=0,
        )  # fmt: skip
        commits = []
        for at, index in enumerate(indexes):
            stored = Stored(self.log.end_offset + at, self.next_offset())
            commits.append(OffsetToCommit(TOPIC, index, stored.offset))
            self.pending.setdefault(producer_id, {})[group, index] = stored
        self.host.decide(
            lambda groups: groups.commit_transactional_offsets(request, commits, None, 0, 0, 5)
        )

    @rule(producer_id=PRODUCERS, is_commit=st.booleans())
    def end(self, producer_id: int, is_commit: bool) -> None:
        self.log.append(TransactionMarker(producer_id, 0, is_commit, 0).batch(0))
        self.groups.replay(TransactionEnd(producer_id, is_commit))
        for key, stored in self.pending.pop(producer_id, {}).items():
            if is_commit and stored > self.committed.get(key, Stored(-1, -1)):
                self.committed[key] = stored

    @rule(group=GROUPS, index=INDEXES)
    def delete_offset(self, group: str, index: int) -> None:
        self.host.decide(lambda groups: groups.delete_offsets(group, [(TOPIC, index)], None, 0))
        self.remove(group, index)

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        self.host.decide(lambda groups: groups.delete_groups([group], None, 0))
        self.remove(group, 0)
        self.remove(group, 1)

    def remove(self, group: str, index: int) -> None:
        self.committed.pop((group, index), None)
        for keys in self.pending.values():
            keys.pop((group, index), None)

    @rule()
    def reload(self) -> None:
        self.load()

    @invariant()
    def offsets_agree(self) -> None:
        for group in ("g", "h"):
            found = self.groups.fetch_offsets(group, {TOPIC: [0, 1]})
            offsets = {(group, index): each.offset for index, each in found.get(TOPIC, {}).items()}
            assert offsets == {
                key: each.offset for key, each in self.committed.items() if key[0] == group
            }
            stable = self.groups.fetch_offsets(group, {TOPIC: [0, 1]}, require_stable=True)
            unstable = {
                (group, index) for index, each in stable.get(TOPIC, {}).items() if each is UNSTABLE
            }
            assert unstable == {
                key for keys in self.pending.values() for key in keys if key[0] == group
            }

    @invariant()
    def nothing_is_left_of_ended_transactions(self) -> None:
        pending = self.groups.offsets.pending
        assert bool(pending) == any(self.pending.values())
        if not pending:
            assert (pending.size, pending._producers) == (0, {})


PendingOffsetsMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
test_pending_offsets_agree_with_a_dictionary = PendingOffsetsMachine.TestCase
