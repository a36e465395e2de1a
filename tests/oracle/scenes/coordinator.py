"""The transaction coordinator: producers of transactional ids, in every state and version.

What depends on whether the markers of the last transaction are written yet is left out: each scene
waits for them.
"""

from __future__ import annotations

import time

from kafkalite.protocol.schemas.groups import FIND_COORDINATOR, OFFSET_FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
)
from tests.oracle.batches import batch
from tests.oracle.scenes import scene

TRANSACTIONAL = 0x10
STABLE_INIT = range(6)
BY_CLIENTS = range(4)
"""Versions of AddPartitionsToTxn that clients send."""
TIME_FIELDS = ("transaction_start_time_ms",)
TRANSACTION, GROUP = 1, 0


class Talker:
    """One transactional id, and the requests of its producer."""

    def __init__(self, talk, topic=None, name=""):
        self.talk = talk
        self.id = f"id of {talk.scene}{name}"
        self.topic = topic
        for kind, key in ((TRANSACTION, self.id), (GROUP, self.id)):
            body = {"key": key, "key_type": kind}
            talk.await_answer(FIND_COORDINATOR, 1, body, lambda found: found.error_code == 0)
        self.pid, self.epoch = -1, -1
        talk.producer_id()  # so that the coordinator has producer ids at hand
        self.await_loaded()

    def await_loaded(self):
        """Wait until the coordinator answers for this id."""
        body = {"transactional_ids": [self.id]}
        self.talk.await_answer(
            DESCRIBE_TRANSACTIONS, 0, body,
            lambda found: found.transaction_states[0].error_code not in (14, 15, 16),
        )  # fmt: skip

    def begin(self, version=2):
        """Initialize the producer, not recorded."""
        body = {"transactional_id": self.id, "transaction_timeout_ms": 60_000}
        found = self.talk.await_answer(
            INIT_PRODUCER_ID, version, body, lambda answer: answer.error_code == 0
        )
        self.pid, self.epoch = found.producer_id, found.producer_epoch
        self.talk.symbol("producer_id", self.pid)  # so that its number does not depend on an order
        return self

    def init(self, version, note, timeout_ms=60_000, pid=-1, epoch=-1):
        body = {
            "transactional_id": self.id, "transaction_timeout_ms": timeout_ms,
            "producer_id": pid, "producer_epoch": epoch,
        }  # fmt: skip
        return self.talk.ask(INIT_PRODUCER_ID, version, body, note=note)

    def add(self, version, note, names=None, pid=None, epoch=None, id=None):
        topics = [{"name": name, "partitions": [0]} for name in names or [self.topic.name]]
        body = {
            "v3_and_below_transactional_id": self.id if id is None else id,
            "v3_and_below_producer_id": self.pid if pid is None else pid,
            "v3_and_below_producer_epoch": self.epoch if epoch is None else epoch,
            "v3_and_below_topics": topics,
        }
        return self.talk.ask(ADD_PARTITIONS_TO_TXN, version, body, note=note)

    def end(self, version, note, commit, pid=None, epoch=None, id=None):
        body = {
            "transactional_id": self.id if id is None else id,
            "producer_id": self.pid if pid is None else pid,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "committed": commit,
        }
        answer = self.talk.ask(END_TXN, version, body, note=note)
        self.settle()
        return answer

    def settle(self):
        """Wait until no markers are to be written."""
        body = {"transactional_ids": [self.id]}
        self.talk.await_answer(
            DESCRIBE_TRANSACTIONS, 0, body,
            lambda found: not found.transaction_states[0].transaction_state.startswith("Prepare"),
        )  # fmt: skip

    def produce(self, version, note, sequence=0, epoch=None, id="", attributes=TRANSACTIONAL):
        content = batch(
            1, producer_id=self.pid, producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence, attributes=attributes,
        )  # fmt: skip
        entry = {"index": 0, "records": content}
        body = {
            "transactional_id": self.id if id == "" else id, "acks": -1, "timeout_ms": 10_000,
            "topic_data": [
                {"name": self.topic.name, "topic_id": self.topic.id, "partition_data": [entry]}
            ],
        }  # fmt: skip
        return self.talk.ask(PRODUCE, version, body, note=note)

    def describe(self, note):
        body = {"transactional_ids": [self.id]}
        self.talk.ask(DESCRIBE_TRANSACTIONS, 0, body, note=note, veil=TIME_FIELDS)


