"""Bugs of replication, each of which a test must catch (seeded_bugs.py).

Left out: bugs of parts that do not exist yet, such as several log directories.
"""

from __future__ import annotations

from tests.faults.seeded_bug import SeededBug

ISR = "kafkalite/broker/replica/isr.py"
FETCH = "kafkalite/broker/replica/replica_fetch.py"
CHANGE = "kafkalite/coordination/replication/partition_change.py"
ALTER = "kafkalite/coordination/replication/alter_partition.py"
RECOVERY = "kafkalite/coordination/replication/recovery_election.py"
FLUSHES = "kafkalite/storage/log/log_flushes.py"
TRUNCATION = "kafkalite/storage/log/log_truncation.py"

ISR_TESTS = "tests/broker/test_isr.py"
LEADER_TESTS = "tests/broker/test_leader_replication.py"
CHANGE_TESTS = "tests/coordination/replication/test_partition_change.py"
ALTER_TESTS = "tests/coordination/replication/test_alter_partition.py"
LEADERSHIP_TESTS = "tests/coordination/replication/test_leadership.py"
CLUSTER_TESTS = "tests/broker/test_replication_in_cluster.py"
COORDINATOR_TESTS = "tests/broker/test_replicated_coordinators.py"
FOLLOWER_READS = "tests/broker/test_follower_reads_in_cluster.py"
TRUNCATION_TESTS = "tests/storage/test_log_truncation.py"

