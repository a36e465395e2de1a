"""Kafkalite's responses equal Apache Kafka's, field by field, except for differences.py.

The recording represents Apache Kafka here; test_apache_kafka.py renews it.
"""

from __future__ import annotations

import pytest

from kafkalite.testing import Broker
from tests.oracle import recording, scenes
from tests.oracle.differences import DIFFERENCES, judge
from tests.oracle.recording import Difference

PLAYS = scenes.load()
FAMILIES = sorted({name.partition(".")[0] for name in PLAYS})


# Families that node 0 handles even if other nodes have the partitions.
OF_NODE_0 = {"committed", "configs", "consumer_groups", "groups", "membership", "telemetry"}


@pytest.mark.parametrize(
    ("family", "workers"),
    [(each, 0) for each in FAMILIES] + [(each, 2) for each in FAMILIES if each in OF_NODE_0],
)
def test_responses_equal_apache_kafka_or_are_listed(family, workers):
    names = [name for name in PLAYS if name.startswith(f"{family}.")]
    with Broker(workers=workers) as broker:
        ours = recording.play(broker.bootstrap, names)
    unlisted, idle = judge(family, recording.differences(recording.recorded(), ours))
    assert not unlisted, "\n" + "\n".join(map(str, unlisted))
    assert not idle, "listed, but it does not occur:\n" + "\n".join(map(str, idle))


def test_every_listed_difference_belongs_to_a_family():
    known = {name.partition(".")[0] for name in PLAYS}
    assert {entry.scenes.partition(".")[0] for entry in DIFFERENCES} <= known


def test_recording_contains_exactly_the_scenes():
    assert sorted(recording.recorded()) == sorted(PLAYS), "renew it with `make oracle`"


def test_a_changed_field_is_a_difference():
    theirs = {"a.scene": [{"asked": "x", "answer": {"topics": [{"error_code": 0}]}}]}
    ours = {"a.scene": [{"asked": "x", "answer": {"topics": [{"error_code": 3}]}}]}
    found = list(recording.differences(theirs, ours))
    assert found == [Difference("a.scene", "x", "topics.0.error_code", 0, 3)]
    assert not list(recording.differences(theirs, theirs))


def test_additional_response_is_a_difference():
    theirs = {"a.scene": [{"asked": "x", "answer": "closed"}]}
    ours = {"a.scene": [*theirs["a.scene"], {"asked": "y", "answer": "closed"}]}
    assert [found.asked for found in recording.differences(theirs, ours)] == ["y"]
    assert [found.asked for found in recording.differences(ours, theirs)] == ["y"]
