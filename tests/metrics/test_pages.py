"""Metrics pages: written by one process, read by another, and ignored when damaged or old."""

from __future__ import annotations

import json
import os

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kafkalite import metrics
from kafkalite.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Histogram, Page

FAMILIES = [
    Family("a_total", COUNTER, "So many.", [({"topic": "t"}, 3), ({}, 4)]),
    Family("b", GAUGE, "So much.", [({}, 0.5)]),
]


@pytest.fixture
def page(tmp_path):
    made = Page(metrics.page_path(tmp_path, 3), 3)
    yield made
    made.close()


def sealed(content) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    header = metrics.HEADER.pack(metrics.MAGIC, len(body), xxhash.xxh3_64_intdigest(body))
    return header + body


def page_content(**changed):
    return {"node": 3, "pid": 1, "at_ms": 5, "families": [], **changed}


def test_page_is_read_as_written(page, tmp_path):
    page.write(FAMILIES, at_ms=70)
    (read,) = metrics.read_pages(tmp_path, now_ms=75)
    assert (read.node_id, read.pid, read.at_ms) == (3, os.getpid(), 70)
    assert read.families == FAMILIES


def test_shorter_page_replaces_longer_page(page, tmp_path):
    page.write([Family("a", GAUGE, "", [({"n": str(n)}, n) for n in range(1000)])], at_ms=1)
    page.write(FAMILIES, at_ms=2)
    (read,) = metrics.read_pages(tmp_path, now_ms=2)
    assert read.families == FAMILIES


def test_stale_page_is_not_read(page, tmp_path):
    page.write(FAMILIES, at_ms=1_000)
    assert metrics.read_pages(tmp_path, now_ms=1_000 + metrics.FRESH_MS)
    assert not metrics.read_pages(tmp_path, now_ms=1_001 + metrics.FRESH_MS)


def test_new_owner_replaces_the_page_of_the_former_owner(page, tmp_path):
    page.write(FAMILIES, at_ms=1)
    new = Page(page.path, 3)
    assert not metrics.read_pages(tmp_path, now_ms=1)
    page.write(FAMILIES, at_ms=2)  # by an owner that has been replaced and does not know it yet
    new.write(FAMILIES[:1], at_ms=2)
    (read,) = metrics.read_pages(tmp_path, now_ms=2)
    assert read.families == FAMILIES[:1]
    new.close()


def test_families_beyond_the_page_size_are_left_out_from_the_end(page, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "SIZE_MAX", 2_000)
    large = Family("c", GAUGE, "x" * 2_000, [({}, 1)])
    page.write([*FAMILIES, large], at_ms=1)
    (read,) = metrics.read_pages(tmp_path, now_ms=1)
    assert read.families == FAMILIES


def test_families_beyond_the_sample_limit_are_left_out(page, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "SAMPLES_MAX", 100)
    many = Family("c", GAUGE, "Many.", [({"n": str(n)}, 1) for n in range(100)])
    page.write([*FAMILIES, many], at_ms=1)
    (read,) = metrics.read_pages(tmp_path, now_ms=1)
    assert read.families == FAMILIES


@given(st.binary(max_size=200))
def test_invalid_page_is_none(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "node-3.metrics"
    path.write_bytes(content)
    assert metrics.read_page(path) is None
    path.write_bytes(sealed(content))
    assert metrics.read_page(path) is None


@given(at=st.integers(0, 300), flip=st.integers(1, 255))
def test_page_with_changed_byte_is_none(tmp_path_factory, at, flip):
    path = tmp_path_factory.getbasetemp() / "node-4.metrics"
    content = bytearray(sealed(page_content(families=FAMILIES)))
    path.write_bytes(content)
    assert metrics.read_page(path) is not None
    content[at % len(content)] ^= flip
    path.write_bytes(content)
    assert metrics.read_page(path) is None


@pytest.mark.parametrize(
    "content",
    [
        [],
        7,
        page_content(node="3"),
        page_content(at_ms=None),
        page_content(pid=float("inf")),
        page_content(families={}),
        page_content(families=[1]),
        page_content(families=[["a", "counter", ""]]),
        page_content(families=[["a b", "counter", "", []]]),
        page_content(families=[[7, "counter", "", []]]),
        page_content(families=[["a", "summary", "", []]]),
        page_content(families=[["a", "counter", None, []]]),
        page_content(families=[["a", "counter", "", [[{}, "1"]]]]),
        page_content(families=[["a", "counter", "", [[{}, float("nan")]]]]),
        page_content(families=[["a", "counter", "", [[{}, True]]]]),
        page_content(families=[["a", "counter", "", [[{}, 1 << 70]]]]),
        page_content(families=[["a", "counter", "", [[{"l": 1}, 1]]]]),
        page_content(families=[["a", "counter", "", [[{'a"b': "x"}, 1]]]]),
        page_content(families=[["a", "counter", "", [[[], 1]]]]),
        page_content(families=[["a", "histogram", "", [[{}, 1]]]]),
        page_content(families=[["a", "histogram", "", [[{}, [1]]]]]),
        page_content(families=[["a", "histogram", "", [[{}, [-1] * (metrics.BUCKET_COUNT + 1)]]]]),
        page_content(families=[["a", "counter", "", []]] * (metrics.FAMILIES_MAX + 1)),
        b"[" * 100_000,
    ],
    ids=lambda content: str(content)[:60],
)
def test_page_with_invalid_fields_is_none(tmp_path, content):
    path = tmp_path / "node-3.metrics"
    path.write_bytes(sealed(content))
    assert metrics.read_page(path) is None
    assert not metrics.read_pages(tmp_path, now_ms=5)


def test_page_above_sample_limit_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "SAMPLES_MAX", 3)
    path = tmp_path / "node-3.metrics"
    path.write_bytes(sealed(page_content(families=FAMILIES)))
    assert metrics.read_page(path) is not None
    path.write_bytes(sealed(page_content(families=[*FAMILIES, FAMILIES[1]])))
    assert metrics.read_page(path) is None


def test_special_files_in_place_of_pages_are_ignored(tmp_path):
    os.mkfifo(tmp_path / "node-1.metrics")
    (tmp_path / "node-2.metrics").mkdir()
    (tmp_path / "node-3.metrics").symlink_to("/dev/zero")
    path = tmp_path / "node-4.metrics"
    path.write_bytes(sealed(page_content()))  # another node's
    assert metrics.read_pages(tmp_path, now_ms=5) == []
    assert metrics.read_pages(tmp_path / "gone", now_ms=5) == []


@given(st.lists(st.integers(0, (1 << 63) - 1)))
def test_duration_is_counted_in_its_histogram_bucket(times):
    histogram = Histogram()
    for ns in times:
        histogram.add(ns)
    total, *counts = histogram.values()
    assert (total, sum(counts)) == (sum(times), len(times))
    bounds_ns = [round(bound * 1e9) for bound in metrics.bucket_bounds_s()]
    for index, bound in enumerate(bounds_ns):
        assert sum(counts[: index + 1]) == sum(ns < bound for ns in times)


def test_histogram_is_read_as_written(page, tmp_path):
    histogram = Histogram()
    histogram.add(5_000)
    family = Family("t", HISTOGRAM, "", [({}, histogram.values())])
    page.write([family], at_ms=1)
    (read,) = metrics.read_pages(tmp_path, now_ms=1)
    assert read.families == [family]
