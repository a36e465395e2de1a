"""Passes of the log cleaner over a node's logs: offers, jobs, swaps, cancelling, failures.

The test is the cleaner: it speaks over the local socket, and cleans in this process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite import errors
from kafkalite.broker.cleaner_metrics import cleaner_families
from kafkalite.broker.stepping import ENTRIES_AT_ONCE
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas import cleaning
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.compaction import cleaning_files, segment_swap
from kafkalite.storage.compaction.cleaning import clean
from kafkalite.storage.compaction.cleaning_job import CleaningJob, CleaningResult
from kafkalite.storage.files.disk import DiskFailed
from kafkalite.storage.files.layout import CLEANER_CHECKPOINT
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.manager import cleaner_candidates
from tests.broker.local_harness import LocalClient, LocalNode, descriptor_count
from tests.handlers.grouping import find
from tests.handlers.test_compacted_topics import set_policy
from tests.storage.test_cleaning import end_txn, put_txn


class Cleaner:
    """A cleaner's connection to the node."""

    def __init__(self, host: LocalNode) -> None:
        self.client: LocalClient = host.connect_client()
        self.job_file = -1

    def ask(self, record: Any) -> dict[str, Any]:
        self.client.send(record)
        answer, descriptors = self.client.receive()
        self.descriptors = descriptors
        return answer.fields

    def offer(self) -> dict[str, Any]:
        return self.ask(cleaning.OFFER(request_id=1))

    def take(self, topic_id: bytes, request_id: int = 2) -> CleaningJob:
        take = cleaning.TAKE_JOB(request_id=request_id, topic_id=topic_id, partition=0)
        fields = self.ask(take)
        assert fields["error_code"] == 0, fields["error_message"]
        (self.job_file,) = self.descriptors
        return cleaning_files.read_job(self.job_file)

    def hand_in(
        self, result: CleaningResult | None, error: int = 0, retriable: bool = False
    ) -> dict[str, Any]:
        """Send the result and return the fields of SWAPPED."""
        if result is not None:
            cleaning_files.write_result(self.job_file, result)
        os.close(self.job_file)
        return self.ask(
            cleaning.CLEANED(
                request_id=2, error_code=error, error_message="it failed", retriable=retriable
            )
        )

    def clean(self, topic_id: bytes) -> CleaningResult:
        result = clean(self.take(topic_id), lambda size: None)
        assert self.hand_in(result)["error_code"] == 0
        return result

    def status(self, topic_id: bytes, kind: Any = cleaning.CLEANER_STATE) -> dict[str, Any]:
        return self.ask(kind(request_id=3, topic_id=topic_id, partition=0))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalNode]:
    made = LocalNode(tmp_path / "data", **{"log.cleaner.dedupe.buffer.size": str(1 << 20)})
    made.topic = made.create("a", 1, cleanup_policy="compact")
    made.log = made.node.replicas.leader("a", 0).log
    yield made
    made.remove()


@pytest.fixture
def cleaner(host: LocalNode) -> Cleaner:
    return Cleaner(host)


def fill(host: LocalNode, rounds: int = 3, keys: int = 10, topic: str = "a") -> None:
    """Append a value for each key, and roll, so often."""
    partition = host.node.replicas.leader(topic, 0)
    for number in range(rounds):
        for key in range(keys):
            record = Record(timestamp=1_000, key=b"%d" % key, value=b"%d" % number)
            host.node.replicas.append_own(partition, build([record]))
        partition.log.roll()
    host.reactor.tick(0)


def records(host: LocalNode, topic: str = "a") -> list[tuple[int, bytes, bytes]]:
    log = host.node.replicas.leader(topic, 0).log
    found, offset = [], log.log_start_offset
    while (piece := read(log, offset, 1 << 20, log.end_offset)) is not None:
        for batch in batches(piece.read()):
            found += [(each.offset, each.key, each.value) for each in batch]
            offset = batch.header.last_offset + 1
    return found


def latest(rounds: int = 3, keys: int = 10) -> list[tuple[int, bytes, bytes]]:
    first = (rounds - 1) * keys
    return [(first + key, b"%d" % key, b"%d" % (rounds - 1)) for key in range(keys)]


