"""Heartbeat thread of a member: sends the requests of its membership machine.

It has a connection of its own to the group's coordinator, which it looks up again after
NOT_COORDINATOR and after a lost connection.  One request is in flight at most; a leave does not
wait for it, but closes the connection.  The thread also requests the metadata that the machine
needs, and so may wait for other brokers; sessions are long enough for that.

It calls no code of the application, and holds no reference to the consumer: a consumer that is
collected stops it without leaving the group, and the session timeout ends the membership.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from kafkalite.client.group.membership import NEVER, MemberRequest, MembershipState
from kafkalite.client.group.shared_membership import SharedMembership
from kafkalite.client.group.subscription import Subscription
from kafkalite.client.net.cluster import ClientClosed, Cluster
from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.topology import TopicMetadata
from kafkalite.config.client import METADATA_MAX_AGE_MS, REQUEST_TIMEOUT_MS
from kafkalite.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    NetworkException,
    NotCoordinator,
    RequestTimedOut,
)
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_HEARTBEAT

PURPOSE = "group"
FEATURE = "group.version"
CALL_TIMEOUT_S = 5.0
"""Timeout of a lookup of the coordinator or of metadata, and of a connection attempt."""
TOPICS_RETRY_S = 1.0
FAILURE_PAUSE_S = 1.0
POLL_S_MAX = 1e6

log = logging.getLogger(__name__)


class AwaitedMemberResponse(NamedTuple):
    """A request in flight, its version, and the time at which it times out."""

    request: MemberRequest
    version: int
    due_s: float


class HeartbeatThread:
    """The thread, from `start` until `stop`."""

    def __init__(self, shared: SharedMembership, cluster: Cluster) -> None:
        self._shared = shared
        self._cluster = cluster
        self._pid = os.getpid()
        self._is_stopped = False
        self._is_abandoned = False
        self._connection: BrokerConnection | None = None
        self._in_flight: AwaitedMemberResponse | None = None
        self._created: Subscription | None = None
        """The subscription whose names were requested with auto-creation."""
        self._matched: Subscription | None = None
        """The subscription whose patterns were matched for a classic member."""
        self._was_stable = False
        self._create_due_s = 0.0
        self._topics_due_s = 0.0
        self._refresh_due_s = time.monotonic() + self._refresh_s
        self._thread = threading.Thread(
            target=self._run, name=f"kafkalite-group-{shared.group_id}", daemon=True
        )

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, without a leave."""
        self._is_stopped = True
        self._shared.wake_heartbeat()

    def abandon(self) -> None:
        """Stop the thread of a consumer that was collected; the thread closes the connections.

        Takes no lock, since finalizers call it.
        """
        self._is_abandoned = True
        self.stop()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, if it runs in this process."""
        if self.is_started and os.getpid() == self._pid:
            self._thread.join(timeout_s)

    # The loop.

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._try_step()
        except ClientClosed:
            pass
        except Exception as error:
            log.exception("Heartbeat thread ended.  group=%s", self._shared.group_id)
            self._shared.failure = error
            self._shared.wake_application()
        finally:
            self._end()

    def _try_step(self) -> None:
        """Do a step; after an unexpected exception continue with a new connection."""
        try:
            self._step()
        except ClientClosed:
            raise
        except Exception:
            if self._is_stopped:
                return
            log.exception("Heartbeat thread failed; retrying.  group=%s", self._shared.group_id)
            self._disconnect(NetworkException("The heartbeat thread failed."))
            time.sleep(FAILURE_PAUSE_S)

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._shared.progress.set()
        self._shared.heartbeat_waker.close()
        if self._is_abandoned:
            self._cluster.close()
            self._shared.application_waker.close()

    def _step(self) -> None:
        shared = self._shared
        shared.heartbeat_waker.clear()
        if self._is_stopped:
            return  # set before the waker, which may have been cleared just now
        topics_due_s = self._give_topics()
        shared.compute_assignment()
        with shared.locked() as membership:
            request = membership.next_request(time.monotonic())
            due_s = membership.due_s
        if request is not None:
            self._send(request)
        self._notify()
        if request is None:
            due_s = min(due_s, topics_due_s, shared.application_due_s())
            self._wait(due_s)

    def _notify(self) -> None:
        """Wake the application if there is something for it."""
        shared = self._shared
        now_s = time.monotonic()
        with shared.locked() as membership:
            is_stable = membership.state is MembershipState.STABLE
            is_due = membership.has_change or now_s >= shared.application_due_s()
            shared.application_was_woken(now_s)
        shared.progress.set()
        if is_due or (is_stable and not self._was_stable):  # to_table() waits for a stable member
            shared.wake_application()
        self._was_stable = is_stable

    def _wait(self, due_s: float) -> None:
        """Wait for a response, a wake-up or a time."""
        poll = select.poll()
        poll.register(self._shared.heartbeat_waker, select.POLLIN)
        connection, awaited = self._connection, self._in_flight
        if awaited is not None and connection is not None:
            due_s = min(due_s, awaited.due_s)
            try:
                poll.register(connection.fileno(), select.POLLIN)
            except NetworkException as error:
                self._disconnect(error)
                return
        wait_s = min(max(0.0, due_s - time.monotonic()), POLL_S_MAX)
        poll.poll(math.ceil(wait_s * 1000))
        if awaited is not None and connection is not None:
            self._receive(connection, awaited)

    # Requests.

    def _send(self, request: MemberRequest) -> None:
        if self._in_flight is not None:
            self._drop_connection()  # a leave: the request in flight does not matter any more
        try:
            connection = self._coordinator(request)
            shared = self._shared
            is_supported = (
                CONSUMER_GROUP_HEARTBEAT.key in connection.versions
                and connection.features.levels.get(FEATURE, 0) > 0
            )
            if not shared.decide(is_supported):
                return
            version = connection.version(request.api)
            timeout_s = request.timeout_s or self._request_timeout_s
            connection.send(request.api, version, request.fields(version), timeout_s=CALL_TIMEOUT_S)
            due_s = time.monotonic() + timeout_s
            self._in_flight = AwaitedMemberResponse(request, version, due_s)
        except KafkaError as error:
            self._disconnect(error, request)

    def _coordinator(self, request: MemberRequest) -> BrokerConnection:
        """Return a connection to the coordinator; a leave does not wait for a lost one."""
        timeout_s = 1.0 if request.is_leave else CALL_TIMEOUT_S
        connection = self._connection
        if connection is None or connection.closed:
            node_id = self._cluster.coordinator(self._shared.group_id, timeout_s)
            connection = self._cluster.connection(
                node_id, f"{PURPOSE} {id(self):x}", CALL_TIMEOUT_S
            )
            self._connection = connection
        return connection

    def _receive(self, connection: BrokerConnection, awaited: AwaitedMemberResponse) -> None:
        """Handle the response in flight, if it has arrived."""
        try:
            taken = connection.take()
            if taken is None:
                if time.monotonic() >= awaited.due_s:
                    raise RequestTimedOut("The coordinator did not respond in time.")
                return
            _, body = taken
            response: Fields = connection.validated(
                lambda: awaited.request.api.response.read(awaited.version, body)
            )
        except KafkaError as error:
            self._disconnect(error)
            return
        self._in_flight = None
        shared = self._shared
        if response.error_code in (NotCoordinator.code, CoordinatorNotAvailable.code):
            self._cluster.drop_coordinator(shared.group_id)
            self._drop_connection()
        shared.handle_response(awaited.request, response)
        self._notify()

    def _disconnect(self, error: KafkaError, request: MemberRequest | None = None) -> None:
        """Close the connection, and have the machine handle the failure of its request."""
        awaited = self._in_flight
        self._drop_connection()
        if isinstance(error, (NetworkException, RequestTimedOut)):
            self._cluster.drop_coordinator(self._shared.group_id)
        if request is None and awaited is not None:
            request = awaited.request
        log.debug("Group request failed.  group=%s error=%s", self._shared.group_id, error)
        if request is not None:
            self._shared.handle_failure(request, error)
        self._notify()

    def _drop_connection(self) -> None:
        connection, self._connection, self._in_flight = self._connection, None, None
        if connection is not None:
            connection.close()

    # Topics.

    def _give_topics(self) -> float:
        """Request the metadata that the machine needs; return when that is due again."""
        shared = self._shared
        now_s = time.monotonic()
        subscription = shared.subscription
        with shared.locked() as membership:
            wanted = membership.topics_wanted
            watched = tuple(membership.topics_watched)
            if membership.state is MembershipState.UNSUBSCRIBED:
                return NEVER
        create_due_s = self._create_topics(subscription)
        if shared.is_classic and subscription.has_patterns and subscription is not self._matched:
            self._matched = subscription
            self._refresh_due_s = now_s
        if wanted is None or wanted:
            if now_s >= self._topics_due_s:
                self._topics_due_s = now_s + TOPICS_RETRY_S
                if not self._update(wanted):
                    self._refresh_due_s = self._topics_due_s
            return min(create_due_s, self._topics_due_s)
        self._topics_due_s = 0.0
        if now_s >= self._refresh_due_s:
            if shared.is_classic and subscription.has_patterns:
                is_complete = self._match_patterns()
            else:
                is_complete = not watched or self._update(watched)
            wait_s = self._refresh_s if is_complete else TOPICS_RETRY_S
            self._refresh_due_s = time.monotonic() + wait_s
        return min(create_due_s, self._refresh_due_s)

    def _create_topics(self, subscription: Subscription) -> float:
        """Request the subscribed names once with auto-creation; return when to retry that."""
        if subscription is not self._created and time.monotonic() >= self._create_due_s:
            names = subscription.names
            if not names or self._describe(names, create=True) is not None:
                self._created = subscription
            else:
                self._create_due_s = time.monotonic() + TOPICS_RETRY_S
        return NEVER if subscription is self._created else self._create_due_s

    def _update(self, names: Collection[str] | None) -> bool:
        """Hand the metadata of these topics or of all to the machine; return whether all exist."""
        found = self._describe(names)
        if found is None:
            return False
        with self._shared.locked() as membership:
            membership.update_topics(found, time.monotonic())
        return names is None or all(name in found for name in names)

    def _match_patterns(self) -> bool:
        """Subscribe to what the patterns of a classic member match; return False after an error."""
        found = self._describe(None)
        if found is None:
            return False
        shared = self._shared
        with shared.locked() as membership:
            if membership.state not in (MembershipState.UNSUBSCRIBED, MembershipState.LEAVING):
                membership.subscribe(shared.subscription.on_client(found), time.monotonic())
                membership.update_topics(found, time.monotonic())
        return True

    def _describe(
        self, names: Iterable[str] | None, create: bool = False
    ) -> dict[str, TopicMetadata] | None:
        """Return the metadata of those topics that exist; None if no broker responded."""
        try:
            if names is None:
                # The broker matches a pattern with internal topics, too; this client does not.
                found = self._cluster.all_topics(
                    CALL_TIMEOUT_S, with_internal=not self._shared.is_classic
                )
            else:
                found = self._cluster.describe(names, CALL_TIMEOUT_S, create=create)
        except KafkaError as error:
            log.debug("Metadata request failed.  group=%s error=%s", self._shared.group_id, error)
            return None
        for name, topic in found.items():
            if isinstance(topic, KafkaError) and create:
                log.warning(
                    "Subscribed topic cannot be read now.  group=%s topic=%s error=%s",
                    self._shared.group_id, name, topic,
                )  # fmt: skip
        return {name: topic for name, topic in found.items() if isinstance(topic, TopicMetadata)}

    # Settings.

    @property
    def _refresh_s(self) -> float:
        return max(self._cluster.settings[METADATA_MAX_AGE_MS] / 1000, TOPICS_RETRY_S)

    @property
    def _request_timeout_s(self) -> float:
        return self._cluster.settings[REQUEST_TIMEOUT_MS] / 1000
