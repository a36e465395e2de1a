"""Produce: batches that are accepted or rejected, error codes, and the content of the log."""

from __future__ import annotations

import gzip
from collections.abc import Mapping

import lz4.frame

from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from kafkalite.protocol.schemas.produce import PRODUCE
from tests.oracle.batches import MOMENT_MS, Sent, batch
from tests.oracle.conversation import Conversation, Topic
from tests.oracle.scenes import scene

# Names below 13, ids from 13 on; record errors from 8 on; leaders as tags from 10 on.
SOME = (3, 7, 9, 12, 13)
TWO = (7, 13)
YEAR_MS = 365 * 24 * 3_600_000


def body(
    topic: Topic,
    partitions: Mapping[int, bytes | None],
    *,
    acks: int = -1,
    timeout_ms: int = 5_000,
    transactional_id: str | None = None,
) -> dict[str, object]:
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": [entry(topic, partitions)],
    }


def entry(topic: Topic, partitions: Mapping[int, bytes | None]) -> dict[str, object]:
    data = [{"index": index, "records": records} for index, records in partitions.items()]
    return {"name": topic.name, "topic_id": topic.id, "partition_data": data}


def look(talk: Conversation, topic: Topic, note: str = "what lies there") -> None:
    """Record the content of partition 0."""
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    talk.ask(
        FETCH,
        12,
        {"max_wait_ms": 0, "topics": [{"topic": topic.name, "partitions": [wanted]}]},
        note=note,
    )


def ends(talk: Conversation, topic: Topic, partitions: int = 1) -> None:
    wanted = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
    listed = {"replica_id": -1, "topics": [{"name": topic.name, "partitions": wanted}]}
    talk.ask(LIST_OFFSETS, 7, listed, note="the ends")


@scene(PRODUCE)
def records_lie_as_they_were_sent(talk, version):
    topic = talk.topic(partitions=2)
    headers = [(b"name", b"value"), (b"null", None), (b"", b"")]
    rich = batch([Sent(b"v", b"k", 3, headers), Sent(None, b"tombstone"), Sent(b"", None)])
    talk.ask(PRODUCE, version, body(topic, {0: rich, 1: batch(5)}))
    talk.ask(PRODUCE, version, body(topic, {0: batch(2)}, acks=1))
    talk.ask_without_answer(PRODUCE, version, body(topic, {0: batch(3)}, acks=0))
    talk.ask(PRODUCE, version, body(topic, {0: batch(1)}, acks=1), note="after acks 0")
    look(talk, topic)
    ends(talk, topic, partitions=2)


@scene(PRODUCE, versions=SOME)
def what_does_not_exist_is_refused(talk, version):
    topic = talk.topic()
    nowhere = Topic("never-made", b"\x07" * 16)
    talk.ask(PRODUCE, version, body(nowhere, {0: batch()}), note="unknown topic")
    talk.ask(PRODUCE, version, body(topic, {1: batch()}), note="unknown partition")
    talk.ask(PRODUCE, version, body(topic, {-1: batch()}), note="negative partition")
    talk.ask(PRODUCE, version, body(Topic("", bytes(16)), {0: batch()}), note="no topic at all")
    talk.ask(PRODUCE, version, body(Topic("a/b", b"\x08" * 16), {0: batch()}), note="illegal name")
    both = body(topic, {0: batch(), 3: batch()})
    talk.ask(PRODUCE, version, both, note="one known and one unknown partition")


@scene(PRODUCE, versions=SOME)
def acks_are_none_one_or_all(talk, version):
    topic = talk.topic()
    for acks in (2, -2, 32767):
        talk.ask(PRODUCE, version, body(topic, {0: batch()}, acks=acks), note=f"acks {acks}")
    talk.ask(PRODUCE, version, body(topic, {0: batch()}, timeout_ms=-1), note="negative timeout")
    talk.ask(PRODUCE, version, body(topic, {0: batch()}, timeout_ms=0), note="no timeout")
    ends(talk, topic)


@scene(PRODUCE, versions=TWO)
def refused_without_acks_ends_the_connection(talk, version):
    topic = talk.topic()
    wrong = body(topic, {5: batch()}, acks=0)
    talk.ask_without_answer(PRODUCE, version, wrong)
    talk.ask(PRODUCE, version, body(topic, {0: batch()}), note="after a refused acks 0")


