"""What an answer to a batch means: written, to be sent again, or failed; and what is known of it.

An error says one of two things about the log: surely nothing was written, or nobody knows.  The
difference decides whether a batch may get another number (line.py).
"""

from __future__ import annotations

from enum import Enum

from kafkalite import errors
from kafkalite.client.net.topology import fault_of
from kafkalite.client.producer.ring_transport import Answer
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
"""Errors with which a broker says that it has not touched the log."""

STRANGERS = (InvalidProducerEpoch, UnknownProducerId)
"""Errors with which it says that it does not know who is numbering."""

WRITTEN_CODES = (0, DuplicateSequenceNumber.code)


class Verdict(Enum):
    WRITTEN = "it lies in the log"
    AGAIN = "the same once more"
    RENUMBER = "once more, under a new identity"
    SPLIT = "once more, in two parts"
    FAILED = "given up"


def judge(answer: Answer, retries: int) -> tuple[Verdict, KafkaError | None, bool]:
    """What is to be done, why, and whether surely nothing was written."""
    batch = answer.batch
    if answer.error_code in WRITTEN_CODES:
        return Verdict.WRITTEN, None, False
    line = batch.line
    subject = f"partition {line.index} of topic {line.topic.name!r}"
    fault = fault_of(answer.error_code, subject, answer.message)
    # A duplicate is never refused for its number: who is, was not written before either.
    unwritten = type(fault) in UNWRITTEN and (
        not batch.doubtful or isinstance(fault, OutOfOrderSequenceNumber)
    )
    # Parts would have other numbers, and should the whole be written after all, be written twice.
    may_split = batch.count > 1 and not (batch.doubtful and line.numbered)
    if isinstance(fault, MessageTooLarge) and may_split:
        return Verdict.SPLIT, fault, unwritten
    if batch.attempts > retries:
        return Verdict.FAILED, fault, unwritten
    if isinstance(fault, OutOfOrderSequenceNumber) and line.numbered:
        # Behind one that failed this is what must come; of the very next it means that the broker
        # has forgotten, or was made to forget.
        return (Verdict.RENUMBER if line.follows(batch) else Verdict.AGAIN), fault, unwritten
    if isinstance(fault, STRANGERS) and line.numbered:
        return Verdict.RENUMBER, fault, unwritten
    return (Verdict.AGAIN if fault.retriable else Verdict.FAILED), fault, unwritten
