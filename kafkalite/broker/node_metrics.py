"""NodeMetrics: the metrics page of a node, with the metric names that Kafka operators know.

    each second, or every five seconds without requests:  counters ─▶ families ─▶ the page

The names are those that the JMX exporter for Prometheus gives to Kafka's beans by the rules of its
`example_configs/kafka-2_0_0.yml`: `kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec`
is kafka_server_brokertopicmetrics_messagesin_total.  Where those rules define no name (connections,
idle time), the names are those of Strimzi's rules; metrics that Kafka does not have begin with
`kafkalite_`.  The exporter adds the label of the broker.

Requests only increment the counters of `request_metrics.py`; everything else is read here.  If
writing the page takes long, it is written less often.

Left out: metrics that need more than one replica (lag, ISR shrinks, elections); the parts of a
request's time, since requests are not queued here; the error code NONE in the errors metric.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkalite.broker.client_telemetry import PushSender
from kafkalite.broker.local.direct_reads import DelayedRead
from kafkalite.broker.replica.delayed_fetch import DelayedFetch
from kafkalite.broker.replica.delayed_produce import DelayedProduce
from kafkalite.broker.request_metrics import Traffic
from kafkalite.errors import BY_CODE
from kafkalite.metrics import (
    BUCKET_COUNT,
    COUNTER,
    GAUGE,
    HISTOGRAM,
    PUSHES,
    Family,
    Page,
    page_path,
)

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.broker.replica.partition import Partition

log = logging.getLogger("kafkalite.broker")

PERIOD_MS, PERIOD_MS_MAX = 1_000, 5_000
IDLE_PERIODS = 5
COST = 200
"""The next page is written after COST times the duration of the last one, so that it takes at most
1/COST of the time, but after PERIOD_MS_MAX at the latest."""

STEP_MS, STEP_PAUSE_MS = 5, 1
"""Duration of a step of writing a page, and of the pause between two steps; each step writes at
least some samples."""
WRITTEN = object()

TOPIC_COUNTERS = {
    "messages_in": ("messagesin", "Records that were produced."),
    "bytes_in": ("bytesin", "Bytes that were produced."),
    "bytes_out": ("bytesout", "Bytes that consumers fetched."),
    "bytes_rejected": ("bytesrejected", "Bytes of batches that were too large."),
    "produces": ("totalproducerequests", "Batches that were sent, each partition's by itself."),
    "failed_produces": ("failedproducerequests", "Those of them that were refused."),
    "fetches": ("totalfetchrequests", "Fetches, each partition's by itself."),
    "failed_fetches": ("failedfetchrequests", "Those of them that were refused."),
}
PARTITION_GAUGES: dict[str, tuple[str, Callable[[Any], int]]] = {
    "size": ("The bytes of a partition's segments.", lambda log: log.size),
    "logstartoffset": ("Where a partition's log begins.", lambda log: log.log_start_offset),
    "logendoffset": ("The offset its next record gets.", lambda log: log.end_offset),
    "numlogsegments": ("How many segments it has.", lambda log: len(log.segments)),
}
GROUP_GAUGES = {
    "groups": "numgroups",
    "Empty": "numgroupsempty",
    "PreparingRebalance": "numgroupspreparingrebalance",
    "CompletingRebalance": "numgroupscompletingrebalance",
    "Stable": "numgroupsstable",
    "offsets": "numoffsets",
}
RING_COUNTERS = {
    "attached": ("kafkalite_rings_attached_total", "Rings that producers of this host were given."),
    "refused": ("kafkalite_rings_refused_total", "Rings that they were not given."),
    "frames": ("kafkalite_ring_batches_total", "Batches that came through rings."),
    "bytes": ("kafkalite_ring_bytes_total", "Their bytes; those of topics count them as well."),
    "found_late": ("kafkalite_ring_found_late_total", "Batches nobody was woken for."),
}
LOCAL_COUNTERS = {
    "packets": ("kafkalite_local_packets_total", "What programs of this host said."),
    "reads": ("kafkalite_direct_reads_total", "Reads by programs that read the files themselves."),
    "reads_refused": ("kafkalite_direct_reads_refused_total", "Those of them that were refused."),
    "read_bytes": (
        "kafkalite_direct_read_bytes_total",
        "Bytes that they were granted; those of topics count them as well.",
    ),
    "descriptors": ("kafkalite_direct_descriptors_total", "Descriptors that they were sent."),
}
LOOP_COUNTERS = {
    "ticks": "Rounds of the loop.",
    "frames": "Requests that came whole.",
    "bytes_in": "Bytes that came in.",
    "bytes_out": "Bytes that went out.",
    "faults": "Requests whose serving failed by a fault of the broker's.",
    "turned_away": "Connections that were not let in.",
    "slow_readers_closed": "Connections that were closed because too many responses were unread.",
}


class PartitionGauges(Sequence[tuple[dict[str, str], int]]):
    """The samples of a gauge with one value per partition, evaluated when they are written."""

    def __init__(self, partitions: Sequence[Partition], value: Callable[[Any], int]) -> None:
        self._partitions = partitions
        self._value = value

    def __len__(self) -> int:
        return len(self._partitions)

    def __getitem__(self, position: Any) -> Any:
        partition = self._partitions[position]
        labels = {"topic": partition.topic, "partition": str(partition.index)}
        return labels, self._value(partition.log)


class NodeMetrics:
    """The writer of a node's metrics page; see the module."""

    def __init__(self, node: Node, run_directory: Path) -> None:
        self.node = node
        self.page = Page(page_path(run_directory, node.node_id), node.node_id)
        self.began_s = time.time()
        self._frames = -1
        self._took_ns = 0
        self._closed = False
        self._periods = 0
        self._busy: tuple[float, float] = (time.monotonic(), time.thread_time())
        self._idle = 1.0
        self.look()

    def look(self) -> None:
        """Write the page if values may have changed, and schedule the next call."""
        local = self.node.local_listener
        frames = self.node.reactor.counters["frames"] + (local.work if local is not None else 0)
        self._periods += 1
        if frames == self._frames and self._periods < IDLE_PERIODS:
            self.node.reactor.call_later(PERIOD_MS, self.look)
            return
        self._frames, self._periods = frames, 0
        self._look_idle()
        self._took_ns = 0
        self._write(self.page.write_steps(self.families(), self.node.clock.monotonic_ms()))

    def _write(self, left: Iterator[None]) -> None:
        """Write for STEP_MS; write the rest in later ticks."""
        if self._closed:
            return
        began_ns = self.node.clock.monotonic_ns()
        took_ns, is_done = 0, False
        try:
            while not is_done and took_ns < STEP_MS * 1_000_000:
                is_done = next(left, WRITTEN) is WRITTEN
                took_ns = self.node.clock.monotonic_ns() - began_ns
        except OSError as error:
            log.warning(
                "Metrics page cannot be written; retrying. path=%s error=%r",
                self.page.path, error.strerror,
            )  # fmt: skip
            is_done = True
        self._took_ns += took_ns
        if not is_done:
            self.node.reactor.call_later(STEP_PAUSE_MS, lambda: self._write(left))
            return
        period_ms = min(max(PERIOD_MS, COST * self._took_ns // 1_000_000), PERIOD_MS_MAX)
        self.node.reactor.call_later(period_ms, self.look)

    def close(self) -> None:
        """Close the page and write no more."""
        self._closed = True
        self.page.close()

    def _look_idle(self) -> None:
        """Update the idle ratio: the part of the time since the last call without processor use."""
        then, ran = self._busy
        now, runs = time.monotonic(), time.thread_time()
        if now - then >= PERIOD_MS / 2_000:
            self._busy = now, runs
            self._idle = min(1.0, max(0.0, 1 - (runs - ran) / (now - then)))

    def families(self) -> Iterator[Family]:
        """Yield all metric families, the most important first: a full page omits the last ones."""
        yield from self._requests()
        yield from self._traffic()
        yield from self._replicas()
        yield from self._controller()
        yield from self._loop()
        yield from self._local()
        yield from self._groups()
        yield from self._telemetry()
        yield from self._logs()

    # -- requests ----------------------------------------------------------------------------

    def _requests(self) -> Iterator[Family]:
        counted = sorted(self.node.dispatcher.counts.items())
        yield Family(
            "kafka_network_requestmetrics_requests_total", COUNTER, "Requests.",
            [
                ({"request": counts.api.name, "version": str(version)}, count)
                for _, counts in counted
                for version, count in enumerate(counts.requests)
                if count
            ],
        )  # fmt: skip
        yield Family(
            "kafka_network_requestmetrics_errors_total", COUNTER, "Error codes in answers.",
            [
                ({"request": counts.api.name, "error": error_name(code)}, count)
                for _, counts in counted
                for code, count in counts.errors.items()
            ],
        )  # fmt: skip
        yield Family(
            "kafka_network_requestmetrics_totaltimems", HISTOGRAM,
            "From a request until its answer may be sent; a fetch may wait for what it fetches.",
            [({"request": counts.api.name}, counts.times.told()) for _, counts in counted],
        )  # fmt: skip

    # -- topics ------------------------------------------------------------------------------

    def _traffic(self) -> Iterator[Family]:
        replicas = self.node.replicas
        whole = Traffic()
        whole.add(replicas.other_traffic)
        for traffic in replicas.traffic.values():
            whole.add(traffic)
        for field, (name, sentence) in TOPIC_COUNTERS.items():
            samples: list[tuple[dict[str, str], int]] = [({}, getattr(whole, field))]
            samples += [({"topic": t}, getattr(c, field)) for t, c in replicas.traffic.items()]
            name = f"kafka_server_brokertopicmetrics_{name}_total"
            yield Family(name, COUNTER, sentence, samples)

    # -- partitions --------------------------------------------------------------------------

    def _replicas(self) -> Iterator[Family]:
        replicas = self.node.replicas
        led = list(replicas)
        kinds = replicas.purgatory.counts
        for name, sentence, value in (
            ("partitioncount", "Partitions that are here.", len(led)),
            ("leadercount", "Partitions that are led here.", len(led)),
            ("offlinereplicacount", "Partitions that cannot be served.", replicas.offline_count),
            ("underreplicatedpartitions", "None: each has one replica.", 0),
            ("underminisrpartitioncount", "None: each has one replica.", 0),
            (
                "produceridcount", "Idempotent producers that are remembered.",
                sum(len(partition.log.producers) for partition in led),
            ),
        ):  # fmt: skip
            yield one(f"kafka_server_replicamanager_{name}", GAUGE, sentence, value)
        yield Family(
            "kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE,
            "Requests that wait: a produce for its flush, a fetch for records.",
            [
                ({"delayedOperation": "Produce"}, kinds[DelayedProduce]),
                ({"delayedOperation": "Fetch"}, kinds[DelayedFetch]),
                ({"delayedOperation": "DirectRead"}, kinds[DelayedRead]),
            ],
        )  # fmt: skip
        yield Family(
            "kafka_log_logflushstats_logflushrateandtimems", HISTOGRAM, "Flushes of partitions.",
            [({}, replicas.flush_times.told())],
        )  # fmt: skip

    def _logs(self) -> Iterator[Family]:
        led = list(self.node.replicas)
        for name, (sentence, value) in PARTITION_GAUGES.items():
            gauges = PartitionGauges(led, value)
            yield Family(f"kafka_log_log_{name}", GAUGE, sentence, gauges)

    # -- the cluster -------------------------------------------------------------------------

    def _controller(self) -> Iterator[Family]:
        decides = self.node.controller.is_local
        numbers = [("activecontrollercount", "1 where the controller is.", int(decides))]
        if decides:
            image = self.node.image
            partitions = [p for topic in image.topics.values() for p in topic.partitions.values()]
            reached = {node.node_id for node in image.nodes.values() if node.port}
            leaderless = sum(partition.leader not in reached for partition in partitions)
            numbers += [
                ("activebrokercount", "Nodes that clients are told of.", len(reached)),
                ("globaltopiccount", "Topics.", len(image.topics)),
                ("globalpartitioncount", "Partitions.", len(partitions)),
                ("offlinepartitionscount", "Partitions whose leader cannot be reached, or cannot"
                 " serve them and is this node.", leaderless + self.node.replicas.offline_count),
            ]  # fmt: skip
        for name, sentence, value in numbers:
            yield one(f"kafka_controller_kafkacontroller_{name}", GAUGE, sentence, value)

    def _groups(self) -> Iterator[Family]:
        """Yield the metrics of the group coordinators on this node."""
        counts: Counter[str] = Counter()
        for host in self.node.groups:
            counts.update(host.machine.counts)
            counts["rebalances"] += host.machine.rebalance_count
            counts["commits"] += host.machine.commit_count
        for state, name in GROUP_GAUGES.items():
            sentence = "Consumer groups, or those of them in this state; the offsets they keep."
            name = f"kafka_coordinator_group_groupmetadatamanager_{name}"
            yield one(name, GAUGE, sentence, counts[state])
        rebalances, commits = counts["rebalances"], counts["commits"]
        yield one("kafkalite_group_rebalances_total", COUNTER, "Rebalances.", rebalances)
        yield one("kafkalite_group_offset_commits_total", COUNTER, "Committed offsets.", commits)

    def _telemetry(self) -> Iterator[Family]:
        counts = self.node.telemetry.counts
        yield Family(
            "kafkalite_telemetry_pushes_total", COUNTER,
            "Pushes of clients that the exporter took, and that were dropped.",
            [({"result": result}, counts[result]) for result in ("taken", "dropped")],
        )  # fmt: skip

    # -- programs of this host ---------------------------------------------------------------

    def _local(self) -> Iterator[Family]:
        """Yield the metrics of the local listener and its rings, if there is one."""
        local = self.node.local_listener
        if local is None:
            return
        rings, listener = local.rings, local.listener
        for name, kind, sentence, value in (
            ("local_connections", GAUGE, "Programs that are there.", len(listener.connections)),
            (
                "local_refused_total", COUNTER,
                "Programs that were not let in, or turned out for what they said.",
                listener.refused,
            ),
            ("local_faults_total", COUNTER, "What failed by a fault of ours.", listener.faults),
            ("rings", GAUGE, "Rings that are there.", len(rings.rings)),
            ("rings_memory_bytes", GAUGE, "The memory they take.", rings.size),
        ):  # fmt: skip
            yield one(f"kafkalite_{name}", kind, sentence, value)
        yield Family(
            "kafkalite_rings_left_total", COUNTER,
            "Rings that were left because they were broken, or because we failed.",
            [({"reason": cause}, rings.closed_counts[cause]) for cause in ("violation", "fault")],
        )  # fmt: skip
        yield Family(
            "kafkalite_ring_errors_total", COUNTER, "Batches of rings that were refused.",
            [({"error": error_name(code)}, count) for code, count in rings.errors.items()],
        )  # fmt: skip
        for counts, names in ((rings.counts, RING_COUNTERS), (local.counts, LOCAL_COUNTERS)):
            for field, (name, sentence) in names.items():
                yield one(name, COUNTER, sentence, counts[field])

    # -- the process -------------------------------------------------------------------------

    def _loop(self) -> Iterator[Family]:
        counters = self.node.reactor.counters
        yield Family(
            "kafka_server_socket_server_metrics_connection_count", GAUGE, "Open connections.",
            [({"listener": "PLAINTEXT"}, counters["connections"])],
        )  # fmt: skip
        yield Family(
            "kafka_server_socket_server_metrics_connection_creation_total", COUNTER,
            "Connections that were let in.", [({"listener": "PLAINTEXT"}, counters["accepted"])],
        )  # fmt: skip
        sentence = "The share of the time in which the node's one loop had nothing to do."
        for name in (
            "kafka_network_socketserver_networkprocessoravgidlepercent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        ):
            yield one(name, GAUGE, sentence, round(self._idle, 4))
        for name, sentence in LOOP_COUNTERS.items():
            yield one(f"kafkalite_loop_{name}_total", COUNTER, sentence, counters[name])
        yield from self._ticks()
        held = "Bytes of requests that have begun to come."
        yield one("kafkalite_loop_held_bytes", GAUGE, held, counters["bytes_held"])
        queued = "Bytes of responses in memory that clients have not read yet."
        yield one("kafkalite_loop_queued_bytes", GAUGE, queued, counters["bytes_queued"])
        total, usable = self.node.logs.disk_size()
        yield one("kafkalite_disk_total_bytes", GAUGE, "The size of the logs' disk.", total)
        yield one("kafkalite_disk_usable_bytes", GAUGE, "What is free of it.", usable)
        yield one(
            "process_cpu_seconds_total", COUNTER, "Processor time.", round(time.process_time(), 3)
        )
        yield one("process_start_time_seconds", GAUGE, "When it began.", round(self.began_s, 3))
        yield one("process_resident_memory_bytes", GAUGE, "Its memory.", resident_size())

    def _ticks(self) -> Iterator[Family]:
        """Yield the durations of the loop's ticks, and the causes of slow ones."""
        total_ns, *counts = self.node.reactor.tick_times
        slow = self.node.reactor.slow_ticks
        yield Family(
            "kafkalite_loop_tickms", HISTOGRAM,
            "Ticks of the loop, from the events to the last response; waiting is not counted.",
            [({}, [total_ns, *counts[: BUCKET_COUNT - 1], sum(counts[BUCKET_COUNT - 1 :])])],
        )  # fmt: skip
        for name, sentence, by_cause in (
            ("slow_ticks", "Ticks over 50 ms, by the API or function that took longest in them.",
             slow.counts),
            ("slow_ticks_cpu", "Those of them in which the loop's thread computed for over 50 ms.",
             slow.cpu_counts),
        ):  # fmt: skip
            samples = [({"cause": cause}, count) for cause, count in by_cause.items()]
            yield Family(f"kafkalite_loop_{name}_total", COUNTER, sentence, samples)
        for name, sentence, longest_ns in (
            ("longest_tick_seconds", "The longest tick over 50 ms.", slow.longest_ns),
            ("longest_tick_cpu_seconds", "The most processor time of one such tick.",
             slow.longest_cpu_ns),
        ):  # fmt: skip
            yield one(f"kafkalite_loop_{name}", GAUGE, sentence, round(longest_ns / 1e9, 6))


def one(name: str, kind: str, sentence: str, value: float) -> Family:
    """Return a family with one sample."""
    return Family(name, kind, sentence, [({}, value)])


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, or the number if it has none."""
    error = BY_CODE.get(code)
    return error.name if error is not None else str(code)


def resident_size() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def keep_page(node: Node, run_directory: Path) -> NodeMetrics | None:
    """Start to write a node's metrics page and to send client telemetry to the exporter.

    Returns None if the run directory cannot be written: the node serves without metrics.
    """
    try:
        keeper = NodeMetrics(node, run_directory)
        node.telemetry.deliver = PushSender(run_directory / PUSHES)
        return keeper
    except OSError as error:
        log.warning(
            "Metrics are not available: the run directory cannot be written. path=%s error=%r",
            error.filename or run_directory, error.strerror,
        )  # fmt: skip
        return None
