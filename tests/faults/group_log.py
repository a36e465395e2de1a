"""Checker of a group's log: its generations and offsets must be those of a correct coordinator.

`__consumer_offsets` has in one order what the coordinator accepted: each generation with its
assignments, and each commit with its metadata.  It is compared with the members' own events.

    I11  at any time a partition has one owner; generations and epochs only grow; a partition is
         committed by its owner, or has none; committed offsets never decrease; a commit that
         succeeded at the member is in the log, and one that failed is not

The owners in a group of the classic protocol are those of its generation.  In one of the consumer
protocol each member's record has what it owns, with what it has yet to revoke.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka.protocol.consumer import ConsumerProtocolAssignment


class Generation(NamedTuple):
    """A generation and its assignments, by the members' client ids."""

    number: int
    owners: tuple[tuple[str, tuple[int, ...]], ...]


class GroupEpoch(NamedTuple):
    """An epoch of a group of the consumer protocol."""

    number: int


class CurrentAssignment(NamedTuple):
    """Partitions that a member of the consumer protocol owns; none once it is removed."""

    member_id: str
    name: str
    """Its client id."""
    partitions: tuple[int, ...] = ()


class GroupEnded(NamedTuple):
    """The group was deleted, or is about to continue with the other protocol."""


class Committed(NamedTuple):
    """A commit in the log."""

    partition: int
    offset: int
    word: str


LogEntry = Generation | GroupEpoch | CurrentAssignment | GroupEnded | Committed


class CommitResult(NamedTuple):
    """The result of a commit at the member."""

    partition: int
    offset: int
    word: str
    code: int


@dataclass
class GroupHistory:
    """One group: its log, in order, and the results at its members.

    `interrupted`: its coordinator was killed meanwhile, so a client that retried a commit may have
    got an error for one that was accepted.
    """

    interrupted: bool = False
    log: list[LogEntry] = field(default_factory=list)
    results: list[CommitResult] = field(default_factory=list)

    @property
    def generations(self) -> int:
        """The number of generations and epochs, with and without members."""
        return len({each.number for each in self.log if isinstance(each, Generation | GroupEpoch)})


def violations(history: GroupHistory) -> Iterator[str]:
    """Yield every way in which the history violates I11."""
    yield from doubly_owned(history)
    yield from stale(history)
    yield from gone_back(history)
    yield from untrue(history)


class Owners:
    """The owners of partitions, by client id, as the log's entries change them."""

    def __init__(self) -> None:
        self.number = -1
        """The last generation or epoch."""
        self.by_member: dict[str, tuple[str, tuple[int, ...]]] = {}
        """Client id and partitions, by member id; in a generation by client id."""

    def apply(self, entry: LogEntry) -> None:
        if isinstance(entry, GroupEnded):
            self.number = -1
            self.by_member = {}
        elif isinstance(entry, GroupEpoch):
            self.number = entry.number
        elif isinstance(entry, Generation):
            self.number = entry.number
            self.by_member = {name: (name, partitions) for name, partitions in entry.owners}
        elif isinstance(entry, CurrentAssignment):
            self.by_member[entry.member_id] = entry.name, entry.partitions

    def owner(self, partition: int) -> str | None:
        """Return an owner of the partition, or None."""
        for name, partitions in self.by_member.values():
            if partition in partitions:
                return name
        return None

    def doubly_owned(self) -> Iterator[tuple[int, str, str]]:
        """Yield the partitions that have two owners, with both."""
        owned: dict[int, str] = {}
        for name, partitions in self.by_member.values():
            for partition in partitions:
                if partition in owned:
                    yield partition, owned[partition], name
                owned[partition] = name


def doubly_owned(history: GroupHistory) -> Iterator[str]:
    owners = Owners()
    for each in history.log:
        before = owners.number
        owners.apply(each)
        if owners.number < before and not isinstance(each, GroupEnded):
            yield f"I11: generation {owners.number} comes after {before}"
        if isinstance(each, Generation | CurrentAssignment):
            for partition, one, other in owners.doubly_owned():
                yield (
                    f"I11: in generation {owners.number} partition {partition} is"
                    f" {one}'s and {other}'s"
                )


def stale(history: GroupHistory) -> Iterator[str]:
    owners = Owners()
    for each in history.log:
        owners.apply(each)
        if isinstance(each, Committed):
            committer = each.word.partition("/")[0]
            owner = owners.owner(each.partition)
            if owner not in (None, committer):
                yield (
                    f"I11: {each} was accepted in generation {owners.number}, where it is {owner}'s"
                )


def gone_back(history: GroupHistory) -> Iterator[str]:
    last: dict[int, Committed] = {}
    for each in history.log:
        if isinstance(each, Committed):
            before = last.get(each.partition)
            if before is not None and each.offset < before.offset:
                yield f"I11: {each} goes back behind {before}"
            last[each.partition] = each


def untrue(history: GroupHistory) -> Iterator[str]:
    held = {each.word: each for each in history.log if isinstance(each, Committed)}
    for result in history.results:
        found = held.get(result.word)
        if result.code == 0 and found is None:
            yield f"I1: {result} was acknowledged, and is not in the log"
        # A broken connection leaves the outcome unknown; an error response does not.
        if result.code > 0 and not history.interrupted and found is not None:
            yield f"I5: {result} was refused, and is in the log as {found}"
        if found is not None and (found.partition, found.offset) != (
            result.partition,
            result.offset,
        ):
            yield f"I3: {result} is in the log as {found}"


def assigned(assignment: bytes, topic: str) -> tuple[int, ...]:
    """Return the partitions of a topic in a member's assignment, decoded by kafka-python."""
    if not assignment:
        return ()
    read = ConsumerProtocolAssignment.decode(assignment)
    return tuple(
        part for each in read.assigned_partitions if each.topic == topic
        for part in each.partitions
    )  # fmt: skip
