"""A share session without I/O: epochs, partitions, acknowledgements."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.share.acquired_partition import Acknowledgement, AcquiredPartition
from kafkalite.client.share.acquired_records import complement, consecutive
from kafkalite.client.share.leader_session import (
    EPOCH_MAX,
    LeaderSession,
    LockRenewal,
    batches_of,
)
from kafkalite.errors import InvalidRequest, ShareSessionNotFound
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.share import SHARE_ACKNOWLEDGE, SHARE_FETCH

KEY = (b"t".ljust(16, b"."), 0)
OTHER = (b"t".ljust(16, b"."), 1)
NAMES = {KEY: TopicPartition("t", 0), OTHER: TopicPartition("t", 1)}
LIMITS = {
    "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1, "max_records": 1, "batch_size": 1,
}  # fmt: skip


class Session:
    """A session, and the encoded form of its requests and responses."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.outcomes: deque[Any] = deque()
        self.session = LeaderSession(0, "g", "m", self.queue, self.outcomes)

    def fetch(self, *keys: Any, now_s: float = 0.0) -> Fields:
        fields = self.session.fetch({key: NAMES[key] for key in keys}, LIMITS, now_s)
        return SHARE_FETCH.request.read(2, SHARE_FETCH.request.write(2, fields))

    def acknowledge(self, now_s: float = 0.0, **options: Any) -> Fields:
        fields = self.session.acknowledge(now_s, **options)
        return SHARE_ACKNOWLEDGE.request.read(2, SHARE_ACKNOWLEDGE.request.write(2, fields))

    def respond(self, *entries: dict[str, Any], api: Any = SHARE_FETCH, **fields: Any) -> Any:
        topics = [{"topic_id": KEY[0], "partitions": list(entries)}] if entries else []
        body = {"acquisition_lock_timeout_ms": 1000, "responses": topics, **fields}
        return self.session.handle(api.response.read(2, api.response.write(2, body)))

    def acquired(self, first: int, last: int) -> AcquiredPartition:
        """Fetch partition 0 and acquire these offsets."""
        self.fetch(KEY)
        ranges = [{"first_offset": first, "last_offset": last, "delivery_count": 1}]
        entry = {"partition_index": 0, "records": b"", "acquired_records": ranges}
        (records,) = self.respond(entry).records
        self.kept = records
        acquired: AcquiredPartition = records.acquired
        return acquired

    def collect(self, now_s: float = 0.0) -> None:
        while self.queue:
            self.session.add(self.queue.popleft(), now_s)


def batches(request: Fields) -> dict[int, list[tuple[int, int, int]]]:
    return {
        entry.partition_index: [
            (each.first_offset, each.last_offset, *each.acknowledge_types)
            for each in entry.acknowledgement_batches
        ]
        for topic in request.topics
        for entry in topic.partitions
    }


def test_request_names_only_partitions_that_are_new_or_to_forget():
    session = Session()
    assert batches(session.fetch(KEY)) == {0: []}
    session.respond()
    request = session.fetch(KEY, OTHER)
    assert (request.share_session_epoch, batches(request)) == (1, {1: []})
    session.respond()
    request = session.fetch(OTHER)
    assert (request.share_session_epoch, batches(request)) == (2, {})
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]


def test_epoch_after_the_largest_is_one():
    session = Session()
    session.session.epoch = EPOCH_MAX
    session.fetch(KEY)
    session.respond()
    assert session.session.epoch == 1


def test_acknowledgements_ride_on_the_fetch_and_are_confirmed_once():
    session = Session()
    acquired = session.acquired(0, 9)
    acquired.acknowledge([(0, 3)], Acknowledgement.ACCEPT)
    acquired.acknowledge([(5, 6)], Acknowledgement.RELEASE)
    acquired.acknowledge([(4, 4)], Acknowledgement.GAP, is_reported=False)
    session.collect()
    assert batches(session.fetch(KEY)) == {0: [(0, 3, 1), (4, 4, 0), (5, 6, 2)]}
    assert session.session.has_unconfirmed
    session.respond({"partition_index": 0, "records": b""})
    ((partition, offsets, error),) = session.outcomes
    assert (partition, offsets, error) == (("t", 0), [range(4), range(5, 7)], None)
    assert not session.session.has_unconfirmed


