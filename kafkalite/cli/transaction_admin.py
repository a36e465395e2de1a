"""TransactionAdmin: the requests by which transactions are listed, described and aborted (KIP-664).

    admin = TransactionAdmin(ClusterClients(bootstrap, profile, properties))
    admin.hanging(admin.producers(admin.partitions()), max_timeout_ms=900_000)

A transaction is hanging if it is open in a partition and its coordinator does not know it, or not
with this partition.  It blocks the last stable offset until it is aborted.  A transaction may
become known only after its partition was described, so only old ones are looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kafkalite.cli.clients import ClusterClients
from kafkalite.cli.group_offsets import PartitionSelection
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.wire import WireClient
from kafkalite.client.net.cluster import TRANSACTION_KEY
from kafkalite.client.net.topology import Address
from kafkalite.errors import (
    BY_CODE,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidTxnState,
    KafkaError,
    Refusal,
    TransactionalIdNotFound,
    UnknownServerError,
)
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.transactions import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)

PARTITIONS_AT_ONCE = 500
"""Maximum number of partitions in a request."""
RETRY_S_MAX, RETRY_PAUSE_S = 10.0, 0.1
"""Time to wait for a coordinator that is loading, and the interval between two requests."""
RETRIED = {
    CoordinatorLoadInProgress.code,
    CoordinatorNotAvailable.code,
    ConcurrentTransactions.code,
}
FENCED_TIMEOUT_MS = 30_000
"""Transaction timeout that a fenced id gets: as in Kafka, the client's request timeout."""
NONE = -1


class ListedTransaction(NamedTuple):
    """A transactional id in the list of its coordinator."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    """The state of a transactional id."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    """Time of the first partition, in milliseconds since 1970; -1 outside of a transaction."""
    partitions: frozenset[PartitionKey]


class ActiveProducer(NamedTuple):
    """A producer that the leader of a partition knows."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int
    """First offset of its open transaction, or -1."""


