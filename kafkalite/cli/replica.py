"""kafkalite replica: list the replicas of partitions, move and throttle them, elect leaders.

Works with any Kafka broker; lags are requested without TLS and logins only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Unpack

from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    OffsetSpec,
    PartitionMetadata,
    TopicMetadata,
)

from kafkalite.cli import replica_move, replica_throttle
from kafkalite.cli.clients import (
    CHANGE_TIMEOUT_S,
    CONNECTION,
    REQUEST_TIMEOUT_S,
    ClusterClients,
    ConnectionArguments,
    clean_error,
    kafka_errors_as_refusals,
    listed_offsets,
)
from kafkalite.cli.command import argument, columns, command, print_stderr, printable
from kafkalite.cli.group_offsets import PartitionSelection, span
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.topic_replicas import EligibleReplicas, eligible_replicas
from kafkalite.cli.wire import WireClient
from kafkalite.errors import ElectionNotNeeded, Refusal
from kafkalite.protocol.schemas.topics import DESCRIBE_LOG_DIRS

JSON = argument("--json", action="store_true", dest="as_json", help="print JSON")
ELECTION_TIMEOUT_S = 60.0
ELECTED, NOT_NEEDED, FAILED = "elected", "not needed", "failed"
TITLES = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "ELR", "END", "LAG")


class ReplicaRow(NamedTuple):
    """The replicas of a partition."""

    topic: str
    partition: int
    leader: int
    """-1 if the partition has none."""
    replicas: list[int]
    isr: list[int]
    elr: list[int] | None
    """Replicas out of sync with every acknowledged record; None if it is not known."""
    last_known_elr: list[int] | None
    end_offset: int | None
    """The end of the committed records, which consumers read."""
    lag: dict[int, int | None]
    """By node of a replica, the committed records that it does not have; None if unknown."""

    @property
    def is_healthy(self) -> bool:
        """True if the partition has a leader and all its replicas are in sync."""
        return self.leader >= 0 and len(self.isr) == len(self.replicas)


@command(
    argument("names", nargs="*", metavar="TOPIC", type=printable, help="topics (default: all)"),
    argument(
        "--unhealthy",
        action="store_true",
        help="only partitions without a leader or with a replica that is not in sync; the exit"
        " code is 1 if there are any",
    ),
    argument("--internal", action="store_true", help="include internal topics"),
    JSON,
    *CONNECTION,
    name="list",
)
def list_replicas(
    names: Sequence[str],
    unhealthy: bool,
    internal: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> int:
    """List partitions with their leader, replicas, in-sync replicas and lags.

    ISR are the replicas in sync, ELR those out of sync that have every acknowledged record.  END is
    the end of the committed records, and LAG how many of them each replica does not have, as
    NODE:RECORDS; it is 0 at the leader, and ? at a node that does not respond.

    Examples:
      kafkalite replica list
      kafkalite replica list orders
      kafkalite replica list --unhealthy --json | jq '.[].partition'
    """
    cluster = ClusterClients(**connection)
    admin = cluster.connected_admin()
    with kafka_errors_as_refusals():
        metadata = cluster.metadata(admin)
        chosen = selected_topics(metadata, names, internal)
        found = {
            key: partition
            for key, partition in partitions_of(chosen)
            if not unhealthy or not is_healthy(partition)
        }
        rows = rows_of(cluster, admin, metadata, found)
    if as_json:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        print(columns(TITLES, map(cells, rows)))
    return int(unhealthy and bool(rows))


def selected_topics(
    metadata: ClusterMetadata, names: Sequence[str], internal: bool
) -> Mapping[str, TopicMetadata]:
    """Return the named topics, or all; raise Refusal if one does not exist."""
    if missing := sorted({*names} - metadata.topics.keys()):
        raise Refusal(f"topic {missing[0]!r} does not exist (see: kafkalite topic list)")
    if names:
        return {name: metadata.topics[name] for name in sorted({*names})}
    return {
        name: topic
        for name, topic in sorted(metadata.topics.items())
        if internal or not name.startswith("__")
    }


def partitions_of(
    topics: Mapping[str, TopicMetadata],
) -> Iterable[tuple[PartitionKey, PartitionMetadata]]:
    for name, topic in topics.items():
        for index, partition in sorted(topic.partitions.items()):
            yield (name, index), partition


def is_healthy(partition: PartitionMetadata) -> bool:
    """Return whether a partition has a leader and all its replicas are in sync."""
    return partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)


def rows_of(
    cluster: ClusterClients,
    admin: AdminClient,
    metadata: ClusterMetadata,
    found: Mapping[PartitionKey, PartitionMetadata],
) -> list[ReplicaRow]:
    """Return the rows of these partitions."""
    eligible = eligible_replicas(cluster, [topic for topic, _ in found])
    ends = end_offsets(admin, [key for key, each in found.items() if each.leader >= 0])
    lags = lags_by_node(cluster, metadata, found)
    rows = []
    for key, partition in found.items():
        elr: EligibleReplicas | None = eligible.get(key)
        lag = {node_id: lags.get(node_id, {}).get(key) for node_id in partition.replicas}
        if key in ends:  # its leader responds
            lag[partition.leader] = 0
        rows.append(
            ReplicaRow(
                *key, partition.leader, list(partition.replicas), list(partition.isrs),
                None if elr is None else list(elr.elr),
                None if elr is None else list(elr.last_known),
                ends.get(key), lag,
            )  # fmt: skip
        )
    return rows


def end_offsets(admin: AdminClient, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
    """Return the ends of partitions, without those whose leader does not respond."""
    return listed_offsets(admin, {TopicPartition(*key): OffsetSpec.latest() for key in keys})


def lags_by_node(
    cluster: ClusterClients,
    metadata: ClusterMetadata,
    found: Mapping[PartitionKey, PartitionMetadata],
) -> dict[int, dict[PartitionKey, int]]:
    """Return by node the lags of its replicas, without nodes that do not respond."""
    wire = WireClient(cluster)
    wanted: dict[int, dict[str, list[int]]] = {}
    for (topic, index), partition in found.items():
        for node_id in partition.replicas:
            if node_id != partition.leader and node_id in metadata.brokers:
                wanted.setdefault(node_id, {}).setdefault(topic, []).append(index)
    lags: dict[int, dict[PartitionKey, int]] = {}
    for node_id, topics in wanted.items():
        broker = metadata.brokers[node_id]
        request = {"topics": [{"topic": t, "partitions": each} for t, each in topics.items()]}
        with suppress(Refusal):
            response = wire.request(DESCRIBE_LOG_DIRS, request, (broker.host or "", broker.port))
            lags[node_id] = {
                (topic.name, each.partition_index): each.offset_lag
                for directory in response.results
                for topic in directory.topics
                for each in topic.partitions
                if not each.is_future_key
            }
    return lags


def cells(row: ReplicaRow) -> list[object]:
    """Return a row of the table."""
    lag = (f"{node}:{'?' if records is None else records}" for node, records in row.lag.items())
    return [
        row.topic,
        row.partition,
        row.leader if row.leader >= 0 else "none",
        listed(row.replicas),
        listed(row.isr),
        None if row.elr is None else listed(row.elr),
        row.end_offset,
        " ".join(lag),
    ]


def listed(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes)) or "-"


@command(
    argument(
        "spans",
        nargs="*",
        metavar="TOPIC[:PARTITIONS]",
        type=span,
        help="topics or partitions (default: all)",
    ),
    argument(
        "--unclean",
        action="store_true",
        help="elect any replica that is alive for partitions without a leader; acknowledged records"
        " may be lost",
    ),
    argument("--yes", action="store_true", help="do not ask for a confirmation of --unclean"),
    JSON,
    *CONNECTION,
)
def elect(
    spans: Sequence[PartitionSelection],
    unclean: bool,
    yes: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> int:
    """Elect leaders: the preferred one, which is the first replica of a partition.

    A broker does this by itself after a restart of a node.  With --unclean, partitions without a
    leader get one that may not have all acknowledged records.  The exit code is 1 if a leader could
    not be elected.

    Examples:
      kafkalite replica elect
      kafkalite replica elect orders
      kafkalite replica elect orders:3 --unclean --yes
    """
    if unclean and not spans:
        raise Refusal("--unclean requires topics or partitions: name those that may lose records")
    if unclean and not yes:
        confirm("An unclean election may lose acknowledged records for good.")
    admin = ClusterClients(**connection).connected_admin()
    try:
        with kafka_errors_as_refusals():
            outcomes = election_outcomes(admin, spans, unclean)
    except TimeoutError:
        raise Refusal(f"the controller did not respond within {ELECTION_TIMEOUT_S:.0f} s") from None
    if as_json:
        print(json.dumps(outcomes))
    else:
        print_outcomes(outcomes, has_all=not spans)
    return int(any(each["outcome"] == FAILED for each in outcomes))


def confirm(warning: str) -> None:
    """Ask on the terminal whether to continue; raise Refusal if not, or without a terminal."""
    if not sys.stdin.isatty():
        raise Refusal(f"{warning}  Add --yes to continue.")
    print_stderr(warning)
    print("Continue? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise Refusal("nothing was changed")


def election_outcomes(
    admin: AdminClient, spans: Sequence[PartitionSelection], unclean: bool
) -> list[dict[str, Any]]:
    """Elect leaders, and return the outcome of each partition."""
    wanted = None
    if spans:
        topics = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        wanted = [
            TopicPartition(name, index)
            for name, indexes in spans
            for index in (indexes if indexes is not None else known_indexes(topics, name))
        ]
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    # Version 2.16 of confluent-kafka cannot pass its timeouts.
    results = admin.elect_leaders(kind, wanted).result(ELECTION_TIMEOUT_S)
    return [
        {"topic": each.topic, "partition": each.partition, **outcome(reason)}
        for each, reason in sorted(results.items(), key=lambda found: found[0])
    ]


def known_indexes(topics: Mapping[str, TopicMetadata], name: str) -> Iterable[int]:
    if name not in topics:
        raise Refusal(f"topic {name!r} does not exist (see: kafkalite topic list)")
    return sorted(topics[name].partitions)


def outcome(reason: KafkaError | None) -> dict[str, Any]:
    if reason is None:
        return {"outcome": ELECTED, "error": None}
    if reason.code() == ElectionNotNeeded.code:
        return {"outcome": NOT_NEEDED, "error": None}
    return {"outcome": FAILED, "error": clean_error(reason.str())}


def print_outcomes(outcomes: Sequence[Mapping[str, Any]], *, has_all: bool) -> None:
    """Print a line for each partition; of all partitions, only those that were not led so."""
    shown = [each for each in outcomes if not has_all or each["outcome"] != NOT_NEEDED]
    for each in shown:
        reason = f": {each['error']}" if each["error"] else ""
        print(f"{each['topic']}:{each['partition']} {each['outcome']}{reason}")
    if not shown:
        print("all partitions are led by their preferred replica")


@command(
    argument(
        "spans", nargs="+", metavar="TOPIC[:PARTITIONS]", type=span, help="topics or partitions"
    ),
    argument(
        "--to", metavar="IDS", type=replica_move.node_ids, help="nodes of the new replicas: 1,2,3"
    ),
    argument("--cancel", action="store_true", help="end a move that is in progress"),
    argument(
        "--timeout",
        metavar="SECONDS",
        type=replica_move.seconds,
        help="stop waiting after this time; the broker goes on (default: wait for the end)",
    ),
    argument(
        "--throttle",
        metavar="RATE",
        type=replica_throttle.rate,
        help="limit the rate of each node in bytes per second (10MB), until the end of the move",
    ),
    JSON,
    *CONNECTION,
)
def move(
    spans: Sequence[PartitionSelection],
    to: tuple[int, ...] | None,
    cancel: bool,
    timeout: float | None,
    throttle: int | None,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> int:
    """Give partitions other replicas: on other nodes, more of them or fewer.

    The new replicas are filled first; clients go on meanwhile.  The first node of --to is the
    preferred leader; of several partitions each has another one, in turn.  The exit code is 1 if a
    partition could not be moved or is not moved yet.  A throttle is removed at the end, or by
    kafkalite replica throttle --remove if the command does not wait for it.

    Examples:
      kafkalite replica move orders:3 --to 2,3,1
      kafkalite replica move orders --to 1,2,3 --timeout 0
      kafkalite replica move orders --to 2,3 --throttle 10MB
      kafkalite replica move orders --cancel
    """
    if cancel == (to is not None):
        raise Refusal("name the nodes of the new replicas with --to, or --cancel a move")
    if cancel and throttle is not None:
        raise Refusal("--throttle cannot be used with --cancel, which copies no records")
    cluster = ClusterClients(**connection)
    admin = cluster.connected_admin()
    with kafka_errors_as_refusals():
        topics = cluster.metadata(admin).topics
    keys = [
        (name, index)
        for name, indexes in spans
        for index in (indexes if indexes is not None else known_indexes(topics, name))
    ]
    wanted = {
        key: None if to is None else replica_move.rotated(key[0], to, number)
        for number, key in enumerate(dict.fromkeys(keys))
    }
    client = WireClient(cluster, CHANGE_TIMEOUT_S)
    begin = partial(replica_move.moved, client, wanted, timeout)
    if throttle is None:
        outcomes = begin()
    else:
        outcomes = replica_throttle.throttled_move(cluster, topics, wanted, throttle, begin)
    if as_json:
        print(json.dumps(outcomes))
    else:
        print_outcomes(outcomes, has_all=False)
    return int(any(each["outcome"] in replica_move.INCOMPLETE for each in outcomes))


@command(
    argument(
        "spans",
        nargs="*",
        metavar="TOPIC[:PARTITIONS]",
        type=span,
        help="topics or partitions (default: all that are throttled)",
    ),
    argument(
        "--rate",
        metavar="RATE",
        type=replica_throttle.rate,
        help="limit the rate of each node in bytes per second, as in 500000, 10MB or 10MiB",
    ),
    argument("--moving", action="store_true", help="the partitions whose replicas are being moved"),
    argument("--remove", action="store_true", help="remove throttles"),
    JSON,
    *CONNECTION,
)
def throttle(
    spans: Sequence[PartitionSelection],
    rate: int | None,
    moving: bool,
    remove: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Limit the rate at which replicas that are not in sync are filled, or show the limits.

    With --rate, replicas are throttled: all of the named topics or partitions, or with --moving
    those between which records are copied now.  --rate alone changes the rate.  --remove ends the
    throttle of these replicas, and removes the rate with the last of them.  Replicas in sync are
    never slowed, but their bytes count.

    Examples:
      kafkalite replica throttle
      kafkalite replica throttle --rate 10MB --moving
      kafkalite replica throttle --rate 500kB orders:0-3
      kafkalite replica throttle --remove
    """
    changes = rate is not None or remove
    if rate is not None and remove:
        raise Refusal("--rate sets a throttle, and --remove removes it: use one of them")
    if moving and (spans or not changes):
        raise Refusal("--moving takes the place of topics, and requires --rate or --remove")
    if not changes and any(indexes is not None for _, indexes in spans):
        raise Refusal("throttles are shown by topic: name no partitions")
    cluster = ClusterClients(**connection)
    with kafka_errors_as_refusals():
        topics = cluster.metadata(cluster.connected_admin()).topics
    for name, indexes in spans:
        if missing := sorted({*(indexes or ())} - {*known_indexes(topics, name)}):
            raise Refusal(f"topic {name!r} has no partition {missing[0]}")
    throttles = replica_throttle.ReplicationThrottles(cluster)
    if changes:
        chosen = throttles.of_moves() if moving else replica_throttle.selected(topics, spans)
        if rate is not None:
            throttles.set_rate(rate)
            throttles.add(chosen)
        else:
            throttles.remove(chosen if moving or spans else None, topics)
    names = {name for name, _ in spans} or topics.keys()
    found = throttles.rates(), throttles.of_topics(names)
    if as_json:
        print(json.dumps(replica_throttle.state(*found)))
    else:
        print("\n\n".join(replica_throttle.pages(*found)))
