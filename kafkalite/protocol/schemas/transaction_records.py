"""Records of `__transaction_state`, in Kafka's own format: the state of each transactional id.

    key      2 bytes version 0, transactional id
    value    2 bytes version 0 or 1, then the fields; null: the transactional id has expired

Version 1 is the flexible one, written once transaction.version is 1 or higher (KIP-890).  Kafka
reads what is written here, and both versions that Kafka wrote can be read.

Source: TransactionLogKey and TransactionLogValue of Apache Kafka; KIP-98, KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct as Packing
from struct import error as Unpackable
from typing import Any, NamedTuple, TypeAlias

from kafkalite.errors import CorruptMessage, InvalidRequest
from kafkalite.protocol.schema import RESPONSE_UNITS_MAX, MessageSchema
from kafkalite.protocol.types import Array, Int8, Int16, Int32, Int64, String, Struct

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIME = -1
NO_TIMEOUT_MS = (1 << 31) - 1
"""The timeout of a transaction with two-phase commit: it never times out (KIP-939)."""

TopicPartition: TypeAlias = tuple[str, int]
"""Topic name and partition index."""


class TransactionState(IntEnum):
    """State of a transactional id; the number is its id in the record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """Return the state's name in DescribeTransactions, such as `PrepareCommit`."""
        return self.name.title().replace("_", "")


class Transaction(NamedTuple):
    """State of a transactional id and of its current or last transaction."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int = NO_TIME
    start_ms: int = NO_TIME  # of the transaction
    previous_producer_id: int = NO_PRODUCER_ID  # the producer id before this record
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after this transaction: if the epochs are used up, or the next epoch is
    set."""
    transaction_version: int = 0  # of the client, or of the broker if it aborted
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch of the producer that ends a transaction kept for it, and after Prepare of the one
    that continues (KIP-939)."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the present one, which a repeated InitProducerId names.  Not in the record:
    after a restart the repeated request is refused, as in Kafka."""


class TransactionRecord(NamedTuple):
    """One record: a transactional id with its state; None: it has expired."""

    transactional_id: str
    transaction: Transaction | None
    version: int = 1


KEY = MessageSchema("key of a transactional id", Struct(transactional_id=String()), versions="0")
VALUE = MessageSchema(
    "transaction",
    Struct(
        producer_id=Int64(),
        producer_epoch=Int16(),
        transaction_timeout_ms=Int32(),
        transaction_status=Int8(),
        transaction_partitions=Array(
            Struct(topic=String(), partition_ids=Array(Int32())), nullable="0+"
        ),
        transaction_last_update_timestamp_ms=Int64(),
        transaction_start_timestamp_ms=Int64(),
        previous_producer_id=Int64("1+", tag=0, default=NO_PRODUCER_ID),
        next_producer_id=Int64("1+", tag=1, default=NO_PRODUCER_ID),
        client_transaction_version=Int16("1+", tag=2, default=0),
        next_producer_epoch=Int16("1+", tag=3, default=NO_PRODUCER_EPOCH),
    ),
    versions="0-1",
    flexible="1+",
    units_max=RESPONSE_UNITS_MAX,
)

STATES = {state.value: state for state in TransactionState}
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

VERSION = Packing(">h")
KEY_VERSION = 0


def write(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record; None as value is a tombstone."""
    key = VERSION.pack(KEY_VERSION) + KEY.write(
        KEY_VERSION, {"transactional_id": record.transactional_id}
    )
    transaction = record.transaction
    if transaction is None:
        return key, None
    partitions = None
    if transaction.state is not TransactionState.EMPTY:
        partitions = _topics(transaction.partitions) if transaction.partitions else ()
    value = VALUE.write(record.version, {
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "transaction_timeout_ms": transaction.timeout_ms,
        "transaction_status": int(transaction.state),
        "transaction_partitions": partitions,
        "transaction_last_update_timestamp_ms": transaction.last_update_ms,
        "transaction_start_timestamp_ms": transaction.start_ms,
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "client_transaction_version": transaction.transaction_version,
        "next_producer_epoch": transaction.next_producer_epoch,
    })  # fmt: skip
    return key, VERSION.pack(record.version) + value


def read(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record; return None if the version of its key or value is unknown.

    Raises:
        CorruptMessage: The bytes are not a record of their version.
    """
    if _version(key) != KEY_VERSION:
        return None
    transactional_id = _fields(KEY, KEY_VERSION, key)["transactional_id"]
    if value is None:
        return TransactionRecord(transactional_id, None)
    version = _version(value)
    if version not in VALUE.versions:
        return None
    fields = _fields(VALUE, version, value)
    state = STATES.get(fields["transaction_status"])
    if state is None:
        raise CorruptMessage(
            f"Transactional id {transactional_id!r} has the unknown state"
            f" {fields['transaction_status']}."
        )
    topics = fields["transaction_partitions"]
    transaction = Transaction(
        fields["producer_id"],
        fields["producer_epoch"],
        fields["transaction_timeout_ms"],
        state,
        frozenset(
            (topic["topic"], index) for topic in topics for index in topic["partition_ids"]
        ) if topics else NO_PARTITIONS,
        fields["transaction_last_update_timestamp_ms"],
        fields["transaction_start_timestamp_ms"],
        fields["previous_producer_id"],
        fields["next_producer_id"],
        fields["client_transaction_version"],
        fields["next_producer_epoch"],
    )
    return TransactionRecord(transactional_id, transaction, version)


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition indexes of each topic, both in order."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def _topics(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [
        {"topic": topic, "partition_ids": indexes}
        for topic, indexes in partitions_by_topic(partitions).items()
    ]


def _version(content: bytes) -> int:
    try:
        return int(VERSION.unpack_from(content)[0])
    except Unpackable:
        raise CorruptMessage("A record of a transaction is shorter than its version.") from None


def _fields(message: MessageSchema, version: int, content: bytes) -> dict[str, Any]:
    try:
        return message.read(version, content, VERSION.size)
    except InvalidRequest as error:
        raise CorruptMessage(str(error)) from None
