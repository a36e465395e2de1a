"""Description of transactional ids.

DescribeTransactions   v0      the state of transactional ids (KIP-664)
ListTransactions       v0–v2   v1 filters by duration (KIP-994), v2 by a pattern (KIP-1152)
"""

from __future__ import annotations

from typing import Any

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.transactions.transactions_node import TransactionsNode
from kafkalite.broker.security import DESCRIBE, TOPIC, TRANSACTIONAL_ID
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.coordination.regular_expression import RegularExpression
from kafkalite.errors import InvalidRegularExpression, InvalidRequest, KafkaError
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionState,
    partitions_by_topic,
)
from kafkalite.protocol.schemas.transactions import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS

STATE_NAMES = {*(state.title for state in TransactionState), "Dead", "PrepareEpochFence"}
"""The state names that Kafka knows; no transactional id here is ever in the last two."""


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


@serves(LIST_TRANSACTIONS, versions="0-2", at=ServingNode.COORDINATOR)
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
    pattern = None
    if request.transactional_id_pattern:
        try:
            pattern = RegularExpression(request.transactional_id_pattern)
        except InvalidRegularExpression as error:
            return {"error_code": error.code}
    for host in node.transactions:
        for transactional_id, transaction in host.machine.transactions():
            if (
                (not states or transaction.state.title in states)
                and (not producer_ids or transaction.producer_id in producer_ids)
                and (begun_before_ms is None or transaction.start_ms < begun_before_ms)
                and client.may(DESCRIBE, TRANSACTIONAL_ID, transactional_id)
                and (pattern is None or (yield from pattern.matches(transactional_id)))
            ):
                response["transaction_states"].append({
                    "transactional_id": transactional_id,
                    "producer_id": transaction.producer_id,
                    "transaction_state": transaction.state.title,
                })  # fmt: skip
            yield
    return response
