"""Sessions against KIP-227's table of ids and epochs; entries are the wire's tuples."""

import pytest

from kafkalite.broker import fetch_sessions
from kafkalite.broker.fetch_sessions import FetchSessions
from kafkalite.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch


def wanted(index, offset=0):
    return (index, -1, offset, -1, -1, 1 << 20)


def entry(index, high_watermark=0, records=None, error_code=0, log_start=0):
    return (index, error_code, high_watermark, high_watermark, log_start, None, -1, records, None,
            None)  # fmt: skip


def asked(*indexes):
    return [("t", [wanted(index) for index in indexes])]


@pytest.fixture
def sessions():
    return FetchSessions(slots=2)


def test_a_request_without_a_session_makes_none(sessions):
    assert sessions.enter(0, -1, asked(0), []) is None
    assert len(sessions) == 0


def test_epoch_zero_makes_a_session_that_remembers_the_list(sessions):
    session = sessions.enter(0, 0, asked(0, 1), [])
    assert session.session_id != 0
    assert session.topics() == asked(0, 1)


def test_an_incremental_request_changes_adds_and_forgets(sessions):
    session = sessions.enter(0, 0, asked(0, 1), [])
    again = sessions.enter(
        session.session_id, 1, [("t", [wanted(1, offset=9)]), ("u", [wanted(0)])], [("t", [0])]
    )
    assert again is session
    assert again.topics() == [("t", [wanted(1, offset=9)]), ("u", [wanted(0)])]


def test_an_unknown_session_is_refused(sessions):
    with pytest.raises(FetchSessionIdNotFound):
        sessions.enter(12345, 1, [], [])


@pytest.mark.parametrize("epoch", [2, 7])
def test_a_skipped_epoch_is_refused(sessions, epoch):
    session = sessions.enter(0, 0, asked(0), [])
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.enter(session.session_id, epoch, [], [])


def test_a_repeated_epoch_is_refused(sessions):
    session = sessions.enter(0, 0, asked(0), [])
    sessions.enter(session.session_id, 1, [], [])
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.enter(session.session_id, 1, [], [])


def test_the_epoch_after_the_largest_is_one(sessions):
    session = sessions.enter(0, 0, asked(0), [])
    session.epoch = fetch_sessions.EPOCH_MAX
    sessions.enter(session.session_id, fetch_sessions.EPOCH_MAX, [], [])
    assert session.epoch == 1


def test_the_final_epoch_closes_the_session(sessions):
    session = sessions.enter(0, 0, asked(0), [])
    assert sessions.enter(session.session_id, -1, asked(0), []) is None
    assert len(sessions) == 0


def test_the_session_used_longest_ago_makes_room(sessions):
    first = sessions.enter(0, 0, asked(0), [])
    second = sessions.enter(0, 0, asked(0), [])
    sessions.enter(first.session_id, 1, [], [])
    sessions.enter(0, 0, asked(0), [])
    sessions.enter(first.session_id, 2, [], [])
    with pytest.raises(FetchSessionIdNotFound):
        sessions.enter(second.session_id, 1, [], [])


def test_a_client_that_names_endless_partitions_loses_its_session(sessions, monkeypatch):
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 3)
    session = sessions.enter(0, 0, asked(0), [])
    with pytest.raises(FetchSessionIdNotFound):
        sessions.enter(session.session_id, 1, asked(1, 2, 3), [])
    assert len(sessions) == 0


def test_an_answer_leaves_out_what_the_client_was_told(sessions):
    session = sessions.enter(0, 0, asked(0, 1), [])
    full = [("t", [entry(0, 5), entry(1, 5)])]
    assert session.news(full, everything=True) == full
    assert session.news(full, everything=False) == []


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
def test_an_answer_tells_what_changed(sessions, changed):
    session = sessions.enter(0, 0, asked(0, 1), [])
    session.news([("t", [entry(0, 5), entry(1, 5)])], everything=True)
    assert session.news([("t", [entry(0, 5), changed])], everything=False) == [("t", [changed])]


def test_an_error_is_told_every_time(sessions):
    session = sessions.enter(0, 0, asked(0), [])
    faulty = [("t", [entry(0, -1, error_code=6)])]
    session.news(faulty, everything=True)
    assert session.news(faulty, everything=False) == faulty


def test_a_partition_that_gave_records_goes_to_the_end_of_the_line(sessions):
    session = sessions.enter(0, 0, asked(0, 1, 2), [])
    session.news([("t", [entry(0, 1, records=b"x")])], everything=False)
    assert session.topics() == [("t", [wanted(1), wanted(2), wanted(0)])]
