"""Controller: the state machine that owns the cluster metadata.

    metadata log ──replay──▶ ClusterImage, ProducerIds ──decide──▶ response + records ──▶ the log

It decides about topics, the placement of their partitions, configs and producer id blocks.  Its
whole state comes from its records.

Decisions about nodes are in nodes.py, placement in placement.py, config changes in configs.py, and
new leader epochs of logs that lost records in leader_epochs.py.

Left out: topics with more than one replica.  Decisions about replicas (replication/) have no caller
in the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kafkalite.config.settings import Settings
from kafkalite.config.topic import TOPIC as TOPIC_SCOPE
from kafkalite.config.topic import check_compaction_lags
from kafkalite.coordination import configs, features, leader_epochs, nodes, topic_names
from kafkalite.coordination.features import FeatureUpdate, SupportedLevels
from kafkalite.coordination.image import (
    SUPERVISOR_ID,
    ClusterImage,
    TopicImage,
    new_partition_records,
    node_record,
    topic_records,
)
from kafkalite.coordination.leader_epochs import EpochRenewal
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.nodes import Placer
from kafkalite.coordination.partition_image import PartitionImage, new_partition
from kafkalite.coordination.placement import (
    NO_LIMITS,
    NO_SIZES,
    PartitionMove,
    PartitionSizes,
    PlacementLimits,
)
from kafkalite.coordination.producer_ids import ProducerIdBlock, ProducerIds
from kafkalite.coordination.replication import leadership, reassignment
from kafkalite.coordination.replication.alter_partition import (
    IsrDecision,
    PartitionProposal,
    alter_partitions,
)
from kafkalite.coordination.replication.partition_change import RulesOf
from kafkalite.errors import (
    InconsistentClusterId,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    PolicyViolation,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from kafkalite.ids import METADATA_TOPIC
from kafkalite.protocol.schemas.internal import (
    CLUSTER,
    PRODUCER_IDS_BLOCK,
    REMOVE_NODE,
    REMOVE_TOPIC,
    TOPIC,
    TypedRecord,
)

NEW_PARTITIONS_MAX = 10_000
"""Maximum number of partitions created by one request: one batch of records, one pause of the node.
"""

DEFAULT = -1
"""In a request: use the broker's default."""
DEFAULT_SETTINGS = Settings.broker()


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    # (partition, nodes of its replicas), if the client assigns them
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    config: Mapping[str, str | None] = {}


class TopicDefaults(NamedTuple):
    """Defaults of a new topic."""

    partition_count: int
    replication_factor: int


class PartitionGrowth(NamedTuple):
    """A topic whose partition count is to grow."""

    name: str
    partition_count: int
    # the nodes of each new partition's replicas, or None to have them placed
    assignments: Sequence[Sequence[int]] | None = None


Assigned = dict[int, int | None]
"""New partitions, each with the node that the client assigned, or None."""


