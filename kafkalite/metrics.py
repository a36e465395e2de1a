"""Metrics pages: the counters of a process, in a file that other processes read.

    a node        counters in its own objects, updated in ticks ─▶ every second Page.write
    the exporter  read_pages ─▶ families, or none

A page is one file in the run directory, written whole by its owner, which is a node or the gateway
(with node id 0):

    8 bytes "KLPAGE01", u32 size, u64 XXH3-64 of the rest;  then JSON
    {"node": 1, "pid": 17, "at_ms": …,
     "families": [[name, kind, sentence, [[labels, value], …]], …]}

`at_ms` is the machine's monotonic time.  A page is ignored when it is older than `FRESH_MS`, as
when its owner hangs, or when its owner's process has ended.  The next owner creates a page of its
own and counts from zero: readers must expect counters to restart with a process.  A killed process
loses what it counted since its last page, up to one second.

Readers validate everything: a page that is torn, too large or otherwise invalid counts as missing.

Times are counted in buckets whose bounds double from 1.024 us on: cheap enough for each request,
and exact to within a factor of two.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

SIZE_MAX = 16 << 20
FAMILIES_MAX = 1_000
SAMPLES_MAX = 200_000
SAMPLES_PER_STEP = 200
"""Samples that are collected and encoded in one step, which takes about 1 ms."""
FRESH_MS = 15_000
"""Maximum age of a valid page."""

MAGIC = b"KLPAGE01"
HEADER = struct.Struct("<8sIQ")
PAGE = re.compile(r"node-(\d{1,9})\.metrics", re.ASCII)
NAME = re.compile(r"[a-z][a-z0-9_]{0,99}", re.ASCII)
LABEL = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,49}", re.ASCII)
VALUE_MAX = 1 << 63

BUCKET_COUNT = 26
"""Number of buckets in a page; the last one has all times above 17 seconds."""
READ_ATTEMPTS = 3


class Histogram:
    """Number and total of measured times, by bucket."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        # As many as a 64-bit number of nanoseconds needs, so that no index is out of range.
        self.counts = [0] * 54
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """Count one measured time."""
        self.counts[(ns >> 10).bit_length()] += 1
        self.total_ns += ns

    def values(self) -> list[int]:
        """Return the sum, then the buckets, as in a page."""
        counts = self.counts
        return [self.total_ns, *counts[: BUCKET_COUNT - 1], sum(counts[BUCKET_COUNT - 1 :])]


class Family(NamedTuple):
    """One metric, with a value for each set of labels; a histogram's value is `values()`."""

    name: str
    kind: str
    sentence: str
    samples: Sequence[tuple[Mapping[str, str], Any]]


class Read(NamedTuple):
    """The content of a page."""

    node_id: int
    pid: int
    at_ms: int
    families: list[Family]


def bucket_bounds_s() -> list[float]:
    """Return the upper bounds of the buckets in seconds, except the last, which has none."""
    return [(1 << index) * 1024 / 1e9 for index in range(BUCKET_COUNT - 1)]


def page_path(run_directory: Path, node_id: int) -> Path:
    """Return the path of a node's page."""
    return run_directory / f"node-{node_id}.metrics"


def gateway_page_path(run_directory: Path) -> Path:
    """Return the path of the gateway's page."""
    return run_directory / "gateway.metrics"


class Page:
    """The page of one process; see the module."""

    def __init__(self, path: Path, node_id: int) -> None:
        self.path = path
        self.node_id = node_id
        # A new file, never that of an earlier owner: a reader sees either one or the other.
        self.path.unlink(missing_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, families: Iterable[Family], at_ms: int) -> None:
        """Replace the content; the last families that exceed the limits are dropped."""
        for _ in self.write_steps(families, at_ms):
            pass

    def write_steps(self, families: Iterable[Family], at_ms: int) -> Iterator[None]:
        """Do the same as `write` in steps of SAMPLES_PER_STEP samples of a family: with thousands
        of partitions a family takes tens of milliseconds."""
        texts: list[str] = []
        size = 1_000
        count = 0
        for family in families:
            text = []
            for part in _encoded(family):
                text.append(part)
                size += len(part)
                yield
            count += len(family.samples)
            if size > SIZE_MAX or count > SAMPLES_MAX:
                break
            texts += text
        start = json.dumps({"node": self.node_id, "pid": os.getpid(), "at_ms": at_ms})
        body = f'{start[:-1]}, "families": [{"".join(texts)[:-1]}]}}'.encode()
        header = HEADER.pack(MAGIC, len(body), xxhash.xxh3_64_intdigest(body))
        os.pwrite(self._file, header + body, 0)

    def close(self) -> None:
        """Remove the page."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)


def _encoded(family: Family) -> Iterator[str]:
    """Yield a family's JSON in parts, with a comma at the end; each part collects its samples."""
    samples = iter(family.samples)
    text = json.dumps(family[:-1], separators=(",", ":"))[:-1] + ",["
    comma = ""
    while some := list(islice(samples, SAMPLES_PER_STEP)):
        yield text + comma + json.dumps(some, separators=(",", ":"))[1:-1]
        text, comma = "", ","
    yield text + "]],"


