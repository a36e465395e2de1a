"""A share group in a simulated cluster under random faults: processes, messages and moves.

Members fetch and acknowledge with one request at a time to a node.  These are checked:

    each acquisition    is of a record that no other member holds by a lock of the same leader, and
                        that was not accepted; its delivery count is within the limit
    each record         is delivered at least once
    each share partition    processes all records once the cluster is healed, and again after its
                            leaders were killed

A lock is counted from the time of the fetch's request, so it may last longer than checked here.  It
ends with the process of its leader.  Responses may arrive in another order than records were
acquired.
One seed gives one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafkalite import errors
from kafkalite.coordination.features import SHARE_VERSION, is_finalized
from kafkalite.coordination.placement import PartitionMove
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.share import (
    ALTER_SHARE_GROUP_OFFSETS,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)
from kafkalite.protocol.schemas.topics import CREATE_TOPICS
from kafkalite.records.batch import Record, build
from tests.simulation.cluster import ClientRequest, Cluster, internal_factors
from tests.simulation.faults import ClusterFaults

TOPIC, GROUP = "t", "g"
PARTITIONS = 3
LOCK_MS, COUNT_LIMIT = 1_000, 5
ACCEPT, RELEASE, REJECT = 1, 2, 3
LOST = {errors.ShareSessionNotFound.code, errors.InvalidShareSessionEpoch.code}
SETTINGS = {
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
}

Place = tuple[int, int]
"""Partition and offset."""


class Lock(NamedTuple):
    """A record that a member has acquired."""

    leader: tuple[int, int]
    """Leader epoch, and incarnation of the process."""
    count: int
    """The delivery count."""
    member: str
    sent_ms: int
    """Time of the fetch's request."""

    @property
    def end_ms(self) -> int:
        return self.sent_ms + LOCK_MS

    def is_decisive(self, now_ms: int) -> bool:
        """Return whether a successful acknowledgement has ended the lock.

        If it was the last delivery, the lock may have expired before: the record is archived then,
        an acknowledgement changes nothing, and a leader that cannot store that delivers it again.
        """
        return self.count < COUNT_LIMIT or now_ms < self.end_ms

    def is_before(self, other: Lock) -> bool:
        """Return whether the record was acquired earlier than `other`."""
        return (self.leader, self.count) < (other.leader, other.count)


class SharedRecords:
    """Records that all members have received and acknowledged."""

    def __init__(self) -> None:
        self.locks: dict[Place, Lock] = {}
        self.accepted: dict[Place, tuple[Lock, int]] = {}
        """The lock, and the time of the acknowledgement's response."""
        self.delivered: set[Place] = set()

    def acquire(self, place: Place, lock: Lock, now_ms: int) -> None:
        """Check an acquisition, and note it."""
        if place in self.accepted:
            accepted, at_ms = self.accepted[place]
            is_late = lock.sent_ms <= at_ms and lock.is_before(accepted)
            assert is_late, f"{place} was accepted, and is delivered again"
        assert 1 <= lock.count <= COUNT_LIMIT, f"{place} is delivered with count {lock.count}"
        self.delivered.add(place)
        held = self.locks.get(place)
        if held is None or not lock.is_before(held):
            if held is not None and held.leader == lock.leader and now_ms < held.end_ms:
                raise AssertionError(f"{place} is locked by {held}, and acquired by {lock.member}")
            self.locks[place] = lock


class Session:
    """A member's session at one process."""

    def __init__(self, node_id: int, incarnation: int) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.epoch = 0
        self.wire: ClientRequest | None = None
        """The connection of its first request."""
        self.pending: ClientRequest | None = None
        self.sent_ms = 0
        self.sent: dict[Place, int] = {}
        """The acknowledgements of the pending request."""
        self.leader_epochs: dict[int, int] = {}
        self.held: set[Place] = set()
        self.locks: dict[Place, Lock] = {}
        """The last lock of each record that the session has acquired."""


