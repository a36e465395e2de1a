"""LocalController: the controller on the node that hosts it.

A decision holds once it is durable, and takes effect once the nodes it concerns have applied it:
`carry_out` completes then.  With a single process both are the same moment.
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
    """Hosts the controller's state machine and its journal."""

    journal: MetadataLog
    applied_everywhere: Callable[[int], Later[None]] | None = None
    """Set by Membership: completes when all workers have applied the log up to an offset."""

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
        """The cluster metadata, with all decisions so far."""
        return self.machine.image

    def load(self) -> None:
        """Restore the machine from its log; raise Refusal if it cannot be read."""
        self.journal.load(self.machine)

    def ask_at_start(self, decide: Callable[[Controller], Result[T]]) -> T:
        """Make a durable decision before serving; raise Refusal if that fails."""
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
        """Make a decision; complete when every running node has applied it.

        The wait for a slow node is bounded (Membership): the decision holds, and that node applies
        it later.
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
        """Decide on the next leader epochs of these partitions."""
        self.ask(lambda controller: controller.renew_epochs(node_id, wanted))

    def allocate_producer_ids(self, node_id: int) -> Later[Block]:
        """Return the next block of producer ids."""
        return self.ask(lambda controller: controller.allocate_producer_ids(node_id))
