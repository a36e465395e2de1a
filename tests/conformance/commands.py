"""Clients that are command lines: kcat, and kafkalite's command that takes its flags."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.conformance.table import (
    CODECS,
    COMMAND,
    GROUPS,
    HEADER_TWICE,
    LOOKS_ONLY,
    NO_RESET,
    Kafka,
    Member,
    Place,
    Read,
    Record,
    Refused,
    Sent,
    Transactions,
)

RECORD_END = b"\x1e"
KEY_END = b"\x1f"
TIMEOUT_S = 60
PRODUCER = {
    "acks": "all",
    "linger.ms": "0",
    # The broker decides on the size of a record.
    "message.max.bytes": "100000000",
}
CONSUMER = {"fetch.wait.max.ms": "10"}


class CommandLine:
    """kcat, or a command that takes its flags."""

    can = frozenset({COMMAND, *CODECS, HEADER_TWICE, NO_RESET, LOOKS_ONLY})
    only: frozenset[str] = frozenset()
    can |= {GROUPS, "range", "roundrobin", "cooperative-sticky"}

    def __init__(
        self,
        name: str,
        produce: Sequence[str],
        consume: Sequence[str],
        join: Sequence[str],
        heard: Callable[[str], tuple[str, frozenset[Place]] | None],
        can: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.can |= {*can}
        self.produce_words = produce
        self.consume_words = consume
        self.join_words = join
        self.heard = heard

    def produce(
        self,
        kafka: Kafka,
        topic: str,
        records: Sequence[Sent],
        partition: int = -1,
        settings: Mapping[str, str] = {},
    ) -> None:
        flags = ["-b", kafka.bootstrap, "-t", topic, *properties(PRODUCER | settings)]
        flags += ["-D", "\\x1e", "-K", "\\x1f"]
        if partition >= 0:
            flags += ["-p", str(partition)]
        if any(None in (record.key, record.value) for record in records):
            assert all(b"" not in (record.key, record.value) for record in records)
            flags.append("-Z")
        (headers,) = {tuple(record.headers) for record in records}
        for header, content in headers:
            flags += ["-H", f"{header}={(content or b'').decode()}"]
        lines = [(record.key or b"") + KEY_END + (record.value or b"") for record in records]
        self.run([*self.produce_words, *flags], RECORD_END.join(lines) + RECORD_END)

    def consume(
        self,
        kafka: Kafka,
        topic: str,
        partition: int = 0,
        start: int | str = "beginning",
        count: int | None = None,
        settings: Mapping[str, str] = {},
    ) -> list[Record]:
        flags = ["-b", kafka.bootstrap, "-t", topic, "-p", str(partition), "-o", str(start)]
        flags += properties(CONSUMER | settings)
        flags += ["-e"] if count is None else ["-c", str(count)]
        # Sizes precede their fields, so that fields of any bytes can be separated.
        form = "%p %o %T %K %S %h\\n%k%s\\n"
        return framed(self.run([*self.consume_words, "-q", *flags, "-f", form]))

    def join(
        self,
        kafka: Kafka,
        group: str,
        topics: Sequence[str],
        settings: Mapping[str, str] = {},
    ) -> Member:
        flags = ["-b", kafka.bootstrap, "-G", group, *topics, "-f", "%t %p %o %s\\n"]
        flags += properties(CONSUMER | {"auto.offset.reset": "earliest"} | settings)
        return CommandMember([*self.join_words, *flags], self.heard)

    def transactional(self, kafka: Kafka, id: str, timeout_ms: int) -> Transactions:
        raise NotImplementedError("a command line has no transactions")

    def ask(self, kafka: Kafka, what: str, **arguments: Any) -> Any:
        raise NotImplementedError("a command line has no admin calls in the table")

    def run(self, words: Sequence[str], given: bytes = b"") -> bytes:
        ended = subprocess.run(
            words, input=given, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        if ended.returncode:
            raise Refused(ended.stderr.decode())
        return ended.stdout


def framed(output: bytes) -> list[Record]:
    """Parse records of the format `%p %o %T %K %S %h\\n%k%s\\n`."""
    records = []
    while output:
        line, _, output = output.partition(b"\n")
        partition, offset, timestamp_ms, key_size, size, headers = line.split(b" ", 5)
        key, output = sized(output, int(key_size))
        value, output = sized(output, int(size))
        assert output[:1] == b"\n"
        output = output[1:]
        pairs = [pair.split(b"=", 1) for pair in headers.split(b",") if pair]
        records.append(
            Record(
                int(partition),
                int(offset),
                key,
                value,
                [(name.decode(), content) for name, content in pairs],
                int(timestamp_ms),
            )
        )
    return records


def sized(output: bytes, size: int) -> tuple[bytes | None, bytes]:
    """Split off the next `size` bytes (None for a negative size); return them and the rest."""
    return (None, output) if size < 0 else (output[:size], output[size:])


def properties(settings: Mapping[str, str]) -> list[str]:
    return [word for item in settings.items() for word in ("-X", "=".join(item))]


class CommandMember(Member):
    """A command line that is a member of a group; its events are read from its two outputs."""

    def __init__(
        self, words: Sequence[str], heard: Callable[[str], tuple[str, frozenset[Place]] | None]
    ) -> None:
        self.read: list[Read] = []
        self.assigned: frozenset[Place] = frozenset()
        self.changes: list[tuple[str, frozenset[Place]]] = []
        self.faults: list[str] = []
        self.heard = heard
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.readers = [
            threading.Thread(target=self.take_records, daemon=True),
            threading.Thread(target=self.take_words, daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def take_records(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed within a line
            topic, partition, offset, value = line.rstrip(b"\n").split(b" ", 3)
            self.read.append(Read(topic.decode(), int(partition), int(offset), value))

    def take_words(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            told = self.heard(line.decode())
            if told is None:
                continue
            what, places = told
            self.changes.append(told)
            kept = self.assigned - places
            self.assigned = kept | places if what == "assigned" else kept

    def commit(
        self, offsets: Mapping[Place, tuple[int, str]] | None = None, wait: bool = True
    ) -> None:
        raise NotImplementedError("a command line commits when it wants to")

    def leave(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join()
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        self.assigned = frozenset()


KCAT_TELLS = re.compile(r"rebalanced.*?(assigned|revoked|assignment|revoke)\b.*?: (.*)")
KCAT_PLACE = re.compile(r"(\S+) \[(\d+)\]")
OURS_TELLS = re.compile(r": (assigned|revoked|lost) (.*)")


def kcat_heard(line: str) -> tuple[str, frozenset[Place]] | None:
    """Parse `% Group g rebalanced (memberid m): assigned: t [0]`, or its incremental form."""
    told = KCAT_TELLS.search(line)
    if told is None:
        return None
    places = frozenset((topic, int(at)) for topic, at in KCAT_PLACE.findall(told[2]))
    return ("revoked" if told[1].startswith("revoke") else "assigned"), places


def ours_heard(line: str) -> tuple[str, frozenset[Place]] | None:
    """Parse `group g, member m: assigned t:0-2,5 u:0`."""
    told = OURS_TELLS.search(line)
    if told is None:
        return None
    places = set()
    for topic, _, runs in (word.partition(":") for word in told[2].split()):
        for run in filter(None, runs.split(",")):
            first, _, last = run.partition("-")
            places |= {(topic, at) for at in range(int(first), int(last or first) + 1)}
    return ("assigned" if told[1] == "assigned" else "revoked"), frozenset(places)
