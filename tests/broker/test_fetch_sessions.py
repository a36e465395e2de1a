"""Sessions against KIP-227's table of ids and epochs; entries are the wire's tuples."""

import pytest

from kafkalite.broker.replica import fetch_sessions
from kafkalite.broker.replica.fetch_sessions import EVICTION_MS_MIN, FetchSessions
from kafkalite.clock import ManualClock
from kafkalite.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch


def wanted(index, offset=0):
    return (index, -1, offset, -1, -1, 1 << 20)


def entry(index, high_watermark=0, records=None, error_code=0, log_start=0, preferred=-1):
    return (
        index, error_code, high_watermark, high_watermark, log_start, None, preferred, records,
        None, None, -1,
    )  # fmt: skip


def topics_of(*indexes):
    return [("t", [wanted(index) for index in indexes])]


class Connection:
    """The connection that began a session, as far as the session uses it."""

    def __init__(self):
        self.callbacks = []

    def on_close(self, callback):
        self.callbacks.append(callback)

    def disconnect(self):
        for callback in self.callbacks:
            callback()


class Sessions(FetchSessions):
    """Sessions of one connection, unless the test names another."""

    connection = Connection()

    def __init__(self, slots):
        self.clock = ManualClock()
        super().__init__(slots, self.clock)

    def open(self, session_id, epoch, topics, forgotten, owner=None):
        return super().open(session_id, epoch, topics, forgotten, owner or self.connection)


@pytest.fixture
def sessions():
    return Sessions(slots=2)


def remembered(session):
    """Return the partitions of a session as in a request, in the session's order."""
    topics = {}
    for (topic, _), partition in session.wanted.items():
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def news(session, topics, everything):
    """Return the entries of a response that the session includes."""
    sent_offsets = [
        (topic, [entry for entry in entries if session.must_include(topic, entry, everything)])
        for topic, entries in topics
    ]
    return [(topic, entries) for topic, entries in sent_offsets if entries]


def test_request_without_session_creates_none(sessions):
    assert sessions.open(0, -1, topics_of(0), []) is None
    assert len(sessions) == 0


def test_epoch_zero_creates_a_session_with_the_partitions(sessions):
    session = sessions.open(0, 0, topics_of(0, 1), [])
    assert session.session_id != 0
    assert remembered(session) == topics_of(0, 1)


def test_incremental_request_changes_adds_and_removes_partitions(sessions):
    session = sessions.open(0, 0, topics_of(0, 1), [])
    again = sessions.open(
        session.session_id, 1, [("t", [wanted(1, offset=9)]), ("u", [wanted(0)])], [("t", [0])]
    )
    assert again is session
    assert remembered(again) == [("t", [wanted(1, offset=9)]), ("u", [wanted(0)])]


def test_unknown_session_is_refused(sessions):
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(12345, 1, [], [])


@pytest.mark.parametrize("epoch", [2, 7])
def test_skipped_epoch_is_refused(sessions, epoch):
    session = sessions.open(0, 0, topics_of(0), [])
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.open(session.session_id, epoch, [], [])


def test_repeated_epoch_is_refused(sessions):
    session = sessions.open(0, 0, topics_of(0), [])
    sessions.open(session.session_id, 1, [], [])
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.open(session.session_id, 1, [], [])


def test_epoch_after_the_maximum_is_one(sessions):
    session = sessions.open(0, 0, topics_of(0), [])
    session.epoch = fetch_sessions.EPOCH_MAX
    sessions.open(session.session_id, fetch_sessions.EPOCH_MAX, [], [])
    assert session.epoch == 1


def test_final_epoch_closes_the_session(sessions):
    session = sessions.open(0, 0, topics_of(0), [])
    assert sessions.open(session.session_id, -1, topics_of(0), []) is None
    assert len(sessions) == 0


def test_least_recent_session_is_evicted_after_two_minutes(sessions):
    first = sessions.open(0, 0, topics_of(0), [])
    second = sessions.open(0, 0, topics_of(0), [])
    sessions.clock.advance(1)
    sessions.open(first.session_id, 1, [], [])
    sessions.clock.advance(EVICTION_MS_MIN - 1)
    assert sessions.open(0, 0, topics_of(0, 1), []) is None
    sessions.clock.advance(1)
    third = sessions.open(0, 0, topics_of(0), [])
    sessions.open(first.session_id, 2, [], [])
    sessions.open(third.session_id, 1, [], [])
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(second.session_id, 1, [], [])


