"""Faults of a simulated cluster: processes, network and disk, each method one random fault."""

from __future__ import annotations

import shutil
from collections import deque

from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.protocol.schemas import bus
from tests.simulation.cluster import Cluster


class ClusterFaults:
    """Injects faults into a cluster, and removes them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.keeps_workers = False
        """True if a broker with fewer workers is refused: they have some of several replicas."""

    def heal(self) -> None:
        """Remove all faults; broken connections are made again, and lost messages stay lost."""
        self.cluster.held_down.clear()
        self.cluster.step()
        for there in self.cluster.running.values():
            there.paused = False
            there.flusher.let_go()
        for there in self.cluster.workers:
            self.cluster.disconnect(there.peer.node_id)

    # -- processes ---------------------------------------------------------------------------

    def kill_process(self) -> None:
        for there in self.cluster.some_running(paused=True):
            self.cluster.kill(there.peer.node_id, stay_down=self.random.random() < 0.5)
            return

    def shut_down_process(self) -> None:
        for there in self.cluster.some_running():
            self.cluster.end_one(there.peer.node_id)
            return

    def lose_coordinator_logs(self) -> None:
        """Kill the supervisor, and remove its logs of internal topics, which have others."""
        if 0 in self.cluster.running:
            self.cluster.kill(0, stay_down=self.random.random() < 0.5)
            for topic in INTERNAL_TOPICS:
                for directory in self.cluster.directory.glob(f"{topic}-*"):
                    shutil.rmtree(directory)

    def restart_broker(self) -> None:
        """Restart the whole broker, killed or shut down, perhaps with another number of workers."""
        cluster = self.cluster
        cluster.held_down.clear()
        if self.random.random() < 0.5 and 0 in cluster.running:
            cluster.end()
        for node_id in [*cluster.running]:
            cluster.kill(node_id)
        known = sorted(cluster.desired_nodes)
        cluster.desired_nodes.clear()
        cluster.listeners_closed()
        workers = self.random.choice([3, None] if self.keeps_workers else [1, 2, 3, None])
        if self.random.random() < 0.5:
            # The launcher starts all processes it remembers at once, and some are ready earlier.
            for node_id in known[:workers]:
                cluster.start(node_id)
        cluster.start(0, workers=workers, first=True)

    def allow_restart(self) -> None:
        """Let one process start that was killed and kept down."""
        if self.cluster.held_down:
            self.cluster.held_down.discard(self.random.choice([*self.cluster.held_down]))

    def pause_process(self) -> None:
        for there in self.cluster.some_running():
            there.paused = True
            return

    def resume_processes(self) -> None:
        for there in self.cluster.some_running(paused=True):
            there.paused = False

    # -- network -----------------------------------------------------------------------------

    def break_connection(self) -> None:
        for there in self.cluster.some_running():
            if there.peer.node_id:
                self.cluster.disconnect(there.peer.node_id)
                return

    def lose_message(self) -> None:
        for queue in self._queues():
            del queue[self.random.randrange(len(queue))]
            return

    def duplicate_message(self) -> None:
        """A copy comes later than its original: not before the supervisor's welcome."""
        for queue in self._queues():
            at = self.random.randrange(len(queue))
            queue.insert(self.random.randint(at + 1, len(queue)), queue[at])
            return

    def reorder_messages(self) -> None:
        """A welcome keeps its place: the supervisor's later messages depend on it."""
        for queue in self._queues():
            at = self.random.randrange(len(queue))
            frames = [queue[at - 1], queue[at]]
            if at and not any(bus.read_frame(frame).kind is bus.WELCOME for frame in frames):
                queue[at], queue[at - 1] = frames
            return

    def _queues(self) -> list[deque[bytes]]:
        """Return the queues that hold messages, in random order."""
        memory = self.cluster.bus
        queues = [q for q in (*memory.to_server.values(), *memory.to_worker.values()) if q]
        self.random.shuffle(queues)
        return queues

    def send_invalid_message(self) -> None:
        """The message claims to be from a worker, of this incarnation or another."""
        if self.cluster.bus.server is None or self.cluster.running[0].paused:
            return
        lie = self.random.choice([-1, 0, 1, 2**31 - 1])
        message = self.random.choice(
            [
                bus.HEARTBEAT(image_offset=-1, led_count=lie, size=lie, unserved=[
                    {"topic_id": bytes(16), "partition": lie}]),
                bus.FORWARD(request_id=lie, frame=bytes(self.random.randrange(40)),
                            peer_host="", peer_port=lie, local_host="", local_port=lie),
                bus.DESIRED_NODES(node_ids=[lie], dedicated=[]),
                bus.DELTA(begin_offset=lie, end_offset=lie, records=[b""]),
                bus.HELLO(image_offset=lie),
            ]
        )  # fmt: skip
        peers = [there.identity for there in self.cluster.workers]
        identity = self.random.choice([*peers, b"1.1", b"2.1", b"0.0", b"9.9", b"\0\1\2\3\4"])
        self.cluster.receive_from_worker(identity, bus.write_frame(message))

    # -- disk --------------------------------------------------------------------------------

    def hold_flushes(self) -> None:
        for there in self.cluster.some_running():
            there.flusher.held = True
            return

    def release_flushes(self) -> None:
        for there in self.cluster.some_running(paused=True):
            there.flusher.let_go()
