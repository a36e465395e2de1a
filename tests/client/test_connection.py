"""One connection: to a real broker, and to scripted ones that lie, stall and hang up."""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
import threading
import time

import pytest

import kafkalite
from kafkalite.client.net.connection import BrokerConnection, BrokerIdentity
from kafkalite.client.net.frame_reader import ROOM_SIZE
from kafkalite.client.net.settings import producer_settings
from kafkalite.client.net.topology import parse_address
from kafkalite.errors import (
    InvalidRequest,
    NetworkException,
    RebootstrapRequired,
    RequestTimedOut,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.cluster import API_VERSIONS, DESCRIBE_CLUSTER, METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.groups import LIST_GROUPS
from kafkalite.protocol.schemas.produce import PRODUCE
from tests.client.scripted_broker import (
    CloseConnection,
    ScriptedBroker,
    framed,
    metadata,
    response_frame,
)

TIMEOUT_S = 30
NONE = {"topics": [], "allow_auto_topic_creation": False}


@pytest.fixture
def connect():
    """Return a factory of connections, which are closed after the test."""
    made = []

    def connect(place, opened=True, identity=None, **keywords):
        settings = producer_settings(place, keywords)
        connection = BrokerConnection(settings.addresses[0], settings, identity or BrokerIdentity())
        made.append(connection)
        if opened:
            connection.open()
        return connection

    yield connect
    for connection in made:
        connection.close()


def metadata_response(request):
    return metadata({0: 1})


# A real broker.


def test_connection_uses_the_newest_common_version(kafka_broker, connect):
    connection = connect(kafka_broker.bootstrap)
    assert connection.version(METADATA) == METADATA.versions[1]
    assert connection.version(METADATA, at_most=9) == 9
    assert connection.same_host
    assert connection.request(METADATA, NONE).brokers[0].node_id == 0


def test_pipelined_requests_are_answered_in_order(kafka_broker, connect):
    connection = connect(kafka_broker.bootstrap)
    version = connection.version(METADATA)
    sent = [connection.send(METADATA, version, NONE) for _ in range(20)]
    assert connection.outstanding == 20
    received = [connection.receive(TIMEOUT_S) for _ in range(20)]
    assert [number for number, _ in received] == sent
    for _, body in received:
        assert METADATA.response.read(version, body).brokers


def test_request_body_may_be_sent_in_pieces(kafka_broker, connect):
    connection = connect(kafka_broker.bootstrap)
    version = connection.version(METADATA)
    body = METADATA.request.write(version, NONE)
    pieces = [memoryview(body)[place : place + 1] for place in range(len(body))]
    number = connection.send(METADATA, version, pieces)
    assert connection.receive(TIMEOUT_S)[0] == number


def test_take_does_not_wait(kafka_broker, connect):
    connection = connect(kafka_broker.bootstrap)
    assert connection.take() is None
    number = connection.send(METADATA, connection.version(METADATA), NONE)
    while (received := connection.take()) is None:
        time.sleep(0.001)
    assert received[0] == number
    assert connection.fileno() >= 0


def test_unexpected_broker_identity_raises_rebootstrap_required(kafka_broker, connect):
    with pytest.raises(RebootstrapRequired):
        connect(kafka_broker.bootstrap, identity=BrokerIdentity("another", 0))


def test_large_response_is_received_whole_and_its_buffer_reused(connect):
    content = random.Random(1).randbytes(3 * ROOM_SIZE)

    def respond(request):
        return framed(struct.pack(">i", request.correlation_id) + b"\0" + content)

    with ScriptedBroker({METADATA: respond}) as there:
        connection = connect(there.address)
        for _ in range(4):
            connection.send(METADATA, 13, NONE)
            _, body = connection.receive(TIMEOUT_S)
            assert body == content
            (kept,) = connection._frames._kept
            assert body.obj is kept
            del body, kept


def test_buffer_of_a_held_response_is_not_reused(connect):
    def respond(request):
        content = bytes([request.correlation_id]) * 3 * ROOM_SIZE
        return framed(struct.pack(">i", request.correlation_id) + b"\0" + content)

    with ScriptedBroker({METADATA: respond}) as there:
        connection = connect(there.address)
        held = []
        for _ in range(5):
            number = connection.send(METADATA, 13, NONE)
            held.append((number, connection.receive(TIMEOUT_S)[1]))
        for number, body in held:
            assert body == bytes([number]) * 3 * ROOM_SIZE


# The first request: ApiVersions.


def old(newest):
    """Return ApiVersions of a broker that knows it up to `newest` and says so since Kafka 2.4."""

    def respond(request):
        keys = [
            {"api_key": API_VERSIONS.key, "min_version": 0, "max_version": newest},
            {"api_key": METADATA.key, "min_version": 0, "max_version": 7},
        ]
        if request.version <= newest:
            return {"api_keys": keys}
        refused = {"error_code": UnsupportedVersion.code, "api_keys": keys}
        return framed(struct.pack(">i", request.correlation_id) + written(refused))

    return respond


def written(fields):
    return API_VERSIONS.response.write(0, fields)


@pytest.mark.parametrize("newest", [0, 2, 3, 4])
def test_unsupported_api_versions_is_retried_with_a_lower_version(connect, newest):
    with ScriptedBroker({API_VERSIONS: old(newest), METADATA: metadata_response}) as there:
        connection = connect(there.address)
        assert [request.version for request in there.requests] == [API_VERSIONS.versions[1], newest]
        assert connection.version(METADATA) == 7
        assert connection.request(METADATA, NONE).brokers
        with pytest.raises(UnsupportedVersion, match="does not support Fetch"):
            connection.version(FETCH)


def test_api_versions_error_without_versions_is_retried_with_version_0(connect):
    def respond(request):
        if request.version:
            return framed(struct.pack(">ih", request.correlation_id, 35) + bytes(4))
        return {"api_keys": [{"api_key": 3, "min_version": 0, "max_version": 7}]}

    with ScriptedBroker({API_VERSIONS: respond, METADATA: metadata_response}) as there:
        assert connect(there.address).version(METADATA) == 7


def test_version_outside_both_ranges_raises_unsupported_version(connect):
    versions = {METADATA: (20, 21), PRODUCE: (0, 2), LIST_GROUPS: (0, 99)}
    with ScriptedBroker(dict.fromkeys(versions, metadata_response), versions) as there:
        connection = connect(there.address)
        assert connection.version(LIST_GROUPS) == LIST_GROUPS.versions[1]
        for api in (METADATA, PRODUCE):
            with pytest.raises(UnsupportedVersion):
                connection.version(api)


def test_client_id_and_software_are_sent(connect):
    with ScriptedBroker({METADATA: metadata_response}) as there:
        connect(there.address, client_id="sensor-é").request(METADATA, NONE)
        assert {request.client_id for request in there.requests} == {"sensor-é"}
        assert there.requests[0].body.client_software_name == "kafkalite"
        assert there.requests[0].body.client_software_version == kafkalite.__version__


# Servers that are not Kafka.


class RawServer:
    """A server that sends some bytes to each connection, and then nothing."""

    def __init__(self, said, hang_up=False):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.content, self.hang_up = said, hang_up
        self.thread = threading.Thread(target=self.serve)

    def serve(self):
        connection, _ = self.listener.accept()
        with connection:
            connection.sendall(self.content)
            if self.hang_up:
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()
        self.listener.close()


def first_frame(content):
    return framed(bytes(4) + content)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a response of 1,213,486,160 bytes, or 'HTTP'"),
        (b"SSH-2.0-OpenSSH\r\n", "a response of 1,397,966,893 bytes, or 'SSH-'"),
        (b"220 mail ESMTP\r\n", "a response of 842,149,920 bytes, or '220 '"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "a response of 352,518,912 bytes"),
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (struct.pack(">i", 3) + b"abc", "a response of 3 bytes"),
        (framed(struct.pack(">i", 7)), "correlation id 7 instead of 0"),
        (framed(bytes(4)), "an empty response"),
        (first_frame(bytes(2) + b"\xff\xff\xff\xff\xff\xff"), "are not a valid ApiVersions"),
        (first_frame(bytes(2) + b"\1\0\0\0\0\0"), "it supports no API"),
        (first_frame(struct.pack(">h", 35) + b"\x7f\xff\xff\xff"), "are not a valid ApiVersions"),
    ],
)
def test_response_of_another_protocol_closes_the_connection(connect, said, words):
    with RawServer(said) as there:
        connection = connect(there.address, opened=False)
        with pytest.raises(InvalidRequest) as found:
            connection.open(TIMEOUT_S)
    assert f"{there.address}: its response is not valid in the Kafka protocol: " in str(found.value)
    assert words in str(found.value)
    assert connection.closed


