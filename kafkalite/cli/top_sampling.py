"""Samples of a cluster's state, from which rates are computed.

    sampler = ClusterSampler(cluster, pattern="", internal=False, directory=directory)
    sampler.sample()                    # ClusterSample(…), or raises ClusterUnreachable

The requests are Kafka's own, so any Kafka cluster can be sampled.  If the cluster is a kafkalite
broker on this machine that runs as this user, its nodes' metrics pages are read as well.

If some requests fail, the sample is partial, and `left_out` lists the errors.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ClusterMetadata, ConsumerGroupDescription, OffsetSpec

from kafkalite.cli.broker import local_broker
from kafkalite.cli.clients import (
    FUTURE_GRACE_S,
    ClusterClients,
    clean_error,
    listed_offsets,
    node_error,
)
from kafkalite.cli.group_offsets import STATES
from kafkalite.cli.native_groups import NativeGroups, state_of
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.wire import WireClient
from kafkalite.client.admin.group_requests import SHARE, GroupListing
from kafkalite.errors import GroupIdNotFound, Refusal
from kafkalite.metrics import Read, read_pages
from kafkalite.process.run_directory import bus_path
from kafkalite.process.status.ready import Ready
from kafkalite.protocol.schemas.topics import DESCRIBE_LOG_DIRS

REQUEST_TIMEOUT_S = 2.0
RESULT_WAIT_S = REQUEST_TIMEOUT_S + FUTURE_GRACE_S
"""Wait for a result of librdkafka: if one node does not respond, that of the others comes with the
timeout of its request."""
GROUPS_MAX = 500
"""Limit of the groups in a sample, since each needs a request of its own."""
UNREACHABLE = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}


class ClusterUnreachable(Exception):
    """No broker responds."""


class SampledNode(NamedTuple):
    """A broker's address, and its role if it is a local kafkalite node."""

    host: str
    port: int
    role: str | None


class SampledGroup(NamedTuple):
    """A group's type, state, members and offsets.

    The offsets of a share group are its start offsets: records after them may be processed, so the
    broker counts the lag.
    """

    type: str
    state: str
    members: int
    committed: dict[PartitionKey, int]
    at_s: float
    lag: int | None = None


class ClusterSample(NamedTuple):
    """The state of a cluster at one moment."""

    cluster_id: str | None
    controller: int | None
    nodes: dict[int, SampledNode]
    leaders: dict[PartitionKey, int]
    """Leaders of the selected partitions."""
    ends: dict[PartitionKey, int]
    ends_at_s: float
    sizes: dict[str, int]
    """Bytes by topic, if known."""
    sizes_at_s: float
    groups: dict[str, SampledGroup]
    pages: list[Read]
    left_out: list[str]
    under_replicated: frozenset[PartitionKey] = frozenset()
    """Selected partitions with a replica that is not in sync."""


