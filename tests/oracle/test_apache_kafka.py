"""`make oracle`: Apache Kafka's current responses must equal the recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle import recording
from tools.apache_kafka import ApacheKafka, Unavailable, answers

pytestmark = pytest.mark.oracle


def test_recording_equals_apache_kafka():
    before = recording.recorded()
    try:
        now = recording.record()
    except Unavailable as missing:
        pytest.skip(str(missing))
    changed = [str(found) for found in recording.differences(before, now)]
    assert not changed, "renewed; look at what changed:\n" + "\n".join(changed)


def test_apache_kafka_stops_with_its_context(tmp_path):
    kafka = ApacheKafka(tmp_path)
    try:
        with kafka:
            assert answers(kafka.host, kafka.port)
            (pid,) = kafka.pids
            assert Path(f"/proc/{pid}").exists()
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert not Path(f"/proc/{pid}").exists()
    assert not answers(kafka.host, kafka.port)


def test_apache_kafka_reports_a_failed_start(tmp_path):
    try:
        with pytest.raises(RuntimeError, match=r"num\.partitions"):
            ApacheKafka(tmp_path, {"num.partitions": "many"}).start()
    except Unavailable as missing:
        pytest.skip(str(missing))