class TransactionAdmin:
    """Sends the requests, each to the broker that serves it; see the module."""

    def __init__(self, cluster: ClusterClients) -> None:
        self._wire = WireClient(cluster)
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[PartitionKey, int] = {}
        self._replicas: dict[PartitionKey, Sequence[int]] = {}

    def partitions(self, topics: Sequence[str] | None = None) -> list[PartitionKey]:
        """Return the partitions of these topics, or of all; look up their leaders.

        Raises:
            Refusal: A topic does not exist, or cannot be described.
        """
        named = None if topics is None else [{"name": topic} for topic in topics]
        request = {"topics": named, "allow_auto_topic_creation": False}
        response = self._wire.request(METADATA, request)
        self._nodes = {each.node_id: (each.host, each.port) for each in response.brokers}
        found = []
        for topic in response.topics:
            _check(topic.error_code, f"topic {topic.name}")
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                self._leaders[key] = partition.leader_id
                self._replicas[key] = partition.replica_nodes
                found.append(key)
        return sorted(found)

    def selected(
        self, spans: Sequence[PartitionSelection], node_id: int | None = None
    ) -> Sequence[PartitionKey]:
        """Return the selected partitions, or all; look up their leaders.

        Args:
            spans: Topics, or partitions of topics; () for all.
            node_id: Only partitions with a replica on this node; None for all.

        Raises:
            Refusal: A selected topic or partition does not exist.
        """
        known = self.partitions([each.topic for each in spans] or None)
        chosen: list[PartitionKey] = [] if spans else known
        for topic, indexes in spans:
            of_topic = [key for key in known if key[0] == topic]
            for index in indexes or ():
                if (topic, index) not in of_topic:
                    raise Refusal(
                        f"topic {topic!r} has no partition {index};"
                        f" it has {len(of_topic)} partitions"
                    )
            chosen += of_topic if indexes is None else [(topic, index) for index in indexes]
        return [
            key
            for key in dict.fromkeys(chosen)
            if node_id is None or node_id in self._replicas[key]
        ]

    def listed(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = NONE,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Return the transactional ids of all coordinators, by name.

        Args:
            states: Only these states; () for all.
            producer_ids: Only these producers; () for all.
            min_duration_ms: Only transactions that are open for longer; -1 for all.
            pattern: Only ids that match this regular expression (RE2) as a whole.

        Raises:
            Refusal: A coordinator refused, or a state is unknown to it.
        """
        self._look_up_nodes()
        request: dict[str, Any] = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
        }
        if min_duration_ms >= 0:
            request["duration_filter"] = min_duration_ms
        if pattern is not None:
            request["transactional_id_pattern"] = pattern
        found = []
        for node_id, address in sorted(self._nodes.items()):
            response = self._retried(LIST_TRANSACTIONS, request, address)
            _check(response.error_code, f"node {node_id}")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise Refusal(f"node {node_id} does not know the transaction state {unknown}")
            found += [
                ListedTransaction(
                    each.transactional_id, node_id, each.producer_id, each.transaction_state
                )
                for each in response.transaction_states
            ]
        return sorted(found)

    def described(self, transactional_ids: Iterable[str]) -> list[DescribedTransaction]:
        """Return the state of these transactional ids; unknown ones are left out.

        Raises:
            Refusal: A coordinator is not available, or refused.
        """
        found = []
        for transactional_id in dict.fromkeys(transactional_ids):
            node_id, address = self._coordinator(transactional_id)
            response = self._retried(
                DESCRIBE_TRANSACTIONS, {"transactional_ids": [transactional_id]}, address
            )
            for state in response.transaction_states:
                if state.error_code == TransactionalIdNotFound.code:
                    continue
                _check(state.error_code, f"transactional id {transactional_id}")
                found.append(_described(state, node_id))
        return found

    def producers(
        self, partitions: Sequence[PartitionKey], node_id: int | None = None
    ) -> list[ActiveProducer]:
        """Return the producers that the leaders of these partitions know, or that one node knows.

        Raises:
            Refusal: A partition has no leader, or a node does not exist or refused.
        """
        by_node: dict[Address, list[PartitionKey]] = {}
        for key in partitions:
            address = self.leader_of(key) if node_id is None else self._node(node_id)
            by_node.setdefault(address, []).append(key)
        found: list[ActiveProducer] = []
        for address, keys in sorted(by_node.items()):
            remaining = iter(keys)
            while some := list(islice(remaining, PARTITIONS_AT_ONCE)):
                response = self._wire.request(
                    DESCRIBE_PRODUCERS, {"topics": _by_topic(some)}, address
                )
                found += _producers(response)
        return sorted(found)

    def hanging(
        self, producers: Iterable[ActiveProducer], max_timeout_ms: int
    ) -> list[ActiveProducer]:
        """Return those of the producers whose open transaction no coordinator knows.

        Args:
            producers: Producers of any partitions.
            max_timeout_ms: The longest timeout of a transaction; younger ones are not looked at.
        """
        oldest_ms = time.time() * 1000 - max_timeout_ms
        candidates = [
            each
            for each in producers
            if each.start_offset >= 0 and each.last_timestamp_ms <= oldest_ms
        ]
        if not candidates:
            return []
        producer_ids = sorted({each.producer_id for each in candidates})
        ids = [each.transactional_id for each in self.listed(producer_ids=producer_ids)]
        known = {
            (each.producer_id, partition)
            for each in self.described(ids)
            for partition in each.partitions
        }
        return [
            each
            for each in candidates
            if (each.producer_id, (each.topic, each.partition)) not in known
        ]

    def transaction_at(self, partition: PartitionKey, start_offset: int) -> ActiveProducer | None:
        """Return the producer whose open transaction begins at this offset, or None.

        Raises:
            Refusal: The partition does not exist or has no leader, or the leader refused.
        """
        topic, index = partition
        partitions = self.selected([PartitionSelection(topic, (index,))])
        for producer in self.producers(partitions):
            if producer.start_offset == start_offset >= 0:
                return producer
        return None

    def fence(self, transactional_id: str) -> None:
        """Fence the producers of a transactional id, and abort its open transaction.

        As in Kafka, an unknown id is created.

        Raises:
            Refusal: A coordinator is not available, or refused.
        """
        _, address = self._coordinator(transactional_id)
        request = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": FENCED_TIMEOUT_MS,
        }
        response = self._retried(INIT_PRODUCER_ID, request, address)
        _check(response.error_code, f"transactional id {transactional_id}")

    def abort(self, producer: ActiveProducer) -> None:
        """Abort the open transaction of a producer in one partition, at the partition's leader.

        Raises:
            Refusal: The leader refused.
        """
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": producer.topic, "partition_indexes": [producer.partition]}],
            "coordinator_epoch": max(producer.coordinator_epoch, 0),
        }
        leader = self.leader_of((producer.topic, producer.partition))
        response = self._wire.request(WRITE_TXN_MARKERS, {"markers": [marker]}, leader)
        codes = [
            partition.error_code
            for each in response.markers
            for topic in each.topics
            for partition in topic.partitions
        ]
        for code in codes or [InvalidTxnState.code]:
            _check(code, f"partition {producer.topic}-{producer.partition}")

    def leader_of(self, partition: PartitionKey) -> Address:
        """Return the address of a partition's leader; raise Refusal if it has none.

        The partition is one of `partitions`.
        """
        leader = self._nodes.get(self._leaders[partition])
        if leader is None:
            raise Refusal(f"partition {partition[0]}-{partition[1]} has no leader; retry later")
        return leader

    # Internals.

    def _node(self, node_id: int) -> Address:
        if node_id not in self._nodes:
            raise Refusal(f"there is no broker {node_id}")
        return self._nodes[node_id]

    def _look_up_nodes(self) -> None:
        if not self._nodes:
            self.partitions([])

    def _coordinator(self, transactional_id: str) -> tuple[int, Address]:
        request = {"coordinator_keys": [transactional_id], "key_type": TRANSACTION_KEY}
        (found,) = self._wire.request(FIND_COORDINATOR, request).coordinators
        _check(found.error_code, f"transactional id {transactional_id}")
        return found.node_id, (found.host, found.port)

    def _retried(self, api: Api, request: Mapping[str, Any], at: Address) -> Fields:
        """Send a request until its coordinator is loaded and has ended the id's transaction."""
        deadline = time.monotonic() + RETRY_S_MAX
        while True:
            response = self._wire.request(api, request, at)
            codes = {each.error_code for each in _results(response)}
            if not codes & RETRIED or time.monotonic() >= deadline:
                return response
            time.sleep(RETRY_PAUSE_S)


def _results(response: Fields) -> Iterable[Fields]:
    """Return the parts of a response that have an error code of the coordinator."""
    return [response] if hasattr(response, "error_code") else response.transaction_states


def _described(state: Fields, node_id: int) -> DescribedTransaction:
    partitions = frozenset(
        (topic.topic, index) for topic in state.topics for index in topic.partitions
    )
    return DescribedTransaction(
        state.transactional_id,
        node_id,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms,
        partitions,
    )


def _producers(response: Fields) -> Iterable[ActiveProducer]:
    for topic in response.topics:
        for partition in topic.partitions:
            _check(partition.error_code, f"partition {topic.name}-{partition.partition_index}")
            for each in partition.active_producers:
                yield ActiveProducer(
                    topic.name,
                    partition.partition_index,
                    each.producer_id,
                    each.producer_epoch,
                    each.coordinator_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    each.current_txn_start_offset,
                )


def _by_topic(keys: Iterable[PartitionKey]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, index in keys:
        topics.setdefault(topic, []).append(index)
    return [{"name": topic, "partition_indexes": found} for topic, found in topics.items()]


def _check(code: int, subject: str) -> None:
    """Raise Refusal if a part of a response has an error code."""
    if code:
        error: type[KafkaError] = BY_CODE.get(code, UnknownServerError)
        raise Refusal(f"{subject}: {str(error()).rstrip('.')}")
