"""Controllers for tests: settled, with topics, and called as by their host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.topics import NewTopic, PartitionGrowth, TopicDefaults

DEDICATED = {"worker.dedicated": "true"}

fresh = count(1)


def topic_id() -> bytes:
    return next(fresh).to_bytes(16, "big")


def do(controller: Controller, result: Any) -> Any:
    """Replay a decision's records, as its host does, and return its response."""
    for record in result.records:
        controller.replay(record)
    return result.response


def addresses(workers: int) -> dict[int, tuple[str, int]]:
    return {node_id: ("localhost", 9092 + node_id) for node_id in range(workers + 1)}


def settle(controller: Controller, workers: int, **options: Any) -> None:
    do(controller, controller.register_nodes(addresses(workers), {}, **options))


def cluster_of(workers: int) -> Controller:
    controller = Controller()
    do(controller, controller.set_cluster_id("a-cluster"))
    settle(controller, workers)
    return controller


def create(controller: Controller, *wanted: NewTopic, **options: Any) -> dict[str, Any]:
    ids = [topic_id() for _ in wanted]
    options.setdefault("defaults", TopicDefaults(1, 1))
    return do(controller, controller.create_topics(wanted, ids, **options))


def grow(controller: Controller, *wanted: PartitionGrowth, **options: Any) -> dict[str, Any]:
    return do(controller, controller.create_partitions(wanted, **options))


def laid_out(controller: Controller, name: str, leaders: Sequence[int]) -> TopicImage:
    """Create a topic with these partition leaders."""
    assigned = [(index, [leader]) for index, leader in enumerate(leaders)]
    topic = create(controller, NewTopic(name, assignments=assigned))[name]
    assert isinstance(topic, TopicImage), topic
    return topic


def leaders_of(controller: Controller, name: str) -> list[int]:
    partitions = controller.image.topics[name].partitions
    return [partition.leader for partition in partitions.values()]


def epochs_of(controller: Controller, name: str) -> list[int]:
    partitions = controller.image.topics[name].partitions
    return [partition.leader_epoch for partition in partitions.values()]
