"""Producers: producer ids and epochs, and the active producers of a partition.

InitProducerId         v0–v6   v3 sends the current producer id and epoch (KIP-360),
                               v6 has two-phase commit (KIP-939)
DescribeProducers      v0      the active producers of a partition on its leader (KIP-664)

An idempotent producer gets a new producer id with epoch 0 on each request, even if the request has
a current id: such a producer counts its epochs itself, and no other producer has used a new id.

Kafka has not declared version 6 stable: it is served if two-phase commit is enabled.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import check_repetitions, entry_responses
from kafkalite.broker.future import Future
from kafkalite.broker.handlers.transactions.transactions_node import TransactionsNode
from kafkalite.broker.security import (
    CLUSTER,
    CLUSTER_NAME,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    TWO_PHASE_COMMIT,
    WRITE,
)
from kafkalite.broker.served_apis import Response, ServingNode, UnstableVersion, serves
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, Work
from kafkalite.config.broker import TRANSACTION_TWO_PHASE_COMMIT_ENABLE
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.coordination.transaction_coordinator import InitOptions
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidRequest,
    KafkaError,
    ProducerFenced,
)
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS, INIT_PRODUCER_ID

if TYPE_CHECKING:
    from kafkalite.storage.state.producer_state import ProducerStateEntry

NONE = -1

INIT_FENCED_SINCE = 4
"""The version of InitProducerId since which clients know PRODUCER_FENCED (KIP-588)."""


def fenced_code(error: KafkaError, version: int, since: int) -> int:
    """Return the error code, INVALID_PRODUCER_EPOCH for a fenced producer below version `since`."""
    if isinstance(error, ProducerFenced) and version < since:
        return InvalidProducerEpoch.code
    return error.code


@serves(
    INIT_PRODUCER_ID,
    versions="0-5",
    at=ServingNode.ANY,
    unstable=UnstableVersion(6, TRANSACTION_TWO_PHASE_COMMIT_ENABLE),
)
def init_producer_id(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Response | Future[Response]:
    """Return a producer id and epoch; with a transactional id, fence its earlier producer."""

    def refuse(error: KafkaError) -> Response:
        code = fenced_code(error, client.version, INIT_FENCED_SINCE)
        return {"error_code": code, "producer_id": NONE, "producer_epoch": NONE}

    try:
        _check_rights(node, request, client)
        if (request.producer_id == NONE) != (request.producer_epoch == NONE):
            raise InvalidRequest("Producer id and producer epoch must both be set, or neither.")
        if request.transactional_id is not None:
            return _init_transactional(node, request).recover(refuse)
    except KafkaError as error:
        return refuse(error)
    return (
        node.producer_ids.allocate()
        .map(lambda producer_id: {"producer_id": producer_id, "producer_epoch": 0})
        .recover(refuse)
    )


def _check_rights(node: TransactionsNode, request: Any, client: ClientContext) -> None:
    if request.transactional_id is not None:
        client.must(WRITE, TRANSACTIONAL_ID, request.transactional_id)
        if request.enable_2pc:
            client.must(TWO_PHASE_COMMIT, TRANSACTIONAL_ID, request.transactional_id)
    elif not _may_write(node, client):
        raise ClusterAuthorizationFailed()


def _may_write(node: TransactionsNode, client: ClientContext) -> bool:
    # KIP-679: a principal that may write to some topic may write idempotently.
    return client.may(IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME) or any(
        client.may(WRITE, TOPIC, name) for name in node.image.topics
    )


def _init_transactional(node: TransactionsNode, request: Any) -> Future[Response]:
    transactional_id: str = request.transactional_id
    options = InitOptions(
        request.transaction_timeout_ms, request.enable_2pc, request.keep_prepared_txn
    )
    node.transactions.check_init(transactional_id, options)
    host = node.transactions.host_of(transactional_id)
    current = ProducerEpoch(request.producer_id, request.producer_epoch)
    response: Future[Response] = Future()

    def decide(_: None, error: KafkaError | None) -> None:
        if error is not None:
            response.fail(error)
            return
        response.follow(
            host.request(
                lambda machine, token, _, wall_ms: machine.init_producer_id(
                    transactional_id, current, options, token, wall_ms
                )
            )
        )

    node.transactions.prepare_producer_id().then(decide)
    return response


# -- DescribeProducers ---------------------------------------------------------------------------


@serves(DESCRIBE_PRODUCERS, versions="0", at=ServingNode.LEADER)
def describe_producers(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Return the active producers of each partition that this node leads."""
    named = Counter(
        (topic.name, index) for topic in request.topics for index in topic.partition_indexes
    )

    producers: list[ProducerStateEntry] = []

    def partition(name: str, index: int) -> Response:
        client.must(READ, TOPIC, name)
        check_repetitions(named[name, index])
        producers.extend(node.replicas.leader(name, index).log.producers)
        return {"active_producers": []}

    topics: list[Response] = []

    for topic in request.topics:
        partitions: list[Response] = []
        topics.append({"name": topic.name, "partitions": partitions})
        for index in topic.partition_indexes:
            partitions += entry_responses(
                [index], "partition_index", partial(partition, topic.name)
            )
            for begin in range(0, len(producers), ENTRIES_AT_ONCE):
                some = producers[begin : begin + ENTRIES_AT_ONCE]
                partitions[-1]["active_producers"] += map(_described, some)
                yield
            producers.clear()
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