@scene(INIT_PRODUCER_ID, versions=STABLE_INIT)
def each_start_of_a_producer_raises_its_epoch(talk, version):
    one = Talker(talk)
    one.init(version, "a new id")
    one.init(version, "once more")
    for timeout_ms in (0, -1, 900_001, 900_000, 1):
        one.init(version, f"timeout {timeout_ms}", timeout_ms)
    one.describe("afterwards")


@scene(INIT_PRODUCER_ID, versions=range(3, 6))
def a_producer_may_name_its_pair(talk, version):
    one = Talker(talk).begin()
    one.init(version, "the pair", pid=one.pid, epoch=0)
    one.init(version, "the pair before", pid=one.pid, epoch=0)
    one.init(version, "the pair again", pid=one.pid, epoch=1)
    one.init(version, "an old pair", pid=one.pid, epoch=0)
    one.init(version, "an epoch to come", pid=one.pid, epoch=9)
    one.init(version, "another id", pid=one.pid + 1_000_000, epoch=2)
    one.init(version, "an id without an epoch", pid=one.pid)
    one.init(version, "an epoch without an id", epoch=1)
    one.init(version, "no pair")
    one.init(version, "the pair before no pair", pid=one.pid, epoch=2)


@scene(INIT_PRODUCER_ID, versions=STABLE_INIT)
def a_second_producer_aborts_and_fences_the_first(talk, version):
    one = Talker(talk, talk.topic()).begin()
    one.add(1, "begin")
    one.init(version, "while it is open")
    one.settle()
    one.init(version, "after its abort")
    one.add(1, "of the first")
    one.end(1, "of the first", commit=True)
    one.produce(11, "of the first")


@scene(ADD_PARTITIONS_TO_TXN, versions=BY_CLIENTS)
def partitions_are_added_all_or_none(talk, version):
    one = Talker(talk, talk.topic()).begin()
    other = talk.topic()
    one.add(version, "unknown id", id="nobody's")
    one.add(version, "empty id", id="")
    one.add(version, "another producer", pid=one.pid + 1_000_000)
    one.add(version, "a later epoch", epoch=one.epoch + 1)
    one.add(version, "an earlier epoch", epoch=one.epoch - 1)
    one.add(version, "an unknown topic beside a known one", [one.topic.name, "nowhere"])
    one.describe("nothing added")
    one.add(version, "one")
    one.add(version, "the same")
    one.add(version, "two", [one.topic.name, other.name])
    one.describe("two added")
    one.end(1, "commit", commit=True)
    one.add(version, "the next transaction")
    one.end(1, "abort", commit=False)


@scene(END_TXN, versions=range(5))
def a_transaction_ends_once(talk, version):
    one = Talker(talk, talk.topic()).begin()
    for commit in (True, False):
        one.end(version, f"of nothing, commit {commit}", commit)
        one.end(version, f"unknown id, commit {commit}", commit, id="nobody's")
        one.end(version, f"empty id, commit {commit}", commit, id="")
    for commit in (True, False):
        one.add(1, "begin")
        one.end(version, "another producer", commit, pid=one.pid + 1_000_000)
        one.end(version, "a later epoch", commit, epoch=one.epoch + 1)
        one.end(version, "an earlier epoch", commit, epoch=one.epoch - 1)
        one.end(version, f"commit {commit}", commit)
        one.end(version, "the same again", commit)
        one.end(version, "the other", not commit)
        one.describe("ended")


