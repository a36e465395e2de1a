"""The stored state of share partitions, as in Kafka's requests between brokers.

InitializeShareGroupState    v0
ReadShareGroupState          v0
WriteShareGroupState         v0–v1   v1 has the number of records whose delivery is complete
DeleteShareGroupState        v0
ReadShareGroupStateSummary   v0–v1   v1 as above

The nodes of this broker use the bus instead (controller/share_messages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.coordinator.share_coordinators import ShareCoordinators
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.security import CLUSTER, CLUSTER_ACTION, CLUSTER_NAME
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.coordination.features import SHARE_VERSION
from kafkalite.coordination.share.state_requests import (
    Outcome,
    StateChange,
    StateDeletion,
    StateInitialization,
    StateRead,
    StateRequest,
    StateSummary,
)
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.share_records import (
    NO_OFFSET,
    DeliveryState,
    SharePartitionKey,
    ShareSnapshot,
    StateBatch,
)
from kafkalite.protocol.schemas.share_state import (
    DELETE_SHARE_GROUP_STATE,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
    WRITE_SHARE_GROUP_STATE,
)


class ShareStatesNode(HandlerNode, Protocol):
    """The components that requests about the state of share partitions use."""

    share_coordinators: ShareCoordinators


STORED_STATES = frozenset(DeliveryState) - {DeliveryState.ACQUIRED}
"""The states that are stored: an acquired record is available after a restart."""


@serves(
    INITIALIZE_SHARE_GROUP_STATE,
    versions="0",
    at=ServingNode.COORDINATOR,
    feature=SHARE_VERSION,
)
def initialize_share_group_state(
    node: ShareStatesNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Begin the state of share partitions."""
    return (yield from _respond(
        node, request, client,
        lambda key, each: StateInitialization(key, each.state_epoch, each.start_offset),
    ))  # fmt: skip


@serves(
    READ_SHARE_GROUP_STATE,
    versions="0",
    at=ServingNode.COORDINATOR,
    feature=SHARE_VERSION,
)
def read_share_group_state(
    node: ShareStatesNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Return the state of share partitions, and fence their earlier leaders."""

    def fields(state: ShareSnapshot | None) -> Response:
        assert state is not None
        return {
            "state_epoch": state.state_epoch,
            "start_offset": state.start_offset,
            "state_batches": [batch._asdict() for batch in state.state_batches],
        }

    return (yield from _respond(
        node, request, client, lambda key, each: StateRead(key, each.leader_epoch), fields
    ))  # fmt: skip


@serves(
    WRITE_SHARE_GROUP_STATE,
    versions="0-1",
    at=ServingNode.COORDINATOR,
    feature=SHARE_VERSION,
)
def write_share_group_state(
    node: ShareStatesNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Merge changes into the state of share partitions."""

    def change(key: SharePartitionKey, each: Any) -> StateChange:
        batches = [
            StateBatch(
                batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
            )
            for batch in each.state_batches
        ]
        for batch in batches:
            if (
                not 0 <= batch.first_offset <= batch.last_offset
                or batch.delivery_state not in STORED_STATES
                or batch.delivery_count < 0
            ):
                raise InvalidRequest("A state batch has invalid offsets, state or delivery count.")
        return StateChange(
            key, each.state_epoch, each.leader_epoch, each.start_offset,
            each.delivery_complete_count, batches,
        )  # fmt: skip

    return (yield from _respond(node, request, client, change))


@serves(
    DELETE_SHARE_GROUP_STATE,
    versions="0",
    at=ServingNode.COORDINATOR,
    feature=SHARE_VERSION,
)
def delete_share_group_state(
    node: ShareStatesNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Delete the state of share partitions."""
    return (yield from _respond(node, request, client, lambda key, _: StateDeletion(key)))


@serves(
    READ_SHARE_GROUP_STATE_SUMMARY,
    versions="0-1",
    at=ServingNode.COORDINATOR,
    feature=SHARE_VERSION,
)
def read_share_group_state_summary(
    node: ShareStatesNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Return the start offsets of share partitions."""

    def fields(state: ShareSnapshot | None) -> Response:
        if state is None:
            return {"start_offset": NO_OFFSET}
        return {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start_offset,
            "delivery_complete_count": state.delivery_complete_count,
        }

    return (
        yield from _respond(node, request, client, lambda key, _: StateSummary(key), fields)
    )


def _respond(
    node: ShareStatesNode,
    request: Any,
    client: ClientContext,
    request_of: Callable[[SharePartitionKey, Any], StateRequest],
    fields_of: Callable[[ShareSnapshot | None], Response] = lambda _: {},
) -> Work[Future[Response]]:
    """Return the response with the outcome of each share partition of the request."""
    is_allowed = client.may(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    requests: list[StateRequest] = []
    results: list[Response] = []
    waiting: list[Response] = []
    for topic in request.topics:
        partitions: list[Response] = []
        results.append({"topic_id": topic.topic_id, "partitions": partitions})
        known = node.image.topics_by_id.get(topic.topic_id)
        for each in topic.partitions:
            yield
            entry: Response = {"partition": each.partition}
            partitions.append(entry)
            key = SharePartitionKey(request.group_id, topic.topic_id, each.partition)
            try:
                if not is_allowed:
                    raise ClusterAuthorizationFailed()
                if not request.group_id:
                    raise InvalidRequest("The group id is empty.")
                if known is None or each.partition not in known.partitions:
                    raise UnknownTopicOrPartition()
                requests.append(request_of(key, each))
            except KafkaError as error:
                entry |= error_fields(error)
                continue
            waiting.append(entry)

    def respond(outcomes: Sequence[Outcome]) -> Response:
        for entry, outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                entry |= error_fields(outcome)
            else:
                entry |= {"error_code": 0, "error_message": None, **fields_of(outcome)}
        return {"results": results}

    return node.share_coordinators.outcomes(requests).map(respond)
