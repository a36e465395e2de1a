"""The producer ids of this node: a block at a time from the controller, one at a time to clients.

An id goes out only once the record of its block is on the disk, so no crash makes the controller
give the same block again.  The next block is asked for while there is still half of one, so that a
node has ids to give while the controller is away.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kafkalite.broker.later import Later
from kafkalite.coordination.producer_ids import BLOCK_COUNT

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.controller.remote_controller import RemoteController
    from kafkalite.coordination.producer_ids import Block
    from kafkalite.errors import KafkaError

LOW_COUNT = BLOCK_COUNT // 2
"""With so few ids left it is time to ask for more."""


class ProducerIdBlocks:
    """Gives out ids; asks for the next block before one is used up."""

    def __init__(self, controller: LocalController | RemoteController, node_id: int) -> None:
        self._controller = controller
        self._node_id = node_id
        self._blocks: deque[range] = deque()
        self._asking = False
        self._waiting: deque[Later[int]] = deque()

    def take(self) -> Later[int]:
        """An id that nobody ever had."""
        later: Later[int] = Later()
        self._waiting.append(later)
        self._serve()
        return later

    def refill(self) -> None:
        """Ask for a block unless there are enough ids, or one has been asked for."""
        if not self._asking and sum(map(len, self._blocks)) <= LOW_COUNT:
            self._asking = True
            self._controller.allocate_producer_ids(self._node_id).then(self._refilled)

    def _refilled(self, block: Block | None, fault: KafkaError | None) -> None:
        self._asking = False
        if block is not None:
            self._blocks.append(range(block.first_id, block.end_id))
            self._serve()
            return
        assert fault is not None
        waiting, self._waiting = self._waiting, deque()
        for later in waiting:
            later.fail(fault)

    def _serve(self) -> None:
        while self._waiting and self._blocks:
            block = self._blocks[0]
            if len(block) == 1:
                self._blocks.popleft()
            else:
                self._blocks[0] = block[1:]
            self._waiting.popleft().resolve(block[0])
        self.refill()