class Controller:
    """The controller's state machine."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.producer_ids = ProducerIds()
        self._metric_names: dict[str, str] = {}

    # -- replay ------------------------------------------------------------------------------

    def replay(self, record: TypedRecord) -> None:
        """Apply one record."""
        if record.kind is PRODUCER_IDS_BLOCK:
            self.producer_ids.replay(record)
            return
        if record.kind is TOPIC:
            name = record.fields["name"]
            self._metric_names[topic_names.metric_name(name)] = name
        elif record.kind is REMOVE_TOPIC:
            name = self.image.topics_by_id[record.fields["topic_id"]].name
            del self._metric_names[topic_names.metric_name(name)]
        self.image.replay(record)

    def records(self) -> Iterator[TypedRecord]:
        """Yield the fewest records that reproduce this state."""
        yield from self.producer_ids.records()
        yield from self.image.records()

    # -- cluster and nodes -------------------------------------------------------------------

    def set_cluster_id(self, cluster_id: str) -> DecisionResult[None]:
        """Set the cluster id once; raise InconsistentClusterId for another cluster's log."""
        if self.image.cluster_id not in ("", cluster_id):
            raise InconsistentClusterId(
                f"it belongs to cluster {self.image.cluster_id} and the rest of the directory to"
                f" {cluster_id}; restore the directories of one cluster, or use another data"
                " directory."
            )
        record = CLUSTER(cluster_id=cluster_id)
        return DecisionResult(None, [] if self.image.cluster_id else [record])

    def register_nodes(
        self,
        addresses: nodes.Addresses,
        rack: str | None,
        *,
        sizes: PartitionSizes = NO_SIZES,
        limits: PlacementLimits = NO_LIMITS,
    ) -> DecisionResult[None]:
        """Register exactly these nodes at start, and give every partition a leader among them."""
        return nodes.register(self.image, addresses, rack, sizes, limits)

    def set_node_address(
        self, node_id: int, host: str, port: int, rack: str | None
    ) -> DecisionResult[None]:
        """Set a node's listener address."""
        return nodes.set_address(self.image, node_id, host, port, rack)

    def add_node(self) -> DecisionResult[int]:
        """Add a worker and return its id."""
        return nodes.add(self.image)

    def remove_node(self, node_id: int) -> DecisionResult[None]:
        """Remove a worker that leads no partitions."""
        return nodes.remove(self.image, node_id)

    def set_draining(self, node_id: int, draining: bool) -> DecisionResult[None]:
        """Set whether a worker is draining: it loses its partitions and gets no new ones."""
        return nodes.set_draining(self.image, node_id, draining)

    def move(self, moves: Sequence[PartitionMove]) -> DecisionResult[list[PartitionMove]]:
        """Move partitions to other workers; return the moves that are still valid."""
        return nodes.move(self.image, moves)

    def renew_epochs(
        self, node_id: int, wanted: Sequence[EpochRenewal]
    ) -> DecisionResult[list[EpochRenewal]]:
        """Increase the leader epochs of partitions whose logs may have lost records."""
        return leader_epochs.renew(self.image, node_id, wanted)

    # -- replicas ----------------------------------------------------------------------------

    def alter_partitions(
        self,
        node_id: int,
        node_epoch: int,
        proposals: Sequence[PartitionProposal],
        rules_of: RulesOf,
    ) -> DecisionResult[list[IsrDecision]]:
        """Decide about the ISRs that a leader proposes."""
        return alter_partitions(self.image, node_id, node_epoch, proposals, rules_of)

    def remove_from_isrs(self, node_id: int, rules_of: RulesOf) -> DecisionResult[int]:
        """Remove a node that has ended, or shuts down, from ISRs, and elect other leaders."""
        return leadership.remove_from_isrs(self.image, node_id, rules_of)

    def reassign(
        self, topic: TopicImage, index: int, target: Sequence[int] | None, rules_of: RulesOf
    ) -> DecisionResult[PartitionImage]:
        """Begin or cancel the reassignment of a partition to other replicas."""
        return reassignment.reassign(self.image, topic, index, target, rules_of)

    # -- features ----------------------------------------------------------------------------

    def finalize_features(self, by_node: Mapping[int, SupportedLevels]) -> DecisionResult[None]:
        """Finalize each new feature at the highest level that every node supports."""
        return features.finalize(self.image, by_node)

    def update_features(
        self,
        updates: Mapping[str, FeatureUpdate],
        by_node: Mapping[int, SupportedLevels],
        *,
        validate_only: bool = False,
    ) -> DecisionResult[None]:
        """Change finalized levels of features, all or none."""
        return features.update(self.image, updates, by_node, validate_only=validate_only)

    # -- producer ids ------------------------------------------------------------------------

    def allocate_producer_ids(self, node_id: int) -> DecisionResult[ProducerIdBlock]:
        """Allocate a node's next block of producer ids."""
        return self.producer_ids.allocate(node_id)

    # -- topics ------------------------------------------------------------------------------

    def create_topics(
        self,
        wanted: Sequence[NewTopic],
        topic_ids: Sequence[bytes],
        defaults: TopicDefaults,
        *,
        sizes: PartitionSizes = NO_SIZES,
        limits: PlacementLimits = NO_LIMITS,
        validate_only: bool = False,
        created_count: int = 0,
    ) -> DecisionResult[dict[str, TopicImage | KafkaError]]:
        """Create topics independently of each other; return an image or an error for each.

        `topic_ids` are new ids, one per topic.  `created_count` is the number of partitions that
        earlier decisions of the same request have created.
        """
        placer = Placer.over(self.image, sizes, limits)
        assert len({new.name for new in wanted}) == len(wanted) == len(topic_ids)
        results: dict[str, TopicImage | KafkaError] = {}
        records: list[TypedRecord] = []
        new_metric_names: dict[str, str] = {}
        left = NEW_PARTITIONS_MAX - created_count
        for new, topic_id in zip(wanted, topic_ids, strict=True):
            try:
                self._check_name(new.name, new_metric_names)
                assigned = self._first_partitions(new, defaults, left)
                topic = TopicImage(new.name, topic_id, config=_checked_config(new.config))
                self._place(topic, assigned, placer)
            except KafkaError as error:
                results[new.name] = error.copy()
                continue
            results[new.name] = topic
            records.extend(topic_records(topic))
            new_metric_names[topic_names.metric_name(new.name)] = new.name
            left -= len(topic.partitions)
        created = map(node_record, placer.created)
        return DecisionResult(results, [] if validate_only else [*created, *records])

    def create_internal_topic(
        self, name: str, topic_id: bytes, partition_count: int, config: Mapping[str, str]
    ) -> DecisionResult[None]:
        """Create a coordinator's topic, led by the supervisor, unless it exists."""
        assert name in topic_names.INTERNAL_TOPICS
        if name in self.image.topics:
            return DecisionResult(None)
        partitions = dict.fromkeys(range(partition_count), new_partition(SUPERVISOR_ID))
        topic = TopicImage(name, topic_id, partitions, _checked_config(config))
        return DecisionResult(None, [*topic_records(topic)])

    def delete_topics(
        self, names: Mapping[bytes, str]
    ) -> DecisionResult[dict[str, None | KafkaError]]:
        """Delete topics, given by id with their names, and their dedicated nodes.

        Return None or an error for each name.
        """
        results: dict[str, None | KafkaError] = {}
        records: list[TypedRecord] = []
        for topic_id, name in names.items():
            topic = self.image.topics_by_id.get(topic_id)
            if topic is None or topic.internal:
                results[name] = _of_the_broker(name) if topic else UnknownTopicOrPartition()
                continue
            results[name] = None
            records.append(REMOVE_TOPIC(topic_id=topic_id))
            leaders = {partition.leader for partition in topic.partitions.values()}
            alone = [node_id for node_id in leaders if self.image.nodes[node_id].dedicated]
            records += [REMOVE_NODE(node_id=node_id) for node_id in sorted(alone)]
        return DecisionResult(results, records)

    def create_partitions(
        self,
        wanted: Sequence[PartitionGrowth],
        *,
        sizes: PartitionSizes = NO_SIZES,
        limits: PlacementLimits = NO_LIMITS,
        validate_only: bool = False,
        created_count: int = 0,
    ) -> DecisionResult[dict[str, None | KafkaError]]:
        """Increase partition counts independently of each other; return None or an error for each.

        `created_count` is as in `create_topics`.
        """
        placer = Placer.over(self.image, sizes, limits)
        assert len({growth.name for growth in wanted}) == len(wanted)
        results: dict[str, None | KafkaError] = {}
        records: list[TypedRecord] = []
        left = NEW_PARTITIONS_MAX - created_count
        for growth in wanted:
            try:
                topic = self.image.topic(growth.name)
                if topic.internal:
                    raise _of_the_broker(topic.name)
                grown = TopicImage(topic.name, topic.topic_id, config=topic.config)
                self._place(grown, self._more_partitions(topic, growth, left), placer)
            except KafkaError as error:
                results[growth.name] = error.copy()
                continue
            results[growth.name] = None
            records.extend(new_partition_records(topic.topic_id, grown.partitions))
            left -= len(grown.partitions)
        created = map(node_record, placer.created)
        return DecisionResult(results, [] if validate_only else [*created, *records])

    # -- configs -----------------------------------------------------------------------------

    def alter_configs(
        self,
        wanted: Sequence[configs.ConfigAlteration],
        settings: Settings = DEFAULT_SETTINGS,
        *,
        validate_only: bool = False,
    ) -> DecisionResult[dict[tuple[int, str], None | KafkaError]]:
        """Alter configs of resources; return None or an error for each.

        `settings` are the broker's: they have the bounds of groups' values.
        """
        results, records = configs.alter(self.image, wanted, settings)
        return DecisionResult(results, [] if validate_only else records)

    # -- validation --------------------------------------------------------------------------

    def _check_name(self, name: str, new_metric_names: Mapping[str, str]) -> None:
        if name == METADATA_TOPIC or name in topic_names.INTERNAL_TOPICS:
            raise _of_the_broker(name)
        topic_names.check(name)
        if name in self.image.topics:
            raise TopicAlreadyExists(f"The topic {name} already exists.")
        metric_name = topic_names.metric_name(name)
        other = self._metric_names.get(metric_name) or new_metric_names.get(metric_name)
        if other is not None:
            raise InvalidTopicException(
                f"Topic {name} collides with topic {other}: metric names do not distinguish"
                " '.' and '_'."
            )

    def _first_partitions(self, new: NewTopic, defaults: TopicDefaults, left: int) -> Assigned:
        if new.assignments:
            if new.partition_count != DEFAULT or new.replication_factor != DEFAULT:
                raise InvalidRequest(
                    "A topic with a manual assignment leaves its partition count and its"
                    " replication factor at -1."
                )
            _check_count(len(new.assignments), left)
            return self._assigned_first(new.assignments)
        count, factor = new.partition_count, new.replication_factor
        if factor == DEFAULT:
            factor = defaults.replication_factor
        if count == DEFAULT:
            count = defaults.partition_count
        if factor <= 0:
            raise InvalidReplicationFactor(
                f"Replication factor {factor} is invalid; use 1, or -1 for the default."
            )
        if factor > 1:
            raise InvalidReplicationFactor(
                f"Replication factor {factor} is not supported: a partition has one replica in this"
                " version; use 1, or -1 for the default."
            )
        if count <= 0:
            raise InvalidPartitions(
                f"Partition count {count} is invalid; use 1 or more, or -1 for the default."
            )
        topic_names.check_count(new.name, count)
        _check_count(count, left)
        return dict.fromkeys(range(count))

    def _more_partitions(self, topic: TopicImage, growth: PartitionGrowth, left: int) -> Assigned:
        present = len(topic.partitions)
        if growth.partition_count <= present:
            raise InvalidPartitions(
                f"Topic {topic.name} has {present} partitions; the number can only increase,"
                f" not become {growth.partition_count}."
            )
        topic_names.check_count(topic.name, growth.partition_count)
        added = range(present, growth.partition_count)
        _check_count(len(added), left)
        if growth.assignments is None:
            return dict.fromkeys(added)
        if len(growth.assignments) != len(added):
            raise InvalidReplicaAssignment(
                f"The request adds {len(added)} partitions and assigns"
                f" {len(growth.assignments)} of them; assign all or none."
            )
        return self._assigned(zip(added, growth.assignments, strict=True))

    def _assigned_first(self, assignments: Sequence[tuple[int, Sequence[int]]]) -> Assigned:
        by_index = dict(assignments)
        if len(by_index) != len(assignments):
            raise InvalidReplicaAssignment("A partition occurs more than once in the assignment.")
        if by_index.keys() != set(range(len(by_index))):
            raise InvalidReplicaAssignment(
                "The assigned partitions must be numbered from 0 without gaps."
            )
        return self._assigned((index, by_index[index]) for index in range(len(by_index)))

    def _assigned(self, assignments: Iterable[tuple[int, Sequence[int]]]) -> Assigned:
        """Return the node that a request assigned each partition to; None means any node."""
        placeable = self.image.placeable
        return {index: self._assigned_to(index, nodes, placeable) for index, nodes in assignments}

    def _assigned_to(
        self, index: int, nodes: Sequence[int], placeable: Sequence[int]
    ) -> int | None:
        """Return the node that a partition is assigned to, if it can be; None for any.

        Programs that expect one broker assign partitions to the first node of Metadata.  While
        there are workers that is the supervisor, which leads none, so it stands for any of them.
        """
        if not nodes:
            raise InvalidReplicaAssignment(f"Partition {index} is assigned to no node.")
        if len(nodes) > 1:
            raise InvalidReplicaAssignment(
                f"Partition {index} is assigned to {len(nodes)} nodes; it has one replica in this"
                " version."
            )
        node = self.image.nodes.get(nodes[0])
        if node is not None and node.node_id in placeable:
            return node.node_id
        if nodes[0] == SUPERVISOR_ID:
            return None
        if node is None:
            why = "which is not there"
        elif node.dedicated:
            why = "which serves one partition alone"
        else:
            why = "which takes no partitions now"
        raise InvalidReplicaAssignment(
            f"Partition {index} is assigned to node {nodes[0]}, {why}; choose among"
            f" {', '.join(map(str, placeable))}."
        )

    # -- placement ---------------------------------------------------------------------------

    def _place(self, topic: TopicImage, assigned: Assigned, placer: Placer) -> None:
        """Set the leaders of a topic's partitions: assigned, dedicated or least loaded workers."""
        open_to_us = [index for index, node_id in assigned.items() if node_id is None]
        if not (topic.dedicated and placer.dedicates):
            leaders = placer.share(topic.topic_id, open_to_us)
        elif len(open_to_us) < len(assigned):
            raise InvalidReplicaAssignment(
                f"The topic {topic.name} has worker.dedicated=true: its partitions are on workers"
                " created for them, so assign none."
            )
        elif len(assigned) > placer.dedicated_left:
            raise PolicyViolation(
                f"Topic {topic.name} needs {len(assigned)} dedicated workers, and"
                f" {placer.dedicated_left} of worker.dedicated.max={placer.dedicated_max} are left;"
                " use fewer partitions, raise that key, or create the topic without"
                " worker.dedicated."
            )
        else:
            leaders = placer.dedicate(open_to_us)
        for index, node_id in assigned.items():
            leader = leaders[index] if node_id is None else node_id
            topic.partitions[index] = new_partition(leader)


def _of_the_broker(name: str) -> InvalidRequest:
    # The partition of a key depends on the partition count, and deleting the topic would delete
    # every group's offsets.
    return InvalidRequest(
        f"The internal topic {name} is created by the broker; it cannot be altered or deleted."
    )


def _check_count(count: int, left: int) -> None:
    if count > left:
        raise PolicyViolation(
            f"A request creates at most {NEW_PARTITIONS_MAX} partitions; split it."
        )


def _checked_config(config: Mapping[str, str | None]) -> dict[str, str]:
    checked = {}
    for name, text in config.items():
        key = TOPIC_SCOPE.named(name)
        if text is None:
            raise InvalidConfig(f"The config {name} has no value; omit it to use the default.")
        key.parse(text)
        checked[name] = text
    check_compaction_lags(checked)
    return checked
