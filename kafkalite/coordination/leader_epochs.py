"""Leader epochs of logs that may have lost their tail (KIP-320).

    power cut at log end 100, of which 60 are on the disk
        the same epoch   a consumer at 100 waits there, and never sees the new records 60 to 99
        the next epoch   it asks where its epoch ended, learns 60, and resets as it was told to

A node that opened a log after an unclean end in another boot of the machine asks for the next epoch
before it leads the partition, so every record appended since bears it.  It asks again until its
image says so; the epoch it names tells a repetition from another loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalite.coordination.image import ClusterImage, PartitionImage, partition_records
from kafkalite.coordination.machine import Result
from kafkalite.protocol.schemas.internal import Record


class EpochRenewal(NamedTuple):
    """A partition whose log may have lost records of this epoch."""

    topic_id: bytes
    partition: int
    leader_epoch: int


def renew(
    image: ClusterImage, node_id: int, wanted: Sequence[EpochRenewal]
) -> Result[list[EpochRenewal]]:
    """Give these partitions the next epoch under the node that leads them: those that still have
    the epoch named, and that leader."""
    granted: list[EpochRenewal] = []
    records: list[Record] = []
    for renewal in dict.fromkeys(wanted):
        topic = image.topics_by_id.get(renewal.topic_id)
        partition = topic.partitions.get(renewal.partition) if topic is not None else None
        if (
            topic is not None
            and partition is not None
            and (partition.leader, partition.leader_epoch) == (node_id, renewal.leader_epoch)
        ):
            granted.append(renewal)
            records += partition_records(
                topic.topic_id, {renewal.partition: _in_next_epoch(partition)}
            )
    return Result(granted, records)


def _in_next_epoch(partition: PartitionImage) -> PartitionImage:
    return partition._replace(leader_epoch=partition.leader_epoch + 1)
