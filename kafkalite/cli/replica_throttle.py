"""Throttles of replication: kafkalite replica throttle, and replica move --throttle.

    rate       leader.replication.throttled.rate, follower.replication.throttled.rate of all nodes
    replicas   leader.replication.throttled.replicas, follower.replication.throttled.replicas of
               topics: PARTITION:NODE, or * for all

These are the configs of Kafka, which kafka-reassign-partitions.sh sets as well.  A rate is set for
the cluster; that of a single node, which takes precedence, is removed.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka.admin import ConfigResource, TopicMetadata

from kafkalite.cli.clients import REQUEST_TIMEOUT_S, ClusterClients, kafka_errors_as_refusals
from kafkalite.cli.command import columns, print_stderr
from kafkalite.cli.group_offsets import PartitionSelection
from kafkalite.cli.progress import format_size
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.replica_move import IN_PROGRESS, text_of
from kafkalite.cli.resource import SET, UNSET, ResourceConfigs, ResourceName, ValueChange
from kafkalite.cli.wire import WireClient
from kafkalite.config.replication import (
    FOLLOWER_REPLICATION_THROTTLED_RATE,
    LEADER_REPLICATION_THROTTLED_RATE,
    RATE_MAX,
)
from kafkalite.config.topic import (
    ALL_REPLICAS,
    FOLLOWER_REPLICATION_THROTTLED_REPLICAS,
    LEADER_REPLICATION_THROTTLED_REPLICAS,
)
from kafkalite.errors import Refusal
from kafkalite.protocol.schemas.topics import LIST_PARTITION_REASSIGNMENTS

RATE_KEYS = (LEADER_REPLICATION_THROTTLED_RATE.name, FOLLOWER_REPLICATION_THROTTLED_RATE.name)
REPLICA_KEYS = (
    LEADER_REPLICATION_THROTTLED_REPLICAS.name,
    FOLLOWER_REPLICATION_THROTTLED_REPLICAS.name,
)
RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:([kKMG])(i?)B|([kKMG])|B)?(?:/s)?")
POWERS = {"k": 1, "K": 1, "M": 2, "G": 3}
ALL = (ALL_REPLICAS,)
NONE_IS_THROTTLED = "no replica is throttled"


class NodeRates(NamedTuple):
    """The rates of a node in bytes per second; None if there is no limit."""

    leader: int | None
    follower: int | None


class ThrottledReplicas(NamedTuple):
    """The throttled replicas of a topic, PARTITION:NODE, or * for all."""

    leader: tuple[str, ...]
    follower: tuple[str, ...]


NOTHING = ThrottledReplicas((), ())


class Reassigned(NamedTuple):
    """A partition whose replicas are being changed."""

    replicas: Sequence[int]
    """Those that it has and those that are added."""
    adding: Sequence[int]


def rate(text: str) -> int:
    """Parse a rate in bytes per second, as in 500000, 10MB or 10MiB; an argument type."""
    parts = RATE.fullmatch(text)
    value = 0.0
    if parts is not None:
        number, unit, is_binary, short = parts.groups()
        value = float(number) * (1024 if is_binary else 1000) ** POWERS.get(unit or short, 0)
    if not 1 <= value < RATE_MAX:
        raise ArgumentTypeError(
            f"{text!r} is no rate: specify at least 1 byte per second, as in 500000, 10MB or 10MiB"
        )
    return int(value)


class ReplicationThrottles:
    """Reads and changes the throttles of a cluster."""

    def __init__(self, cluster: ClusterClients) -> None:
        self._configs = ResourceConfigs(cluster)
        self._cluster = cluster

    # -- rates -------------------------------------------------------------------------------

    def rates(self) -> dict[int, NodeRates]:
        """Return the rates of all nodes."""
        return {node_id: self._rates_of(node_id) for node_id in sorted(self._configs.nodes)}

    def _rates_of(self, node_id: int) -> NodeRates:
        described = self._configs.of(ResourceName("node", str(node_id)))
        values = {each.name: each.value for each in described}
        leader, follower = (int(values.get(key) or RATE_MAX) for key in RATE_KEYS)
        return NodeRates(
            leader if leader < RATE_MAX else None, follower if follower < RATE_MAX else None
        )

    def set_rate(self, value: int) -> None:
        """Limit the rates of all nodes, as leaders and as followers."""
        self._configs.change(
            ResourceName("cluster", ""), [ValueChange(key, SET, str(value)) for key in RATE_KEYS]
        )
        self._unset_of_nodes()

    def unset_rate(self) -> None:
        """Remove the limits of all nodes."""
        self._configs.change(
            ResourceName("cluster", ""), [ValueChange(key, UNSET) for key in RATE_KEYS]
        )
        self._unset_of_nodes()

    def _unset_of_nodes(self) -> None:
        for node_id in self._configs.nodes:
            node = ResourceName("node", str(node_id))
            set_here = [
                each.name
                for each in self._configs.of(node)
                if each.name in RATE_KEYS and each.source == "node"
            ]
            if set_here:
                self._configs.change(node, [ValueChange(key, UNSET) for key in set_here])

    # -- throttled replicas ------------------------------------------------------------------

    def of_topics(self, names: Iterable[str]) -> dict[str, ThrottledReplicas]:
        """Return the throttled replicas of topics, without topics that have none."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted({*names})]
        found: dict[str, ThrottledReplicas] = {}
        with kafka_errors_as_refusals():
            futures = self._configs.admin.describe_configs(wanted) if wanted else {}
            for resource in wanted:
                configs = futures[resource].result(REQUEST_TIMEOUT_S)
                lists = (configs[key].value if key in configs else "" for key in REPLICA_KEYS)
                throttled = ThrottledReplicas(*(tuple((each or "").split(",")) for each in lists))
                throttled = ThrottledReplicas(*(tuple(filter(None, each)) for each in throttled))
                if throttled != NOTHING:
                    found[resource.name] = throttled
        return found

    def add(self, wanted: Mapping[str, ThrottledReplicas]) -> None:
        """Throttle these replicas too."""
        present = self.of_topics(wanted)
        for topic, added in wanted.items():
            before = present.get(topic, NOTHING)
            self._set(topic, before, ThrottledReplicas(*map(united, before, added)))

    def remove(
        self, unwanted: Mapping[str, ThrottledReplicas] | None, topics: Iterable[str]
    ) -> None:
        """End the throttle of these replicas, or of all; remove the rate with the last of them.

        `topics` are the topics of the cluster.
        """
        present = self.of_topics(topics)
        after = dict(present)
        for topic, removed in (present if unwanted is None else unwanted).items():
            before = present.get(topic, NOTHING)
            is_whole = unwanted is None or removed == (ALL, ALL)
            if ALL in before and not is_whole:
                raise Refusal(
                    f"all replicas of topic {topic!r} are throttled; the throttle of some cannot be"
                    f" removed (see: kafkalite replica throttle --remove {topic})"
                )
            left = (
                tuple(entry for entry in entries if entry not in each and not is_whole)
                for entries, each in zip(before, removed, strict=True)
            )
            after[topic] = ThrottledReplicas(*left)
            self._set(topic, before, after[topic])
        if not any(each != NOTHING for each in after.values()):
            self.unset_rate()

    def _set(self, topic: str, before: ThrottledReplicas, after: ThrottledReplicas) -> None:
        changes = [
            ValueChange(key, SET, ",".join(new)) if new else ValueChange(key, UNSET)
            for key, old, new in zip(REPLICA_KEYS, before, after, strict=True)
            if old != new
        ]
        if changes:
            self._configs.change(ResourceName("topic", topic), changes)

    def of_moves(self) -> dict[str, ThrottledReplicas]:
        """Return what to throttle for the partitions whose replicas are being changed; raise
        Refusal if there are none."""
        response = WireClient(self._cluster).request(LIST_PARTITION_REASSIGNMENTS, {"topics": None})
        if response.error_code:
            raise Refusal(text_of(response.error_code, response.error_message))
        moves = {
            (topic.name, each.partition_index): Reassigned(each.replicas, each.adding_replicas)
            for topic in response.topics
            for each in topic.partitions
        }
        if not moves:
            raise Refusal("no replicas are being moved (see: kafkalite replica move)")
        return between(moves)


