"""kafkalite topic: list, describe, create, alter and delete topics.

Works with any Kafka broker.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    PartitionMetadata,
    TopicDescription,
)

from kafkalite.cli import compaction
from kafkalite.cli.clients import (
    CONNECTION,
    REQUEST_TIMEOUT_S,
    ClusterClients,
    ConnectionArguments,
    clean_error,
    kafka_errors_as_refusals,
    listed_offsets,
    settled,
)
from kafkalite.cli.command import (
    UsageError,
    argument,
    columns,
    command,
    key_value,
    print_stderr,
    printable,
)
from kafkalite.cli.compaction import (
    CompactionClient,
    addresses_of,
    compaction_columns,
    described_status,
    result_row,
)
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.resource import SET, UNSET, ResourceConfigs, ResourceName, ValueChange
from kafkalite.cli.topic_replicas import (
    ONE_HOST,
    EligibleReplicas,
    are_on_one_host,
    eligible_replicas,
    with_minimum,
)
from kafkalite.errors import Refusal

NAMES = argument("names", nargs="+", metavar="TOPIC", type=printable, help="name of a topic")
JSON = argument("--json", action="store_true", dest="as_json", help="print JSON")
PARTITIONS_MAX = 100_000
REPLICAS_MAX = 10_000
"""Limit of librdkafka; the broker has a lower one, its number of workers."""
"""Limit of librdkafka."""


@command(
    NAMES,
    argument(
        "-p",
        "--partitions",
        type=int,
        default=-1,
        help="number of partitions (default: num.partitions of the broker)",
    ),
    argument(
        "-r",
        "--replication-factor",
        "--replicas",
        type=int,
        default=-1,
        help="number of replicas (default: of the broker); with 3 or more, min.insync.replicas=2"
        " unless it is set",
    ),
    argument(
        "-c",
        "--config",
        dest="configs",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a topic config; may be repeated",
    ),
    argument("--if-not-exists", action="store_true", help="skip topics that exist"),
    JSON,
    *CONNECTION,
)
def create(
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    configs: Sequence[tuple[str, str]],
    if_not_exists: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Create topics.

    Examples:
      kafkalite topic create flights -p 6
      kafkalite topic create orders -p 3 --replicas 3
      kafkalite topic create audit -c retention.ms=-1 -c compression.type=zstd --if-not-exists
    """
    if partitions != -1 and not 1 <= partitions <= PARTITIONS_MAX:
        raise Refusal(f"-p {partitions}: the number of partitions must be 1 to {PARTITIONS_MAX:,}")
    if replication_factor != -1 and not 1 <= replication_factor <= REPLICAS_MAX:
        raise Refusal(
            f"-r {replication_factor}: the number of replicas must be 1 to {REPLICAS_MAX:,}"
        )
    cluster = ClusterClients(**connection)
    admin = cluster.connected_admin()
    config = with_minimum(configs, replication_factor)
    new_topics = [NewTopic(name, partitions, replication_factor, config=config) for name in names]
    with kafka_errors_as_refusals():
        futures = admin.create_topics(new_topics)
        if replication_factor != 1 and are_replicas_on_one_host(cluster, admin, futures):
            print_stderr(ONE_HOST)
    tolerated = {KafkaError.TOPIC_ALREADY_EXISTS: "existed already"} if if_not_exists else {}
    report("created", futures, tolerated, as_json)


