"""Schemas from a registry: each value by its own; a registry that fails is not a bad row."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time

import pytest

from pyspark_kafkalite.decoding import Decode, decode_of, registry
from pyspark_kafkalite.decoding.registry import Registry, Unreachable
from tests.spark.test_decoding import DROP, avro, batch, framed, good, places_and_rows


class RegistryServer:
    """A registry: schemas by id, and an action that replaces the response."""

    def __init__(self):
        self.schemas = {}
        self.requests = []
        self.hang = threading.Event()
        self.instead = None
        registry_server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                registry_server.requests.append((self.path, self.headers.get("Authorization")))
                if registry_server.instead is not None:
                    registry_server.instead(self)
                    return
                found = registry_server.schemas.get(self.path)
                self.send_response(200 if found else 404)
                self.end_headers()
                self.wfile.write(json.dumps({"schema": found} if found else {}).encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def holds(self, number, schema):
        self.schemas[f"/schemas/ids/{number}"] = json.dumps(schema)

    def close(self):
        self.hang.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def registry_server():
    made = RegistryServer()
    with contextlib.closing(made):
        yield made


OLD = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
NEW = {
    "type": "record", "name": "r",
    "fields": [{"name": "b", "type": "string", "default": "-"}, {"name": "a", "type": "long"}],
}  # fmt: skip


def test_value_is_decoded_with_the_schema_of_its_id(registry_server):
    registry_server.holds(1, OLD)
    registry_server.holds(2, NEW)
    values = [framed(1, avro(OLD, {"a": 7})), None, framed(2, avro(NEW, {"a": 8, "b": "x"}))] * 3
    for said in (NEW, "b STRING, a LONG"):
        decode = Decode("avro", said, registry=Registry.at(registry_server.url + "/"))
        default = "-" if said is NEW else None
        assert good(decode, *values) == [(default, 7), (None, None), ("x", 8)] * 3
    assert [path for path, _ in registry_server.requests] == ["/schemas/ids/1", "/schemas/ids/2"]


def test_value_of_an_unknown_schema_is_a_bad_row(registry_server):
    registry_server.holds(1, OLD)
    registry_server.holds(3, {"type": "record", "name": "r", "fields": [
        {"name": "a", "type": {"type": "array", "items": "null"}}]})  # fmt: skip
    registry_server.holds(
        4, {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}
    )
    registry_server.schemas["/schemas/ids/5"] = "syntax = 'proto3';"
    one = framed(1, avro(OLD, {"a": 7}))
    values = [
        one, framed(2, b"\x02"), framed(3, b"\xfe\xff\xff\xff\x0f\0"), framed(4, b"\x02x"),
        framed(5, b"x"), b"", b"\x00\x00", b"\x01\0\0\0\1\x02", one, framed(2, b""),
    ]  # fmt: skip
    decode = Decode("avro", OLD, registry=Registry.at(registry_server.url), bad_rows=DROP)
    assert places_and_rows(decode, values) == {0: (7,), 8: (7,)}
    assert len(registry_server.requests) == 5  # a missing schema is not requested twice


def silence(registry_server):
    return lambda request: registry_server.hang.wait(20)


def dribble(registry_server):
    def say(request):
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(OSError):
            while not registry_server.hang.wait(0.05):
                request.wfile.write(b" ")
                request.wfile.flush()

    return say


@pytest.mark.parametrize("way", [silence, dribble])
def test_unresponsive_registry_raises_in_time(registry_server, way):
    registry_server.instead = way(registry_server)
    decode = Decode(
        "avro", OLD, registry=Registry.at(registry_server.url, timeout_s=0.3), bad_rows=DROP
    )
    began = time.monotonic()
    with pytest.raises(Unreachable, match="did not respond.*schema.registry.url"):
        decode(batch([framed(1, b"\x02")]))
    assert time.monotonic() - began < 30
    registry_server.hang.set()


def reply(status, body=b"", **headers):
    def say(request):
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return say


@pytest.mark.parametrize(
    "instead",
    [reply(500), reply(401), reply(200, b"<html>"), reply(200, b"[]"), reply(200, b'{"schema": 5}'),
     reply(302, Location="http://127.0.0.1:1/"), reply(200, b"[" * 100_000)],
)  # fmt: skip
def test_invalid_registry_response_raises_unreachable(registry_server, instead):
    registry_server.instead = instead
    decode = Decode("avro", OLD, registry=Registry.at(registry_server.url), bad_rows=DROP)
    with pytest.raises(Unreachable):
        decode(batch([framed(1, b"\x02")]))


def test_registry_response_size_is_limited(registry_server, monkeypatch):
    monkeypatch.setattr(registry, "RESPONSE_SIZE_MAX", 1000)
    registry_server.instead = reply(200, b" " * 5000)
    with pytest.raises(Unreachable, match="larger than 1000"):
        Registry.at(registry_server.url).schema(1)


def test_unreachable_registry_and_invalid_url_raise():
    with pytest.raises(Unreachable, match="127.0.0.1:1 did not respond"):
        Registry.at("http://127.0.0.1:1", timeout_s=1).schema(1)
    for url in ("file:///etc/passwd", "127.0.0.1:8081", "http://"):
        with pytest.raises(ValueError, match="schema.registry.url"):
            Registry.at(url)


def test_registry_header_is_removed_from_json(registry_server):
    decode = Decode("json", "a INT", registry=Registry.at(registry_server.url), bad_rows=DROP)
    values = [framed(9, b'{"a":1}'), b'{"a":2}', None, b"\0\0", framed(9, b""), framed(9, b"{}")]
    assert places_and_rows(decode, values) == {0: (1,), 2: (None,), 5: (None,)}
    assert not registry_server.requests


def test_schema_may_be_the_latest_of_the_subject(registry_server):
    registry_server.schemas["/subjects/my%20topic-value/versions/latest"] = json.dumps(OLD)
    registry_server.holds(1, OLD)
    options = {"value_format": "avro", "schema.registry.url": registry_server.url,
               "schema.registry.basic.auth.user.info": "me:secret"}  # fmt: skip
    decode = decode_of(options, {}, topic="my topic")
    assert good(decode, framed(1, avro(OLD, {"a": 7}))) == [(7,)]
    assert {user for _, user in registry_server.requests} == {"Basic bWU6c2VjcmV0"}
    assert decode_of({}, {}) is None