@scene()
def a_transaction_of_version_2_ends_with_a_new_epoch(talk):
    one = Talker(talk, talk.topic()).begin()
    one.end(5, "commit of nothing", commit=True)
    for commit in (True, False):
        one.add(3, "begin")
        one.end(5, "another producer", commit, pid=one.pid + 1_000_000)
        one.end(5, "a later epoch", commit, epoch=one.epoch + 1)
        one.end(5, "an earlier epoch", commit, epoch=one.epoch - 1)
        one.end(5, f"commit {commit}", commit)
        one.end(5, "the same again", commit)
        one.end(5, "the other", not commit)
        one.epoch += 1
        one.end(5, "commit, nothing added", commit=True)
        one.end(5, "abort, nothing added", commit=False)
        one.end(5, "abort, the same again", commit=False)
        one.epoch += 1
        one.describe("ended")


@scene(PRODUCE, versions=[3, 8, 10, 11])
def records_need_their_partition_in_the_transaction(talk, version):
    one = Talker(talk, talk.topic()).begin().begin()  # so that there is an earlier epoch
    one.produce(version, "not added")
    one.produce(version, "no transactional id", id=None)
    one.add(1, "begin")
    one.produce(version, "outside of a transaction", attributes=0)
    one.produce(version, "the first", sequence=0)
    one.produce(version, "the first again", sequence=0)
    one.produce(version, "not transactional", sequence=1, attributes=0)
    one.produce(version, "a gap", sequence=5)
    one.produce(version, "an earlier epoch", sequence=1, epoch=one.epoch - 1)
    one.produce(version, "a later epoch", sequence=0, epoch=one.epoch + 1)
    one.end(1, "commit", commit=True)
    one.produce(version, "after the end", sequence=1)
    producers(talk, one.topic.name)


@scene(PRODUCE, versions=[12, 13])
def records_add_their_partition(talk, version):
    one = Talker(talk, talk.topic()).begin()
    one.produce(version, "no first sequence", sequence=3)
    one.produce(version, "the first", sequence=0)
    one.produce(version, "the next", sequence=1)
    one.describe("added")
    one.end(5, "commit", commit=True)
    one.produce(version, "of the last epoch", sequence=2)
    one.epoch += 1
    one.produce(version, "of the next epoch", sequence=0)
    one.produce(version, "of an epoch to come", sequence=0, epoch=one.epoch + 1)
    one.end(5, "abort", commit=False)
    producers(talk, one.topic.name)


def producers(talk, name):
    body = {"topics": [{"name": name, "partition_indexes": [0]}]}
    talk.ask(DESCRIBE_PRODUCERS, 0, body, veil=("last_timestamp", "coordinator_epoch"))


