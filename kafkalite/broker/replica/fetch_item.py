"""FetchItem: one partition of a Fetch request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafkalite.broker.replica.isr import FollowerFetch
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.errors import KafkaError


class FetchItem(NamedTuple):
    """One partition of a fetch: the partition or the lookup error, and the offset to read from."""

    topic: str | bytes
    partition_index: int
    partition: Partition | None
    error: KafkaError | None
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    size_max: int
    follower: FollowerFetch | None
    """The state of the follower that fetches; None for a consumer."""
