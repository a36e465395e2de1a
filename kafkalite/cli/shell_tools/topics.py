"""kafka-topics.sh: list, describe, create, alter and delete topics.

Left out: eligible leader replicas over TLS or SASL, which librdkafka does not request.  They are
N/A while the ISR is smaller than min.insync.replicas, and empty otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    TopicDescription,
)

from kafkalite.cli.clients import settled
from kafkalite.cli.command import print_stderr, warn
from kafkalite.cli.shell_tools.cluster import (
    CONNECTION,
    brokers,
    errors_as_refusals,
    internal_topics,
    results_of,
)
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, key_value, whole
from kafkalite.cli.shell_tools.topic_names import matcher
from kafkalite.cli.topic_replicas import EligibleReplicas, eligible_replicas
from kafkalite.errors import Refusal

ACTIONS = ("list", "describe", "create", "alter", "delete")
FILTERS = (
    "under-replicated-partitions",
    "unavailable-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
)
ONLY_WITH = {
    "partitions": ("create", "alter"),
    "replica-assignment": ("create", "alter"),
    "replication-factor": ("create",),
    "config": ("create",),
    "if-exists": ("alter", "delete", "describe"),
    "if-not-exists": ("create",),
    "topic-id": ("describe",),
    "topics-with-overrides": ("describe",),
    **dict.fromkeys(FILTERS, ("describe",)),
}
FLAGS = (
    *CONNECTION,
    Flag("list", help="list the topics"),
    Flag("describe", help="describe topics, their partitions and the configs that were set"),
    Flag("create", help="create a topic"),
    Flag("alter", help="add partitions to topics"),
    Flag("delete", help="delete topics and their records"),
    Flag("topic", "NAME", "name of the topic; except with --create, a regular expression"),
    Flag("topic-id", "ID", "describe the topic with this id"),
    Flag("partitions", "COUNT", "number of partitions (default: of the cluster)", whole),
    Flag("replication-factor", "COUNT", "number of replicas (default: of the cluster)", whole),
    Flag(
        "replica-assignment",
        "ID:ID,ID:ID,…",
        "broker ids of each partition, the preferred leader first",
    ),
    Flag("config", "KEY=VALUE", "set a config; may be repeated", key_value, repeated=True),
    Flag("if-exists", help="do not fail if the topic does not exist"),
    Flag("if-not-exists", help="do not fail if the topic exists"),
    Flag("exclude-internal", help="exclude internal topics"),
    Flag("topics-with-overrides", help="only topics with overridden configs"),
    Flag("under-replicated-partitions", help="only partitions with replicas out of sync"),
    Flag("unavailable-partitions", help="only partitions without a leader"),
    Flag("under-min-isr-partitions", help="only partitions below min.insync.replicas"),
    Flag("at-min-isr-partitions", help="only partitions exactly at min.insync.replicas"),
    Flag("delete-config", "NAME", refused="is not a flag of Kafka 4: use kafka-configs.sh --alter"),
    Flag(
        "partition-size-limit-per-response",
        "COUNT",
        refused="is not supported: topics are described in one request",
    ),
)


def run(options: ParsedFlags) -> int | None:
    """List, describe, create, alter or delete topics.

    Examples:
      kafka-topics.sh --bootstrap-server localhost:9092 --create --topic flights --partitions 6
      kafka-topics.sh --bootstrap-server localhost:9092 --describe --topic 'fl.*'
    """
    options.requires("bootstrap-server")
    action = options.action(*ACTIONS)
    for name, actions in ONLY_WITH.items():
        options.only_with(name, *actions)
    options.excludes("replica-assignment", ["replication-factor"])
    if "create" in options:
        options.excludes("replica-assignment", ["partitions"])
    if len([name for name in (*FILTERS, "topics-with-overrides") if name in options]) > 1:
        raise Refusal(f"specify at most one of --{', --'.join(FILTERS)}, --topics-with-overrides")
    if action in ("create", "alter", "delete"):
        options.requires("topic", why=f", the topic to {action}")
    if action == "alter":
        options.requires("partitions", why=", the new number of partitions")
    try:
        with errors_as_refusals():
            VERBS[action](brokers(options).connected_admin(), options)
    except Refusal as refusal:
        # Kafka writes errors to stdout, where scripts read them; users expect them on stderr.
        print(f"Error while executing topic command : {refusal}")
        warn(str(refusal))
        return refusal.exit_code
    return None


def selected_topics(admin: AdminClient, options: ParsedFlags) -> list[str]:
    names = sorted(admin.list_topics().topics)
    if pattern := options.one("topic"):
        matches = matcher(pattern)
        names = [name for name in names if matches(name)]
    if "exclude-internal" in options and names:
        internal = internal_topics(admin, names)
        names = [name for name in names if name not in internal]
    return names


def existing(admin: AdminClient, options: ParsedFlags) -> list[str]:
    """Return the selected topics; raise Refusal if a named one does not exist."""
    names = selected_topics(admin, options)
    if not names and "topic" in options and "if-exists" not in options:
        raise Refusal(f"Topic '{options.one('topic')}' does not exist as expected")
    return names


def list_topics(admin: AdminClient, options: ParsedFlags) -> None:
    print("\n".join(selected_topics(admin, options)))


def create(admin: AdminClient, options: ParsedFlags) -> None:
    name, partitions = options.one("topic"), options.one("partitions", -1)
    if "partitions" in options and partitions < 1:
        raise Refusal("The partitions must be greater than 0")
    if "replication-factor" in options and not 1 <= options.one("replication-factor") < 1 << 15:
        raise Refusal("The replication factor must be between 1 and 32767 inclusive")
    if "." in name or "_" in name:
        print(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore"
            " ('_') could collide. To avoid issues it is best to use either, but not both."
        )
    configs = dict(options.all("config"))
    if placed := options.one("replica-assignment"):
        placement = assignment(placed)
        topic = NewTopic(name, len(placement), replica_assignment=placement, config=configs)
    else:
        topic = NewTopic(name, partitions, options.one("replication-factor", -1), config=configs)
    _, errors = settled(admin.create_topics([topic]))
    for error in errors.values():
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS and "if-not-exists" in options:
            return
        raise KafkaException(error)
    print(f"Created topic {name}.")


def assignment(text: str) -> list[list[int]]:
    """Parse the brokers of each partition: `0:1,1:0`."""
    placement = []
    for part in text.split(","):
        try:
            replicas = [whole(broker.strip()) for broker in part.split(":")]
        except ValueError:
            raise Refusal(
                f"--replica-assignment must be broker ids (0:1,1:0), not {part!r}"
            ) from None
        if len(set(replicas)) < len(replicas):
            raise Refusal(f"Partition replica lists may not contain duplicate entries: {part}")
        placement.append(replicas)
    if len({*map(len, placement)}) > 1:
        raise Refusal(
            "--replica-assignment must list the same number of brokers for each partition"
        )
    return placement


def alter(admin: AdminClient, options: ParsedFlags) -> None:
    count = options.one("partitions")
    if count < 1:
        raise Refusal("The partitions must be greater than 0")
    selected = []
    names = existing(admin, options)
    for topic in described(admin, names):
        has = len(topic.partitions)
        if placed := options.one("replica-assignment"):
            placement = assignment(placed)
            if len(placement) != count:
                raise Refusal(
                    f"--replica-assignment must have {count} entries, not {len(placement)}"
                )
            selected.append(NewPartitions(topic.name, count, placement[has:]))
        else:
            selected.append(NewPartitions(topic.name, count))
    if selected:
        results_of(admin.create_partitions(selected))


def delete(admin: AdminClient, options: ParsedFlags) -> None:
    if names := existing(admin, options):
        results_of(admin.delete_topics(names))


# -- describe --------------------------------------------------------------------------------------

DEFAULT: int = ConfigSource.DEFAULT_CONFIG.value
MIN_IN_SYNC = "min.insync.replicas"


def describe(admin: AdminClient, options: ParsedFlags) -> None:
    if selected := options.one("topic-id"):
        topics = [with_id(admin, topic_id(selected))]
    else:
        topics = described(admin, existing(admin, options))
    names = [topic.name for topic in topics]
    configs = configs_of(admin, names)
    eligible = eligible_replicas(brokers(options), names)
    chosen = next((name for name in FILTERS if name in options), None)
    for topic in topics:
        known = configs[topic.name]
        minimum = int(known[MIN_IN_SYNC].value or 1) if MIN_IN_SYNC in known else 1
        own = [entry for entry in known.values() if source_of(entry) != DEFAULT]
        if chosen is None and (own or "topics-with-overrides" not in options):
            print(headline(topic, own))
        if "topics-with-overrides" in options:
            continue
        for partition in topic.partitions:
            if chosen is None or passes(chosen, partition, minimum):
                known_elr = eligible.get((topic.name, partition.id))
                print(partition_line(topic.name, partition, minimum, known_elr))


def source_of(entry: Any) -> int:
    """Return the source of a value; librdkafka returns a number, contrary to its stubs."""
    return int(entry.source)


def topic_id(text: str) -> str:
    """Parse a topic id."""
    if not re.fullmatch(r"[0-9A-Za-z_-]{22}", text):
        raise Refusal(
            f"--topic-id must be the 22 base64 characters that --describe prints, not {text!r}"
        )
    return text


def with_id(admin: AdminClient, selected: str) -> TopicDescription:
    for topic in described(admin, sorted(admin.list_topics().topics)):
        if str(topic.topic_id) == selected:
            return topic
    raise Refusal(f"TopicId '{selected}' does not exist as expected")


def described(admin: AdminClient, names: Sequence[str]) -> list[TopicDescription]:
    if not names:
        return []
    found = results_of(admin.describe_topics(TopicCollection([*names])))
    return [found[name] for name in names]


def configs_of(admin: AdminClient, names: Sequence[str]) -> Mapping[str, Mapping[str, ConfigEntry]]:
    if not names:
        return {}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    found, errors = settled(admin.describe_configs(resources))
    for resource, error in errors.items():
        print_stderr(f"cannot describe the configs of topic {resource.name}: {error.str()}")
    return {name: {} for name in names} | {
        resource.name: entries for resource, entries in found.items()
    }


def headline(topic: TopicDescription, own: Iterable[ConfigEntry]) -> str:
    replicas = len(topic.partitions[0].replicas) if topic.partitions else 0
    configs = ",".join(f"{entry.name}={entry.value or ''}" for entry in own)
    return "\t".join(
        [
            f"Topic: {topic.name}",
            f"TopicId: {topic.topic_id}",
            f"PartitionCount: {len(topic.partitions)}",
            f"ReplicationFactor: {replicas}",
            f"Configs: {configs}",
        ]
    )


def partition_line(
    name: str, partition: Any, minimum: int, known: EligibleReplicas | None
) -> str:
    # With enough replicas in the ISR there are no eligible leader replicas.
    unknown = "" if len(partition.isr) >= minimum else "N/A"
    elr, last_known = (",".join(map(str, each)) for each in known) if known else (unknown, unknown)
    return "\t" + "\t".join(
        [
            f"Topic: {name}",
            f"Partition: {partition.id}",
            f"Leader: {partition.leader.id if has_leader(partition) else 'none'}",
            f"Replicas: {ids(partition.replicas)}",
            f"Isr: {ids(partition.isr)}",
            f"Elr: {elr}",
            f"LastKnownElr: {last_known}",
        ]
    )


def has_leader(partition: Any) -> bool:
    return partition.leader is not None and partition.leader.id >= 0


def ids(nodes: Iterable[Any]) -> str:
    return ",".join(str(node.id) for node in nodes)


def passes(chosen: str, partition: Any, minimum: int) -> bool:
    """Return True if the partition is in the state that a flag selects."""
    in_sync = len(partition.isr)
    if chosen == "under-replicated-partitions":
        return in_sync < len(partition.replicas)
    if chosen == "unavailable-partitions":
        return not has_leader(partition)
    return in_sync < minimum if chosen == "under-min-isr-partitions" else in_sync == minimum


VERBS = {
    "list": list_topics,
    "describe": describe,
    "create": create,
    "alter": alter,
    "delete": delete,
}
TOOL = ShellTool(FLAGS, run)
