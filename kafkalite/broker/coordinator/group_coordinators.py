"""GroupCoordinators: the group coordinators of a node, hosted in `__consumer_offsets`.

The topic is created by the first FindCoordinator, as in Kafka, and led by node 0.  Members that
come back soon after a restart find their generation (coordinator_host.py).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from kafkalite.broker.coordinator.coordinator_host import (
    CoordinatorHost,
    CoordinatorKind,
    Coordinators,
    RequestDecision,
)
from kafkalite.broker.coordinator.group_configs import GroupConfigs
from kafkalite.broker.coordinator.image_topics import ImageTopics
from kafkalite.broker.coordinator.journal_loader import RecordCodec
from kafkalite.broker.coordinator.pattern_lookups import PatternLookups
from kafkalite.broker.stepping import WorkQueues
from kafkalite.config.broker import (
    GROUP_INITIAL_REBALANCE_DELAY_MS,
    GROUP_MAX_SESSION_TIMEOUT_MS,
    GROUP_MAX_SIZE,
    GROUP_MIN_SESSION_TIMEOUT_MS,
    OFFSET_METADATA_MAX_BYTES,
    OFFSETS_RETENTION_CHECK_INTERVAL_MS,
    OFFSETS_RETENTION_MINUTES,
)
from kafkalite.config.group import (
    GROUP_CONSUMER_ASSIGNORS,
    GROUP_CONSUMER_MAX_SIZE,
    GROUP_CONSUMER_MIGRATION_POLICY,
    GROUP_CONSUMER_REGEX_REFRESH_INTERVAL_MS,
)
from kafkalite.coordination.groups.assignment.assignors import ASSIGNORS
from kafkalite.coordination.groups.group_coordinator import (
    GROUP_KINDS,
    GroupCoordinator,
)
from kafkalite.coordination.groups.group_limits import GroupLimits
from kafkalite.coordination.machine import TransactionalRecord
from kafkalite.coordination.topic_names import CONSUMER_OFFSETS
from kafkalite.protocol.schemas import group_records

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.config.settings import Settings
    from kafkalite.errors import KafkaError
    from kafkalite.transport.reactor import Reactor

GroupHost: TypeAlias = CoordinatorHost[GroupCoordinator]
GroupDecision: TypeAlias = RequestDecision[GroupCoordinator]

DELETE_COUNT, DELETE_PAUSE_MS = 500, 2
"""Number of offsets of deleted topics, of groups, and of topics of share groups examined in a step;
milliseconds between two steps."""
LOGGED_MEMBERS_MAX, LOGGED_LENGTH_MAX = 20, 100
"""Limits of a log line: number of members, and length of a name."""

log = logging.getLogger("kafkalite.broker")


def group_limits(settings: Settings) -> GroupLimits:
    """Return a coordinator's limits from the broker's settings."""
    return GroupLimits(
        min_session_ms=settings[GROUP_MIN_SESSION_TIMEOUT_MS],
        max_session_ms=settings[GROUP_MAX_SESSION_TIMEOUT_MS],
        initial_rebalance_delay_ms=settings[GROUP_INITIAL_REBALANCE_DELAY_MS],
        max_size=settings[GROUP_MAX_SIZE],
        metadata_size_max=settings[OFFSET_METADATA_MAX_BYTES],
        retention_ms=settings[OFFSETS_RETENTION_MINUTES] * 60_000,
        retention_check_ms=settings[OFFSETS_RETENTION_CHECK_INTERVAL_MS],
        consumer_max_size=settings[GROUP_CONSUMER_MAX_SIZE],
        consumer_assignors={name: ASSIGNORS[name] for name in settings[GROUP_CONSUMER_ASSIGNORS]},
        migration_policy=settings[GROUP_CONSUMER_MIGRATION_POLICY].lower(),
        pattern_refresh_ms=settings[GROUP_CONSUMER_REGEX_REFRESH_INTERVAL_MS],
    )


def new_member_id(prefix: str) -> str:
    """Return a unique member id; like Kafka's it begins with the client's own text."""
    return f"{prefix}-{uuid.uuid4()}"


class GroupCoordinators(Coordinators[GroupCoordinator]):
    """The group coordinators of a node, by partition of __consumer_offsets."""

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        reactor: Reactor,
    ) -> None:
        self.configs = GroupConfigs(settings, metadata)
        kind = CoordinatorKind(
            CONSUMER_OFFSETS,
            RecordCodec(group_records.write, group_records.read, is_transactional=True),
            lambda: GroupCoordinator(
                self._limits,
                new_member_id,
                ImageTopics(metadata),
                self.configs.of,
                self.configs.of_share_group,
            ),
        )
        super().__init__(kind, metadata, replicas, reactor)
        self._limits = group_limits(settings)
        self._deleted: dict[int, dict[str, set[bytes]]] = {}
        """Topics that were deleted while a partition was loading, by name with their ids."""
        self.commit_queues = WorkQueues()
        """Keeps the OffsetCommits of a group in order until they are decided."""
        self.lookups = PatternLookups(reactor)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits; a coordinator that is loading gets them afterwards."""
        self._limits = group_limits(settings)
        self.configs.reconfigure(settings)
        for host in self:
            self._reconfigure(host)

    def _reconfigure(self, host: GroupHost) -> None:
        host.machine.reconfigure(self._limits, host.now_ms())
        host.schedule()

    def _host_loaded(self, host: GroupHost) -> None:
        host.on_change(log_changes)
        self._reconfigure(host)
        deleted = self._deleted.pop(host.partition.index, None)
        if deleted:
            self._removal_step(host, host.machine.topic_deletions(deleted))
        self._removal_step(host, host.machine.missing_topic_deletions())

    def _load_failed(self, partition: Partition, error: KafkaError) -> KafkaError:
        self._deleted.pop(partition.index, None)
        return super()._load_failed(partition, error)

    def topics_changed(self, names: Collection[str]) -> None:
        """Note that topics were created or deleted, or have more partitions.

        A coordinator that is loading need not know: it compares the topics' metadata afterwards.
        """
        for host in self:
            host.machine.topics_changed(names)

    # -- deleted topics ----------------------------------------------------------------------

    def delete_topics(self, topics: Mapping[str, Collection[bytes]]) -> None:
        """Delete the committed offsets of deleted topics, given by name and ids, and remove the
        topics from share groups, in steps."""
        for index, host in self._hosts.items():
            if host.is_loading:
                deleted = self._deleted.setdefault(index, {})
                for name, topic_ids in topics.items():
                    deleted.setdefault(name, set()).update(topic_ids)
            else:
                self._removal_step(host, host.machine.topic_deletions(topics))

    def _removal_step(
        self, host: GroupHost, remaining: Iterator[group_records.GroupRecord | None]
    ) -> None:
        if host.is_closed:
            return
        some = list(islice(remaining, DELETE_COUNT))
        records = [record for record in some if record is not None]
        if records:
            host.submit(lambda groups, _, now_ms, __: groups.write_deletions(records, now_ms))
        if len(some) == DELETE_COUNT:
            self._reactor.call_later(DELETE_PAUSE_MS, lambda: self._removal_step(host, remaining))


def log_changes(records: Sequence[group_records.GroupRecord | TransactionalRecord], _: int) -> None:
    """Log the changes of groups; committed offsets are too many to log."""
    for record in records:
        if isinstance(record, TransactionalRecord) or record.kind not in GROUP_KINDS:
            continue
        value = record.value
        # A name may contain anything, including line ends, and be long.
        name = record.group_id[:LOGGED_LENGTH_MAX]
        if value is None:
            log.info("Group %r was deleted. group=%r", name, name)
        elif record.kind is not group_records.GROUP_METADATA:
            epoch = value["epoch"]
            log.info("Group %r is in epoch %d. group=%r epoch=%d", name, epoch, name, epoch)
        else:
            members = value["members"]
            named = [each["member_id"][:LOGGED_LENGTH_MAX] for each in members[:LOGGED_MEMBERS_MAX]]
            log.info(
                "Group %r is in generation %d with %d members. group=%r generation=%d members=%s",
                name, value["generation"], len(members), name, value["generation"],
                ",".join(map(repr, named)) or "none",
            )  # fmt: skip
