"""Delivery outcome: maps a Produce response to written, retry, renumber, split or failed.

An error means either that nothing was written for certain, or that the result is unknown.  Only in
the first case may the batch get another sequence (partition_queue.py).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kafkalite import errors
from kafkalite.client.net.topology import error_of
from kafkalite.client.producer.partition_queue import Batch
from kafkalite.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    KafkaError,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)

UNWRITTEN: frozenset[type[KafkaError]] = frozenset(
    {
        errors.ClusterAuthorizationFailed,
        errors.CorruptMessage,
        errors.FencedLeaderEpoch,
        errors.InvalidProducerEpoch,
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
        errors.ReplicaNotAvailable,
        errors.TopicAuthorizationFailed,
        errors.UnknownProducerId,
        errors.UnknownTopicId,
        errors.UnknownTopicOrPartition,
        errors.UnsupportedCompressionType,
        errors.UnsupportedForMessageFormat,
    }
)
"""Errors with which a broker says that it has not changed the log."""

STRANGERS = (InvalidProducerEpoch, UnknownProducerId)
"""Errors with which a broker says that it does not know the producer id or epoch."""

WRITTEN_CODES = (0, DuplicateSequenceNumber.code)


class Answer(NamedTuple):
    """A node's response to a batch."""

    batch: Batch
    error_code: int
    base_offset: int
    append_time_ms: int
    message: str | None = None


class Verdict(Enum):
    """The action for a batch after its response."""
    WRITTEN = "it lies in the log"
    AGAIN = "the same once more"
    RENUMBER = "once more, under a new identity"
    SPLIT = "once more, in two parts"
    FAILED = "given up"


def judge(answer: Answer, retries: int) -> tuple[Verdict, KafkaError | None, bool]:
    """Return the action, the error, and whether the batch was certainly not written."""
    batch = answer.batch
    if answer.error_code in WRITTEN_CODES:
        return Verdict.WRITTEN, None, False
    line = batch.line
    subject = f"partition {line.index} of topic {line.topic.name!r}"
    fault = error_of(answer.error_code, subject, answer.message)
    # A duplicate is never refused for its sequence: a batch that is was not written before either.
    unwritten = type(fault) in UNWRITTEN and (
        not batch.doubtful or isinstance(fault, OutOfOrderSequenceNumber)
    )
    # Parts would get other sequences; if the whole was written after all, they are duplicates.
    may_split = batch.count > 1 and not (batch.doubtful and line.numbered)
    if isinstance(fault, MessageTooLarge) and may_split:
        return Verdict.SPLIT, fault, unwritten
    if batch.attempts > retries:
        return Verdict.FAILED, fault, unwritten
    if isinstance(fault, OutOfOrderSequenceNumber) and line.numbered:
        # Expected for a batch behind one that failed.  For the very next sequence it means that
        # the broker has lost its producer state.
        return (Verdict.RENUMBER if line.follows(batch) else Verdict.AGAIN), fault, unwritten
    if isinstance(fault, STRANGERS) and line.numbered:
        return Verdict.RENUMBER, fault, unwritten
    return (Verdict.AGAIN if fault.retriable else Verdict.FAILED), fault, unwritten
