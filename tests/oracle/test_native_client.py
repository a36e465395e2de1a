"""`make oracle`: the native client works with Apache Kafka as with kafkalite over TCP."""

from __future__ import annotations

import pytest

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.offset_requests import commit_offsets, committed_offsets, list_offsets
from kafkalite.client.net.settings import producer_settings
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import InvalidTopicException, NetworkException, UnknownTopicOrPartition
from kafkalite.protocol.schemas.cluster import DESCRIBE_CLUSTER, METADATA
from kafkalite.protocol.schemas.offsets import LATEST, MAX_TIMESTAMP
from tools.apache_kafka import ApacheKafka, Unavailable

pytestmark = pytest.mark.oracle

PATIENCE_S = 60
PLACE = TopicPartition("asked", 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        with ApacheKafka(tmp_path_factory.mktemp("kafka")) as kafka:
            known = Cluster(producer_settings(kafka.bootstrap, {}))
            yield known
            known.close()
    except Unavailable as missing:
        pytest.skip(str(missing))


def test_topic_is_created_by_metadata_request(cluster):
    topic = cluster.topic(PLACE.topic, PATIENCE_S)
    assert topic.led
    assert cluster.name_of(topic.topic_id) == PLACE.topic
    (node_id,) = cluster.nodes
    assert cluster.node(node_id).same_host
    assert cluster.request(node_id, DESCRIBE_CLUSTER, {}).cluster_id == cluster.cluster_id
    assert cluster.connection(node_id).version(METADATA) == METADATA.versions[1]


def test_invalid_topic_or_node_is_rejected(cluster):
    with pytest.raises(InvalidTopicException):
        cluster.topic("a b", PATIENCE_S)
    with pytest.raises(NetworkException, match="Node 77 is not in"):
        cluster.request(77, DESCRIBE_CLUSTER, {})


def test_offsets_are_listed_committed_and_fetched(cluster):
    cluster.topic(PLACE.topic, PATIENCE_S)
    assert list_offsets(cluster, {PLACE: LATEST}) == {PLACE: (0, -1)}
    assert list_offsets(cluster, {PLACE: MAX_TIMESTAMP}) == {PLACE: (-1, -1)}
    assert committed_offsets(cluster, "readers", [PLACE]) == {PLACE: None}
    commit_offsets(cluster, "readers", {PLACE: (0, "begun")})
    assert committed_offsets(cluster, "readers", [PLACE]) == {PLACE: 0}
    with pytest.raises(UnknownTopicOrPartition):
        commit_offsets(cluster, "readers", {("nowhere", 3): 1})
