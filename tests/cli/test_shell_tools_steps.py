"""The scripts against kafkalite print what was recorded of them against Apache Kafka.

tests/oracle/test_shell_tools.py renews the recording, beside the output of Kafka's own tools.
"""

from __future__ import annotations

import pytest

from kafkalite.testing import Broker
from tests.oracle import shell_recording
from tests.oracle.shell_differences import BROKERS, DIFFERENCES, judge
from tests.oracle.shell_members import BROKER
from tests.oracle.shell_recording import Both
from tests.oracle.shell_scenes import FAMILIES, Printed, play


@pytest.mark.parametrize("family", FAMILIES)
def test_shell_tools_print_the_recorded_output(family, tmp_path):
    expected = shell_recording.recorded()[family]
    with Broker(config=BROKER) as broker, shell_recording.our_own() as run:
        printed = play(run, family, broker.bootstrap, shell_recording.OURS, tmp_path)
    found = [
        Both(was.words, was.ours, now)
        for was, now in zip(expected, printed, strict=True)
        if was.ours != now
    ]
    mine = [entry for entry in BROKERS if entry.family == family]
    unlisted, idle = judge(found, mine)
    assert not unlisted, "\n".join(map(str, unlisted))
    assert not idle, "listed, but it does not occur:\n" + "\n".join(map(str, idle))


def test_recording_differs_from_kafka_only_where_listed():
    recorded = shell_recording.recorded()
    assert {family: [both.words for both in recorded[family]] for family in recorded} == {
        family: [step.words for step in FAMILIES[family]] for family in FAMILIES
    }, "renew it with `make oracle`"
    assert judge(shell_recording.different(recorded), DIFFERENCES) == ([], [])


def test_changed_line_and_exit_code_are_differences():
    same = Both("kafka-x --list", Printed(0, ["a"]), Printed(0, ["a"]))
    line = same._replace(ours=Printed(0, ["b"]))
    code = same._replace(ours=Printed(1, ["a"]))
    found = list(shell_recording.different({"x": [same, line, code]}))
    assert found == [line, code]
    assert judge(found, []) == ([line, code], [])
