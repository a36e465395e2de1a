"""Delivery outcome: maps a Produce response to written, retry, renumber, split or failed.

An error means either that nothing was written for certain, or that the result is unknown.  Only in
the first case may the batch get another sequence (partition_queue.py).
"""

from __future__ import annotations

from enum import Enum

from kafkalite import errors
from kafkalite.client.net.topology import error_of
from kafkalite.client.producer.partition_queue import BatchResponse
from kafkalite.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    KafkaError,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)

UNWRITTEN_ERRORS: frozenset[type[KafkaError]] = frozenset(
    {
        errors.ClusterAuthorizationFailed,
        errors.ConcurrentTransactions,
        errors.CorruptMessage,
        errors.FencedLeaderEpoch,
        errors.InvalidProducerEpoch,
        errors.InvalidProducerIdMapping,
        errors.InvalidRecord,
        errors.InvalidRequiredAcks,
        errors.InvalidTimestamp,
        errors.InvalidTopicException,
        errors.InvalidTxnState,
        errors.LeaderNotAvailable,
        errors.MessageTooLarge,
        errors.NotEnoughReplicas,
        errors.NotLeaderOrFollower,
        errors.OutOfOrderSequenceNumber,
        errors.PolicyViolation,
        errors.ProducerFenced,
        errors.ReplicaNotAvailable,
        errors.TopicAuthorizationFailed,
        errors.TransactionAbortable,
        errors.TransactionalIdAuthorizationFailed,
        errors.UnknownProducerId,
        errors.UnknownTopicId,
        errors.UnknownTopicOrPartition,
        errors.UnsupportedCompressionType,
        errors.UnsupportedForMessageFormat,
    }
)
"""Errors with which a broker says that it has not changed the log."""

UNKNOWN_PRODUCER_ERRORS = (InvalidProducerEpoch, UnknownProducerId)
"""Errors with which a broker says that it does not know the producer id or epoch."""

WRITTEN_CODES = (0, DuplicateSequenceNumber.code)


class DeliveryOutcome(Enum):
    """The action for a batch after its response."""

    WRITTEN = "written to the log"
    RETRY = "sent again with the same sequence"
    NEW_PRODUCER_ID = "sent again with a new producer id"
    SPLIT = "sent again in two parts"
    FAILED = "failed"


def outcome_of(
    response: BatchResponse, retries: int, is_transactional: bool = False
) -> tuple[DeliveryOutcome, KafkaError | None, bool]:
    """Return the action, the error, and whether the batch was certainly not written."""
    batch = response.batch
    if response.error_code in WRITTEN_CODES:
        return DeliveryOutcome.WRITTEN, None, False
    queue = batch.queue
    subject = f"partition {queue.index} of topic {queue.topic.name!r}"
    error = error_of(response.error_code, subject, response.message)
    # A duplicate is never refused for its sequence: a batch that is was not written before either.
    unwritten = type(error) in UNWRITTEN_ERRORS and (
        not batch.maybe_written or isinstance(error, OutOfOrderSequenceNumber)
    )
    # Parts would get other sequences; if the whole was written after all, they are duplicates.
    may_split = batch.count > 1 and not (batch.maybe_written and queue.idempotent)
    if isinstance(error, MessageTooLarge) and may_split:
        return DeliveryOutcome.SPLIT, error, unwritten
    if batch.attempts > retries:
        return DeliveryOutcome.FAILED, error, unwritten
    # A transaction has one producer id and epoch; an error that only a new one solves ends it.
    renewal = DeliveryOutcome.FAILED if is_transactional else DeliveryOutcome.NEW_PRODUCER_ID
    if isinstance(error, OutOfOrderSequenceNumber) and queue.idempotent:
        # Expected for a batch behind one that failed.  For the very next sequence it means that
        # the broker has lost its producer state.
        return (renewal if queue.follows(batch) else DeliveryOutcome.RETRY), error, unwritten
    if isinstance(error, UNKNOWN_PRODUCER_ERRORS) and queue.idempotent:
        return renewal, error, unwritten
    return (DeliveryOutcome.RETRY if error.retriable else DeliveryOutcome.FAILED), error, unwritten
