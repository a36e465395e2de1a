"""Producers: producer ids for idempotence, and the active producers of partitions.

InitProducerId      v0–v5   v3 sends the current producer id and epoch (KIP-360)
DescribeProducers   v0      the active producers of a partition on its leader (KIP-664)

An idempotent producer gets a new producer id with epoch 0 on each request, even if the request has
a current id: such a producer counts its epochs itself, and no other producer has used a new id.

Left out: transactions, and two-phase commit with them (v6).  A request with a transactional id gets
UNSUPPORTED_VERSION.  Of the accurate errors it is one that a Java producer fails on at once; a
retriable one would make it retry.  Clients send FindCoordinator first and fail there: librdkafka
fails at once only on TRANSACTIONAL_ID_AUTHORIZATION_FAILED, sent with the message `Transactions are
not supported.` No permission is missing, but most clients report that: only librdkafka
(confluent-kafka, kcat) shows the message, after `Broker: Transactional Id authorization failed`;
Java's producer and tools raise TransactionalIdAuthorizationException, kafka-python
TransactionalIdAuthorizationFailedError, aiokafka TransactionalIdAuthorizationFailed, and KafkaJS
KafkaJSGroupCoordinatorNotFound (`Failed to find group coordinator`).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.coordinator.producer_ids import ProducerIdBlocks
from kafkalite.broker.error_responses import check_repetitions, entry_responses, error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import (
    CLUSTER,
    CLUSTER_NAME,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    WRITE,
)
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS, INIT_PRODUCER_ID

if TYPE_CHECKING:
    from kafkalite.storage.producer_state import ProducerStateEntry

NONE = -1


class TransactionsNode(HandlerNode, Protocol):
    """The components that requests of idempotent producers use."""

    producer_ids: ProducerIdBlocks
    replicas: ReplicaManager


@serves(INIT_PRODUCER_ID, versions="0-5", at=ServingNode.ANY)
def init_producer_id(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Response | Future[Response]:
    """Allocate a producer id for an idempotent producer."""
    try:
        _check(node, request, client)
    except KafkaError as error:
        return {**error_fields(error, messages=False), "producer_epoch": NONE}
    return node.producer_ids.allocate().map(
        lambda producer_id: {"producer_id": producer_id, "producer_epoch": 0}
    )


def _check(node: TransactionsNode, request: Any, client: ClientContext) -> None:
    if request.transactional_id == "":
        raise InvalidRequest("The transactional id is empty.")
    if request.transactional_id is not None:
        raise UnsupportedVersion("Transactions are not supported.")
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        raise InvalidRequest("Producer id and producer epoch must both be set, or neither.")
    if not _may_write(node, client):
        raise ClusterAuthorizationFailed()


def _may_write(node: TransactionsNode, client: ClientContext) -> bool:
    # KIP-679: a principal that may write to some topic may write idempotently.
    return client.may(IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME) or any(
        client.may(WRITE, TOPIC, name) for name in node.image.topics
    )


# -- DescribeProducers ---------------------------------------------------------------------------


@serves(DESCRIBE_PRODUCERS, versions="0", at=ServingNode.LEADER)
def describe_producers(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Return the active producers of each partition that this node leads."""
    named = Counter(
        (topic.name, index) for topic in request.topics for index in topic.partition_indexes
    )

    def partition(name: str, index: int) -> Response:
        client.must(READ, TOPIC, name)
        check_repetitions(named[name, index])
        log = node.replicas.leader(name, index).log
        return {"active_producers": [_described(producer) for producer in log.producers]}

    topics: list[Response] = []

    for topic in request.topics:
        partitions: list[Response] = []
        topics.append({"name": topic.name, "partitions": partitions})
        for index in topic.partition_indexes:
            partitions += entry_responses(
                [index], "partition_index", partial(partition, topic.name)
            )
            yield
        yield
    return {"topics": topics}


def _described(producer: ProducerStateEntry) -> Response:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.batches[-1].last_sequence if producer.batches else NONE,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.txn_first_offset,
    }