def files(host: LocalNode, suffix: str) -> list[str]:
    return sorted(name for name in os.listdir(host.log.directory) if name.endswith(suffix))


def test_offered_log_is_cleaned_and_its_checkpoint_set(host, cleaner):
    assert cleaner.offer()["partition"] == -1
    fill(host)
    offer = cleaner.offer()
    assert (offer["partition"], offer["topic_id"], offer["dirty_ratio"]) == (0, host.topic, 1.0)
    assert (offer["threads"], offer["backoff_ms"]) == (1, 15_000)
    before, descriptors = records(host), descriptor_count()
    generation = host.log.generation
    cleaner.clean(host.topic)
    assert len(before) == 30 and records(host) == latest()
    assert host.log.generation > generation and host.log.cleaner_offset == 30
    assert files(host, ".cleaned") == [] and files(host, ".swap") == []
    assert cleaner.offer()["partition"] == -1
    status = cleaner.status(host.topic)
    assert (status["state"], status["passes"], status["dirty_ratio"]) == (0, 1, 0.0)
    assert host.node.replicas.total_size() == host.log.size
    assert descriptor_count() <= descriptors + 2
    host.restart()
    assert records(host) == latest()
    assert host.node.replicas.leader("a", 0).log.cleaner_offset == 30


def test_dirtiest_log_is_offered_first_and_none_that_is_not_compacted(host, cleaner):
    other = host.create("b", 1, cleanup_policy="compact")
    host.create("c", 1)
    fill(host)
    cleaner.clean(host.topic)
    fill(host, rounds=30)
    fill(host, topic="b")
    fill(host, topic="c")
    assert cleaner.offer()["topic_id"] == other
    cleaner.clean(other)
    assert cleaner.offer()["topic_id"] == host.topic
    cleaner.clean(host.topic)
    assert cleaner.offer()["topic_id"] == NO_ID


def test_log_is_not_offered_to_a_second_cleaner(host, cleaner):
    fill(host)
    cleaner.take(host.topic)
    second = Cleaner(host)
    assert second.offer()["partition"] == -1
    refused = second.ask(cleaning.TAKE_JOB(request_id=9, topic_id=host.topic, partition=0))
    assert refused["error_code"] == errors.RequestTimedOut.code
    assert second.status(host.topic)["state"] == 1


def test_job_of_a_log_with_many_producers_is_written_in_steps(host, cleaner):
    fill(host)
    producers = host.log.producers
    for producer_id in range(9_000):
        producers.replay(29, 0, 0, 1_000, producer_id, 4, 0)
    jobs = host.local_listener.cleaning
    active = jobs.begin(host.topic, 0, lambda _: None)
    assert not active.job.producers
    assert sum(1 for _ in jobs._write_job(active)) >= 9_000 // ENTRIES_AT_ONCE
    written = cleaning_files.read_job(active.descriptor).producers
    assert written == dict.fromkeys(range(9_000), (29, 4))
    jobs.abandon(active)


def test_segments_deleted_while_a_job_is_written_end_the_pass(host, cleaner, monkeypatch):
    monkeypatch.setattr(cleaner_candidates, "READ_COUNT", 1)
    for sequence in range(3):
        put_txn(host.log, 7, sequence, (b"k", b"v"))
        end_txn(host.log, 7, commit=False)
        host.log.roll()
    fill(host, rounds=1)
    jobs = host.local_listener.cleaning
    active = jobs.begin(host.topic, 0, lambda _: None)
    steps = jobs._write_job(active)
    next(steps)  # the producer
    next(steps)  # the first aborted transaction
    host.log.delete_records(5)
    left = files(host, ".txnindex")
    with pytest.raises(errors.RequestTimedOut):
        next(steps)
    assert files(host, ".txnindex") == left == ["00000000000000000004.txnindex"]
    jobs.fail(active, "the job was not written", retriable=True)


def test_end_of_the_connection_ends_the_pass(host, cleaner):
    fill(host)
    clean(cleaner.take(host.topic), lambda size: None)
    assert files(host, ".cleaned")
    cleaner.client.close()
    second = Cleaner(host)
    host.until(lambda: not host.log.is_being_cleaned)
    assert files(host, ".cleaned") == []
    second.clean(host.topic)
    assert records(host) == latest()