def united(before: tuple[str, ...], added: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of both lists, each once and in order."""
    if ALL_REPLICAS in (*before, *added):
        return ALL
    return tuple(sorted({*before, *added}, key=lambda entry: [*map(int, entry.split(":"))]))


def between(moves: Mapping[PartitionKey, Reassigned]) -> dict[str, ThrottledReplicas]:
    """Return what to throttle for changes of replicas: those that are there as leaders, and those
    that are added as followers."""
    wanted: dict[str, ThrottledReplicas] = {}
    for (topic, index), move in moves.items():
        sources = tuple(f"{index}:{node}" for node in move.replicas if node not in move.adding)
        targets = tuple(f"{index}:{node}" for node in move.adding)
        before = wanted.get(topic, NOTHING)
        wanted[topic] = ThrottledReplicas(
            united(before.leader, sources), united(before.follower, targets)
        )
    return wanted


def selected(
    topics: Mapping[str, TopicMetadata], spans: Sequence[PartitionSelection]
) -> dict[str, ThrottledReplicas]:
    """Return what to throttle for topics and partitions: all replicas, on both sides."""
    chosen: dict[str, tuple[str, ...]] = {}
    for name, indexes in spans:
        entries: tuple[str, ...] = ALL
        if indexes is not None:
            entries = tuple(
                f"{index}:{node}"
                for index in indexes
                for node in topics[name].partitions[index].replicas
            )
        chosen[name] = united(chosen.get(name, ()), entries)
    return {name: ThrottledReplicas(entries, entries) for name, entries in chosen.items()}


def throttled_move(
    cluster: ClusterClients,
    topics: Mapping[str, TopicMetadata],
    wanted: Mapping[PartitionKey, Sequence[int] | None],
    rate_max: int,
    move: Callable[[], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """Move partitions under a throttle, and remove it unless some are not moved yet."""
    moves = {}
    for (name, index), target in wanted.items():
        if name in topics and index in topics[name].partitions:
            present = topics[name].partitions[index].replicas
            adding = [node for node in target or () if node not in present]
            moves[name, index] = Reassigned([*present, *adding], adding)
    throttles = ReplicationThrottles(cluster)
    present_lists = throttles.of_topics(topics)
    # Where all replicas are throttled, nothing is added, and nothing removed afterwards.
    added = {
        topic: each for topic, each in between(moves).items()
        if ALL not in present_lists.get(topic, NOTHING)
    }  # fmt: skip
    throttles.set_rate(rate_max)
    throttles.add(added)
    is_over = False
    try:
        outcomes = move()
        is_over = all(each["outcome"] != IN_PROGRESS for each in outcomes)
    finally:
        if not is_over:
            print_stderr("the throttle stays; at the end: kafkalite replica throttle --remove")
    if is_over:
        throttles.remove(added, topics)
    return outcomes


# -- output --------------------------------------------------------------------------------------


def state(
    rates: Mapping[int, NodeRates], topics: Mapping[str, ThrottledReplicas]
) -> dict[str, Any]:
    """Return the throttles as JSON fields."""
    return {
        "rates": [{"node": node_id, **each._asdict()} for node_id, each in rates.items()],
        "topics": [{"topic": topic, **each._asdict()} for topic, each in topics.items()],
    }


def pages(
    rates: Mapping[int, NodeRates], topics: Mapping[str, ThrottledReplicas]
) -> Iterator[str]:
    """Yield the tables of the throttles: the rates, and the replicas."""
    if any(each != (None, None) for each in rates.values()):
        rows = [[node_id, *map(shown, each)] for node_id, each in rates.items()]
        yield columns(["NODE", "AS LEADER", "AS FOLLOWER"], rows)
    if topics:
        listed = [
            [topic, *(",".join(side) or None for side in each)] for topic, each in topics.items()
        ]
        yield columns(["TOPIC", "THROTTLED LEADERS", "THROTTLED FOLLOWERS"], listed)
    else:
        yield NONE_IS_THROTTLED


def shown(value: int | None) -> str:
    return "no limit" if value is None else f"{format_size(value)}/s"
