"""Node: what one Kafka node owns, put together.

A node has an id, a listener, a way to the controller, the logs of the partitions it leads, and the
replica manager over them.  It is given its settings, its clock, its loop, its disk and its socket;
it makes no thread but the flusher's.

What the metadata log says is, is made so: `reconcile` creates, reconfigures, deletes, hands over
and takes over logs until they match the ClusterImage, after a restart as after a change.

    the image gives a partition to this node, and its log is not here
        leader epoch 0   it is new, and made empty (unless this node once had it: then it is lost)
        above            another node has it, and hands it over; it is looked for until it comes
    the image gives a partition that is here to another node
        it is led no more, its last flush is awaited, and its directory handed over

With `workers=0` one node is the whole cluster.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import socket
from typing import NamedTuple

from kafkalite.broker.client_telemetry import ClientTelemetry
from kafkalite.broker.dispatch import Dispatcher
from kafkalite.broker.fetch_sessions import FetchSessions
from kafkalite.broker.groups import Groups
from kafkalite.broker.handlers import Caller
from kafkalite.broker.local_controller import LocalController
from kafkalite.broker.local_door import LocalDoor, open_door
from kafkalite.broker.node_settings import NodeSettings, reactor_limits
from kafkalite.broker.partition import Partition
from kafkalite.broker.producer_ids import ProducerIdBlocks
from kafkalite.broker.remote_controller import RemoteController, State
from kafkalite.broker.replica_manager import ReplicaManager, Topic
from kafkalite.broker.security import Authorizer
from kafkalite.clock import Clock
from kafkalite.config.broker import (
    ADVERTISED_LISTENERS,
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
    parse_listener,
)
from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.coordination.image import SUPERVISOR_ID, ClusterImage, NodeImage, TopicImage
from kafkalite.errors import KafkaError, KafkaStorageError, NotLeaderOrFollower
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.internal import CONFIG, Record
from kafkalite.storage.flusher import Flusher
from kafkalite.storage.layout import node_directory
from kafkalite.storage.log import Log
from kafkalite.storage.log_manager import LogManager
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.broker")

MAKE_AGAIN_MS = 1_000
"""How long after a log could not be made it is tried again."""

MADE_AT_ONCE_MAX = 64
"""How many logs are made before the loop goes on: each is a handful of new files."""

HAND_OVER_AGAIN_MS = 5
"""How soon it is tried again to hand a partition over; each time it takes twice as long."""

LOOK_FOR_MS = 5
LOOK_FOR_MS_MAX = 500
"""How often it is looked whether a partition has been handed over: the longer it takes, the
seldomer."""

LATE_MS = 10_000
"""After so long a partition that was not handed over is spoken of."""


class Awaited(NamedTuple):
    """A partition that this node shall lead and another has not handed over yet."""

    topic: str
    since_ms: int


class Node:
    """One node of the cluster; see the module."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        reactor: Reactor,
        logs: LogManager,
        listener: socket,
        controller: LocalController | RemoteController,
        *,
        root: Path,
        node_id: int = SUPERVISOR_ID,
    ) -> None:
        self.clock = clock
        self.reactor = reactor
        self.logs = logs
        self.listener = listener
        self.controller = controller
        self.root = root
        self.node_id = node_id
        self.cluster_id = logs.cluster_id
        self.authorizer = Authorizer()
        assert logs.flusher is not None
        self.flusher: Flusher = logs.flusher
        self.replicas = ReplicaManager(
            reactor, self.flusher, self.topic_image, clock.monotonic_ns
        )
        self._settings = NodeSettings(settings, node_id, controller.image)
        slots = self.settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS]
        self.fetch_sessions = FetchSessions(slots)
        self.producer_ids = ProducerIdBlocks(controller, node_id)
        self.groups = Groups(self)
        self.telemetry = ClientTelemetry(clock)
        self.dispatcher = Dispatcher(self)
        self._to_make: deque[tuple[bytes, int]] = deque()
        self._unmade: set[bytes] = set()
        self._awaited: dict[tuple[bytes, int], Awaited] = {}
        self.local_door: LocalDoor | None = None
        """Where programs of this host come in, if they may."""
        self._local_place: Path | None = None
        self._listens = False
        self._looking = False
        self._tending: Timer | None = None

    @property
    def settings(self) -> Settings:
        """What is in force at this node now; a change makes new ones."""
        return self._settings.current

    def on_settings(self, told: Callable[[Settings], object]) -> None:
        """Call `told(settings)` now, and whenever they have changed."""
        self._settings.tell(told)

    @property
    def image(self) -> ClusterImage:
        """The cluster as this node knows it."""
        return self.controller.image

    @property
    def here(self) -> LocalController:
        """The controller, which is at this node: the dispatcher has seen to that."""
        assert isinstance(self.controller, LocalController)
        return self.controller

    def topic_image(self, topic: Topic) -> TopicImage | None:
        """A topic by its name or by its id."""
        image = self.image
        return image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)

    def advertised(self, caller: Caller, node: NodeImage) -> tuple[str, int]:
        """Where this client is told to find a node: at the address by which it came here, unless
        settings say otherwise; the ports are as far from each other as those listened on."""
        listeners = self.settings[ADVERTISED_LISTENERS]
        if listeners:
            told = parse_listener(listeners[0])
            first = self.image.nodes.get(SUPERVISOR_ID)
            return told.host, told.port + (node.port - first.port if first is not None else 0)
        return caller.local[0], node.port

    # -- opening and closing -----------------------------------------------------------------

    def open(self, *, when_welcome: bool = False) -> None:
        """Recover the logs of the partitions that are here, and begin to serve; or, where the image
        may be the last run's or empty, as soon as a supervisor stands for it.

        The controller's image is loaded already; it says what is to be here.
        """
        self.on_settings(self._take_settings)
        decides = isinstance(self.controller, LocalController)
        self.logs.hand_over_misplaced(self.place_of, sure=decides)
        loaded = self.logs.load(self._topic_settings)
        for topic in self.image.topics.values():
            self._open_topic(topic, loaded)
        for stray in loaded.values():
            if self.is_deleted(stray.topic_id):
                self.logs.delete(stray)  # while this node was not there
                continue
            self.logs.leave(stray)
        self.controller.on_change(self._changed)
        if isinstance(self.controller, RemoteController):
            self.controller.state = self._state
            self.controller.welcomed = self._welcomed
        else:
            self.logs.set_strays()
        self.groups.open()
        self.on_settings(self.groups.reconfigure)
        self.reactor.at_settle(self.replicas.settle)
        self.reactor.watch(self.flusher.fileno(), self._flushed)
        self._tend()
        if not when_welcome:
            self._listen()

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._open_local_door()
            self.reactor.listen(self.listener, self.dispatcher.serve)

    def serve_locally(self, run_directory: Path) -> None:
        """Serve programs of this host by its memory and files too, as soon as clients are served;
        they look for this node in the run directory."""
        self._local_place = run_directory
        if self._listens:
            self._open_local_door()

    def _open_local_door(self) -> None:
        if self._local_place is not None:
            self.local_door = open_door(self, self._local_place)

    def _welcomed(self) -> None:
        """A supervisor stands for this node's image; before that it may only be what could be read
        of a damaged metadata log, or be older than what the supervisor decides at the start, and
        what it does not know or gives to others is left alone."""
        self.logs.set_strays()
        self.producer_ids.refill()
        self._listen()

    def close(self) -> None:
        """Flush and close every log; the next start finds a clean end."""
        if self.local_door is not None:
            self.local_door.close()
        self.reactor.close()
        self.flusher.close()
        self.logs.close()

    def _take_settings(self, settings: Settings) -> None:
        """Have all that holds a value of the settings take it from these."""
        self.reactor.reconfigure(reactor_limits(settings))
        self.logs.reconfigure(settings)
        self.fetch_sessions.resize(settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS])
        for topic_id in dict.fromkeys(partition.topic_id for partition in self.replicas):
            self.reconcile(topic_id)
        if self._tending is not None:
            self._tending.cancel()
            self._tending = self.reactor.call_later(0, self._tend)

    def _tend(self) -> None:
        """Retention, rolls, delayed deletes and checkpoints, whenever one is due."""
        next_due_ms = self.logs.tick(self.clock.monotonic_ms())
        for partition in self.replicas:
            if partition.waiting:
                self.replicas.touched(partition)
        self._tending = self.reactor.call_later(next_due_ms, self._tend)

    def _flushed(self) -> None:
        for flush in self.flusher.collect():
            if flush.done is not None:
                flush.done(flush)

    def _state(self) -> State:
        unmade = [
            (topic_id, index)
            for topic_id in self._unmade
            if topic_id in self.image.topics_by_id
            for index, partition in self.image.topics_by_id[topic_id].partitions.items()
            if partition.leader == self.node_id and index not in self.replicas.of_topic(topic_id)
        ]
        led = list(self.replicas)
        return State(
            made=not self._to_make,
            led_count=len(led),
            size=sum(partition.log.size for partition in led),
            unmade=[*self._awaited, *unmade],
        )

    # -- making it so ------------------------------------------------------------------------

    def place_of(self, topic: str, index: int, topic_id: bytes) -> Path | None:
        """The directory of the node that leads a partition; None for one that is in no topic."""
        known = self.image.topics.get(topic)
        partition = known.partitions.get(index) if known is not None else None
        if known is None or partition is None or topic_id not in (known.topic_id, NO_ID):
            return None
        return node_directory(self.root, partition.leader)

    def is_deleted(self, topic_id: bytes) -> bool:
        """Whether a topic is known to have been deleted, and not only unknown."""
        return topic_id in self.image.deleted

    def _changed(self, records: Sequence[Record], end_offset: int) -> None:
        set_on = dict.fromkeys(
            (record.fields["resource_type"], record.fields["resource_name"])
            for record in records
            if record.kind is CONFIG
        )
        for kind, name in set_on:
            self._settings.concerned(kind, name, self.image)
        touched = dict.fromkeys(
            topic_id
            for record in records
            if (topic_id := self._topic_of(record)) is not None
        )
        for topic_id in touched:
            self.reconcile(topic_id)
        deleted = [self.image.deleted[topic] for topic in touched if topic in self.image.deleted]
        if deleted:
            self.groups.forget_topics(deleted)
        if not self._to_make:
            self._tell()

    def _tell(self) -> None:
        """What the image says has been made so; the supervisor may be waiting to hear it."""
        if isinstance(self.controller, RemoteController):
            self.controller.heartbeat()

    def reconcile(self, topic_id: bytes) -> None:
        """Bring this topic's logs to what the image says of it."""
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            self._delete_topic(topic_id)
            return
        settings = self.settings.for_topic(topic.config)
        present = self.replicas.of_topic(topic_id)
        for partition in list(present.values()):
            leader = topic.partitions[partition.index]
            if leader.leader != self.node_id:
                self._give_up(partition)
                continue
            partition.lead(leader.leader_epoch)
            partition.log.reconfigure(settings)
            self.replicas.reconfigure(partition, settings)
        idle = not self._to_make
        self._to_make += [
            (topic_id, index)
            for index, partition in topic.partitions.items()
            if partition.leader == self.node_id and index not in present
        ]
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
                self._make(topic, index, self.settings.for_topic(topic.config))
        if self._to_make:
            self.reactor.call_later(1, self._make_more)

    def _make_more(self) -> None:
        self._make_some()
        if not self._to_make:
            self._tell()

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
            if partition.leader != self.node_id:
                continue
            found = loaded.pop((topic.name, index), None)
            if found is not None and found.topic_id == topic.topic_id:
                self.replicas.add(found, partition.leader_epoch, settings)
                continue
            if found is not None and self.is_deleted(found.topic_id):
                self.logs.delete(found)  # of an older topic of this name
            # One whose id was lost is this topic's, one with another id is not: create knows.
            self._make(topic, index, settings)

    def _make(self, topic: TopicImage, index: int, settings: Settings) -> None:
        """Take a partition's log over, or make it; what stands in the way may pass, so it is
        tried again."""
        partition = topic.partitions[index]
        if partition.leader != self.node_id:
            return
        try:
            found = self._found_or_made(topic, index, partition.leader_epoch, settings)
        except KafkaError as fault:
            if self.replicas.take_offline(topic.name, topic.topic_id, index, fault):
                log.error("%s-%d cannot be served yet: %s", topic.name, index, fault)
            if not self._unmade:
                self.reactor.call_later(MAKE_AGAIN_MS, self._make_again)
            self._unmade.add(topic.topic_id)
            return
        if found is not None:
            self.replicas.add(found, partition.leader_epoch, settings)
        else:
            self._await(topic, index)

    def _found_or_made(
        self, topic: TopicImage, index: int, leader_epoch: int, settings: Settings
    ) -> Log | None:
        found = self.logs.find(topic.name, index, topic.topic_id, settings)
        if found is not None:
            return found
        if self.logs.had(topic.name, index, topic.topic_id):
            raise KafkaStorageError(
                f"its directory is gone from {self.logs.data}; restore it from a copy, or delete"
                " the topic"
            )
        if leader_epoch > 0 or self.logs.is_elsewhere(topic.name, index, topic.topic_id):
            return None
        return self.logs.create(topic.name, topic.topic_id, index, settings)

    # -- taking over and handing over --------------------------------------------------------

    def _await(self, topic: TopicImage, index: int) -> None:
        now_ms = self.clock.monotonic_ms()
        self._awaited.setdefault((topic.topic_id, index), Awaited(topic.name, now_ms))
        self.replicas.take_offline(topic.name, topic.topic_id, index, NotLeaderOrFollower())
        if not self._looking:
            self._looking = True
            self.reactor.call_later(LOOK_FOR_MS, self._look_for_awaited)

    def _look_for_awaited(self) -> None:
        """Look whether partitions that this node shall lead have been handed over."""
        now_ms = self.clock.monotonic_ms()
        before = len(self._awaited)
        for (topic_id, index), awaited in list(self._awaited.items()):
            late = now_ms - awaited.since_ms >= LATE_MS
            if self._arrived(topic_id, index, awaited.topic, late):
                del self._awaited[topic_id, index]
            elif late and now_ms - awaited.since_ms < LATE_MS + LOOK_FOR_MS_MAX:
                log.error(
                    "%s-%d is in no node's directory: put it back into %s, or delete the topic",
                    awaited.topic, index, self.logs.data,
                )  # fmt: skip
        if len(self._awaited) < before:
            self._tell()
        self._looking = bool(self._awaited)
        if self._awaited:
            waited_ms = now_ms - max(awaited.since_ms for awaited in self._awaited.values())
            next_ms = min(LOOK_FOR_MS_MAX, max(LOOK_FOR_MS, waited_ms // 8))
            self.reactor.call_later(next_ms, self._look_for_awaited)

    def _arrived(self, topic_id: bytes, index: int, name: str, late: bool) -> bool:
        """Whether a partition need not be waited for any more."""
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            # Deleted on its way here: it is to be deleted when it comes.
            return self._discarded(name, index, topic_id) or late
        if topic.partitions[index].leader != self.node_id:
            return True
        self._make(topic, index, self.settings.for_topic(topic.config))
        return index in self.replicas.of_topic(topic_id)

    def _discarded(self, topic: str, index: int, topic_id: bytes) -> bool:
        try:
            return self.logs.discard(topic, index, topic_id)
        except KafkaStorageError as fault:
            log.warning("%s", fault)
            return False

    def _give_up(self, partition: Partition) -> None:
        """Lead a partition no more, and hand its directory to the node that does by then."""

        def hand_over(again_ms: int = HAND_OVER_AGAIN_MS) -> None:
            if self.logs.logs.get((partition.topic, partition.index)) is not partition.log:
                return  # it went meanwhile: there and back, and away again
            topic = self.image.topics_by_id.get(partition.topic_id)
            if topic is None:
                self.logs.delete(partition.log)  # meanwhile
                return
            leader = topic.partitions[partition.index].leader
            if leader == self.node_id:
                return  # it came back meanwhile, and is led again with the same log
            try:
                self.logs.hand_over(partition.log, node_directory(self.root, leader))
            except KafkaStorageError as fault:
                if again_ms >= MAKE_AGAIN_MS:
                    log.error("%s cannot be handed over yet: %s", partition, fault)
                next_ms = min(MAKE_AGAIN_MS, 2 * again_ms)
                self.reactor.call_later(again_ms, lambda: hand_over(next_ms))

        self.replicas.retire(partition, hand_over)

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
            if record.fields["resource_type"] != Resource.TOPIC:
                return None
            topic = self.image.topics.get(record.fields["resource_name"])
            return topic.topic_id if topic else None
        topic_id: bytes | None = record.fields.get("topic_id")
        return topic_id