def test_sessions_in_use_are_not_evicted_by_other_clients(sessions):
    """Clients with a session keep it; the others are served in full without one."""
    epochs = {}
    for client in range(5):
        session = sessions.open(0, 0, topics_of(0), [])
        if session is not None:
            epochs[session.session_id] = 0
        assert (session is not None) == (client < 2)
    for _ in range(3 * EVICTION_MS_MIN // 1000):
        sessions.clock.advance(1000)
        for session_id in epochs:
            epochs[session_id] += 1
            assert sessions.open(session_id, epochs[session_id], [], []) is not None
        assert sessions.open(0, 0, topics_of(0), []) is None
    assert len(sessions) == 2 and sessions.partition_count == 2


def test_closed_session_frees_its_slot(sessions):
    first = sessions.open(0, 0, topics_of(0), [])
    sessions.open(0, 0, topics_of(0), [])
    renewed = sessions.open(first.session_id, 0, topics_of(0), [])
    assert renewed is not None
    assert sessions.open(0, 0, topics_of(0), []) is None
    assert sessions.open(renewed.session_id, -1, [], []) is None
    assert sessions.open(0, 0, topics_of(0), []) is not None


def test_larger_session_evicts_the_smallest_session_over_two_minutes(sessions):
    two, three = (
        sessions.open(0, 0, topics_of(0, 1), []),
        sessions.open(0, 0, topics_of(0, 1, 2), []),
    )
    sessions.clock.advance(EVICTION_MS_MIN)
    sessions.open(two.session_id, 1, [], [])
    sessions.open(three.session_id, 1, [], [])
    assert sessions.open(0, 0, topics_of(0, 1, 2, 3), []) is None
    sessions.clock.advance(1)
    sessions.open(two.session_id, 2, [], [])
    sessions.open(three.session_id, 2, [], [])
    assert sessions.open(0, 0, topics_of(0, 1), []) is None, "it is as large, and no larger"
    larger = sessions.open(0, 0, topics_of(0, 1, 2, 3), [])
    sessions.open(larger.session_id, 1, [], [])
    sessions.open(three.session_id, 3, [], [("t", [0, 1])])
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(two.session_id, 3, [], [])
    # It has one partition by now, and the larger one is too young to be evicted.
    assert sessions.open(0, 0, topics_of(0, 1), []) is not None
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(three.session_id, 4, [], [])
    assert sessions.open(0, 0, topics_of(*range(9)), []) is None


def test_list_of_old_sessions_does_not_grow_with_their_changes(sessions):
    session = sessions.open(0, 0, topics_of(0), [])
    sessions.clock.advance(EVICTION_MS_MIN + 1)
    for epoch in range(1, 1001):
        add, forget = (topics_of(1), []) if epoch % 2 else ([], [("t", [1])])
        assert sessions.open(session.session_id, epoch, add, forget) is session
    assert len(sessions._size_heap) <= 102


def test_session_over_the_partition_limit_is_closed(sessions, monkeypatch):
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 3)
    session = sessions.open(0, 0, topics_of(0), [])
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(session.session_id, 1, topics_of(1, 2, 3), [])
    assert len(sessions) == 0


def test_session_omits_unchanged_partitions(sessions):
    session = sessions.open(0, 0, topics_of(0, 1), [])
    full = [("t", [entry(0, 5), entry(1, 5)])]
    assert news(session, full, everything=True) == full
    assert news(session, full, everything=False) == []


@pytest.mark.parametrize(
    "changed",
    [
        entry(1, high_watermark=6),
        entry(1, 5, log_start=2),
        entry(1, 5, error_code=6),
        entry(1, 5, records=b"x"),
    ],
    ids=["high watermark", "log start", "error", "records"],
)
def test_session_includes_changed_partitions(sessions, changed):
    session = sessions.open(0, 0, topics_of(0, 1), [])
    news(session, [("t", [entry(0, 5), entry(1, 5)])], everything=True)
    assert news(session, [("t", [entry(0, 5), changed])], everything=False) == [("t", [changed])]


