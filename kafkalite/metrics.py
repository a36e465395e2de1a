"""What a process counts, and the page in which others read it.

    a node        counters in its own objects, bumped at the tick's steps ─▶ each second Page.write
    the exporter  read_pages ─▶ families, or nothing

A page is one file in the run directory, written whole by its one owner, which is a node or the
gateway (as if its node were 0):

    8 bytes "KLPAGE01", u32 size, u64 XXH3-64 of the rest;  then JSON
    {"node": 1, "pid": 17, "at_ms": …,
     "families": [[name, kind, sentence, [[labels, value], …]], …]}

`at_ms` is the machine's monotonic time: a page whose owner hangs grows old, and is believed no
more after `FRESH_MS`; one whose owner has died is not believed at all.  Whoever takes the owner's
place begins a page of its own, and from zero: what reads counters knows that they begin again with
a process.  One killed by the kernel takes what it counted since its last page with it, a second's
worth.

A reader believes nothing: a page that is torn, too large, or says what no page says, is none.

Times are counted in buckets whose bounds double, from 1.024 us on: so cheap that each request can
afford it, and exact to within a factor of two.
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
"""Samples that are looked up and encoded in one step, in about 1 ms."""
FRESH_MS = 15_000
"""The oldest page that still tells what is."""

MAGIC = b"KLPAGE01"
HEADER = struct.Struct("<8sIQ")
PAGE = re.compile(r"node-(\d{1,9})\.metrics", re.ASCII)
NAME = re.compile(r"[a-z][a-z0-9_]{0,99}", re.ASCII)
LABEL = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,49}", re.ASCII)
VALUE_MAX = 1 << 63

BUCKET_COUNT = 26
"""The last one holds all that took longer than 17 seconds."""
READ_AGAIN = 3


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        # As many as a 64-bit number of nanoseconds can ask for, so that none is out of range.
        self.counts = [0] * 54
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """It took so long once more."""
        self.counts[(ns >> 10).bit_length()] += 1
        self.total_ns += ns

    def told(self) -> list[int]:
        """The sum, then the buckets, as they stand in a page."""
        counts = self.counts
        return [self.total_ns, *counts[: BUCKET_COUNT - 1], sum(counts[BUCKET_COUNT - 1 :])]


class Family(NamedTuple):
    """One metric, with a value for each set of labels; a histogram's is as `told`."""

    name: str
    kind: str
    sentence: str
    samples: Sequence[tuple[Mapping[str, str], Any]]


class Read(NamedTuple):
    """What a page said."""

    node_id: int
    pid: int
    at_ms: int
    families: list[Family]


def bucket_bounds_s() -> list[float]:
    """The upper bounds of the buckets in seconds, but for the last one, which has none."""
    return [(1 << index) * 1024 / 1e9 for index in range(BUCKET_COUNT - 1)]


def page_path(run_directory: Path, node_id: int) -> Path:
    """Where a node's page is."""
    return run_directory / f"node-{node_id}.metrics"


def gateway_page_path(run_directory: Path) -> Path:
    """Where the gateway's page is."""
    return run_directory / "gateway.metrics"


class Page:
    """One process's page; see the module."""

    def __init__(self, path: Path, node_id: int) -> None:
        self.path = path
        self.node_id = node_id
        # Its own file, never the last owner's: a reader has the old one or this one.
        self.path.unlink(missing_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, families: Iterable[Family], at_ms: int) -> None:
        """Replace what it says; families that would not fit are left out, the last first."""
        for _ in self.write_steps(families, at_ms):
            pass

    def write_steps(self, families: Iterable[Family], at_ms: int) -> Iterator[None]:
        """Write as `write` does, in steps of SAMPLES_PER_STEP samples of a family: with thousands
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
        said = json.dumps({"node": self.node_id, "pid": os.getpid(), "at_ms": at_ms})
        body = f'{said[:-1]}, "families": [{"".join(texts)[:-1]}]}}'.encode()
        header = HEADER.pack(MAGIC, len(body), xxhash.xxh3_64_intdigest(body))
        os.pwrite(self._file, header + body, 0)

    def close(self) -> None:
        """Nobody is behind it any more."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)


