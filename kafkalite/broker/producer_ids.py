"""The producer ids of this node: a block at a time from the controller, one at a time to clients.

An id goes out only once the record of its block is on the disk, so no crash makes the controller
give the same block again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kafkalite.broker.later import Later

if TYPE_CHECKING:
    from kafkalite.broker.machine_host import MachineHost
    from kafkalite.coordination.controller import Controller
    from kafkalite.coordination.producer_ids import Block
    from kafkalite.errors import KafkaError


class ProducerIdBlocks:
    """Gives out ids; asks for the next block when one is used up."""

    def __init__(self, controller: MachineHost[Controller], node_id: int) -> None:
        self._controller = controller
        self._node_id = node_id
        self._next_id = 0
        self._end_id = 0
        self._waiting: deque[Later[int]] = deque()

    def take(self) -> Later[int]:
        """An id that nobody ever had."""
        later: Later[int] = Later()
        self._waiting.append(later)
        if self._next_id < self._end_id:
            self._serve()
        elif len(self._waiting) == 1:
            self._refill()
        return later

    def _refill(self) -> None:
        self._controller.ask(
            lambda controller: controller.allocate_producer_ids(self._node_id)
        ).then(self._refilled)

    def _refilled(self, block: Block | None, fault: KafkaError | None) -> None:
        if block is None:
            assert fault is not None
            waiting, self._waiting = self._waiting, deque()
            for later in waiting:
                later.fail(fault)
            return
        self._next_id, self._end_id = block.first_id, block.end_id
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._next_id < self._end_id:
            self._next_id += 1
            self._waiting.popleft().resolve(self._next_id - 1)
        if self._waiting:
            self._refill()