def test_session_always_includes_errors(sessions):
    session = sessions.open(0, 0, topics_of(0), [])
    faulty = [("t", [entry(0, -1, error_code=6)])]
    news(session, faulty, everything=True)
    assert news(session, faulty, everything=False) == faulty


def test_partition_with_a_preferred_replica_is_always_in_the_response(sessions):
    session = sessions.open(0, 0, topics_of(0, 1), [])
    elsewhere = [("t", [entry(0, 5, preferred=2)])]
    news(session, elsewhere, everything=True)
    assert news(session, elsewhere, everything=False) == elsewhere
    assert news(session, [("t", [entry(0, 5)])], everything=False) == []


def test_partition_with_records_moves_to_the_end(sessions):
    session = sessions.open(0, 0, topics_of(0, 1, 2), [])
    news(session, [("t", [entry(0, 1, records=b"x")])], everything=False)
    assert remembered(session) == [("t", [wanted(1), wanted(2), wanted(0)])]


# -- bounds ----------------------------------------------------------------------------------------


@pytest.fixture
def crowded(monkeypatch):
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX_IN_ALL", 5)
    return Sessions(slots=100)


def test_sessions_over_the_total_limit_evict_only_unused_ones(crowded):
    first = crowded.open(0, 0, topics_of(0, 1, 2), [])
    second = crowded.open(0, 0, topics_of(0, 1), [])
    assert crowded.partition_count == 5
    assert crowded.open(0, 0, topics_of(0), []) is None
    crowded.clock.advance(EVICTION_MS_MIN + 1)
    crowded.open(second.session_id, 1, [], [])
    third = crowded.open(0, 0, topics_of(0), [])
    assert (len(crowded), crowded.partition_count) == (2, 3)
    with pytest.raises(FetchSessionIdNotFound):
        crowded.open(first.session_id, 1, [], [])
    # A session that grows too large is closed; other sessions stay.
    with pytest.raises(FetchSessionIdNotFound):
        crowded.open(third.session_id, 1, topics_of(1, 2, 3), [])
    assert (len(crowded), crowded.partition_count) == (1, 2)
    assert crowded.open(second.session_id, 2, [], []) is second
    crowded.clock.advance(EVICTION_MS_MIN + 1)
    grown = crowded.open(0, 0, topics_of(0), [])
    crowded.open(grown.session_id, 1, topics_of(1, 2, 3, 4), [])
    assert (len(crowded), crowded.partition_count) == (1, 5)


def test_partition_count_follows_every_change_of_a_session(crowded):
    session = crowded.open(0, 0, topics_of(0, 1, 2), [])
    crowded.open(session.session_id, 1, topics_of(3), [("t", [0, 1, 7])])
    assert crowded.partition_count == 2
    crowded.open(session.session_id, 2, [], [("t", [2, 3])])
    assert (len(crowded), crowded.partition_count) == (0, 0)
    crowded.open(0, 0, topics_of(0), [])
    crowded.resize(0)
    assert (len(crowded), crowded.partition_count) == (0, 0)


def test_session_ends_with_the_connection_that_opened_it(sessions):
    ours, other = Connection(), Connection()
    first = sessions.open(0, 0, topics_of(0), [], ours)
    second = sessions.open(first.session_id, 0, topics_of(0, 1), [], ours)
    kept = sessions.open(0, 0, topics_of(0), [], other)
    assert len(ours.callbacks) == 1
    ours.disconnect()
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(second.session_id, 1, [], [], other)
    assert sessions.open(kept.session_id, 1, [], [], other) is kept
    assert sessions.partition_count == 1
    other.disconnect()
    assert (len(sessions), sessions.partition_count, sessions._ids_by_owner) == (0, 0, {})


def test_session_drops_offsets_of_forgotten_partitions(sessions):
    session = sessions.open(0, 0, topics_of(0, 1), [])
    sessions.open(session.session_id, 1, [], [("t", [0])])
    news(session, [("t", [entry(0, 5), entry(1, 5)])], everything=False)
    assert list(session.sent_offsets) == [("t", 1)]
