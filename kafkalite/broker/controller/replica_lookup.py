"""ReplicaLookup: the replicas of partitions, read from the metadata log's files when first asked.

For the check of a data directory before any node runs.  It reads the log only if a partition's
directory was found at two nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.broker.controller.metadata_reader import MetadataReader
from kafkalite.coordination.controller import Controller
from kafkalite.ids import METADATA_TOPIC
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK, Disk

if TYPE_CHECKING:
    from kafkalite.coordination.image import ClusterImage
    from kafkalite.storage.state.partition_metadata import TopicIdPartition


class ReplicaLookup:
    """The replicas of the partitions in a data directory."""

    def __init__(self, data: Path, disk: Disk = DISK) -> None:
        self._data = data
        self._disk = disk
        self._image: ClusterImage | None = None

    def __call__(self, identity: TopicIdPartition) -> Collection[int]:
        """Return the nodes that are replicas of a partition, none if it is in no topic; raise
        Refusal if the metadata log cannot be read."""
        if self._image is None:
            controller = Controller()  # the log also has producer ids, which no image has
            directory = self._data / layout.directory_name(METADATA_TOPIC, 0)
            MetadataReader(directory, self._disk).load(controller.replay)
            self._image = controller.image
        return self._image.replicas_of(*identity)