REPLICATION_BUGS = (
    SeededBug(
        "R1", "the high watermark counts the leader only",
        ISR,
        "        reached = min(leader.end_offset, self._replicated(leader.end_offset, now_ms))",
        "        reached = leader.end_offset",
        ISR_TESTS,
    ),
    SeededBug(
        "R2", "acks=all is answered when the record is appended",
        "kafkalite/broker/replica/delayed_produce.py",
        "        if partition.high_watermark > append.last_offset:  # A",
        "        if True:  # A",
        CLUSTER_TESTS,
    ),
    SeededBug(
        "R3", "a follower truncates to what it knows as committed",
        FETCH,
        "        offset = truncation_offset(leader, log.leader_epochs, log.end_offset)",
        "        offset = min(self.high_watermark, log.end_offset)",
        LEADER_TESTS,
    ),
    SeededBug(
        "R4", "a diverging log counts as progress",
        "kafkalite/broker/replica/leader_replication.py",
        "        if diverging is not None:\n",
        "        if diverging is not None:\n"
        "            isr.fetched(follower, span.end_offset, self._now_ms(), session)\n",
        LEADER_TESTS,
    ),
    SeededBug(
        "R5", "a follower joins before it has the start of the epoch",
        ISR,
        "follower.end_offset >= max(self.high_watermark, self.epoch_start)",
        "follower.end_offset >= self.high_watermark",
        ISR_TESTS,
    ),
    SeededBug(
        "R6", "a shrink counts before it is committed",
        ISR,
        "        return frozenset(self.partition.isr).union(self._proposed())",
        "        return frozenset(self._proposed())",
        ISR_TESTS,
    ),
    SeededBug(
        "R7", "AlterPartition ignores the partition epoch",
        ALTER,
        "    if proposal.partition_epoch < partition.partition_epoch:",
        "    if False:",
        ALTER_TESTS,
    ),
    SeededBug(
        "R8", "the node epoch of a fetch is not compared",
        ISR,
        "        return known is not None and known == self._followers[node_id].node_epoch",
        "        return known is not None",
        ISR_TESTS,
    ),
    SeededBug(
        "R9", "a replica that has lost its log stays eligible",
        CHANGE,
        " and node_id not in target.isr and node_id not in lost",
        " and node_id not in target.isr",
        CHANGE_TESTS,
    ),
    SeededBug(
        "R10", "the high watermark moves below min.insync.replicas",
        ISR,
        "        if not self.has_min_isr:\n            return False",
        "        if False:\n            return False",
        ISR_TESTS,
    ),
    SeededBug(
        "R11", "a truncation leaves the state of producers",
        TRUNCATION,
        "            if not self._producers.load_snapshot(cut.end_offset):",
        "            if False:",
        TRUNCATION_TESTS,
    ),
    SeededBug(
        "R12", "a truncation leaves the leader epochs",
        TRUNCATION,
        "        self._epochs.truncate_from_end(end_offset)\n",
        "",
        TRUNCATION_TESTS,
    ),
    SeededBug(
        "R13", "a flush that returns after a truncation raises the durable offset",
        FLUSHES,
        "        if flush.is_superseded:\n            return\n        if flush.refused",
        "        if flush.refused",
        TRUNCATION_TESTS + " tests/storage/test_truncation_job.py",
    ),
    SeededBug(
        "R14", "a recovery election does not wait for all candidates",
        RECOVERY,
        " or len(candidates - reported) > missing_max",
        "",
        LEADERSHIP_TESTS,
    ),
    SeededBug(
        "R15", "the boot of the host is not compared at the start",
        "kafkalite/broker/assembly.py",
        "        if ran_in_this_boot:",
        "        if True:",
        CLUSTER_TESTS,
    ),
    SeededBug(
        "R16", "a new leader does not note its epoch before the first record",
        "kafkalite/broker/replica/partition.py",
        "            self.log.leader_epochs.assign(leader_epoch, self.log.end_offset)",
        "            pass",
        LEADER_TESTS,
    ),
    SeededBug(
        "R19", "a reassignment is completed with a replica that is not in sync",
        CHANGE,
        "    if not replicas or not set(replicas) <= set(isr):",
        "    if not replicas:",
        "tests/coordination/replication/test_reassignment.py",
    ),
    SeededBug(
        "R20", "the high watermark of a follower passes the end of its log",
        FETCH,
        "        reached = min(response.high_watermark, log.end_offset)",
        "        reached = response.high_watermark",
        LEADER_TESTS,
    ),
    SeededBug(
        "R21", "a response is applied to another state of the log",
        FETCH,
        "fetch.follower.offset != now.follower.offset",
        "False",
        LEADER_TESTS,
    ),
    SeededBug(
        "R22", "an older image of the partition is applied again",
        ISR,
        "        if partition.partition_epoch <= self.partition.partition_epoch:",
        "        if False:",
        ISR_TESTS,
    ),
    SeededBug(
        "R23", "an election forgets the witnesses",
        CHANGE,
        "    witnesses = () if is_flushed else _witnesses(partition, target, by_leader)",
        "    witnesses: Nodes = ()",
        CHANGE_TESTS,
    ),
    SeededBug(
        "R24", "records count as flushed on the others before they are",
        ISR,
        "        return flushed >= max(self.high_watermark, self.epoch_start)\n",
        "        return True\n",
        ISR_TESTS,
    ),
    SeededBug(
        "R25", "the ISR shrinks before the leader has flushed what earlier leaders committed",
        ISR,
        "        return isr if flushed >= max(self.high_watermark, self.epoch_start) else",
        "        return isr if flushed >= self.high_watermark else",
        ISR_TESTS,
    ),
    SeededBug(
        "R26", "flushed copies on a lost disk are counted",
        CHANGE,
        "    return max(1, before.flushed_copies - len(gone))",
        "    return before.flushed_copies",
        CHANGE_TESTS,
    ),
    SeededBug(
        "R27", "a batch after a refused one is taken",
        "kafkalite/broker/replica/replica_manager.py",
        "        self.refused.check(partition, batch)\n",
        "",
        CLUSTER_TESTS,
    ),
    SeededBug(
        "R28", "the flush of a start leaves the leader epochs as not flushed",
        FLUSHES,
        "        if not self._epochs.unsaved:\n",
        "        if False:\n",
        "tests/storage/test_epoch_durability.py",
    ),
    SeededBug(
        "R29", "a session that closes late ends the repetition of the next one",
        ISR,
        " and follower.repeated is session",
        "",
        "tests/broker/test_follower_sessions.py",
    ),
    SeededBug(
        "R30", "a coordinator responds once its records are appended",
        "kafkalite/broker/coordinator/partition_journal.py",
        "        return self.partition.high_watermark\n",
        "        return self.partition.log.end_offset\n",
        COORDINATOR_TESTS,
    ),
    SeededBug(
        "R31", "node 0 counts as in sync without its log",
        "kafkalite/broker/controller/own_replicas.py",
        "        lost = registration.lost_replicas(image, SUPERVISOR_ID, logs)\n",
        "        lost: set[tuple[bytes, int]] = set()\n",
        COORDINATOR_TESTS,
    ),
    SeededBug(
        "R32", "a coordinator keeps its state when its node leads again",
        "kafkalite/broker/coordinator/coordinator_host.py",
        "        if host is not None and host.partition is partition:\n",
        "        if False:\n",
        COORDINATOR_TESTS,
    ),
    SeededBug(
        "R33", "a coordinator writes while too few replicas are in sync",
        "kafkalite/broker/coordinator/partition_journal.py",
        "            self.partition.replication.check_min_isr()\n",
        "            pass\n",
        COORDINATOR_TESTS,
    ),
    SeededBug(
        "R34", "node 0 leads on in the epoch of its last process",
        "kafkalite/coordination/replication/registration.py",
        "            return change(partition, rules, lambda other: False)\n        isr =",
        "            return partition\n        isr =",
        COORDINATOR_TESTS,
    ),
    SeededBug(
        "R40", "a follower shows records above its high watermark",
        "kafkalite/broker/replica/followed_partition.py",
        "        return self.replication.high_watermark",
        "        return self.log.end_offset",
        FOLLOWER_READS,
    ),
    SeededBug(
        "R41", "a follower that is not in sync serves consumers",
        "kafkalite/broker/replica/read_replicas.py",
        "        if partition is None or not (partition.is_in_sync or is_debugging):",
        "        if partition is None:",
        FOLLOWER_READS,
    ),
    SeededBug(
        "R42", "a fetch that waits at a follower does not see the high watermark grow",
        "kafkalite/broker/replica/followed_partitions.py",
        "            if partition.waiting:\n",
        "            if False:\n",
        FOLLOWER_READS,
    ),
    SeededBug(
        "R43", "a follower is read while a thread truncates its log",
        "kafkalite/broker/replica/followed_partition.py",
        "        if self.log.is_truncating:",
        "        if False:",
        FOLLOWER_READS,
    ),
    SeededBug(
        "R44", "a consumer is sent to a follower that lacks the offset",
        ISR,
        "                and follower.log_start_offset <= offset <= follower.end_offset\n",
        "",
        FOLLOWER_READS,
    ),
)  # fmt: skip
