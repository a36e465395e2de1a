"""Requests of a transactional producer to the coordinators of its transactional id and of groups.

    init_producer_id    a producer id and epoch; aborts the id's open transaction, waits for its end
    add_partitions      version 1: before the first batch of a partition
    commit_offsets      offsets of a group, as part of the transaction
    end                 commits or aborts; version 2 returns the identity of the next transaction

Version 1 of the protocol is that of brokers on which `transaction.version` is 0 or 1; with version
2 (KIP-890) partitions and offsets are added by the requests that write them.

Each call retries retriable errors until its timeout; the error raised then is the last cause.
CONCURRENT_TRANSACTIONS means that the previous transaction is being completed, a matter of
milliseconds, and is retried sooner than others.  InvalidProducerEpoch from a coordinator is raised
as ProducerFenced, which brokers use from later request versions on.  No state; thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

from kafkalite.client.net.cluster import GROUP_KEY, TRANSACTION_KEY, Cluster
from kafkalite.client.net.deadline import Backoff, Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.producer_identity import NO_IDENTITY, ProducerIdentity
from kafkalite.client.net.topology import error_of
from kafkalite.config.client import RETRY_BACKOFF_MAX_MS, RETRY_BACKOFF_MS
from kafkalite.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    KafkaError,
    NetworkException,
    NotCoordinator,
    OperationNotAttempted,
    ProducerFenced,
    RequestTimedOut,
    Retriable,
    UnsupportedVersion,
)
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)

T = TypeVar("T")

CONCURRENT_BACKOFF_MS = 20
"""Initial backoff after CONCURRENT_TRANSACTIONS, as in Kafka's clients."""

INIT_VERSION_MAX = 5
ADD_PARTITIONS_VERSION_MAX = 3
"""The later versions are for brokers."""
BUMP_SINCE = 3
"""InitProducerId version from which a producer may ask for its next epoch (KIP-360)."""

PartitionKey = tuple[str, int]


class TransactionVersion(IntEnum):
    """The protocol of a transaction."""

    ADDED = 1
    """Partitions are added by requests of their own; Kafka's versions 0 and 1."""
    IMPLICIT = 2
    """Partitions are added by what is written; the epoch rises with each transaction."""


END_VERSION_MAX = {TransactionVersion.ADDED: 4, TransactionVersion.IMPLICIT: 5}
OFFSETS_VERSION_MAX = {TransactionVersion.ADDED: 4, TransactionVersion.IMPLICIT: 5}
"""EndTxn and TxnOffsetCommit in these versions do what the protocol says."""


