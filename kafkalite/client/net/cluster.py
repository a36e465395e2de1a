"""Cluster: a client's metadata of a cluster, and its connections to brokers.

    cluster = Cluster(producer_settings("127.0.0.1:9092", {}))
    cluster.topic("flights").partitions[0].leader
    cluster.request(1, LIST_OFFSETS, {...})
    cluster.close()

Connections are opened when they are first needed.  There is no thread: each call does its own work
and waits for it, up to its timeout.  After a failure to connect, a broker is not tried for a time
that grows (`reconnect.backoff.ms`); retriable errors are retried with pauses that grow
(`retry.backoff.ms`) until the timeout, and then the last error is raised.  If no known broker
responds, bootstrap.servers are used again.

`topic`, `coordinator` and `leader` retry by themselves.  `request` and `connection` do not: only
the calling code knows which requests may be sent twice.

Thread-safe.  `close` ends the waits of other threads with ClientClosed.  A connection has a
purpose, so that a fetch that waits for records does not delay metadata requests.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from kafkalite._ext.locking import LockGuard
from kafkalite.client.net.connection import BrokerConnection, BrokerIdentity, FinalizedFeatures
from kafkalite.client.net.deadline import Backoff, Deadline
from kafkalite.client.net.settings import ClientSettings
from kafkalite.client.net.topology import (
    NO_LEADER,
    Address,
    NodeMetadata,
    PartitionMetadata,
    TopicMetadata,
    address_text,
    error_of,
    newer,
    parse_node,
    parse_nodes,
    parse_topics,
)
from kafkalite.config.client import (
    ALLOW_AUTO_CREATE_TOPICS,
    CONNECTIONS_MAX_IDLE_MS,
    METADATA_MAX_AGE_MS,
    RECONNECT_BACKOFF_MAX_MS,
    RECONNECT_BACKOFF_MS,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    RebootstrapRequired,
    RequestTimedOut,
    Retriable,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR

log = logging.getLogger(__name__)

T = TypeVar("T")

Use = Callable[[BrokerConnection, Deadline], T]
"""A function of a connection and a deadline."""

GROUP_KEY = 0
TRANSACTION_KEY = 1
"""Coordinator key types of groups and of transactional ids."""

KEY_NAMES = {GROUP_KEY: "group", TRANSACTION_KEY: "transactional id"}


class ClientClosed(RuntimeError):
    """The client was closed, by this thread or another."""

    def __init__(self) -> None:
        super().__init__("The client is closed; create a new one.")


Closed = ClientClosed
"""Former name."""


class MetadataResponse(NamedTuple):
    """The content of a Metadata response."""

    cluster_id: str | None
    nodes: dict[int, NodeMetadata]
    topics: dict[str, TopicMetadata | KafkaError]


def parse_metadata(
    response: Fields, names: list[str] | None, with_internal: bool
) -> MetadataResponse:
    nodes = parse_nodes(response.brokers)
    if names is None:
        names = [
            topic.name
            for topic in response.topics
            if topic.name and (with_internal or not topic.is_internal)
        ]
    return MetadataResponse(response.cluster_id, nodes, parse_topics(response, names, nodes))


class CachedTopic:
    """A topic's metadata, and when it was received."""

    __slots__ = ("since_s", "topic")

    def __init__(self, topic: TopicMetadata) -> None:
        self.topic = topic
        self.since_s = time.monotonic()


