"""DelayedOperation: a request that waits for its partitions to change.

It is registered with each of its partitions, in `waiting`; the purgatory checks it when one of them
changes, and completes it.  The kinds are DelayedProduce, DelayedFetch, DelayedRead and
DelayedDeleteRecords.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

from kafkalite.broker.future import Future
from kafkalite.broker.scheduler import ScheduledCall


class WatchedPartition(Protocol):
    """A partition as a delayed operation is registered with it."""

    waiting: dict[DelayedOperation, int | None]
    """The operations that wait for a change of the partition; for a fetch, its position there."""


class DelayedOperation:
    """A request that cannot be completed yet."""

    partitions: Collection[WatchedPartition] = ()

    is_urgent = False
    """True if the response is cheap and is sent as soon as the request is due."""

    takes_steps = False
    """True if its response takes several steps; otherwise `build_response()` returns it."""

    future: Future[Any] | None = None
    """The Future of its response, once it is held."""

    response: Any = None
    timer: ScheduledCall | None = None
    is_expired = False
    is_queued = False
    """True while its steps are queued or running."""

    is_removed = False

    def resolve(self, response: Any) -> None:
        """Store the response, and resolve the Future if there is one."""
        self.response = response
        if self.future is not None:
            self.future.resolve(response)

    def attach(self) -> None:
        """Register with its partitions, so that their changes are checked."""
        for partition in self.partitions:
            partition.waiting[self] = None

    def detach(self) -> None:
        """Unregister from its partitions."""
        for partition in self.partitions:
            partition.waiting.pop(self, None)

    def check(self, partition: WatchedPartition) -> bool:
        """Check one partition that changed; return whether the request is due."""
        raise AssertionError("a subclass defines this")

    def build_response(self) -> Any:
        """Return the response of a request that is due or timed out."""
        raise AssertionError("a subclass defines this")

    def finish(self) -> Iterator[int]:
        """Resolve the response, step by step; yield the cost of each step but the last."""
        self.detach()
        self.resolve(self.build_response())
        yield from ()


class SteppedOperation(DelayedOperation):
    """A delayed request that takes steps before it waits."""

    def begin(self) -> Iterator[int]:
        """Run until the request is complete or waits; yield the cost of each step but the last."""
        raise AssertionError("a subclass defines this")
