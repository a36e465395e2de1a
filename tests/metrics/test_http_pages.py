"""The exporter's pages: concurrent scrapes, labels, and the readiness of the broker."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from kafkalite.exporter import broker_readiness
from kafkalite.exporter.broker_readiness import is_responding, unready_reason
from kafkalite.exporter.http_pages import ExporterPages
from kafkalite.http.messages import HttpRequest


class Source:
    """One metric, and the number of its reads."""

    def __init__(self):
        self.reads = 0

    def collect(self):
        self.reads += 1
        metric = Metric("a", "A.", "gauge")
        metric.add_sample("a", {"l": 'x"\n\\'}, 1)
        yield metric


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def pages(source):
    registry = CollectorRegistry()
    registry.register(source)
    return ExporterPages(registry, lambda: "")


def get(pages, path="/metrics"):
    return pages.respond(HttpRequest("GET", path, "", {}))


def test_labels_are_escaped(pages):
    assert b'a{l="x\\"\\n\\\\"} 1.0\n' in get(pages).body


def test_unknown_path_is_not_found(pages):
    assert get(pages, "/else").status == 404


def test_concurrent_scrapes_are_encoded_one_at_a_time(pages, source):
    bodies = []
    get(pages)  # cached for a while from here on
    reads = source.reads
    threads = [threading.Thread(target=lambda: bodies.append(get(pages).body)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bodies) == 8
    assert source.reads <= reads + 8


def test_broker_is_ready_if_every_node_responds():
    assert unready_reason(None) == "no broker is ready"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
        assert not is_responding(address, 0.05)
        assert unready_reason({3: address}).startswith("node 3 at 127.0.0.1:")
    assert not is_responding(address, 0.05)
    assert unready_reason({}) == ""


def test_nodes_that_do_not_respond_delay_readyz_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(broker_readiness, "BROKER_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start_s = time.monotonic()
        assert unready_reason(dict.fromkeys(range(1000), silent.getsockname()))
        assert time.monotonic() - start_s < 30
