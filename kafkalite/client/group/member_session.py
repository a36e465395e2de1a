"""Member session: a consumer's membership, for the application's thread.

    member.start()                          starts the heartbeat thread
    member.subscribe(subscription)          joins, without waiting for the group
    member.polled()                         in each call for records
    change = member.take_change()           apply it, run the callbacks, then
    member.applied(change)

    member.begin_leave()                    the last change revokes all partitions
    member.await_left(deadline)             after it was applied
    member.close()

A heartbeat thread does the rest.  No call waits for it, except `await_left` and
`await_epoch_after`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

from kafkalite.client.group.heartbeat_thread import HeartbeatThread
from kafkalite.client.group.membership import (
    AssignmentChange,
    MemberSettings,
    Membership,
    MembershipState,
)
from kafkalite.client.group.shared_membership import SharedMembership
from kafkalite.client.group.subscription import Subscription
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.settings import ClientSettings
from kafkalite.client.net.waker import Waker

END_TIMEOUT_S = 1.0
"""Seconds to wait for the end of the thread; it is a daemon, and may outlive them."""


class MemberSession:
    """A member of a group, for one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ClientSettings,
        waker: Waker,
        machine: Callable[[MemberSettings], Membership] | None = None,
    ) -> None:
        """`machine`: as for SharedMembership."""
        self._shared = SharedMembership(settings, waker, machine)
        self._thread = HeartbeatThread(self._shared, cluster)
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, self._thread.abandon)
        self._finalizer.atexit = False

    def start(self) -> None:
        """Start the heartbeat thread, if it has not been started."""
        if not self._thread.is_started:
            self._thread.start()

    # Membership.

    def subscribe(self, subscription: Subscription) -> None:
        """Join the group with this subscription, or replace the member's."""
        self._shared.subscribe(subscription)

    def polled(self) -> None:
        """Note that the application polls."""
        self._shared.polled()

    def check(self) -> None:
        """Raise the error that ended the membership, if one did.

        That is RuntimeError after an unexpected exception in the heartbeat thread.
        """
        with self._shared.locked() as membership:
            error = membership.error
        if error is not None:
            raise error.copy()
        failure = self._shared.failure
        if failure is not None:
            raise RuntimeError(
                f"The heartbeat thread of group {self._shared.group_id!r} has ended by"
                f" {failure!r}; close this consumer and create another."
            ) from failure

    def take_change(self) -> AssignmentChange | None:
        """Return the next change of the assignment; none while one is being applied."""
        with self._shared.locked() as membership:
            return membership.take_change()

    def applied(self, change: AssignmentChange) -> None:
        """Note that a change was applied, and its callbacks have returned."""
        with self._shared.locked() as membership:
            membership.applied(change, time.monotonic())
        self._shared.wake_heartbeat()

    @property
    def is_stable(self) -> bool:
        """True if the member has its whole assignment."""
        with self._shared.locked() as membership:
            return membership.state is MembershipState.STABLE

    @property
    def identity(self) -> GroupMetadata:
        """Group, epoch or generation, member id and instance id."""
        with self._shared.locked() as membership:
            return membership.identity

    def identity_to_fetch(self) -> GroupMetadata | None:
        """Return the identity to fetch offsets with; None for the classic protocol."""
        return None if self._shared.is_classic else self.identity

    @property
    def protocol(self) -> str:
        """The protocol of the group: `classic` or `consumer`."""
        return "classic" if self._shared.is_classic else "consumer"

    def await_epoch_after(self, identity: GroupMetadata, deadline: Deadline) -> bool:
        """Wait until the member has another epoch; return False if the deadline has passed."""
        while self.identity == identity:
            self._shared.progress.clear()
            if self.identity == identity and not self._shared.progress.wait(deadline.left_s):
                return False
        return True

    # Automatic commits.

    @property
    def commit_is_due(self) -> bool:
        """True if an automatic commit is due."""
        return self._shared.commit_is_due

    def committed(self) -> None:
        """Note an automatic commit, successful or not."""
        self._shared.committed()

    # The end.

    def begin_leave(self) -> None:
        """Begin to leave the group; the partitions are revoked by the next change."""
        self._shared.failure = None  # it has no consequence any more
        with self._shared.locked() as membership:
            membership.leave(time.monotonic())
        self._shared.wake_heartbeat()

    def await_left(self, deadline: Deadline) -> None:
        """Wait until the coordinator has acknowledged the leave, or the deadline has passed."""
        while True:
            self._shared.progress.clear()
            with self._shared.locked() as membership:
                has_left = membership.state is MembershipState.UNSUBSCRIBED
            if has_left or not self._thread.is_running or deadline.passed:
                return
            self._shared.progress.wait(min(deadline.left_s, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Stop the thread; a forked child has none, and the parent's membership continues."""
        self._finalizer.detach()
        if os.getpid() == self._pid and self._thread.is_started:
            self._thread.stop()
            self._thread.join(END_TIMEOUT_S)
        else:
            self._shared.heartbeat_waker.close()
