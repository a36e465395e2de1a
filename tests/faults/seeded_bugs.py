"""Bugs put into a copy of the sources, each of which a test must catch.

    python -m tests.faults.seeded_bugs              all of them
    python -m tests.faults.seeded_bugs B7 B14       some

The numbers are names that do not change.  Each bug replaces a text that is in its file once; the
tests named beside it must then fail, and pass without it.  Left out are bugs of compiled modules,
which would have to be built each time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.replication_bugs import REPLICATION_BUGS
from tests.faults.seeded_bug import SeededBug

ROOT = Path(__file__).parent.parent.parent
COPIED = ("kafkalite", "tests", "tools", "examples", "benchmarks", "pyproject.toml")
TEST_S_MAX = 600


CLEANING = "tests/storage/test_cleaning.py tests/storage/test_cleaning_histories.py"
MACHINE = "tests/coordination/test_transaction_transitions.py"
COORDINATOR = "tests/coordination/test_transaction_coordinator.py"
MARKERS = "tests/broker/test_marker_queue.py"
LOG = "tests/storage/test_log_transactions.py"
VERIFICATION = "tests/storage/test_verification.py"
OFFSETS = (
    "tests/coordination/groups/offsets/test_transactional_offsets.py"
    " tests/broker/test_pending_offsets.py"
)

GROUPS = "tests/coordination/groups/consumer/test_consumer_groups.py"
GROUP_PROPERTIES = "tests/coordination/groups/consumer/test_consumer_group_properties.py"
MIGRATION = "tests/coordination/groups/consumer/test_group_migration.py"
MEMBER_EPOCHS = "tests/coordination/groups/consumer/test_member_epochs.py"

GROUP_BUGS = (
    SeededBug(
        "G1",
        "a partition is granted before its owner has revoked it",
        "kafkalite/coordination/groups/consumer/group_change.py",
        "        return owner is None or owner == member_id or self.member(owner) is None",
        "        return True",
        GROUP_PROPERTIES,
    ),
    SeededBug(
        "G2",
        "a heartbeat without owned partitions acknowledges a revocation",
        "kafkalite/coordination/groups/consumer/reconciliation.py",
        "    if owned is None:\n        return True",
        "    if owned is None:\n        return False",
        GROUPS,
    ),
    SeededBug(
        "G3",
        "the epoch of a member that has to revoke advances",
        "kafkalite/coordination/groups/consumer/reconciliation.py",
        "CurrentAssignment(current.epoch, current.epoch, UNREVOKED,",
        "CurrentAssignment(target_epoch, current.epoch, UNREVOKED,",
        GROUPS,
    ),
    SeededBug(
        "G4",
        "the previous epoch is accepted with any partitions",
        "kafkalite/coordination/groups/consumer/consumer_membership.py",
        "(is_repeated and owned is not None and _is_within(owned, current))",
        "is_repeated",
        GROUPS,
    ),
    SeededBug(
        "G5",
        "the target is computed from what members have, not from the old target",
        "kafkalite/coordination/groups/consumer/group_change.py",
        "        before = {**self.group.target, **self._targets}\n",
        "        before = {each.member_id: {topic: tuple(epochs) for topic, epochs in"
        " each.current.assigned.items()} for each in self.members()}\n",
        GROUPS,
    ),
    SeededBug(
        "G6",
        "the rebalance timeout does not begin after a load",
        "kafkalite/coordination/groups/consumer/consumer_membership.py",
        "            if member.current.state is MemberState.UNREVOKED_PARTITIONS:",
        "            if False:",
        GROUPS,
    ),
    SeededBug(
        "G7",
        "the return of a static member begins an epoch",
        "kafkalite/coordination/groups/consumer/group_change.py",
        "        self._targets[new_id] = target\n",
        "        self._targets[new_id] = target\n        self.wants_epoch = True\n",
        GROUPS,
    ),
    SeededBug(
        "G8",
        "a second process takes the place of a static member that is there",
        "kafkalite/coordination/groups/consumer/consumer_membership.py",
        "        if not holder.is_classic and holder.current.epoch != LEAVE_STATIC_EPOCH:",
        "        if False:",
        GROUPS,
    ),
    SeededBug(
        "G9",
        "an older epoch commits no partition that is to be revoked",
        "kafkalite/coordination/groups/consumer/consumer_group.py",
        "        for partitions in (current.assigned, current.pending):\n"
        "            assigned_epoch",
        "        for partitions in (current.assigned,):\n            assigned_epoch",
        MEMBER_EPOCHS,
    ),
    SeededBug(
        "G10",
        "the tombstone of a member precedes that of its assignment",
        "kafkalite/coordination/groups/consumer/consumer_member.py",
        "(CURRENT_ASSIGNMENT, TARGET_MEMBER, CONSUMER_MEMBER)",
        "(CONSUMER_MEMBER, TARGET_MEMBER, CURRENT_ASSIGNMENT)",
        GROUPS,
    ),
    SeededBug(
        "G11",
        "the last leave keeps the assignment epoch",
        "kafkalite/coordination/groups/consumer/group_change.py",
        "        if not self.member_count:",
        "        if False:",
        GROUPS,
    ),
    SeededBug(
        "G12",
        "a regular expression is searched for in the names of topics",
        "kafkalite/coordination/groups/assignment/topic_patterns.py",
        "    return RegularExpression(text)",
        '    return RegularExpression(f".*({text}).*")',
        "tests/coordination/groups/assignment/test_topic_patterns.py",
    ),
    SeededBug(
        "G13",
        "a commit extends the session of its member",
        "kafkalite/coordination/groups/consumer/consumer_group.py",
        "            )\n        _check_commit_epoch(member, epoch, commits)\n",
        "            )\n        _check_commit_epoch(member, epoch, commits)\n"
        "        draft.set_deadline(self.deadline(SESSION, member.member_id), 45_000)\n",
        MEMBER_EPOCHS,
    ),
    SeededBug(
        "G14",
        "an upgrade loses the assignments of classic members",
        "kafkalite/coordination/groups/consumer/group_migration.py",
        "        assigned = _upgraded_assignment(classic, topic_named, epoch)",
        "        assigned: PartitionEpochs = {}",
        MIGRATION,
    ),
)
"""B1 to B14 of the design of groups."""

SHARE_PARTITION = "tests/coordination/test_share_partition.py"

SHARE_BUGS = (
    SeededBug(
        "S15",
        "a release takes the delivery back",
        "kafkalite/coordination/share/share_partition.py",
        "            self._ranges.move(each, each.target)\n",
        "            each.delivery_count -= each.target is DeliveryState.AVAILABLE\n"
        "            self._ranges.move(each, each.target)\n",
        SHARE_PARTITION,
    ),
    SeededBug(
        "S16",
        "the batches before an invalid one are acknowledged",
        "kafkalite/coordination/share/share_partition.py",
        "        spans = [span for batch in batches for span in self._checked(member_id, batch)]\n",
        "        spans: list[Span] = []\n"
        "        for batch in batches:\n"
        "            try:\n"
        "                spans += self._checked(member_id, batch)\n"
        "            except InvalidRecordState:\n"
        "                break\n",
        SHARE_PARTITION,
    ),
    SeededBug(
        "S17",
        "the start offset passes records that are Archiving",
        "kafkalite/coordination/share/share_partition.py",
        "            if each.state_after(write_id) not in TERMINAL:",
        "            if each.state_after(write_id) not in {*TERMINAL, DeliveryState.ARCHIVING}:",
        SHARE_PARTITION,
    ),
    SeededBug(
        "S18",
        "the state is written for an earlier leader",
        "kafkalite/coordination/share/share_coordinator.py",
        "        if leader_epoch < known.leader_epoch:",
        "        if False:",
        "tests/coordination/test_share_coordinator.py",
    ),
    SeededBug(
        "S19",
        "the lock of a renewed record ends at its old time",
        "kafkalite/coordination/share/share_partition.py",
        "                    each.deadline_ms = now_ms + self.limits.lock_ms\n",
        "",
        SHARE_PARTITION,
    ),
    SeededBug(
        "S20",
        "a new partition of a known topic starts at its end",
        "kafkalite/coordination/groups/share/share_membership.py",
        "FROM_THE_BEGINNING if topic_id in known else LATEST_OR_CONFIGURED",
        "LATEST_OR_CONFIGURED",
        "tests/handlers/test_share_groups.py",
    ),
    SeededBug(
        "S21",
        "records of aborted transactions are acquired",
        "kafkalite/broker/share/fetched_batches.py",
        "        return found.is_transactional and found.producer_id in self._aborting",
        "        return False",
        "tests/handlers/test_share_transactions.py",
    ),
)
"""B15 to B21 of the design of groups."""

MEMBER_EVENTS = "tests/client/test_group_events.py"
CONSUMER_MEMBER = "tests/client/test_consumer_protocol_member.py"
CLASSIC_MEMBER = "tests/client/test_classic_protocol_member.py"
GROUP_CONSUMER = "tests/client/test_group_consumer.py"

MEMBER_BUGS = (
    SeededBug(
        "M1",
        "a partition does not count as owned while its callback runs",
        "kafkalite/client/group/consumer_protocol_member.py",
        "            self._owned.update(change.partitions)\n        return change\n\n"
        "    def applied(self, change: AssignmentChange, now_s: float) -> None:\n",
        "            pass\n        return change\n\n"
        "    def applied(self, change: AssignmentChange, now_s: float) -> None:\n"
        "        if change.kind is ChangeKind.ASSIGNED:\n"
        "            self._owned.update(change.partitions)\n",
        CONSUMER_MEMBER,
    ),
    SeededBug(
        "M2",
        "a revocation is acknowledged before its callback has returned",
        "kafkalite/client/group/consumer_protocol_member.py",
        "            self._owned.update(change.partitions)\n        return change",
        "            self._owned.update(change.partitions)\n"
        "        elif change is not None:\n"
        "            self._sent_owned = None\n"
        "            for partition in change.partitions:\n"
        "                self._owned.pop(partition, None)\n"
        "        return change",
        CONSUMER_MEMBER,
    ),
    SeededBug(
        "M3",
        "an eager member joins again without a revocation",
        "kafkalite/client/group/classic_protocol_member.py",
        "        if self.is_eager and (self._owned or self._applying is not None):",
        "        if False:",
        CLASSIC_MEMBER,
    ),
    SeededBug(
        "M4",
        "what a cooperative member gives up is left without an owner",
        "kafkalite/client/group/classic_protocol_member.py",
        "        self._must_rejoin = self._must_rejoin or bool(self._sent_owned - assigned)",
        "        pass",
        CLASSIC_MEMBER,
    ),
    SeededBug(
        "M5",
        "cooperative-sticky assigns a partition while its owner has it",
        "kafkalite/client/group/client_assignors.py",
        "        member.member_id: sorted(p for p in partitions if owners.get(p, index) == index)",
        "        member.member_id: sorted(partitions)",
        CLASSIC_MEMBER,
    ),
    SeededBug(
        "M6",
        "after an error a heartbeat leaves out what has not changed",
        "kafkalite/client/group/consumer_protocol_member.py",
        '        """Handle the error of a heartbeat."""\n        self._sends_all = True',
        '        """Handle the error of a heartbeat."""',
        CONSUMER_MEMBER,
    ),
    SeededBug(
        "M7",
        "an automatic commit covers a record that the current call returns",
        "kafkalite/client/consumer/consumer.py",
        "                if not (fill(deadline) if messages else self._fill(deadline, fill)):",
        "                if not self._fill(deadline, fill):",
        GROUP_CONSUMER,
    ),
    SeededBug(
        "M8",
        "the heartbeat thread does not look after max.poll.interval.ms",
        "kafkalite/client/group/consumer_protocol_member.py",
        "            self._expire()",
        "            self._poll_due_s = NEVER",
        CONSUMER_MEMBER,
    ),
    SeededBug(
        "M9",
        "a member commits partitions that it has revoked",
        "kafkalite/client/consumer/group_reading.py",
        "            self._reader.assign_member(left)\n",
        "",
        GROUP_CONSUMER,
    ),
)
"""Bugs of members in the native client; M9 is B22 of the design of groups."""

BUGS = (
    *GROUP_BUGS,
    *SHARE_BUGS,
    *MEMBER_BUGS,
    *REPLICATION_BUGS,
    SeededBug(
        "B1", "EndTxn gets its response before Prepare is committed",
        "kafkalite/broker/machine_host.py",
        "        end_offset = self.journal.end_offset\n",
        "        end_offset = self.journal.committed_offset\n",
        "tests/broker/test_machine_host.py",
    ),
    SeededBug(
        "B2", "Complete is written when the markers are sent",
        "kafkalite/broker/coordinator/marker_queue.py",
        "            self._delay(markers, now_ms)\n\n    def _complete_some",
        "            self._delay(markers, now_ms)\n        for each in markers:\n"
        "            self._written(each.transaction, each.partition)\n\n    def _complete_some",
        MARKERS,
    ),
    SeededBug(
        "B3", "markers have the epoch of an old coordinator",
        "kafkalite/broker/coordinator/marker_queue.py",
        "            self.coordinator.coordinator_epoch,", "            0,",
        f"{MARKERS} tests/broker/test_markers_in_cluster.py",
    ),
    SeededBug(
        "B4", "a marker of version 2 has the epoch before the raise",
        "kafkalite/broker/coordinator/marker_queue.py",
        "            prepared.producer_epoch,",
        "            prepared.producer_epoch - (prepared.transaction_version >= 2),",
        f"{MARKERS} tests/broker/test_markers_in_cluster.py",
    ),
    SeededBug(
        "B5", "a repeated marker with an equal epoch is refused",
        "kafkalite/storage/state/producer_state.py",
        "            is_old = producer.txn_first_offset >= 0 and epoch != FENCING_EPOCH",
        "            is_old = True",
        LOG,
    ),
    SeededBug(
        "B6", "a repeated EndTxn of version 2 aborts the next transaction",
        "kafkalite/coordination/transaction.py",
        "        actions = REPEATED_COMMIT if is_commit else REPEATED_ABORT",
        "        actions = COMMIT_WITH_EPOCH if is_commit else ABORT_WITH_EPOCH",
        MACHINE,
    ),
    SeededBug(
        "B7", "any guard of the producer will do",
        "kafkalite/storage/state/verification.py",
        "        return entry is not None and entry.guard is guard",
        "        return entry is not None",
        VERIFICATION,
    ),
    SeededBug(
        "B8", "ended transactions do not hold back the last stable offset",
        "kafkalite/storage/state/open_transactions.py",
        "            self._holding[0].first_offset if self._holding else high_watermark,\n",
        "",
        LOG,
    ),
    SeededBug(
        "B9", "an aborted transaction is in the index of its first segment",
        "kafkalite/storage/segment/segments.py",
        "        active = self.active\n        if completed.is_commit:",
        "        active = self[self.number_of(completed.first_offset)]\n"
        "        if completed.is_commit:",
        LOG,
    ),
    SeededBug(
        "B10", "the search for aborted transactions ends with the first segment",
        "kafkalite/storage/segment/aborted_lookup.py",
        "        self._segments = aborting\n", "        self._segments = aborting[:1]\n",
        LOG,
    ),
    SeededBug(
        "B11", "a marker at the read's first offset is not found",
        "kafkalite/storage/segment/transaction_index.py",
        "        return bisect_left(range(self.count), offset, key=last_offset)",
        "        return bisect_left(range(self.count), offset + 1, key=last_offset)",
        LOG,
    ),
    SeededBug(
        "B12", "open transactions are not restored from a snapshot",
        "kafkalite/storage/state/producer_state.py",
        "                for producer_id, producer in producers.items()\n"
        "                if producer.txn_first_offset >= 0",
        "                for producer_id, producer in producers.items()\n"
        "                if producer.txn_first_offset > 1 << 60",
        f"{LOG} tests/storage/test_producers.py",
    ),
    SeededBug(
        "B13", "a marker with the same epoch empties the five batches",
        "kafkalite/storage/state/producer_state.py",
        "        elif producer.epoch != epoch:",
        "        elif producer.epoch != epoch or is_control:",
        f"{LOG} tests/storage/test_producers.py",
    ),
    SeededBug(
        "B14", "a producer with an open transaction expires",
        "kafkalite/storage/state/producer_state.py",
        "            if producer.txn_first_offset < 0 and now_ms", "            if now_ms",
        LOG,
    ),
    SeededBug(
        "B15", "a pending offset overwrites a newer one",
        "kafkalite/coordination/groups/offsets/pending_offsets.py",
        "            self._replace_offset(offsets, producer_id)\n\n    def drop",
        "            pass\n\n    def drop",
        OFFSETS,
    ),
    SeededBug(
        "B16", "the journal is loaded by the last record of each key",
        "kafkalite/broker/coordinator/journal_loader.py",
        "JournalScan(codec.is_transactional)", "JournalScan(False)",
        OFFSETS,
    ),
    SeededBug(
        "B17", "a partition is unstable by one producer only",
        "kafkalite/coordination/groups/offsets/pending_offsets.py",
        "        return key in self._groups.get(key.group, ())",
        "        return len(self._groups.get(key.group, {}).get(key, ())) == 1",
        OFFSETS,
    ),
    SeededBug(
        "B18", "an abort at the timeout keeps the epoch",
        "kafkalite/coordination/transaction.py",
        "    epoch = min(stored.producer_epoch + 1, FENCING_EPOCH)\n    return aborted",
        "    epoch = stored.producer_epoch\n    return aborted",
        f"{MACHINE} {COORDINATOR}",
    ),
    SeededBug(
        "B19", "aborted batches enter the offset map",
        "kafkalite/storage/compaction/cleaning.py",
        "if header.is_transactional and self._aborted.holding(",
        "if not header.count and self._aborted.holding(",
        CLEANING,
    ),
    SeededBug(
        "B20", "an abort marker is dropped although an emptied batch is left",
        "kafkalite/storage/compaction/cleaning.py",
        "        self._met.add(aborted)",
        "        self._met.update([aborted] if header.count else [])",
        CLEANING,
    ),
    SeededBug(
        "B21", "the delete horizon of a marker is set anew in each pass",
        "kafkalite/storage/compaction/cleaning.py",
        "        if header.delete_horizon_ms is None:\n", "        if True:\n",
        CLEANING,
    ),
    SeededBug(
        "B23", "the last batch of a live producer is dropped",
        "kafkalite/storage/compaction/cleaning.py",
        "return header.last_offset == producer.last_data_offset",
        "return False",
        CLEANING,
    ),
    SeededBug(
        "B24", "records above the last stable offset are cleaned",
        "kafkalite/storage/compaction/cleaning.py",
        "upper_offset = min(job.upper_offset, job.last_stable_offset)",
        "upper_offset = job.upper_offset",
        CLEANING,
    ),
    SeededBug(
        "B25", "the segment with the lowest base offset is renamed first",
        "kafkalite/storage/compaction/segment_swap.py",
        "sorted(group.segments, reverse=True)",
        "sorted(group.segments)",
        "tests/storage/test_segment_swap.py",
    ),
    SeededBug(
        "B26", "a segment that is partly mapped counts as clean",
        "kafkalite/storage/compaction/cleaning.py",
        "return code == cleaner.AT_END",
        "return True",
        CLEANING,
    ),
    SeededBug(
        "B27", "the transaction index keeps the entries of dropped transactions only",
        "kafkalite/storage/compaction/cleaning.py",
        "            self._kept_abort = aborted\n            return cleaner.UNCHANGED\n",
        "            return cleaner.UNCHANGED\n        self._kept_abort = aborted\n",
        CLEANING,
    ),
    SeededBug(
        "B28", "a direct reader keeps the segments of an older generation",
        "kafkalite/broker/local/direct_reads.py",
        "        if self._generations.get(key) != generation:",
        "        if key not in self._generations:",
        "tests/broker/test_direct_reads.py",
    ),
    SeededBug(
        "B29", "InitProducerId answers before the fencing abort",
        "kafkalite/coordination/transaction_coordinator.py",
        "        if state.state in PREPARED:\n            response",
        "        if not state.producer_id:\n            response",
        COORDINATOR,
    ),
    SeededBug(
        "B30", "a feature is finalized before all nodes support it",
        "kafkalite/coordination/features.py",
        "    for node_id in sorted(image.nodes):", "    for node_id in sorted(by_node):",
        "tests/coordination/test_features.py tests/broker/test_features_in_cluster.py",
    ),
)  # fmt: skip


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy of the sources, with the compiled modules."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-seeded-") as scratch:
        copy = Path(scratch)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "node_modules")
                shutil.copytree(source, copy / name, ignore=ignored)
            else:
                shutil.copy(source, copy)
        yield copy


def failing(copy: Path, tests: str) -> Sequence[str]:
    """Run tests in a copy; return those that fail."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, *tests.split()], cwd=copy, env=environment, capture_output=True, text=True,
        timeout=TEST_S_MAX, check=False,
    )  # fmt: skip
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert bool(failed) == bool(done.returncode), done.stdout
    return failed


def caught(bug: SeededBug, copy: Path) -> Sequence[str]:
    """Return the tests that fail with a bug in a copy, which is then as before."""
    file = copy / bug.file
    sound = file.read_text()
    assert sound.count(bug.old) == 1, f"{bug.number}: the text is not in {bug.file} once"
    file.write_text(sound.replace(bug.old, bug.new))
    try:
        return failing(copy, bug.tests)
    finally:
        file.write_text(sound)


def main(numbers: Sequence[str]) -> int:
    missed = 0
    chosen = [bug for bug in BUGS if not numbers or bug.number in numbers]
    with copied() as copy:
        tests = " ".join(sorted({path for bug in chosen for path in bug.tests.split()}))
        if failed := failing(copy, tests):
            print(f"without a bug {failed[0]} fails")
            return 1
        for bug in chosen:
            failed = caught(bug, copy)
            missed += not failed
            told = f"caught by {failed[0]}" if failed else "NOT CAUGHT"
            print(f"{bug.number:4} {bug.what}: {told}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
