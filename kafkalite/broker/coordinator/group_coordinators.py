"""Groups: the group coordinators of a node.

    group id ─ Java's hash ─▶ partition of __consumer_offsets ─ led here? ─▶ GroupHost
    GroupHost = GroupCoordinator (the machine) + the partition as its journal + a timer

A request is a decision of the machine with a token; a member that has to wait gets its response by
the token, maybe from a later request's decision.  So a JoinGroup is a Later that another member's
JoinGroup, or the timer, resolves.

The topic is created by the first FindCoordinator, as in Kafka, and led by node 0.  When the node
opens, its coordinators are loaded in steps on the event loop: until one is loaded, requests for its
groups get COORDINATOR_LOAD_IN_PROGRESS, and members that come back in time find their generation.

A process that was stopped for a while has received no heartbeats, which must not expire sessions:
after a late timer, requests waiting in the sockets are read first.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalite.broker.coordinator.partition_journal import PartitionJournal
from kafkalite.broker.later import Later
from kafkalite.broker.machine_host import MachineHost
from kafkalite.broker.stepping import Turns
from kafkalite.config.broker import (
    GROUP_INITIAL_REBALANCE_DELAY_MS,
    GROUP_MAX_SESSION_TIMEOUT_MS,
    GROUP_MAX_SIZE,
    GROUP_MIN_SESSION_TIMEOUT_MS,
    OFFSET_METADATA_MAX_BYTES,
    OFFSETS_RETENTION_CHECK_INTERVAL_MS,
    OFFSETS_RETENTION_MINUTES,
)
from kafkalite.coordination.group_coordinator import (
    Decision,
    GroupCoordinator,
    GroupLimits,
    Reply,
)
from kafkalite.coordination.machine import Result
from kafkalite.coordination.placement import coordinator_partition
from kafkalite.coordination.topic_names import CONSUMER_OFFSETS
from kafkalite.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotLeaderOrFollower,
)
from kafkalite.protocol.schemas import group_records

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.config.settings import Settings
    from kafkalite.transport.reactor import Timer

T = TypeVar("T")

Decide = Callable[[GroupCoordinator, Any, int, int], Decision]
"""`decide(coordinator, token, now_ms, wall_ms)`: makes a decision of the machine."""

AWAY_MS = 500
"""A timer that is late by this much means that this process itself did not run."""
AGAIN_MS = 1_000
"""Time for which waiting requests are then read before sessions can expire."""
LOAD_MS, LOAD_PAUSE_MS = 10, 1
"""Duration of a step of loading, and of the pause between two."""
FORGOTTEN_AT_ONCE, FORGET_PAUSE_MS = 500, 2
"""Number of offsets of deleted topics, and of groups without any, in a step: milliseconds."""
MEMBERS_TOLD_MAX, NAME_TOLD_MAX = 20, 100
"""Limits of a log line: number of members, and length of a name."""

log = logging.getLogger("kafkalite.broker")


def limits_of(settings: Settings) -> GroupLimits:
    """Return a coordinator's limits from the broker's settings."""
    return GroupLimits(
        min_session_ms=settings[GROUP_MIN_SESSION_TIMEOUT_MS],
        max_session_ms=settings[GROUP_MAX_SESSION_TIMEOUT_MS],
        initial_rebalance_delay_ms=settings[GROUP_INITIAL_REBALANCE_DELAY_MS],
        max_size=settings[GROUP_MAX_SIZE],
        metadata_size_max=settings[OFFSET_METADATA_MAX_BYTES],
        retention_ms=settings[OFFSETS_RETENTION_MINUTES] * 60_000,
        retention_check_ms=settings[OFFSETS_RETENTION_CHECK_INTERVAL_MS],
    )


def new_member_id(beginning: str) -> str:
    """Return a unique member id; like Kafka's it begins with the client's own text."""
    return f"{beginning}-{uuid.uuid4()}"


class Groups:
    """The group coordinators of a node, by partition of __consumer_offsets."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._hosts: dict[int, GroupHost] = {}
        self.unread: dict[int, CoordinatorNotAvailable] = {}
        """The partitions that could not be read, with the error; only a restart retries them."""
        self.commit_turns = Turns()
        """Keeps the OffsetCommits of a group in order until they are decided."""

    def __iter__(self) -> Iterator[GroupHost]:
        """Return the coordinators that are loaded."""
        return (host for host in self._hosts.values() if not host.is_loading)

    @property
    def lacking(self) -> int:
        """The error code for a list of all groups: some may be loading, or be unreadable."""
        if self.unread:
            return CoordinatorNotAvailable.code
        loading = any(host.is_loading for host in self._hosts.values())
        return CoordinatorLoadInProgress.code if loading else 0

    def open(self) -> None:
        """Load the coordinators of the partitions that this node leads."""
        topic = self._node.image.topics.get(CONSUMER_OFFSETS)
        for index in topic.partitions if topic is not None else ():
            if topic is not None and topic.partitions[index].leader == self._node.node_id:
                with suppress(KafkaError):
                    self._host(index)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits."""
        for host in self:
            host.reconfigure(limits_of(settings))

    def host_of(self, group_id: str) -> GroupHost:
        """Return the coordinator of a group; raise NotCoordinator if it is not here."""
        topic = self._node.image.topics.get(CONSUMER_OFFSETS)
        if topic is None:
            raise NotCoordinator()
        return self._host(coordinator_partition(group_id, len(topic.partitions)))

    def _host(self, index: int) -> GroupHost:
        host = self._hosts.get(index)
        if host is None:
            if index in self.unread:
                raise self.unread[index].again()
            try:
                partition = self._node.replicas.leader(CONSUMER_OFFSETS, index)
            except NotLeaderOrFollower:
                raise NotCoordinator() from None
            except KafkaError as fault:
                raise CoordinatorNotAvailable(str(fault)) from None
            host = self._hosts[index] = self._loaded(partition)
        if host.is_loading:
            raise CoordinatorLoadInProgress()
        return host

    def _loaded(self, partition: Partition) -> GroupHost:
        try:
            return GroupHost(partition, self._node, self._unread)
        except KafkaError as fault:
            raise self._unread(partition, fault) from None

    def _unread(self, partition: Partition, fault: KafkaError) -> KafkaError:
        log.error(
            "Groups of %s cannot be loaded and are not served. partition=%s error=%r",
            partition, partition, str(fault),
        )  # fmt: skip
        self._hosts.pop(partition.index, None)
        self.unread[partition.index] = CoordinatorNotAvailable(str(fault))
        return self.unread[partition.index].again()

    def ask(self, group_id: str, decide: Decide) -> Later[Any]:
        """Make a decision of the group's coordinator; return the response."""
        return self.host_of(group_id).ask(decide)

    def look(self, group_id: str, look: Callable[[GroupCoordinator], T]) -> Later[T]:
        """Return what `look` reads of a group, once that is committed."""
        return self.host_of(group_id).look(look)

    def forget_topics(self, topics: Mapping[str, Collection[bytes]]) -> None:
        """Delete the committed offsets of deleted topics, given by name and ids."""
        for host in self._hosts.values():
            host.forget_topics(topics)