@scene(PRODUCE, versions=TWO)
def a_request_may_be_empty(talk, version):
    topic = talk.topic()
    talk.ask(PRODUCE, version, body(topic, {0: None}), note="null records")
    talk.ask(PRODUCE, version, body(topic, {0: b""}), note="no records")
    talk.ask(PRODUCE, version, body(topic, {}), note="no partitions")
    talk.ask(PRODUCE, version, {"acks": 1, "timeout_ms": 1000, "topic_data": []}, note="no topics")
    ends(talk, topic)


@scene(PRODUCE, versions=TWO)
def entries_may_come_twice(talk, version):
    topic = talk.topic()
    twice = {"index": 0, "records": batch(2)}
    data = {"name": topic.name, "topic_id": topic.id, "partition_data": [twice, twice]}
    asked = {"acks": -1, "timeout_ms": 5000, "topic_data": [data]}
    talk.ask(PRODUCE, version, asked, note="a partition twice")
    ends(talk, topic)
    one = entry(topic, {0: batch(1)})
    asked = {"acks": -1, "timeout_ms": 5000, "topic_data": [one, one]}
    talk.ask(PRODUCE, version, asked, note="a topic twice")
    ends(talk, topic)


DAMAGED = {
    "wrong crc": batch(crc_off_by=1),
    "magic 0": batch(magic=0),
    "magic 1": batch(magic=1),
    "magic 3": batch(magic=3),
    "magic -1": batch(magic=-1),
    "length one short": batch(length_off_by=-1),
    "length one long": batch(length_off_by=1),
    "length negative": batch(length_off_by=-200),
    "cut in its header": batch()[:40],
    "cut before its length": batch()[:10],
    "cut in its records": batch(3)[:-4],
    "trailing bytes": batch() + b"\0\0\0",
    "two batches": batch() + batch(),
    "count one more": batch(2, count=3),
    "count one less": batch(2, count=1),
    "count zero": batch([], last_offset_delta=0),
    "count zero, delta -1": batch([]),
    "count negative": batch(1, count=-1),
    "count enormous": batch(1, count=0x7FFFFFFF),
    "last delta one more": batch(2, last_offset_delta=2),
    "last delta one less": batch(2, last_offset_delta=0),
    "last delta negative": batch(1, last_offset_delta=-1),
    "control batch": batch([Sent(b"\0\0\0\0\0\0", b"\0\0\0\0")], attributes=0x20),
    "control batch of a producer": batch(
        [Sent(b"\0\0\0\0\0\0", b"\0\0\0\1")], attributes=0x30, producer_id=77, producer_epoch=0
    ),
    "transactional without a producer": batch(attributes=0x10),
    "codec 5": batch(attributes=5),
    "codec 7": batch(attributes=7),
    "codec gzip, bytes that are not": batch(payload=b"not gzip at all", attributes=1),
    "codec snappy, bytes that are not": batch(payload=b"not snappy at all", attributes=2),
    "codec lz4, bytes that are not": batch(payload=b"not lz4 at all", attributes=3),
    "codec zstd, bytes that are not": batch(payload=b"not zstd at all", attributes=4),
    "unused attribute bits": batch(attributes=0x4000),
    "delete horizon bit": batch(attributes=0x40),
    "append time bit": batch(attributes=8),
    "base offset 1234": batch(base_offset=1234),
    "base offset negative": batch(base_offset=-5),
    "leader epoch 9": batch(leader_epoch=9),
    "offset delta out of turn": batch([Sent(), Sent(offset_delta=5)], last_offset_delta=1),
    "offset delta twice": batch([Sent(), Sent(offset_delta=0)]),
    "offset delta negative": batch([Sent(offset_delta=-1), Sent()]),
    "record longer than the batch": batch(payload=b"\x7e\0\0\0\1\x0avalue\0"),
    "record shorter than its fields": batch(payload=b"\x08\0\0\0\1\x0avalue\0"),
    "record of negative length": batch(payload=b"\x01\0\0\0\1\x0avalue\0"),
    "value of negative length": batch(payload=b"\x16\0\0\0\1\x05value\0"),
    "trailing bytes inside": batch(payload=b"\x16\0\0\0\1\x0avalue\0\xff\xff"),
    "no record at all inside": batch(payload=b""),
    "headers of negative count": batch(payload=b"\x16\0\0\0\1\x0avalue\x01"),
    "header without a key": batch([Sent(headers=[(None, b"v")])]),
    "max timestamp is not the greatest": batch(max_timestamp=MOMENT_MS + 1),
    "max timestamp unsaid": batch(max_timestamp=-1),
    "timestamp unsaid": batch(timestamp_ms=-1, max_timestamp=-1),
    "timestamp negative": batch(timestamp_ms=-2, max_timestamp=-2),
    "timestamp ten years ahead": batch(timestamp_ms=MOMENT_MS + 60 * YEAR_MS),
}


