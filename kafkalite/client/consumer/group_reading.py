"""Group reading: the partitions that a consumer reads as a member of a group.

    call = reading.prepare(discard)     before each wait for records; the callback to run, or None
    reading.begin(call)                 it begins
    reading.finish(call)                it has returned, or raised

A change of the assignment is applied in two steps, with the application's callback between them:

    revoked    commit positions, drop fetched records         on_revoke(partitions)    stop reading
    lost       drop fetched records                           on_lost(partitions)      stop reading
    assigned   begin to read, from the committed offsets      on_assign(partitions)    acknowledge

Callbacks run without the consumer's lock, so that they may commit, seek and pause.  While one runs
no record is returned.  All methods are called with the lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from kafkalite.client.consumer.assignment_reader import AssignmentReader
from kafkalite.client.consumer.positions import Position
from kafkalite.client.group.member_session import MemberSession
from kafkalite.client.group.membership import AssignmentChange, ChangeKind
from kafkalite.client.net import offset_requests
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
)

COMMIT_TIMEOUT_S = 2.0
"""Timeout of an automatic commit; a call for records is late by this time at most."""
EPOCH_TIMEOUT_S = 2.0
"""Time for which a commit with a stale epoch waits for the next one."""

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], Any]
"""Function of the partitions that were assigned, revoked or lost."""

log = logging.getLogger(__name__)


class RebalanceCallbacks(NamedTuple):
    """The application's callbacks; without on_lost, on_revoke is called for lost partitions."""

    on_assign: RebalanceCallback | None = None
    on_revoke: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None


class RebalanceCall(NamedTuple):
    """A callback to run for a change of the assignment."""

    function: RebalanceCallback
    change: AssignmentChange

    @property
    def partitions(self) -> list[TopicPartition]:
        """The argument of the callback."""
        return list(self.change.partitions)


class GroupReading:
    """Applies the changes of a member's assignment, and commits automatically."""

    def __init__(
        self,
        member: MemberSession,
        cluster: Cluster,
        reader: AssignmentReader,
        callbacks: RebalanceCallbacks,
        commits: bool,
    ) -> None:
        self.member = member
        self.callbacks = callbacks
        self.commits = commits
        """True if positions are committed automatically."""
        self._cluster = cluster
        self._reader = reader
        self._change: AssignmentChange | None = None
        """The change that is being applied; after an interrupt the next call begins it again."""
        self.call: RebalanceCall | None = None
        """The callback that runs, or will be run when its task was cancelled before."""
        self.is_in_callback = False

    def check_no_callback(self) -> None:
        """Raise RuntimeError while a callback runs."""
        if self.is_in_callback:
            raise RuntimeError(
                "A rebalance callback cannot call for records or unsubscribe; it may commit, seek"
                " and pause."
            )

    # Changes.

    def prepare(self, discard: Callable[[Position], None]) -> RebalanceCall | None:
        """Apply changes up to the next callback, and return that; then commit if that is due.

        A callback that runs is returned again.  `discard` drops the decoded records of a position
        that were not returned.
        """
        self.member.start()
        self.member.polled()
        if self.call is not None:
            return self.call
        while (change := self._change or self.member.take_change()) is not None:
            self._change = change
            self._begin(change, discard)
            function = self._callback_for(change.kind)
            if function is not None:
                self.call = RebalanceCall(function, change)
                return self.call
            self._end(change)
        self.member.check()
        if self.commits and self.member.commit_is_due:
            self.commit_given()
        return None

    def begin(self, call: RebalanceCall) -> bool:
        """Note that a callback begins to run; return False if another task runs it, or has."""
        if call is not self.call or self.is_in_callback:
            return False
        self.is_in_callback = True
        return True

    def finish(self, call: RebalanceCall) -> None:
        """Complete the change whose callback has returned."""
        assert call is self.call, "another callback runs"
        self.call = None
        self.is_in_callback = False
        self._end(call.change)

    def _begin(self, change: AssignmentChange, discard: Callable[[Position], None]) -> None:
        assignment = self._reader.assignment
        log.info(
            "Partitions %s.  group=%s partitions=%s",
            change.kind.name.lower(), self.member.identity.group_id,
            ",".join(f"{topic}-{number}" for topic, number in change.partitions),
        )  # fmt: skip
        if change.kind is ChangeKind.ASSIGNED:
            current = [position.partition for position in assignment]
            self._reader.assign_member([*current, *change.partitions])
            return
        for partition in change.partitions:
            if partition in assignment:
                discard(assignment[partition])
        if change.kind is ChangeKind.REVOKED and self.commits:
            self.commit_given()

    def _end(self, change: AssignmentChange) -> None:
        if change.kind is not ChangeKind.ASSIGNED:
            left = [
                position.partition
                for position in self._reader.assignment
                if position.partition not in change.partitions
            ]
            self._reader.assign_member(left)
        self.member.applied(change)
        self._change = None

    def _callback_for(self, kind: ChangeKind) -> RebalanceCallback | None:
        callbacks = self.callbacks
        if kind is ChangeKind.ASSIGNED:
            return callbacks.on_assign
        if kind is ChangeKind.LOST and callbacks.on_lost is not None:
            return callbacks.on_lost
        return callbacks.on_revoke

    # Commits.

    def commit_given(self) -> None:
        """Commit the positions; log an error, since a later commit covers the same records."""
        moved = [
            position
            for position in self._reader.assignment
            if position.offset is not None and position.offset != position.committed
        ]
        self.member.committed()
        if not moved:
            return
        offsets: dict[tuple[str, int], int] = {
            position.partition: position.offset for position in moved if position.offset is not None
        }
        try:
            commit_as_member(self._cluster, self.member, offsets, COMMIT_TIMEOUT_S)
        except KafkaError as error:
            log.warning(
                "Automatic commit failed.  group=%s error=%s",
                self.member.identity.group_id, error,
            )  # fmt: skip
            return
        for position in moved:
            position.committed = offsets[position.partition]


def commit_as_member(
    cluster: Cluster,
    member: MemberSession,
    offsets: offset_requests.Offsets,
    timeout_s: float,
) -> None:
    """Commit offsets with the member's epoch; with a stale one, once more with the next epoch."""
    deadline = Deadline(timeout_s)
    identity = member.identity
    try:
        try:
            offset_requests.commit_offsets(
                cluster, identity.group_id, offsets, deadline.left_s, member=identity
            )
        except StaleMemberEpoch:
            if not member.await_epoch_after(identity, deadline.within(EPOCH_TIMEOUT_S)):
                raise
            offset_requests.commit_offsets(
                cluster, identity.group_id, offsets, deadline.left_s, member=member.identity
            )
    except MEMBER_ERRORS as error:
        raise type(error)(refused_commit(identity, error)) from None


MEMBER_ERRORS = (
    FencedMemberEpoch,
    IllegalGeneration,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
)


def refused_commit(identity: GroupMetadata, error: KafkaError) -> str:
    """Return the message of a commit that the coordinator refused to a member."""
    if isinstance(error, RebalanceInProgress):
        return (
            f"Group {identity.group_id!r} rebalances; the offsets were not committed.  The next"
            " call for records takes part in the rebalance."
        )
    return (
        f"Group {identity.group_id!r} no longer has this member in its generation; the offsets were"
        " not committed, and other members may read the partitions.  The next call for records"
        " joins again; process records within max.poll.interval.ms."
    )
