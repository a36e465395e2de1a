"""A response whose results are written one by one has the same bytes as one written whole."""

from __future__ import annotations

import pytest

from kafkalite.protocol.result_array import unsigned_varint
from kafkalite.protocol.schemas.cluster import METADATA, METADATA_TOPICS
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS, DESCRIBED_RESOURCES
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, CREATED_TOPICS


@pytest.mark.parametrize("count", [0, 1, 127, 128])
@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_create_topics_results_have_the_bytes_of_one_response(version, count):
    topics = [{"name": f"t{number}", "error_code": 3} for number in range(count)]
    written = [CREATED_TOPICS.write_element(version, topic) for topic in topics]
    response = CREATE_TOPICS.response.write(version, {"topics": topics})
    assert CREATED_TOPICS.write(version, written) == response


@pytest.mark.parametrize("version", [1, 3, 4])
def test_describe_configs_results_have_the_bytes_of_one_response(version):
    configs = [{"name": "retention.ms", "value": "7", "synonyms": []}]
    resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
    written = DESCRIBED_RESOURCES.write_element(version, resource)
    response = DESCRIBE_CONFIGS.response.write(version, {"results": [resource]})
    assert DESCRIBED_RESOURCES.write(version, [written]) == response


@pytest.mark.parametrize("count", [0, 1, 127, 128])
@pytest.mark.parametrize("version", range(14))
def test_metadata_topics_have_the_bytes_of_one_response(version, count):
    topics = [{"name": f"t{number}", "partitions": [{"leader_id": 1}]} for number in range(count)]
    fields = {
        "brokers": [{"node_id": 7, "host": "h", "port": 9}],
        "cluster_id": "c",
        "controller_id": 7,
        "error_code": 0,
    }
    written = [METADATA_TOPICS.write_element(version, topic) for topic in topics]
    response = METADATA.response.write(version, {"topics": topics, **fields})
    assert METADATA_TOPICS.write(version, written, fields) == response


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 20])
def test_unsigned_varint_is_little_endian_base_128(number):
    written = unsigned_varint(number)
    assert sum((byte & 127) << 7 * at for at, byte in enumerate(written)) == number
    assert [byte >> 7 for byte in written] == [1] * (len(written) - 1) + [0]
