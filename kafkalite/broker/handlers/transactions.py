"""Transactions and idempotent producers: so far, who writes.

InitProducerId      v0–v5   v3 tells the id and epoch the producer has (KIP-360)
DescribeProducers   v0      the producers a leader still remembers for a partition (KIP-664)

An idempotent producer gets a fresh id and epoch 0 each time it asks, also when it tells the id it
has: it counts its epochs itself, and nobody else may have written under a fresh id.

Left out: transactions, and two-phase commit with them (v6).  A transactional id is answered with
UNSUPPORTED_VERSION.  Of the errors that are true it is one that ends a Java producer at once; a
retriable one would keep it asking.  Clients ask FindCoordinator first and end there: librdkafka
at once only by TRANSACTIONAL_ID_AUTHORIZATION_FAILED, with `Transactions are not served.` beside
it.  No permission is missing, but most clients say so: librdkafka (confluent-kafka, kcat) alone
shows the sentence, behind `Broker: Transactional Id authorization failed`; Java's producer and
tools raise TransactionalIdAuthorizationException, kafka-python
TransactionalIdAuthorizationFailedError, aiokafka TransactionalIdAuthorizationFailed, and KafkaJS
KafkaJSGroupCoordinatorNotFound (`Failed to find group coordinator`).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalite.broker.handlers import At, Caller, Response, check_named, each, fault_fields, serves
from kafkalite.broker.later import Later
from kafkalite.broker.security import (
    CLUSTER,
    CLUSTER_NAME,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    WRITE,
)
from kafkalite.broker.stepping import Work
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS, INIT_PRODUCER_ID

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.storage.producer_state import Producer

NONE = -1


@serves(INIT_PRODUCER_ID, versions="0-5", at=At.ANY)
def init_producer_id(node: Node, request: Any, caller: Caller) -> Response | Later[Response]:
    """Give a producer the id under which its batches are told apart."""
    try:
        _check(node, request, caller)
    except KafkaError as fault:
        return {**fault_fields(fault, messages=False), "producer_epoch": NONE}
    return node.producer_ids.take().map(
        lambda producer_id: {"producer_id": producer_id, "producer_epoch": 0}
    )


def _check(node: Node, request: Any, caller: Caller) -> None:
    if request.transactional_id == "":
        raise InvalidRequest("A transactional id is not empty.")
    if request.transactional_id is not None:
        raise UnsupportedVersion("Transactions are not served.")
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        raise InvalidRequest("A producer tells both its id and its epoch, or neither.")
    if not _may_write(node, caller):
        raise ClusterAuthorizationFailed()


def _may_write(node: Node, caller: Caller) -> bool:
    # KIP-679: whoever may write to some topic may do so idempotently.
    return caller.may(IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME) or any(
        caller.may(WRITE, TOPIC, name) for name in node.image.topics
    )


# -- DescribeProducers ---------------------------------------------------------------------------


@serves(DESCRIBE_PRODUCERS, versions="0", at=At.LEADER)
def describe_producers(node: Node, request: Any, caller: Caller) -> Work[Response]:
    """The producers a leader still remembers, partition by partition."""
    named = Counter(
        (topic.name, index) for topic in request.topics for index in topic.partition_indexes
    )

    def partition(name: str, index: int) -> Response:
        caller.must(READ, TOPIC, name)
        check_named(named[name, index])
        log = node.replicas.leader(name, index).log
        return {"active_producers": [_described(producer) for producer in log.producers]}

    topics: list[Response] = []

    for topic in request.topics:
        partitions: list[Response] = []
        topics.append({"name": topic.name, "partitions": partitions})
        for index in topic.partition_indexes:
            partitions += each([index], "partition_index", partial(partition, topic.name))
            yield
        yield
    return {"topics": topics}


def _described(producer: Producer) -> Response:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.batches[-1].last_sequence if producer.batches else NONE,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.txn_first_offset,
    }