def test_renewal_moves_the_end_of_its_lock_only():
    session = Session()
    acquired = session.acquired(0, 9)
    renewal = LockRenewal(acquired, ((2, 3),))
    session.session.renew(renewal, 0.0)
    request = session.acknowledge(now_s=0.9)
    assert request.is_renew_ack and batches(request) == {0: [(2, 3, 4)]}
    session.respond({"partition_index": 0}, api=SHARE_ACKNOWLEDGE)
    assert renewal.is_done and renewal.error is None
    assert acquired.due_s(3) == pytest.approx(1.9)
    assert acquired.due_s(4) == pytest.approx(1.0)
    acquired.acknowledge([(3, 3)], Acknowledgement.ACCEPT)
    acquired.acknowledge([(4, 4)], Acknowledgement.ACCEPT)
    session.collect(now_s=1.5)
    assert [(offsets, error.code) for _, offsets, error in session.outcomes] == [
        ([range(4, 5)], 121)
    ]
    assert batches(session.acknowledge()) == {0: [(3, 3, 1)]}


def test_error_of_the_request_loses_everything_of_the_session():
    session = Session()
    acquired = session.acquired(0, 9)
    for offset in range(3):
        acquired.acknowledge([(offset, offset)], Acknowledgement.ACCEPT)
        session.collect()
        if offset == 0:
            session.fetch(KEY)
        if offset == 1:
            assert session.respond(error_code=ShareSessionNotFound.code).error.code == 122
    assert [(offsets, error.code) for _, offsets, error in session.outcomes] == [
        ([range(1)], 122), ([range(1, 2)], 122), ([range(2, 3)], 122),
    ]  # fmt: skip
    assert session.fetch(KEY).share_session_epoch == 0


def test_final_request_ends_the_session_and_the_next_one_opens_another():
    session = Session()
    session.acquired(0, 0).acknowledge([(0, 0)], Acknowledgement.ACCEPT)
    session.collect()
    request = session.acknowledge(is_final=True)
    assert (request.share_session_epoch, batches(request)) == (-1, {0: [(0, 0, 1)]})
    session.respond({"partition_index": 0}, api=SHARE_ACKNOWLEDGE)
    assert [error for _, _, error in session.outcomes] == [None]
    assert not session.session.is_open


def test_partition_that_appears_twice_is_invalid():
    session = Session()
    session.fetch(KEY)
    entry = {"partition_index": 0, "records": b""}
    with pytest.raises(InvalidRequest, match="not requested"):
        session.respond(entry, entry)


RUNS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.integers(0, 4)), max_size=12
).map(lambda runs: [(first, first + more, kind) for first, more, kind in runs])


@given(RUNS)
def test_batches_cover_each_offset_once_in_ascending_order(runs):
    found = batches_of(runs)
    offsets = [
        offset for each in found for offset in range(each["first_offset"], each["last_offset"] + 1)
    ]
    assert offsets == sorted({o for first, last, _ in runs for o in range(first, last + 1)})
    for each in found:
        (kind,) = each["acknowledge_types"]
        covered = {o for first, last, k in runs if k == kind for o in range(first, last + 1)}
        assert covered >= set(range(each["first_offset"], each["last_offset"] + 1))


@given(st.sets(st.integers(0, 30)))
def test_runs_and_their_complement_are_all_offsets(offsets):
    runs = consecutive(sorted(offsets))
    gaps = complement(runs, 0, 30)
    spread = [o for first, last in [*runs, *gaps] for o in range(first, last + 1)]
    assert sorted(spread) == list(range(31))
    assert [o for first, last in runs for o in range(first, last + 1)] == sorted(offsets)
