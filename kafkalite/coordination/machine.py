"""StateMachine: the interface of the state machines, which decide, record and replay.

    decide   a method of the machine: reads the state, changes nothing, returns a
             DecisionResult
    record   the host appends the result's records to the machine's log as one batch
    replay   the only place where state changes; the same after a restart as the first time

Whatever a decision needs from outside (time, new ids, settings) is passed in as an argument.  A
request that cannot be granted raises a KafkaError and writes no records.

Each machine has its own records: the controller's are kafkalite's (schemas/internal.py), the group
coordinator's are Kafka's (schemas/group_records.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class DecisionResult(NamedTuple, Generic[T]):
    """The outcome of a decision: the response, and the records that it depends on."""

    response: T
    records: Sequence[Any] = ()


class Reply(NamedTuple):
    """The response to a coordinator's request with this token."""

    token: Any
    response: dict[str, Any]


class TransactionalRecord(NamedTuple):
    """A record that is written in a producer's transaction, which may still be aborted.

    All records of a decision belong to the same transaction, or none does.
    """

    record: Any
    producer_id: int
    producer_epoch: int
    guard: Any = None
    """Shows the log that the transaction coordinator knew the partition
    (storage/state/verification.py); not stored."""


class TransactionEnd(NamedTuple):
    """The end of a producer's transaction in the machine's log: its marker."""

    producer_id: int
    is_commit: bool


class StateMachine(Protocol):
    """The methods of a machine that a host needs, besides its decisions."""

    def replay(self, record: Any) -> None:
        """Apply one record to the state.

        A machine whose records can be part of transactions gets TransactionalRecord and
        TransactionEnd as well.
        """


class SnapshotMachine(StateMachine, Protocol):
    """A machine with snapshots of its state."""

    def records(self) -> Iterator[Any]:
        """Yield the fewest records that reproduce this state in an empty machine."""
