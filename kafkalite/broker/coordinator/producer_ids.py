"""Producer ids of this node: allocated in blocks by the controller, one by one to clients.

An id is returned only once the record of its block is on the disk, so that no crash makes the
controller allocate the same block again.  The next block is requested while half of one is left, so
that a node has ids while the controller is down.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from kafkalite.broker.future import Future
from kafkalite.coordination.producer_ids import BLOCK_COUNT

if TYPE_CHECKING:
    from kafkalite.coordination.producer_ids import ProducerIdBlock
    from kafkalite.errors import KafkaError

LOW_COUNT = BLOCK_COUNT // 2
"""The next block is requested when at most this many ids are left."""


class ProducerIdAllocator(Protocol):
    """The controller as the source of blocks of producer ids."""

    def allocate_producer_ids(self, node_id: int) -> Future[ProducerIdBlock]:
        """Return the next block of producer ids for this node."""


class ProducerIdBlocks:
    """Allocates ids, and requests the next block before one is used up."""

    def __init__(self, controller: ProducerIdAllocator, node_id: int) -> None:
        self._controller = controller
        self._node_id = node_id
        self._blocks: deque[range] = deque()
        self._is_requesting = False
        self._waiting: deque[Future[int]] = deque()

    def allocate(self) -> Future[int]:
        """Return an id that no producer has had."""
        future: Future[int] = Future()
        self._waiting.append(future)
        self._serve()
        return future

    def refill(self) -> None:
        """Request a block, unless enough ids are left or a request is pending."""
        if not self._is_requesting and sum(map(len, self._blocks)) <= LOW_COUNT:
            self._is_requesting = True
            self._controller.allocate_producer_ids(self._node_id).then(self._add_block)

    def _add_block(self, block: ProducerIdBlock | None, error: KafkaError | None) -> None:
        self._is_requesting = False
        if block is not None:
            self._blocks.append(range(block.first_id, block.end_id))
            self._serve()
            return
        assert error is not None
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            future.fail(error)

    def _serve(self) -> None:
        while self._waiting and self._blocks:
            block = self._blocks[0]
            if len(block) == 1:
                self._blocks.popleft()
            else:
                self._blocks[0] = block[1:]
            self._waiting.popleft().resolve(block[0])
        self.refill()