def test_node_killed_between_two_groups_keeps_every_last_value(host, cleaner, monkeypatch):
    fill(host, rounds=4)
    # Each segment is a group of its own.
    job = cleaner.take(host.topic)
    result = clean(job._replace(segment_bytes=job.sources[0].size), lambda size: None)
    assert len(result.groups) > 1
    copies = []
    replace = type(host.log).replace_segments

    def replaced(log, group):
        replace(log, group)
        copies.append(host.killed(f"copy-{len(copies)}"))

    monkeypatch.setattr(type(host.log), "replace_segments", replaced)
    assert cleaner.hand_in(result)["error_code"] == 0
    assert len(copies) == len(result.groups)
    assert records(host) == latest(rounds=4)
    for copy in copies:
        assert records(copy)[-10:] == latest(rounds=4)
        copy.close()


def test_swap_that_fails_once_committed_is_completed_by_the_next_start(host, cleaner, monkeypatch):
    fill(host)
    result = clean(cleaner.take(host.topic), lambda size: None)
    cleaning_files.write_result(cleaner.job_file, result)
    (active,) = host.local_listener.cleaning._passes.values()

    def fails(*_):
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(segment_swap, "put_in_place", fails)
        with pytest.raises(DiskFailed):
            host.local_listener.cleaning.finish(active)
    assert files(host, ".log.swap")
    restarted = host.killed("copy")
    assert records(restarted) == latest()
    restarted.close()


def test_log_that_was_cleaned_in_part_is_sound_under_another_policy(host, cleaner, monkeypatch):
    fill(host, rounds=4)
    job = cleaner.take(host.topic)
    result = clean(job._replace(segment_bytes=job.sources[0].size), lambda size: None)
    replace = type(host.log).replace_segments

    def replaced(log, group):
        if group is not result.groups[0]:
            raise errors.KafkaStorageError("a segment cannot be renamed")
        replace(log, group)

    monkeypatch.setattr(type(host.log), "replace_segments", replaced)
    monkeypatch.setattr(cleaning_files, "read_result", lambda _: result)
    assert cleaner.hand_in(result)["error_code"] == errors.KafkaStorageError.code
    assert set_policy(host, "delete") == 0
    host.until((host.node.logs.data / CLEANER_CHECKPOINT).exists)
    restarted = host.killed("copy")
    assert restarted.node.replicas.leader("a", 0).log.failure is None
    assert records(restarted)[-10:] == latest(rounds=4)
    restarted.close()


def test_policy_change_cancels_the_pass(host, cleaner):
    fill(host)
    result = clean(cleaner.take(host.topic), lambda size: None)
    assert set_policy(host, "delete") == 0
    host.clock.advance(1_000)
    message, _ = cleaner.client.receive()
    assert message.kind is cleaning.CANCEL_JOB
    assert "not compacted" in message.fields["reason"]
    assert files(host, ".cleaned") == []
    assert cleaner.status(host.topic)["state"] == 2
    cleaner.hand_in(result, error=errors.KafkaStorageError.code, retriable=True)
    assert cleaner.status(host.topic)["state"] == 0
    assert len(records(host)) == 30
    # Old records without a key are dropped once the topic is compacted again.
    host.append("a", [1_000])
    host.log.roll()
    assert set_policy(host, "compact,delete") == 0
    cleaner.clean(host.topic)
    assert records(host) == latest()


def test_result_is_refused_after_the_policy_has_changed(host, cleaner):
    fill(host)
    result = clean(cleaner.take(host.topic), lambda size: None)
    assert set_policy(host, "delete") == 0
    assert "not compacted" in cleaner.hand_in(result)["error_message"]
    assert len(records(host)) == 30 and files(host, ".cleaned") == []


def test_deleted_topic_ends_the_pass(host, cleaner):
    fill(host)
    result = clean(cleaner.take(host.topic), lambda size: None)
    host.request(DELETE_TOPICS, 3, topic_names=["a"], timeout_ms=1_000)
    assert "deleted" in cleaner.hand_in(result)["error_message"]
    unknown = cleaner.status(host.topic)
    assert unknown["error_code"] == errors.UnknownTopicId.code


