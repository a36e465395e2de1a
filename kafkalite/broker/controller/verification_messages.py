"""Verifications of transactions as messages of the bus: VerifyTransactions, TransactionsVerified.

The response has the error codes in the order of the request's partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafkalite.broker.error_responses import outcome_fields
from kafkalite.broker.replica.transaction_verifier import VerificationRequest, VerificationResults
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.errors import KafkaError, UnknownServerError
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.bus import TypedRecord


def verify_transactions(request_id: int, requests: Sequence[VerificationRequest]) -> TypedRecord:
    """Return the message with these requests."""
    return bus.VERIFY_TRANSACTIONS(
        request_id=request_id,
        transactions=[
            {
                "transactional_id": request.transactional_id,
                "producer_id": request.producer.producer_id,
                "producer_epoch": request.producer.epoch,
                "adds": request.adds,
                "partitions": [
                    {"topic": topic, "partition": index} for topic, index in request.partitions
                ],
            }
            for request in requests
        ],
    )


def read_requests(fields: Mapping[str, Any]) -> list[VerificationRequest]:
    """Return the requests of a VerifyTransactions."""
    return [
        VerificationRequest(
            each["transactional_id"],
            ProducerEpoch(each["producer_id"], each["producer_epoch"]),
            each["adds"],
            [(partition["topic"], partition["partition"]) for partition in each["partitions"]],
        )
        for each in fields["transactions"]
    ]


def transactions_verified(
    request_id: int, results: VerificationResults | None, error: KafkaError | None
) -> TypedRecord:
    """Return the message with the results, or with the error of the whole request."""
    return bus.TRANSACTIONS_VERIFIED(
        request_id=request_id,
        **outcome_fields(error),
        transactions=[{"error_codes": [*codes]} for codes in results or ()],
    )


def read_results(request: TypedRecord, fields: Mapping[str, Any]) -> VerificationResults:
    """Return the results of a TransactionsVerified; raise if they do not fit the request."""
    results = [each["error_codes"] for each in fields["transactions"]]
    counts = [len(each["partitions"]) for each in request.fields["transactions"]]
    if [*map(len, results)] != counts:
        raise UnknownServerError("The response of the coordinators does not fit the request.")
    return results
