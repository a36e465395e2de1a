"""One run of isolation: a broker, the healthy client alone, then beside all of the load."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from kafkalite.metrics import Read, read_pages
from kafkalite.process.log_file import LOG_FILE
from kafkalite.process.run_directory import bus_path
from kafkalite.process.status.ready import Ready
from kafkalite.testing import Broker
from tests.faults.isolation.consumers import ConsumerPlan, consume
from tests.faults.isolation.healthy import HealthyPlan, probe
from tests.faults.isolation.judge import Observed, node_ticks
from tests.faults.isolation.load import RESPONSE_S_MAX, Load, amounts
from tests.faults.isolation.plan import IsolationPlan
from tests.faults.processes import Processes, until
from tests.faults.raw_connection import RawConnection

CONFIG = {
    "log.retention.check.interval.ms": "2000",
    "log.segment.delete.delay.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "5000",
}
RESULT_S_MAX = 120.0
PAGES_S_MAX = 60.0


class Child:
    """A process of the harness that works until its result is requested."""

    def __init__(self, work: Callable[[Any, Connection], None], plan: object) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.control, theirs = spawning.Pipe()
        self.process = spawning.Process(target=work, args=(plan, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self) -> Any:
        """Return the next message of the process; raise EOFError if it has failed."""
        if not self.control.poll(RESULT_S_MAX):
            raise TimeoutError(f"{self.process.name} sends nothing after {RESULT_S_MAX} s")
        return self.control.recv()

    def result(self) -> Any:
        """Request the result, and end the process."""
        try:
            self.control.send("end")
            return self.receive()
        finally:
            self.end()

    def end(self) -> None:
        self.process.join(1.0)
        self.process.kill()
        self.process.join()


def run(plan: IsolationPlan) -> Observed:
    """Run the plan; judge.py checks the result."""
    with Broker(workers=plan.workers, durability=plan.durability, config=CONFIG) as broker:
        processes = Processes(broker)
        nodes_before = processes.pids()
        address, _, port = broker.bootstrap.rpartition(":")
        load = Load(plan, (address, int(port)))
        children: list[Child] = []
        trips, begun = [], 0.0
        try:
            with RawConnection(load.bootstrap, RESPONSE_S_MAX) as line:
                load.create(line, ["healthy"], plan.workers or 1)
                leaders = [(a, led[0]) for a, led in load.leaders["healthy"].items()]
                load.write_first("healthy")
                healthy = Child(probe, HealthyPlan("healthy", leaders, plan.pace_ms / 1e3))
                children.append(healthy)
                healthy.receive()
                time.sleep(plan.alone_s)
                begun = time.monotonic()
                play(plan, processes, line, load, children)
            trips = healthy.result()
        except (OSError, EOFError) as fault:
            load.faults.append(f"The run could not be played to its end: {fault!r}")
        finally:
            load.end()
            for child in children:
                child.end()
        return Observed(
            nodes_before,
            processes.pids(),
            [node_ticks(page) for page in fresh_pages(broker)],
            (broker.data / LOG_FILE).read_text(errors="replace"),
            [trip for trip in trips if trip.at < begun],
            [trip for trip in trips if trip.at >= begun],
            dict(load.counts),
            amounts(plan),
            load.faults,
        )


def play(
    plan: IsolationPlan,
    processes: Processes,
    line: RawConnection,
    load: Load,
    children: list[Child],
) -> None:
    """Run the whole load, from the creation of the many partitions to the last amount."""
    begun, times = time.monotonic(), loop_times(processes)
    deadline = begun + plan.minutes_max * 60
    load.create(line, ["many"], plan.partitions)
    load.counts["ms until the partitions had leaders"] = round((time.monotonic() - begun) * 1e3)
    load.create(
        line, ["filled"], plan.workers or 1, segment_bytes=plan.segment_bytes, retention_bytes=1
    )
    load.create(line, ["packed"], plan.lookup_partitions)
    load.pack("packed")
    consumers = Child(
        consume,
        ConsumerPlan(
            "many",
            load.leaders["many"],
            plan.consumers,
            plan.consumer_partitions,
            plan.wide_consumers,
            plan.consumer_wait_ms,
            plan.connects_per_s,
            plan.seed,
        ),
    )
    children.append(consumers)
    works: list[Callable[[], None]] = [
        load.churn_topics,
        lambda: load.fill("filled"),
        lambda: load.look_up("packed"),
        load.open_sessions,
    ]
    load.begin(*works, lambda: load.feed("many"))
    least = begun + plan.beside_s
    bounded = load.threads[: len(works)]
    while time.monotonic() < deadline and (
        any(thread.is_alive() for thread in bounded)
        or time.monotonic() < least
        or not consumers.control.poll()
    ):
        time.sleep(0.1)
    consumers.receive()  # all of them are connected
    load.end()
    load.counts.update(consumers.result())
    took = time.monotonic() - begun
    load.counts["seconds beside the load"] = round(took)
    for node, (ran_s, waited_s) in loop_times(processes).items():
        ran_before, waited_before = times.get(node, (0.0, 0.0))
        percent = (100 * (ran_s - ran_before) / took, 100 * (waited_s - waited_before) / took)
        load.counts[f"percent of the time node {node}'s loop ran"] = round(percent[0])
        load.counts[f"percent it waited for a processor (node {node})"] = round(percent[1])


def loop_times(processes: Processes) -> dict[int, tuple[float, float]]:
    """Return the run time and the wait for a processor of each node's main thread, its loop."""
    found = {}
    for node, pid in processes.pids().items():
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        found[node] = int(ran_ns) / 1e9, int(waited_ns) / 1e9
    return found


def fresh_pages(broker: Broker) -> list[Read]:
    """Read every node's metrics page, written after the load has ended."""
    directory = bus_path(cast(Ready, broker.ready)).parent
    ended_ms = now_ms()
    pages: list[Read] = []

    def are_fresh() -> bool:
        pages[:] = [page for page in read_pages(directory, now_ms()) if page.at_ms >= ended_ms]
        return len(pages) >= len(broker.nodes)

    try:
        until(are_fresh, PAGES_S_MAX, "there is no fresh metrics page of each node")
    except TimeoutError:
        pass  # judge.py reports the missing page
    return pages


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