class ShareClient:
    """A member of the group; `step` handles a response or sends the next request."""

    def __init__(self, cluster: Cluster, name: str, topic_id: bytes, shared: SharedRecords) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.name = name
        self.topic_id = topic_id
        self.shared = shared
        self.sessions: dict[int, Session] = {}
        self.is_draining = False

    def step(self) -> None:
        """Take one step of the session at a random node."""
        leaders = self._leaders()
        if not leaders:
            return
        node_id = self.random.choice([*set(leaders.values()), *self.sessions])
        there = self.cluster.running.get(node_id)
        session = self.sessions.get(node_id)
        if session is not None and (there is None or there.peer.incarnation != session.incarnation):
            self._lose(session)
        elif session is not None and session.pending is not None:
            self._take(session)
        elif session is not None:
            self._send(session, leaders)
        elif there is not None:
            session = self.sessions[node_id] = Session(node_id, there.peer.incarnation)
            self._send(session, leaders)

    def leave(self) -> None:
        """Close the connection of a session."""
        for session in [*self.sessions.values()]:
            there = self.cluster.running.get(session.node_id)
            is_there = there is not None and there.peer.incarnation == session.incarnation
            if is_there and session.pending is None and session.wire is not None:
                session.wire.disconnect()
                self._lose(session)
                return

    def _leaders(self) -> dict[int, int]:
        for there in self.cluster.some_running():
            topic = there.node.image.topics.get(TOPIC)
            if topic is not None:
                return {index: each.leader for index, each in topic.partitions.items()}
        return {}

    def _lose(self, session: Session) -> None:
        """Forget a session whose records are released."""
        del self.sessions[session.node_id]
        for place in session.held | session.sent.keys():
            lock = self.shared.locks.get(place)
            if lock is not None and lock.member == self.name:
                del self.shared.locks[place]

    # -- requests ----------------------------------------------------------------------------

    def _send(self, session: Session, leaders: dict[int, int]) -> None:
        session.sent_ms = self.cluster.clock.monotonic_ms()
        session.sent = {}
        topic = self.cluster.running[session.node_id].node.image.topics[TOPIC]
        session.leader_epochs = {n: each.leader_epoch for n, each in topic.partitions.items()}
        if session.held and session.epoch and self.random.random() < 0.6:
            self._send_acknowledgement(session)
            return
        led = [index for index, leader in leaders.items() if leader == session.node_id]
        session.pending = self._request(
            session, SHARE_FETCH, {index: [] for index in led}, max_wait_ms=0, min_bytes=1,
            max_records=self.random.choice([1, 5, 100]), batch_size=100,
            share_acquire_mode=self.random.choice([0, 1]),
        )  # fmt: skip
        if session.epoch == 0:
            session.wire = session.pending

    def _send_acknowledgement(self, session: Session) -> None:
        held = sorted(session.held)
        if not self.is_draining:
            held = self.random.sample(held, self.random.randint(1, len(held)))
        outcomes = [ACCEPT] if self.is_draining else [ACCEPT] * 5 + [RELEASE] * 2 + [REJECT]
        batches: dict[int, list[dict[str, object]]] = {}
        for place in sorted(held):
            outcome = session.sent[place] = self.random.choice(outcomes)
            self.shared.locks.pop(place, None)  # it may end before the response is here
            index, offset = place
            batches.setdefault(index, []).append(
                {"first_offset": offset, "last_offset": offset, "acknowledge_types": [outcome]}
            )
        session.held -= session.sent.keys()
        session.pending = self._request(session, SHARE_ACKNOWLEDGE, batches)

    def _request(self, session: Session, api, batches, **fields) -> ClientRequest:
        partitions = [
            {"partition_index": index, "acknowledgement_batches": of_partition}
            for index, of_partition in batches.items()
        ]
        return self.cluster.send(
            session.node_id, api, 2, group_id=GROUP, member_id=self.name,
            share_session_epoch=session.epoch,
            topics=[{"topic_id": self.topic_id, "partitions": partitions}], **fields,
        )  # fmt: skip

    # -- responses ---------------------------------------------------------------------------

    def _take(self, session: Session) -> None:
        assert session.pending is not None
        if not session.pending.is_done:
            return
        pending, session.pending = session.pending, None
        if pending.closed:
            self._lose(session)
            return
        response = pending.response
        if response.error_code:
            assert response.error_code in LOST, f"error {response.error_code}"
            self._lose(session)
            return
        session.epoch += 1
        for topic in response.responses:
            for entry in topic.partitions:
                if pending.api is SHARE_FETCH:
                    self._acquired(session, entry)
                elif not entry.error_code:
                    now_ms = self.cluster.clock.monotonic_ms()
                    self.shared.accepted |= {
                        place: (session.locks[place], now_ms)
                        for place, outcome in session.sent.items()
                        if place[0] == entry.partition_index
                        and outcome == ACCEPT
                        and session.locks[place].is_decisive(now_ms)
                    }
        session.sent = {}

    def _acquired(self, session: Session, entry) -> None:
        index, now_ms = entry.partition_index, self.cluster.clock.monotonic_ms()
        leader = session.leader_epochs[index], session.incarnation
        for each in entry.acquired_records:
            for offset in range(each.first_offset, each.last_offset + 1):
                lock = Lock(leader, each.delivery_count, self.name, session.sent_ms)
                self.shared.acquire((index, offset), lock, now_ms)
                session.held.add((index, offset))
                session.locks[index, offset] = lock


