"""Changes of configs that leaders commit by: what follows for partitions with several replicas.

A replica in the ELR has every committed record because the leader commits nothing while the ISR is
smaller than the minimum.  With a lower minimum it does, so the ELR is cleared in the same batch of
records as the config changes, as in Kafka.

Records may be flushed on fewer replicas from then on, so the number of flushed copies that a
recovery election counts with becomes 1 in the batch, too.  The leader reports that there are more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.config.topic import DURABILITY, DURABLE_COPIES, MIN_INSYNC_REPLICAS
from kafkalite.coordination.image import ClusterImage, TopicImage, change_records
from kafkalite.coordination.replication.partition_change import (
    PartitionRules,
    with_one_flushed_copy,
    without_eligible,
)
from kafkalite.protocol.schemas.internal import CONFIG, TypedRecord

KEYS = frozenset({MIN_INSYNC_REPLICAS.name, DURABLE_COPIES.name, DURABILITY.name})


def records(
    image: ClusterImage, changes: Iterable[TypedRecord], settings: Settings
) -> Sequence[TypedRecord]:
    """Return the changes of partitions that follow from these CONFIG records."""
    keys: dict[str, set[str]] = {}
    for record in changes:
        fields = record.fields
        if record.kind is not CONFIG or fields["name"] not in KEYS:
            continue
        is_topic = fields["resource_type"] == Resource.TOPIC
        for name in [fields["resource_name"]] if is_topic else image.topics:
            keys.setdefault(name, set()).add(fields["name"])
    return [
        record
        for name, changed in keys.items()
        for record in _of_topic(image.topics[name], settings, changed)
    ]


def _of_topic(topic: TopicImage, settings: Settings, keys: set[str]) -> Iterator[TypedRecord]:
    affected = {
        index: partition
        for index, partition in topic.partitions.items()
        if partition.elr or partition.last_known_elr or partition.flushed_copies > 1
    }
    if not affected:
        return
    rules = PartitionRules.of(settings.for_topic(topic.config))
    for index, partition in affected.items():
        changed = partition
        if MIN_INSYNC_REPLICAS.name in keys:
            changed = without_eligible(changed, rules)
        changed = with_one_flushed_copy(changed)
        if changed is not partition:
            changed = changed._replace(partition_epoch=partition.partition_epoch + 1)
            yield from change_records(topic, {index: changed})