@command(
    argument("pattern", nargs="?", default="", help="only topics whose name contains this"),
    argument("--internal", action="store_true", help="include internal topics"),
    argument("--names", action="store_true", help="print only the names, one per line"),
    JSON,
    *CONNECTION,
    name="list",
)
def list_topics(
    pattern: str,
    internal: bool,
    names: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """List topics with their partitions and replicas.

    Examples:
      kafkalite topic list
      kafkalite topic list --names | grep ^test- | xargs kafkalite topic delete
    """
    cluster = ClusterClients(**connection)
    with kafka_errors_as_refusals():
        found = cluster.metadata(cluster.admin()).topics
    topics = [
        {
            "name": name,
            "partitions": len(topic.partitions),
            "replication_factor": max(map(replicas, topic.partitions.values()), default=0),
        }
        for name, topic in sorted(found.items())
        if pattern in name and (internal or not name.startswith("__"))
    ]
    if as_json:
        print(json.dumps(topics))
    elif names:
        print("".join(f"{topic['name']}\n" for topic in topics), end="")
    else:
        print(columns(["TOPIC", "PARTITIONS", "REPLICAS"], [[*topic.values()] for topic in topics]))


@command(NAMES, JSON, *CONNECTION)
def describe(
    names: Sequence[str],
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Describe topics: id, partitions with replicas and offsets, and configs that were set.

    ISR are the replicas in sync, ELR those out of sync that have every acknowledged record.

    For a compacted topic, on the broker's host: its dirty ratio, and when it was compacted.

    Examples:
      kafkalite topic describe flights
      kafkalite topic describe flights --json | jq '.[0].partitions[].end_offset'
    """
    cluster = ClusterClients(**connection)
    admin = cluster.connected_admin()
    with kafka_errors_as_refusals():
        found, errors = settled(admin.describe_topics(TopicCollection([*names])))
        metadata = cluster.metadata(admin)
        eligible = eligible_replicas(cluster, [*found])
        with CompactionClient(metadata) as client:
            topics = [described(admin, topic, client, eligible) for topic in found.values()]
    if as_json:
        print(json.dumps(topics))
    elif topics:
        print("\n\n".join(map(page, topics)))
    raise_errors(errors)


@command(
    NAMES,
    argument(
        "-p",
        "--partition",
        dest="partitions",
        type=int,
        action="append",
        metavar="NUMBER",
        help="only this partition; may be repeated",
    ),
    argument(
        "--timeout",
        type=float,
        default=3_600.0,
        metavar="SECONDS",
        help="time to wait for the compaction (default 3600)",
    ),
    JSON,
    *CONNECTION,
)
def compact(
    names: Sequence[str],
    partitions: Sequence[int] | None,
    timeout: float,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Compact topics now, whatever their dirty ratio, and wait until it is done.

    The last record of each key is kept, up to the last one written so far; min.compaction.lag.ms
    still applies.  Works on the broker's host, as the broker's user.

    Examples:
      kafkalite topic compact prices
      kafkalite topic compact prices -p 0 --json | jq '.[0].size_after'
    """
    cluster = ClusterClients(**connection)
    admin = cluster.connected_admin()
    with kafka_errors_as_refusals():
        found, errors = settled(admin.describe_topics(TopicCollection([*names])))
        metadata = cluster.metadata(admin)
    raise_errors(errors)
    addresses = [address for topic in found.values() for address in addresses_of(topic)]
    if partitions is not None:
        known = {address.partition for address in addresses}
        if missing := sorted(set(partitions) - known):
            raise Refusal(f"{', '.join(names)} has no partition {missing[0]} with a leader")
        addresses = [address for address in addresses if address.partition in partitions]
    with CompactionClient(metadata) as client:
        results = compaction.compact(client, addresses, timeout)
    if as_json:
        print(json.dumps(results))
    else:
        heads = [
            "TOPIC", "PARTITION", "SIZE BEFORE", "SIZE AFTER", "DIRTY BEFORE", "DIRTY AFTER",
            "CLEAN OFFSET",
        ]  # fmt: skip
        print(columns(heads, map(result_row, results)))


@command(
    NAMES,
    argument("--if-exists", action="store_true", help="skip topics that do not exist"),
    JSON,
    *CONNECTION,
)
def delete(
    names: Sequence[str],
    if_exists: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Delete topics and all their records.

    Examples:
      kafkalite topic delete flights
      kafkalite topic delete flights audit --if-exists
    """
    admin = ClusterClients(**connection).connected_admin()
    with kafka_errors_as_refusals():
        futures = admin.delete_topics([*names])
    tolerated = {KafkaError.UNKNOWN_TOPIC_OR_PART: "did not exist"} if if_exists else {}
    report("deleted", futures, tolerated, as_json)


@command(
    NAMES,
    argument(
        "-p", "--partitions", type=int, help="new number of partitions, larger than the current one"
    ),
    argument(
        "-c",
        "--config",
        dest="configs",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a topic config; may be repeated",
    ),
    argument(
        "-u",
        "--unset",
        dest="unset",
        type=printable,
        action="append",
        default=[],
        metavar="KEY",
        help="remove a topic config; may be repeated",
    ),
    argument("--dry-run", action="store_true", help="validate the changes without making them"),
    JSON,
    *CONNECTION,
)
def alter(
    names: Sequence[str],
    partitions: int | None,
    configs: Sequence[tuple[str, str]],
    unset: Sequence[str],
    dry_run: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Add partitions to topics, and change their configs.

    With more partitions, new records of a key may go to another partition than its older records.

    Examples:
      kafkalite topic alter flights -p 12
      kafkalite topic alter flights audit -c retention.ms=3600000 -u cleanup.policy
    """
    changes = [ValueChange(key, SET, value) for key, value in configs]
    changes += [ValueChange(key, UNSET) for key in unset]
    if partitions is None and not changes:
        raise UsageError("specify what to alter: -p COUNT, -c KEY=VALUE or --unset KEY")
    if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
        raise Refusal(f"-p {partitions}: the number of partitions must be 1 to {PARTITIONS_MAX:,}")
    resources = ResourceConfigs(ClusterClients(**connection))
    failed: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            if partitions is not None:  # validated first, so that a failure changes nothing
                grow(resources.admin, name, partitions, dry_run=True)
            if changes:
                resources.change(ResourceName("topic", name), changes, dry_run)
            if partitions is not None and not dry_run:
                grow(resources.admin, name, partitions, dry_run=False)
        except Refusal as refusal:
            failed[name] = str(refusal)
    if as_json:
        done = [{"name": name, "altered": name not in failed, "dry_run": dry_run} for name in names]
        print(json.dumps(done))
    else:
        would = "can be altered" if dry_run else "altered"
        print("".join(f"{name} {would}\n" for name in names if name not in failed), end="")
    if failed:
        raise Refusal("; ".join(failed.values()))


def grow(admin: AdminClient, name: str, partitions: int, dry_run: bool) -> None:
    """Add the missing partitions."""
    with kafka_errors_as_refusals():
        futures = admin.create_partitions([NewPartitions(name, partitions)], validate_only=dry_run)
        raise_errors(settled(futures)[1])


def are_replicas_on_one_host(
    cluster: ClusterClients, admin: AdminClient, created: Mapping[str, Future[None]]
) -> bool:
    """Return whether replicas of new topics share a host."""
    results, _ = settled(created)
    metadata = cluster.metadata(admin)
    return are_on_one_host(
        [metadata.brokers[node_id] for node_id in partition.replicas if node_id in metadata.brokers]
        for name in results
        if name in metadata.topics
        for partition in metadata.topics[name].partitions.values()
    )


def raise_errors(errors: Mapping[str, KafkaError]) -> None:
    """Raise Refusal if there are errors."""
    if errors:
        raise Refusal("; ".join(itertools.starmap(error_text, errors.items())))


def error_text(name: str, error: KafkaError) -> str:
    """Return an error message that names the topic."""
    text = clean_error(error.str())
    named = not name or f"topic {name} " in text or f"'{name}'" in text
    return text if named else f"{name}: {text}"


def report(
    verb: str,
    futures: Mapping[str, Future[None]],
    tolerated: Mapping[int, str],
    as_json: bool,
) -> None:
    """Print the result for each topic; raise Refusal for errors that are not tolerated."""
    results, errors = settled(futures)
    tolerated_names = {
        name: tolerated[f.code()] for name, f in errors.items() if f.code() in tolerated
    }
    if as_json:
        print(json.dumps([{"name": name, verb: name in results} for name in futures]))
    else:
        for name in futures:
            if name in results or name in tolerated_names:
                print(f"{name} {tolerated_names.get(name, verb)}")
    raise_errors({name: error for name, error in errors.items() if name not in tolerated_names})


def described(
    admin: AdminClient,
    topic: TopicDescription,
    client: CompactionClient,
    eligible: Mapping[PartitionKey, EligibleReplicas],
) -> dict[str, Any]:
    """Return a topic's description as `--json` prints it."""
    configs = configs_of(admin, topic.name)
    is_compacted = has_compaction(configs) and not topic.is_internal
    statuses = client.statuses(list(addresses_of(topic))) if is_compacted else {}
    starts = offsets(admin, topic, OffsetSpec.earliest())
    ends = offsets(admin, topic, OffsetSpec.latest())
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": [
            {
                "partition": partition.id,
                "leader": partition.leader.id if partition.leader else None,
                "replicas": [node.id for node in partition.replicas],
                "isr": [node.id for node in partition.isr],
                "elr": elr_of(eligible.get((topic.name, partition.id))),
                "start_offset": starts.get(partition.id),
                "end_offset": ends.get(partition.id),
                **(
                    {"compaction": compaction_of(statuses, partition.id)} if is_compacted else {}
                ),
            }
            for partition in topic.partitions
        ],
        "configs": configs_set(configs),
        "on_one_host": are_on_one_host(partition.replicas for partition in topic.partitions),
    }


def elr_of(eligible: EligibleReplicas | None) -> list[int] | None:
    """Return the eligible leader replicas of a partition; None if they are not known."""
    return None if eligible is None else [*eligible.elr]


def compaction_of(statuses: Mapping[int, dict[str, Any]], partition: int) -> dict[str, Any] | None:
    """Return the compaction of a partition; None if its node does not return it."""
    status = statuses.get(partition)
    return None if status is None else described_status(status)


def offsets(admin: AdminClient, topic: TopicDescription, spec: OffsetSpec) -> dict[int, int]:
    """Return the requested offset by partition, without those whose leader does not respond."""
    requested = {
        TopicPartition(topic.name, partition.id): spec
        for partition in topic.partitions
        if partition.leader
    }
    return {index: offset for (_, index), offset in listed_offsets(admin, requested).items()}


def configs_of(admin: AdminClient, name: str) -> dict[str, Any] | None:
    """Return the configs of a topic by key; None if the broker does not return them."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    try:
        entries = admin.describe_configs([resource])[resource].result(REQUEST_TIMEOUT_S)
    except (KafkaException, TimeoutError):
        return None
    return dict(sorted(entries.items()))


def configs_set(configs: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the values set on the topic itself; None if they are not known."""
    if configs is None:
        return None
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {key: entry.value for key, entry in configs.items() if entry.source == own}


def has_compaction(configs: Mapping[str, Any] | None) -> bool:
    """Return whether a topic with these configs is compacted."""
    policy = (configs or {}).get("cleanup.policy")
    return policy is not None and "compact" in (policy.value or "").split(",")


def page(topic: Mapping[str, Any]) -> str:
    """Return a topic's description as text."""
    partitions = topic["partitions"]
    is_replicated = any(len(partition["replicas"]) > 1 for partition in partitions)
    rows = [
        [
            partition["partition"],
            partition["leader"],
            ",".join(map(str, partition["replicas"])),
            ",".join(map(str, partition["isr"])),
            *([elr_text(partition["elr"])] if is_replicated else ()),
            partition["start_offset"],
            partition["end_offset"],
            *(compaction_columns(partition["compaction"]) if "compaction" in partition else ()),
        ]
        for partition in partitions
    ]
    heads = ["PARTITION", "LEADER", "REPLICAS", "ISR", *(["ELR"] if is_replicated else ())]
    heads += ["START", "END"]
    if any("compaction" in partition for partition in partitions):
        heads += ["DIRTY", "COMPACTED", "CLEANER"]
    lines = [f"topic {topic['name']}", f"id {topic['topic_id']}"]
    lines += [f"config {key}={value}" for key, value in (topic["configs"] or {}).items()]
    lines.append(columns(heads, rows))
    if topic["on_one_host"]:
        lines.append(ONE_HOST)
    return "\n".join(lines)


def elr_text(elr: Sequence[int] | None) -> str:
    return "unknown" if elr is None else ",".join(map(str, elr)) or "-"


def replicas(partition: PartitionMetadata) -> int:
    return len(partition.replicas)