def _encoded(family: Family) -> Iterator[str]:
    """The parts of a family's JSON, and a comma behind it; samples are looked up part by part."""
    samples = iter(family.samples)
    said = json.dumps(family[:-1], separators=(",", ":"))[:-1] + ",["
    comma = ""
    while some := list(islice(samples, SAMPLES_PER_STEP)):
        yield said + comma + json.dumps(some, separators=(",", ":"))[1:-1]
        said, comma = "", ","
    yield said + "]],"


def read_pages(run_directory: Path, now_ms: int) -> list[Read]:
    """What the processes say that write pages now, in the order of their nodes."""
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
    """What the gateway says, if one writes a page now."""
    page = read_page(gateway_page_path(run_directory))
    return page if page is not None and is_kept(page, now_ms) else None


def is_kept(page: Read, now_ms: int) -> bool:
    """Whether a process is behind the page, and not stuck."""
    fresh = -FRESH_MS <= now_ms - page.at_ms <= FRESH_MS
    return fresh and os.path.exists(f"/proc/{page.pid}")


def read_page(path: Path) -> Read | None:
    """What a page says; None where there is none that can be believed."""
    for _ in range(READ_AGAIN):  # its owner may just be writing
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


def _checked(said: Any) -> Read:
    """Raises ValueError, TypeError or KeyError at what no page says."""
    node_id, pid, at_ms = (_number(said[key]) for key in ("node", "pid", "at_ms"))
    families = said["families"]
    if not isinstance(families, list) or len(families) > FAMILIES_MAX:
        raise ValueError("these are no families")
    left = SAMPLES_MAX
    checked = []
    for name, kind, sentence, samples in families:
        if not (NAME.fullmatch(name) and isinstance(sentence, str) and isinstance(samples, list)):
            raise ValueError("this is no family")
        left -= len(samples)
        if left < 0:
            raise ValueError("these are too many")
        if kind == HISTOGRAM:
            values = [(_labels(labels), _buckets(value)) for labels, value in samples]
        elif kind in (COUNTER, GAUGE):
            values = [(_labels(labels), _number(value)) for labels, value in samples]
        else:
            raise ValueError("this is no kind")
        checked.append(Family(name, kind, sentence, values))
    return Read(int(node_id), int(pid), int(at_ms), checked)


def _labels(labels: Any) -> dict[str, str]:
    for name, value in labels.items():
        if not (LABEL.fullmatch(name) and isinstance(value, str)):
            raise ValueError("this is no label")
    return dict(labels)


def _number(value: Any) -> Any:
    if type(value) not in (int, float) or not -VALUE_MAX <= value <= VALUE_MAX:
        raise ValueError("this is no number")
    return value


def _buckets(value: Any) -> list[int]:
    if len(value) != BUCKET_COUNT + 1:
        raise ValueError("these are not the buckets")
    numbers = [_number(count) for count in value]
    if not all(type(count) is int and count >= 0 for count in numbers):
        raise ValueError("a count is not below zero")
    return numbers


# -- what clients push ---------------------------------------------------------------------------

PUSHES = "pushes"
"""The datagram socket in the run directory at which the exporter takes what clients push."""
PUSH = struct.Struct("<4sBI")
PUSH_MAGIC = b"KLPU"
PUSH_SIZE_MAX = 8 << 20


class Push(NamedTuple):
    """One client's push (KIP-714), still compressed, and what the node knows of the client."""

    labels: dict[str, str]
    codec: int
    interval_ms: int
    payload: bytes

    def packed(self) -> bytes:
        """As a datagram."""
        said = json.dumps([self.labels, self.interval_ms]).encode()
        return PUSH.pack(PUSH_MAGIC, self.codec, len(said)) + said + self.payload


def read_push(datagram: bytes) -> Push | None:
    """What a datagram says; None where it says nothing."""
    try:
        magic, codec, size = PUSH.unpack_from(datagram)
        begin = PUSH.size + size
        if magic != PUSH_MAGIC or begin > len(datagram):
            return None
        labels, interval_ms = json.loads(datagram[PUSH.size : begin])
        return Push(_labels(labels), codec, int(_number(interval_ms)), datagram[begin:])
    except (ValueError, TypeError, AttributeError, RecursionError, struct.error):
        return None
