"""A simulated cluster under random events: workload.py, faults.py, and the scheduling of both.

Processes are killed, paused and restarted, messages are held, lost, duplicated and reordered, and
flushes are delayed, while clients send requests.  checkers.py checks the cluster after each event,
and its records once it is healed.  One seed gives one run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.simulation.checkers import ClusterChecker
from tests.simulation.cluster import Cluster
from tests.simulation.faults import ClusterFaults
from tests.simulation.workload import ClusterWorkload


class ClusterSimulation:
    """One run."""

    def __init__(self, directory: Path, seed: int, **settings: str) -> None:
        self.cluster = Cluster(directory, workers=3, seed=seed, **settings)
        self.random = self.cluster.random
        self.workload = workload = ClusterWorkload(self.cluster)
        self.faults = faults = ClusterFaults(self.cluster)
        self.checker = ClusterChecker(self.cluster, workload)
        self.events: list[tuple[int, Callable[[], object]]] = [
            (20, self.run_undisturbed),
            (30, self.advance_clock),
            (30, self.deliver_messages),
            (30, self.tick_node),
            (40, workload.produce_record),
            (6, workload.create_topic),
            (3, workload.delete_topic),
            (3, workload.request_producer_id),
            (5, workload.order_nodes),
            (8, workload.move_partitions),
            (10, workload.fetch_records),
            (1, faults.restart_broker),
            (2, faults.kill_process),
            (2, faults.shut_down_process),
            (3, faults.allow_restart),
            (2, faults.pause_process),
            (4, faults.resume_processes),
            (2, faults.break_connection),
            (2, faults.lose_message),
            (2, faults.duplicate_message),
            (2, faults.reorder_messages),
            (2, faults.send_invalid_message),
            (2, faults.hold_flushes),
            (4, faults.release_flushes),
        ]

    def run(self, steps: int) -> None:
        """Run `steps` random events, then heal the cluster and check it."""
        weights = [weight for weight, _ in self.events]
        for event in self.random.choices([event for _, event in self.events], weights, k=steps):
            event()
            self.workload.counts[event.__name__] += 1
            self.workload.take_responses()
            self.cluster.launch()
            self.checker.check()
        self.faults.heal()
        # Requests whose message was lost end with a timeout.
        self.cluster.until(self.is_healed, pace_ms=25)
        self.checker.check_healed()
        self.cluster.close()

    def is_healed(self) -> bool:
        """Return whether every request has its response and the cluster is settled."""
        self.workload.take_responses()
        self.checker.check()
        return self.cluster.is_settled() and self.workload.is_done()

    # -- scheduling --------------------------------------------------------------------------

    def run_undisturbed(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            self.cluster.step()
            self.workload.take_responses()
            self.checker.check()

    def advance_clock(self) -> None:
        self.cluster.clock.advance(self.random.choice([1, 1, 5, 20, 100, 600]))
        self.cluster.connect()

    def deliver_messages(self) -> None:
        """Deliver some of the messages of one connection."""
        self.cluster.connect()
        memory = self.cluster.bus
        waiting = [(queue, self.cluster.deliver_up) for queue in memory.to_server.items()]
        waiting += [(queue, self.cluster.deliver_down) for queue in memory.to_worker.items()]
        waiting = [((identity, queue), deliver) for (identity, queue), deliver in waiting if queue]
        if waiting:
            (identity, queue), deliver = self.random.choice(waiting)
            deliver(identity, self.random.randint(1, len(queue)))

    def tick_node(self) -> None:
        if self.cluster.running:
            self.cluster.tick(self.random.choice([*self.cluster.running]))
