"""The exporter's HTTP server: any bytes on its port, and scrapes still get a response."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from kafkalite.exporter import serving
from kafkalite.exporter.serving import Server, answers, why_not_ready
from tests.process.waiting import until


class Source:
    """One metric, and the number of its reads."""

    def __init__(self):
        self.asked = 0

    def collect(self):
        self.asked += 1
        metric = Metric("a", "A.", "gauge")
        metric.add_sample("a", {"l": 'x"\n\\'}, 1)
        yield metric


@pytest.fixture
def server():
    registry = CollectorRegistry()
    source = Source()
    registry.register(source)
    server = Server(socket.create_server(("127.0.0.1", 0)), registry, lambda: "")
    server.source = source
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def said(server, request, wait_s=10):
    """Return all bytes of the response to these bytes."""
    came = b""
    with socket.create_connection(server.server_address, timeout=wait_s) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65_536):
                came += more
        except OSError:
            pass
    return came


def test_labels_cannot_break_out_of_their_line(server):
    body = said(server, b"GET /metrics HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")[2]
    assert b'a{l="x\\"\\n\\\\"} 1.0\n' in body


def test_a_head_has_no_body(server):
    head, _, body = said(server, b"HEAD /healthz HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"200" in head and body == b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_answered_or_closed_and_the_next_is_served(server, request):
    said(server, request)
    assert b"200 OK" in said(server, b"GET /healthz HTTP/1.0\r\n\r\n")


def test_who_says_nothing_holds_a_place_only_for_a_while(server, monkeypatch):
    monkeypatch.setattr(serving.Request, "timeout", 0.05)
    silent = [socket.create_connection(server.server_address) for _ in range(40)]
    until(lambda: b"200 OK" in said(server, b"GET /healthz HTTP/1.0\r\n\r\n"))
    for connection in silent:
        connection.close()


def test_so_does_who_never_comes_to_the_end(server, monkeypatch):
    monkeypatch.setattr(serving, "WHOLE_S_MAX", 0.1)
    slow = [socket.create_connection(server.server_address) for _ in range(40)]

    def served():
        for connection in slow:
            with suppress(OSError):
                connection.send(b"G")
        return b"200 OK" in said(server, b"GET /healthz HTTP/1.0\r\n\r\n")

    until(served)
    for connection in slow:
        connection.close()


def test_many_scrapes_at_once_are_one(server):
    texts = []
    get = b"GET /metrics HTTP/1.0\r\n\r\n"
    server.scraped("")  # cached for a while from here on
    asked = server.source.asked
    threads = [
        threading.Thread(target=lambda: texts.append(said(server, get))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 8
    assert server.source.asked <= asked + 8


def test_ready_is_who_answers():
    assert why_not_ready(None) == "no broker is ready"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
        assert not answers(address, 0.05)
        assert why_not_ready({3: address}).startswith("node 3 at 127.0.0.1:")
    assert not answers(address, 0.05)
    assert why_not_ready({}) == ""


def test_it_is_not_waited_for_long_who_does_not_answer(monkeypatch):
    monkeypatch.setattr(serving, "READY_S_MAX", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert why_not_ready(dict.fromkeys(range(1000), silent.getsockname()))
        assert time.monotonic() - began < 30
