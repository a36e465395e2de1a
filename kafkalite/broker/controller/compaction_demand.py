"""CompactionDemand: requests the start of the log cleaner when there is a topic to compact.

Runs on the controller's node, which also leads the internal topics.  Those are compacted, too, but
do not need the cleaner while they are small: it is started when one of them has a closed segment,
or with the first other compacted topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.config.topic import CLEANUP_POLICY, COMPACT
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.protocol.schemas.internal import CONFIG, TOPIC, TypedRecord

if TYPE_CHECKING:
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.transport.reactor import Reactor

CHECK_MS = 1_000
"""Interval of checks for an internal topic with a closed segment."""


class CompactionDemand:
    """Calls `demand()` once, when there is a topic to compact; see the module.

    `settings` returns the node's effective settings, with the default of cleanup.policy.
    """

    def __init__(
        self,
        controller: LocalController,
        settings: Callable[[], Settings],
        replicas: ReplicaManager,
        reactor: Reactor,
        demand: Callable[[], object],
    ) -> None:
        self._controller = controller
        self._settings = settings
        self._replicas = replicas
        self._reactor = reactor
        self._demand = demand
        self._is_demanded = False
        self._check(controller.image.topics.values())
        controller.on_change(self._changed)
        self._check_internal()

    def _changed(self, records: Sequence[TypedRecord], end_offset: int) -> None:
        if self._is_demanded:
            return
        topics = self._controller.image.topics
        changed = [
            topics[name]
            for record in records
            if record.kind in (CONFIG, TOPIC) and (name := _topic_of(record)) in topics
        ]
        if COMPACT in self._settings()[CLEANUP_POLICY]:
            self._check(topics.values())
        else:
            self._check(changed)

    def _check(self, topics: Iterable[TopicImage]) -> None:
        default = self._settings()[CLEANUP_POLICY]
        if not self._is_demanded and any(is_compacted(topic, default) for topic in topics):
            self._is_demanded = True
            self._demand()

    def _check_internal(self) -> None:
        if self._is_demanded:
            return
        led = [self._replicas.of_topic(name) for name in INTERNAL_TOPICS]
        if any(each.needs_cleaner for partitions in led for each in partitions.values()):
            self._is_demanded = True
            self._demand()
        else:
            self._reactor.call_later(CHECK_MS, self._check_internal)


def _topic_of(record: TypedRecord) -> str:
    """Return the name of the topic that a record creates or configures; empty if none."""
    fields = record.fields
    if record.kind is TOPIC:
        return str(fields["name"])
    return str(fields["resource_name"]) if fields["resource_type"] == Resource.TOPIC else ""


def is_compacted(topic: TopicImage, default: tuple[str, ...]) -> bool:
    """Return whether a topic is compacted and not internal, given the broker's cleanup.policy."""
    text = topic.config.get(CLEANUP_POLICY.name)
    policy = default if text is None else CLEANUP_POLICY.parse(text)
    return COMPACT in policy and not topic.internal
