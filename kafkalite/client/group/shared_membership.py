"""Shared membership: a membership machine between the heartbeat thread and the application's.

    with shared.locked() as membership:         either thread, briefly and without I/O
        membership.polled(time.monotonic())
    shared.wake_heartbeat()                     the application changed something

    shared.wake_application()                   there is a change, an error, or something is due

The machine is chosen when the first connection to the coordinator shows which protocols it
supports, and replaced by the classic one if the coordinator refuses the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kafkalite._ext.locking import LockGuard
from kafkalite.client.group.classic_protocol_member import ClassicProtocolMember
from kafkalite.client.group.consumer_protocol_member import ConsumerProtocolMember
from kafkalite.client.group.membership import (
    NEVER,
    MemberRequest,
    MemberSettings,
    Membership,
    MembershipState,
)
from kafkalite.client.group.subscription import Subscription
from kafkalite.client.net.settings import ClientSettings
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import (
    AUTO_COMMIT_INTERVAL_MS,
    ENABLE_AUTO_COMMIT,
    GROUP_ID,
    GROUP_INSTANCE_ID,
    GROUP_PROTOCOL,
    GROUP_REMOTE_ASSIGNOR,
    HEARTBEAT_INTERVAL_MS,
    MAX_POLL_INTERVAL_MS,
    PARTITION_ASSIGNMENT_STRATEGY,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    SESSION_TIMEOUT_MS,
)
from kafkalite.errors import KafkaError
from kafkalite.ids import new_id, written_id
from kafkalite.protocol.schema import Fields

CLASSIC = "classic"
POLL_SHARE = 3
"""The application is woken after this share of max.poll.interval.ms, to show that it polls."""


class SharedMembership:
    """A member's machine and the means to wake the threads that use it."""

    def __init__(
        self,
        settings: ClientSettings,
        application_waker: Waker,
        machine: Callable[[MemberSettings], Membership] | None = None,
    ) -> None:
        """`machine`: of a protocol that is not chosen here, without automatic commits."""
        self.group_id = str(settings[GROUP_ID])
        self.settings = member_settings(self.group_id, settings)
        self.subscription = Subscription()
        self.progress = threading.Event()
        """Set by the heartbeat thread after each event, for a thread that waits for one."""
        self.heartbeat_waker = Waker()
        self.application_waker = application_waker
        self.failure: BaseException | None = None
        """The exception that has ended the heartbeat thread."""
        self._lock = threading.Lock()
        protocol = settings[GROUP_PROTOCOL]
        self._may_fall_back = protocol == "auto" and machine is None
        """True if the classic protocol replaces the other where that is not supported."""
        self._is_decided = not self._may_fall_back
        self._membership: Membership
        if machine is not None:
            self._membership = machine(self.settings)
        elif protocol == CLASSIC:
            self._membership = ClassicProtocolMember(self.settings)
        else:
            self._membership = ConsumerProtocolMember(self.settings, written_id(new_id()))
        commits = settings[ENABLE_AUTO_COMMIT] and machine is None
        self._commit_interval_s = settings[AUTO_COMMIT_INTERVAL_MS] / 1000 if commits else None
        self._commit_due_s = NEVER
        self._commit_wanted_s = NEVER
        self._poll_wanted_s = NEVER

    def locked(self) -> LockGuard[Membership]:
        """Use the machine; the lock is held for moments only."""
        return LockGuard(self._lock, None, self._current)

    def _current(self, _: bool) -> Membership:
        return self._membership

    @property
    def is_classic(self) -> bool:
        """True for the classic protocol, False for KIP-848."""
        return isinstance(self._membership, ClassicProtocolMember)

    def wake_heartbeat(self) -> None:
        """Have the heartbeat thread look at the machine."""
        self.heartbeat_waker.set()

    def wake_application(self) -> None:
        """End the application's wait for records."""
        self.application_waker.set()

    # The protocol.

    def decide(self, supports_consumer_protocol: bool) -> bool:
        """Choose the protocol of the coordinator; return False if the machine was replaced."""
        if self._is_decided:
            return True
        self._is_decided = True
        if not supports_consumer_protocol:
            with self.locked():
                self._fall_back(time.monotonic())
        return supports_consumer_protocol

    def handle_response(self, request: MemberRequest, response: Fields) -> None:
        """Have the machine handle a response; replace it if its protocol is not supported."""
        now_s = time.monotonic()
        with self.locked() as membership:
            membership.handle_response(request, response, now_s)
            if membership.is_unsupported and self._may_fall_back:
                self._fall_back(now_s)

    def handle_failure(self, request: MemberRequest, error: KafkaError) -> None:
        """Have the machine handle the failure of a request, as `handle_response`."""
        now_s = time.monotonic()
        with self.locked() as membership:
            membership.handle_failure(request, error, now_s)
            if membership.is_unsupported and self._may_fall_back:
                self._fall_back(now_s)

    def compute_assignment(self) -> None:
        """Compute the assignment of a classic group whose leader the member is, if that is due.

        The lock is not held meanwhile: the application polls, and may leave.
        """
        with self.locked() as membership:
            if not isinstance(membership, ClassicProtocolMember):
                return
            task = membership.assignment_task
        if task is not None:
            assignments = task.compute()
            with self.locked():
                membership.assign(task, assignments, time.monotonic())

    def _fall_back(self, now_s: float) -> None:
        """Replace the machine, which owns nothing, by a classic one with the same subscription."""
        former, self._membership = self._membership, ClassicProtocolMember(self.settings)
        if former.state not in (MembershipState.UNSUBSCRIBED, MembershipState.LEAVING):
            self._membership.subscribe(self.subscription.on_client(()), now_s)

    # Calls of the application.

    def subscribe(self, subscription: Subscription) -> None:
        """Join with this subscription, or replace the member's."""
        now_s = time.monotonic()
        with self.locked() as membership:
            self.subscription = subscription
            topics = subscription.on_client(()) if self.is_classic else subscription.on_broker()
            membership.subscribe(topics, now_s)
        self.polled()
        self.wake_heartbeat()

    def polled(self) -> None:
        """Note that the application polls; wake the heartbeat thread if a time has come closer."""
        now_s = time.monotonic()
        with self.locked() as membership:
            due_s = min(membership.due_s, self.application_due_s())
            membership.polled(now_s)
            self._poll_wanted_s = now_s + self.settings.max_poll_interval_s / POLL_SHARE
            if self._commit_due_s == NEVER:
                self.committed()
            is_sooner = min(membership.due_s, self.application_due_s()) < due_s
        if is_sooner:
            self.wake_heartbeat()

    @property
    def commit_is_due(self) -> bool:
        """True if an automatic commit is due."""
        return time.monotonic() >= self._commit_due_s

    def committed(self) -> None:
        """Note an automatic commit, successful or not; the next one is due after the interval."""
        if self._commit_interval_s is not None:
            due_s = self.application_due_s()
            self._commit_due_s = time.monotonic() + self._commit_interval_s
            self._commit_wanted_s = self._commit_due_s
            if self._commit_due_s < due_s:
                self.wake_heartbeat()

    def application_due_s(self) -> float:
        """Return when the application has to be woken, as far as time decides it."""
        return min(self._commit_wanted_s, self._poll_wanted_s)

    def application_was_woken(self, now_s: float) -> None:
        """Note that the application was woken for what is due; it is woken only once."""
        if now_s >= self._poll_wanted_s:
            self._poll_wanted_s = NEVER
        if now_s >= self._commit_wanted_s:
            self._commit_wanted_s = NEVER


def member_settings(group_id: str, settings: ClientSettings) -> MemberSettings:
    """Return the settings of a member."""
    return MemberSettings(
        group_id,
        instance_id=settings[GROUP_INSTANCE_ID],
        max_poll_interval_s=settings[MAX_POLL_INTERVAL_MS] / 1000,
        session_timeout_s=settings[SESSION_TIMEOUT_MS] / 1000,
        heartbeat_interval_s=settings[HEARTBEAT_INTERVAL_MS] / 1000,
        remote_assignor=settings[GROUP_REMOTE_ASSIGNOR],
        strategies=(*settings[PARTITION_ASSIGNMENT_STRATEGY],),
        retry_backoff_s=settings[RETRY_BACKOFF_MS] / 1000,
        retry_backoff_max_s=settings[RETRY_BACKOFF_MAX_MS] / 1000,
    )