class TransactionRequests:
    """The requests of one transactional id."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        settings = cluster.settings
        self._backoff_ms = settings[RETRY_BACKOFF_MS]
        self._backoff_max_ms = settings[RETRY_BACKOFF_MAX_MS]

    @property
    def version(self) -> TransactionVersion:
        """The protocol for a transaction that begins now."""
        is_implicit = self._cluster.feature_level("transaction.version") >= 2
        return TransactionVersion.IMPLICIT if is_implicit else TransactionVersion.ADDED

    def init_producer_id(self, current: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        """Return a new identity, fencing others; with a current one, its next epoch."""
        body = {
            "transactional_id": self.transactional_id,
            "transaction_timeout_ms": self._timeout_ms,
            "producer_id": current.producer_id,
            "producer_epoch": current.epoch,
        }

        def attempt(deadline: Deadline) -> ProducerIdentity:
            if current != NO_IDENTITY:
                self._check_bump(deadline)
            response, _ = self._ask(INIT_PRODUCER_ID, body, INIT_VERSION_MAX, deadline)
            self._check(response.error_code)
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        return self._retry(deadline, attempt)

    def add_partitions(
        self, identity: ProducerIdentity, partitions: Iterable[PartitionKey], deadline: Deadline
    ) -> None:
        """Add partitions to the transaction; one attempt."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [
                {"name": name, "partitions": indexes} for name, indexes in topics.items()
            ],
        }
        response, _ = self._ask(ADD_PARTITIONS_TO_TXN, body, ADD_PARTITIONS_VERSION_MAX, deadline)
        errors = [
            self._error_of(
                each.partition_error_code,
                f"partition {each.partition_index} of topic {topic.name!r}",
            )
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
            if each.partition_error_code
        ]
        # The others are told that theirs was not attempted.
        errors.sort(key=lambda error: isinstance(error, OperationNotAttempted))
        if errors:
            raise errors[0]

    def add_offsets(self, identity: ProducerIdentity, group: str, deadline: Deadline) -> None:
        """Add a group's offsets to the transaction."""
        body = {
            "transactional_id": self.transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "group_id": group,
        }

        def attempt(deadline: Deadline) -> None:
            response, _ = self._ask(ADD_OFFSETS_TO_TXN, body, None, deadline)
            self._check(response.error_code)

        self._retry(deadline, attempt)

    def commit_offsets(
        self,
        identity: ProducerIdentity,
        version: TransactionVersion,
        group: GroupMetadata,
        offsets: Mapping[PartitionKey, tuple[int, str | None]],
        deadline: Deadline,
    ) -> None:
        """Commit offsets of a group with the transaction."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), (offset, metadata) in offsets.items():
            topics.setdefault(topic, []).append(
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_metadata": metadata,
                }
            )
        body: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "group_id": group.group_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "generation_id_or_member_epoch": group.generation_id,
            "member_id": group.member_id,
            "group_instance_id": group.group_instance_id,
            "topics": [{"name": name, "partitions": them} for name, them in topics.items()],
        }

        def attempt(deadline: Deadline) -> None:
            response = self._send_offsets(group, body, version, deadline)
            errors = [
                self._error_of(
                    each.error_code, f"partition {each.partition_index} of topic {topic.name!r}"
                )
                for topic in response.topics
                for each in topic.partitions
                if each.error_code
            ]
            errors.sort(key=lambda error: error.retriable)
            for error in errors:
                if isinstance(error, NotCoordinator | CoordinatorNotAvailable):
                    self._cluster.drop_coordinator(group.group_id)
                raise error

        self._retry(deadline, attempt)

    def _send_offsets(
        self,
        group: GroupMetadata,
        body: dict[str, Any],
        version: TransactionVersion,
        deadline: Deadline,
    ) -> Fields:
        node_id = self._cluster.coordinator(group.group_id, deadline.left_s, GROUP_KEY)
        try:
            connection = self._cluster.connection(node_id, timeout_s=deadline.left_s)
            newest = connection.version(TXN_OFFSET_COMMIT, OFFSETS_VERSION_MAX[version])
            return connection.request(TXN_OFFSET_COMMIT, body, deadline.left_s, newest)
        except NetworkException:
            self._cluster.drop_coordinator(group.group_id)
            raise

    def end(
        self,
        identity: ProducerIdentity,
        version: TransactionVersion,
        commit: bool,
        deadline: Deadline,
    ) -> ProducerIdentity:
        """Commit or abort; return the identity to continue with."""
        body = {
            "transactional_id": self.transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "committed": commit,
        }

        def attempt(deadline: Deadline) -> ProducerIdentity:
            response, used = self._ask(END_TXN, body, END_VERSION_MAX[version], deadline)
            self._check(response.error_code)
            if used < END_VERSION_MAX[TransactionVersion.IMPLICIT] or response.producer_id < 0:
                return identity
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        return self._retry(deadline, attempt)

    def _check_bump(self, deadline: Deadline) -> None:
        """Raise UnsupportedVersion if the coordinator gives no producer its next epoch."""
        node_id = self._coordinator(deadline)
        connection = self._cluster.connection(node_id, timeout_s=deadline.left_s)
        if connection.version(INIT_PRODUCER_ID) < BUMP_SINCE:
            raise UnsupportedVersion(
                "The broker cannot continue a transactional producer after an error (Kafka 2.5);"
                " create a new producer."
            )

    # One request.

    def _coordinator(self, deadline: Deadline) -> int:
        return self._cluster.coordinator(self.transactional_id, deadline.left_s, TRANSACTION_KEY)

    def _ask(
        self, api: Api, body: dict[str, Any], at_most: int | None, deadline: Deadline
    ) -> tuple[Fields, int]:
        """Return the transaction coordinator's response, and the version of the request."""
        node_id = self._coordinator(deadline)
        try:
            connection = self._cluster.connection(node_id, timeout_s=deadline.left_s)
            version = connection.version(api, at_most)
            return connection.request(api, body, deadline.left_s, version), version
        except NetworkException:
            self._cluster.drop_coordinator(self.transactional_id, TRANSACTION_KEY)
            raise

    def _check(self, code: int) -> None:
        """Raise the error of a whole response."""
        if code:
            raise self._error_of(code, f"transactional id {self.transactional_id!r}")

    def _error_of(self, code: int, subject: str) -> KafkaError:
        if code in (InvalidProducerEpoch.code, ProducerFenced.code):
            return ProducerFenced(
                f"transactional id {self.transactional_id!r}: another producer has taken it over,"
                " or its transaction exceeded transaction.timeout.ms; this producer cannot"
                " continue."
            )
        error = error_of(code, subject)
        if isinstance(error, NotCoordinator | CoordinatorNotAvailable):
            self._cluster.drop_coordinator(self.transactional_id, TRANSACTION_KEY)
        return error

    def _retry(self, deadline: Deadline, attempt: Callable[[Deadline], T]) -> T:
        """Return the result of an attempt, repeated after retriable errors until the deadline."""
        others = Backoff(self._backoff_ms, self._backoff_max_ms)
        concurrent = Backoff(CONCURRENT_BACKOFF_MS, self._backoff_max_ms)
        last: KafkaError | None = None
        while True:
            try:
                return attempt(deadline)
            except Retriable as error:
                if last is not None and isinstance(error, RequestTimedOut) and deadline.passed:
                    raise last.copy() from None
                last = error.copy()
                backoff = concurrent if isinstance(error, ConcurrentTransactions) else others
                backoff.failed(error)
                if backoff.left_s >= deadline.left_s:
                    raise
                self._cluster.sleep(backoff.left_s)