def test_connection_closed_during_handshake_hints_at_tls(connect):
    with (
        RawServer(b"", hang_up=True) as there,
        pytest.raises(NetworkException, match="require TLS"),
    ):
        connect(there.address)


def test_silent_listener_times_out(connect):
    with RawServer(b"") as there:
        with pytest.raises(RequestTimedOut, match=rf"{there.address} did not respond in time"):
            connect(there.address, socket_connection_setup_timeout_ms=50)


def test_refused_connection_raises_network_exception(connect):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(NetworkException, match=rf"{place}: Connection refused"):
        connect(place)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300, "é" * 70])
def test_unresolvable_host_raises_network_exception(connect, host):
    with pytest.raises(NetworkException, match="has no address"):
        connect(f"{host}:1")


def test_tcp_self_connect_is_rejected(connect):
    """A connect to a free port of the same host may get that very port as its source port."""
    with socket.socket() as itself:
        itself.bind(("127.0.0.1", 0))
        itself.connect(itself.getsockname())
        with pytest.raises(ConnectionRefusedError, match="no process listens on the port"):
            connect("127.0.0.1", opened=False)._check_connected(itself)


# Wrong responses.


@pytest.mark.parametrize(
    "respond",
    [
        lambda request: framed(struct.pack(">i", request.correlation_id + 1)),
        lambda request: framed(struct.pack(">i", request.correlation_id)),
        lambda request: framed(struct.pack(">i", request.correlation_id) + b"\0" + bytes(3)),
        lambda request: framed(struct.pack(">i", request.correlation_id) + b"\xff" * 6),
        lambda request: framed(struct.pack(">i", request.correlation_id) + b"\1\0\xff\xff\1"),
        lambda request: response_frame(request, {})[:-1] + b"\x80",
        lambda request: struct.pack(">i", 1 << 30),
        lambda request: struct.pack(">i", -5),
    ],
)
def test_invalid_response_closes_the_connection(connect, respond):
    with ScriptedBroker({METADATA: respond}) as there:
        connection = connect(there.address)
        with pytest.raises(InvalidRequest, match=r"127\.0\.0\.1:\d+: its response is not valid"):
            connection.request(METADATA, NONE, TIMEOUT_S)
        assert connection.closed
        with pytest.raises(NetworkException, match="response is not valid in the Kafka protocol"):
            connection.request(METADATA, NONE)


