"""NodeMetrics: the metrics page of a node, with the metric names that Kafka operators know.

    each second, or every five seconds without requests:  counters ─▶ families ─▶ the page

The names are those that the JMX exporter for Prometheus gives to Kafka's beans by the rules of its
`example_configs/kafka-2_0_0.yml`: `kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec`
is kafka_server_brokertopicmetrics_messagesin_total.  Where those rules define no name (connections,
idle time), the names are those of Strimzi's rules; metrics that Kafka does not have begin with
`kafkalite_`.  The exporter adds the label of the broker.

Requests only increment the counters of `request_metrics.py`; everything else is read here.  If
writing the page takes long, it is written less often.

Left out: the parts of a request's time, since requests are not queued here; the error code NONE in
the errors metric; sizes and offsets of followed partitions, which only their leader has.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkalite.broker.cleaner_metrics import cleaner_families
from kafkalite.broker.client_telemetry import PushSender
from kafkalite.broker.local.direct_reads import DelayedRead
from kafkalite.broker.replica.delayed_fetch import DelayedFetch
from kafkalite.broker.replica.delayed_produce import DelayedProduce
from kafkalite.broker.replication_metrics import count_offline, replication_families
from kafkalite.broker.request_metrics import TopicTraffic
from kafkalite.broker.share_metrics import share_families
from kafkalite.broker.transaction_metrics import transaction_families
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
PERIOD_FACTOR = 200
"""The next page is written after PERIOD_FACTOR times the duration of the last one, so that it takes
at most 1/PERIOD_FACTOR of the time, but after PERIOD_MS_MAX at the latest."""

STEP_MS, STEP_PAUSE_MS = 5, 1
"""Duration of a step of writing a page, and of the pause between two steps; each step writes at
least some samples."""
DONE = object()

TOPIC_COUNTERS = {
    "messages_in": ("messagesin", "Records produced."),
    "bytes_in": ("bytesin", "Bytes produced."),
    "bytes_out": ("bytesout", "Bytes fetched by consumers."),
    "bytes_rejected": ("bytesrejected", "Bytes of batches rejected as too large."),
    "produces": ("totalproducerequests", "Produce requests, counted per partition."),
    "failed_produces": ("failedproducerequests", "Failed produce requests, counted per partition."),
    "fetches": ("totalfetchrequests", "Fetch requests, counted per partition."),
    "keyless_records": (
        "nokeycompactedtopicrecords", "Records refused because a compacted topic needs keys."
    ),
    "failed_fetches": ("failedfetchrequests", "Failed fetch requests, counted per partition."),
}
PARTITION_GAUGES: dict[str, tuple[str, Callable[[Any], int]]] = {
    "size": ("Size of a partition's segments in bytes.", lambda led: led.log.size),
    "logstartoffset": ("Log start offset of a partition.", lambda led: led.log.log_start_offset),
    "logendoffset": ("Log end offset of a partition.", lambda led: led.log.end_offset),
    "numlogsegments": ("Number of segments of a partition.", lambda led: len(led.log.segments)),
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
    "attached": ("kafkalite_rings_attached_total", "Rings created for producers on this host."),
    "refused": ("kafkalite_rings_refused_total", "Rings refused to producers on this host."),
    "frames": ("kafkalite_ring_batches_total", "Batches received through rings."),
    "bytes": (
        "kafkalite_ring_bytes_total",
        "Bytes received through rings; also counted per topic.",
    ),
    "found_late": (
        "kafkalite_ring_found_late_total",
        "Batches found by polling, without a wake-up.",
    ),
}
LOCAL_COUNTERS = {
    "packets": ("kafkalite_local_packets_total", "Packets received by the local listener."),
    "reads": ("kafkalite_direct_reads_total", "Requests for segment grants."),
    "reads_refused": (
        "kafkalite_direct_reads_refused_total",
        "Refused requests for segment grants.",
    ),
    "read_bytes": (
        "kafkalite_direct_read_bytes_total",
        "Bytes granted to direct readers; also counted per topic.",
    ),
    "descriptors": ("kafkalite_direct_descriptors_total", "Descriptors sent to direct readers."),
}
LOOP_COUNTERS = {
    "ticks": "Ticks of the event loop.",
    "frames": "Requests received.",
    "bytes_in": "Bytes received.",
    "bytes_out": "Bytes sent.",
    "faults": "Requests that failed with an internal error of the broker.",
    "turned_away": "Connections refused.",
    "slow_readers_closed": "Connections closed because too many responses were unread.",
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
        return labels, self._value(partition)


class NodeMetrics:
    """The writer of a node's metrics page; see the module."""

    def __init__(self, node: Node, run_directory: Path) -> None:
        self.node = node
        self.page = Page(page_path(run_directory, node.node_id), node.node_id)
        self.start_s = time.time()
        self._last_work = -1
        self._page_ns = 0
        self._closed = False
        self._periods = 0
        self._busy: tuple[float, float] = (time.monotonic(), time.thread_time())
        self._idle = 1.0
        self.update()

    def update(self) -> None:
        """Write the page if values may have changed, and schedule the next call."""
        work = self._work()
        self._periods += 1
        if work == self._last_work and self._periods < IDLE_PERIODS:
            self.node.reactor.call_later(PERIOD_MS, self.update)
            return
        self._last_work, self._periods = work, 0
        self._update_idle_ratio()
        self._page_ns = 0
        self._write(self.page.write_steps(self.families(), self.node.clock.monotonic_ms()))

    def _work(self) -> int:
        """Return a number that differs if the node has done something since the last call."""
        node = self.node
        local = node.local_listener.work if node.local_listener is not None else 0
        frames = node.reactor.counters["frames"] - node.follower_sessions.idle_requests
        return frames + local + node.replication.followed.bytes_in

    def _write(self, left: Iterator[None]) -> None:
        """Write for STEP_MS; write the rest in later ticks."""
        if self._closed:
            return
        start_ns = self.node.clock.monotonic_ns()
        elapsed_ns, is_done = 0, False
        try:
            while not is_done and elapsed_ns < STEP_MS * 1_000_000:
                is_done = next(left, DONE) is DONE
                elapsed_ns = self.node.clock.monotonic_ns() - start_ns
        except OSError as error:
            log.warning(
                "Metrics page cannot be written; retrying. path=%s error=%r",
                self.page.path, error.strerror,
            )  # fmt: skip
            is_done = True
        self._page_ns += elapsed_ns
        if not is_done:
            self.node.reactor.call_later(STEP_PAUSE_MS, lambda: self._write(left))
            return
        period_ms = min(max(PERIOD_MS, PERIOD_FACTOR * self._page_ns // 1_000_000), PERIOD_MS_MAX)
        self.node.reactor.call_later(period_ms, self.update)

    def close(self) -> None:
        """Close the page and write no more."""
        self._closed = True
        self.page.close()

    def _update_idle_ratio(self) -> None:
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
        yield from replication_families(self.node)
        yield from self._controller()
        yield from self._loop()
        yield from self._local()
        yield from self._groups()
        yield from transaction_families(self.node)
        yield from share_families(self.node)
        yield from cleaner_families(self.node)
        yield from self._telemetry()
        yield from self._logs()

    # -- requests ----------------------------------------------------------------------------

    def _requests(self) -> Iterator[Family]:
        counted = sorted(self.node.dispatcher.counts.items())
        yield Family(
            "kafka_network_requestmetrics_requests_total", COUNTER, "Requests received.",
            [
                ({"request": counts.api.name, "version": str(version)}, count)
                for _, counts in counted
                for version, count in enumerate(counts.requests)
                if count
            ],
        )  # fmt: skip
        yield Family(
            "kafka_network_requestmetrics_errors_total", COUNTER, "Error codes in responses.",
            [
                ({"request": counts.api.name, "error": error_name(code)}, count)
                for _, counts in counted
                for code, count in counts.errors.items()
            ],
        )  # fmt: skip
        yield Family(
            "kafka_network_requestmetrics_totaltimems", HISTOGRAM,
            "Time from a request until its response may be sent, including the wait of a fetch.",
            [({"request": counts.api.name}, counts.times.values()) for _, counts in counted],
        )  # fmt: skip

    # -- topics ------------------------------------------------------------------------------

    def _traffic(self) -> Iterator[Family]:
        replicas = self.node.replicas
        total_traffic = TopicTraffic()
        total_traffic.add(replicas.other_traffic)
        for traffic in replicas.traffic.values():
            total_traffic.add(traffic)
        for field, (name, help_text) in TOPIC_COUNTERS.items():
            samples: list[tuple[dict[str, str], int]] = [({}, getattr(total_traffic, field))]
            samples += [({"topic": t}, getattr(c, field)) for t, c in replicas.traffic.items()]
            name = f"kafka_server_brokertopicmetrics_{name}_total"
            yield Family(name, COUNTER, help_text, samples)

    # -- partitions --------------------------------------------------------------------------

    def _replicas(self) -> Iterator[Family]:
        replicas = self.node.replicas
        led, followed = list(replicas), self.node.replication.followed
        kinds = replicas.purgatory.counts
        for name, help_text, value in (
            (
                "partitioncount", "Partitions on this node, led or followed.",
                len(led) + len(followed),
            ),
            ("leadercount", "Partitions led by this node.", len(led)),
            (
                "offlinereplicacount", "Replicas on this node that cannot be served.",
                replicas.offline_count + count_offline(followed),
            ),
            (
                "produceridcount", "Idempotent producers whose state is kept.",
                sum(len(partition.log.producers) for partition in led),
            ),
        ):  # fmt: skip
            yield one(f"kafka_server_replicamanager_{name}", GAUGE, help_text, value)
        yield Family(
            "kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE,
            "Delayed requests: a produce waits for its flush, a fetch for records.",
            [
                ({"delayedOperation": "Produce"}, kinds[DelayedProduce]),
                ({"delayedOperation": "Fetch"}, kinds[DelayedFetch]),
                ({"delayedOperation": "DirectRead"}, kinds[DelayedRead]),
            ],
        )  # fmt: skip
        yield Family(
            "kafka_log_logflushstats_logflushrateandtimems", HISTOGRAM,
            "Duration of partition flushes.",
            [({}, replicas.flushes.times.values())],
        )  # fmt: skip

    def _logs(self) -> Iterator[Family]:
        led = list(self.node.replicas)
        yield Family(
            "kafka_cluster_partition_laststableoffsetlag", GAUGE,
            "Records between the last stable offset and the high watermark of a partition.",
            PartitionGauges(led, lambda each: each.high_watermark - each.last_stable_offset),
        )  # fmt: skip
        for name, (help_text, value) in PARTITION_GAUGES.items():
            gauges = PartitionGauges(led, value)
            yield Family(f"kafka_log_log_{name}", GAUGE, help_text, gauges)

    # -- the cluster -------------------------------------------------------------------------

    def _controller(self) -> Iterator[Family]:
        is_controller = self.node.controller.is_local
        numbers = [
            (
                "activecontrollercount",
                "1 on the node that hosts the controller.",
                int(is_controller),
            )
        ]
        if is_controller:
            image = self.node.image
            partitions = [p for topic in image.topics.values() for p in topic.partitions.values()]
            reachable = {node.node_id for node in image.nodes.values() if node.port}
            imbalanced = sum(each.leader != each.replicas[0] for each in partitions)
            leaderless = sum(partition.leader not in reachable for partition in partitions)
            numbers += [
                ("activebrokercount", "Nodes advertised to clients.", len(reachable)),
                ("globaltopiccount", "Number of topics.", len(image.topics)),
                ("globalpartitioncount", "Number of partitions.", len(partitions)),
                ("offlinepartitionscount", "Partitions without a reachable leader, or offline on"
                 " this node.", leaderless + self.node.replicas.offline_count),
                ("preferredreplicaimbalancecount", "Partitions not led by their preferred replica.",
                 imbalanced),
            ]  # fmt: skip
        for name, help_text, value in numbers:
            yield one(f"kafka_controller_kafkacontroller_{name}", GAUGE, help_text, value)

    def _groups(self) -> Iterator[Family]:
        """Yield the metrics of the group coordinators on this node."""
        counts: Counter[str] = Counter()
        for host in self.node.groups:
            counts.update(host.machine.counts)
            counts["rebalances"] += host.machine.rebalance_count
            counts["commits"] += host.machine.commit_count
        for state, name in GROUP_GAUGES.items():
            help_text = "Consumer groups, in total and by state; committed offsets."
            name = f"kafka_coordinator_group_groupmetadatamanager_{name}"
            yield one(name, GAUGE, help_text, counts[state])
        rebalances, commits = counts["rebalances"], counts["commits"]
        yield one("kafkalite_group_rebalances_total", COUNTER, "Group rebalances.", rebalances)
        yield one("kafkalite_group_offset_commits_total", COUNTER, "Committed offsets.", commits)

    def _telemetry(self) -> Iterator[Family]:
        counts = self.node.telemetry.counts
        yield Family(
            "kafkalite_telemetry_pushes_total", COUNTER,
            "Metrics pushes of clients, by result.",
            [({"result": result}, counts[result]) for result in ("taken", "dropped")],
        )  # fmt: skip

    # -- programs of this host ---------------------------------------------------------------

    def _local(self) -> Iterator[Family]:
        """Yield the metrics of the local listener and its rings, if there is one."""
        local = self.node.local_listener
        if local is None:
            return
        rings, listener = local.rings, local.listener
        for name, kind, help_text, value in (
            (
                "local_connections", GAUGE, "Open connections to the local listener.",
                len(listener.connections),
            ),
            (
                "local_refused_total", COUNTER,
                "Local connections refused or closed for a protocol violation.",
                listener.refused,
            ),
            (
                "local_faults_total", COUNTER,
                "Local connections closed after an internal error of the broker.",
                listener.errors,
            ),
            ("rings", GAUGE, "Attached rings.", len(rings.rings)),
            ("rings_memory_bytes", GAUGE, "Memory of the attached rings.", rings.size),
        ):  # fmt: skip
            yield one(f"kafkalite_{name}", kind, help_text, value)
        yield Family(
            "kafkalite_rings_left_total", COUNTER,
            "Rings closed by the broker: a violation of the layout, or an internal error.",
            [({"reason": cause}, rings.closed_counts[cause]) for cause in ("violation", "fault")],
        )  # fmt: skip
        yield Family(
            "kafkalite_ring_errors_total", COUNTER,
            "Batches received through rings and rejected, by error.",
            [({"error": error_name(code)}, count) for code, count in rings.errors.items()],
        )  # fmt: skip
        for counts, names in ((rings.counts, RING_COUNTERS), (local.counts, LOCAL_COUNTERS)):
            for field, (name, help_text) in names.items():
                yield one(name, COUNTER, help_text, counts[field])

    # -- the process -------------------------------------------------------------------------

    def _loop(self) -> Iterator[Family]:
        counters = self.node.reactor.counters
        yield Family(
            "kafka_server_socket_server_metrics_connection_count", GAUGE, "Open connections.",
            [({"listener": "PLAINTEXT"}, counters["connections"])],
        )  # fmt: skip
        yield Family(
            "kafka_server_socket_server_metrics_connection_creation_total", COUNTER,
            "Connections accepted.", [({"listener": "PLAINTEXT"}, counters["accepted"])],
        )  # fmt: skip
        help_text = "Fraction of the time in which the event loop was idle."
        for name in (
            "kafka_network_socketserver_networkprocessoravgidlepercent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        ):
            yield one(name, GAUGE, help_text, round(self._idle, 4))
        for name, help_text in LOOP_COUNTERS.items():
            yield one(f"kafkalite_loop_{name}_total", COUNTER, help_text, counters[name])
        yield from self._ticks()
        held = "Bytes of partly received requests."
        yield one("kafkalite_loop_held_bytes", GAUGE, held, counters["bytes_held"])
        queued = "Bytes of queued responses in memory."
        yield one("kafkalite_loop_queued_bytes", GAUGE, queued, counters["bytes_queued"])
        total, usable = self.node.logs.disk_size()
        yield one(
            "kafkalite_disk_total_bytes", GAUGE, "Size of the file system of the logs.", total
        )
        yield one(
            "kafkalite_disk_usable_bytes",
            GAUGE,
            "Usable bytes of the file system of the logs.",
            usable,
        )
        yield one(
            "process_cpu_seconds_total", COUNTER, "Processor time.", round(time.process_time(), 3)
        )
        yield one(
            "process_start_time_seconds",
            GAUGE,
            "Start time of the process since the epoch.",
            round(self.start_s, 3),
        )
        yield one(
            "process_resident_memory_bytes",
            GAUGE,
            "Resident memory of the process.",
            resident_size(),
        )

    def _ticks(self) -> Iterator[Family]:
        """Yield the durations of the loop's ticks, and the causes of slow ones."""
        total_ns, *counts = self.node.reactor.tick_times
        slow = self.node.reactor.slow_ticks
        yield Family(
            "kafkalite_loop_tickms", HISTOGRAM,
            "Duration of a tick, without the wait for events.",
            [({}, [total_ns, *counts[: BUCKET_COUNT - 1], sum(counts[BUCKET_COUNT - 1 :])])],
        )  # fmt: skip
        for name, help_text, by_cause in (
            ("slow_ticks", "Ticks over 50 ms, by the API or function that took longest.",
             slow.counts),
            ("slow_ticks_cpu", "Ticks with over 50 ms of processor time, by cause.",
             slow.cpu_counts),
        ):  # fmt: skip
            samples = [({"cause": cause}, count) for cause, count in by_cause.items()]
            yield Family(f"kafkalite_loop_{name}_total", COUNTER, help_text, samples)
        for name, help_text, longest_ns in (
            ("longest_tick_seconds", "Duration of the longest tick over 50 ms.", slow.longest_ns),
            ("longest_tick_cpu_seconds", "Processor time of the costliest tick over 50 ms.",
             slow.longest_cpu_ns),
        ):  # fmt: skip
            yield one(f"kafkalite_loop_{name}", GAUGE, help_text, round(longest_ns / 1e9, 6))


def one(name: str, kind: str, help_text: str, value: float) -> Family:
    """Return a family with one sample."""
    return Family(name, kind, help_text, [({}, value)])


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, or the number if it has none."""
    error = BY_CODE.get(code)
    return error.name if error is not None else str(code)


def resident_size() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start_metrics(node: Node, run_directory: Path) -> NodeMetrics | None:
    """Start to write a node's metrics page and to send client telemetry to the exporter.

    Returns None if the run directory cannot be written: the node serves without metrics.
    """
    try:
        metrics = NodeMetrics(node, run_directory)
        node.telemetry.push_sender = PushSender(run_directory / PUSHES)
        return metrics
    except OSError as error:
        log.warning(
            "Metrics are not available: the run directory cannot be written. path=%s error=%r",
            error.filename or run_directory, error.strerror,
        )  # fmt: skip
        return None
