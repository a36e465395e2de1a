"""ShareFetch and ShareAcknowledge: records in flight, and share sessions (KIP-932).

A scene begins when the states of its partitions are loaded: a first member has accepted the record
at offset 0 of each, and keeps its session.

Left out: locks that expire, which takes seconds; sessions that a broker has no room for.
"""

from __future__ import annotations

import time

from kafkalite.protocol.schemas.offsets import DELETE_RECORDS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.share import SHARE_ACKNOWLEDGE, SHARE_FETCH
from tests.oracle.batches import batch
from tests.oracle.conversation import WAIT_S
from tests.oracle.scenes import produce, scene
from tests.oracle.scenes.share_groups import Sharing, offsets, prepared

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
WAIT_MS = 10_000
"""Longer than anything takes; a scene waits for it only where a broker is wrong."""


class Session:
    """One member's share session, on a connection of its own; each request has its epoch."""

    def __init__(self, talk, group, name, version=2):
        self.talk = talk.beside()
        self.group = group
        self.name = name
        self.version = version
        self.epoch = 0

    def body(self, partitions, **fields):
        """Return a request for partitions, given as (topic, index, acknowledgements…)."""
        topics = [
            {
                "topic_id": topic.id,
                "partitions": [
                    {
                        "partition_index": index,
                        "acknowledgement_batches": [
                            {"first_offset": first, "last_offset": last, "acknowledge_types": kinds}
                            for first, last, *kinds in acknowledged
                        ],
                    }
                ],
            }
            for topic, index, *acknowledged in partitions
        ]
        who = {"group_id": self.group, "member_id": self.name, "share_session_epoch": self.epoch}
        return {**who, "topics": topics, **fields}

    def fetch_body(self, partitions, **fields):
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100,
                  "batch_size": 100, "forgotten_topics_data": []}  # fmt: skip
        return self.body(partitions, **{**limits, **fields})

    def fetch(self, note, *partitions, **fields):
        return self.asked(SHARE_FETCH, note, self.fetch_body(partitions, **fields))

    def acknowledge(self, note, *partitions, **fields):
        return self.asked(SHARE_ACKNOWLEDGE, note, self.body(partitions, **fields))

    def asked(self, api, note, body):
        answer = self.talk.ask(api, self.version, body, note=f"{self.name}: {note}")
        return self.heard(answer)

    def heard(self, answer):
        if answer is not None and answer.error_code == 0 and self.epoch >= 0:
            self.epoch += 1
        return answer

    def poll(self, *partitions):
        """Fetch without a record until each partition has records; return their offsets."""
        begun, found = time.monotonic(), {}
        wanted = partitions
        while len(found) < len(partitions):
            body = self.fetch_body(wanted, max_wait_ms=200)
            answer = self.heard(self.talk.quietly(SHARE_FETCH, self.version, body))
            assert answer is not None and answer.error_code == 0, f"{answer}"
            for topic in answer.responses:
                for part in topic.partitions:
                    for each in part.acquired_records:
                        place = bytes(topic.topic_id), part.partition_index
                        found[place] = each.first_offset, each.last_offset
            wanted = ()
            assert time.monotonic() - begun < WAIT_S, "no records come"
        return found


def filled(talk, topic, count=1, index=0):
    """Produce one batch of `count` records."""
    answer = talk.quietly(PRODUCE, 7, produce.body(topic, {index: batch(count)}))
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def started(talk, partitions=1, **config):
    """Return a group and its topic, with offset 0 of each partition accepted."""
    group = prepared(talk, **config)
    topic = talk.topic(partitions)
    for index in range(partitions):
        filled(talk, topic, 1, index)
    Sharing(talk, group, "first").began(topic, count=partitions)
    session = Session(talk, group, "first")
    session.poll(*((topic, index) for index in range(partitions)))
    body = session.body([(topic, index, (0, 0, ACCEPT)) for index in range(partitions)])
    answer = session.talk.quietly(SHARE_ACKNOWLEDGE, 2, body)
    for part in answer.responses[0].partitions:
        assert part.error_code == 0, answer
    return group, topic