def test_response_header_tags_are_skipped(connect):
    def respond(request):
        plain = METADATA.response.write(request.version, metadata_response(request))
        tags = b"\2" + b"\5\3abc" + b"\x80\1\0"
        return framed(struct.pack(">i", request.correlation_id) + tags + plain)

    with ScriptedBroker({METADATA: respond}) as there:
        assert connect(there.address).request(METADATA, NONE).brokers[0].port == 1


def test_response_without_a_request_closes_the_connection(connect):
    def twice(request):
        return 2 * response_frame(request, metadata_response(request))

    with ScriptedBroker({METADATA: twice}) as there:
        connection = connect(there.address)
        connection.request(METADATA, NONE)
        with pytest.raises(InvalidRequest, match="a response without a request"):
            while connection.take() is None:
                time.sleep(0.001)


# Timeouts and closing.


def test_late_response_is_received_by_the_next_receive(connect):
    go = threading.Event()

    def late(request):
        go.wait(TIMEOUT_S)
        return metadata_response(request)

    with ScriptedBroker({METADATA: late}) as there:
        connection = connect(there.address)
        number = connection.send(METADATA, 13, NONE)
        with pytest.raises(RequestTimedOut):
            connection.receive(0.01)
        go.set()
        assert connection.receive(TIMEOUT_S)[0] == number


def test_request_timeout_closes_the_connection(connect):
    with ScriptedBroker({METADATA: lambda request: None}) as there:
        connection = connect(there.address)
        with pytest.raises(RequestTimedOut, match="did not respond in time"):
            connection.request(METADATA, NONE, 0.01)
        assert connection.closed


def test_send_to_a_broker_that_does_not_read_times_out(connect):
    go = threading.Event()
    with ScriptedBroker({METADATA: lambda request: go.wait(TIMEOUT_S) and None}) as there:
        connection = connect(there.address)
        connection.send(METADATA, 13, NONE)
        with pytest.raises(RequestTimedOut):
            for _ in range(1000):
                connection.send(METADATA, 13, [bytes(1 << 20)], timeout_s=0.05)
        assert connection.closed
        go.set()


