"""LocalController: the controller at the node that hosts it.

What it decides is true once it is durable, and useful once the nodes it concerns have made it so:
`carry_out` answers then.  With one process that is the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kafkalite.broker.controller.metadata_log import MetadataLog
from kafkalite.broker.coordinator.coordinator_host import MachineHost
from kafkalite.broker.later import Later
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.machine import Result
from kafkalite.coordination.producer_ids import Block
from kafkalite.errors import KafkaError, Refusal

if TYPE_CHECKING:
    from kafkalite.clock import Clock
    from kafkalite.coordination.leader_epochs import EpochRenewal
    from kafkalite.storage.flusher import Flusher
    from kafkalite.storage.log import Log

T = TypeVar("T")


class LocalController(MachineHost[Controller]):
    """The machine of this cluster, hosted here."""

    journal: MetadataLog
    applied_everywhere: Callable[[int], Later[None]] | None = None
    """Given by whoever knows the other nodes: answers when they have made it so up to an offset."""

    def __init__(
        self,
        machine: Controller,
        log: Log,
        flusher: Flusher,
        clock: Clock,
        call_later: Callable[[int, Callable[[], object]], object],
    ) -> None:
        super().__init__(machine, MetadataLog(log, flusher, clock, call_later))

    @property
    def log(self) -> Log:
        """The metadata log."""
        return self.journal.log

    @property
    def image(self) -> ClusterImage:
        """The cluster as decided so far."""
        return self.machine.image

    def load(self) -> None:
        """Make the machine what its log says; Refusal when that cannot be read."""
        self.journal.load(self.machine)

    def ask_at_start(self, decide: Callable[[Controller], Result[T]]) -> T:
        """Ask before anything is served: the answer at once, durable; Refusal says why not."""
        try:
            result = decide(self.machine)
            if result.records:
                self.write(result.records)
        except KafkaError as fault:
            raise Refusal(
                f"the node cannot enter the metadata log in {self.log.directory}:"
                f" {str(fault).rstrip('.')}"
            ) from None
        self.journal.flush_now()
        return result.response

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

    def renew_epochs(self, node_id: int, wanted: Sequence[EpochRenewal]) -> None:
        """Have these partitions get their next leader epochs."""
        self.ask(lambda controller: controller.renew_epochs(node_id, wanted))

    def allocate_producer_ids(self, node_id: int) -> Later[Block]:
        """The next block of producer ids."""
        return self.ask(lambda controller: controller.allocate_producer_ids(node_id))
