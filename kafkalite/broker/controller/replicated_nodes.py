"""ReplicatedNodes: handles the messages of workers about their replicas, at the controller.

    RegisterNode      ─▶ NodeLifecycle; the image has the registration
    ReplicasFailed    ─▶ NodeLifecycle; the image has other leaders
    AlterPartitions   ─▶ PartitionsAltered, once the decision is durable and its Delta was sent
    ShutDownNode      ─▶ NodeShutDown, once other nodes lead (controlled_shutdowns.py)

A worker has one AlterPartitions in flight, and sends it again after its connection was lost.  It is
decided once: a copy gets the response to the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkalite.broker.controller.controlled_shutdowns import ControlledShutdowns
from kafkalite.broker.controller.node_lifecycle import NodeLifecycle
from kafkalite.broker.controller.replication_messages import (
    partitions_altered,
    read_proposals,
    read_registration,
)
from kafkalite.broker.error_responses import outcome_fields
from kafkalite.coordination.replication.alter_partition import alter_partitions
from kafkalite.errors import InvalidRequest, KafkaError
from kafkalite.protocol.schemas import bus

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.scheduler import Scheduler
    from kafkalite.coordination.replication.alter_partition import IsrDecision
    from kafkalite.coordination.replication.partition_change import RulesOf
    from kafkalite.protocol.record_kinds import RecordKind
    from kafkalite.protocol.schemas.bus import TypedRecord
    from kafkalite.transport.bus import Peer


@dataclass(slots=True)
class LastRequest:
    """The last AlterPartitions of a process, and its response once it is decided."""

    request_id: int
    response: TypedRecord | None = None


class ReplicatedNodes:
    """The controller's side of these messages; see the module."""

    def __init__(
        self, controller: LocalController, rules_of: RulesOf, timers: Scheduler
    ) -> None:
        self._controller = controller
        self._rules_of = rules_of
        self._lifecycle = NodeLifecycle(controller, rules_of)
        self.shutdowns = ControlledShutdowns(controller, self._lifecycle, timers)
        if controller.own_replicas is not None:
            controller.own_replicas.attach(
                recover=self._lifecycle.recover, replicas_failed=self._lifecycle.replicas_failed
            )
        self._last: dict[Peer, LastRequest] = {}
        """The last AlterPartitions of each process."""

    def update_processes(self, running: Collection[tuple[int, int]]) -> None:
        """Fence registered processes that have ended; the others are given."""
        self._last = {peer: last for peer, last in self._last.items() if peer in running}
        self._lifecycle.update_processes(running)
        self.shutdowns.update_processes(running)

    def received(
        self,
        peer: Peer,
        kind: RecordKind,
        fields: dict[str, Any],
        respond: Callable[[TypedRecord], object],
    ) -> None:
        """Handle a message of a node's running process."""
        if kind is bus.REGISTER_NODE:
            self._lifecycle.register(peer.node_id, peer.incarnation, read_registration(fields))
            return
        if kind is bus.REPLICAS_FAILED:
            failed = {(each["topic_id"], each["partition"]) for each in fields["partitions"]}
            self._lifecycle.replicas_failed(peer.node_id, fields["node_epoch"], failed)
            return
        if kind is bus.SHUT_DOWN_NODE:
            request_id = fields["request_id"]
            done = bus.NODE_SHUT_DOWN(request_id=request_id, **outcome_fields(None))
            self.shutdowns.begin(peer, lambda: respond(done))
            return
        assert kind is bus.ALTER_PARTITIONS, "the other message about replicas"
        request_id = fields["request_id"]
        last = self._last.get(peer)
        if last is not None and request_id <= last.request_id:
            if last.response is not None and request_id == last.request_id:
                respond(last.response)
            return
        self._last[peer] = LastRequest(request_id)
        self._alter(peer, fields, respond)

    def _alter(
        self, peer: Peer, fields: dict[str, Any], respond: Callable[[TypedRecord], object]
    ) -> None:
        last, node_epoch = self._last[peer], fields["node_epoch"]

        def decided(decisions: Sequence[IsrDecision] | None, error: KafkaError | None) -> None:
            last.response = partitions_altered(last.request_id, decisions, error)
            respond(last.response)

        try:
            proposals = read_proposals(fields)
        except InvalidRequest as error:
            decided(None, error)
            return
        self._controller.decide(
            lambda machine: alter_partitions(
                machine.image, peer.node_id, node_epoch, proposals, self._rules_of
            )
        ).then(decided)