class ShareSimulation:
    """One run."""

    def __init__(self, directory: Path, seed: int, replicas: int = 1, **settings: str) -> None:
        """`replicas` is the number of those of the internal topics; with several, node 0 may lose
        its logs of them."""
        settings |= internal_factors(replicas)
        self.cluster = Cluster(directory, workers=2, seed=seed, **SETTINGS, **settings)
        self.random = self.cluster.random
        self.counts: Counter[str] = Counter()
        self.shared = SharedRecords()
        self.topic_id = self._prepare()
        self.clients = [
            ShareClient(self.cluster, name * 22, self.topic_id, self.shared) for name in "abc"
        ]
        faults = self.faults = ClusterFaults(self.cluster)
        self.events: list[tuple[int, Callable[[], object]]] = [
            (40, self.run_undisturbed),
            (15, self.advance_clock),
            (60, self.step_client),
            (15, self.produce),
            (2, self.leave),
            (3, self.move_partition),
            (2, faults.kill_process),
            (1, faults.shut_down_process),
            (4, faults.allow_restart),
            (2, faults.pause_process),
            (6, faults.resume_processes),
            (2, faults.break_connection),
            (2, faults.lose_message),
            (2, faults.duplicate_message),
            (2, faults.reorder_messages),
            (2, faults.hold_flushes),
            (4, faults.release_flushes),
        ]
        if replicas > 1:
            self.events.append((2, faults.lose_coordinator_logs))

    def _prepare(self) -> bytes:
        cluster = self.cluster
        cluster.until(lambda: is_finalized(cluster.image, SHARE_VERSION))
        topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
        (made,) = cluster.request(0, CREATE_TOPICS, 7, topics=[topic]).topics
        cluster.request(0, FIND_COORDINATOR, 3, key=GROUP, key_type=0)
        starts = [{"partition_index": index, "start_offset": 0} for index in range(PARTITIONS)]
        topics = [{"topic_name": TOPIC, "partitions": starts}]
        altered = cluster.request(0, ALTER_SHARE_GROUP_OFFSETS, 0, group_id=GROUP, topics=topics)
        assert {each.error_code for each in altered.responses[0].partitions} == {0}
        return bytes(made.topic_id)

    def run(self, steps: int) -> None:
        """Run `steps` random events, heal the cluster, have all records processed, and check."""
        weights = [weight for weight, _ in self.events]
        for event in self.random.choices([event for _, event in self.events], weights, k=steps):
            event()
            self.counts[event.__name__] += 1
            self.cluster.launch()
        self.faults.heal()
        self.cluster.until(self.cluster.is_settled, pace_ms=25)
        for client in self.clients:
            client.is_draining = True
        self.cluster.until(self._is_processed, pace_ms=25)
        for there in self.cluster.workers:
            self.cluster.kill(there.peer.node_id)
        self.cluster.until(self.cluster.is_settled, pace_ms=25)
        self.cluster.until(self._is_processed, pace_ms=25)
        for index in range(PARTITIONS):
            end_offset = self._end_offset(index)
            missing = {(index, offset) for offset in range(end_offset)} - self.shared.delivered
            assert not missing, f"never delivered: {sorted(missing)}"
        assert self.cluster.deaths == self.cluster.faults == []
        self.cluster.close()

    def _end_offset(self, index: int) -> int:
        node = self.cluster.node(self.cluster.leader(TOPIC, index))
        return node.replicas.leader(TOPIC, index).high_watermark

    def _start_offset(self, index: int) -> int | None:
        """Return the start offset of a share partition at its leader, if it is loaded there."""
        node = self.cluster.node(self.cluster.leader(TOPIC, index))
        share = node.share_partitions.led.find(GROUP, self.topic_id, index)
        is_loaded = share is not None and share.is_usable and share.records is not None
        return share.records.start_offset if is_loaded else None

    def _is_processed(self) -> bool:
        for _ in range(8):
            for client in self.clients:
                client.step()
        return all(self._start_offset(n) == self._end_offset(n) for n in range(PARTITIONS))

    # -- events ------------------------------------------------------------------------------

    def run_undisturbed(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            self.cluster.step()

    def advance_clock(self) -> None:
        self.cluster.clock.advance(self.random.choice([1, 5, 20, 100, 600]))

    def step_client(self) -> None:
        self.random.choice(self.clients).step()

    def leave(self) -> None:
        self.random.choice(self.clients).leave()

    def produce(self) -> None:
        """Send a batch of records; its outcome is not of interest."""
        node_id = self.random.choice([*self.cluster.running, 1])
        count = self.random.choice([1, 1, 3, 10])
        records = build([Record(timestamp=1_000, value=b"%d" % n) for n in range(count)])
        partition = {"index": self.random.randrange(PARTITIONS), "records": records}
        self.cluster.send(
            node_id, PRODUCE, 12, acks=1, timeout_ms=1_000,
            topic_data=[{"name": TOPIC, "partition_data": [partition]}],
        )  # fmt: skip

    def move_partition(self) -> None:
        there = self.cluster.running.get(0)
        if there is None or there.paused or there.supervisor is None:
            return
        topic = self.cluster.image.topics[TOPIC]
        index, to_node = self.random.randrange(PARTITIONS), self.random.choice([1, 2])
        move = PartitionMove(self.topic_id, index, topic.partitions[index].leader, to_node)
        if move.from_node != to_node:
            there.supervisor.reassigner.plan([move])
