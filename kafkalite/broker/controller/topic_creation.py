"""Topic creation: topics that clients create, and the internal topics of the coordinators.

The functions run on the controller's node and use that node's settings as defaults and limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kafkalite.broker.controller.decisions import DecisionSequence
from kafkalite.broker.internal_topics import (
    INTERNAL_TOPICS,
    internal_config,
    with_minimum_in_sync,
)
from kafkalite.broker.node_settings import placement_limits
from kafkalite.config.broker import DEFAULT_REPLICATION_FACTOR, NUM_PARTITIONS
from kafkalite.config.topic import MIN_INSYNC_REPLICAS
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.topics import NewTopic, TopicDefaults
from kafkalite.errors import KafkaError
from kafkalite.ids import new_id

if TYPE_CHECKING:
    from kafkalite.broker.controller.decisions import DecisionMaker
    from kafkalite.broker.future import Future
    from kafkalite.config.settings import Settings


def create_topics(
    controller: DecisionMaker,
    settings: Settings,
    wanted: Sequence[NewTopic],
    *,
    validate_only: bool = False,
    on_created: Callable[[Mapping[str, TopicImage | KafkaError]], object] = lambda _: None,
) -> Future[dict[str, TopicImage | KafkaError]]:
    """Create topics with new ids; return a topic or an error by name.

    `on_created` is called with the results of each decision.

    Left out: with `validate_only`, two names of one request that collide as metric names are found
    only within one decision.
    """
    defaults = TopicDefaults(settings[NUM_PARTITIONS], settings[DEFAULT_REPLICATION_FACTOR])
    created_count = 0

    def decide(
        machine: Controller, some: Sequence[NewTopic]
    ) -> DecisionResult[dict[str, TopicImage | KafkaError]]:
        nonlocal created_count
        decided = machine.create_topics(
            some,
            [new_id() for _ in some],
            defaults,
            limits=placement_limits(settings),
            validate_only=validate_only,
            created_count=created_count,
        )
        topics = [topic for topic in decided.response.values() if isinstance(topic, TopicImage)]
        created_count += sum(len(topic.partitions) for topic in topics)
        return decided

    return DecisionSequence(
        controller,
        wanted,
        decide,
        name_of=lambda new: new.name,
        weigh=lambda new: 1 + len(new.config),
        on_decided=on_created,
    ).begin()


def create_internal_topic(controller: DecisionMaker, settings: Settings, name: str) -> Future[None]:
    """Create a coordinator's topic, unless it exists."""
    topic = INTERNAL_TOPICS[name]
    topic_id = new_id()

    def decide(machine: Controller) -> DecisionResult[None]:
        # Each replica is on another node: there are fewer if there are fewer nodes.
        factor = min(settings[topic.replication_factor], len(machine.image.internal_nodes))
        config = with_minimum_in_sync(internal_config(name, settings), factor)
        if factor == 1:
            del config[MIN_INSYNC_REPLICAS.name]
        return machine.create_internal_topic(
            name, topic_id, settings[topic.partition_count], config, factor
        )

    return controller.execute(decide)
