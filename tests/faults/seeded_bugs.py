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
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
COPIED = ("kafkalite", "tests", "tools", "examples", "benchmarks", "pyproject.toml")
TEST_S_MAX = 600


class SeededBug(NamedTuple):
    """A bug: what it is, the text it replaces, and the tests that catch it."""

    number: str
    what: str
    file: str
    old: str
    new: str
    tests: str


CLEANING = "tests/storage/test_cleaning.py tests/storage/test_cleaning_histories.py"
MACHINE = "tests/coordination/test_transaction_transitions.py"
COORDINATOR = "tests/coordination/test_transaction_coordinator.py"
MARKERS = "tests/broker/test_marker_queue.py"
LOG = "tests/storage/test_log_transactions.py"
VERIFICATION = "tests/storage/test_verification.py"
OFFSETS = "tests/coordination/test_transactional_offsets.py tests/broker/test_pending_offsets.py"

BUGS = (
    SeededBug(
        "B1", "EndTxn gets its response before Prepare is committed",
        "kafkalite/broker/machine_host.py",
        "            self._wait(records, settle)",
        "            self._wait(records, lambda _: None)\n"
        "            future.resolve(result.response)",
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
        "kafkalite/storage/producer_state.py",
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
        "kafkalite/storage/verification.py",
        "        return entry is not None and entry.guard is guard",
        "        return entry is not None",
        VERIFICATION,
    ),
    SeededBug(
        "B8", "ended transactions do not hold back the last stable offset",
        "kafkalite/storage/open_transactions.py",
        "            min((each.first_offset for each in self._ended), default=high_watermark),\n",
        "",
        LOG,
    ),
    SeededBug(
        "B9", "an aborted transaction is in the index of its first segment",
        "kafkalite/storage/segments.py",
        "        active = self.active\n        if completed.is_commit:",
        "        active = self[self.number_of(completed.first_offset)]\n"
        "        if completed.is_commit:",
        LOG,
    ),
    SeededBug(
        "B10", "the search for aborted transactions ends with the first segment",
        "kafkalite/storage/log_reader.py",
        "    for segment in aborting:", "    for segment in aborting[:1]:",
        LOG,
    ),
    SeededBug(
        "B11", "a marker at the read's first offset is not found",
        "kafkalite/storage/transaction_index.py",
        "        return bisect_left(range(self.count), offset, key=last_offset)",
        "        return bisect_left(range(self.count), offset + 1, key=last_offset)",
        LOG,
    ),
    SeededBug(
        "B12", "open transactions are not restored from a snapshot",
        "kafkalite/storage/producer_state.py",
        "                for producer_id, producer in producers.items()\n"
        "                if producer.txn_first_offset >= 0",
        "                for producer_id, producer in producers.items()\n"
        "                if producer.txn_first_offset > 1 << 60",
        f"{LOG} tests/storage/test_producers.py",
    ),
    SeededBug(
        "B13", "a marker with the same epoch empties the five batches",
        "kafkalite/storage/producer_state.py",
        "        elif producer.epoch != epoch:",
        "        elif producer.epoch != epoch or is_control:",
        f"{LOG} tests/storage/test_producers.py",
    ),
    SeededBug(
        "B14", "a producer with an open transaction expires",
        "kafkalite/storage/producer_state.py",
        "            if producer.txn_first_offset < 0 and now_ms", "            if now_ms",
        LOG,
    ),
    SeededBug(
        "B15", "a pending offset overwrites a newer one",
        "kafkalite/coordination/pending_offsets.py",
        "            self._replace_offset(offsets, producer_id)\n\n    def drop",
        "            pass\n\n    def drop",
        OFFSETS,
    ),
    SeededBug(
        "B16", "the journal is loaded by the last record of each key",
        "kafkalite/broker/coordinator/journal_loader.py",
        "                    if not self._open:", "                    if True:",
        OFFSETS,
    ),
    SeededBug(
        "B17", "a partition is unstable by one producer only",
        "kafkalite/coordination/pending_offsets.py",
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
        "kafkalite/storage/cleaning.py",
        "if header.is_transactional and self._aborted.holding(",
        "if not header.count and self._aborted.holding(",
        CLEANING,
    ),
    SeededBug(
        "B20", "an abort marker is dropped although an emptied batch is left",
        "kafkalite/storage/cleaning.py",
        "        self._met.add(aborted)",
        "        self._met.update([aborted] if header.count else [])",
        CLEANING,
    ),
    SeededBug(
        "B23", "the last batch of a live producer is dropped",
        "kafkalite/storage/cleaning.py",
        "return header.last_offset == producer.last_data_offset",
        "return False",
        CLEANING,
    ),
    SeededBug(
        "B24", "records above the last stable offset are cleaned",
        "kafkalite/storage/cleaning.py",
        "upper_offset = min(job.upper_offset, job.last_stable_offset)",
        "upper_offset = job.upper_offset",
        CLEANING,
    ),
    SeededBug(
        "B25", "the segment with the lowest base offset is renamed first",
        "kafkalite/storage/segment_swap.py",
        "sorted(group.segments, reverse=True)",
        "sorted(group.segments)",
        "tests/storage/test_segment_swap.py",
    ),
    SeededBug(
        "B26", "a segment that is partly mapped counts as clean",
        "kafkalite/storage/cleaning.py",
        "return code == cleaner.AT_END",
        "return True",
        CLEANING,
    ),
    SeededBug(
        "B27", "the transaction index keeps the entries of dropped transactions only",
        "kafkalite/storage/cleaning.py",
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
