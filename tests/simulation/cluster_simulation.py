"""Disorder: random events and faults in a cluster, with checks of its guarantees.

Clients create and delete topics on any node and send idempotent batches to any node they believe is
the leader; an operator moves partitions; processes are killed, stopped and started; messages are
held, lost, duplicated and reordered.  One seed gives one run.

During the run: each partition's log is open on one node at most, one node leads it at most, each
leader epoch has one leader ever, epochs and images never go back, and each client gets the response
to its own request.  After healing: images are equal, every partition has a leader, its directory
exists once, and each acknowledged record is in it once, at the acknowledged offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kafkalite import errors
from kafkalite.coordination.placement import Move
from kafkalite.errors import BY_CODE
from kafkalite.ids import METADATA_TOPIC
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, DELETE_TOPICS
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage import layout
from kafkalite.storage import node_directories as parts
from kafkalite.storage.partition_metadata import Owner
from tests.simulation.cluster import Asking, Cluster

Place = tuple[bytes, int]

ALL = -1
IDS_ASKED_MAX = 1 << 20
TOPICS = ("a", "b", "c")
AGAIN = {
    errors.NotLeaderOrFollower.code,
    errors.UnknownTopicId.code,
    errors.UnknownTopicOrPartition.code,
    errors.KafkaStorageError.code,
    errors.LeaderNotAvailable.code,
    errors.RequestTimedOut.code,
}
"""Error codes after which a producer sends the same batch again."""

REFUSED = {
    errors.TopicAlreadyExists.code,
    errors.UnknownTopicOrPartition.code,
    errors.RequestTimedOut.code,
}
"""Errors of topic creation and deletion; after a timeout the outcome is not known."""


@dataclass
class Stream:
    """The batches of one idempotent producer for one partition, one record each."""

    place: Place
    producer_id: int
    sequence: int = 0
    asking: Asking | None = None
    acked: dict[int, bytes] = field(default_factory=dict)
    """Values by acknowledged offset."""

    @property
    def value(self) -> bytes:
        return b"%d of %d" % (self.sequence, self.producer_id)


class Disorder:
    """One run; see the module."""

    def __init__(self, directory: Path, seed: int, **settings: str) -> None:
        self.cluster = Cluster(directory, workers=3, seed=seed, **settings)
        self.random = self.cluster.random
        self.streams: dict[Place, Stream] = {}
        self.names: dict[Place, str] = {}
        self.decisions: list[tuple[str, Asking]] = []
        self.ids_asked: list[Asking] = []
        self.producer_ids: list[int] = []
        self.leaders: dict[tuple[Place, int], int] = {}
        """The leader of each (partition, leader epoch)."""
        self.newest: dict[Place, int] = {}
        self.seen: dict[Place, dict[int, bytes | None]] = {}
        """Values that consumers read, by offset."""
        self.done: Counter[str] = Counter()
        for node_id in (1, 2, 3) * 5:
            answer = self.cluster.ask(node_id, INIT_PRODUCER_ID, 4, transactional_id=None)
            self.producer_ids.append(answer.producer_id)
        self.ways: list[tuple[int, Callable[[], object]]] = [
            (20, self.a_quiet_moment),
            (30, self.time_passes),
            (30, self.a_message_comes),
            (30, self.a_loop_turns),
            (40, self.a_record_is_sent),
            (6, self.a_topic_is_made),
            (3, self.a_topic_is_deleted),
            (3, self.ids_are_asked_for),
            (5, self.nodes_are_ordered),
            (8, self.partitions_are_to_move),
            (10, self.records_are_fetched),
            (1, self.the_broker_starts_anew),
            (2, self.a_process_is_killed),
            (2, self.a_process_is_ended),
            (3, self.a_process_comes_back),
            (2, self.a_process_stops),
            (4, self.a_process_goes_on),
            (2, self.a_connection_breaks),
            (2, self.a_message_is_lost),
            (2, self.a_message_is_doubled),
            (2, self.a_message_is_overtaken),
            (2, self.nonsense_is_said),
            (2, self.flushes_are_held),
            (4, self.flushes_go_on),
        ]

    def run(self, steps: int) -> None:
        """Run `steps` random events, then heal the cluster and check it."""
        weights = [weight for weight, _ in self.ways]
        for way in self.random.choices([way for _, way in self.ways], weights, k=steps):
            way()
            self.done[way.__name__] += 1
            self.take_answers()
            self.cluster.launch()
            self.check()
        self.heal()
        self.check_healed()
        self.cluster.close()

    # -- events ------------------------------------------------------------------------------

    def a_quiet_moment(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            self.cluster.step()
            self.take_answers()
            self.check()

    def time_passes(self) -> None:
        self.cluster.clock.advance(self.random.choice([1, 1, 5, 20, 100, 600]))
        self.cluster.connect()

    def a_message_comes(self) -> None:
        self.cluster.connect()
        memory = self.cluster.bus
        waiting = [(queue, self.cluster.deliver_up) for queue in memory.to_server.items()]
        waiting += [(queue, self.cluster.deliver_down) for queue in memory.to_worker.items()]
        waiting = [((identity, queue), deliver) for (identity, queue), deliver in waiting if queue]
        if waiting:
            (identity, queue), deliver = self.random.choice(waiting)
            deliver(identity, self.random.randint(1, len(queue)))

    def a_loop_turns(self) -> None:
        if self.cluster.running:
            self.cluster.tick(self.random.choice([*self.cluster.running]))

    def a_record_is_sent(self) -> None:
        """The client may have outdated metadata about the leader."""
        place = self.random.choice([*self.names, None])
        if place is None:
            return
        stream = self.streams.get(place)
        if stream is None:
            if not self.producer_ids:
                return
            stream = self.streams[place] = Stream(place, self.producer_ids.pop())
        if stream.asking is None:
            node_id = self.random.choice([self.led_by(place), *self.cluster.running])
            self.send(stream, node_id)

    def records_are_fetched(self) -> None:
        """A record that a client has read is never replaced or removed."""
        running = self.some_running()
        if not self.names or not running:
            return
        topic_id, index = place = self.random.choice([*self.names])
        partition = {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        asking = self.cluster.send(
            running[0].peer.node_id, FETCH, 13, replica_id=-1, max_wait_ms=0, min_bytes=1,
            max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1, rack_id="",
            forgotten_topics_data=[], topics=[{"topic_id": topic_id, "partitions": [partition]}],
        )  # fmt: skip
        (entry,) = asking.answer.responses[0].partitions
        if entry.error_code:
            assert entry.error_code in AGAIN, BY_CODE[entry.error_code].name
            return
        seen = self.seen.setdefault(place, {})
        for batch in batches(entry.records or b""):
            for record in batch:
                assert seen.setdefault(record.offset, record.value) == record.value
        self.done["records seen"] += len(seen)

    def led_by(self, place: Place) -> int:
        """Return the leader according to some node."""
        for there in self.some_running():
            topic = there.node.image.topics_by_id.get(place[0])
            if topic is not None:
                return int(topic.partitions[place[1]].leader)
        return self.random.randint(1, 3)

    def send(self, stream: Stream, node_id: int) -> None:
        there = self.cluster.running.get(node_id)
        if there is None or there.paused:
            return
        batch = build(
            [Record(timestamp=1_000, value=stream.value)],
            producer_id=stream.producer_id,
            producer_epoch=0,
            base_sequence=stream.sequence,
        )
        topic_id, index = stream.place
        partition_data = [{"index": index, "records": batch}]
        stream.asking = self.cluster.send(
            node_id, PRODUCE, 13, acks=ALL, timeout_ms=1_000,
            topic_data=[{"topic_id": topic_id, "partition_data": partition_data}],
        )  # fmt: skip

    def a_topic_is_made(self) -> None:
        name, count = self.random.choice(TOPICS), self.random.randint(1, 3)
        dedicated = {"name": "worker.dedicated", "value": "true"}
        configs = [dedicated] if self.random.random() < 0.1 else []
        topic = {"name": name, "num_partitions": count, "replication_factor": 1, "configs": configs}
        self.ask_somebody(name, CREATE_TOPICS, 7, topics=[topic])

    def a_topic_is_deleted(self) -> None:
        name = self.random.choice(TOPICS)
        self.ask_somebody(name, DELETE_TOPICS, 5, topic_names=[name], timeout_ms=1_000)

    def ask_somebody(self, name: str, api: Api, version: int, **request: object) -> None:
        for there in self.some_running():
            asking = self.cluster.send(there.peer.node_id, api, version, **request)
            self.decisions.append((name, asking))
            return

    def ids_are_asked_for(self) -> None:
        for there in self.some_running():
            self.ids_asked.append(
                self.cluster.send(there.peer.node_id, INIT_PRODUCER_ID, 4, transactional_id=None)
            )
            return

    def nodes_are_ordered(self) -> None:
        supervisor = self.cluster.running.get(0)
        if supervisor is None or supervisor.paused:
            return
        verbs = ["list", "drain", "undrain", "rebalance", "rebalance", "add", "remove"]
        verb = self.random.choice(verbs)
        if verb == "add" and len(self.cluster.roster) > 4:
            verb = "rebalance"
        node_id = self.random.choice([*self.cluster.roster, 0])
        order = bus.NODE_ORDER(request_id=7, verb=verb, node_id=node_id, dry_run=False)
        assert self.cluster.bus.server is not None
        self.cluster.said_up(b"an operator", bus.write_frame(order))

    def partitions_are_to_move(self) -> None:
        supervisor = self.cluster.running.get(0)
        if supervisor is None or supervisor.paused or not self.cluster.roster:
            return
        workers = [*self.cluster.roster]
        moves = [
            Move(topic.topic_id, index, partition.leader, self.random.choice(workers))
            for topic in self.cluster.image.topics.values()
            for index, partition in topic.partitions.items()
        ]
        self.cluster.supervisor.mover.plan(moves)

    def a_process_is_killed(self) -> None:
        for there in self.some_running(paused=True):
            self.cluster.kill(there.peer.node_id, stay_down=self.random.random() < 0.5)
            return

    def a_process_is_ended(self) -> None:
        for there in self.some_running():
            self.cluster.end_one(there.peer.node_id)
            return

    def the_broker_starts_anew(self) -> None:
        """Restart the whole broker, killed or stopped, perhaps with another number of workers."""
        cluster = self.cluster
        cluster.held_down.clear()
        if self.random.random() < 0.5 and 0 in cluster.running:
            cluster.end()
        for node_id in [*cluster.running]:
            cluster.kill(node_id)
        known = sorted(cluster.roster)
        cluster.roster.clear()
        cluster.listeners_closed()
        workers = self.random.choice([1, 2, 3, None])
        if self.random.random() < 0.5:
            # The launcher starts all processes it remembers at once, and some are ready earlier.
            for node_id in known[:workers]:
                cluster.start(node_id)
        cluster.start(0, workers=workers, first=True)

    def a_process_comes_back(self) -> None:
        if self.cluster.held_down:
            self.cluster.held_down.discard(self.random.choice([*self.cluster.held_down]))

    def a_process_stops(self) -> None:
        for there in self.some_running():
            there.paused = True
            return

    def a_process_goes_on(self) -> None:
        for there in self.some_running(paused=True):
            there.paused = False

    def a_connection_breaks(self) -> None:
        for there in self.some_running():
            if there.peer.node_id:
                self.cluster.disconnect(there.peer.node_id)
                return

    def a_message_is_lost(self) -> None:
        for queue in self.some_queues():
            del queue[self.random.randrange(len(queue))]
            return

    def a_message_is_doubled(self) -> None:
        for queue in self.some_queues():
            queue.insert(self.random.randrange(len(queue)), self.random.choice(queue))
            return

    def a_message_is_overtaken(self) -> None:
        """A welcome keeps its place: the supervisor's later messages depend on it."""
        for queue in self.some_queues():
            at = self.random.randrange(len(queue))
            frames = [queue[at - 1], queue[at]]
            if at and not any(bus.read_frame(frame).kind is bus.WELCOME for frame in frames):
                queue[at], queue[at - 1] = frames
            return

    def nonsense_is_said(self) -> None:
        """The message claims to be from a worker, of this incarnation or another."""
        if self.cluster.bus.server is None or self.cluster.running[0].paused:
            return
        lie = self.random.choice([-1, 0, 1, 2**31 - 1])
        message = self.random.choice(
            [
                bus.HEARTBEAT(image_offset=-1, led_count=lie, size=lie, unmade=[
                    {"topic_id": bytes(16), "partition": lie}]),
                bus.FORWARD(request_id=lie, frame=bytes(self.random.randrange(40)),
                            peer_host="", peer_port=lie, local_host="", local_port=lie),
                bus.ROSTER(node_ids=[lie], dedicated=[]),
                bus.DELTA(begin_offset=lie, end_offset=lie, records=[b""]),
                bus.HELLO(image_offset=lie),
            ]
        )  # fmt: skip
        peers = [there.identity for there in self.cluster.workers]
        identity = self.random.choice([*peers, b"1.1", b"2.1", b"0.0", b"9.9", b"\0\1\2\3\4"])
        self.cluster.said_up(identity, bus.write_frame(message))

    def flushes_are_held(self) -> None:
        for there in self.some_running():
            there.flusher.held = True
            return

    def flushes_go_on(self) -> None:
        for there in self.some_running(paused=True):
            there.flusher.let_go()

    def some_running(self, *, paused: bool = False):
        """Return the running processes in random order, optionally with the paused ones."""
        running = [there for there in self.cluster.running.values() if paused or not there.paused]
        self.random.shuffle(running)
        return running

    def some_queues(self):
        memory = self.cluster.bus
        queues = [q for q in (*memory.to_server.values(), *memory.to_worker.values()) if q]
        self.random.shuffle(queues)
        return queues

    # -- responses to clients ----------------------------------------------------------------

    def take_answers(self) -> None:
        for stream in self.streams.values():
            if stream.asking is not None and stream.asking.over:
                self.take_produced(stream, stream.asking)
                stream.asking = None
        for name, asking in [each for each in self.decisions if each[1].over]:
            self.decisions.remove((name, asking))
            if not asking.closed:
                self.take_decided(name, asking)
        for asking in [each for each in self.ids_asked if each.over]:
            self.ids_asked.remove(asking)
            if not asking.closed and not asking.answer.error_code:
                assert asking.answer.producer_id not in self.given_ids, "an id was given twice"
                self.producer_ids.append(asking.answer.producer_id)
        self.names.update(
            ((topic.topic_id, index), topic.name)
            for there in self.cluster.running.values()
            for topic in there.node.image.topics.values()
            for index in topic.partitions
        )

    @property
    def given_ids(self) -> set[int]:
        return {*self.producer_ids, *(stream.producer_id for stream in self.streams.values())}

    def take_produced(self, stream: Stream, asking: Asking) -> None:
        if asking.closed:
            return  # the outcome is unknown; the batch is sent again
        (entry,) = asking.answer.responses[0].partition_responses
        if entry.error_code:
            assert entry.error_code in AGAIN, f"{stream}: {BY_CODE[entry.error_code].name}"
            return
        assert entry.base_offset >= 0, "a duplicate is told where the first is"
        stream.acked[entry.base_offset] = stream.value
        stream.sequence += 1

    def take_decided(self, name: str, asking: Asking) -> None:
        answer = asking.answer
        (came,) = answer.topics if asking.api is CREATE_TOPICS else answer.responses
        assert came.name == name, "somebody else's answer"
        assert came.error_code in {0, *REFUSED}, (BY_CODE[came.error_code].name, came.error_message)

    # -- invariants --------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants that hold at any moment."""
        opened: dict[Place, int] = {}
        for node_id, there in self.cluster.running.items():
            for log in there.logs.logs.values():
                if log.topic != METADATA_TOPIC:
                    place = (log.topic_id, log.partition)
                    assert place not in opened, f"{log} is open at {opened[place]} and {node_id}"
                    opened[place] = node_id
            for partition in there.node.replicas:
                self.check_led(node_id, (partition.topic_id, partition.index), partition)
        assert not self.cluster.deaths, self.cluster.deaths
        assert not self.cluster.faults, self.cluster.faults

    def check_led(self, node_id: int, place: Place, partition) -> None:
        epoch = partition.leader_epoch
        assert self.leaders.setdefault((place, epoch), node_id) == node_id, "two lead one epoch"
        assert epoch >= self.newest.get(place, 0), f"{partition} went back to epoch {epoch}"
        self.newest[place] = epoch
        assert not partition.log.released, f"{partition} is led without its log"

    def heal(self) -> None:
        """Stop the faults, and wait until every request has its response."""
        self.cluster.held_down.clear()
        self.cluster.step()
        for there in self.cluster.running.values():
            there.paused = False
            there.flusher.let_go()
        for there in self.cluster.workers:
            self.cluster.disconnect(there.peer.node_id)
        # Requests whose message was lost end with a timeout.
        self.cluster.until(self.is_healed, pace_ms=25)

    def is_healed(self) -> bool:
        self.take_answers()
        self.check()
        if self.decisions or self.ids_asked or not self.cluster.is_settled():
            return False
        image = self.cluster.image
        waiting = [stream for stream in self.streams.values() if stream.asking is not None]
        for stream in waiting:
            topic = image.topics_by_id.get(stream.place[0])
            if topic is None or stream.asking.over:
                continue
            return False
        return True

    def check_healed(self) -> None:
        """Check the invariants of a healed cluster."""
        cluster = self.cluster
        image = cluster.image
        for there in cluster.workers:
            assert [*there.node.image.records()] == [*image.records()]
        for topic in image.topics.values():
            for index, partition in topic.partitions.items():
                led = cluster.node(partition.leader).replicas.leader(topic.name, index)
                assert led.leader_epoch == partition.leader_epoch
                (lies,) = parts.holders(cluster.directory, Owner(topic.name, index, topic.topic_id))
                name = layout.directory_name(topic.name, index)
                assert lies == layout.node_directory(cluster.directory, partition.leader) / name
                self.check_records((topic.topic_id, index), led.log)
        parts.check_parts(cluster.directory)

    def check_records(self, place: Place, log) -> None:
        stream = self.streams.get(place)
        found = log.read(0, 1 << 30, log.end_offset)
        records = [r for batch in batches(found.read()) for r in batch] if found else []
        values = {record.offset: record.value for record in records}
        assert len(values) == len(set(values.values())) == log.end_offset, "a record is there twice"
        if stream is None:
            assert not values
            return
        assert stream.acked.items() <= values.items(), "an acknowledged record is lost"
        assert self.seen.get(place, {}).items() <= values.items(), "a record that was read is lost"
        assert set(values.values()) - {stream.value} == set(stream.acked.values())
