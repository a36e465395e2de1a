"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: offsets of a log."""

from __future__ import annotations

from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import (
    DELETE_RECORDS,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
)
from kafkalite.protocol.schemas.produce import PRODUCE
from tests.oracle.batches import MOMENT_MS, Sent, batch
from tests.oracle.conversation import Conversation, Topic
from tests.oracle.scenes import fetch, produce, scene

SOME = (1, 2, 4, 7, 11)


def timed(talk: Conversation) -> Topic:
    """Create a topic with five records at 0, 10, 20, 30 and 25 ms, in three batches."""
    topic = talk.topic()
    for deltas in ((0, 10), (20, 30), (25,)):
        records = batch([Sent(timestamp_delta=delta) for delta in deltas])
        talk.quietly(PRODUCE, 7, produce.body(topic, {0: records}))
    return topic


def when(topic, timestamp, index=0, **more):
    entry = {"partition_index": index, "timestamp": timestamp, **more}
    return {"name": topic.name, "partitions": [entry]}


def listing(*topics, **more):
    return {"replica_id": -1, "topics": list(topics), "timeout_ms": 1000, **more}


@scene(LIST_OFFSETS)
def a_time_finds_the_first_record_not_before_it(talk, version):
    topic = timed(talk)
    for after_ms in (-1000, 0, 1, 10, 11, 20, 25, 30, 31):
        asked = listing(when(topic, MOMENT_MS + after_ms))
        talk.ask(LIST_OFFSETS, version, asked, note=f"{after_ms} ms after")
    talk.ask(LIST_OFFSETS, version, listing(when(topic, 0)), note="at the dawn of time")


@scene(LIST_OFFSETS)
def special_times_have_their_versions(talk, version):
    topic = timed(talk)
    for special in (-1, -2, -3, -4, -5, -6, -7, -100):
        talk.ask(LIST_OFFSETS, version, listing(when(topic, special)), note=f"time {special}")
    empty = talk.topic()
    for special in (-1, -2, -3, 5):
        asked = listing(when(empty, special))
        talk.ask(LIST_OFFSETS, version, asked, note=f"empty, time {special}")


@scene(LIST_OFFSETS, versions=SOME)
def what_does_not_exist_is_refused(talk, version):
    topic = timed(talk)
    nowhere = Topic("never-made", bytes(16))
    talk.ask(LIST_OFFSETS, version, listing(when(nowhere, -1)), note="unknown topic")
    talk.ask(LIST_OFFSETS, version, listing(when(topic, -1, 4)), note="unknown partition")
    talk.ask(LIST_OFFSETS, version, listing(when(topic, -1, -4)), note="negative partition")
    talk.ask(LIST_OFFSETS, version, listing(), note="nothing asked")
    twice = {"name": topic.name, "partitions": when(topic, -1)["partitions"] * 2}
    talk.ask(LIST_OFFSETS, version, listing(twice), note="a partition twice")
    both = listing(when(topic, -1), when(topic, -2))
    talk.ask(LIST_OFFSETS, version, both, note="a topic twice")
    talk.ask(LIST_OFFSETS, version, listing(when(topic, -1), replica_id=-2), note="a debugger")
    talk.ask(LIST_OFFSETS, version, listing(when(topic, -1), replica_id=9), note="a replica")


@scene(LIST_OFFSETS, versions=(4, 7, 11))
def a_leader_epoch_must_be_the_present_one(talk, version):
    topic = timed(talk)
    for epoch in (-1, 0, 1, 99):
        asked = listing(when(topic, -1, current_leader_epoch=epoch))
        talk.ask(LIST_OFFSETS, version, asked, note=f"epoch {epoch}")


@scene(LIST_OFFSETS, versions=(2, 11))
def isolation_is_no_matter_without_transactions(talk, version):
    topic = timed(talk)
    for special in (-1, -2, MOMENT_MS):
        asked = listing(when(topic, special), isolation_level=1)
        talk.ask(LIST_OFFSETS, version, asked, note=f"committed, {special}")


