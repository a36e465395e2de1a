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

from kafkalite.client.net.cluster import Closed
from kafkalite.client.net.deadline import Backoff
from kafkalite.client.net.local_socket import close_all
from kafkalite.client.net.topology import TopicMetadata, error_of
from kafkalite.client.producer.partition_queue import (
    NO_IDENTITY,
    Batch,
    PartitionQueue,
    ProducerIdentity,
)
from kafkalite.client.producer.producer_node import ProducerNode
from kafkalite.client.producer.ring_transport import open_ring
from kafkalite.client.producer.sender import TICK_S, Sender
from kafkalite.client.producer.tcp_transport import TcpTransport
from kafkalite.config.client import (
    CLIENT_ID,
    DELIVERY_TIMEOUT_MS,
    MAX_REQUEST_SIZE,
    METADATA_MAX_AGE_MS,
    NATIVE,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from kafkalite.errors import KafkaError, NetworkException
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID

EXPIRE_EVERY_S = 0.5
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 5.0
CHORE_TIMEOUT_S_MIN = 1.0
"""Minimum time for a chore; batches may be failed this much later than delivery.timeout.ms."""
PURPOSE = "produce"

log = logging.getLogger(__name__)


class BackgroundThread:
    """The thread, from `start` until `stop`; it sleeps while there is nothing to do."""

    def __init__(self, sender: Sender, finish: Callable[[], None]) -> None:
        """Create the thread; it calls `finish` once, when its loop has ended."""
        self._sender = sender
        self._finish = finish
        self._stopped = False
        self._draining = False
        self._opened_count = 0
        self._unacked_refused = False
        """True if a node refused batches with acks=0, which have no response."""
        self._expired_s = time.monotonic()
        self._refreshed_s = time.monotonic()
        settings = sender.settings
        backoff_ms = settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS]
        self._identity_backoff = Backoff(*backoff_ms)
        self._refresh_backoff = Backoff(*backoff_ms)
        self._thread = threading.Thread(
            target=self._run, name=f"kafkalite-producer-{id(sender):x}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        sender = self._sender
        sender.epoll.register(sender.wakeup_event, select.EPOLLIN)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread.  Call in a locked section, as the thread closes its event in one."""
        self._stopped = True
        self._sender.wake_background()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the thread to end; return whether it did within the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def drain(self) -> None:
        """Send everything, then end the thread.  Takes no lock: finalizers call it."""
        self._draining = True
        self._sender.wake_background()

    # The loop.

    def _run(self) -> None:
        sender = self._sender
        sender.background_id = threading.get_ident()
        while not self._stopped:
            try:
                rest_s = sender.locked(self._rest_s)
                events = sender.epoll.poll(rest_s)
                sender.locked(self._handle_events, events)
                self._exchange_over_tcp()
                sender.callbacks.run_callbacks()
                self._do_chores()
                if (
                    self._draining
                    and not sender.locked(sender.flush_lingering)
                    and not sender.active_queues
                ):
                    self._stopped = True
            except Closed:
                break
            except SystemExit:
                log.exception(
                    "A delivery callback called sys.exit(), which cannot end the program from the"
                    " producer's background thread; the thread goes on."
                )
            except BaseException:
                # Continue: without this thread nothing is sent over TCP.
                if not self._stopped:
                    log.exception("The producer's background thread failed; it goes on.")
                    time.sleep(TICK_S)
        self._finish()

    def _rest_s(self) -> float:
        """Return the seconds to sleep, -1 for no limit, and arm the wake-ups of the rings."""
        sender = self._sender
        now_s = time.monotonic()
        others_work = sender.opened_count != self._opened_count
        self._opened_count = sender.opened_count
        until_s = now_s + TICK_S if others_work else sender.callbacks.report_due_s
        for queue in sender.active_queues:
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
                    until_s = until_s if transport.rest() else now_s
                except NetworkException as error:
                    sender.abandon_ring(node, error)
                    until_s = now_s
        if sender.active_queues:
            until_s = min(until_s, self._expired_s + EXPIRE_EVERY_S)
        until_s = min(until_s, self._chores_due_s(now_s))
        sender.wakes_at_s = until_s
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
        sender.clear_wakeup()
        now_s = time.monotonic()
        sender.wakes_at_s = now_s
        ready = {descriptor for descriptor, _ in events}
        for node in list(sender.nodes.values()):
            transport = node.ring
            if transport is None:
                continue
            try:
                if transport.local.fileno() in ready:
                    _, descriptors = transport.local.receive() or (None, [])
                    close_all(descriptors)
                    raise NetworkException("the node ended the ring")
                if now_s >= transport.leased_until_s:
                    transport.woke()
                    sender.epoll.modify(transport.ring.fileno(), select.EPOLLIN)
                    sender.take(node, now_s)
                    if transport.refused_unacked:
                        transport.refused_unacked = False
                        self._refresh_topics_of(node)
            except NetworkException as error:
                sender.abandon_ring(node, error)
            if transport.has_responded and node.ring is transport:
                node.ring_backoff.succeeded()
                transport.has_responded = False
            if node.ring is transport and transport.overdue(now_s):
                sender.abandon_ring(node, NetworkException("no response within request.timeout.ms"))
        for queue in list(sender.active_queues):
            sender.pump(queue, now_s)
        sender.wake_nodes()
        self._expire(now_s)

    def _expire(self, now_s: float) -> None:
        if now_s - self._expired_s >= EXPIRE_EVERY_S:
            self._expired_s = now_s
            self._sender.expire(now_s)

    def _refresh_topics_of(self, node: ProducerNode) -> None:
        """Refresh a node's topics: it refused a batch with acks=0 and may not be the leader."""
        self._unacked_refused = True
        self._sender.stale_topics |= {
            topic.name
            for topic in self._sender.topics.values()
            if any(queue.leader == node.node_id for queue in topic.queues)
        }

    # TCP.

    def _exchange_over_tcp(self) -> None:
        """Read responses and send requests over TCP."""
        sender = self._sender
        for node in list(sender.nodes.values()):
            while node.tcp is not None:
                transport = node.tcp
                try:
                    responses = transport.responses()
                    sender.locked(self._settle, transport, responses)
                    batches = sender.locked(self._next_request, node, transport)
                    if not batches:
                        break
                    sender.locked(sender.complete_all, transport.send(batches), time.monotonic())
                except KafkaError as error:
                    sender.locked(self._close_tcp, node, error)
                except Exception:
                    # The gathered batches count as in flight, and would get no response.
                    sender.locked(self._close_tcp, node, NetworkException("sending failed"))
                    raise

    def _settle(self, transport: TcpTransport, responses: list[object]) -> None:
        sender = self._sender
        for batch, leader, endpoints in transport.moved:
            sender.cluster.learn(
                batch.queue.topic.name, batch.queue.index, leader, endpoints
            )
        transport.moved.clear()
        sender.complete_all(responses, time.monotonic())  # type: ignore[arg-type]

    def _next_request(
        self, node: ProducerNode, transport: TcpTransport
    ) -> list[tuple[Batch, bytearray]]:
        """Return the batches of the next request with their bytes, at most one per partition."""
        sender = self._sender
        now_s = time.monotonic()
        size_left = sender.settings[MAX_REQUEST_SIZE]
        batches: list[tuple[Batch, bytearray]] = []
        if not transport.free or not node.ring_tried:
            return batches
        if sender.idempotent and sender.identity == NO_IDENTITY:
            return batches
        for queue in list(sender.active_queues):
            if queue.leader != node.node_id:
                continue
            batch = queue.next_batch(now_s)
            if batch is None or node.transport_for(batch) is not transport:
                continue
            if queue.in_flight and queue.transport is not transport:
                continue
            content = sender.prepared(batch)
            if batches and content.size > size_left:
                continue
            records = bytearray(content.size)
            if sender.write(batch, memoryview(records)):
                size_left -= content.size
                queue.mark_sent(batch, transport)
                batches.append((batch, records))
        sender.counts["tcp_batches"] += len(batches)
        return batches

    def _close_tcp(self, node: ProducerNode, error: KafkaError) -> None:
        sender = self._sender
        transport, node.tcp = node.tcp, None
        if transport is None:
            return
        log.debug(
            "Connection closed; its batches are retried.  node=%d error=%s", node.node_id, error
        )
        transport.close()
        for batches in [queue.batches for queue in list(sender.active_queues)]:
            mine = [batch for batch in batches if batch.transport is transport]
            sender.retry_all(mine, node.node_id)
        if not sender.acks:
            self._refresh_topics_of(node)  # with acks=0 a broker closes the connection on an error

    # Chores: blocking calls.

    def _chores_due_s(self, now_s: float) -> float:
        """Return the time at which the next chore may run."""
        sender = self._sender
        due_s = math.inf
        for node in sender.nodes.values():
            if node.tcp is None and self._is_needed(node):
                due_s = min(due_s, now_s + node.tcp_backoff.rest_left_s)
            elif self._needs_ring(node):
                due_s = min(due_s, now_s + node.ring_backoff.rest_left_s)
        if self._needs_producer_id():
            due_s = min(due_s, now_s + self._identity_backoff.rest_left_s)
        if self._needs_metadata():
            due_s = min(due_s, now_s + self._refresh_backoff.rest_left_s)
        return due_s

    def _is_needed(self, node: ProducerNode) -> bool:
        """Return whether batches are queued for this node, or its transport is not chosen yet."""
        if not node.ring_tried:
            return True
        return any(queue.leader == node.node_id for queue in self._sender.active_queues)

    def _needs_ring(self, node: ProducerNode) -> bool:
        if node.ring is not None or node.tcp is None or not node.tcp.connection.same_host:
            return False
        return self._sender.settings[NATIVE] == "auto" and self._is_needed(node)

    def _needs_metadata(self) -> bool:
        sender = self._sender
        if self._unacked_refused:
            return True
        if not sender.active_queues:
            return False
        if sender.stale_topics or any(queue.leader < 0 for queue in sender.active_queues):
            return True
        age_s = sender.settings[METADATA_MAX_AGE_MS] / 1000
        return time.monotonic() - self._refreshed_s > age_s

    def _did_chore(self) -> bool:
        """Fail batches that expired meanwhile, and run their callbacks; return True."""
        self._sender.locked(self._expire, time.monotonic())
        self._sender.callbacks.run_callbacks()
        return True

    def _chore_timeout_s(self, limit_s: float) -> float:
        """Return the timeout for a chore: until the next batch expires, at most `limit_s`."""
        created_s = self._sender.locked(self._first_created_s)
        left_s = created_s + self._sender.settings[DELIVERY_TIMEOUT_MS] / 1000 - time.monotonic()
        return min(limit_s, max(left_s, CHORE_TIMEOUT_S_MIN))

    def _first_created_s(self) -> float:
        """Return the creation time of the oldest batch; infinity if there is none."""
        batches = (queue.batches[0] for queue in self._sender.active_queues if queue.batches)
        return min((batch.created_s for batch in batches), default=math.inf)

    def _do_chores(self) -> None:
        sender = self._sender
        done = False
        for node in list(sender.nodes.values()):
            if node.tcp is None and self._is_needed(node) and not node.tcp_backoff.rest_left_s:
                self._connect(node)
                done = self._did_chore()
            if self._needs_ring(node) and not node.ring_backoff.rest_left_s:
                self._attach(node)
                done = True
        if self._needs_producer_id() and not self._identity_backoff.rest_left_s:
            self._request_producer_id()
            done = self._did_chore()
        if self._needs_metadata() and not self._refresh_backoff.rest_left_s:
            self._refresh()
            done = self._did_chore()
        if done:
            sender.wake_background()
            sender.changed()

    def _needs_producer_id(self) -> bool:
        """Return whether a producer id must be requested.

        Only once a leader is known: a producer that writes nothing needs none.
        """
        sender = self._sender
        return sender.idempotent and sender.identity == NO_IDENTITY and bool(sender.nodes)

    def _connect(self, node: ProducerNode) -> None:
        sender = self._sender
        try:
            timeout_s = self._chore_timeout_s(CONNECT_TIMEOUT_S)
            connection = sender.cluster.connection(node.node_id, PURPOSE, timeout_s)
        except KafkaError as error:
            node.tcp_backoff.failed(error)
            # The partitions may have another leader by now.
            sender.stale_topics |= {
                queue.topic.name
                for queue in list(sender.active_queues)
                if queue.leader == node.node_id
            }
            return
        node.tcp_backoff.succeeded()
        transport = TcpTransport(
            node.node_id, connection, sender.acks, sender.timeout_ms, sender.in_flight_max
        )
        sender.epoll.register(transport.fileno(), select.EPOLLIN)
        node.tcp = transport
        if not connection.same_host or sender.settings[NATIVE] != "auto":
            node.ring_tried = True

    def _attach(self, node: ProducerNode) -> None:
        """Open the node's ring, or register that there is none for now."""
        sender = self._sender
        transport = None
        try:
            cluster_id = sender.cluster.cluster_id
            port = sender.cluster.node(node.node_id).port
            transport = open_ring(
                cluster_id, node.node_id, port, sender.settings[CLIENT_ID], sender.timeout_ms
            )
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
        sender = self._sender
        words = {
            "transactional_id": None,
            "transaction_timeout_ms": 0x7FFFFFFF,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        try:
            timeout_s = self._chore_timeout_s(REQUEST_TIMEOUT_S)
            response = sender.cluster.request(None, INIT_PRODUCER_ID, words, timeout_s=timeout_s)
            if response.error_code:
                raise error_of(response.error_code, "the producer's id")
        except KafkaError as error:
            self._identity_backoff.failed(error)
            if not error.retriable:
                sender.locked(self._fail_all, error)
            return
        self._identity_backoff.succeeded()
        sender.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        sender.counts["identities"] += 1

    def _fail_all(self, error: KafkaError, name: str | None = None) -> None:
        """Fail all batches not in flight, or a topic's, after an error that is not retriable."""
        sender = self._sender
        for queue in list(sender.active_queues):
            if name not in (None, queue.topic.name):
                continue
            for batch in list(queue.batches):
                if batch.transport is None:
                    sender.fail(batch, error.again(), unwritten=not batch.attempts)

    def _refresh(self) -> None:
        """Refresh the metadata of stale topics; retry those with a retriable error."""
        sender = self._sender
        stale_topics, sender.stale_topics = sender.stale_topics, set()
        misled, self._unacked_refused = self._unacked_refused, False
        names = stale_topics | {queue.topic.name for queue in list(sender.active_queues)}
        try:
            timeout_s = self._chore_timeout_s(REQUEST_TIMEOUT_S)
            described = sender.cluster.described(names, timeout_s, create=False)
        except KafkaError as error:
            self._refresh_backoff.failed(error)
            sender.stale_topics |= stale_topics
            return
        self._refreshed_s = time.monotonic()
        found: list[TopicMetadata] = []
        for name, metadata in described.items():
            if isinstance(metadata, TopicMetadata):
                found.append(metadata)
            elif metadata.retriable:
                sender.stale_topics.add(name)
                self._refresh_backoff.failed(metadata)
            else:
                sender.locked(self._fail_all, metadata, name)
        if misled:
            self._refresh_backoff.failed(
                NetworkException("a batch with acks=0 was refused")
            )
        elif len(found) == len(described):
            self._refresh_backoff.succeeded()
        sender.locked(self._learn, found)

    def _learn(self, found: list[TopicMetadata]) -> None:
        sender = self._sender
        led = True
        for metadata in found:
            topic = sender.topics.get(metadata.name)
            if topic is not None:
                sender.update_metadata(topic, metadata)
                led = led and all(queue.leader >= 0 for queue in topic.queues)
        if not led:
            self._refresh_backoff.failed(NetworkException("a partition has no leader"))
