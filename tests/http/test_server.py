"""The HTTP server of the services: its limits, and any bytes on its port."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.http.limits import HttpLimits
from kafkalite.http.messages import HttpResponse
from kafkalite.http.server import HttpServer
from tests.process.waiting import until

GET = b"GET /path?a=b HTTP/1.0\r\n"


def respond(request):
    """Return the request as text."""
    body = f"{request.method} {request.path} {request.query} {request.headers.get('x-one')}"
    return HttpResponse(200, body.encode())


@contextmanager
def serving(function=respond, **limits):
    """Run a server with these limits."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(listener, function, HttpLimits(**limits))
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def server():
    with serving() as server:
        yield server


def exchange(server, request):
    """Return all bytes of the response to these bytes."""
    response = b""
    with socket.create_connection(server.server_address, timeout=10) as connection:
        with suppress(OSError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while received := connection.recv(65_536):
                response += received
    return response


def status(server, request):
    """Return the status of the response, or None if the connection was closed without one."""
    words = exchange(server, request).split(b" ", 2)
    return int(words[1]) if len(words) > 2 else None


def test_connection_without_a_thread_frees_its_place(monkeypatch):
    def fail(thread):
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    with serving(connections=1) as server:
        monkeypatch.setattr(threading.Thread, "start", fail)
        assert status(server, GET + b"\r\n") is None
        assert status(server, GET + b"\r\n") == 200


def test_request_is_passed_with_path_query_and_headers(server):
    head, _, body = exchange(server, GET + b"X-One: 1\r\nx-one: 2\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n") and b"Server: kafkalite" in head
    assert b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 18" in head
    assert body == b"GET /path a=b 1, 2"


def test_head_response_has_no_body(server):
    head, _, body = exchange(server, b"HEAD / HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"200" in head and b"Content-Length: 12" in head and body == b""


def test_other_methods_are_not_implemented(server):
    assert status(server, b"POST / HTTP/1.0\r\n\r\n") == 501


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_gets_an_error_or_nothing_and_does_not_stop_the_server(request_bytes):
    with serving() as server:
        response = exchange(server, request_bytes)
        may_be_valid = request_bytes.lstrip().startswith((b"GET ", b"HEAD "))
        assert not response or b"Error code: " in response or may_be_valid
        assert status(server, GET + b"\r\n") == 200


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"garbage", b"400"),
        (b"\x00\xff\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"POST /\r\n\r\n", b"400"),
        (b"GET / x HTTP/1.0\r\n\r\n", b"400"),
        (b"GET / HTTP/1.x\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"505"),
        (b"GARBAGE / HTTP/1.0\r\n\r\n", b"501"),
    ],
)
def test_invalid_request_line_gets_an_error_and_calls_no_function(request_bytes, code):
    called = []
    with serving(called.append) as server:
        assert b"Error code: " + code in exchange(server, request_bytes)
    assert called == []


def test_request_line_is_limited():
    with serving(request_line_size=100) as server:
        line = b"GET /" + b"a" * (100 - 16) + b" HTTP/1.0\r\n"
        assert len(line) == 100 and status(server, line + b"\r\n") == 200
        assert status(server, b"GET /" + b"a" * 85 + b" HTTP/1.0\r\n\r\n") == 414


@pytest.mark.parametrize("count", [1, 10], ids=["one header", "many headers"])
def test_headers_are_limited_together(count):
    with serving(headers_size=1002) as server:
        for size, expected in [(1000 // count, 200), (1010 // count, 431)]:
            header = b"a: " + b"b" * (size - 5) + b"\r\n"
            assert status(server, GET + header * count + b"\r\n") == expected


def test_number_of_headers_is_limited(server):
    assert status(server, GET + b"a: b\r\n" * 200 + b"\r\n") == 431


def test_connections_are_limited_and_idle_ones_closed():
    with serving(connections=4, idle_s=0.05) as server:
        idle = [socket.create_connection(server.server_address) for _ in range(10)]
        until(lambda: status(server, GET + b"\r\n") == 200)
        for connection in idle:
            connection.close()


def test_connection_beyond_the_limit_is_closed_at_once():
    entered, leave = threading.Event(), threading.Event()

    def wait(request):
        entered.set()
        leave.wait(30)
        return HttpResponse(200, b"")

    with serving(wait, connections=1) as server:
        first = threading.Thread(target=exchange, args=[server, GET + b"\r\n"])
        first.start()
        assert entered.wait(30)
        assert exchange(server, GET + b"\r\n") == b""
        leave.set()
        first.join(30)
        until(lambda: status(server, GET + b"\r\n") == 200)


def test_request_is_limited_in_time_however_steadily_bytes_arrive():
    with serving(connections=4, request_s=0.1) as server:
        slow = [socket.create_connection(server.server_address) for _ in range(10)]

        def is_served():
            for connection in slow:
                with suppress(OSError):
                    connection.send(b"G")
            return status(server, GET + b"\r\n") == 200

        until(is_served)
        for connection in slow:
            connection.close()


def test_error_in_the_function_is_logged_and_the_next_request_served(caplog):
    def fail_once(request):
        if request.path == "/fail":
            raise ValueError("planted")
        return HttpResponse(200, b"")

    with serving(fail_once) as server:
        assert status(server, b"GET /fail HTTP/1.0\r\n\r\n") is None
        until(lambda: "planted" in caplog.text)
        assert "HTTP request failed." in caplog.text
        assert status(server, GET + b"\r\n") == 200
