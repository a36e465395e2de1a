"""`make oracle`: native members of a group on Apache Kafka, by both protocols.

The scenarios are those of tests/client/test_group_consumer.py, with librdkafka's members among
them: with the consumer protocol these are mixed groups.
"""

from __future__ import annotations

from itertools import count

import confluent_kafka.admin
import pytest

from tests.client import test_group_consumer as scenarios
from tests.client.conftest import native
from tests.client.consuming import TIMEOUT_S
from tests.client.group_consumers import SHORT_TIMES, GroupBroker
from tools.apache_kafka import ApacheKafka, Unavailable

pytestmark = pytest.mark.oracle

__all__ = ["native"]

NUMBERS = count(1)

for name, scenario in vars(scenarios).items():
    if name.startswith("test_"):
        globals()[name] = scenario


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    try:
        with ApacheKafka(tmp_path_factory.mktemp("kafka"), SHORT_TIMES) as kafka:
            yield kafka.bootstrap
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["auto", "classic"])
def broker(request, bootstrap):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})

    def topic(partitions: int = 1) -> str:
        name = f"topic-{next(NUMBERS)}"
        new = confluent_kafka.admin.NewTopic(name, partitions, 1)
        admin.create_topics([new])[name].result(TIMEOUT_S)
        return name

    found = GroupBroker(bootstrap, topic, "classic" if request.param == "classic" else "consumer")
    found.fast["group_protocol"] = request.param
    return found
