"""`make oracle`: native members of share groups on Apache Kafka.

The scenarios are those of tests/client/test_share_consumer.py and test_dead_letters.py.
"""

from __future__ import annotations

from itertools import count

import confluent_kafka.admin
import pytest

from tests.client import test_dead_letters, test_share_consumer
from tests.client.consuming import TIMEOUT_S
from tests.client.sharing import SHORT_TIMES, SharingCluster
from tools.apache_kafka import ApacheKafka, Unavailable

pytestmark = pytest.mark.oracle

NUMBERS = count(1)

for scenarios in (test_share_consumer, test_dead_letters):
    for name, scenario in vars(scenarios).items():
        if name.startswith("test_"):
            globals()[name] = scenario


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        with ApacheKafka(tmp_path_factory.mktemp("kafka"), SHORT_TIMES) as kafka:
            admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap})

            def topic(partitions: int = 1) -> str:
                name = f"topic-{next(NUMBERS)}"
                new = confluent_kafka.admin.NewTopic(name, partitions, 1)
                admin.create_topics([new])[name].result(TIMEOUT_S)
                return name

            yield SharingCluster(kafka.bootstrap, topic)
    except Unavailable as missing:
        pytest.skip(str(missing))
