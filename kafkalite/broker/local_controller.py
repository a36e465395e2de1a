"""LocalController: the controller at the node that hosts it.

What it decides is true once it is durable, and useful once the nodes it concerns have made it so:
`carry_out` answers then.  With one process that is the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kafkalite.broker.later import Later
from kafkalite.broker.machine_host import MachineHost
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.machine import Result
from kafkalite.coordination.producer_ids import Block
from kafkalite.errors import KafkaError

T = TypeVar("T")


class LocalController(MachineHost[Controller]):
    """The machine of this cluster, hosted here."""

    applied_everywhere: Callable[[int], Later[None]] | None = None
    """Given by whoever knows the other nodes: answers when they have made it so up to an offset."""

    @property
    def image(self) -> ClusterImage:
        """The cluster as decided so far."""
        return self.machine.image

    def carry_out(self, decide: Callable[[Controller], Result[T]]) -> Later[T]:
        """Let the controller decide; the answer comes when every node that is there has made it so.

        A node that takes long is not waited for without bound (Membership): what was decided
        stands, and it will come to it.
        """
        before = self.log.end_offset
        decided = self.ask(decide)
        if self.applied_everywhere is None or self.log.end_offset == before:
            return decided
        applied = self.applied_everywhere(self.log.end_offset)
        answer: Later[T] = Later()

        def pass_on(value: T | None, fault: KafkaError | None) -> None:
            if fault is not None:
                answer.fail(fault)
            else:
                applied.then(lambda *_: answer.resolve(value))  # type: ignore[arg-type]

        decided.then(pass_on)
        return answer

    def allocate_producer_ids(self, node_id: int) -> Later[Block]:
        """The next block of producer ids."""
        return self.ask(lambda controller: controller.allocate_producer_ids(node_id))