def test_records_deleted_during_a_pass_are_not_brought_back(host, cleaner):
    assert set_policy(host, "compact,delete") == 0
    fill(host)
    result = clean(cleaner.take(host.topic), lambda size: None)
    host.log.delete_records(15)
    assert cleaner.hand_in(result)["error_code"] == errors.KafkaStorageError.code
    assert host.log.log_start_offset == 15 and len(records(host)) == 15
    assert cleaner.offer()["partition"] == -1, "it is tried again later"
    host.clock.advance(15_000)
    assert cleaner.offer()["partition"] == 0
    cleaner.clean(host.topic)
    assert records(host) == latest()


@pytest.mark.parametrize("is_noticed_first", [False, True])
def test_truncation_cancels_the_pass(host, cleaner, is_noticed_first):
    fill(host)
    host.append("a", [1_000])
    result = clean(cleaner.take(host.topic), lambda size: None)
    partition = host.node.replicas.leader("a", 0)
    # What is left includes all sources, but the offsets above them will have other records.
    partition.high_watermark = host.log.truncate_to(30)
    if is_noticed_first:
        host.clock.advance(1_000)
        message, _ = cleaner.client.receive()
        assert message.kind is cleaning.CANCEL_JOB
        assert message.fields["reason"] == "the log was truncated"
    assert "was truncated" in cleaner.hand_in(result)["error_message"]
    assert len(records(host)) == 30 and files(host, ".cleaned") == []
    assert host.log.cleaner_offset <= 0
    cleaner.clean(host.topic)
    assert records(host) == latest()


def test_removed_segment_that_cannot_be_read_does_not_end_the_cleaning_of_a_log(host, cleaner):
    assert set_policy(host, "compact,delete") == 0
    fill(host)
    cleaner.take(host.topic)
    host.log.delete_records(15)
    cleaner.hand_in(None, error=errors.KafkaStorageError.code)
    assert cleaner.status(host.topic)["state"] == 0
    host.clock.advance(15_000)
    assert cleaner.offer()["partition"] == 0
    cleaner.clean(host.topic)
    assert records(host) == latest()


def test_retention_waits_for_the_end_of_a_pass(host, cleaner):
    assert set_policy(host, "compact,delete", retention_bytes="0") == 0
    fill(host)
    result = clean(cleaner.take(host.topic), lambda size: None)
    host.log.retain()
    assert len(records(host)) == 30
    assert cleaner.hand_in(result)["error_code"] == 0
    host.log.retain()
    assert records(host) == []


def test_log_that_cannot_be_cleaned_is_left_alone_until_a_restart(host, cleaner):
    other = host.create("b", 1, cleanup_policy="compact")
    fill(host)
    cleaner.take(host.topic)
    cleaner.hand_in(None, error=errors.UnknownServerError.code & 0xFF)
    status = cleaner.status(host.topic)
    assert (status["state"], status["reason"]) == (3, "it failed")
    refused = cleaner.status(host.topic, cleaning.COMPACT)
    assert "until node 0 restarts: it failed" in refused["error_message"]
    fill(host, topic="b")
    assert cleaner.offer()["topic_id"] == other
    assert list(host.local_listener.cleaning.uncleanable.values()) == ["it failed"]


def test_pass_is_repeated_after_a_full_disk(host, cleaner):
    fill(host)
    cleaner.take(host.topic)
    cleaner.hand_in(None, error=errors.KafkaStorageError.code, retriable=True)
    assert cleaner.offer()["partition"] == -1
    assert cleaner.status(host.topic)["reason"] == "it failed"
    host.clock.advance(15_000)
    assert cleaner.offer()["partition"] == 0
    cleaner.clean(host.topic)
    assert cleaner.status(host.topic)["reason"] is None


def test_damaged_result_is_refused(host, cleaner):
    fill(host)
    job = cleaner.take(host.topic)
    result = clean(job, lambda size: None)
    assert cleaner.hand_in(result._replace(end_offset=31))["error_code"] != 0
    assert cleaner.status(host.topic)["state"] == 3
    assert len(records(host)) == 30 and files(host, ".cleaned") == []


