"""Changes of min.insync.replicas: what follows for partitions with eligible leader replicas.

A replica in the ELR has every committed record because the leader commits nothing while the ISR is
smaller than the minimum.  With a lower minimum it does, so the ELR is cleared in the same batch of
records as the config changes, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.config.topic import MIN_INSYNC_REPLICAS
from kafkalite.coordination.image import ClusterImage, TopicImage, change_records
from kafkalite.coordination.replication.partition_change import PartitionRules, without_eligible
from kafkalite.protocol.schemas.internal import CONFIG, TypedRecord


def records(
    image: ClusterImage, changes: Iterable[TypedRecord], settings: Settings
) -> Sequence[TypedRecord]:
    """Return the changes of partitions that follow from these CONFIG records."""
    return [record for topic in _topics(image, changes) for record in _of_topic(topic, settings)]


def _topics(image: ClusterImage, changes: Iterable[TypedRecord]) -> Iterable[TopicImage]:
    """Return the topics whose min.insync.replicas may change."""
    names: dict[str, None] = {}
    for record in changes:
        fields = record.fields
        if record.kind is not CONFIG or fields["name"] != MIN_INSYNC_REPLICAS.name:
            continue
        if fields["resource_type"] == Resource.TOPIC:
            names[fields["resource_name"]] = None
        else:
            names |= dict.fromkeys(image.topics)
    return [image.topics[name] for name in names]


def _of_topic(topic: TopicImage, settings: Settings) -> Iterator[TypedRecord]:
    affected = {
        index: partition
        for index, partition in topic.partitions.items()
        if partition.elr or partition.last_known_elr
    }
    if not affected:
        return
    rules = PartitionRules.of(settings.for_topic(topic.config))
    changed = {index: without_eligible(each, rules) for index, each in affected.items()}
    yield from change_records(
        topic, {index: after for index, after in changed.items() if after is not affected[index]}
    )