class Cluster:
    """A client's metadata of a cluster, and its connections."""

    def __init__(self, settings: ClientSettings, warn_unreachable: bool = False) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._backoffs: dict[Address, Backoff] = {}
        self._same_host: dict[Address, bool] = {}
        self._cluster_id: str | None = None
        self._nodes: dict[int, NodeMetadata] = {}
        self._topics: dict[str, CachedTopic] = {}
        self._names: dict[bytes, str] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._features = FinalizedFeatures(-1, {})
        self._warn_unreachable = warn_unreachable
        self._is_unreachable = False

    # Topics.

    def topic(self, name: str, timeout_s: float | None = None) -> TopicMetadata:
        """Return a topic's metadata, requested if unknown.

        The request creates the topic where brokers and settings allow auto-creation.  The result
        has a leader for at least one partition; if there is none by the timeout, or the topic does
        not exist, its error is raised.
        """
        known = self._topics.get(name)
        if known is None or not known.topic.led:
            return self.retry(timeout_s, lambda deadline: self._requested([name], deadline)[name])
        if time.monotonic() - known.since_s > self.settings[METADATA_MAX_AGE_MS] / 1000:
            known.since_s = time.monotonic()  # one thread refreshes, others use the old metadata
            try:
                return self._requested([name], self.deadline(timeout_s))[name]
            except Retriable:
                pass
        return known.topic

    def refresh(self, *names: str, timeout_s: float | None = None) -> None:
        """Refresh the metadata of these topics, or of all known ones, in one attempt."""
        self._requested(names or tuple(self._topics), self.deadline(timeout_s))

    def leader(
        self, topic: str, partition: int, timeout_s: float | None = None
    ) -> PartitionMetadata:
        """Return the leader of a partition, once it has one."""
        deadline = self.deadline(timeout_s)

        def led(deadline: Deadline) -> PartitionMetadata:
            known = self.topic(topic, deadline.left_s).partitions
            if partition not in known or known[partition].leader == NO_LEADER:
                known = self._requested([topic], deadline)[topic].partitions
            if partition not in known:
                raise error_of(3, f"partition {partition} of topic {topic!r}")
            if known[partition].leader == NO_LEADER:
                raise LeaderNotAvailable(f"Partition {partition} of topic {topic!r} has no leader.")
            return known[partition]

        return self.retry(deadline.left_s, led)

    def update_leader(
        self,
        topic: str,
        partition: int,
        leader: PartitionMetadata,
        endpoints: Iterable[Fields] = (),
    ) -> None:
        """Register a new leader from a response's `current_leader` and `node_endpoints` (KIP-951).

        InvalidRequest if the endpoint is not a valid broker.
        """
        found = parse_nodes(endpoints)
        with LockGuard(self._lock):
            self._nodes = self._nodes | found
            known = self._topics.get(topic)
            if known is None or partition not in known.topic.partitions:
                return
            if leader.leader in self._nodes:
                partitions = known.topic.partitions
                if leader.leader_epoch > partitions[partition].leader_epoch:
                    moved = {**partitions, partition: leader}
                    known.topic = known.topic._replace(partitions=moved)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of a known topic by its id, or None."""
        return self._names.get(topic_id)

    def _requested(self, names: Iterable[str], deadline: Deadline) -> dict[str, TopicMetadata]:
        """Request the metadata of topics; raise the error of the first one that has an error."""
        found = {}
        for name, each in self.describe(names, deadline.left_s).items():
            if isinstance(each, KafkaError):
                raise each
            if not each.led:
                raise LeaderNotAvailable(f"No partition of topic {name!r} has a leader.")
            found[name] = each
        return found

    def describe(
        self, names: Iterable[str], timeout_s: float | None = None, *, create: bool = True
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Request the metadata of topics once; return it, led or not, or the error of each topic.

        Without `create` no topic is created, whatever the settings are.
        """
        requested = list(dict.fromkeys(names))
        return self._register(self._metadata(requested, create, self.deadline(timeout_s)))

    def all_topics(
        self, timeout_s: float | None = None, *, with_internal: bool = False
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Request the metadata of all visible topics once."""
        deadline = self.deadline(timeout_s)
        return self._register(self._metadata(None, False, deadline, with_internal))

    def _register(
        self, found: dict[str, TopicMetadata | KafkaError]
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Register the metadata of topics."""
        with LockGuard(self._lock):
            for name, topic in found.items():
                if isinstance(topic, TopicMetadata):
                    known = self._topics.get(name)
                    found[name] = topic = newer(known.topic if known else None, topic)
                    self._topics[name] = CachedTopic(topic)
                    if topic.topic_id != NO_ID:
                        self._names[topic.topic_id] = name
        return found

    def _metadata(
        self,
        names: list[str] | None,
        create: bool,
        deadline: Deadline,
        with_internal: bool = False,
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Request metadata, register the brokers, and return that of the topics.

        With None as names these are all topics, the internal ones only if that is requested.
        """
        body = {
            "topics": None if names is None else [{"name": name} for name in names],
            "allow_auto_topic_creation": create and self.settings[ALLOW_AUTO_CREATE_TOPICS],
        }

        def request(
            connection: BrokerConnection, deadline: Deadline
        ) -> tuple[MetadataResponse, FinalizedFeatures]:
            response = connection.request(METADATA, body, deadline.left_s)
            if response.error_code:
                raise error_of(response.error_code, "the cluster")
            found = connection.validated(
                lambda: parse_metadata(response, names, with_internal)
            )
            return found, connection.features

        (cluster_id, nodes, topics), features = self._try_any(request, deadline)
        with LockGuard(self._lock):
            if cluster_id != self._cluster_id:
                self._cluster_id = cluster_id
                self._topics.clear()
                self._names.clear()
                self._coordinators.clear()
                self._features = features
            self._nodes = nodes
        return topics

    # Brokers.

    @property
    def cluster_id(self) -> str:
        """The cluster's id, requested if unknown; empty if it has none."""
        return self.retry(None, lambda deadline: self._known_cluster_id(deadline)) or ""

    def node(self, node_id: int) -> NodeMetadata:
        """Return a broker's address, and whether it is on this host."""
        node = self._nodes.get(node_id)
        if node is None:
            self.retry(None, self._known_cluster_id)
            node = self._nodes.get(node_id)
        if node is None:
            raise NetworkException(f"Node {node_id} is not in the metadata of the cluster.")
        return node._replace(same_host=self._same_host.get(node.address))

    @property
    def nodes(self) -> list[int]:
        """The ids of the known brokers."""
        return sorted(self._nodes)

    def _known_cluster_id(self, deadline: Deadline) -> str | None:
        if not self._nodes:
            self._metadata([], False, deadline)
        return self._cluster_id

    def coordinator(
        self, name: str, timeout_s: float | None = None, key_type: int = GROUP_KEY
    ) -> int:
        """Return the node id of the coordinator of a group or transactional id."""
        known = self._coordinators.get((key_type, name))
        if known is not None and known in self._nodes:
            return known
        return self.retry(
            timeout_s, lambda deadline: self._find_coordinator(name, key_type, deadline)
        )

    def drop_coordinator(self, name: str, key_type: int = GROUP_KEY) -> None:
        """Discard a coordinator, so that it is looked up again."""
        with LockGuard(self._lock):
            self._coordinators.pop((key_type, name), None)

    def feature_level(self, name: str) -> int:
        """Return the finalized level of a feature, as the brokers connected so far know it."""
        return self._features.levels.get(name, 0)

    def _find_coordinator(self, name: str, key_type: int, deadline: Deadline) -> int:
        self._known_cluster_id(deadline)
        # Brokers before Kafka 3.0 take one key, later ones several (KIP-699).
        old = {"key": name, "key_type": key_type}
        new = {"coordinator_keys": [name], "key_type": key_type}

        def request(connection: BrokerConnection, deadline: Deadline) -> NodeMetadata:
            body = new if connection.version(FIND_COORDINATOR) >= 4 else old
            response = connection.request(FIND_COORDINATOR, body, deadline.left_s)
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code:
                subject = f"{KEY_NAMES[key_type]} {name!r}"
                raise error_of(found.error_code, subject, found.error_message)
            return connection.validated(lambda: parse_node(found))

        node = self._try_any(request, deadline)
        with LockGuard(self._lock):
            self._nodes = {**self._nodes, node.node_id: node}
            self._coordinators[key_type, name] = node.node_id
        return node.node_id

    # Requests.

    def request(
        self,
        node_id: int | None,
        api: Api,
        body: dict[str, Any],
        *,
        timeout_s: float | None = None,
        at_most: int | None = None,
    ) -> Fields:
        """Send a request to this broker, or any, in the newest common version; return the response.

        Sent once: a connection that ends is a NetworkException.  Error codes in the response are
        left to the calling code.
        """
        deadline = Deadline(self._request_timeout_s if timeout_s is None else timeout_s)
        if node_id is None:
            return self._request_any(api, body, deadline, at_most)
        return self._at(
            self.node(node_id).address,
            "",
            lambda connection, deadline: connection.request(api, body, deadline.left_s, at_most),
            deadline,
        )

    def connection(
        self, node_id: int, purpose: str = "", timeout_s: float | None = None
    ) -> BrokerConnection:
        """Return an open connection to this broker, one for each purpose.

        A purpose of its own gives a client the connection to itself.  A broker that could not be
        reached is not tried before its backoff has passed.
        """
        deadline = Deadline(self._request_timeout_s if timeout_s is None else timeout_s)
        return self._at(
            self.node(node_id).address, purpose, lambda found, deadline: found, deadline
        )

    def backoff_left_s(self, node_id: int) -> float:
        """Return the seconds until this broker is tried again after a failure; 0 if it may be."""
        backoff = self._backoffs.get(self.node(node_id).address)
        return backoff.left_s if backoff else 0.0

    @property
    def _request_timeout_s(self) -> float:
        return self.settings[REQUEST_TIMEOUT_MS] / 1000

    def _at(self, address: Address, purpose: str, use: Use[T], deadline: Deadline) -> T:
        """Use a connection to an address, opened if there is none."""
        self._check()
        connection = self._connection_to(address, purpose)
        if not connection.opened:
            self._open(connection, purpose, deadline)
        try:
            return use(connection, deadline)
        except NetworkException:
            self._check()  # after close() raise ClientClosed instead
            raise

    def _open(self, connection: BrokerConnection, purpose: str, deadline: Deadline) -> None:
        """Open a connection after the broker's backoff, or raise the error of the last attempt."""
        address = connection.address
        backoff = self._backoff_of(address)
        backoff_s = backoff.left_s
        if backoff_s and backoff_s >= deadline.left_s:
            self.sleep(deadline.left_s)
            raise backoff.last_error()
        self.sleep(backoff_s)
        try:
            connection.open(deadline.left_s)
        except BaseException as error:
            self._discard(connection, purpose)
            self._check()
            if isinstance(error, RebootstrapRequired):
                self._rebootstrap()
                error = NetworkException(
                    f"{address_text(address)}: another broker responds at this address now; the"
                    " bootstrap servers are used."
                )
            if isinstance(error, KafkaError):
                backoff.failed(error)
            raise error from None
        backoff.succeeded()
        self._same_host[address] = connection.same_host
        with LockGuard(self._lock):
            # A node that restarts may know older features for a while.
            if connection.features.epoch >= self._features.epoch:
                self._features = connection.features

    def _connection_to(self, address: Address, purpose: str) -> BrokerConnection:
        unused = []
        with LockGuard(self._lock):
            self._check()
            connection = self._connections.get((address, purpose))
            if connection is not None and not connection.is_alive():
                unused.append(connection)
                connection = None
            if connection is None:
                identity = self._expected_identity(address)
                connection = BrokerConnection(address, self.settings, identity)
                self._connections[address, purpose] = connection
                unused += self._idle()
            connection.used_at_s = time.monotonic()
        for old_connection in unused:
            old_connection.close()
        return connection

    def _idle(self) -> list[BrokerConnection]:
        idle_s = self.settings[CONNECTIONS_MAX_IDLE_MS] / 1000
        if idle_s < 0:
            return []
        before_s = time.monotonic() - idle_s
        keys = [
            key
            for key, connection in self._connections.items()
            if connection.closed or (connection.used_at_s < before_s and not connection.outstanding)
        ]
        return [self._connections.pop(key) for key in keys]

    def _expected_identity(self, address: Address) -> BrokerIdentity:
        """Return the broker expected at an address; one that is another responds with an error."""
        if self._cluster_id:
            for node in self._nodes.values():
                if node.address == address:
                    return BrokerIdentity(self._cluster_id, node.node_id)
        return BrokerIdentity()

    def _discard(self, connection: BrokerConnection, purpose: str) -> None:
        key = connection.address, purpose
        with LockGuard(self._lock):
            if self._connections.get(key) is connection:
                del self._connections[key]
        connection.close()

    def _rebootstrap(self) -> None:
        """Discard the known brokers, so that bootstrap.servers are used."""
        with LockGuard(self._lock):
            self._nodes = {}
            self._cluster_id = None

    def _backoff_of(self, address: Address) -> Backoff:
        with LockGuard(self._lock):
            if address not in self._backoffs:
                self._backoffs[address] = Backoff(
                    self.settings[RECONNECT_BACKOFF_MS], self.settings[RECONNECT_BACKOFF_MAX_MS]
                )
            return self._backoffs[address]

    # Requests to any broker.

    def _request_any(
        self, api: Api, body: dict[str, Any], deadline: Deadline, at_most: int | None = None
    ) -> Fields:
        return self._try_any(
            lambda connection, deadline: connection.request(api, body, deadline.left_s, at_most),
            deadline,
        )

    def _try_any(self, use: Use[T], deadline: Deadline) -> T:
        """Use a connection to the first broker that can be reached; each is tried once.

        Raises a retriable error if there was one; otherwise, as when none of them is a Kafka
        broker, the first.
        """
        self._check()
        errors: list[KafkaError] = []
        addresses = self._addresses()
        for number, address in enumerate(addresses):
            share_s = deadline.left_s / (len(addresses) - number)
            limit = deadline.within(min(share_s, self._request_timeout_s))
            try:
                found = self._at(address, "", use, limit)
            except (NetworkException, RequestTimedOut, InvalidRequest) as error:
                errors.append(error)
            else:
                self._is_unreachable = False
                return found
        is_new = self._warn_unreachable and not self._is_unreachable
        if is_new and all(isinstance(e, NetworkException) for e in errors):
            # Once: a consumer only waits meanwhile; its calls return no records, and no error.
            self._is_unreachable = True
            log.warning("No broker can be reached.  error=%s", errors[0])
        retriable_errors = [error for error in errors if error.retriable]
        raise (retriable_errors or errors)[0]

    def _addresses(self) -> list[Address]:
        """Return the addresses to try: by backoff, then connected, known, bootstrap ones."""
        with LockGuard(self._lock):
            connected = [
                address
                for (address, purpose), connection in self._connections.items()
                if not purpose and connection.opened
            ]
            known = [node.address for node in self._nodes.values()]
            backoffs = dict(self._backoffs)
        others = list(self.settings.addresses)
        random.shuffle(known)
        random.shuffle(others)
        addresses = list(dict.fromkeys([*connected, *known, *others]))
        rests = {
            address: backoffs[address].left_s if address in backoffs else 0.0
            for address in addresses
        }
        return sorted(addresses, key=rests.__getitem__)

    # Waiting.

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call with this timeout; None: the default timeout."""
        return Deadline(self.settings.call_timeout_s if timeout_s is None else timeout_s)

    def retry(self, timeout_s: float | None, attempt: Callable[[Deadline], T]) -> T:
        """Return the result of an attempt, repeated after retriable errors until the timeout.

        The error raised then is the cause, rather than the timeout that cut the last attempt short.
        """
        deadline = self.deadline(timeout_s)
        backoff = Backoff(self.settings[RETRY_BACKOFF_MS], self.settings[RETRY_BACKOFF_MAX_MS])
        while True:
            self._check()
            try:
                return attempt(deadline)
            except Retriable as error:
                self._check()
                if backoff.failures and isinstance(error, RequestTimedOut) and deadline.passed:
                    raise backoff.last_error() from None
                backoff.failed(error)
                if backoff.left_s >= deadline.left_s:
                    raise
                self.sleep(backoff.left_s)

    def sleep(self, duration_s: float) -> None:
        """Wait, or raise ClientClosed if the client is closed meanwhile."""
        if duration_s > 0:
            self._closing.wait(duration_s)
        self._check()

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def _check(self) -> None:
        if self._closing.is_set():
            raise ClientClosed
        if os.getpid() != self._pid:
            raise RuntimeError(
                "A client cannot be used after a fork; create a new one in the child."
            )

    def close(self) -> None:
        """Close all connections and end the waits of other threads.  A second call does nothing."""
        if os.getpid() != self._pid:
            # Another thread may have held the locks at the fork.
            connections = list(self._connections.values())
        else:
            self._closing.set()
            with LockGuard(self._lock):
                connections = list(self._connections.values())
                self._connections.clear()
        for connection in connections:
            connection.close()

    def __repr__(self) -> str:
        return f"<cluster at {', '.join(map(address_text, self.settings.addresses))}>"
