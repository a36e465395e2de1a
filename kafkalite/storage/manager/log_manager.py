"""LogManager: the logs of one node, from start to shutdown.

    data/  (a worker's: data/nodes/1/)
      .lock  meta.properties                        log_directory.py
      recovery-checkpoint  clean-shutdown           recovery_points.py
      replication-offset-checkpoint                 high_watermarks.py
      write-failed                                  a flush failed: the page cache may differ from
                                                    the disk
      __cluster_metadata-0/  flights-0/  …          one directory per log (layout.py)
      flights-1.6d0c…-delete/  -stray/              deferred delete; in no topic, kept
      flights-2.7b1c…-arrived/                      from another node (partition_transfer.py)

After a clean shutdown no log is scanned; otherwise each is recovered from its recovery point,
several in parallel.

Deleting a log renames its directory first, so that a crash never brings back half of a topic.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kafkalite.clock import Clock
from kafkalite.config.broker import (
    NUM_RECOVERY_THREADS_PER_DATA_DIR,
    STORAGE_MIN_FREE_BYTES,
)
from kafkalite.config.replication import REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS
from kafkalite.config.settings import Settings
from kafkalite.config.topic import FILE_DELETE_DELAY_MS
from kafkalite.errors import KafkaStorageError, Refusal
from kafkalite.ids import METADATA_ID, METADATA_TOPIC, NO_ID
from kafkalite.storage.compaction.cleaner_checkpoint import CleanerCheckpoint
from kafkalite.storage.files import layout
from kafkalite.storage.files.directory_flush import DirectoryFlush
from kafkalite.storage.files.disk import (
    DISK,
    FAILURE_MARK,
    Disk,
    DiskFailed,
    FreeSpace,
    failed,
    put_file,
    remove_tree,
    write_file,
)
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.files.flusher import Flusher, flush_all
from kafkalite.storage.files.open_segments import OpenSegments
from kafkalite.storage.files.write_back import flush_directory, write_back_failed
from kafkalite.storage.log.log import Log, OpenOptions
from kafkalite.storage.log.log_ends import ReplicaLogEndReport, log_ends
from kafkalite.storage.log.log_flushes import LogFlush
from kafkalite.storage.manager import node_directories, partition_transfer
from kafkalite.storage.manager.foreign_logs import ForeignLogs
from kafkalite.storage.manager.high_watermarks import HighWatermarks
from kafkalite.storage.manager.housekeeping import Housekeeping
from kafkalite.storage.manager.log_directory import open_node_directory
from kafkalite.storage.manager.log_loader import LogKey, LogLoader
from kafkalite.storage.manager.recovery_points import (
    NEVER_REPLICATED,
    IsReplicated,
    RecoveryPoints,
)
from kafkalite.storage.state.known_state import KnownEnd, KnownLogState
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import (
    TopicIdPartition,
    metadata_text,
    read_topic_id,
)

log = logging.getLogger("kafkalite.storage")

MIN_FREE_MAX = 1 << 30
MIN_FREE_SHARE = 20
"""Default of storage.min.free.bytes: a twentieth of the disk, at most this much."""

FINISHED_TOGETHER_MAX = 16
"""Number of logs flushed together at shutdown; each may need three more descriptors."""

FOREIGN_CHECK_MS = 1_000
"""Interval of checks for logs that belong to another node."""


class LogManager:
    """The logs of one node."""

    def __init__(self, data: Path, settings: Settings, clock: Clock, disk: Disk = DISK) -> None:
        self.root = Path(data)
        self.data = self.root
        """The node's directory, once it is open."""
        self.cluster_id = ""
        self.flusher: Flusher | None = None
        """Set by the node; runs the flushes that no request waits for."""
        self._settings = settings
        self._clock = clock
        self._disk = disk
        self._logs: dict[LogKey, Log] = {}
        self._space: FreeSpace | None = None
        self._directory_of: node_directories.DirectoryOf = lambda *_: None

    @property
    def logs(self) -> dict[LogKey, Log]:
        """The open logs, including the metadata log."""
        return self._logs

    def disk_size(self) -> tuple[int, int]:
        """Return the size of the disk that holds the logs, and its free space, in bytes."""
        found = os.statvfs(self.data)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    @property
    def own_directory(self) -> Path:
        """The node's directory itself: `data` may be a link to it."""
        return layout.own_directory(self.data)

    @property
    def ran_in_this_boot(self) -> bool:
        """True if the node's last run was in this boot of the host, so no write was lost."""
        return self._points.was_of_this_boot

    # -- starting ----------------------------------------------------------------------------

    def open_directory(self, cluster_id: str, node_id: int) -> None:
        """Open this node's directory in a data directory that is locked (LogDirectory), and read
        how its last run ended; raise Refusal if it cannot be used."""
        self.cluster_id = cluster_id
        self.data = open_node_directory(self._disk, self.root, cluster_id, node_id)
        self.file_system = FileSystem(self.data, self._disk)
        self._space = FreeSpace(self.data, self._min_free(), self._disk)
        self._points = RecoveryPoints(self.root, self.data, self._disk)
        self._points.consume_clean_shutdown()
        self._foreign_logs = ForeignLogs(self.data, self._points, self._disk)
        self._directory_flush = DirectoryFlush(self.data)
        self._housekeeping = Housekeeping(
            self._logs, self._points, self._settings, self._clock, self._disk
        )
        environment = LogEnvironment(
            self._clock,
            self._disk,
            self._space,
            self._housekeeping.deferred_deletes,
            OpenSegments(),
            self._checkpoint_lowered,
        )
        self._cleaner_checkpoint = CleanerCheckpoint(self.data, self._disk)
        self.high_watermarks = HighWatermarks(
            self.data, self._disk, self._logs,
            self._settings[REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS],
        )  # fmt: skip
        self._loader = LogLoader(
            self.data, self.file_system, self._points, self._cleaner_checkpoint,
            self.high_watermarks, environment,
        )  # fmt: skip

    def reconfigure(self, settings: Settings) -> None:
        """Apply the node's new settings; each log gets its topic's from its partition."""
        assert self._space is not None, "the directory is opened first"
        self._settings = settings
        self._space.kept_free = self._min_free()
        self._space.measure()
        self._housekeeping.reconfigure(settings)

    def _min_free(self) -> int:
        wanted = self._settings[STORAGE_MIN_FREE_BYTES]
        if wanted >= 0:
            return wanted
        return min(MIN_FREE_MAX, self.disk_size()[0] // MIN_FREE_SHARE)

    def open_metadata(self) -> Log:
        """Open the metadata log, whose appends are always flushed, or make it."""
        key = (METADATA_TOPIC, 0)
        if key not in self._logs:
            directory = self.data / layout.directory_name(*key)
            is_new = not directory.exists()
            if is_new:
                if self._points.has_earlier_logs:
                    raise Refusal(
                        f"The metadata log {directory.name} is missing in {self.data}, which has"
                        " logs of topics.  Restore it from a copy, or start with another --data."
                    )
                self._make(directory, METADATA_ID)
            identity = TopicIdPartition(*key, METADATA_ID if is_new else read_topic_id(directory))
            config = LogConfig.of(self._settings, is_metadata_log=True)
            self._logs[key] = self._loader.open(
                directory, identity, config, OpenOptions(is_new=is_new)
            )
        return self._logs[key]

    def transfer_foreign_logs(
        self,
        directory_of: node_directories.DirectoryOf,
        *,
        is_image_current: bool = True,
        is_replicated: IsReplicated = NEVER_REPLICATED,
    ) -> None:
        """Before any log is opened, transfer those that the image assigns to other nodes, if the
        image is current (`is_image_current`); see ForeignLogs.

        `is_replicated` returns whether a partition has several replicas.
        """
        self._directory_of = directory_of
        self._points.is_replicated = is_replicated
        self._foreign_logs.transfer_at_start(directory_of, is_image_current=is_image_current)

    def load(self, settings_of: Callable[[str], Settings]) -> dict[LogKey, Log]:
        """Open every log except the metadata log, given each topic's settings."""
        all_are_here = True
        found: dict[LogKey, tuple[Path, TopicIdPartition]] = {}
        for path, identity in node_directories.logs_in(self.data):
            if self._foreign_logs.is_elsewhere(identity):
                all_are_here = False
                self._points.set_pending(path.name, True)
                continue
            if partition_transfer.has_arrived(path):
                if identity.key in found and self._directory_of(*identity) is None:
                    # Of a deleted topic; its name is now that of another topic's log.
                    partition_transfer.set_aside(self._disk, path, identity)
                    continue
                path = partition_transfer.accept(self._disk, path, identity)
            found[identity.key] = path, identity
        for path in self.data.iterdir():
            if layout.is_set_aside(path.name, layout.DELETE_DIRECTORY):
                self._housekeeping.deferred_deletes.add(
                    [path], self._settings[FILE_DELETE_DELAY_MS]
                )
        settings = {topic: settings_of(topic) for topic, _ in found}
        threads = self._settings[NUM_RECOVERY_THREADS_PER_DATA_DIR]
        self._loader.open_all(dict(found.values()), settings, self._logs, threads=threads)
        if all_are_here:  # the transfer of the others still needs the checkpoint's points
            self._points.note_all_opened()
        self._points.note_all_known()
        if self._points.is_of_this_boot and not self._points.is_boot_id_written:
            self.checkpoint()
        return {key: found for key, found in self._logs.items() if key[0] != METADATA_TOPIC}

    # -- making and removing -----------------------------------------------------------------

    def create(self, topic: str, topic_id: bytes, partition: int, settings: Settings) -> Log:
        """Make a partition's log, empty.

        A log of another topic id in its place is set aside; one whose topic id was lost is taken as
        this topic's.
        """
        key = (topic, partition)
        directory = self.data / layout.directory_name(topic, partition)
        present = self._logs.get(key)
        if present is not None and present.topic_id == NO_ID:
            self._write_topic_id(present, topic_id)
            present.reconfigure(settings)
            return present
        try:
            if present is not None:
                self.set_stray(present)
            elif directory.exists():
                partition_transfer.set_aside(self._disk, directory, TopicIdPartition(*key, NO_ID))
                flush_directory(self._disk, self.data)
        except OSError as error:
            failed(error, f"{directory} cannot be made")
        try:
            self._make(directory, topic_id)
            made = self._loader.open(
                directory,
                TopicIdPartition(*key, topic_id),
                LogConfig.of(settings),
                OpenOptions(is_new=True),
            )
        except OSError as error:
            # A partly made log would be taken for a partition's by the next start.
            if directory.exists():
                remove_tree(self._disk, directory)
            failed(error, f"{directory} cannot be made")
        self._logs[key] = made
        if made.config.compacts:
            # Without an entry, recovery accepts missing offsets in the active segment, too.
            made.cleaner_offset = 0
            self._cleaner_checkpoint.set(*key, 0)
            self._cleaner_checkpoint.write(self.flusher)
        return made

    def _write_topic_id(self, present: Log, topic_id: bytes) -> None:
        """Write the topic id to a log whose own was lost."""
        present.topic_id = topic_id
        path = present.directory / layout.PARTITION_METADATA
        put_file(self._disk, path, metadata_text(topic_id))

    def _make(self, directory: Path, topic_id: bytes) -> None:
        # Not flushed: the first flush of records includes these files and names.
        self._remove_points(directory.name)
        if (key := layout.partition_of(directory.name)) is not None:
            self.high_watermarks.forget(key)
        self._disk.mkdir(directory)
        metadata = directory / layout.PARTITION_METADATA
        write_file(self._disk, metadata, metadata_text(topic_id))
        write_file(self._disk, directory / layout.LEADER_EPOCHS, b"")

    def delete(self, *logs: Log) -> None:
        """Close logs; their files are deleted after file.delete.delay.ms.

        The renames are not awaited: a start after a power cut finds the directories in no topic,
        and deletes them again.
        """
        for deleted in logs:
            if self._remove(deleted):
                try:
                    aside = self._set_aside(deleted, layout.DELETE_DIRECTORY)
                except OSError as error:
                    # The next start finds that it is in no topic.
                    log.error(
                        "Directory of a deleted log cannot be renamed; the next start deletes it."
                        " path=%s error=%r", deleted.directory, error.strerror,
                    )  # fmt: skip
                else:
                    self._housekeeping.deferred_deletes.add(
                        [aside], deleted.config.file_delete_delay_ms
                    )
        if self.flusher is None:
            flush_directory(self._disk, self.data)
        else:
            self._directory_flush.request(self.flusher)

    def set_stray(self, log: Log) -> None:
        """Close a log that is in no topic, and keep its files."""
        if self._remove(log):
            self._set_aside(log, layout.STRAY_DIRECTORY)
            flush_directory(self._disk, self.data)

    def note_new_epoch(self, log: Log) -> None:
        """Note that a log that may have lost its tail is led in a new epoch."""
        log.may_have_lost_tail = False
        log.producers.transactions.uncertain_below = log.end_offset
        self._points.set_pending(log.directory.name, False)
        if self._points.is_of_this_boot and not self._points.is_boot_id_written:
            self._housekeeping.checkpoint_soon()

    def log_ends(self) -> list[ReplicaLogEndReport]:
        """Return the ends of this node's replicas of partitions with several."""
        return log_ends(self._logs.values())

    def note_ends_reported(self, logs: Iterable[Log]) -> None:
        """Note that the controller has taken the ends of these replicas into account (log_ends.py).

        A replica needs no new epoch of its own after a power cut: the controller elects a leader
        by the ends.  Until then the checkpoint has no boot id, as for `note_new_epoch`.
        """
        for reported in logs:
            reported.may_have_lost_tail = reported.lost_write_back = False
            self._points.set_pending(reported.directory.name, False)
        if self._points.is_of_this_boot and not self._points.is_boot_id_written:
            self._housekeeping.checkpoint_soon()

    def close_log(self, log: Log) -> None:
        """Close a log whose topic is unknown, and leave its directory; it can be found again."""
        del self._logs[log.topic, log.partition]
        log.release()

    def set_strays(self) -> None:
        """Set aside logs that are in no topic, and those of partitions with several replicas of
        which this node is none; forget transferred ones that are in no topic, and transfer those of
        other nodes.

        Requires an image that has all topics: the logs of a topic that it lacks would be set aside,
        and made again empty once it has it.
        """
        self._foreign_logs.allow_transfers()
        for path in list(self.data.iterdir()):
            # The topic of a log that has arrived may become known later.
            if layout.partition_of(path.name) in self._logs or partition_transfer.has_arrived(path):
                continue
            identity = partition_transfer.identity_of(path)
            if identity is None or identity.topic == METADATA_TOPIC:
                continue
            if self._directory_of(*identity) is None:
                log.warning(
                    "Log belongs to no topic or is no replica any more; setting it aside as stray."
                    " path=%s", path,
                )  # fmt: skip
                partition_transfer.set_aside(self._disk, path, identity)
                self._remove_points(path.name)
        self._points.remove_deleted(
            lambda *of: self._directory_of(*of) is not None or self._points.is_replicated(*of)
        )
        flush_directory(self._disk, self.data)

    def _remove(self, log: Log) -> bool:
        key = (log.topic, log.partition)
        if self._logs.get(key) is not log:
            return False
        del self._logs[key]
        self._remove_points(log.directory.name)
        log.release()
        return True

    def _remove_points(self, name: str) -> None:
        self._points.remove(name)
        key = layout.partition_of(name)
        if key is not None:
            self._cleaner_checkpoint.remove(*key)
            self._cleaner_checkpoint.write(self.flusher)
            self.high_watermarks.remove(key)

    def _set_aside(self, log: Log, suffix: str) -> Path:
        aside = self.data / layout.set_aside(log.topic, log.partition, suffix)
        self._disk.rename(log.directory, aside)
        return aside

    # -- partition transfer ------------------------------------------------------------------

    def open_transferred(
        self, topic: str, index: int, topic_id: bytes, settings: Settings
    ) -> Log | None:
        """Return the log of a partition that another node transfers to this one, opened; None
        until it has arrived.  Raises KafkaStorageError if it cannot be opened yet."""
        identity = TopicIdPartition(topic, index, topic_id)
        present = self._logs.get(identity.key)
        if present is not None and present.topic_id == topic_id:
            return present
        directory = self.data / layout.directory_name(*identity.key)
        try:
            if present is not None and present.topic_id == NO_ID:
                self._write_topic_id(present, topic_id)
                present.reconfigure(settings)
                return present
            for of in (topic_id, NO_ID):
                arrived = self.data / layout.arrived(topic, index, of)
                if arrived.is_dir():
                    if present is not None:
                        self.set_stray(present)
                    partition_transfer.accept(self._disk, arrived, identity)
                    break
            else:
                if present is not None or not directory.is_dir():
                    return None
                if not identity.is_also(read_topic_id(directory)):
                    return None
            kept = identity._replace(topic_id=read_topic_id(directory))
            found = self._loader.open(directory, kept, LogConfig.of(settings))
            if found.topic_id == NO_ID:
                self._write_topic_id(found, topic_id)
        except OSError as error:
            failed(error, f"{directory} cannot be opened")
        self._foreign_logs.remove(directory)
        self._logs[identity.key] = found
        return found

    def discard(self, topic: str, index: int, topic_id: bytes) -> bool:
        """Delete a log that another node transfers to this one after its topic was deleted; return
        False until it has arrived.  Its name may be that of another topic's log by now."""
        arrived = self.data / layout.arrived(topic, index, topic_id)
        aside = self.data / layout.set_aside(topic, index, layout.DELETE_DIRECTORY)
        try:
            if not arrived.is_dir():
                return False
            self._disk.rename(arrived, aside)
        except OSError as error:
            failed(error, f"{arrived} cannot be renamed")
        self._foreign_logs.remove(arrived)
        self._housekeeping.deferred_deletes.add([aside], self._settings[FILE_DELETE_DELAY_MS])
        return True

    def has_lost(self, topic: str, index: int, topic_id: bytes) -> bool:
        """Return whether this node had a partition that is on no node now, or its replica of one
        with several: it is lost, not new."""
        return self._is_known(topic, index, topic_id) and not self._is_in_a_directory(
            topic, index, topic_id
        )

    def is_elsewhere(self, topic: str, index: int, topic_id: bytes) -> bool:
        """Return whether this node had a partition that is on another node: it is to arrive.  A
        replica of several never arrives."""
        return (
            not self._points.is_replicated(topic, index, topic_id)
            and self._is_known(topic, index, topic_id)
            and self._is_in_a_directory(topic, index, topic_id)
        )

    def _is_known(self, topic: str, index: int, topic_id: bytes) -> bool:
        return self._points.has_point(layout.directory_name(topic, index), topic_id)

    def _is_in_a_directory(self, topic: str, index: int, topic_id: bytes) -> bool:
        identity = TopicIdPartition(topic, index, topic_id)
        if self._points.is_replicated(*identity):
            return any(
                path.parent == self.data for path in node_directories.holders(self.root, identity)
            )
        # Checked twice: between two checks it may move from a node not checked yet to one that was.
        return bool(
            node_directories.holders(self.root, identity)
            or node_directories.holders(self.root, identity)
        )

    def transfer(self, log: Log, target_directory: Path) -> None:
        """Close a log and transfer its directory to another node; raise KafkaStorageError if it
        cannot move yet, in which case it is unchanged.

        Nothing may be appended, and a flush in flight must end first: it would write to names that
        are another node's by then.
        """
        identity = TopicIdPartition(log.topic, log.partition, log.topic_id)
        assert self._logs.get(identity.key) is log, f"{log} is not this node's"
        if self._has_failed():
            raise DiskFailed(f"{log.directory} cannot be transferred: a flush has failed")
        if log.is_flushing:
            raise KafkaStorageError(
                f"{log.directory} cannot be transferred while it is being flushed"
            )
        try:
            known = self._ended(log)
            partition_transfer.send(self._disk, log.directory, identity, known, target_directory)
        except OSError as error:
            self._points.note_handover_file(log.directory.name)
            failed(error, f"{log.directory} cannot be transferred")
        self._points.record_state(log.directory.name, log.topic_id, known)
        self._points.set_pending(log.directory.name, False)
        self._cleaner_checkpoint.remove(*identity.key)
        del self._logs[identity.key]
        log.release()

    def _ended(self, log: Log) -> KnownLogState:
        """Finish a log and return its known state."""
        end = log.finish(flushed=False)
        if end is None:
            return self._points.known_state(log.directory, log.topic_id)._replace(end=None)
        if not log.is_left_to_kernel:
            log.flush()
        end = end._replace(durable_offset=log.durable_offset)
        same_boot = not log.may_have_lost_tail
        return KnownLogState(
            log.durable_offset, log.log_start_offset, end, same_boot=same_boot,
            cleaner_offset=log.cleaner_offset, gaps_to=log.gaps_to,
        )  # fmt: skip

    # -- periodic work -----------------------------------------------------------------------

    def tick(self, now_ms: int) -> int:
        """Do what is due at this monotonic time; return the milliseconds until the next call."""
        if self._space is not None:
            self._space.measure()
        due_ms = self._housekeeping.tick(now_ms, self.flusher)
        self._cleaner_checkpoint.write(self.flusher)
        high_watermarks_due_ms = self.high_watermarks.tick(now_ms, self.flusher)
        if high_watermarks_due_ms is not None:
            due_ms = min(due_ms, high_watermarks_due_ms)
        if self.root != self.data or self._foreign_logs.paths:
            self._foreign_logs.check()
            due_ms = min(due_ms, now_ms + FOREIGN_CHECK_MS)
        return max(1, due_ms - now_ms)

    def note_cleaned(self, log: Log, offset: int) -> None:
        """Note that a log was cleaned up to an offset, and its segments replaced."""
        log.cleaner_offset = offset
        self._cleaner_checkpoint.set(log.topic, log.partition, offset, log.directory)
        self._cleaner_checkpoint.write(self.flusher)

    def take_trimmed(self) -> list[Log]:
        """Return the logs whose start offset retention has moved since the last call."""
        trimmed, self._housekeeping.trimmed = self._housekeeping.trimmed, []
        return trimmed

    def checkpoint(self) -> None:
        """Write the durable offset and start offset of each log."""
        self._housekeeping.checkpoint()

    def _checkpoint_lowered(self, topic: str, partition: int, end_offset: int) -> None:
        found_key = (topic, partition)
        found = self._logs[found_key]
        if found.cleaner_offset >= 0:
            self._cleaner_checkpoint.set(topic, partition, found.cleaner_offset)
            self._cleaner_checkpoint.write(self.flusher)
        self.high_watermarks.lower(found_key, end_offset)
        self._housekeeping.checkpoint_lowered(found)

    # -- shutdown ----------------------------------------------------------------------------

    def close(self) -> None:
        """Shut down cleanly: flush all logs and record that for the next start.

        After a failed flush nothing is flushed again, and the next start recovers every log.
        """
        try:
            if self._has_failed():
                log.error(
                    "Shutdown is not clean, a flush has failed; the next start recovers the logs."
                )
            else:
                self._end_cleanly()
        except OSError as error:
            log.error(
                "Shutdown is not clean; the next start recovers the logs. error=%r", str(error)
            )
        finally:
            for found in self._logs.values():
                found.release()
            self._logs.clear()

    def _has_failed(self) -> bool:
        # A disk that failed may not have stored the mark.
        flusher_failed = self.flusher is not None and self.flusher.has_failed
        return flusher_failed or (self.data / FAILURE_MARK).exists()

    def _end_cleanly(self) -> None:
        ends: dict[str, KnownEnd] = {}
        logs = list(self._logs.values())
        for first in range(0, len(logs), FINISHED_TOGETHER_MAX):
            ends |= self._finish(logs[first : first + FINISHED_TOGETHER_MAX])
        self.checkpoint()
        self._cleaner_checkpoint.write(None)
        self.high_watermarks.write_at_end()
        self._points.write_end(ends)

    def _finish(self, logs: Sequence[Log]) -> dict[str, KnownEnd]:
        """Close some logs cleanly, and release their files."""
        ends: dict[str, KnownEnd] = {}
        flushes: dict[LogFlush, Log] = {}
        for found in logs:
            try:
                end = found.finish()
                flush = found.flush_begin() if end is not None else None
            except (KafkaStorageError, OSError) as error:
                _log_unclean(found, error)
                continue
            if end is not None:
                ends[found.directory.name] = end
            if flush is not None:
                flushes[flush] = found
        flush_all(list(flushes), self._disk, self.file_system)
        for flush, found in flushes.items():
            if flush.error is not None:
                raise write_back_failed(self._disk, flush.where, flush.error)
            try:
                found.flush_end(flush)
            except KafkaStorageError as error:
                _log_unclean(found, error)
                del ends[found.directory.name]
            if flush.is_lost:
                del ends[found.directory.name]
        for found in logs:
            found.release()
        return {
            name: end._replace(durable_offset=None, is_contiguous=False)
            for name, end in ends.items()
        }


def _log_unclean(found: Log, error: Exception) -> None:
    log.error(
        "Log cannot be closed cleanly; the next start recovers it. path=%s error=%r",
        found.directory, str(error),
    )  # fmt: skip
