"""Description of transactional ids.

DescribeTransactions   v0      the state of transactional ids (KIP-664)
ListTransactions       v0–v2   v1 filters by duration (KIP-994), v2 by a pattern (KIP-1152)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.transactions.transactions_node import TransactionsNode
from kafkalite.broker.security import DESCRIBE, TOPIC, TRANSACTIONAL_ID
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.coordination.regular_expression import RegularExpression
from kafkalite.coordination.transaction_coordinator import check_id
from kafkalite.errors import InvalidRegularExpression, KafkaError
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionState,
    partitions_by_topic,
)
from kafkalite.protocol.schemas.transactions import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS

STATE_NAMES = {*(state.title for state in TransactionState), "Dead", "PrepareEpochFence"}
"""The state names that Kafka knows; no transactional id here is ever in the last two."""


Found: TypeAlias = Transaction | Response
"""The state of a transactional id, or the error fields of its response."""


@serves(DESCRIBE_TRANSACTIONS, versions="0", at=ServingNode.COORDINATOR)
def describe_transactions(
    node: TransactionsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Return the state of each transactional id."""
    found: dict[str, Future[Found]] = {}
    for transactional_id in request.transactional_ids:
        if transactional_id not in found:
            found[transactional_id] = _find(node, client, transactional_id)
        yield
    response: Future[Response] = Future()

    def respond(states: list[Found] | None, _: KafkaError | None) -> None:
        assert states is not None, "errors are per transactional id"
        by_id = zip(found, states, strict=True)
        response.follow(in_steps(node.reactor, _descriptions(client, by_id)))

    all_of([*found.values()]).then(respond)
    return response


def _find(node: TransactionsNode, client: ClientContext, transactional_id: str) -> Future[Found]:
    # An error would keep its frames, and with them the futures that hold it.
    def refuse(error: KafkaError) -> Response:
        return error_fields(error, messages=False)

    try:
        client.must(DESCRIBE, TRANSACTIONAL_ID, transactional_id)
        check_id(transactional_id)
        host = node.transactions.host_of(transactional_id)
    except KafkaError as error:
        return Future.of(refuse(error))
    found: Future[Found] = host.read(lambda machine: machine.describe(transactional_id))
    return found.recover(refuse)


def _descriptions(client: ClientContext, found: Iterable[tuple[str, Found]]) -> Work[Response]:
    states: list[Response] = []
    for transactional_id, transaction in found:
        if not isinstance(transaction, Transaction):
            states.append({"transactional_id": transactional_id, **transaction})
            yield
            continue
        topics: list[Response] = []
        states.append({
            "transactional_id": transactional_id,
            "transaction_state": transaction.state.title,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": transaction.start_ms,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "topics": topics,
        })  # fmt: skip
        for topic, indexes in partitions_by_topic(transaction.partitions).items():
            if client.may(DESCRIBE, TOPIC, topic):
                topics.append({"topic": topic, "partitions": indexes})
            yield
        yield
    return {"transaction_states": states}


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
