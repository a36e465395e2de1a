"""Node: one Kafka node and the components that it owns.

A node has an id, a listener, a local or remote controller, the logs of the partitions it leads, and
the replica manager over them.  Its settings, clock, event loop, disk and socket are passed in.  Its
only threads are those of the flusher and the opener.

The reconciler brings the logs to the state in the metadata log (replica/reconciler.py), both after
a restart and after a change.

With `workers=0`, one node is the whole cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from socket import socket
from typing import Any

from kafkalite.broker.client_telemetry import ClientTelemetry
from kafkalite.broker.controller.controller_client import ControllerClient, HeartbeatState
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.controller.node_racks import NodeRacks
from kafkalite.broker.coordinator.coordinator_host import Coordinators
from kafkalite.broker.coordinator.group_coordinators import GroupCoordinators
from kafkalite.broker.coordinator.partition_verification import PartitionVerification
from kafkalite.broker.coordinator.producer_ids import ProducerIdBlocks
from kafkalite.broker.coordinator.share_coordinators import ShareCoordinators
from kafkalite.broker.coordinator.share_progress import ShareProgressFinder
from kafkalite.broker.coordinator.transaction_coordinators import TransactionCoordinators
from kafkalite.broker.dispatch import Dispatcher
from kafkalite.broker.local.local_listener import LocalListener, open_local_listener
from kafkalite.broker.metadata_cache import MetadataCache
from kafkalite.broker.node_settings import NodeSettings, reactor_limits
from kafkalite.broker.replica.batch_appends import BatchAppends
from kafkalite.broker.replica.batch_opener import BatchOpener
from kafkalite.broker.replica.epoch_renewals import EpochRenewals
from kafkalite.broker.replica.fetch_sessions import FetchSessions
from kafkalite.broker.replica.late_transactions import LateTransactions
from kafkalite.broker.replica.marker_writer import MarkerWriter
from kafkalite.broker.replica.node_replication import NodeReplication
from kafkalite.broker.replica.partition import Partition
from kafkalite.broker.replica.read_replicas import ReadReplicas
from kafkalite.broker.replica.reconciler import Reconciler
from kafkalite.broker.replica.replica_fetcher import Connect
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import Authorizer
from kafkalite.broker.share.dead_letter_queue import DeadLetterQueue
from kafkalite.broker.share.dead_letter_topics import DeadLetterTopics
from kafkalite.broker.share.share_partition_manager import SharePartitionManager
from kafkalite.clock import Clock
from kafkalite.config.broker import (
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
    TRANSACTION_MAX_TIMEOUT_MS,
    TRANSACTION_PARTITION_VERIFICATION_ENABLE,
)
from kafkalite.config.replication import REPLICA_SELECTOR_CLASS
from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.coordination.image import SUPERVISOR_ID, ClusterImage, TopicImage
from kafkalite.coordination.leader_epochs import EpochRenewal
from kafkalite.coordination.replication.partition_change import PartitionRules
from kafkalite.coordination.topic_names import TRANSACTION_STATE
from kafkalite.protocol.schemas.internal import (
    CONFIG,
    FEATURE,
    PARTITION_CHANGE,
    TypedRecord,
)
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.files.layout import node_directory
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager.log_loader import LogKey
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.transport.peer_connection import PeerConnection
from kafkalite.transport.peer_listener import PeerListener
from kafkalite.transport.reactor import Reactor, Timer
from kafkalite.transport.run_directory import peer_path

log = logging.getLogger("kafkalite.broker")

FILES_PER_LOG = 3
"""Files of a log that is written: its active segment and two indexes."""


class Node:
    """One node of the cluster; see the module."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        reactor: Reactor,
        logs: LogManager,
        listener: socket,
        controller: ControllerClient,
        *,
        local_controller: LocalController | None,
        root: Path,
        node_id: int = SUPERVISOR_ID,
    ) -> None:
        self.clock = clock
        self.reactor = reactor
        self.logs = logs
        self.listener = listener
        self.controller = controller
        self._local_controller = local_controller
        self.root = root
        self.node_id = node_id
        self.cluster_id = logs.cluster_id
        self.authorizer = Authorizer()
        assert logs.flusher is not None
        self.flusher: Flusher = logs.flusher
        self._settings = NodeSettings(settings, node_id, controller.image)
        if local_controller is not None:
            NodeRacks(local_controller, settings, reactor.call_later)
        self.metadata = MetadataCache(controller, self._settings, node_id)
        self.opener = BatchOpener(lambda: reactor.tick_number)
        self.replicas = ReplicaManager(
            reactor, self.flusher, self.opener, self.metadata.topic, clock.monotonic_ns
        )
        self.replicas.on_led_count = self._reserve_descriptors
        slots = self.settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS]
        self.fetch_sessions = FetchSessions(slots, clock)
        self._add_coordinators()
        self.telemetry = ClientTelemetry(clock)
        self.dispatcher = Dispatcher(self)
        reactor.slow_ticks.name_api = self.dispatcher.name_of
        self._add_replication()
        self._applied_offset = 0
        self.local_listener: LocalListener | None = None
        """The local listener; None if it is disabled or not opened yet."""
        self._peer_listener: PeerListener | None = None
        self._run_directory: Path | None = None
        self._opens_local_listener = False
        self._is_listening = False
        self._maintenance_timer: Timer | None = None

    def _add_coordinators(self) -> None:
        """Add the coordinators, and what ends transactions in the partitions of this node."""
        self.producer_ids = ProducerIdBlocks(self.controller, self.node_id)
        self.groups = GroupCoordinators(self.settings, self.metadata, self.replicas, self.reactor)
        self.marker_writer = MarkerWriter(self.replicas, self.reactor)
        self.transactions = TransactionCoordinators(
            self.settings, self.metadata, self.replicas, self.producer_ids, self.marker_writer,
            self.reactor,
        )  # fmt: skip
        self.share_coordinators = ShareCoordinators(
            self.settings, self.metadata, self.replicas, self.reactor
        )
        self.batch_appends = BatchAppends(
            self.metadata, self.replicas, self.reactor,
            None if self.controller.is_local else self.controller.append_batch,
        )  # fmt: skip
        dead_letters = DeadLetterQueue(
            DeadLetterTopics(self.metadata, self._settings, self.controller.auto_create_topics),
            self.groups.configs.of_share_group, self.batch_appends.append, self.opener,
            self.reactor,
        )  # fmt: skip
        self.share_partitions = SharePartitionManager(
            self.groups.configs.of_share_group,
            self.share_coordinators.outcomes if self.controller.is_local
            else self.controller.share_states,
            dead_letters, self.opener, self.replicas.purgatory, self.reactor,
        )  # fmt: skip
        self.replicas.on_added = self._partition_added
        self.replicas.on_removed = self._partition_removed
        self.share_progress = ShareProgressFinder(
            self.metadata, self.replicas, self.share_partitions.led.records_of, self.reactor
        )
        self.verification = PartitionVerification(self.transactions)
        self.late_transactions = LateTransactions(
            self.replicas, self.reactor,
            self.transactions.find_orphans if self.controller.is_local
            else self.controller.find_orphans,
        )  # fmt: skip

    def _add_replication(self) -> None:
        """Add what replicates this node's partitions, and what applies the image to them."""
        self.renewals = EpochRenewals(
            self.metadata, self.logs, self.reactor, self.controller.renew_epochs,
            self.run_maintenance_soon,
        )  # fmt: skip
        self.replication = NodeReplication(
            self.metadata, self.controller, self.logs, self.replicas, self.reactor, self.flusher,
            lambda: self.settings, self._connect_to,
        )  # fmt: skip
        self.follower_sessions = self.replication.follower_sessions
        self.replication.followed.on_count = self._reserve_descriptors
        self.read_replicas = ReadReplicas(self.metadata, self.replicas, self.replication.followed)
        self.read_replicas.selects_by_rack = bool(self.settings[REPLICA_SELECTOR_CLASS])
        self.reconciler = Reconciler(
            self.metadata, self.logs, self.replicas, self.replication.roles, self.renewals,
            self.reactor, self._report_applied,
        )  # fmt: skip
        self.replication.replace_log = lambda topic_id, index: self.reconciler.reconcile(
            topic_id, [index]
        )

    def _partition_added(self, partition: Partition) -> None:
        for coordinators in self._coordinators:
            coordinators.partition_added(partition)

    def _partition_removed(self, partition: Partition) -> None:
        self.share_partitions.led.drop_partition(partition)
        for coordinators in self._coordinators:
            coordinators.partition_removed(partition)

    @property
    def _coordinators(self) -> tuple[Coordinators[Any], ...]:
        return self.groups, self.transactions, self.share_coordinators

    @property
    def settings(self) -> Settings:
        """The effective settings of this node; replaced by a new object on change."""
        return self._settings.current

    def add_settings_listener(self, listener: Callable[[Settings], object]) -> None:
        """Call `listener(settings)` now and after each change."""
        self._settings.add_listener(listener)

    @property
    def image(self) -> ClusterImage:
        """The cluster image of this node."""
        return self.controller.image

    @property
    def local_controller(self) -> LocalController:
        """The controller on this node; the dispatcher calls controller APIs only where it is."""
        assert self._local_controller is not None
        return self._local_controller

    # -- opening and closing -----------------------------------------------------------------

    def open(self, *, when_welcome: bool = False) -> None:
        """Recover the logs of this node's partitions and start to serve clients.

        With `when_welcome`, clients are served once the supervisor has accepted this node: before
        that, the image may be that of the last run, or empty.  The controller's image must be
        loaded; it determines the partitions of this node.
        """
        self.add_settings_listener(self._apply_settings)
        self.logs.transfer_foreign_logs(
            self.directory_of,
            is_image_current=self.controller.is_local,
            is_replicated=self._is_replicated,
        )
        loaded = self.logs.load(self._topic_settings)
        if self._local_controller is not None:
            self._renew_epochs_at_start(self._local_controller, loaded)
        for topic in self.image.topics.values():
            self.reconciler.open_topic(topic, loaded)
        for stray in loaded.values():
            if self.is_deleted(stray.topic_id):
                self.logs.delete(stray)  # deleted while this node was down
                continue
            self.logs.close_log(stray)
        self._applied_offset = self.controller.offset
        self.controller.on_change(self._on_metadata_change)
        self.controller.attach(
            settings=lambda: self.settings,
            heartbeat_state=self._heartbeat_state,
            on_welcome=self._on_welcome,
            write_markers=self.marker_writer.write,
            share_progress_of=self.share_progress.here,
            append_batch=self.batch_appends.append_here,
            log_ends=self.replication.roles.log_ends,
        )
        if self.controller.is_local:
            self._applied_offset = self.controller.offset
            self._check_registration()
            self.logs.set_strays()
        self.groups.open()
        self.add_settings_listener(self.groups.reconfigure)
        self.transactions.open()
        self.share_coordinators.open()
        self.add_settings_listener(self.share_coordinators.reconfigure)
        is_here = self.controller.is_local
        self.replicas.verifier.send = (
            self.verification.verify if is_here else self.controller.verify_transactions
        )
        self.add_settings_listener(self.transactions.reconfigure)
        self.reactor.at_commit(self.transactions.markers.run_due)
        self.reactor.at_commit(self.replication.settle)
        self.reactor.at_commit(self.replicas.settle)
        self.reactor.watch(self.flusher.fileno(), self._flushed)
        self.reactor.watch(self.opener.fileno(), self.opener.collect)
        self._run_maintenance()
        self.late_transactions.open()
        self.replication.open()
        if not when_welcome:
            self._listen()

    def _renew_epochs_at_start(
        self, controller: LocalController, loaded: Mapping[LogKey, Log]
    ) -> None:
        """Raise the leader epochs of logs that may have lost records, and those of the transaction
        coordinators with one replica: a coordinator's epoch must be higher than in all markers
        it has sent."""
        renewals = [*self.renewals.at_start(loaded), *self._coordinator_renewals()]
        if renewals:
            controller.decide_at_start(lambda machine: machine.renew_epochs(self.node_id, renewals))

    def _coordinator_renewals(self) -> Iterator[EpochRenewal]:
        topic = self.image.topics.get(TRANSACTION_STATE)
        for index, partition in topic.partitions.items() if topic is not None else ():
            if topic is not None and partition.leader == self.node_id and partition.is_alone:
                yield EpochRenewal(topic.topic_id, index, partition.leader_epoch)

    def _listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            self._open_local_listener()
            self.reactor.listen(self.listener, self.dispatcher.serve)

    def serve_locally(self, run_directory: Path) -> None:
        """Serve other nodes in the run directory; local programs as soon as clients are served."""
        self.serve_peers(run_directory)
        self._opens_local_listener = True
        if self._is_listening:
            self._open_local_listener()

    def serve_peers(self, run_directory: Path) -> None:
        """Serve other nodes in the run directory, and find them there."""
        self._run_directory = run_directory
        self._peer_listener = PeerListener(
            self.reactor, peer_path(run_directory, self.node_id), self.dispatcher.serve_peer
        )

    def _connect_to(self, node_id: int) -> Connect:
        """Return what opens connections to the peer listener of another node."""
        assert self._run_directory is not None, "a cluster of several nodes has a run directory"
        path = peer_path(self._run_directory, node_id)
        return lambda on_response, on_close: PeerConnection(
            self.reactor, path, on_response, on_close
        )

    def _check_registration(self) -> None:
        """Lead and follow replicated partitions from the registration of this process on."""
        if self.replication.was_registered():
            self.reconciler.registered()

    def _open_local_listener(self) -> None:
        if self._opens_local_listener and self._run_directory is not None:
            self.local_listener = open_local_listener(self, self._run_directory)

    def _on_welcome(self) -> None:
        """Start to serve once the supervisor has confirmed this node's image.

        Before that, the image may be an incomplete read of a damaged metadata log, or older than
        the supervisor's decisions at startup; so logs that it does not know or assigns to other
        nodes are not touched.
        """
        self.logs.set_strays()
        self.renewals.request_all()
        self._check_registration()
        self.producer_ids.refill()
        self._listen()

    def close(self) -> None:
        """Flush and close all logs (clean shutdown)."""
        if self.local_listener is not None:
            self.local_listener.close()
        if self._peer_listener is not None:
            self._peer_listener.close()
        self.reactor.close()
        self.reconciler.close()
        self.replication.close()
        self.opener.close()
        self.flusher.close()
        self.logs.close()

    def _apply_settings(self, settings: Settings) -> None:
        """Apply settings to the components that hold copies of their values."""
        self.reactor.reconfigure(reactor_limits(settings))
        self.logs.reconfigure(settings)
        self.replication.apply_settings(settings)
        self.fetch_sessions.resize(settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS])
        self.late_transactions.timeout_max_ms = settings[TRANSACTION_MAX_TIMEOUT_MS]
        self.replicas.verifies_transactions = settings[TRANSACTION_PARTITION_VERIFICATION_ENABLE]
        self.replicas.verifier.reconfigure(settings)
        topic_ids = dict.fromkeys(partition.topic_id for partition in self.replicas)
        topic_ids |= dict.fromkeys(each.log.topic_id for each in self.replication.followed)
        for topic_id in topic_ids:
            self.reconciler.reconcile(topic_id)
        self.run_maintenance_soon()

    def run_maintenance_soon(self) -> None:
        """Run the periodic log maintenance in the next tick."""
        if self._maintenance_timer is not None:
            self._maintenance_timer.cancel()
            self._maintenance_timer = self.reactor.call_later(0, self._run_maintenance)

    def _reserve_descriptors(self, _: int) -> None:
        """Reserve descriptors for the files of all partitions led or followed here."""
        count = self.replicas.led_count + len(self.replication.followed)
        self.reactor.reserve_files(FILES_PER_LOG * count)

    def _run_maintenance(self) -> None:
        """Run retention, rolls, delayed deletes and checkpoints that are due."""
        next_due_ms = self.logs.tick(self.clock.monotonic_ms())
        for trimmed in self.logs.take_trimmed():
            self.replicas.log_was_trimmed(trimmed)
        self._maintenance_timer = self.reactor.call_later(next_due_ms, self._run_maintenance)

    def _flushed(self) -> None:
        for flush in self.flusher.collect():
            if flush.done is not None:
                flush.done(flush)

    def _heartbeat_state(self) -> HeartbeatState:
        return HeartbeatState(
            reconciled_offset=self._reconciled_offset,
            led_count=self.replicas.led_count,
            size=self.replicas.total_size(),
            unserved=[*self.reconciler.unserved()],
        )

    # -- reconciliation ----------------------------------------------------------------------

    def directory_of(self, topic: str, index: int, topic_id: bytes) -> Path | None:
        """Return where a log in this node's directory belongs; see `directory_at`."""
        return self.directory_at(self.node_id, topic, index, topic_id)

    def directory_at(self, node_id: int, topic: str, index: int, topic_id: bytes) -> Path | None:
        """Return where a log in a node's directory belongs; see DirectoryAt."""
        replicas = self.image.replicas_of(topic, index, topic_id)
        if node_id in replicas:
            return node_directory(self.root, node_id)
        return node_directory(self.root, replicas[0]) if len(replicas) == 1 else None

    def partition_rules(self, topic: TopicImage) -> PartitionRules:
        """Return the rules of decisions about a topic's partitions."""
        return PartitionRules.of(self.metadata.log_settings_of(topic))

    def _is_replicated(self, topic: str, index: int, topic_id: bytes) -> bool:
        return len(self.image.replicas_of(topic, index, topic_id)) > 1

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether a topic is known to be deleted, as opposed to unknown."""
        return self.metadata.is_deleted(topic_id)

    def _on_metadata_change(self, records: Sequence[TypedRecord], end_offset: int) -> None:
        changed_configs = dict.fromkeys(
            (record.fields["resource_type"], record.fields["resource_name"])
            for record in records
            if record.kind is CONFIG
        )
        for kind, name in changed_configs:
            self._settings.apply_change(kind, name, self.image)
        if any(record.kind is FEATURE for record in records):
            self.transactions.reconfigure(self.settings)
            self.groups.reconfigure(self.settings)
        self._check_registration()
        topic_ids = self._changed_partitions(records)
        for topic_id, indexes in topic_ids.items():
            self.reconciler.reconcile(topic_id, indexes)
        known = self.image.deleted
        deleted: dict[str, set[bytes]] = {}
        for topic_id in topic_ids:
            if topic_id in known:
                deleted.setdefault(known[topic_id], set()).add(topic_id)
        if deleted:
            self.groups.delete_topics(deleted)
            self.share_coordinators.delete_topics(
                {topic_id for topic_ids in deleted.values() for topic_id in topic_ids}
            )
        found = (self.metadata.topic(topic_id) for topic_id in topic_ids)
        names = {*deleted, *(topic.name for topic in found if topic is not None)}
        if names:
            self.groups.topics_changed(names)
        if any(record.kind is not CONFIG for record in records):
            self.transactions.markers.wake()  # leaders may have changed
        self._applied_offset = end_offset
        if self.reconciler.mark(end_offset) or self.reconciler.is_done:
            self._report_applied()

    @property
    def _reconciled_offset(self) -> int:
        """The offset of the metadata log that the logs match."""
        return self.reconciler.reconciled_offset(self._applied_offset)

    def _report_applied(self) -> None:
        """Report to the controller how far the logs match the image."""
        self.controller.report_applied(self._reconciled_offset)

    def _topic_settings(self, topic: str) -> Settings:
        known = self.image.topics.get(topic)
        return self.metadata.log_settings_of(known) if known else self.metadata.settings_of({})

    def _changed_partitions(
        self, records: Sequence[TypedRecord]
    ) -> dict[bytes, dict[int, None] | None]:
        """Return the changed partitions by topic id; None if the whole topic has changed."""
        changed: dict[bytes, dict[int, None] | None] = {}
        for record in records:
            topic_id = self._topic_id_of(record)
            if topic_id is None:
                continue
            indexes = changed.setdefault(topic_id, {})
            if record.kind is not PARTITION_CHANGE:
                changed[topic_id] = None
            elif indexes is not None:
                indexes[record.fields["partition"]] = None
        return changed

    def _topic_id_of(self, record: TypedRecord) -> bytes | None:
        if record.kind is CONFIG:
            if record.fields["resource_type"] != Resource.TOPIC:
                return None
            topic = self.image.topics.get(record.fields["resource_name"])
            return topic.topic_id if topic else None
        topic_id: bytes | None = record.fields.get("topic_id")
        return topic_id