@scene(PRODUCE, versions=TWO)
def a_damaged_batch_is_judged_by_its_bytes(talk, version):
    for note, records in DAMAGED.items():
        topic = talk.topic()
        talk.ask(PRODUCE, version, body(topic, {0: records}), note=note)
        look(talk, topic, note=f"after {note}")


@scene(PRODUCE, versions=TWO)
def a_damaged_batch_spares_its_neighbour(talk, version):
    topic = talk.topic(partitions=2)
    talk.ask(PRODUCE, version, body(topic, {0: batch(crc_off_by=1), 1: batch()}))
    ends(talk, topic, partitions=2)


@scene(PRODUCE, versions=TWO)
def a_compressed_topic_judges_what_is_inside(talk, version):
    for note in (
        "offset delta out of turn", "offset delta twice", "count one more", "count one less",
        "trailing bytes inside", "no record at all inside", "header without a key",
        "codec gzip, bytes that are not", "max timestamp is not the greatest",
        "record longer than the batch", "value of negative length",
    ):  # fmt: skip
        topic = talk.topic(compression_type="gzip")
        talk.ask(PRODUCE, version, body(topic, {0: DAMAGED[note]}), note=note)
        look(talk, topic, note=f"after {note}")
    topic = talk.topic(compression_type="gzip")
    inside = batch(payload=gzip.compress(batch(2)[61:] + b"\xff", mtime=0), count=2, attributes=1)
    talk.ask(PRODUCE, version, body(topic, {0: inside}), note="gzip with trailing bytes inside")
    talk.ask(PRODUCE, version, body(topic, {0: batch(2)}), note="plain records")
    look(talk, topic)


@scene(PRODUCE, versions=TWO)
def lz4_is_one_frame_of_independent_blocks(talk, version):
    payload = batch([Sent(bytes(70_000)), Sent(bytes(70_000))])[61:]
    half = len(payload) // 2
    for note, frames in (
        ("one frame", [lz4.frame.compress(payload, block_linked=False)]),
        ("linked blocks", [lz4.frame.compress(payload, block_linked=True)]),
        (
            "two frames",
            [
                lz4.frame.compress(part, block_linked=False)
                for part in (payload[:half], payload[half:])
            ],
        ),
    ):
        topic = talk.topic()
        packed = batch(2, payload=b"".join(frames), attributes=3)
        talk.ask(PRODUCE, version, body(topic, {0: packed}), note=note)
        look(talk, topic, note=f"after {note}")


@scene(PRODUCE, versions=TWO)
def times_may_be_before_1970(talk, version):
    plain = batch(2, timestamp_ms=-86_400_000)
    packed = batch(
        2, payload=gzip.compress(plain[61:], mtime=0), attributes=1, timestamp_ms=-86_400_000
    )
    for codec in ("producer", "uncompressed", "gzip", "zstd"):
        for what, records in (("plain", plain), ("gzip", packed)):
            topic = talk.topic(compression_type=codec)
            talk.ask(PRODUCE, version, body(topic, {0: records}), note=f"{what} into {codec}")
            look(talk, topic, note=f"after {what} into {codec}")


@scene(PRODUCE, versions=TWO)
def a_topic_may_change_what_lies(talk, version):
    for codec in ("uncompressed", "zstd", "producer"):
        topic = talk.topic(compression_type=codec)
        packed = batch(2, payload=gzip.compress(batch(2)[61:], mtime=0), attributes=1)
        talk.ask(PRODUCE, version, body(topic, {0: packed}), note=codec)
        look(talk, topic, note=f"gzip in a topic of {codec}")
    topic = talk.topic(message_timestamp_type="LogAppendTime")
    talk.ask(PRODUCE, version, body(topic, {0: batch(2)}), note="append time")
    look(talk, topic, note="in a topic of append time")


