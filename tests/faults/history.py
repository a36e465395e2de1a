"""History of the clients of a run, and the checker of the broker's guarantees in it.

A History is written by the clients while processes are killed and stopped; `violations` checks it
afterwards.  The invariants are those of every log that loses nothing:

    I1  no acknowledged record is lost: it is at its offset in the final read
    I2  an idempotent producer's record is in the log at most once
    I3  an offset has one value, for every reader, at every time, and in every acknowledgement
    I4  a producer's records are in a partition in the order of their sending; and of an
        idempotent producer's none is missing before one that is there
    I5  no record is in the log that was not sent, or whose sending failed for good
    I6  a reader that continues skips no offset and sees none twice
    I7  a record sent after an acknowledgement has a higher offset than the acknowledged one
    I9  a partition's leader epoch never decreases, and one leader accepts records in an epoch
    C   no client got an error

The final read starts at the beginning, is done by a new reader after all faults, and ends at the
end of the log.  A send whose outcome is unknown may be in the log or not.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

ACKED, REFUSED, UNKNOWN = "acked", "refused", "unknown"
NO_NODE = -1
NO_OFFSET = -1
"""The offset of an acknowledgement that has none.  librdkafka takes the success of a later batch
for that of an earlier one whose response was lost: the broker has checked the sequences."""


@dataclass(slots=True)
class Send:
    """One record sent by a producer; each producer's are in the order of sending.

    The prober knows more than other clients: the times of request and response, and the node.
    """

    producer: str
    partition: int
    value: str
    outcome: str = UNKNOWN
    offset: int = NO_OFFSET
    node: int = NO_NODE
    sent_at: float = 0.0
    answered_at: float = 0.0


class Read(NamedTuple):
    """One record returned to a reader, and the epoch of the leader that appended it."""

    partition: int
    offset: int
    value: str
    leader_epoch: int = -1


class LeaderObservation(NamedTuple):
    """The leader of a partition in one node's Metadata, with the times of the request."""

    by: int
    partition: int
    leader: int
    leader_epoch: int
    asked_at: float = 0.0
    answered_at: float = 0.0


@dataclass
class History:
    """All sends, reads and Metadata responses of a run; `reads` are by reader, in their order.

    `unordered` are plain producers with several requests in flight: a resent record may be after
    records sent later.  `lookups` are reads of single offsets, just acknowledged; one that found
    nothing has an empty value.  `errors` are the texts of the clients' errors.
    """

    idempotent: frozenset[str] = frozenset()
    unordered: frozenset[str] = frozenset()
    sends: list[Send] = field(default_factory=list)
    reads: dict[str, list[Read]] = field(default_factory=lambda: defaultdict(list))
    lookups: list[Read] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)
    observations: list[LeaderObservation] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def acked(self) -> int:
        """The number of acknowledged sends."""
        return sum(send.outcome == ACKED for send in self.sends)

    def write(self, path: Path) -> None:
        """Write one JSON object per line, for the analysis of a violation."""
        with path.open("w") as file:
            for send in self.sends:
                print(json.dumps({"send": asdict(send)}), file=file)
            readers = {**self.reads, "looks": self.lookups, "final": self.final}
            for reader, reads in readers.items():
                for read in reads:
                    print(json.dumps({"read": read._asdict(), "reader": reader}), file=file)
            for observation in self.observations:
                print(json.dumps({"told": observation._asdict()}), file=file)
            for error in self.errors:
                print(json.dumps({"error": error}), file=file)


def violations(history: History) -> list[str]:
    """Return all violations of the invariants in the history."""
    checks = (
        lost, repeated, changed, disordered, invented, skipped, overtaken, gone_back, led_by_two,
        troubled,
    )  # fmt: skip
    return [complaint for check in checks for complaint in check(history)]


def lost(history: History) -> Iterator[str]:
    final = {(read.partition, read.offset): read.value for read in history.final}
    there = {(read.partition, read.value) for read in history.final}
    for send in history.sends:
        if send.outcome == ACKED and send.offset == NO_OFFSET:
            if (send.partition, send.value) not in there:
                yield f"I1: {send} was acknowledged, and is not in the log"
        elif send.outcome == ACKED and final.get((send.partition, send.offset)) != send.value:
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
    places = (history.final, history.lookups, *history.reads.values())
    seen = [read for reads in places for read in reads]
    seen += [
        Read(send.partition, send.offset, send.value)
        for send in history.sends
        if send.outcome == ACKED and send.offset != NO_OFFSET
    ]
    for read in seen:
        first = values.setdefault((read.partition, read.offset), read.value)
        if first != read.value:
            where = f"partition {read.partition} offset {read.offset}"
            yield f"I3: {where} is {first!r} and {read.value!r}"


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
        if there != sorted(there) and producer not in history.unordered:
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


def overtaken(history: History) -> Iterator[str]:
    """Yield records with a lower offset than one that was acknowledged before they were sent."""
    by_partition: dict[int, list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.outcome == ACKED and send.answered_at:
            by_partition[send.partition].append(send)
    for sends in by_partition.values():
        answered = sorted(sends, key=lambda send: send.answered_at)
        last, seen = None, 0
        for send in sorted(sends, key=lambda send: send.sent_at):
            while answered[seen].answered_at < send.sent_at:
                if last is None or answered[seen].offset > last.offset:
                    last = answered[seen]
                seen += 1
            if last is not None and send.offset < last.offset:
                yield f"I7: {send} was sent after {last} was acknowledged, and stands before it"


def gone_back(history: History) -> Iterator[str]:
    latest: dict[tuple[int, int], int] = {}
    # With concurrent requests, only one sent after another's response must see its epoch.
    answers = iter(sorted(history.observations, key=lambda observation: observation.answered_at))
    earlier = next(answers, None)
    for observation in sorted(history.observations, key=lambda observation: observation.asked_at):
        while (
            earlier is not None
            and earlier is not observation
            and earlier.answered_at <= observation.asked_at
        ):
            place = (earlier.by, earlier.partition)
            latest[place] = max(latest.get(place, -1), earlier.leader_epoch)
            earlier = next(answers, None)
        before = latest.get((observation.by, observation.partition), -1)
        if observation.leader_epoch < before:
            yield f"I9: {observation}, and it had spoken of epoch {before}"
    placed: dict[int, int] = {}
    for read in history.final:
        if read.leader_epoch < placed.get(read.partition, -1):
            yield f"I9: {read} stands behind records of epoch {placed[read.partition]}"
        placed[read.partition] = read.leader_epoch


def led_by_two(history: History) -> Iterator[str]:
    """Yield epochs with two leaders, by Metadata or by the acknowledgements of records."""
    leaders: dict[tuple[int, int], int] = {}
    epochs = {(read.partition, read.offset): read.leader_epoch for read in history.final}
    found = [
        (observation.partition, observation.leader_epoch, observation.leader)
        for observation in history.observations
        if observation.leader != NO_NODE
    ]
    for send in history.sends:
        epoch = epochs.get((send.partition, send.offset), -1)
        if send.outcome == ACKED and send.node != NO_NODE and epoch >= 0:
            found.append((send.partition, epoch, send.node))
    for partition, epoch, leader in dict.fromkeys(found):
        first = leaders.setdefault((partition, epoch), leader)
        if leader != first:
            yield f"I9: partition {partition} is led by {first} and by {leader} in epoch {epoch}"


def troubled(history: History) -> Iterator[str]:
    for error in history.errors:
        yield f"C: {error}"
