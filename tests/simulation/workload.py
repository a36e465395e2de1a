"""Workload of a simulated cluster: idempotent producers, consumers, and administrative requests.

A producer may have outdated metadata about the leader, and sends a batch again until it is
acknowledged.  An admin creates and deletes topics on any node; an operator moves partitions and
adds, drains and removes workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kafkalite import errors
from kafkalite.coordination.placement import PartitionMove
from kafkalite.errors import BY_CODE
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, DELETE_TOPICS
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from kafkalite.records.batch import Record, batches, build
from tests.simulation.cluster import ClientRequest, Cluster

PartitionKey = tuple[bytes, int]

ALL = -1
TOPICS = ("a", "b", "c")
RETRIABLE = {
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
class ProducerStream:
    """The batches of one idempotent producer for one partition, one record each."""

    partition: PartitionKey
    producer_id: int
    sequence: int = 0
    pending: ClientRequest | None = None
    acked: dict[int, bytes] = field(default_factory=dict)
    """Values by acknowledged offset."""

    @property
    def value(self) -> bytes:
        return b"%d of %d" % (self.sequence, self.producer_id)


class ClusterWorkload:
    """Clients of a cluster; each method sends one random request."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.streams: dict[PartitionKey, ProducerStream] = {}
        self.names: dict[PartitionKey, str] = {}
        self.topic_requests: list[tuple[str, ClientRequest]] = []
        self.id_requests: list[ClientRequest] = []
        self.producer_ids: list[int] = []
        """Producer ids that no stream uses yet."""
        self.seen: dict[PartitionKey, dict[int, bytes | None]] = {}
        """Values that consumers read, by offset."""
        self.counts: Counter[str] = Counter()
        for node_id in (1, 2, 3) * 5:
            answer = cluster.request(node_id, INIT_PRODUCER_ID, 4, transactional_id=None)
            self.producer_ids.append(answer.producer_id)

    # -- requests ----------------------------------------------------------------------------

    def produce_record(self) -> None:
        partition = self.random.choice([*self.names, None])
        if partition is None:
            return
        stream = self.streams.get(partition)
        if stream is None:
            if not self.producer_ids:
                return
            stream = ProducerStream(partition, self.producer_ids.pop())
            self.streams[partition] = stream
        if stream.pending is None:
            node_id = self.random.choice([self._leader_of(partition), *self.cluster.running])
            self._send(stream, node_id)

    def _leader_of(self, partition: PartitionKey) -> int:
        """Return the leader according to a random node."""
        for there in self.cluster.some_running():
            topic = there.node.image.topics_by_id.get(partition[0])
            if topic is not None:
                return int(topic.partitions[partition[1]].leader)
        return self.random.randint(1, 3)

    def _send(self, stream: ProducerStream, node_id: int) -> None:
        there = self.cluster.running.get(node_id)
        if there is None or there.paused:
            return
        batch = build(
            [Record(timestamp=1_000, value=stream.value)],
            producer_id=stream.producer_id,
            producer_epoch=0,
            base_sequence=stream.sequence,
        )
        topic_id, index = stream.partition
        partition_data = [{"index": index, "records": batch}]
        stream.pending = self.cluster.send(
            node_id, PRODUCE, 13, acks=ALL, timeout_ms=1_000,
            topic_data=[{"topic_id": topic_id, "partition_data": partition_data}],
        )  # fmt: skip

    def fetch_records(self) -> None:
        """Read a partition; a record that was read before must not be replaced or removed."""
        running = self.cluster.some_running()
        if not self.names or not running:
            return
        topic_id, index = place = self.random.choice([*self.names])
        partition = {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        pending = self.cluster.send(
            running[0].peer.node_id, FETCH, 13, replica_id=-1, max_wait_ms=0, min_bytes=1,
            max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1, rack_id="",
            forgotten_topics_data=[], topics=[{"topic_id": topic_id, "partitions": [partition]}],
        )  # fmt: skip
        (entry,) = pending.response.responses[0].partitions
        if entry.error_code:
            assert entry.error_code in RETRIABLE, BY_CODE[entry.error_code].name
            return
        seen = self.seen.setdefault(place, {})
        for batch in batches(entry.records or b""):
            for record in batch:
                assert seen.setdefault(record.offset, record.value) == record.value
        self.counts["records seen"] += len(seen)

    def create_topic(self) -> None:
        name, count = self.random.choice(TOPICS), self.random.randint(1, 3)
        dedicated = {"name": "worker.dedicated", "value": "true"}
        configs = [dedicated] if self.random.random() < 0.1 else []
        topic = {"name": name, "num_partitions": count, "replication_factor": 1, "configs": configs}
        self._send_to_any(name, CREATE_TOPICS, 7, topics=[topic])

    def delete_topic(self) -> None:
        name = self.random.choice(TOPICS)
        self._send_to_any(name, DELETE_TOPICS, 5, topic_names=[name], timeout_ms=1_000)

    def _send_to_any(self, name: str, api: Api, version: int, **request: object) -> None:
        for there in self.cluster.some_running():
            pending = self.cluster.send(there.peer.node_id, api, version, **request)
            self.topic_requests.append((name, pending))
            return

    def request_producer_id(self) -> None:
        for there in self.cluster.some_running():
            self.id_requests.append(
                self.cluster.send(there.peer.node_id, INIT_PRODUCER_ID, 4, transactional_id=None)
            )
            return

    def order_nodes(self) -> None:
        """Send a command of `kafkalite node`."""
        supervisor = self.cluster.running.get(0)
        if supervisor is None or supervisor.paused:
            return
        verbs = ["list", "drain", "undrain", "rebalance", "rebalance", "add", "remove"]
        verb = self.random.choice(verbs)
        if verb == "add" and len(self.cluster.desired_nodes) > 4:
            verb = "rebalance"
        node_id = self.random.choice([*self.cluster.desired_nodes, 0])
        order = bus.NODE_ORDER(request_id=7, verb=verb, node_id=node_id, dry_run=False)
        assert self.cluster.bus.server is not None
        self.cluster.receive_from_worker(b"an operator", bus.write_frame(order))

    def move_partitions(self) -> None:
        supervisor = self.cluster.running.get(0)
        if supervisor is None or supervisor.paused or not self.cluster.desired_nodes:
            return
        workers = [*self.cluster.desired_nodes]
        moves = [
            PartitionMove(topic.topic_id, index, partition.leader, self.random.choice(workers))
            for topic in self.cluster.image.topics.values()
            for index, partition in topic.partitions.items()
        ]
        self.cluster.supervisor.reassigner.plan(moves)

    # -- responses ---------------------------------------------------------------------------

    def take_responses(self) -> None:
        """Check the responses that have arrived, and record what was acknowledged."""
        for stream in self.streams.values():
            if stream.pending is not None and stream.pending.is_done:
                self._take_produced(stream, stream.pending)
                stream.pending = None
        for name, pending in [each for each in self.topic_requests if each[1].is_done]:
            self.topic_requests.remove((name, pending))
            if not pending.closed:
                self._take_topic_response(name, pending)
        for pending in [each for each in self.id_requests if each.is_done]:
            self.id_requests.remove(pending)
            if not pending.closed and not pending.response.error_code:
                assert pending.response.producer_id not in self._used_ids, (
                    "an id was assigned twice"
                )
                self.producer_ids.append(pending.response.producer_id)
        self.names.update(
            ((topic.topic_id, index), topic.name)
            for there in self.cluster.running.values()
            for topic in there.node.image.topics.values()
            for index in topic.partitions
        )

    @property
    def _used_ids(self) -> set[int]:
        return {*self.producer_ids, *(stream.producer_id for stream in self.streams.values())}

    def _take_produced(self, stream: ProducerStream, pending: ClientRequest) -> None:
        if pending.closed:
            return  # the outcome is unknown; the batch is sent again
        (entry,) = pending.response.responses[0].partition_responses
        if entry.error_code:
            assert entry.error_code in RETRIABLE, f"{stream}: {BY_CODE[entry.error_code].name}"
            return
        assert entry.base_offset >= 0, "a duplicate gets the offset of the first batch"
        stream.acked[entry.base_offset] = stream.value
        stream.sequence += 1

    def _take_topic_response(self, name: str, pending: ClientRequest) -> None:
        answer = pending.response
        (came,) = answer.topics if pending.api is CREATE_TOPICS else answer.responses
        assert came.name == name, "the response of another request"
        assert came.error_code in {0, *REFUSED}, (BY_CODE[came.error_code].name, came.error_message)

    def is_done(self) -> bool:
        """Return whether no request is in flight, except to partitions that were deleted."""
        if self.topic_requests or self.id_requests:
            return False
        topics = self.cluster.image.topics_by_id
        return all(
            stream.pending is None or stream.pending.is_done or stream.partition[0] not in topics
            for stream in self.streams.values()
        )
