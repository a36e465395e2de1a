"""The exporter's pages: concurrent scrapes, labels, and the readiness of the broker."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from kafkalite.exporter import broker_readiness, http_pages
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


def concurrent_scrapes(pages, count=8):
    """Return the bodies of scrapes in as many threads."""
    bodies = []
    threads = [
        threading.Thread(target=lambda: bodies.append(get(pages).body)) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return bodies


def test_concurrent_scrapes_are_encoded_one_at_a_time(monkeypatch):
    monkeypatch.setattr(http_pages, "SCRAPE_CACHE_S", 0)
    together = threading.Barrier(2)
    is_alone = []

    class Encoded(Source):
        def collect(self):
            # Waits in vain, once, for a second scrape in here.
            try:
                together.wait(0.2)
            except threading.BrokenBarrierError:
                is_alone.append(True)
            else:
                is_alone.append(False)
            yield from super().collect()

    source = Encoded()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(source)
    assert len(concurrent_scrapes(ExporterPages(registry, lambda: ""))) == 8
    assert is_alone == [True] * 8
    assert source.reads == 8


def test_concurrent_scrapes_send_one_cached_encoding(pages, source, monkeypatch):
    monkeypatch.setattr(http_pages, "SCRAPE_CACHE_S", 3600)
    reads = source.reads
    bodies = concurrent_scrapes(pages)
    assert len(bodies) == 8
    assert len(set(bodies)) == 1
    assert source.reads == reads + 1


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
