"""What clients did and saw, and whether a log that keeps its promises could have shown it.

A History is written by the clients while the broker is killed and started again; `violations`
reads it afterwards.  The invariants are those of every log that loses nothing:

    I1  no acknowledged record is lost: it is found at its offset in the final reading
    I2  an idempotent producer's record is in the log once at most
    I3  an offset has one value, for every reader, at every time, and in every acknowledgement
    I4  a producer's records stand in a partition in the order of their sending; and of an
        idempotent producer's none is left out before one that is there
    I5  nothing is in the log that nobody sent, or whose sending was refused for good
    I6  a reader that goes on reading skips no offset and sees none twice

The final reading starts at the beginning, is made by a fresh reader after all is quiet, and ends
at the end of the log.  A send whose outcome is unknown may be in the log or not.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ACKED, REFUSED, UNKNOWN = "acked", "refused", "unknown"


@dataclass
class Send:
    """One record handed to a producer; each producer's are in the order of sending."""

    producer: str
    partition: int
    value: str
    outcome: str = UNKNOWN
    offset: int = -1


@dataclass(frozen=True)
class Read:
    """One record a reader was given."""

    partition: int
    offset: int
    value: str


@dataclass
class History:
    """The whole of it.  `reads` are by reader, in the order it was given them."""

    idempotent: frozenset[str] = frozenset()
    sends: list[Send] = field(default_factory=list)
    reads: dict[str, list[Read]] = field(default_factory=lambda: defaultdict(list))
    final: list[Read] = field(default_factory=list)

    @property
    def acked(self) -> int:
        """How many sends were acknowledged."""
        return sum(send.outcome == ACKED for send in self.sends)

    def write(self, path: Path) -> None:
        """One JSON object a line, for whoever must find out what happened."""
        with path.open("w") as file:
            for send in self.sends:
                print(json.dumps({"send": asdict(send)}), file=file)
            for reader, reads in {**self.reads, "final": self.final}.items():
                for read in reads:
                    print(json.dumps({"read": asdict(read), "reader": reader}), file=file)


def violations(history: History) -> list[str]:
    """Every way in which the history breaks the invariants; none when it keeps them."""
    checks = (lost, repeated, changed, disordered, invented, skipped)
    return [complaint for check in checks for complaint in check(history)]


def lost(history: History) -> Iterator[str]:
    final = {(read.partition, read.offset): read.value for read in history.final}
    for send in history.sends:
        if send.outcome == ACKED and final.get((send.partition, send.offset)) != send.value:
            found = final.get((send.partition, send.offset))
            yield f"I1: {send} was acknowledged, and the log has {found!r} there"


def repeated(history: History) -> Iterator[str]:
    times = Counter((read.partition, read.value) for read in history.final)
    for send in history.sends:
        count = times[send.partition, send.value]
        if send.producer in history.idempotent and count > 1:
            yield f"I2: {send} is in the log {count} times"


def changed(history: History) -> Iterator[str]:
    values: dict[tuple[int, int], str] = {}
    seen = [read for reads in (history.final, *history.reads.values()) for read in reads]
    seen += [Read(s.partition, s.offset, s.value) for s in history.sends if s.outcome == ACKED]
    for read in seen:
        first = values.setdefault((read.partition, read.offset), read.value)
        if first != read.value:
            yield f"I3: partition {read.partition} offset {read.offset} is {first} and {read.value}"


def disordered(history: History) -> Iterator[str]:
    places: dict[tuple[int, str], int] = {}
    for read in history.final:
        places.setdefault((read.partition, read.value), read.offset)
    by_producer: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.outcome != REFUSED:
            by_producer[send.producer, send.partition].append(send)
    for (producer, partition), sends in by_producer.items():
        found = [places.get((partition, send.value)) for send in sends]
        there = [place for place in found if place is not None]
        if there != sorted(there):
            yield f"I4: {producer} in partition {partition} is not in the order of sending"
        if producer in history.idempotent and None in found[: len(there)]:
            yield f"I4: {producer} in partition {partition} has a gap before a record that is there"


def invented(history: History) -> Iterator[str]:
    possible = {(s.partition, s.value) for s in history.sends if s.outcome != REFUSED}
    for reads in (history.final, *history.reads.values()):
        for read in reads:
            if (read.partition, read.value) not in possible:
                yield f"I5: {read} was sent by nobody, or refused"


def skipped(history: History) -> Iterator[str]:
    for reader, reads in {**history.reads, "the final reader": history.final}.items():
        position: dict[int, int] = {}
        for read in reads:
            expected = position.get(read.partition, 0)
            if read.offset != expected:
                yield f"I6: {reader} was given {read} where offset {expected} was next"
            position[read.partition] = read.offset + 1
