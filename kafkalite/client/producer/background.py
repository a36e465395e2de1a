"""Background thread of a producer: all work that no user thread waits for.

It sends batches whose linger time is over and everything that is sent over TCP, connects, opens
rings, refreshes metadata, requests a producer id, expires batches, and reads the responses that no
other thread reads.  While other threads use the rings it only polls every few milliseconds: waking
it for each response would cost more than handling the response.

Blocking calls (connecting, requests) are made without the lock.

Left out: a thread per broker.  A broker that takes no bytes, or does not respond while being
connected to, delays batches to other brokers over TCP by some seconds; rings are not delayed.
"""

from __future__ import annotations

import logging
import math
import select
import threading
import time
from collections.abc import Callable

from kafkalite.client.net.cluster import ClientClosed, Cluster
from kafkalite.client.net.deadline import Backoff
from kafkalite.client.net.local_socket import close_all
from kafkalite.client.net.producer_identity import ProducerIdentity
from kafkalite.client.net.topology import TopicMetadata, error_of
from kafkalite.client.net.transaction_requests import TransactionVersion
from kafkalite.client.producer.partition_queue import PartitionQueue
from kafkalite.client.producer.producer_node import ProducerNode
from kafkalite.client.producer.ring_transport import open_ring
from kafkalite.client.producer.sender import Sender
from kafkalite.client.producer.state import TICK_S
from kafkalite.client.producer.tcp_sender import TcpSender
from kafkalite.client.producer.tcp_transport import TcpTransport
from kafkalite.client.producer.transaction_partitions import TransactionPartitions
from kafkalite.config.client import (
    CLIENT_ID,
    METADATA_MAX_AGE_MS,
    NATIVE,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    TRANSACTIONAL_ID,
)
from kafkalite.errors import KafkaError, NetworkException
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID

EXPIRE_EVERY_S = 0.5
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 5.0
CALL_TIMEOUT_S_MIN = 1.0
"""Minimum timeout of a blocking call: batches may expire this much after delivery.timeout.ms."""
PURPOSE = "produce"

log = logging.getLogger(__name__)


