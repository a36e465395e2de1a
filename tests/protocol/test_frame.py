"""Request and response headers: both forms of each, for known and unknown APIs and versions."""

from __future__ import annotations

import io

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.serial import entity_reader, entity_writer

from kafkalite.errors import InvalidRequest, UnsupportedVersion
from kafkalite.protocol.frame import RequestHeader, read_header, response_header, write_header
from kafkalite.protocol.schema import BY_KEY
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from tests.protocol.oracles import KAFKA_PYTHON
from tests.protocol.values import versions

ApiVersionsResponse = KAFKA_PYTHON[18, "response"]

CLIENT_IDS = [None, "", "rdkafka", "naïve 🛩", "x" * 0x7FFF]


@pytest.mark.parametrize("api", BY_KEY.values(), ids=lambda api: api.name)
def test_request_header_equals_kio_and_is_read_back(api):
    for version in versions(api):
        flexible = api.request_header_flexible(version)
        entity = KioHeaderV2 if flexible else KioHeaderV1
        for client_id in CLIENT_IDS:
            ours = write_header(api.key, version, 77, client_id, flexible)
            header = entity_reader(entity)(ours, 0)[0]
            theirs = io.BytesIO()
            entity_writer(entity)(theirs, header)
            assert theirs.getvalue() == ours
            assert (header.request_api_key, header.client_id) == (api.key, client_id)
            read = read_header(ours + b"body")
            assert read == RequestHeader(api.key, version, 77, client_id, len(ours))


def test_client_id_above_its_length_prefix_raises_assertion_error():
    with pytest.raises(AssertionError, match="client id"):
        write_header(3, 0, 1, "x" * 0x8000, flexible=False)


def test_request_header_with_tags_is_read_to_its_end():
    tags = b"\x02" + b"\x00\x03abc" + b"\xff\x01\x00"
    frame = write_header(3, 12, 1, "a", flexible=False) + tags + b"body"
    assert read_header(frame).body_position == len(frame) - len(b"body")


def test_truncated_request_header_raises_invalid_request():
    for whole in (
        write_header(3, 12, 1, "rdkafka", flexible=True),
        write_header(3, 0, 1, "rdkafka", flexible=False),
    ):
        assert read_header(whole).client_id == "rdkafka"
        for size in range(len(whole)):
            with pytest.raises(InvalidRequest):
                read_header(whole[:size])


@pytest.mark.parametrize(
    "client_id", [b"\xff\xfe", b"\x80\x00", b"\x7f\xff", b"\x00\x02\xff\xff", b"\x00\x05abcd"]
)
def test_invalid_client_id_raises_invalid_request(client_id):
    with pytest.raises(InvalidRequest):
        read_header(bytes(8) + client_id)


@pytest.mark.parametrize("api_key", [-1, 4, 52, 95, 300, 0x7FFF, -0x8000])
def test_request_header_of_unknown_api_is_read(api_key):
    frame = write_header(api_key, 0, 5, "a", flexible=False)
    assert read_header(frame) == RequestHeader(api_key, 0, 5, "a", len(frame))


def test_request_header_of_unknown_version_is_read_with_tags():
    frame = write_header(18, 99, 5, "a", flexible=True)
    assert read_header(frame) == RequestHeader(18, 99, 5, "a", len(frame))


def test_only_api_versions_response_header_has_no_tags():
    for api in BY_KEY.values():
        for version in versions(api):
            flexible = version in api.flexible
            expected = flexible and api is not API_VERSIONS
            assert api.response_header_flexible(version) == expected
            assert len(response_header(1, expected)) == 4 + expected


KAFKA_PYTHON_VERSIONS = [
    version for version in versions(API_VERSIONS) if version <= ApiVersionsResponse.max_version
]


@pytest.mark.parametrize("version", KAFKA_PYTHON_VERSIONS)
def test_kafka_python_reads_api_versions_response(version):
    listed = [{"api_key": 0, "min_version": 0, "max_version": 13}]
    flexible = API_VERSIONS.response_header_flexible(version)
    frame = response_header(9, flexible) + API_VERSIONS.response.write(
        version, {"api_keys": listed, "throttle_time_ms": 7, "finalized_features_epoch": 3}
    )
    response = ApiVersionsResponse.decode(frame, version=version, header=True)
    assert response.header.correlation_id == 9
    read = [(one.api_key, one.min_version, one.max_version) for one in response.api_keys]
    assert (response.error_code, read) == (0, [(0, 0, 13)])
    assert version < 1 or response.throttle_time_ms == 7
    assert version < 3 or response.finalized_features_epoch == 3


def test_kafka_python_reads_unsupported_api_versions_response():
    """For any requested version the response is of version 0: error code, supported versions."""
    listed = [{"api_key": 18, "min_version": 0, "max_version": 5}]
    unsupported = {"error_code": UnsupportedVersion.code, "api_keys": listed}
    frame = response_header(9, flexible=False) + API_VERSIONS.response.write(0, unsupported)
    response = ApiVersionsResponse.decode(frame, version=4, header=True)
    assert response.error_code == UnsupportedVersion.code
    assert [(one.api_key, one.max_version) for one in response.api_keys] == [(18, 5)]


def test_supported_features_are_tagged_and_omitted_when_empty():
    bare = API_VERSIONS.response.write(3, {})
    assert bare == bytes.fromhex("0000 01 00000000 00")
    written = API_VERSIONS.response.write(
        3, {"supported_features": [{"name": "a", "min_version": 0, "max_version": 1}]}
    )
    assert written == bytes.fromhex("0000 01 00000000 01 00 08 02 02 61 0000 0001 00")
