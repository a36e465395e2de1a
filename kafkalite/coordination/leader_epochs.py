"""Leader epochs of logs that may have lost records (KIP-320).

    power cut at log end offset 100, of which 60 are on the disk
        same epoch   a consumer at 100 waits there, and never reads the new records 60 to 99
        next epoch   it requests the end offset of its epoch, gets 60, and resets by its policy

A node that opens a log after an unclean shutdown in a previous boot of the machine requests the
next leader epoch before it leads the partition, so every record appended since has the new epoch.
It repeats the request until its image has the new epoch; the epoch in the request distinguishes a
repetition from another loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalite.coordination.image import ClusterImage, change_records
from kafkalite.coordination.machine import DecisionResult
from kafkalite.protocol.schemas.internal import TypedRecord


class EpochRenewal(NamedTuple):
    """A partition whose log may have lost records of this epoch."""

    topic_id: bytes
    partition: int
    leader_epoch: int


def renew(
    image: ClusterImage, node_id: int, wanted: Sequence[EpochRenewal]
) -> DecisionResult[list[EpochRenewal]]:
    """Increase the leader epoch of partitions that still have this leader and this epoch."""
    granted: list[EpochRenewal] = []
    records: list[TypedRecord] = []
    for renewal in dict.fromkeys(wanted):
        topic = image.topics_by_id.get(renewal.topic_id)
        partition = topic.partitions.get(renewal.partition) if topic is not None else None
        if (
            topic is not None
            and partition is not None
            and (partition.leader, partition.leader_epoch) == (node_id, renewal.leader_epoch)
        ):
            granted.append(renewal)
            records += change_records(topic, {renewal.partition: partition.in_next_epoch()})
    return DecisionResult(granted, records)