class GroupHost:
    """One coordinator with its journal and timer."""

    def __init__(
        self,
        partition: Partition,
        node: Node,
        unread: Callable[[Partition, KafkaError], object],
    ) -> None:
        self._reactor = node.reactor
        self._timer: Timer | None = None
        self._due_ms = 0
        self._not_before_ms = 0
        self._node = node
        self._partition = partition
        self._unread = unread
        self._deleted: dict[str, set[bytes]] = {}
        """Topics that were deleted while this was loading."""
        self.coordinator = GroupCoordinator(limits_of(node.settings), new_member_id)
        self._journal = PartitionJournal(
            partition, node.replicas, node.flusher, node.reactor,
            group_records.write, group_records.read,
        )  # fmt: skip
        self.is_loading = True
        self._loaded_count = 0
        self._load_some(self._journal.load(self.coordinator))

    # -- loading -----------------------------------------------------------------------------

    def _load_some(self, left: Iterator[int]) -> None:
        """Load for LOAD_MS, and the rest in later ticks."""
        end_ns = self._reactor.clock.monotonic_ns() + LOAD_MS * 1_000_000
        for count in left:
            self._loaded_count = count
            if self._reactor.clock.monotonic_ns() >= end_ns:
                self._reactor.call_later(LOAD_PAUSE_MS, lambda: self._load_more(left))
                return
        self.is_loading = False
        self.coordinator.loaded(self._now_ms())
        self._host = MachineHost(self.coordinator, self._journal)
        self._host.on_change(told)
        if self._loaded_count:
            log.info(
                "Groups of %s are loaded. partition=%s records=%d",
                self._partition, self._partition, self._loaded_count,
            )  # fmt: skip
        self.reconfigure(limits_of(self._node.settings))
        if self._deleted:
            self.forget_topics(self._deleted)

    def _load_more(self, left: Iterator[int]) -> None:
        if self._partition.fault is not None:
            return  # it is deleted or closed
        try:
            self._load_some(left)
        except KafkaError as fault:
            self._unread(self._partition, fault)

    # -- deleted topics ----------------------------------------------------------------------

    def forget_topics(self, topics: Mapping[str, Collection[bytes]]) -> None:
        """Delete the committed offsets of deleted topics, in steps: there may be many."""
        if self.is_loading:
            for name, topic_ids in topics.items():
                self._deleted.setdefault(name, set()).update(topic_ids)
        else:
            self._forget_some(self.coordinator.topic_tombstones(topics))

    def _forget_some(self, left: Iterator[group_records.GroupRecord | None]) -> None:
        if self._partition.fault is not None:
            return  # it is deleted or closed
        some = list(islice(left, FORGOTTEN_AT_ONCE))
        tombstones = [record for record in some if record is not None]
        if tombstones:
            asked = self.ask(lambda groups, _, now, __: groups.forget_offsets(tombstones, now))
            asked.abandoned = None  # it gets no response, and would keep a reference to itself
        if len(some) == FORGOTTEN_AT_ONCE:
            self._reactor.call_later(FORGET_PAUSE_MS, lambda: self._forget_some(left))

    # -- requests ----------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._reactor.clock.monotonic_ms()

    def ask(self, decide: Decide) -> Later[Any]:
        """Make a decision; return the response."""
        token: Later[Any] = Later()
        token.abandoned = lambda: self.coordinator.forget(token)
        now_ms, wall_ms = self._now_ms(), self._reactor.clock.wall_ms()

        def came(replies: list[Reply] | None, fault: KafkaError | None) -> None:
            if fault is not None:
                token.fail(as_seen(fault))
            else:
                answer(replies or ())

        self._host.ask(lambda machine: decide(machine, token, now_ms, wall_ms)).then(came)
        self._tend()
        return token

    def look(self, look: Callable[[GroupCoordinator], T]) -> Later[T]:
        """Return what `look` reads of the machine, once all it depends on is committed."""
        return self._host.ask(lambda machine: Result(look(machine)))

    def reconfigure(self, limits: GroupLimits) -> None:
        """Apply new limits."""
        self.coordinator.reconfigure(limits, self._now_ms())
        self._tend()

    # -- timer -------------------------------------------------------------------------------

    def _tend(self) -> None:
        self._journal.keep_small(self.coordinator)
        next_ms = self.coordinator.next_due_ms
        if next_ms is None:
            return
        # Clamp to now, so that only the timer's own delay counts as late in `_tick`.
        now_ms = self._now_ms()
        due_ms = max(next_ms, now_ms, self._not_before_ms)
        if self._timer is None or due_ms < self._due_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._due_ms = due_ms
            self._timer = self._reactor.call_later(due_ms - now_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        if now_ms - self._due_ms >= AWAY_MS:
            self._not_before_ms = now_ms + AGAIN_MS
            self._tend()
            return

        def came(replies: list[Reply] | None, fault: KafkaError | None) -> None:
            if fault is not None:
                log.warning("what was due in the groups could not be done: %s", fault)
            else:
                answer(replies or ())

        wall_ms = self._reactor.clock.wall_ms()
        self._host.ask(lambda machine: machine.tick(now_ms, wall_ms)).then(came)
        self._tend()


def answer(replies: Iterable[Reply]) -> None:
    """Complete the pending requests."""
    for token, response in replies:
        if token is not None and not token.settled:
            token.resolve(response)


def as_seen(fault: KafkaError) -> KafkaError:
    """Return NotCoordinator for a storage error: clients look up the coordinator and retry."""
    return NotCoordinator(str(fault)) if isinstance(fault, KafkaStorageError) else fault


def told(records: Sequence[group_records.GroupRecord], _: int) -> None:
    """Log the changes of groups; committed offsets are too many to log."""
    for kind, group_id, value in records:
        if kind is not group_records.GROUP_METADATA:
            continue
        # A name may contain anything, including line ends, and be long.
        name = group_id[:NAME_TOLD_MAX]
        if value is None:
            log.info("group %r is no more", name)
        else:
            members = [each["member_id"][:NAME_TOLD_MAX] for each in value["members"]]
            log.info(
                "group %r: generation %d, members: %s",
                name,
                value["generation"],
                ", ".join(map(repr, members[:MEMBERS_TOLD_MAX])) or "none",
            )
