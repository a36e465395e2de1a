"""`make oracle`: Apache Kafka itself is asked, and the recording is what it says today."""

from __future__ import annotations

import pytest

from tests.oracle import recording
from tools.apache_kafka import Unavailable

pytestmark = pytest.mark.oracle


def test_apache_kafka_still_says_what_was_recorded():
    before = recording.recorded()
    try:
        now = recording.record()
    except Unavailable as missing:
        pytest.skip(str(missing))
    changed = [str(found) for found in recording.differences(before, now)]
    assert not changed, "renewed; look at what changed:\n" + "\n".join(changed)
