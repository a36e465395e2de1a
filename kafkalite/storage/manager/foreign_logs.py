"""ForeignLogs: directories of logs in a node's directory that belong to another node.

    before any log is opened    logs that the image assigns to other nodes are transferred
    while the node runs         logs that were transferred here under an older image are sent on

A log that cannot be transferred yet is not opened; the transfer is retried until it succeeds or the
log belongs here.
"""

from __future__ import annotations

import logging
from pathlib import Path

from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.manager import node_directories, partition_transfer
from kafkalite.storage.manager.recovery_points import RecoveryPoints
from kafkalite.storage.state.partition_metadata import TopicIdPartition

log = logging.getLogger("kafkalite.storage")


class ForeignLogs:
    """Logs in one node's directory that belong to other nodes."""

    def __init__(self, data: Path, points: RecoveryPoints, disk: Disk) -> None:
        self._data = data
        self._points = points
        self._disk = disk
        self.paths: dict[Path, TopicIdPartition] = {}
        """Directories that belong elsewhere, or have arrived and were not taken up."""
        self._directory_of: node_directories.DirectoryOf = lambda *_: None
        self._is_image_current = True
        self._logged: set[Path] = set()
        self._listed_ns = 0

    def transfer_at_start(
        self, directory_of: node_directories.DirectoryOf, *, is_image_current: bool
    ) -> None:
        """Find the logs that belong elsewhere, and transfer them.

        Unless the image is current, nothing is transferred until `allow_transfers`: the node that
        sent a log here may have a newer image.
        """
        self._directory_of = directory_of
        self._is_image_current = is_image_current
        self.paths = {
            path: identity
            for path, identity in node_directories.logs_in(self._data)
            if self.is_elsewhere(identity) or partition_transfer.has_arrived(path)
        }
        self._transfer_all()

    def allow_transfers(self) -> None:
        """Transfer the logs of other nodes: the image is the supervisor's."""
        self._is_image_current = True
        self._transfer_all()

    def is_elsewhere(self, identity: TopicIdPartition) -> bool:
        """Return whether the log belongs to another node."""
        return self._target(identity) is not None

    def remove(self, directory: Path) -> None:
        """Remove a directory whose log is opened here or deleted."""
        self.paths.pop(directory, None)
        if partition_transfer.has_arrived(directory):
            self._points.set_pending(directory.name, False)

    def check(self) -> None:
        """Find logs that have arrived, and transfer those that belong elsewhere."""
        try:
            changed_ns = self._data.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                self.paths.update(partition_transfer.arrived_in(self._data))
        except OSError as error:
            if self._data not in self._logged:
                log.error(
                    "Node directory cannot be listed; retrying. path=%s error=%r",
                    self._data, error.strerror,
                )  # fmt: skip
                self._logged.add(self._data)
            return
        self._logged.discard(self._data)
        self._listed_ns = changed_ns
        self._transfer_all()

    def _target(self, identity: TopicIdPartition) -> Path | None:
        """Return the other node's directory that a log belongs in, or None."""
        directory = self._directory_of(*identity)
        return directory if directory != self._data else None

    def _send(self, path: Path, identity: TopicIdPartition, target_directory: Path) -> None:
        """Transfer a log, or set it aside if it is a replica that was removed."""
        if node_directories.is_removed_replica(self._points, path, identity, target_directory):
            partition_transfer.set_aside(self._disk, path, identity)
            self._points.remove(path.name)
            return
        known = self._points.known_state(path, identity.topic_id)
        partition_transfer.send(self._disk, path, identity, known, target_directory)

    def _transfer_all(self) -> None:
        if not self._is_image_current:
            return
        for path, identity in list(self.paths.items()):
            target_directory = self._target(identity)
            if target_directory is None:
                if path.exists() and partition_transfer.has_arrived(path):
                    continue  # not taken up yet
            elif path.exists():
                try:
                    self._send(path, identity, target_directory)
                except (OSError, KafkaStorageError) as error:
                    if path not in self._logged:
                        log.error(
                            "Log of another node cannot be transferred yet; retrying."
                            " path=%s error=%r", path, str(error),
                        )  # fmt: skip
                        self._logged.add(path)
                    continue
            self._logged.discard(path)
            del self.paths[path]
            if target_directory is not None:
                self._points.set_pending(path.name, False)  # it was transferred
