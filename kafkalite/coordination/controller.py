"""Controller: the state machine that owns the cluster metadata.

    metadata log ──replay──▶ ClusterImage, ProducerIds ──decide──▶ response + records ──▶ the log

It decides about topics, the placement of their partitions, configs and producer id blocks.  Its
whole state comes from its records.

Decisions about nodes are in nodes.py, about topics in topics.py, placement in placement.py, config
changes in configs.py, and new leader epochs of logs that lost records in leader_epochs.py.  Those
about the replicas of partitions are in replication/; broker/controller calls them with the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kafkalite.config.settings import Settings
from kafkalite.coordination import (
    configs,
    features,
    leader_epochs,
    nodes,
    topic_names,
    topics,
)
from kafkalite.coordination.features import FeatureUpdate, SupportedLevels
from kafkalite.coordination.image import (
    ClusterImage,
    TopicImage,
)
from kafkalite.coordination.leader_epochs import EpochRenewal
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.nodes import Placer
from kafkalite.coordination.placement import (
    NO_LIMITS,
    NO_SIZES,
    PartitionMove,
    PartitionSizes,
    PlacementLimits,
)
from kafkalite.coordination.producer_ids import ProducerIdBlock, ProducerIds
from kafkalite.coordination.replication import commit_rules_change, leadership
from kafkalite.coordination.replication.election import ElectionType
from kafkalite.coordination.replication.partition_change import RulesOf
from kafkalite.coordination.topics import NewTopic, PartitionGrowth, TopicDefaults
from kafkalite.errors import (
    InconsistentClusterId,
    KafkaError,
)
from kafkalite.protocol.schemas.internal import (
    CLUSTER,
    PRODUCER_IDS_BLOCK,
    REMOVE_TOPIC,
    TOPIC,
    TypedRecord,
)

DEFAULT_SETTINGS = Settings.broker()


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
        racks: nodes.Racks,
        *,
        sizes: PartitionSizes = NO_SIZES,
        limits: PlacementLimits = NO_LIMITS,
        log_directories: Mapping[int, str] = nodes.NO_DIRECTORIES,
        is_first_start: bool = False,
    ) -> DecisionResult[None]:
        """Have exactly these nodes at start, and give every partition a leader among them."""
        return nodes.register(
            self.image, addresses, racks, sizes, limits,
            log_directories=log_directories, is_first_start=is_first_start,
        )  # fmt: skip

    def set_node_address(
        self, node_id: int, host: str, port: int, rack: str | None, log_directory: str = ""
    ) -> DecisionResult[None]:
        """Set a node's listener address and log directory."""
        return nodes.set_address(self.image, node_id, host, port, rack, log_directory)

    def set_racks(self, racks: nodes.Racks) -> DecisionResult[None]:
        """Set the racks of all nodes."""
        return nodes.set_racks(self.image, racks)

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

    def elect_leaders(
        self, kind: ElectionType, wanted: Mapping[str, Sequence[int]], rules_of: RulesOf
    ) -> DecisionResult[list[leadership.ElectionOutcome]]:
        """Elect leaders of partitions at a client's request; return an outcome for each."""
        return leadership.elect_leaders(self.image, kind, wanted, rules_of)

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
        decided = topics.create(
            self.image,
            wanted,
            topic_ids,
            defaults,
            Placer.over(self.image, sizes, limits),
            metric_names=self._metric_names,
            created_count=created_count,
        )
        return DecisionResult(decided.response, [] if validate_only else decided.records)

    def create_internal_topic(
        self,
        name: str,
        topic_id: bytes,
        partition_count: int,
        config: Mapping[str, str],
        factor: int = 1,
    ) -> DecisionResult[None]:
        """Create a coordinator's topic, led by the supervisor, unless it exists."""
        return topics.create_internal(self.image, name, topic_id, partition_count, config, factor)

    def delete_topics(
        self, names: Mapping[bytes, str]
    ) -> DecisionResult[dict[str, None | KafkaError]]:
        """Delete topics, given by id with their names, and their dedicated nodes."""
        return topics.delete(self.image, names)

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
        decided = topics.create_partitions(self.image, wanted, placer, created_count=created_count)
        return DecisionResult(decided.response, [] if validate_only else decided.records)

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
        records += commit_rules_change.records(self.image, records, settings)
        return DecisionResult(results, [] if validate_only else records)