@scene(SHARE_FETCH)
def records_are_acquired_and_acknowledged(talk, version):
    group, topic = started(talk)
    one, two = Session(talk, group, "one", version), Session(talk, group, "two", version)
    filled(talk, topic, 3)
    filled(talk, topic, 3)
    one.fetch("gets all", (topic, 0))
    two.fetch("gets nothing", (topic, 0))
    two.acknowledge("of another member", (topic, 0, (1, 3, ACCEPT)))
    one.acknowledge("accepts a batch", (topic, 0, (1, 3, ACCEPT)))
    one.acknowledge("accepts it twice", (topic, 0, (1, 3, ACCEPT)))
    one.acknowledge("each type", (topic, 0, (4, 6, ACCEPT, RELEASE, REJECT)))
    offsets(talk, 1, group, "with one record left", (topic, [0]))
    two.fetch("gets what was released")
    two.fetch("accepts it", (topic, 0, (5, 5, ACCEPT)))
    two.fetch("there is nothing more")
    offsets(talk, 1, group, "with no record left", (topic, [0]))
    filled(talk, topic, 2)
    one.fetch("gets the next")
    one.acknowledge("releases it", (topic, 0, (7, 8, RELEASE)))
    one.fetch("gets it again", max_wait_ms=WAIT_MS)
    one.fetch("closes the session", (topic, 0, (7, 7, ACCEPT)), share_session_epoch=-1)
    two.fetch("gets what the other held", max_wait_ms=WAIT_MS)


@scene()
def acknowledgements_are_checked(talk):
    group, topic = started(talk, partitions=2)
    one = Session(talk, group, "one")
    filled(talk, topic, 5)
    one.fetch("gets all", (topic, 0), (topic, 1))

    def ask(note, *acknowledged, index=0, **fields):
        one.acknowledge(note, (topic, index, *acknowledged), **fields)

    ask("first after last", (3, 1, ACCEPT))
    ask("not in order", (3, 4, ACCEPT), (1, 2, ACCEPT))
    ask("an overlap", (1, 3, ACCEPT), (2, 4, ACCEPT))
    ask("no type", (1, 2))
    ask("too few types", (1, 3, ACCEPT, ACCEPT))
    ask("a negative type", (1, 1, -1))
    ask("type 5", (1, 1, 5))
    ask("a renewal that is none", (1, 1, RENEW))
    ask("below the start", (0, 0, ACCEPT))
    ask("beyond the end", (1, 9, ACCEPT))
    ask("a part beyond the end", (1, 1, ACCEPT), (6, 7, ACCEPT))
    ask("of a partition without records", (0, 0, ACCEPT), index=1)
    ask("no batches")
    ask("a gap", (5, 5, GAP))
    ask("a renewal", (1, 2, RENEW), is_renew_ack=True)
    ask("accepts what it renewed", (1, 2, ACCEPT))
    one.acknowledge("an unknown partition", (topic, 2, (0, 0, ACCEPT)))
    one.acknowledge("an unknown topic", (topic._replace(id=b"\x07" * 16), 0, (0, 0, ACCEPT)))
    one.acknowledge("nothing")
    offsets(talk, 1, group, "afterwards", (topic, [0, 1]))


