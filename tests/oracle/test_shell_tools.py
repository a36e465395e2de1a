"""`make oracle`: Kafka's tools and ours get the same command lines, on the same Apache Kafka."""

from __future__ import annotations

import pytest

from tests.oracle import shell_recording
from tests.oracle.shell_differences import DIFFERENCES, judge
from tests.oracle.shell_members import BROKER
from tools import apache_kafka

pytestmark = pytest.mark.oracle


def test_shell_tools_print_as_kafka_or_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(apache_kafka, "HEAP", ("-Xms128M", "-Xmx256M"))
    properties = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        **BROKER,
    }
    before = shell_recording.recorded()
    scratch = tmp_path / "files"
    scratch.mkdir()
    try:
        with apache_kafka.ApacheKafka(tmp_path / "kafka", properties) as kafka:
            now = shell_recording.record(kafka.bootstrap, scratch)
    except apache_kafka.Unavailable as missing:
        pytest.skip(str(missing))
    unlisted, idle = judge(shell_recording.different(now), DIFFERENCES)
    assert not unlisted, "\n".join(map(str, unlisted))
    assert not idle, "listed, but it does not occur:\n" + "\n".join(map(str, idle))
    assert now == before, "renewed; look at what changed"