class BackgroundThread:
    """The thread, from `start` until `stop`; it sleeps while there is nothing to do."""

    def __init__(self, sender: Sender, cluster: Cluster, finish: Callable[[], None]) -> None:
        """Create the thread; it calls `finish` once, when its loop has ended."""
        self._sender = sender
        self._state = sender.state
        self._wakeup = sender.state.wakeup
        self._cluster = cluster
        self._tcp = TcpSender(sender, cluster)
        self._partitions = TransactionPartitions(sender, cluster)
        self._finish = finish
        self._stopped = False
        self._draining = False
        self._opened_count = 0
        self._expired_s = time.monotonic()
        self._refreshed_s = time.monotonic()
        settings = self._settings = sender.state.settings
        backoff_ms = settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS]
        self._producer_id_backoff = Backoff(*backoff_ms)
        self._metadata_backoff = Backoff(*backoff_ms)
        self._thread = threading.Thread(
            target=self._run, name=f"kafkalite-producer-{id(sender):x}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._sender.epoll.register(self._wakeup, select.EPOLLIN)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread.  Call in a locked section, as the thread closes its event in one."""
        self._stopped = True
        self._wakeup.set()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the thread to end; return whether it did within the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def drain(self) -> None:
        """Send everything, then end the thread.  Takes no lock: finalizers call it."""
        self._draining = True
        self._wakeup.set()

    # The loop.

    def _run(self) -> None:
        sender, state = self._sender, self._state
        sender.background_id = threading.get_ident()
        while not self._stopped:
            try:
                sleep_s = sender.locked(self._sleep_s)
                events = sender.epoll.poll(sleep_s)
                sender.locked(self._handle_events, events)
                self._tcp.exchange()
                state.callbacks.run_callbacks()
                self._make_blocking_calls()
                if (
                    self._draining
                    and not sender.locked(sender.flush_lingering)
                    and not state.active_queues
                ):
                    self._stopped = True
            except ClientClosed:
                break
            except SystemExit:
                log.exception(
                    "A delivery callback called sys.exit(), which cannot end the program from the"
                    " producer's background thread; the thread continues."
                )
            except BaseException:
                # Continue: without this thread nothing is sent over TCP.
                if not self._stopped:
                    log.exception("The producer's background thread failed; it continues.")
                    time.sleep(TICK_S)
        self._finish()

    def _sleep_s(self) -> float:
        """Return the seconds to sleep, -1 for no limit, and arm the wake-ups of the rings."""
        sender, state = self._sender, self._state
        now_s = time.monotonic()
        others_work = state.opened_count != self._opened_count
        self._opened_count = state.opened_count
        until_s = now_s + TICK_S if others_work else state.callbacks.report_due_s
        for queue in state.active_queues:
            until_s = min(until_s, self._due_s(queue, now_s))
        for node in sender.nodes.values():
            if node.tcp is not None:
                until_s = min(until_s, node.tcp.due_s)
            transport = node.ring
            if transport is None or not (transport.in_flight or transport.full):
                continue
            if transport.unwoken_size:
                until_s = min(until_s, now_s + TICK_S)
            if now_s < transport.leased_until_s:
                until_s = min(until_s, transport.leased_until_s)
            elif transport.is_watched or not others_work:
                try:
                    until_s = until_s if transport.arm_wakeup() else now_s
                except NetworkException as error:
                    sender.abandon_ring(node, error)
                    until_s = now_s
        if state.active_queues:
            until_s = min(until_s, self._expired_s + EXPIRE_EVERY_S)
        until_s = min(until_s, self._blocking_calls_due_s(now_s))
        self._wakeup.sleeps_until_s = until_s
        return max(0.0, until_s - now_s) if until_s < math.inf else -1.0

    def _due_s(self, queue: PartitionQueue, now_s: float) -> float:
        """Return the time at which the queue's next batch becomes ready by time alone."""
        if queue.in_flight >= len(queue.batches):
            return math.inf
        batch = queue.batches[queue.in_flight]
        due_s = batch.not_before_s
        if batch is queue.open_batch and not batch.send_immediately:
            due_s = max(due_s, batch.due_s)
        # A batch already due waits for another event, which wakes this thread.
        return due_s if due_s > now_s else math.inf

    def _handle_events(self, events: list[tuple[int, int]]) -> None:
        """Handle events and responses, and send ready batches."""
        sender = self._sender
        self._wakeup.clear()
        now_s = time.monotonic()
        self._wakeup.sleeps_until_s = now_s
        ready = {descriptor for descriptor, _ in events}
        for node in list(sender.nodes.values()):
            transport = node.ring
            if transport is None:
                continue
            try:
                if transport.local.fileno() in ready:
                    _, descriptors = transport.local.receive() or (None, [])
                    close_all(descriptors)
                    raise NetworkException("The node closed the ring.")
                if now_s >= transport.leased_until_s:
                    transport.disarm_wakeup()
                    sender.epoll.modify(transport.ring.fileno(), select.EPOLLIN)
                    sender.read_ring(node, now_s)
                    if transport.refused_unacked:
                        transport.refused_unacked = False
                        self._state.refused_unacked(node.node_id)
            except NetworkException as error:
                sender.abandon_ring(node, error)
            if transport.has_responded and node.ring is transport:
                node.ring_backoff.succeeded()
                transport.has_responded = False
            if node.ring is transport and transport.is_overdue(now_s):
                sender.abandon_ring(
                    node, NetworkException("No response within request.timeout.ms.")
                )
        self._state.drop_unsent()
        for queue in list(self._state.active_queues):
            sender.send_ready(queue, now_s)
        sender.wake_nodes()
        self._expire(now_s)

    def _expire(self, now_s: float) -> None:
        if now_s - self._expired_s >= EXPIRE_EVERY_S:
            self._expired_s = now_s
            self._state.expire(now_s)

    # Blocking calls: connections, rings, producer ids, metadata.

    def _blocking_calls_due_s(self, now_s: float) -> float:
        """Return the time at which the next blocking call is due; infinity if none is needed."""
        due_s = math.inf
        for node in self._sender.nodes.values():
            if node.tcp is None and self._is_needed(node):
                due_s = min(due_s, now_s + node.tcp_backoff.left_s)
            elif self._needs_ring(node):
                due_s = min(due_s, now_s + node.ring_backoff.left_s)
        if self._needs_producer_id():
            due_s = min(due_s, now_s + self._producer_id_backoff.left_s)
        if self._partitions.are_missing:
            due_s = min(due_s, now_s + self._partitions.backoff_left_s)
        if self._needs_metadata():
            due_s = min(due_s, now_s + self._metadata_backoff.left_s)
        return due_s

    def _is_needed(self, node: ProducerNode) -> bool:
        """Return whether batches are queued for this node, or its transport is not chosen yet."""
        if not node.ring_tried:
            return True
        return any(queue.leader == node.node_id for queue in self._state.active_queues)

    def _needs_ring(self, node: ProducerNode) -> bool:
        if node.ring is not None or node.tcp is None or not node.tcp.connection.same_host:
            return False
        return self._may_use_rings and self._is_needed(node)

    @property
    def _may_use_rings(self) -> bool:
        """True unless rings are disabled; a ring adds partitions to transactions, as version 2."""
        transaction = self._state.transaction
        return self._settings[NATIVE] == "auto" and (
            transaction is None or transaction.version is TransactionVersion.IMPLICIT
        )

    def _needs_producer_id(self) -> bool:
        """Return whether a producer id must be requested.

        Only once a leader is known: a producer that writes nothing needs none.  A transactional
        producer requests its own before it sends (transaction_calls.py).
        """
        state = self._state
        return state.transaction is None and state.needs_producer_id and bool(self._sender.nodes)

    def _needs_metadata(self) -> bool:
        state = self._state
        if state.has_refused_unacked:
            return True
        if not state.active_queues:
            return False
        if state.stale_topics or any(queue.leader < 0 for queue in state.active_queues):
            return True
        age_s = time.monotonic() - self._refreshed_s
        return age_s > self._settings[METADATA_MAX_AGE_MS] / 1000

    def _make_blocking_calls(self) -> None:
        """Make the blocking calls that are due."""
        changed = False
        for node in list(self._sender.nodes.values()):
            if node.tcp is None and self._is_needed(node) and not node.tcp_backoff.left_s:
                self._connect(node)
                self._expire_batches()
                changed = True
            if self._needs_ring(node) and not node.ring_backoff.left_s:
                self._attach(node)
                changed = True
        if self._needs_producer_id() and not self._producer_id_backoff.left_s:
            self._request_producer_id()
            self._expire_batches()
            changed = True
        if self._partitions.are_missing and not self._partitions.backoff_left_s:
            self._partitions.add(self._timeout_s(REQUEST_TIMEOUT_S))
            self._expire_batches()
            changed = True
        if self._needs_metadata() and not self._metadata_backoff.left_s:
            self._refresh_metadata()
            self._expire_batches()
            changed = True
        if changed:
            self._wakeup.set()
            self._sender.notify_progress()

    def _expire_batches(self) -> None:
        """Fail the batches that expired during a blocking call, and run their callbacks."""
        self._sender.locked(self._expire, time.monotonic())
        self._state.callbacks.run_callbacks()

    def _timeout_s(self, limit_s: float) -> float:
        """Return the timeout of a blocking call: until a batch expires, at most `limit_s`."""
        expires_at_s = self._sender.locked(lambda: self._state.expires_at_s)
        return min(limit_s, max(expires_at_s - time.monotonic(), CALL_TIMEOUT_S_MIN))

    def _connect(self, node: ProducerNode) -> None:
        sender, state = self._sender, self._state
        try:
            timeout_s = self._timeout_s(CONNECT_TIMEOUT_S)
            connection = self._cluster.connection(node.node_id, PURPOSE, timeout_s)
        except KafkaError as error:
            node.tcp_backoff.failed(error)
            # The partitions may have another leader by now.
            state.expire_metadata_of(node.node_id)
            return
        node.tcp_backoff.succeeded()
        transport = TcpTransport(
            node.node_id, connection, state.acks, state.timeout_ms, state.in_flight_max
        )
        sender.epoll.register(transport.fileno(), select.EPOLLIN)
        node.tcp = transport
        if not connection.same_host or not self._may_use_rings:
            node.ring_tried = True

    def _attach(self, node: ProducerNode) -> None:
        """Open the node's ring, or register that there is none for now."""
        sender = self._sender
        transport = None
        try:
            cluster_id = self._cluster.cluster_id
            port = self._cluster.node(node.node_id).port
            transport = open_ring(
                cluster_id, node.node_id, port, self._settings[CLIENT_ID],
                self._settings[TRANSACTIONAL_ID], self._state.timeout_ms,
            )  # fmt: skip
        except (KafkaError, OSError) as error:
            log.debug(
                "Ring could not be opened; TCP is used.  node=%d error=%s", node.node_id, error
            )
        if transport is None:
            node.ring_backoff.failed(NetworkException("The node offers no ring."))
        else:
            sender.epoll.register(transport.local.fileno(), select.EPOLLIN)
            sender.epoll.register(transport.ring.fileno(), select.EPOLLIN)
            node.ring = transport
        node.ring_tried = True

    def _request_producer_id(self) -> None:
        """Request a producer id (InitProducerId, KIP-98)."""
        state = self._state
        body = {
            "transactional_id": None,
            "transaction_timeout_ms": 0x7FFFFFFF,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        try:
            timeout_s = self._timeout_s(REQUEST_TIMEOUT_S)
            response = self._cluster.request(None, INIT_PRODUCER_ID, body, timeout_s=timeout_s)
            if response.error_code:
                raise error_of(response.error_code, "producer id")
        except KafkaError as error:
            self._producer_id_backoff.failed(error)
            if not error.retriable:
                self._sender.locked(state.fail_unsent, error)
            return
        self._producer_id_backoff.succeeded()
        state.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        state.counts["identities"] += 1

    def _refresh_metadata(self) -> None:
        """Refresh the metadata of stale topics; retry those with a retriable error."""
        state, backoff = self._state, self._metadata_backoff
        stale_topics, state.stale_topics = state.stale_topics, set()
        has_refused_unacked, state.has_refused_unacked = state.has_refused_unacked, False
        names = stale_topics | {queue.topic.name for queue in list(state.active_queues)}
        try:
            timeout_s = self._timeout_s(REQUEST_TIMEOUT_S)
            described = self._cluster.describe(names, timeout_s, create=False)
        except KafkaError as error:
            backoff.failed(error)
            state.stale_topics |= stale_topics
            return
        self._refreshed_s = time.monotonic()
        found: list[TopicMetadata] = []
        for name, metadata in described.items():
            if isinstance(metadata, TopicMetadata):
                found.append(metadata)
            elif metadata.retriable:
                state.stale_topics.add(name)
                backoff.failed(metadata)
            else:
                self._sender.locked(state.fail_unsent, metadata, name)
        if has_refused_unacked:
            backoff.failed(NetworkException("A node refused a batch with acks=0."))
        elif len(found) == len(described):
            backoff.succeeded()
        self._sender.locked(self._update_topics, found)

    def _update_topics(self, found: list[TopicMetadata]) -> None:
        has_leaders = True
        for metadata in found:
            topic = self._state.topics.get(metadata.name)
            if topic is not None:
                self._sender.update_metadata(topic, metadata)
                has_leaders = has_leaders and all(queue.leader >= 0 for queue in topic.queues)
        if not has_leaders:
            self._metadata_backoff.failed(NetworkException("A partition has no leader."))
