"""Producers and transactions: producer ids, active producers, and the states of transactional ids.

InitProducerId         v0–v5   v3 sends the current producer id and epoch (KIP-360)
DescribeProducers      v0      the active producers of a partition on its leader (KIP-664)
DescribeTransactions   v0      the state of transactional ids (KIP-664)
ListTransactions       v0–v1   v1 filters by duration (KIP-994)

An idempotent producer gets a new producer id with epoch 0 on each request, even if the request has
a current id: such a producer counts its epochs itself, and no other producer has used a new id.

Left out: the requests of transactional producers, and two-phase commit with them (v6);
ListTransactions v2, whose pattern is of RE2.  An InitProducerId with a transactional id gets
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
from kafkalite.broker.coordinator.transaction_coordinators import TransactionCoordinators
from kafkalite.broker.error_responses import check_repetitions, entry_responses, error_fields
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import (
    CLUSTER,
    CLUSTER_NAME,
    DESCRIBE,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
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
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionState,
    partitions_by_topic,
)
from kafkalite.protocol.schemas.transactions import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)

if TYPE_CHECKING:
    from kafkalite.storage.producer_state import ProducerStateEntry

NONE = -1

STATE_NAMES = {*(state.title for state in TransactionState), "Dead", "PrepareEpochFence"}
"""The state names that Kafka knows; no transactional id here is ever in the last two."""


class TransactionsNode(HandlerNode, Protocol):
    """The components that requests of producers use."""

    producer_ids: ProducerIdBlocks
    replicas: ReplicaManager
    transactions: TransactionCoordinators


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


# -- transactional ids ---------------------------------------------------------------------------


@serves(DESCRIBE_TRANSACTIONS, versions="0", at=ServingNode.COORDINATOR)
def describe_transactions(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Return the state of each transactional id."""
    described: list[Future[Response]] = []
    for transactional_id in dict.fromkeys(request.transactional_ids):
        described.append(_describe_transaction(node, client, transactional_id))
        yield
    return all_of(described).map(lambda states: {"transaction_states": states})


def _describe_transaction(
    node: TransactionsNode, client: ClientContext, transactional_id: str
) -> Future[Response]:
    def refuse(error: KafkaError) -> Response:
        return {"transactional_id": transactional_id, **error_fields(error, messages=False)}

    def respond(transaction: Transaction) -> Response:
        topics = partitions_by_topic(transaction.partitions).items()
        return {
            "transactional_id": transactional_id,
            "transaction_state": transaction.state.title,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": transaction.start_ms,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "topics": [
                {"topic": topic, "partitions": indexes}
                for topic, indexes in topics
                if client.may(DESCRIBE, TOPIC, topic)
            ],
        }

    try:
        client.must(DESCRIBE, TRANSACTIONAL_ID, transactional_id)
        if not transactional_id:
            raise InvalidRequest("The transactional id is empty.")
        host = node.transactions.host_of(transactional_id)
        found = host.read(lambda machine: machine.describe(transactional_id))
    except KafkaError as error:
        return Future.of(refuse(error))
    return found.map(respond).recover(refuse)


@serves(LIST_TRANSACTIONS, versions="0-1", at=ServingNode.COORDINATOR)
def list_transactions(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Return the transactional ids coordinated here that the principal may describe."""
    unknown = [name for name in request.state_filters if name not in STATE_NAMES]
    response: Response = {
        # Partitions that are loading or unreadable may have more.
        "error_code": node.transactions.error_code,
        "unknown_state_filters": unknown,
        "transaction_states": [],
    }
    if response["error_code"]:
        return response
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    begun_before_ms = None
    if request.duration_filter >= 0:
        begun_before_ms = node.reactor.clock.wall_ms() - request.duration_filter
    for host in node.transactions:
        for transactional_id, transaction in host.machine.transactions():
            if (
                (not states or transaction.state.title in states)
                and (not producer_ids or transaction.producer_id in producer_ids)
                and (begun_before_ms is None or transaction.start_ms < begun_before_ms)
                and client.may(DESCRIBE, TRANSACTIONAL_ID, transactional_id)
            ):
                response["transaction_states"].append({
                    "transactional_id": transactional_id,
                    "producer_id": transaction.producer_id,
                    "transaction_state": transaction.state.title,
                })  # fmt: skip
            yield
    return response
