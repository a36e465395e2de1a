"""Requests to the transaction coordinator: the partitions of a transaction, and its end.

AddPartitionsToTxn   v0–v5   clients send v0–v3, brokers v4–v5, for many transactions (KIP-890)
AddOffsetsToTxn      v0–v4   adds the partition of __consumer_offsets that stores the group
EndTxn               v0–v5   v5 raises the epoch, and returns it for the next transaction (KIP-890)

Errors since a version: PRODUCER_FENCED since v2 of each, INVALID_PRODUCER_EPOCH before (KIP-588).

A node that does not coordinate the transactional id responds with NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.transactions.producers import fenced_code
from kafkalite.broker.handlers.transactions.transactions_node import TransactionsNode
from kafkalite.broker.security import (
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
)
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.coordination.placement import coordinator_partition
from kafkalite.coordination.topic_names import CONSUMER_OFFSETS, INTERNAL_TOPICS
from kafkalite.coordination.transaction import BUMPS_EPOCH_SINCE, ProducerEpoch
from kafkalite.coordination.transaction_coordinator import check_id
from kafkalite.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    OperationNotAttempted,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.transaction_records import TopicPartition
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
)

FENCED_SINCE = 2
"""The version of these requests since which clients know PRODUCER_FENCED."""
OF_BROKERS_SINCE = 4
"""The version since which AddPartitionsToTxn is a request of brokers."""
RAISES_EPOCH_SINCE = 5
"""The version of EndTxn since which its client has transaction version 2."""


# -- AddPartitionsToTxn --------------------------------------------------------------------------


class PartitionsToAdd(NamedTuple):
    """The partitions that a request adds to one transaction."""

    transactional_id: str
    producer: ProducerEpoch
    verify_only: bool
    topics: Any


class AddResult(NamedTuple):
    """The result of adding partitions: the code of those in `codes`, and that of all others."""

    error_code: int
    codes: Mapping[TopicPartition, int] = {}


@serves(ADD_PARTITIONS_TO_TXN, versions="0-5", at=ServingNode.COORDINATOR, is_cancellable=False)
def add_partitions_to_txn(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Add partitions to transactions, or verify that they belong to them."""
    if client.version >= OF_BROKERS_SINCE:
        client.must(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    added = _partitions_to_add(request, client.version)
    futures: list[Future[AddResult]] = []
    for each in added:
        futures.append((yield from _add_partitions(node, client, each)))
        yield
    response: Future[Response] = Future()

    def respond(results: list[AddResult] | None, _: KafkaError | None) -> None:
        assert results is not None, "errors are per transaction"
        response.follow(in_steps(node.reactor, _response(client.version, added, results)))

    all_of(futures).then(respond)
    return response


def _partitions_to_add(request: Any, version: int) -> list[PartitionsToAdd]:
    if version < OF_BROKERS_SINCE:
        return [
            PartitionsToAdd(
                request.v3_and_below_transactional_id,
                ProducerEpoch(
                    request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
                ),
                False,
                request.v3_and_below_topics,
            )
        ]
    return [
        PartitionsToAdd(
            each.transactional_id,
            ProducerEpoch(each.producer_id, each.producer_epoch),
            each.verify_only,
            each.topics,
        )
        for each in request.transactions
    ]


def _add_partitions(
    node: TransactionsNode, client: ClientContext, added: PartitionsToAdd
) -> Work[Future[AddResult]]:
    """Add the partitions of one transaction, all or none."""
    transactional_id, version = added.transactional_id, client.version
    is_client = version < OF_BROKERS_SINCE

    def refuse(error: KafkaError) -> AddResult:
        return AddResult(fenced_code(error, version, FENCED_SINCE))

    try:
        if is_client:
            client.must(WRITE, TRANSACTIONAL_ID, transactional_id)
        partitions, codes = yield from _checked_partitions(node, client, added.topics)
        if codes:
            return Future.of(AddResult(OperationNotAttempted.code, codes))
        check_id(transactional_id)
        host = node.transactions.host_of(transactional_id)
        if added.verify_only:
            result = host.request(
                lambda machine, token, _, __: machine.verify_partitions(
                    transactional_id, added.producer, partitions, token
                ),
                transactional_id,
            )
        else:
            transaction_version = 0 if is_client else BUMPS_EPOCH_SINCE
            result = host.request(
                lambda machine, token, now_ms, wall_ms: machine.add_partitions(
                    transactional_id,
                    added.producer,
                    partitions,
                    transaction_version,
                    token,
                    now_ms,
                    wall_ms,
                ),
                transactional_id,
            )  # fmt: skip
    except KafkaError as error:
        return Future.of(refuse(error))
    return result.map(
        lambda reply: AddResult(reply["error_code"], reply.get("codes", {}))
    ).recover(refuse)


def _checked_partitions(
    node: TransactionsNode, client: ClientContext, topics: Any
) -> Work[tuple[frozenset[TopicPartition], Mapping[TopicPartition, int]]]:
    """Return the partitions, and the codes of those that are unauthorized or unknown."""
    is_client = client.version < OF_BROKERS_SINCE
    partitions: set[TopicPartition] = set()
    codes: dict[TopicPartition, int] = {}
    for topic in topics:
        name = topic.name
        known = node.image.topics.get(name)
        # Clients add internal topics with AddOffsetsToTxn only.
        is_allowed = not is_client or (
            name not in INTERNAL_TOPICS and client.may(WRITE, TOPIC, name)
        )
        for index in topic.partitions:
            if not is_allowed:
                codes[name, index] = TopicAuthorizationFailed.code
            elif known is None or index not in known.partitions:
                codes[name, index] = UnknownTopicOrPartition.code
            else:
                partitions.add((name, index))
            yield
        yield
    return frozenset(partitions), codes


def _response(
    version: int, added: list[PartitionsToAdd], results: list[AddResult]
) -> Work[Response]:
    transactions: list[Response] = []
    for each, result in zip(added, results, strict=True):
        topics: list[Response] = []
        transactions.append({"transactional_id": each.transactional_id, "topic_results": topics})
        for topic in each.topics:
            partitions: list[Response] = []
            topics.append({"name": topic.name, "results_by_partition": partitions})
            for index in topic.partitions:
                code = result.codes.get((topic.name, index), result.error_code)
                partitions.append({"partition_index": index, "partition_error_code": code})
                yield
            yield
        yield
    if version >= OF_BROKERS_SINCE:
        return {"results_by_transaction": transactions}
    return {"results_by_topic_v3_and_below": transactions[0]["topic_results"]}


# -- AddOffsetsToTxn -----------------------------------------------------------------------------


@serves(ADD_OFFSETS_TO_TXN, versions="0-4", at=ServingNode.COORDINATOR)
def add_offsets_to_txn(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Response | Future[Response]:
    """Add the partition that stores a group's offsets; create its topic if it does not exist."""

    def refuse(error: KafkaError) -> Response:
        return {"error_code": fenced_code(error, client.version, FENCED_SINCE)}

    try:
        client.must(WRITE, TRANSACTIONAL_ID, request.transactional_id)
        client.must(READ, GROUP, request.group_id)
        check_id(request.transactional_id)
        node.transactions.host_of(request.transactional_id)
    except KafkaError as error:
        return refuse(error)
    if CONSUMER_OFFSETS in node.image.topics:
        return _add_offsets(node, request).recover(refuse)
    response: Future[Response] = Future()

    def created(_: None, error: KafkaError | None) -> None:
        if error is not None:
            response.fail(CoordinatorNotAvailable(str(error)))
        else:
            response.follow(_add_offsets(node, request))

    node.local_controller.open_internal_topic(CONSUMER_OFFSETS).then(created)
    return response.recover(refuse)


def _add_offsets(node: TransactionsNode, request: Any) -> Future[Response]:
    transactional_id = request.transactional_id
    count = len(node.image.topics[CONSUMER_OFFSETS].partitions)
    stored_in = (CONSUMER_OFFSETS, coordinator_partition(request.group_id, count))
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)
    try:
        host = node.transactions.host_of(transactional_id)
    except KafkaError as error:
        failed: Future[Response] = Future()
        failed.fail(error)
        return failed
    return host.request(
        lambda machine, token, now_ms, wall_ms: machine.add_partitions(
            transactional_id, producer, frozenset({stored_in}), 0, token, now_ms, wall_ms
        ),
        transactional_id,
    )


# -- EndTxn --------------------------------------------------------------------------------------


@serves(END_TXN, versions="0-5", at=ServingNode.COORDINATOR)
def end_txn(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Response | Future[Response]:
    """Decide the outcome of a transaction; respond once the decision is committed."""
    transactional_id, version = request.transactional_id, client.version
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)
    transaction_version = BUMPS_EPOCH_SINCE if version >= RAISES_EPOCH_SINCE else 0

    def refuse(error: KafkaError) -> Response:
        return {"error_code": fenced_code(error, version, FENCED_SINCE)}

    try:
        client.must(WRITE, TRANSACTIONAL_ID, transactional_id)
        check_id(transactional_id)
        host = node.transactions.host_of(transactional_id)
    except KafkaError as error:
        return refuse(error)
    return host.request(
        lambda machine, token, _, wall_ms: machine.end(
            transactional_id, producer, request.committed, transaction_version, token, wall_ms
        ),
        transactional_id,
    ).recover(refuse)
