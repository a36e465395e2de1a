"""The shape of every state machine here: decide, then record, then replay.

    decide   a method of the machine: looks at the state, changes nothing, gives a Result
    record   the host appends the Result's records to the machine's log as one batch
    replay   the only place where state changes; the same after a restart as the first time

Whatever a decision needs from outside (time, fresh ids, settings) comes in as an argument.  A
request that cannot be granted raises a KafkaError and leaves no records.

What a record is, each machine says: the controller's are our own (schemas/internal.py), the group
coordinator's are Kafka's (schemas/group_records.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Result(NamedTuple, Generic[T]):
    """What a machine decided: the answer, and the records that make it true."""

    response: T
    records: Sequence[Any] = ()


class Machine(Protocol):
    """What a host needs of a machine, besides its decisions."""

    def replay(self, record: Any) -> None:
        """Take one record into the state."""

    def records(self) -> Iterator[Any]:
        """The fewest records that, replayed by an empty machine, make this state again."""
