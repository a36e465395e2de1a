"""Self-test of the group checker: it finds each failure of a coordinator, and no other."""

import pytest

from tests.faults.group_log import (
    CommitResult,
    Committed,
    CurrentAssignment,
    Generation,
    GroupEnded,
    GroupEpoch,
    GroupHistory,
    violations,
)


def generation(number, **owners):
    return Generation(number, tuple((name, parts) for name, parts in owners.items()))


GOOD = (
    generation(1, a=(0, 1)),
    Committed(0, 5, "a/1/1"),
    generation(2, a=(0,), b=(1,)),
    Committed(1, 3, "b/1/1"),
    Committed(0, 5, "a/1/2"),
    generation(3),
    generation(4, b=(0, 1)),
    Committed(0, 9, "b/1/2"),
)
RESULTS = (
    CommitResult(0, 5, "a/1/1", 0),
    CommitResult(1, 3, "b/1/1", 0),
    CommitResult(0, 5, "a/1/2", -195),
    CommitResult(0, 7, "a/1/3", 22),
    CommitResult(0, 9, "b/1/2", 0),
)


def complaints(log=GOOD, results=RESULTS, **kind):
    return [each[:3] for each in violations(GroupHistory(log=[*log], results=[*results], **kind))]


def test_group_log_accepts_a_working_group():
    assert complaints() == []
    assert GroupHistory(log=[*GOOD]).generations == 4


def test_group_log_accepts_a_rewritten_static_member():
    again = (generation(1, a=(0,)), generation(1, a=(0,)))
    assert complaints(again, ()) == [] and GroupHistory(log=[*again]).generations == 1


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (generation(5, a=(0,), b=(0,)), "I11"),
        (generation(2, b=(0,)), "I11"),
        (Committed(0, 9, "a/1/4"), "I11"),
        (Committed(0, 8, "b/1/3"), "I11"),
    ],
    ids=["two owners", "an older generation", "a stranger's commit", "a commit that goes back"],
)
def test_group_log_reports_invalid_records(wrong, complaint):
    assert complaint in complaints((*GOOD, wrong), ())


def test_group_log_accepts_a_commit_before_the_next_owner():
    log = (generation(1, a=(0,)), generation(2, a=(), b=()), Committed(0, 5, "a/1/1"))
    assert complaints(log, ()) == []


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (CommitResult(0, 9, "b/1/9", 0), "I1:"),
        (CommitResult(1, 3, "b/1/1", 22), "I5:"),
        (CommitResult(0, 5, "b/1/1", 0), "I3:"),
    ],
    ids=["acknowledged and lost", "refused and kept", "another one kept"],
)
def test_group_log_reports_invalid_member_responses(result, complaint):
    assert complaint in complaints(results=(result,))


def test_group_log_ignores_errors_of_a_killed_coordinator():
    assert complaints(results=(CommitResult(1, 3, "b/1/1", 22),), interrupted=True) == []


UPGRADED = (
    generation(4, a=(0, 1)),
    GroupEnded(),
    GroupEpoch(4),
    CurrentAssignment("m-a", "a", (0, 1)),
    GroupEpoch(5),
    Committed(1, 3, "a/1/1"),
    CurrentAssignment("m-a", "a", (0,)),
    CurrentAssignment("m-b", "b", (1,)),
    Committed(0, 5, "a/1/2"),
    Committed(1, 4, "b/1/1"),
)


def test_group_log_accepts_a_group_that_changes_its_protocol():
    downgraded = (
        CurrentAssignment("m-a", "a"),
        CurrentAssignment("m-b", "b"),
        GroupEnded(),
        generation(6, b=(0, 1)),
        Committed(0, 6, "b/1/2"),
    )
    assert complaints((*UPGRADED, *downgraded), ()) == []
    assert GroupHistory(log=[*UPGRADED, *downgraded]).generations == 3


@pytest.mark.parametrize(
    "wrong",
    [
        CurrentAssignment("m-b", "b", (0, 1)),
        CurrentAssignment("m-c", "c", (1,)),
        GroupEpoch(3),
        Committed(1, 9, "a/1/3"),
    ],
    ids=["one that is not yet revoked", "a member too many", "an older epoch", "a former owner"],
)
def test_group_log_reports_invalid_records_of_the_consumer_protocol(wrong):
    assert complaints((*UPGRADED, wrong), ()) == ["I11"]
