"""Requests that librdkafka does not support, and brokers with invalid responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest

from kafkalite.cli.clients import ClusterClients
from kafkalite.cli.wire import WireClient
from kafkalite.errors import Refusal
from kafkalite.protocol.frame import read_header, response_header
from kafkalite.protocol.schemas.cluster import API_VERSIONS, METADATA
from kafkalite.protocol.schemas.security import CREATE_DELEGATION_TOKEN

NONE = {"topics": [], "allow_auto_topic_creation": False}


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def serve_responses(*responses: bytes, requests: list[bytes] | None = None) -> str:
    """Start a broker that accepts one connection and sends these responses to any requests.

    The requests are added to `requests`.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener, contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                for response in responses:
                    request = connection.recv(4096)
                    if requests is not None:
                        requests.append(request)
                    connection.sendall(response)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_wire_client_reads_metadata(kafka_broker, kafka_topic):
    response = WireClient(ClusterClients(kafka_broker.bootstrap)).request(
        METADATA, {**NONE, "topics": None}
    )
    assert kafka_topic in {topic.name for topic in response.topics}


def test_first_reachable_bootstrap_address_is_used(kafka_broker):
    cluster = ClusterClients(f"127.0.0.1:1,{kafka_broker.bootstrap}")
    assert WireClient(cluster).request(METADATA, NONE).brokers


def test_api_that_a_broker_does_not_support_is_refused(kafka_broker):
    with pytest.raises(Refusal, match="does not support CreateDelegationToken"):
        WireClient(ClusterClients(kafka_broker.bootstrap)).request(CREATE_DELEGATION_TOKEN, {})


def test_sasl_and_tls_are_rejected():
    cluster = ClusterClients("127.0.0.1:1", [("security.protocol", "SASL_SSL")])
    with pytest.raises(Refusal, match="require security.protocol=plaintext, not SASL_SSL"):
        WireClient(cluster).request(METADATA, NONE)


def versions(newest: int) -> bytes:
    """Return ApiVersions of a broker that serves Metadata up to this version."""
    served = {"api_key": METADATA.key, "min_version": 0, "max_version": newest}
    response = API_VERSIONS.response.write(API_VERSIONS.versions[1], {"api_keys": [served]})
    return framed(bytes(4) + response)


@pytest.mark.parametrize(
    ("broker_newest", "version"), [(8, 8), (13, 13), (99, METADATA.versions[1])]
)
def test_request_has_the_newest_version_that_both_sides_support(broker_newest, version):
    response = METADATA.response.write(version, {"cluster_id": "found"})
    header = response_header(1, METADATA.response_header_flexible(version))
    requests: list[bytes] = []
    there = serve_responses(versions(broker_newest), framed(header + response), requests=requests)
    found = WireClient(ClusterClients(there)).request(METADATA, NONE)
    assert found.cluster_id == "found"
    assert [read_header(request[4:]).version for request in requests[1:]] == [version]


@pytest.mark.parametrize(
    ("responses", "sentence"),
    [
        ([], "the broker closed the connection at once"),
        ([b"\0\0"], "the broker closed the connection at once"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "a response of 1,213,486,160 bytes, or 'HTTP'"),
        ([versions(8)], "the broker closed the connection"),
        ([versions(8), framed(b"\0\0\0\1\xff")], "response is not valid in the Kafka protocol"),
        (
            [versions(1)],
            "does not support this request: Metadata request version 1 has no field ",
        ),
    ],
)
def test_invalid_response_is_one_sentence(responses, sentence):
    with pytest.raises(Refusal) as refused:
        WireClient(ClusterClients(serve_responses(*responses))).request(METADATA, NONE)
    assert sentence in str(refused.value)


def test_silent_broker_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Refusal, match="did not respond in time"):
            WireClient(ClusterClients(there), timeout_s=0.05).request(METADATA, NONE)
