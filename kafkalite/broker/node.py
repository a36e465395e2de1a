"""Node: what one Kafka node owns, put together.

A node has an id, a listener, a controller (its state is the metadata log), the logs of the
partitions it leads, and the replica manager over them.  It is given its settings, its clock, its
loop, its disk and its socket; it makes no thread but the flusher's.

With `workers=0` this one node is the whole cluster: it leads every partition, and it is its own
controller.  What the metadata log says is, is made so: `reconcile` creates, reconfigures and
deletes logs until they match the ClusterImage, after a restart as after a change.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from socket import socket

from kafkalite.broker.dispatch import Dispatcher
from kafkalite.broker.fetch_sessions import FetchSessions
from kafkalite.broker.handlers import Caller
from kafkalite.broker.machine_host import MachineHost
from kafkalite.broker.producer_ids import ProducerIdBlocks
from kafkalite.broker.replica_manager import ReplicaManager
from kafkalite.broker.security import Authorizer
from kafkalite.clock import Clock
from kafkalite.config.broker import (
    ADVERTISED_LISTENERS,
    BROKER_RACK,
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
    parse_listener,
)
from kafkalite.config.settings import Settings
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import ClusterImage, NodeImage, TopicImage
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas.internal import CONFIG, Record
from kafkalite.storage.flusher import Flusher
from kafkalite.storage.log import Log
from kafkalite.storage.log_manager import LogManager
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

SUPERVISOR_ID = 0

MAKE_AGAIN_MS = 1_000
"""How long after a log could not be made it is tried again."""

MADE_AT_ONCE_MAX = 64
"""How many logs are made before the loop goes on: each is a handful of new files."""


class Node:
    """One node of the cluster; see the module."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        reactor: Reactor,
        logs: LogManager,
        listener: socket,
        node_id: int = SUPERVISOR_ID,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.reactor = reactor
        self.logs = logs
        self.listener = listener
        self.node_id = node_id
        self.cluster_id = logs.cluster_id
        self.authorizer = Authorizer()
        self.flusher = logs.flusher = Flusher(clock)
        self.replicas = ReplicaManager(reactor, self.flusher)
        self.fetch_sessions = FetchSessions(settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS])
        self.controller = MachineHost(Controller(), logs.open_metadata(), self.flusher, clock)
        self.producer_ids = ProducerIdBlocks(self.controller, node_id)
        self._to_make: deque[tuple[bytes, int]] = deque()
        self._unmade: set[bytes] = set()

    @property
    def image(self) -> ClusterImage:
        """The cluster as this node knows it."""
        return self.controller.machine.image

    def advertised(self, caller: Caller) -> tuple[str, int]:
        """Where clients are told to find this node: where this one did, unless settings say."""
        listeners = self.settings[ADVERTISED_LISTENERS]
        return parse_listener(listeners[0]) if listeners else caller.local

    # -- opening and closing -----------------------------------------------------------------

    def open(self) -> None:
        """Load the metadata log, recover the partitions' logs, and begin to serve."""
        self.controller.load()
        self._register()
        loaded = self.logs.load(self._topic_settings)
        for topic in self.image.topics.values():
            self._open_topic(topic, loaded)
        for stray in loaded.values():
            log.warning("%s-%d is in no topic: set aside", stray.topic, stray.partition)
            self.logs.set_stray(stray)
        self.controller.on_change(self._changed)
        self.reactor.at_settle(self.replicas.settle)
        self.reactor.watch(self.flusher.fileno(), self._flushed)
        self._tend()
        self.reactor.listen(self.listener, Dispatcher(self).serve)

    def close(self) -> None:
        """Flush and close every log; the next start finds a clean end."""
        self.reactor.close()
        self.flusher.close()
        self.logs.close()

    def _register(self) -> None:
        host, port = self.listener.getsockname()[:2]
        rack = self.settings[BROKER_RACK]
        self.controller.ask_at_start(lambda machine: machine.found(self.cluster_id))
        self.controller.ask_at_start(
            lambda machine: machine.register_node(NodeImage(self.node_id, host, port, rack))
        )

    def _tend(self) -> None:
        """Retention, rolls, delayed deletes and checkpoints, whenever one is due."""
        next_due_ms = self.logs.tick(self.clock.monotonic_ms())
        for partition in self.replicas:
            if partition.waiting:
                self.replicas.touched(partition)
        self.reactor.call_later(next_due_ms, self._tend)

    def _flushed(self) -> None:
        for flush in self.flusher.collect():
            if flush.done is not None:
                flush.done(flush)

    # -- making it so ------------------------------------------------------------------------

    def _changed(self, records: Sequence[Record]) -> None:
        touched = dict.fromkeys(
            topic_id
            for record in records
            if (topic_id := self._topic_of(record)) is not None
        )
        for topic_id in touched:
            self.reconcile(topic_id)

    def reconcile(self, topic_id: bytes) -> None:
        """Bring this topic's logs to what the image says of it."""
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            self._delete_topic(topic_id)
            return
        settings = self.settings.for_topic(topic.config)
        present = self.replicas.of_topic(topic_id)
        for partition in present.values():
            partition.log.reconfigure(settings)
            self.replicas.reconfigure(partition, settings)
        idle = not self._to_make
        self._to_make += [(topic_id, index) for index in topic.partitions if index not in present]
        if idle and self._to_make:
            self._make_some()

    def _make_some(self) -> None:
        """Make the logs that are missing, some now and the rest in later ticks.

        A topic of ordinary size is there when its creation is answered; of a large one the last
        partitions come a little later, and a client that is quicker hears that it should retry.
        """
        for _ in range(min(MADE_AT_ONCE_MAX, len(self._to_make))):
            topic_id, index = self._to_make.popleft()
            topic = self.image.topics_by_id.get(topic_id)
            if topic is not None and index not in self.replicas.of_topic(topic_id):
                self._create(topic, index, self.settings.for_topic(topic.config))
        if self._to_make:
            self.reactor.call_later(1, self._make_some)

    def _make_again(self) -> None:
        """Try those once more that could not be made, when all others are."""
        if self._to_make:
            self.reactor.call_later(MAKE_AGAIN_MS, self._make_again)
            return
        unmade, self._unmade = self._unmade, set()
        for topic_id in unmade:
            if topic_id in self.image.topics_by_id:
                self.reconcile(topic_id)

    def _open_topic(self, topic: TopicImage, loaded: dict[tuple[str, int], Log]) -> None:
        settings = self.settings.for_topic(topic.config)
        for index, partition in topic.partitions.items():
            found = loaded.pop((topic.name, index), None)
            if found is not None and found.topic_id == topic.topic_id:
                self.replicas.add(found, partition.leader_epoch, settings)
                continue
            # One whose id was lost is this topic's, one with another id is not: create knows.
            if found is None:
                log.warning("%s-%d has no log: an empty one is made", topic.name, index)
            self._create(topic, index, settings)

    def _create(self, topic: TopicImage, index: int, settings: Settings) -> None:
        """Make a partition's log; what stands in the way may pass, so it is tried again."""
        try:
            made = self.logs.create(topic.name, topic.topic_id, index, settings)
        except KafkaError as fault:
            if self.replicas.take_offline(topic.name, topic.topic_id, index, fault):
                log.error("%s-%d cannot be served yet: %s", topic.name, index, fault)
            if not self._unmade:
                self.reactor.call_later(MAKE_AGAIN_MS, self._make_again)
            self._unmade.add(topic.topic_id)
        else:
            self.replicas.add(made, topic.partitions[index].leader_epoch, settings)

    def _delete_topic(self, topic_id: bytes) -> None:
        partitions = list(self.replicas.of_topic(topic_id).values())
        for partition in partitions:
            self.replicas.remove(partition)
        self.logs.delete(*(partition.log for partition in partitions))
        self.replicas.forget_offline(topic_id)

    def _topic_settings(self, topic: str) -> Settings:
        known = self.image.topics.get(topic)
        return self.settings.for_topic(known.config if known else {})

    def _topic_of(self, record: Record) -> bytes | None:
        if record.kind is CONFIG:
            topic = self.image.topics.get(record.fields["resource_name"])
            return topic.topic_id if topic else None
        topic_id: bytes | None = record.fields.get("topic_id")
        return topic_id