@scene()
def requests_are_checked_first(talk):
    group, topic = started(talk)
    filled(talk, topic, 3)

    def fetch(note, *partitions, **fields):
        Session(talk, group, "one").fetch(note, *(partitions or [(topic, 0)]), **fields)

    fetch("no group", group_id=None)
    fetch("no member", member_id=None)
    fetch("an empty member", member_id="")
    fetch("a long member", member_id="m" * 37)
    fetch("no records wanted", max_records=0)
    fetch("acknowledges in a new session", (topic, 0, (1, 1, ACCEPT)))
    fetch("a renewal that fetches", is_renew_ack=True)
    fetch("an unknown mode", share_acquire_mode=2)
    fetch("an unknown partition", (topic, 1))
    fetch("an unknown topic", (topic._replace(id=b"\x07" * 16), 0))
    fetch("a group that is not there", group_id=f"{group}-unknown")
    nobody = Session(talk, group, "nobody")
    nobody.acknowledge("no group", (topic, 0, (1, 1, ACCEPT)), group_id=None)
    nobody.acknowledge("no session", (topic, 0, (1, 1, ACCEPT)))


@scene()
def sessions_have_epochs(talk):
    group, topic = started(talk, partitions=2)
    one = Session(talk, group, "one")
    one.fetch("no session", (topic, 0), share_session_epoch=1)
    one.acknowledge("no session", share_session_epoch=1)
    one.acknowledge("closes no session", share_session_epoch=-1)
    one.fetch("closes no session", share_session_epoch=-1)
    one.fetch("opens", (topic, 0))
    one.fetch("an epoch too early", share_session_epoch=5)
    one.fetch("an epoch too late", share_session_epoch=-2)
    one.acknowledge("epoch 0", share_session_epoch=0)
    one.fetch("goes on")
    one.acknowledge("goes on")
    filled(talk, topic, 2, 0)
    filled(talk, topic, 2, 1)
    one.fetch("of the session alone")
    one.fetch("adds a partition", (topic, 1))
    forgotten = [{"topic_id": topic.id, "partitions": [0]}]
    filled(talk, topic, 1, 0)
    one.fetch("forgets a partition", forgotten_topics_data=forgotten)
    again = Session(talk, group, "one")
    again.fetch("opens again", (topic, 0), (topic, 1))
    again.acknowledge("closes", share_session_epoch=-1)
    again.fetch("goes on, though closed")


@scene()
def limits_bound_what_is_acquired(talk):
    group, topic = started(talk)
    for _ in range(4):
        filled(talk, topic, 3)
    one, two = Session(talk, group, "one"), Session(talk, group, "two")
    one.fetch("whole batches", (topic, 0), max_records=4, batch_size=3)
    two.fetch("a number of records", (topic, 0), max_records=2, share_acquire_mode=1)
    two.fetch("one more", max_records=1, share_acquire_mode=1)
    one.fetch("the rest in pieces", batch_size=1)
    one.acknowledge("releases some", (topic, 0, (2, 2, RELEASE), (4, 5, RELEASE)))
    two.fetch("gets them", batch_size=100)


@scene()
def records_are_delivered_up_to_the_limit(talk):
    group, topic = started(talk, share_delivery_count_limit="2")
    filled(talk, topic, 2)
    one = Session(talk, group, "one")
    one.fetch("first", (topic, 0))
    one.acknowledge("releases", (topic, 0, (1, 2, RELEASE)))
    one.fetch("second", max_wait_ms=WAIT_MS)
    one.acknowledge("releases again", (topic, 0, (1, 2, RELEASE)))
    one.fetch("no third")
    offsets(talk, 1, group, "afterwards", (topic, [0]))
    filled(talk, topic, 1)
    one.fetch("the next")


@scene()
def deleted_records_are_passed_over(talk):
    group, topic = started(talk)
    filled(talk, topic, 3)
    filled(talk, topic, 3)
    one = Session(talk, group, "one")
    one.fetch("one batch", (topic, 0), max_records=1)
    cut = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": 4}]}]
    talk.quietly(DELETE_RECORDS, 2, {"topics": cut, "timeout_ms": 10_000})
    one.fetch("the other", max_wait_ms=WAIT_MS)
    one.acknowledge("of deleted ones", (topic, 0, (1, 3, RELEASE)))
    one.acknowledge("of the other", (topic, 0, (4, 6, ACCEPT)))
    offsets(talk, 1, group, "afterwards", (topic, [0]))
