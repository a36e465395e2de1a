"""The judge of F31 finds each violation, and nothing in a history that may be."""

from __future__ import annotations

import pytest

from tests.faults.share_history import (
    ACCEPT,
    REJECT,
    RELEASE,
    ShareDelivery,
    share_violations,
)

LIMIT = 3


def delivery(count, received_s, kind=ACCEPT, sent_s=None, confirmed=True, offset=0):
    sent_s = received_s + 1 if sent_s is None else sent_s
    confirmed_s = sent_s + 0.1 if confirmed else None
    return ShareDelivery((0, offset), "m", count, received_s, kind, sent_s, confirmed_s)


def found(*deliveries, acked=(), kills=0):
    return [*share_violations(deliveries, acked, LIMIT, kills)]


@pytest.mark.parametrize("history", [
    [],
    [delivery(1, 0), delivery(1, 0, offset=1)],
    [delivery(1, 0, RELEASE), delivery(2, 2, RELEASE), delivery(3, 4, REJECT)],
    # The lock of the first one ended; its acknowledgement came too late.
    [delivery(1, 0, sent_s=9, confirmed=False), delivery(2, 5)],
])  # fmt: skip
def test_possible_history_has_no_violation(history):
    assert found(*history, acked=[each.place for each in history]) == []


def test_killed_process_may_lose_the_count_of_a_delivery():
    lost = [delivery(1, 0, confirmed=False), delivery(1, 5)]
    assert found(*lost, kills=1) == []
    assert len(found(*lost)) == 1


@pytest.mark.parametrize(("word", "history"), [
    ("limit", [delivery(LIMIT + 1, 0)]),
    ("limit", [delivery(0, 0)]),
    ("after accept", [delivery(1, 0), delivery(2, 5)]),
    ("after reject", [delivery(1, 0, REJECT), delivery(2, 5)]),
    ("same time", [delivery(1, 0, RELEASE, sent_s=6), delivery(2, 5)]),
    ("went back", [delivery(2, 0, RELEASE), delivery(1, 5)]),
    ("after the limit", [delivery(2, 0, RELEASE), delivery(3, 2, RELEASE), delivery(4, 5)]),
])  # fmt: skip
def test_violation_is_found(word, history):
    assert any(word in each for each in found(*history))


def test_record_that_was_never_delivered_is_found():
    assert len(found(acked=[(0, 0)])) == 1
