"""Checker of a group's log: its generations and offsets must be those of a correct coordinator.

`__consumer_offsets` has in one order what the coordinator accepted: each generation with its
assignments, and each commit with its metadata.  It is compared with the members' own events.

    I11  in a generation a partition has one owner; generations only grow; a partition is committed
         by its owner, or has none; committed offsets never decrease; a commit that succeeded at
         the member is in the log, and one that failed is not
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


class Committed(NamedTuple):
    """A commit in the log."""

    partition: int
    offset: int
    word: str


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
    log: list[Generation | Committed] = field(default_factory=list)
    results: list[CommitResult] = field(default_factory=list)

    @property
    def generations(self) -> int:
        """The number of generations, with and without members."""
        return len({each.number for each in self.log if isinstance(each, Generation)})


def violations(history: GroupHistory) -> Iterator[str]:
    """Yield every way in which the history violates I11."""
    yield from doubly_owned(history)
    yield from stale(history)
    yield from gone_back(history)
    yield from untrue(history)


def doubly_owned(history: GroupHistory) -> Iterator[str]:
    number = -1
    for each in history.log:
        if not isinstance(each, Generation):
            continue
        if each.number < number:
            yield f"I11: generation {each.number} comes after {number}"
        number = each.number
        owned: dict[int, str] = {}
        for name, partitions in each.owners:
            for partition in partitions:
                if partition in owned:
                    yield (
                        f"I11: in generation {each.number} partition {partition} is"
                        f" {owned[partition]}'s and {name}'s"
                    )
                owned[partition] = name


def stale(history: GroupHistory) -> Iterator[str]:
    owners: dict[int, str] = {}
    number = -1
    for each in history.log:
        if isinstance(each, Generation):
            owners = {part: name for name, parts in each.owners for part in parts}
            number = each.number
            continue
        committer = each.word.partition("/")[0]
        owner = owners.get(each.partition, committer)
        if committer != owner:
            yield f"I11: {each} was accepted in generation {number}, where it is {owner}'s"


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
