"""CompactionDemand: reports once that a topic is compacted, so that the log cleaner is started.

On the controller's node.  A broker without a compacted topic has no cleaner process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.config.topic import CLEANUP_POLICY, COMPACT
from kafkalite.coordination.image import TopicImage
from kafkalite.protocol.schemas.internal import CONFIG, TOPIC, TypedRecord


class CompactionDemand:
    """Calls `demand()` once the image has a compacted topic that is not internal; see the module.

    `settings` returns the node's effective settings, with the default of cleanup.policy.
    """

    def __init__(
        self,
        controller: LocalController,
        settings: Callable[[], Settings],
        demand: Callable[[], object],
    ) -> None:
        self._controller = controller
        self._settings = settings
        self._demand = demand
        self._is_demanded = False
        self._check(controller.image.topics.values())
        controller.on_change(self._changed)

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


def _topic_of(record: TypedRecord) -> str:
    """Return the name of the topic that a record creates or configures; empty if none."""
    fields = record.fields
    if record.kind is TOPIC:
        return str(fields["name"])
    return str(fields["resource_name"]) if fields["resource_type"] == Resource.TOPIC else ""


def is_compacted(topic: TopicImage, default: tuple[str, ...]) -> bool:
    """Return whether the log cleaner compacts a topic, given the broker's cleanup.policy."""
    text = topic.config.get(CLEANUP_POLICY.name)
    policy = default if text is None else CLEANUP_POLICY.parse(text)
    return COMPACT in policy and not topic.internal