@scene(OFFSET_FOR_LEADER_EPOCH)
def an_epoch_ends_where_the_next_begins(talk, version):
    topic = timed(talk)
    nowhere = Topic("never-made", bytes(16))

    def ask(note, topic=topic, **fields):
        entry = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0, **fields}
        asked = {"replica_id": -1, "topics": [{"topic": topic.name, "partitions": [entry]}]}
        talk.ask(OFFSET_FOR_LEADER_EPOCH, version, asked, note=note)

    for epoch in (0, 1, 99, -1, -2):
        ask(f"epoch {epoch}", leader_epoch=epoch)
    for epoch in (0, 1, 99):
        ask(f"present epoch {epoch}", current_leader_epoch=epoch)
    ask("unknown topic", topic=nowhere)
    ask("unknown partition", partition=7)
    ask("an empty log", topic=talk.topic())


@scene(OFFSET_FOR_LEADER_EPOCH)
def epochs_are_asked_of_nothing_or_twice(talk, version):
    topic = timed(talk)
    talk.ask(OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -1, "topics": []}, note="nothing")
    entry = {"partition": 0, "leader_epoch": 0}
    twice = {"topic": topic.name, "partitions": [entry, entry]}
    asked = {"replica_id": -1, "topics": [twice]}
    talk.ask(OFFSET_FOR_LEADER_EPOCH, version, asked, note="twice")


@scene(DELETE_RECORDS)
def a_log_begins_where_it_was_cut(talk, version):
    topic = fetch.filled(talk)
    nowhere = Topic("never-made", bytes(16))

    def cut(note, offset, topic=topic, index=0, **more):
        entry = {"name": topic.name, "partitions": [{"partition_index": index, "offset": offset}]}
        asked = {"topics": [entry], "timeout_ms": 5000, **more}
        talk.ask(DELETE_RECORDS, version, asked, note=note)

    cut("to 2", 2)
    cut("back to 1", 1)
    cut("to where it is", 2)
    cut("past the end", 10)
    cut("to -2", -2)
    talk.ask(LIST_OFFSETS, 7, listing(when(topic, -2)), note="the start")
    cut("to the end, said by number", 9)
    cut("to the high watermark", -1)
    talk.ask(LIST_OFFSETS, 7, listing(when(topic, -2)), note="the start")
    talk.ask(LIST_OFFSETS, 7, listing(when(topic, MOMENT_MS)), note="by time")
    cut("of an unknown topic", 1, topic=nowhere)
    cut("of an unknown partition", 1, index=3)
    cut("without patience", -1, timeout_ms=0)
    cut("with negative patience", -1, timeout_ms=-1)
    produce.look(talk, topic)


@scene(DELETE_RECORDS)
def cuts_of_nothing_or_twice(talk, version):
    topic = fetch.filled(talk)
    talk.ask(DELETE_RECORDS, version, {"topics": [], "timeout_ms": 1000}, note="nothing")
    parts = [{"partition_index": 0, "offset": 1}, {"partition_index": 0, "offset": 4}]
    asked = {"topics": [{"name": topic.name, "partitions": parts}], "timeout_ms": 1000}
    talk.ask(DELETE_RECORDS, version, asked, note="twice")
    compacted = talk.topic(cleanup_policy="compact")
    parts = [{"partition_index": 0, "offset": -1}]
    asked = {"topics": [{"name": compacted.name, "partitions": parts}], "timeout_ms": 1000}
    talk.ask(DELETE_RECORDS, version, asked, note="of a compacted topic")


@scene()
def times_are_found_across_what_was_cut(talk):
    topic = timed(talk)
    entry = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": 3}]}
    talk.ask(DELETE_RECORDS, 2, {"topics": [entry], "timeout_ms": 1000})
    for timestamp in (0, MOMENT_MS + 25, MOMENT_MS + 30, -1, -2, -3):
        talk.ask(LIST_OFFSETS, 7, listing(when(topic, timestamp)), note=f"time {timestamp}")
    talk.ask(FETCH, 12, fetch.body([(topic, [fetch.wanted(offset=3)])]), note="from the cut")
