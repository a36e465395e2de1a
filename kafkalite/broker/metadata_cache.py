"""MetadataCache: the cluster metadata of this node, as handlers and replica manager read it.

It looks up topics and leaders in the ClusterImage, and knows the settings of topics and the
addresses at which clients reach the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.internal_topics import internal_config, with_minimum_in_sync
from kafkalite.broker.node_settings import NodeSettings
from kafkalite.config.broker import ADVERTISED_LISTENERS
from kafkalite.config.listener import parse_listener
from kafkalite.config.settings import Settings
from kafkalite.config.topic import CLEANUP_POLICY, COMPACT
from kafkalite.coordination.image import SUPERVISOR_ID, ClusterImage, NodeImage, TopicImage
from kafkalite.coordination.topic_names import SHARE_GROUP_STATE

Topic = str | bytes
"""A topic as in a request: its name, or its id of 16 bytes."""


OVERRIDES_MAX = 1_000
"""Maximum number of topic configurations that are cached with their settings."""


class ImageSource(Protocol):
    """The controller on this node or its replica of the metadata log."""

    @property
    def image(self) -> ClusterImage:
        """The current cluster image."""


class MetadataCache:
    """The cluster metadata of one node; see the module."""

    def __init__(self, source: ImageSource, settings: NodeSettings, node_id: int) -> None:
        self.node_id = node_id
        self._source = source
        self._settings = settings
        self._topic_settings: dict[tuple[tuple[str, str], ...], Settings] = {}
        """Settings of topics, by their overrides."""
        self._topic_settings_base: Settings | None = None
        """The node's settings that those are derived from."""

    @property
    def image(self) -> ClusterImage:
        """The cluster image of this node."""
        return self._source.image

    def topic(self, topic: Topic) -> TopicImage | None:
        """Return a topic by name or by id, or None."""
        image = self._source.image
        return image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether a topic is known to be deleted, as opposed to unknown."""
        return topic_id in self._source.image.deleted

    def settings_of(self, overrides: Mapping[str, str]) -> Settings:
        """Return the settings of a topic.

        Topics with the same overrides share one object until the node's settings change.
        """
        base = self._settings.current
        if self._topic_settings_base is not base or len(self._topic_settings) >= OVERRIDES_MAX:
            self._topic_settings_base = base
            self._topic_settings = {}
        key = tuple(overrides.items())
        settings = self._topic_settings.get(key)
        if settings is None:
            settings = self._topic_settings[key] = base.for_topic(dict(overrides))
        return settings

    def config_of(self, topic: TopicImage) -> Mapping[str, str]:
        """Return the config of a topic.

        A key that an internal topic lacks has the value with which the topic would be created.
        """
        if not topic.internal:
            return topic.config
        config = internal_config(topic.name, self._settings.current) | topic.config
        return with_minimum_in_sync(config, topic.replication_factor)

    def log_settings_of(self, topic: TopicImage) -> Settings:
        """Return the settings of a topic's logs.

        The logs of an internal topic are compacted, whatever the broker's default is.  Those of
        __share_group_state are not, and have no retention: the share coordinator prunes them.
        """
        config: Mapping[str, str] = topic.config
        if topic.internal:
            # The minimum of in-sync replicas is bounded by each partition's number of replicas.
            config = {**internal_config(topic.name, self._settings.current), **config}
            policy = "" if topic.name == SHARE_GROUP_STATE else COMPACT
            return self.settings_of({**config, CLEANUP_POLICY.name: policy})
        return self.settings_of(config)

    def leader_of(self, topic: Topic, index: int) -> tuple[int, int] | None:
        """Return the leader and leader epoch of a partition, for a stale client (KIP-951)."""
        found = self.topic(topic)
        partition = found.partitions.get(index) if found is not None else None
        return (partition.leader, partition.leader_epoch) if partition is not None else None

    def advertised(self, client: ClientContext, node: NodeImage) -> tuple[str, int]:
        """Return the host and port of a node for metadata responses to this client.

        The host is the one to which the client connected, unless `advertised.listeners` is set.
        Advertised ports have the same distance from each other as the ports listened on.
        """
        listeners = self._settings.current[ADVERTISED_LISTENERS]
        if listeners:
            listener = parse_listener(listeners[0])
            first = self._source.image.nodes.get(SUPERVISOR_ID)
            distance = node.port - first.port if first is not None else 0
            return listener.host, listener.port + distance
        return client.local[0], node.port

    def endpoints(
        self, client: ClientContext, leaders: Iterable[tuple[int, int] | None]
    ) -> list[tuple[int, str, int, str | None]]:
        """Return `(id, host, port, rack)` of these leaders, which spares a metadata refresh."""
        nodes = self._source.image.nodes
        ids = dict.fromkeys(leader[0] for leader in leaders if leader is not None)
        known = [nodes[node_id] for node_id in ids if node_id in nodes]
        return [
            (node.node_id, *self.advertised(client, node), node.rack) for node in known if node.port
        ]
