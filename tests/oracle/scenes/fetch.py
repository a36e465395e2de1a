"""Fetch: records, limits, waits, and fetch sessions."""

from __future__ import annotations

from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import DELETE_RECORDS
from kafkalite.protocol.schemas.produce import PRODUCE
from tests.oracle.batches import Sent, batch
from tests.oracle.conversation import Conversation, Topic
from tests.oracle.scenes import produce, scene

# Names below 13, ids from 13 on; sessions from 7, epochs from 9, racks from 11, tags from 12.
SOME = (4, 7, 11, 12, 13, 18)
TWO = (11, 18)
SESSIONED = (7, 12, 13, 18)
EVERYTHING = 1 << 20


def wanted(index=0, offset=0, size_max=EVERYTHING, **more):
    return {"partition": index, "fetch_offset": offset, "partition_max_bytes": size_max, **more}


def body(topics, **more):
    listed = [
        {"topic": topic.name, "topic_id": topic.id, "partitions": partitions}
        for topic, partitions in topics
    ]
    return {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": EVERYTHING, "topics": listed, **more}


def filled(talk: Conversation, partitions: int = 1, batches: int = 3) -> Topic:
    """Create a topic whose every partition has batches of three records."""
    topic = talk.topic(partitions=partitions)
    for _ in range(batches):
        for index in range(partitions):
            talk.quietly(PRODUCE, 7, produce.body(topic, {index: batch(3)}))
    return topic


@scene(FETCH)
def records_come_as_they_lie(talk, version):
    topic = filled(talk, partitions=2)
    talk.ask(FETCH, version, body([(topic, [wanted(0), wanted(1)])]), note="from the beginning")
    talk.ask(FETCH, version, body([(topic, [wanted(offset=3)])]), note="from a batch's first")
    talk.ask(FETCH, version, body([(topic, [wanted(offset=4)])]), note="from inside a batch")
    talk.ask(FETCH, version, body([(topic, [wanted(offset=9)])]), note="at the end")
    talk.ask(FETCH, version, body([(topic, [wanted(offset=10)])]), note="past the end")
    talk.ask(FETCH, version, body([(topic, [wanted(offset=-1)])]), note="before the beginning")


@scene(FETCH, versions=SOME)
def what_does_not_exist_is_refused(talk, version):
    topic = filled(talk)
    nowhere = Topic("never-made", b"\x07" * 16)
    talk.ask(FETCH, version, body([(nowhere, [wanted()])]), note="unknown topic")
    talk.ask(FETCH, version, body([(topic, [wanted(1), wanted()])]), note="unknown partition")
    talk.ask(FETCH, version, body([(topic, [wanted(-1)])]), note="negative partition")
    talk.ask(FETCH, version, body([(Topic("", bytes(16)), [wanted()])]), note="no topic at all")
    talk.ask(FETCH, version, body([]), note="nothing wanted")
    talk.ask(FETCH, version, body([(topic, [])]), note="no partitions")
    talk.ask(FETCH, version, body([(topic, [wanted()])], isolation_level=1), note="committed only")
    talk.ask(FETCH, version, body([(topic, [wanted()])], isolation_level=7), note="isolation 7")


@scene(FETCH, versions=SOME)
def entries_may_come_twice(talk, version):
    topic = filled(talk)
    twice = [wanted(offset=0), wanted(offset=6)]
    talk.ask(FETCH, version, body([(topic, twice)]), note="a partition twice")
    both = body([(topic, [wanted()]), (topic, [wanted(offset=3)])])
    talk.ask(FETCH, version, both, note="a topic twice")


@scene(FETCH, versions=SOME)
def sizes_bound_what_comes(talk, version):
    topic = filled(talk, partitions=2)
    one = len(batch(3))
    for size in (0, -1, 1, one - 1, one, one + 1, 2 * one, 3 * one + 1):
        sized = body([(topic, [wanted(0, 0, size), wanted(1, 0, size)])])
        talk.ask(FETCH, version, sized, note=f"{size} a partition")
        whole = body([(topic, [wanted(0), wanted(1)])], max_bytes=size)
        talk.ask(FETCH, version, whole, note=f"{size} in all")


@scene(FETCH, versions=TWO)
def a_first_batch_comes_whole_however_large(talk, version):
    topic = talk.topic(partitions=2)
    large = batch([Sent(bytes(5000))])
    talk.quietly(PRODUCE, 7, produce.body(topic, {0: batch(), 1: large}))
    small = body([(topic, [wanted(1, 0, 100), wanted(0, 0, 100)])])
    talk.ask(FETCH, version, small, note="the large one first")
    small = body([(topic, [wanted(0, 0, 100), wanted(1, 0, 100)])])
    talk.ask(FETCH, version, small, note="the large one second")


@scene(FETCH, versions=SOME)
def too_little_is_waited_for(talk, version):
    topic = filled(talk)
    patient = {"max_wait_ms": 50, "min_bytes": 1 << 20}
    talk.ask(FETCH, version, body([(topic, [wanted()])], **patient), note="more than there is")
    talk.ask(FETCH, version, body([(topic, [wanted(offset=9)])], **patient), note="at the end")
    unborn = body([(topic, [wanted(offset=99)])], **patient)
    talk.ask(FETCH, version, unborn, note="a fault does not wait")
    odd = body([(topic, [wanted()])], max_wait_ms=-1, min_bytes=-1)
    talk.ask(FETCH, version, odd, note="negative patience")


@scene(FETCH, versions=(9, 12, 18))
def a_leader_epoch_must_be_the_present_one(talk, version):
    topic = filled(talk)
    for epoch in (-1, 0, 1, 99, -2):
        stated = body([(topic, [wanted(current_leader_epoch=epoch)])])
        talk.ask(FETCH, version, stated, note=f"epoch {epoch}")


@scene(FETCH, versions=(12, 18))
def a_consumer_may_say_which_epoch_it_read_last(talk, version):
    topic = filled(talk)
    for epoch, offset in ((0, 3), (0, 9), (0, 12), (1, 3), (99, 3)):
        stated = body([(topic, [wanted(offset=offset, last_fetched_epoch=epoch)])])
        talk.ask(FETCH, version, stated, note=f"epoch {epoch} before {offset}")


@scene(FETCH, versions=SOME)
def what_was_deleted_is_out_of_range(talk, version):
    topic = filled(talk)
    parts = [{"partition_index": 0, "offset": 4}]
    cut = {"topics": [{"name": topic.name, "partitions": parts}], "timeout_ms": 5000}
    talk.quietly(DELETE_RECORDS, 1, cut)
    for offset in (0, 3, 4, 5):
        talk.ask(FETCH, version, body([(topic, [wanted(offset=offset)])]), note=f"from {offset}")


@scene(FETCH, versions=(11, 14))
def replicas_are_nobody_we_know(talk, version):
    topic = filled(talk)
    for replica_id in (-2, 5):
        asked = body([(topic, [wanted()])], replica_id=replica_id)
        talk.ask(FETCH, version, asked, note=f"as replica {replica_id}")


@scene(FETCH, versions=TWO)
def a_rack_is_no_matter_where_there_is_one_node(talk, version):
    topic = filled(talk)
    talk.ask(FETCH, version, body([(topic, [wanted()])], rack_id="somewhere"), note="with a rack")


@scene(FETCH, versions=SESSIONED)
def a_session_tells_only_what_changed(talk, version):
    topic = filled(talk, partitions=2, batches=1)

    def fetch(note, topics, **more):
        return talk.ask(FETCH, version, body(topics, **more), note=note)

    opened = fetch("open", [(topic, [wanted(0), wanted(1)])], session_id=0, session_epoch=0)
    whose = {"session_id": opened.session_id}
    fetch("the same again", [], **whose, session_epoch=1)
    read = [(topic, [wanted(0, 3), wanted(1, 3)])]
    fetch("both read on", read, **whose, session_epoch=2)
    fetch("nothing new", [], **whose, session_epoch=3)
    talk.quietly(PRODUCE, 7, produce.body(topic, {1: batch(2)}))
    fetch("one has grown", [], **whose, session_epoch=4)
    forgotten = {"topic": topic.name, "topic_id": topic.id, "partitions": [1]}
    fetch("it is forgotten", [], **whose, session_epoch=5, forgotten_topics_data=[forgotten])
    talk.quietly(PRODUCE, 7, produce.body(topic, {0: batch(2), 1: batch(2)}))
    fetch("only the other is told", [], **whose, session_epoch=6)
    fetch("it is back", [(topic, [wanted(1, 5)])], **whose, session_epoch=7)
    unknown = [(topic, [wanted(9)])]
    fetch("an unknown one joins", unknown, **whose, session_epoch=8)
    fetch("it stays unknown", [], **whose, session_epoch=9)
    fetch("closed", [], **whose, session_epoch=-1)
    fetch("and gone", [], **whose, session_epoch=10)


@scene(FETCH, versions=SESSIONED)
def a_session_is_held_to_its_epoch(talk, version):
    topic = filled(talk)
    parts = [(topic, [wanted()])]
    opened = talk.ask(FETCH, version, body(parts, session_epoch=0), note="open")
    whose = {"session_id": opened.session_id}
    for epoch in (5, 0, 1, 2, -2):
        again = body([], **whose, session_epoch=epoch)
        talk.ask(FETCH, version, again, note=f"epoch {epoch}")
    talk.ask(FETCH, version, body([], session_id=123_456, session_epoch=1), note="a stranger's")
    talk.ask(FETCH, version, body([], session_id=0, session_epoch=1), note="none, epoch 1")
    talk.ask(FETCH, version, body(parts, session_id=0, session_epoch=-1), note="no session")
    talk.ask(FETCH, version, body(parts, session_id=-1, session_epoch=-1), note="session -1")


@scene(FETCH, versions=(7, 18))
def an_empty_session_is_not_remembered(talk, version):
    opened = talk.ask(FETCH, version, body([], session_epoch=0), note="open with nothing")
    again = body([], session_id=opened.session_id, session_epoch=1)
    talk.ask(FETCH, version, again, note="go on")
