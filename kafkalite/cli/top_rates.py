"""Rates from two samples of a cluster.

    meter = RateMeter()
    meter.measured(sampler.sample())    # no rates yet
    meter.measured(sampler.sample())    # rates of the time between the two

A topic or process that was restarted in between has no rate until the next sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kafkalite.cli.top_sampling import ClusterSample
from kafkalite.client.admin.group_requests import SHARE
from kafkalite.metrics import Read

Measurements = dict[str, Any]
"""Values of a topic, a group, a node, or the cluster; None if unknown."""

TRAFFIC = (
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
)
CPU = "process_cpu_seconds_total"
MEMORY = "process_resident_memory_bytes"
REQUESTS = "kafkalite_loop_frames_total"
CONNECTIONS = "kafka_server_socket_server_metrics_connection_count"
SLOW_TICKS = "kafkalite_loop_slow_ticks_total"
NODE_VALUES = ("pid", "cpu", "memory", "connections", "requests_per_s", "slow_ticks")
"""Values of a node's page that concern its process."""


class CountSample(NamedTuple):
    """A count with its time, and its rate at that time."""

    value: float
    at_s: float
    rate: float | None


class CountRates:
    """Rates of counts between two rounds."""

    def __init__(self) -> None:
        self._last: dict[Any, CountSample] = {}
        self._now: dict[Any, CountSample] = {}

    def begin_round(self) -> None:
        """Begin a new round, and discard counts that were not used in the last one."""
        self._last, self._now = self._now, {}

    def of(
        self, key: Any, value: float, at_s: float, created_s: float | None = None
    ) -> float | None:
        """Return a count's growth per second, or None if it is unknown.

        A new count was zero at `created_s`, if that is given.
        """
        last = self._last.get(key)
        if last is None and created_s is not None:
            last = CountSample(0, created_s, None)
        rate = None
        if last is not None and at_s <= last.at_s:  # no newer sample
            value, at_s, rate = last
        elif last is not None and value >= last.value:
            rate = (value - last.value) / (at_s - last.at_s)
        self._now[key] = CountSample(value, at_s, rate)
        return rate

    def sampled_at_s(self, key: Any) -> float | None:
        """Return the time of a count's last sample."""
        last = self._last.get(key)
        return last.at_s if last is not None else None