@scene(PRODUCE, versions=SOME)
def a_record_too_many_or_too_large_is_refused(talk, version):
    topic = talk.topic(max_message_bytes="1000")
    talk.ask(PRODUCE, version, body(topic, {0: batch([Sent(bytes(2000))])}), note="too large")
    exactly = batch([Sent(bytes(1000 - len(batch([Sent(bytes(900))])) + 900))])
    assert len(exactly) == 1000
    talk.ask(PRODUCE, version, body(topic, {0: exactly}), note="exactly as large as may be")
    topic = talk.topic()
    talk.ask(PRODUCE, version, body(topic, {0: batch([Sent(bytes(1_048_600))])}), note="1 MiB")


@scene(PRODUCE, versions=SOME)
def a_time_out_of_bounds_is_told_record_by_record(talk, version):
    topic = talk.topic(message_timestamp_before_max_ms="1000")
    talk.ask(PRODUCE, version, body(topic, {0: batch(3)}), note="too old")
    topic = talk.topic(message_timestamp_after_max_ms="1000")
    later = batch([Sent(), Sent(timestamp_delta=60 * YEAR_MS), Sent()])
    talk.ask(PRODUCE, version, body(topic, {0: later}), note="the second too new")
    ends(talk, topic)


@scene(PRODUCE, versions=SOME)
def a_compacted_topic_wants_keys(talk, version):
    topic = talk.topic(cleanup_policy="compact")
    mixed = batch([Sent(b"v", b"k"), Sent(b"v", None), Sent(b"w", b"k"), Sent(b"x", None)])
    talk.ask(PRODUCE, version, body(topic, {0: mixed}), note="two without a key")
    talk.ask(PRODUCE, version, body(topic, {0: batch([Sent(b"v", b"k")])}), note="with a key")
    ends(talk, topic)


@scene(PRODUCE, versions=TWO)
def an_idempotent_producer_is_held_to_its_order(talk, version):
    topic = talk.topic()
    producer_id = talk.producer_id()

    def say(note, *, count=1, sequence=0, epoch=0, **more):
        fields = {"producer_id": producer_id, "producer_epoch": epoch, **more}
        records = batch(count, base_sequence=sequence, **fields)
        talk.ask(PRODUCE, version, body(topic, {0: records}), note=note)

    say("the first two", count=2)
    for sequence in range(2, 8):
        say(f"then {sequence}", sequence=sequence)
    say("7 again", sequence=7)
    say("3 again, five batches back", sequence=3)
    say("0 again, forgotten", count=2)
    say("a gap", sequence=20)
    say("back inside a batch", sequence=1)
    say("a newer epoch not at 0", sequence=3, epoch=1)
    say("a newer epoch", epoch=1)
    say("an older epoch", sequence=8)
    say("a negative epoch", epoch=-1)
    say("a negative sequence", sequence=-1, epoch=1)
    say("transactional without a transaction", sequence=1, epoch=1, attributes=0x10)
    ends(talk, topic)
    look(talk, topic)


@scene(PRODUCE, versions=TWO)
def a_producer_nobody_knows_may_begin(talk, version):
    topic = talk.topic()
    stranger = {"producer_id": 987_654, "producer_epoch": 3}
    talk.ask(PRODUCE, version, body(topic, {0: batch(base_sequence=9, **stranger)}), note="at 9")
    talk.ask(PRODUCE, version, body(topic, {0: batch(base_sequence=0, **stranger)}), note="at 0")
    known = {"producer_id": talk.producer_id(), "producer_epoch": 0}
    late = batch(base_sequence=5, **known)
    talk.ask(PRODUCE, version, body(topic, {0: late}), note="known, at 5")
    top = batch(2, base_sequence=0x7FFFFFFF, producer_id=5555, producer_epoch=0)
    talk.ask(PRODUCE, version, body(topic, {0: top}), note="at the greatest sequence")
    ends(talk, topic)


@scene(PRODUCE, versions=TWO)
def sequences_wrap_around(talk, version):
    topic = talk.topic()
    whose = {"producer_id": 4242, "producer_epoch": 0}
    for sequence, count in ((0x7FFFFFFE, 2), (0x7FFFFFFF, 2), (0, 1), (1, 1)):
        records = batch(count, base_sequence=sequence, **whose)
        talk.ask(PRODUCE, version, body(topic, {0: records}), note=f"{count} from {sequence}")
    ends(talk, topic)
