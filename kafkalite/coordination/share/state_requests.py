"""Requests about the stored state of one share partition, and their outcome.

Each corresponds to an API of Kafka's share coordinator (keys 83-87).  Leaders of partitions send
reads and changes, the group coordinator the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas.share_records import SharePartitionKey, ShareSnapshot, StateBatch


class StateInitialization(NamedTuple):
    """The initialization of a state, without records in flight (InitializeShareGroupState)."""

    key: SharePartitionKey
    state_epoch: int
    start_offset: int


class StateRead(NamedTuple):
    """A read of a state, which fences earlier leaders (ReadShareGroupState)."""

    key: SharePartitionKey
    leader_epoch: int


class StateChange(NamedTuple):
    """A change of a state (WriteShareGroupState)."""

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class StateDeletion(NamedTuple):
    """The deletion of a state, which need not exist (DeleteShareGroupState)."""

    key: SharePartitionKey


class StateSummary(NamedTuple):
    """A read of a state that may not exist, and that fences no leader
    (ReadShareGroupStateSummary)."""

    key: SharePartitionKey


StateRequest: TypeAlias = (
    StateInitialization | StateRead | StateChange | StateDeletion | StateSummary
)
Outcome: TypeAlias = KafkaError | ShareSnapshot | None
"""An error, or the state after the request; None: there is no state."""