@scene(TXN_OFFSET_COMMIT, versions=range(6))
def offsets_are_unstable_until_the_end(talk, version):
    one = Talker(talk, talk.topic()).begin()
    body = {
        "transactional_id": one.id, "group_id": one.id, "producer_id": one.pid,
        "producer_epoch": one.epoch, "topics": [{
            "name": one.topic.name, "partitions": [
                {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"},
            ],
        }],
    }  # fmt: skip
    if version < 5:
        talk.ask(TXN_OFFSET_COMMIT, version, body, note="not added")
        offsets(one, "AddOffsetsToTxn of another producer", one.pid + 1_000_000, one.epoch)
        offsets(one, "AddOffsetsToTxn of a later epoch", one.pid, one.epoch + 1)
        offsets(one, "AddOffsetsToTxn", one.pid, one.epoch)
    talk.ask(TXN_OFFSET_COMMIT, version, body)
    talk.ask(TXN_OFFSET_COMMIT, version, {**body, "producer_epoch": one.epoch + 1}, note="later")
    talk.ask(TXN_OFFSET_COMMIT, version, {**body, "producer_id": one.pid + 1_000_000}, note="other")
    talk.ask(TXN_OFFSET_COMMIT, version, {**body, "group_id": ""}, note="an empty group")
    long = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m" * 5_000}
    topics = [{"name": one.topic.name, "partitions": [long]}]
    talk.ask(TXN_OFFSET_COMMIT, version, {**body, "topics": topics}, note="long metadata")
    if version >= 3:
        member = {"generation_id_or_member_epoch": 3, "member_id": "nobody"}
        talk.ask(TXN_OFFSET_COMMIT, version, {**body, **member}, note="no such member")
    fetched(one, "open")
    one.end(5 if version >= 5 else 1, "commit", commit=True)
    await_stable(one)
    fetched(one, "committed")


def offsets(one, note, pid, epoch):
    body = {
        "transactional_id": one.id, "group_id": one.id, "producer_id": pid, "producer_epoch": epoch
    }
    for version in (0, 1, 2, 3, 4):
        one.talk.ask(ADD_OFFSETS_TO_TXN, version, body, note=note)


def fetched(one, note):
    for stable in (True, False):
        one.talk.ask(OFFSET_FETCH, 7, wanted(one, stable), note=f"{note}, stable {stable}")


def wanted(one, stable):
    topics = [{"name": one.topic.name, "partition_indexes": [0]}]
    return {"group_id": one.id, "topics": topics, "require_stable": stable}


def await_stable(one):
    one.talk.await_answer(
        OFFSET_FETCH, 7, wanted(one, True),
        lambda found: found.topics[0].partitions[0].error_code == 0,
    )  # fmt: skip


@scene(LIST_TRANSACTIONS)
def transactions_are_listed_by_filters(talk, version):
    one = Talker(talk, talk.topic(), name=" (one)").begin()
    two = Talker(talk, one.topic, name=" (two)").begin()
    two.add(1, "begin")
    own = {"producer_id_filters": [one.pid, two.pid]}
    talk.ask(LIST_TRANSACTIONS, version, own, note="both")
    for states in (["Empty"], ["Ongoing", "no such"], ["empty"], ["Dead"]):
        talk.ask(LIST_TRANSACTIONS, version, {**own, "state_filters": states}, note=str(states))
    if version >= 1:
        for filter_ms in (0, -1, -2, 3_600_000):
            asked = {**own, "duration_filter": filter_ms}
            time.sleep(0.01)
            talk.ask(LIST_TRANSACTIONS, version, asked, note=f"duration {filter_ms}")
    if version >= 2:
        for pattern in ("", ".*two.", ".*two", "(", "a{1,2000}", "(?=a)", r"\pL.*", ".*[(]one[)]"):
            asked = {**own, "transactional_id_pattern": pattern}
            talk.ask(LIST_TRANSACTIONS, version, asked, note=f"pattern {pattern}")
    two.end(1, "abort", commit=False)
    talk.ask(LIST_TRANSACTIONS, version, own, note="at last")


@scene()
def descriptions_of_unknown_ids_say_so(talk):
    one = Talker(talk)
    for ids in ([], [""], [one.id], [one.id, one.id]):
        talk.ask(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ids}, note=f"{len(ids)} ids")


@scene(WRITE_TXN_MARKERS)
def an_operator_may_end_a_hanging_transaction(talk, version):
    one = Talker(talk, talk.topic()).begin()
    one.add(1, "begin")
    one.produce(11, "the first")
    marker = {
        "producer_id": one.pid, "producer_epoch": one.epoch, "transaction_result": False,
        "topics": [{"name": one.topic.name, "partition_indexes": [0, 5]}], "coordinator_epoch": 0,
    }  # fmt: skip
    talk.ask(WRITE_TXN_MARKERS, version, {"markers": [marker]})
    one.produce(11, "afterwards", sequence=1)
    one.end(1, "abort", commit=False)