class ClusterSampler:
    """Takes samples of a cluster."""

    def __init__(
        self, cluster: ClusterClients, pattern: str, internal: bool, directory: Path
    ) -> None:
        self.pattern = pattern
        self.internal = internal
        self.directory = directory
        self.admin = cluster.connected_admin()
        self.wire = WireClient(cluster, REQUEST_TIMEOUT_S)
        self.newer = NativeGroups(cluster, REQUEST_TIMEOUT_S)
        # From here on, lost connections are reported by SampleRounds, not by ClusterClients.
        cluster.is_connected = False

    def sample(self) -> ClusterSample:
        """Take a sample now."""
        left_out: list[str] = []
        metadata = self._metadata()
        leaders = self._leaders(metadata)
        groups = self._groups(left_out)
        committed_partitions = {key for group in groups.values() for key in group.committed}
        existing = {
            (name, partition)
            for name, topic in metadata.topics.items()
            for partition in topic.partitions
        }
        ends = self._ends({*leaders, *(committed_partitions & existing)})
        ends_at_s = time.monotonic()
        ready, pages = self._local(metadata.cluster_id)
        roles = {node["id"]: node["role"] for node in ready["nodes"]} if ready else {}
        nodes = {
            number: SampledNode(broker.host or "", broker.port, roles.get(number))
            for number, broker in metadata.brokers.items()
        }
        sizes = sizes_from_pages(pages) if pages else self._sizes(nodes, leaders, left_out)
        sizes_at_s = max((page.at_ms / 1_000 for page in pages), default=time.monotonic())
        return ClusterSample(
            metadata.cluster_id, metadata.controller_id if metadata.controller_id >= 0 else None,
            nodes, leaders, ends, ends_at_s, sizes, sizes_at_s, groups, pages, left_out,
            under_replicated(metadata, leaders),
        )  # fmt: skip

    def _metadata(self) -> ClusterMetadata:
        try:
            self.admin.poll(0)
            return self.admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in UNREACHABLE:
                raise ClusterUnreachable from error
            raise Refusal(clean_error(error.args[0].str())) from error
        except SystemError:
            # confluent-kafka discards a KeyboardInterrupt that is raised in error_cb.
            raise KeyboardInterrupt from None

    def _leaders(self, metadata: ClusterMetadata) -> dict[PartitionKey, int]:
        return {
            (name, index): partition.leader
            for name, topic in metadata.topics.items()
            if self.pattern in name and (self.internal or not name.startswith("__"))
            for index, partition in topic.partitions.items()
        }

    def _ends(self, topic_partitions: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        requested = {TopicPartition(*key): OffsetSpec.latest() for key in topic_partitions}
        return listed_offsets(self.admin, requested, REQUEST_TIMEOUT_S)

    # -- groups ------------------------------------------------------------------------------

    def _groups(self, left_out: list[str]) -> dict[str, SampledGroup]:
        """Return the selected groups whose coordinators respond."""
        try:
            found = self.admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result(
                RESULT_WAIT_S
            )
        except (KafkaException, TimeoutError) as error:
            left_out.append(f"groups: {error_text(error)}")
            return {}
        listed: Mapping[str, GroupListing] = {}
        try:
            listed = self.newer.listed()
        except Refusal as refusal:
            left_out.append(f"share groups: {refusal}")
        names = {each.group_id for each in found.valid}
        names |= {name for name, each in listed.items() if each.type == SHARE}
        chosen = sorted(name for name in names if self.pattern in name)
        if found.errors:
            left_out.append(f"groups of some nodes: {node_error(found.errors[0])}")
        if len(chosen) > GROUPS_MAX:
            left_out.append(f"{len(chosen) - GROUPS_MAX:,} groups, the last by name")
            chosen = chosen[:GROUPS_MAX]
        share = [name for name in chosen if name in listed and listed[name].type == SHARE]
        others = [name for name in chosen if name not in share]
        return {
            **self._consumer_groups(others, listed, left_out),
            **share_groups(self.newer, share, left_out),
        }

    def _consumer_groups(
        self, names: list[str], listed: Mapping[str, GroupListing], left_out: list[str]
    ) -> dict[str, SampledGroup]:
        described = list(self._described(names, left_out))
        at_s = time.monotonic()
        futures = [
            self.admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(each.group_id)], request_timeout=REQUEST_TIMEOUT_S
            )[each.group_id]
            for each in described
        ]
        groups = {}
        for each, future in zip(described, futures, strict=True):
            committed = {}
            with suppress(KafkaException, TimeoutError):  # deleted in the meantime
                committed = {
                    (each.topic, each.partition): each.offset
                    for each in future.result(RESULT_WAIT_S).topic_partitions
                    if each.error is None and each.offset >= 0
                }
            state = state_of(listed.get(each.group_id)) or STATES[each.state]
            groups[each.group_id] = SampledGroup(
                each.type.name.lower(), state, len(each.members), committed, at_s
            )
        return groups

    def _described(
        self, names: list[str], left_out: list[str]
    ) -> Iterator[ConsumerGroupDescription]:
        """Yield the groups that exist.

        Offsets are requested for these only: librdkafka aborts the process when the request fails
        for a group as a whole."""
        if not names:
            return
        errors = []
        futures = self.admin.describe_consumer_groups(names, request_timeout=REQUEST_TIMEOUT_S)
        for future in futures.values():
            try:
                found = future.result(RESULT_WAIT_S)
            except (KafkaException, TimeoutError) as error:
                errors.append(error_text(error))
                continue
            if STATES.get(found.state) != "Dead":
                yield found
        if errors:
            left_out.append(f"groups, {len(errors):,} of them: {errors[0]}")

    # -- sizes, and metrics of a local broker ------------------------------------------------

    def _local(self, cluster_id: str | None) -> tuple[Ready | None, list[Read]]:
        """Return status and pages of the broker on the data directory, if it is of this cluster."""
        ready = local_broker(self.directory, cluster_id)
        if ready is None:
            return None, []
        with suppress(OSError):
            return ready, read_pages(bus_path(ready).parent, time.monotonic_ns() // 1_000_000)
        return None, []

    def _sizes(
        self,
        nodes: Mapping[int, SampledNode],
        leaders: Mapping[PartitionKey, int],
        left_out: list[str],
    ) -> dict[str, int]:
        """Return the bytes of each topic, from the leader of each partition."""
        sizes: dict[str, int] = {}
        for number in sorted(set(leaders.values()) & set(nodes)):
            try:
                at = nodes[number].host, nodes[number].port
                response = self.wire.request(DESCRIBE_LOG_DIRS, {"topics": None}, at)
            except Refusal as refusal:
                left_out.append(f"sizes: {refusal}")
                return {}
            for name, index, size in replicas(response.results):
                if leaders.get((name, index)) == number:
                    sizes[name] = sizes.get(name, 0) + size
        return sizes


def under_replicated(
    metadata: ClusterMetadata, selected: Iterable[PartitionKey]
) -> frozenset[PartitionKey]:
    """Return the selected partitions with a replica that is not in sync."""
    found = ((key, metadata.topics[key[0]].partitions[key[1]]) for key in selected)
    return frozenset(key for key, each in found if len(each.isrs) < len(each.replicas))


def share_groups(
    newer: NativeGroups, names: Collection[str], left_out: list[str]
) -> dict[str, SampledGroup]:
    """Return the share groups of these names whose coordinators respond."""
    groups: dict[str, SampledGroup] = {}
    if not names:
        return groups
    try:
        with newer.admin() as admin:
            for name in names:
                with suppress(GroupIdNotFound):  # deleted in the meantime
                    found, offsets = admin.describe_group(name), admin.share_offsets(name)
                    starts: dict[PartitionKey, int] = {
                        key: each.start_offset
                        for key, each in offsets.items()
                        if each.start_offset is not None
                    }
                    lags = [each.lag for each in offsets.values() if each.lag is not None]
                    lag = sum(lags) if lags else None
                    groups[name] = SampledGroup(
                        SHARE, found.state, len(found.members), starts, time.monotonic(), lag
                    )
    except Refusal as refusal:
        left_out.append(f"share groups: {refusal}")
    return groups


def replicas(directories: Iterable[Any]) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and bytes of log directories, without replicas that move in."""
    for directory in directories:
        for topic in directory.topics:
            for partition in topic.partitions:
                if not partition.is_future_key:
                    yield topic.name, partition.partition_index, partition.partition_size


def sizes_from_pages(pages: Iterable[Read]) -> dict[str, int]:
    """Return the bytes of each topic from the nodes' pages."""
    sizes: dict[str, int] = {}
    for page in pages:
        for family in page.families:
            if family.name == "kafka_log_log_size":
                for labels, size in family.samples:
                    sizes[labels["topic"]] = sizes.get(labels["topic"], 0) + size
    return sizes


def error_text(error: KafkaException | TimeoutError) -> str:
    """Return an error message for a request that failed."""
    if isinstance(error, TimeoutError):
        return f"request timed out after {REQUEST_TIMEOUT_S:.0f} s"
    return clean_error(error.args[0].str())