def test_requested_log_is_rolled_and_cleaned_whatever_its_ratio(host, cleaner):
    fill(host)
    cleaner.clean(host.topic)
    partition = host.node.replicas.leader("a", 0)
    host.node.replicas.append_own(partition, build([Record(timestamp=1_000, key=b"3")]))
    assert cleaner.offer()["partition"] == -1
    console = Cleaner(host)
    status = console.status(host.topic, cleaning.COMPACT)
    assert status["is_requested"] and status["cleaners"] == 1
    message, _ = cleaner.client.receive()
    assert message.kind is cleaning.WAKE_UP
    assert cleaner.offer()["dirty_ratio"] > 1
    cleaner.clean(host.topic)
    assert not console.status(host.topic)["is_requested"]
    assert (30, b"3", None) in records(host)
    console.status(host.topic, cleaning.COMPACT)
    cleaner.client.receive()
    assert cleaner.offer()["partition"] == -1, "there was nothing to clean"
    assert not console.status(host.topic)["is_requested"]


def test_topic_that_is_not_compacted_cannot_be_requested(host, cleaner):
    plain = host.create("b", 1)
    assert "is not compacted" in cleaner.status(plain, cleaning.COMPACT)["error_message"]


def test_internal_topic_is_offered_once_a_segment_is_closed(host, cleaner):
    find(host)
    name = "__consumer_offsets"
    topic_id = host.node.image.topic(name).topic_id
    partition = host.node.replicas.leader(name, 0)
    assert not partition.needs_cleaner and cleaner.offer()["topic_id"] == NO_ID
    fill(host, topic=name)
    assert partition.needs_cleaner
    partition.is_loading = True
    assert cleaner.offer()["topic_id"] == NO_ID
    partition.is_loading = False
    assert cleaner.offer()["topic_id"] == topic_id
    cleaner.clean(topic_id)
    assert records(host, name) == latest()
    assert Cleaner(host).status(topic_id, cleaning.COMPACT)["passes"] == 1


def test_small_map_cleans_a_requested_log_in_several_passes(host, cleaner):
    fill(host, rounds=2, keys=40)
    cleaner.status(host.topic, cleaning.COMPACT)
    passes = 0
    while cleaner.offer()["partition"] == 0:
        job = cleaner.take(host.topic)
        result = clean(job._replace(map_bytes=24 * 32, load_factor=0.9), lambda size: None)
        assert cleaner.hand_in(result)["error_code"] == 0
        passes += 1
        assert passes < 10
    assert passes > 1
    assert records(host) == latest(rounds=2, keys=40)


@pytest.mark.parametrize(
    "packet",
    [
        cleaning.CLEANED(request_id=2, error_code=0, error_message=None, retriable=False),
        cleaning.WAKE_UP(),
    ],
    ids=["a result without a job", "a node's message"],
)
def test_unexpected_message_closes_the_connection(host, cleaner, packet):
    cleaner.client.send(packet)
    assert cleaner.client.is_disconnected()


def gauges(host: LocalNode) -> dict[str, float]:
    return {
        family.name.rpartition("_log_")[2]: family.samples[0][1]
        for family in cleaner_families(host.node)
    }


def test_metrics_show_the_state_of_compaction(host, cleaner):
    assert gauges(host)["logcleaner_deadthreadcount"] == 1
    fill(host)
    cleaner.offer()
    host.clock.advance(70)
    before = gauges(host)
    assert before["logcleaner_deadthreadcount"] == 0
    assert before["logcleanermanager_max_dirty_percent"] == 100
    assert before["logcleanermanager_time_since_last_run_ms"] == 70
    cleaner.clean(host.topic)
    after = gauges(host)
    assert 30 <= after["logcleaner_cleaner_recopy_percent"] <= 36
    assert after["logcleaner_max_buffer_utilization_percent"] >= 0
    fill(host)
    cleaner.take(host.topic)
    cleaner.hand_in(None, error=87)
    failed = gauges(host)
    assert failed["logcleanermanager_uncleanable_partitions_count"] == 1
    assert failed["logcleanermanager_uncleanable_bytes"] == host.log.size
    host.restart(**{"log.cleaner.enable": "false"})
    assert gauges(host)["logcleaner_deadthreadcount"] == 0
    assert set_policy(host, "delete") == 0
    assert gauges(host) == {}