def read_pages(run_directory: Path, now_ms: int) -> list[Read]:
    """Return the valid pages of running nodes, by node id."""
    try:
        names = os.listdir(run_directory)
    except OSError:
        return []
    pages = [
        page
        for name in names
        if (named := PAGE.fullmatch(name)) is not None
        and (page := read_page(run_directory / name)) is not None
        and page.node_id == int(named[1])
        and is_kept(page, now_ms)
    ]
    return sorted(pages, key=lambda page: page.node_id)


def read_gateway_page(run_directory: Path, now_ms: int) -> Read | None:
    """Return the gateway's page if it is valid and its process runs."""
    page = read_page(gateway_page_path(run_directory))
    return page if page is not None and is_kept(page, now_ms) else None


def is_kept(page: Read, now_ms: int) -> bool:
    """Return True if the page is recent and its process exists."""
    fresh = -FRESH_MS <= now_ms - page.at_ms <= FRESH_MS
    return fresh and os.path.exists(f"/proc/{page.pid}")


def read_page(path: Path) -> Read | None:
    """Return the content of a page; None if it is missing or not valid."""
    for _ in range(READ_ATTEMPTS):  # the owner may be writing
        body = _body(path)
        if body is not None:
            try:
                return _checked(json.loads(body))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                return None
    return None


def _body(path: Path) -> bytes | None:
    try:
        page = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        magic, size, digest = HEADER.unpack(os.pread(page, HEADER.size, 0))
        if magic != MAGIC or size > SIZE_MAX:
            return None
        body = os.pread(page, size, HEADER.size)
    except (OSError, struct.error):
        return None
    finally:
        os.close(page)
    return body if len(body) == size and xxhash.xxh3_64_intdigest(body) == digest else None


def _checked(content: Any) -> Read:
    """Return the validated content; raise ValueError, TypeError or KeyError if it is invalid."""
    node_id, pid, at_ms = (_number(content[key]) for key in ("node", "pid", "at_ms"))
    families = content["families"]
    if not isinstance(families, list) or len(families) > FAMILIES_MAX:
        raise ValueError(f"families must be a list of at most {FAMILIES_MAX}")
    left = SAMPLES_MAX
    checked = []
    for name, kind, sentence, samples in families:
        if not (NAME.fullmatch(name) and isinstance(sentence, str) and isinstance(samples, list)):
            raise ValueError("invalid metric family")
        left -= len(samples)
        if left < 0:
            raise ValueError(f"more than {SAMPLES_MAX} samples")
        if kind == HISTOGRAM:
            values = [(_labels(labels), _buckets(value)) for labels, value in samples]
        elif kind in (COUNTER, GAUGE):
            values = [(_labels(labels), _number(value)) for labels, value in samples]
        else:
            raise ValueError(f"unknown metric kind {kind!r}")
        checked.append(Family(name, kind, sentence, values))
    return Read(int(node_id), int(pid), int(at_ms), checked)


def _labels(labels: Any) -> dict[str, str]:
    for name, value in labels.items():
        if not (LABEL.fullmatch(name) and isinstance(value, str)):
            raise ValueError("invalid label")
    return dict(labels)


def _number(value: Any) -> Any:
    if type(value) not in (int, float) or not -VALUE_MAX <= value <= VALUE_MAX:
        raise ValueError("invalid number")
    return value


def _buckets(value: Any) -> list[int]:
    if len(value) != BUCKET_COUNT + 1:
        raise ValueError(f"a histogram must have {BUCKET_COUNT + 1} counts")
    numbers = [_number(count) for count in value]
    if not all(type(count) is int and count >= 0 for count in numbers):
        raise ValueError("a bucket count must be a non-negative integer")
    return numbers


# -- pushes of clients ---------------------------------------------------------------------------

PUSHES = "pushes"
"""Name of the datagram socket in the run directory on which the exporter receives pushes."""
PUSH = struct.Struct("<4sBI")
PUSH_MAGIC = b"KLPU"
PUSH_SIZE_MAX = 8 << 20


class Push(NamedTuple):
    """One client's push (KIP-714), still compressed, with labels that the node adds."""

    labels: dict[str, str]
    codec: int
    interval_ms: int
    payload: bytes

    def packed(self) -> bytes:
        """Return the push as a datagram."""
        header = json.dumps([self.labels, self.interval_ms]).encode()
        return PUSH.pack(PUSH_MAGIC, self.codec, len(header)) + header + self.payload


def read_push(datagram: bytes) -> Push | None:
    """Return the push in a datagram; None if it is not valid."""
    try:
        magic, codec, size = PUSH.unpack_from(datagram)
        begin = PUSH.size + size
        if magic != PUSH_MAGIC or begin > len(datagram):
            return None
        labels, interval_ms = json.loads(datagram[PUSH.size : begin])
        return Push(_labels(labels), codec, int(_number(interval_ms)), datagram[begin:])
    except (ValueError, TypeError, AttributeError, RecursionError, struct.error):
        return None
