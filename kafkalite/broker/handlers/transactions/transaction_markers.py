"""Transaction markers: the end of transactions in the partitions that this node leads.

WriteTxnMarkers   v1–v2   v2 sends the transaction version of each marker (KIP-1228)

Transaction coordinators of other brokers send it, and administrators to abort a transaction that no
coordinator knows (KIP-664).  A marker is in the response once it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.marker_writer import CLIENT_WAIT_MS, MarkerAppends
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import ALTER, CLUSTER, CLUSTER_ACTION, CLUSTER_NAME
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.errors import ClusterAuthorizationFailed
from kafkalite.protocol.results import PartitionAppendResult
from kafkalite.protocol.schemas.transactions import WRITE_TXN_MARKERS
from kafkalite.records.control import TransactionMarker


class MarkersNode(HandlerNode, Protocol):
    """The components that transaction markers use."""

    replicas: ReplicaManager


class TopicResults(NamedTuple):
    """The results of one marker in the partitions of a topic."""

    name: str
    partitions: list[PartitionAppendResult]


@serves(WRITE_TXN_MARKERS, versions="1-2", at=ServingNode.LEADER)
def write_txn_markers(
    node: MarkersNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Write the markers; respond once they are committed."""
    is_allowed = client.may(ALTER, CLUSTER, CLUSTER_NAME) or client.may(
        CLUSTER_ACTION, CLUSTER, CLUSTER_NAME
    )
    appends = MarkerAppends(node.replicas)
    markers: list[tuple[int, list[TopicResults]]] = []
    for entry in request.markers:
        marker = TransactionMarker(
            entry.producer_id,
            entry.producer_epoch,
            entry.transaction_result,
            entry.coordinator_epoch,
            entry.transaction_version,
        )
        topics: list[TopicResults] = []
        markers.append((entry.producer_id, topics))
        for topic in entry.topics:
            results: list[PartitionAppendResult] = []
            topics.append(TopicResults(topic.name, results))
            for index in topic.partition_indexes:
                if is_allowed:
                    appends.append(marker, topic.name, index, results)
                else:
                    refused = PartitionAppendResult.failed(index, ClusterAuthorizationFailed())
                    results.append(refused)
                yield
        yield
    committed = appends.committed(CLIENT_WAIT_MS)
    if committed.settled:
        return (yield from _response(markers))
    response: Future[Response] = Future()
    committed.then(lambda _, __: response.follow(in_steps(node.reactor, _response(markers))))
    return response


def _response(markers: Sequence[tuple[int, Sequence[TopicResults]]]) -> Work[Response]:
    responses: list[Response] = []
    for producer_id, topics in markers:
        topic_responses: list[Response] = []
        responses.append({"producer_id": producer_id, "topics": topic_responses})
        for topic in topics:
            partitions: list[Response] = []
            topic_responses.append({"name": topic.name, "partitions": partitions})
            for each in topic.partitions:
                partitions.append(
                    {"partition_index": each.partition_index, "error_code": each.error_code}
                )
                yield
        yield
    return {"markers": responses}