def test_send_reads_responses_while_it_waits(connect):
    """Otherwise two peers that both write much, and neither reads, would wait for ever."""
    large = bytes(1 << 20)

    def respond(request):
        return framed(struct.pack(">i", request.correlation_id) + b"\0" + large)

    with ScriptedBroker({METADATA: respond}) as there:
        connection = connect(there.address)
        body = METADATA.request.write(13, {"topics": [{"name": "x" * 30_000}] * 30})
        sent = [connection.send(METADATA, 13, [body], timeout_s=TIMEOUT_S) for _ in range(20)]
        received = [connection.receive(TIMEOUT_S) for _ in sent]
        assert [number for number, _ in received] == sent
        assert all(content == large for _, content in received)


def test_produce_without_response_is_not_waited_for(connect):
    with ScriptedBroker({METADATA: metadata_response, PRODUCE: lambda request: None}) as there:
        connection = connect(there.address)
        body = PRODUCE.request.write(9, {"topic_data": []})
        connection.send(PRODUCE, 9, [body], expects_response=False)
        assert connection.outstanding == 0
        assert connection.request(METADATA, NONE).brokers


def test_closed_connection_raises_network_exception_and_is_detected(connect):
    def hang_up(request):
        raise CloseConnection

    with ScriptedBroker({METADATA: metadata_response, DESCRIBE_CLUSTER: hang_up}) as there:
        connection = connect(there.address)
        assert connection.is_alive()
        with pytest.raises(NetworkException, match="the broker closed the connection"):
            connection.request(DESCRIBE_CLUSTER, {})
        idle = connect(there.address)
        there.hang_up()
        while idle.is_alive():
            time.sleep(0.001)
        with pytest.raises(NetworkException, match="the broker closed the connection"):
            idle.request(METADATA, NONE)


@pytest.mark.parametrize("step", ["open", "receive", "send"])
def test_close_wakes_waiting_threads(connect, step):
    entered = threading.Event()

    def silent(request):
        entered.set()
        if step == "send":
            stop.wait(TIMEOUT_S)

    stop = threading.Event()
    answers = {METADATA: silent, **({API_VERSIONS: silent} if step == "open" else {})}
    with ScriptedBroker(answers) as there:
        connection = connect(there.address, opened=step != "open")
        found = []

        def wait():
            try:
                if step == "open":
                    connection.open(TIMEOUT_S)
                connection.send(METADATA, 13, NONE)
                while step == "send":
                    connection.send(METADATA, 13, [bytes(1 << 20)], timeout_s=TIMEOUT_S)
                connection.receive(TIMEOUT_S)
            except NetworkException as fault:
                found.append(str(fault))

        waiting = threading.Thread(target=wait)
        began = time.monotonic()
        waiting.start()
        assert entered.wait(TIMEOUT_S)
        connection.close()
        waiting.join()
        stop.set()
        assert time.monotonic() - began < TIMEOUT_S / 2
        assert found == [f"{there.address}: the connection was closed"]


def test_request_waits_for_another_until_its_timeout(connect):
    go, entered = threading.Event(), threading.Event()

    def late(request):
        entered.set()
        go.wait(TIMEOUT_S)
        return metadata_response(request)

    with ScriptedBroker({METADATA: late}) as there:
        connection = connect(there.address)
        first = threading.Thread(target=connection.request, args=(METADATA, NONE, TIMEOUT_S))
        first.start()
        entered.wait(TIMEOUT_S)
        with pytest.raises(RequestTimedOut, match="did not respond in time to an earlier request"):
            connection.request(METADATA, NONE, 0.01)
        go.set()
        first.join()
        assert connection.request(METADATA, NONE).brokers


def test_forked_child_may_only_close_the_connection(kafka_broker, connect):
    connection = connect(kafka_broker.bootstrap)
    child = os.fork()
    if not child:
        status = 1
        try:
            try:
                connection.request(METADATA, NONE)
            except RuntimeError as refused:
                assert "another process" in str(refused)
                connection.close()
                status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert connection.request(METADATA, NONE).brokers


def test_failed_connections_leave_no_socket_open(connect):
    """pytest turns a ResourceWarning into a failure, once the collector has found the socket."""
    with ScriptedBroker({METADATA: lambda request: b"nonsense"}) as there:
        for opened in (True, False):
            connection = connect(there.address, opened=opened)
            if opened:
                with pytest.raises(InvalidRequest):
                    connection.request(METADATA, NONE)
            connection.close()
            connection.close()
    gc.collect()


def test_repr_names_the_address(connect):
    connection = connect("[::1]:7", opened=False)
    assert repr(connection) == "<connection to [::1]:7>"
    assert connection.address == parse_address("[::1]:7")