class RateMeter:
    """Computes rates from successive samples."""

    def __init__(self) -> None:
        self.rates = CountRates()

    def measured(self, sample: ClusterSample) -> Measurements:
        """Return all values of a sample, each list sorted by name."""
        self.rates.begin_round()
        topics = list(self._topics(sample))
        groups = list(self._groups(sample))
        nodes = list(self._nodes(sample))
        rates = ("records_per_s", "bytes_in_per_s", "bytes_out_per_s")
        totals = {
            "topics": len(topics),
            "partitions": len(sample.leaders),
            "leaderless": sum(leader < 0 for leader in sample.leaders.values()),
            "under_replicated": len(sample.under_replicated),
            **{rate: sum_known(topic[rate] for topic in topics) for rate in rates},
            "groups": len(groups),
            "lag": sum_known(group["lag"] for group in groups),
        }
        return {
            "cluster_id": sample.cluster_id,
            "totals": totals,
            "nodes": nodes,
            "groups": groups,
            "topics": topics,
            "left_out": sample.left_out,
        }

    def _topics(self, sample: ClusterSample) -> Iterator[Measurements]:
        traffic, under = self._traffic(sample.pages), sample.under_replicated
        partitions: dict[str, list[int]] = {}
        for topic, index in sorted(sample.leaders):
            partitions.setdefault(topic, []).append(index)
        for topic, indexes in partitions.items():
            size = sample.sizes.get(topic)
            grown = None
            if size is not None:
                grown = self.rates.of(("size", topic), size, sample.sizes_at_s)
            bytes_in, bytes_out = (rates.get(topic, rates.get(None)) for rates in traffic)
            if not sample.pages:
                # Without metrics of the nodes, the growth of the logs is the best estimate.
                bytes_in = grown
            yield {
                "name": topic,
                "partitions": len(indexes),
                "leaderless": sum(sample.leaders[topic, each] < 0 for each in indexes),
                "under_replicated": sum((topic, each) in under for each in indexes),
                "records_per_s": sum_known(
                    self.rates.of(("end", topic, each), end, sample.ends_at_s)
                    for each in indexes
                    if (end := sample.ends.get((topic, each))) is not None
                ),
                "bytes_in_per_s": bytes_in,
                "bytes_out_per_s": bytes_out,
                "size": size,
            }

    def _traffic(self, pages: Iterable[Read]) -> list[dict[str | None, float]]:
        """Return the rates of topics' bytes over all nodes, in and out.

        The key None holds the rate of topics that a page does not list, those without traffic.
        """
        found: list[dict[str | None, float]] = [{}, {}]
        for page in pages:
            for family in page.families:
                if family.name not in TRAFFIC:
                    continue
                rates = found[TRAFFIC.index(family.name)]
                sampled_at_s = self.rates.sampled_at_s((family.name, None, page.node_id, page.pid))
                for labels, count in family.samples:
                    topic = labels.get("topic")
                    key = (family.name, topic, page.node_id, page.pid)
                    rate = self.rates.of(key, count, page.at_ms / 1_000, sampled_at_s)
                    if rate is not None:
                        rates[topic] = rates.get(topic, 0.0) + rate if topic is not None else 0.0
        return found

    def _groups(self, sample: ClusterSample) -> Iterator[Measurements]:
        for name, group in sorted(sample.groups.items()):
            known = [key for key in group.committed if key in sample.ends]
            lags = [max(0, sample.ends[key] - group.committed[key]) for key in known]
            yield {
                "name": name,
                "type": group.type,
                "state": group.state,
                "members": group.members,
                "topics": len({topic for topic, _ in group.committed}),
                "lag": group.lag if group.type == SHARE else sum_known(lags),
                "records_per_s": sum_known(
                    self.rates.of(("committed", name, key), offset, group.at_s)
                    for key, offset in group.committed.items()
                ),
            }

    def _nodes(self, sample: ClusterSample) -> Iterator[Measurements]:
        pages = {page.node_id: page for page in sample.pages}
        led = Counter(sample.leaders.values())
        for number, node in sorted(sample.nodes.items()):
            yield {
                "id": number,
                "host": node.host,
                "port": node.port,
                "controller": number == sample.controller,
                "leaders": led[number],
                "role": node.role,
                **self._process(pages.get(number)),
            }

    def _process(self, page: Read | None) -> Measurements:
        """Return the values of a node's process from its page."""
        process: Measurements = dict.fromkeys(NODE_VALUES)
        if page is None:
            return process
        values = single_values(page)
        key, at_s = (page.node_id, page.pid), page.at_ms / 1_000
        process["pid"] = page.pid
        process["memory"] = values.get(MEMORY)
        process["connections"] = values.get(CONNECTIONS)
        process["slow_ticks"] = total(page, SLOW_TICKS)
        if CPU in values:
            process["cpu"] = self.rates.of((CPU, *key), values[CPU], at_s)
        if REQUESTS in values:
            process["requests_per_s"] = self.rates.of((REQUESTS, *key), values[REQUESTS], at_s)
        return process


def total(page: Read, name: str) -> Any:
    """Return the sum of a family's samples, or None if the page has no such family."""
    for family in page.families:
        if family.name == name:
            return sum(value for _, value in family.samples)
    return None


def single_values(page: Read) -> Mapping[str, float]:
    """Return a page's values that are single numbers."""
    wanted = (CPU, MEMORY, REQUESTS, CONNECTIONS)
    return {
        family.name: family.samples[0][1]
        for family in page.families
        if family.name in wanted and len(family.samples) == 1
    }


def sum_known(numbers: Iterable[float | None]) -> Any:
    """Return the sum of the known values, or None if there are none."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
