"""Share leaders: the leaders of a member's partitions, and the wait for their records.

    leaders.assigned = {partition: topic_id}
    leaders.pump(deadline, records_max=500)         send what is due, take what has arrived
    leaders.fetched                                 records that were acquired, in that order

A leader is sent a fetch when all its records were given, so that locks do not run while records
wait; what was acknowledged goes with it.  While records are left, acknowledgements are sent alone,
at intervals.  All methods are called by one thread at a time.
"""

from __future__ import annotations

import logging
import math
import select
import time
from collections import deque
from collections.abc import Mapping

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Backoff, Deadline
from kafkalite.client.net.topology import NO_LEADER, TopicPartition
from kafkalite.client.net.waker import Waker
from kafkalite.client.share.acquired_partition import AcknowledgedRun, TopicIdPartition
from kafkalite.client.share.acquired_records import AcquiredRecords
from kafkalite.client.share.leader_session import (
    AcknowledgementOutcome,
    LeaderSession,
    LockRenewal,
    ShareResponse,
)
from kafkalite.client.share.share_leader import ShareLeader
from kafkalite.config.client import RETRY_BACKOFF_MAX_MS, RETRY_BACKOFF_MS
from kafkalite.errors import KafkaError, NetworkException, RequestTimedOut, StaleMetadata

ACKNOWLEDGE_INTERVAL_S = 0.1
"""Interval of acknowledgements that are sent alone."""
LEADERS_AGE_S = 5.0
"""Time after which the leaders are looked up in the metadata again."""
METADATA_TIMEOUT_S = 1.0
POLL_S_MAX = 1e6

WantedByNode = dict[int, dict[TopicIdPartition, TopicPartition]]

log = logging.getLogger(__name__)


class ShareLeaders:
    """The sessions of a member at all leaders."""

    def __init__(self, cluster: Cluster, group_id: str, member_id: str, waker: Waker) -> None:
        self.queue: deque[AcknowledgedRun] = deque()
        """Acknowledgements since the last call, by any thread."""
        self.fetched: deque[AcquiredRecords] = deque()
        """Records that were not given; the first ones may be decoded in part."""
        self.outcomes: deque[AcknowledgementOutcome] = deque()
        self.errors: deque[KafkaError] = deque()
        """Errors to raise."""
        self.due_s = 0.0
        """Time at which `pump` is to be called, even if there are records."""
        self._cluster = cluster
        self._group_id = group_id
        self._member_id = member_id
        self._waker = waker
        self._assigned: Mapping[TopicPartition, bytes] = {}
        self._leaders: dict[int, ShareLeader] = {}
        self._wanted: WantedByNode = {}
        self._wanted_due_s = 0.0
        self._stale_topics: set[str] = set()
        settings = cluster.settings
        self._metadata_backoff = Backoff(
            settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS]
        )

    @property
    def assigned(self) -> Mapping[TopicPartition, bytes]:
        """The partitions to fetch from, with their topic ids."""
        return self._assigned

    @assigned.setter
    def assigned(self, partitions: Mapping[TopicPartition, bytes]) -> None:
        self._assigned = dict(partitions)
        self._wanted_due_s = 0.0

    @property
    def has_unconfirmed(self) -> bool:
        """True if there are acknowledgements without an outcome."""
        self._collect()
        return any(leader.session.has_unconfirmed for leader in self._leaders.values())

    @property
    def unconfirmed(self) -> set[TopicPartition]:
        """Partitions with acknowledgements without an outcome."""
        return {
            run.acquired.partition
            for leader in self._leaders.values()
            for run in leader.session.unconfirmed
            if run.is_reported
        }

    def renew(self, renewal: LockRenewal) -> None:
        """Have locks renewed by the next requests."""
        leader = self._leaders.get(renewal.acquired.node_id)
        assert leader is not None, "the records were acquired from a known leader"
        leader.session.renew(renewal, time.monotonic())

    # Requests and responses.

    def pump(self, deadline: Deadline, *, records_max: int) -> None:
        """Send what is due; wait for responses until the deadline or the waker, and take them.

        A fetch acquires about `records_max` records; with 0 nothing is fetched.
        """
        self._collect()
        due_s = self._look_up_leaders(deadline)
        for node_id in self._wanted:
            self._leader(node_id)
        for leader in self._leaders.values():
            due_s = min(due_s, self._serve(leader, deadline, records_max))
        self.due_s = time.monotonic() + ACKNOWLEDGE_INTERVAL_S
        self._receive(0.0 if self.errors else min(deadline.left_s, due_s - time.monotonic()))

    def _collect(self) -> None:
        """Give what was acknowledged to the sessions."""
        now_s = time.monotonic()
        while self.queue:
            run = self.queue.popleft()
            self._leader(run.acquired.node_id).session.add(run, now_s)

    def _leader(self, node_id: int) -> ShareLeader:
        leader = self._leaders.get(node_id)
        if leader is None:
            session = LeaderSession(
                node_id, self._group_id, self._member_id, self.queue, self.outcomes
            )
            leader = ShareLeader(self._cluster, session, f"share {id(self):x}")
            self._leaders[node_id] = leader
        return leader

    def _serve(self, leader: ShareLeader, deadline: Deadline, records_max: int) -> float:
        """Send the request of a leader that is due; return when the next one is."""
        now_s = time.monotonic()
        if leader.is_busy:
            return leader.due_s
        if leader.backoff.left_s:
            return now_s + leader.backoff.left_s
        session = leader.session
        wanted = self._wanted.get(leader.node_id, {})
        fetches = bool(records_max and wanted) and not self._has_records(leader)
        may_ride = fetches and not session.has_renewals and session.pending <= wanted.keys()
        is_late = now_s >= leader.sent_s + ACKNOWLEDGE_INTERVAL_S
        try:
            if may_ride:
                leader.send_fetch(wanted, records_max, deadline.left_s)
            elif session.has_renewals or (
                session.pending and (fetches or is_late or not records_max)
            ):
                leader.send_acknowledgements(deadline.left_s)
            elif session.pending:
                return leader.sent_s + ACKNOWLEDGE_INTERVAL_S
        except KafkaError as error:
            self._fail(leader, error)
            return now_s + leader.backoff.left_s
        return leader.due_s

    def _has_records(self, leader: ShareLeader) -> bool:
        return any(records.acquired.node_id == leader.node_id for records in self.fetched)

    def _receive(self, wait_s: float) -> None:
        """Wait for responses or the waker, and take the responses."""
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        by_descriptor: dict[int, ShareLeader] = {}
        for leader in self._leaders.values():
            if leader.is_busy:
                try:
                    descriptor = leader.fileno()
                except NetworkException as error:
                    self._fail(leader, error)
                    return
                by_descriptor[descriptor] = leader
                poll.register(descriptor, select.POLLIN)
        deadline = Deadline(min(max(0.0, wait_s), POLL_S_MAX))
        is_done = False
        while not is_done:
            ready = poll.poll(math.ceil(deadline.left_s * 1000))
            is_done = not ready
            for descriptor, _ in ready:
                found = by_descriptor.get(descriptor)
                # Part of a response does not end the wait; large ones arrive in several parts.
                is_done |= found is None or self._take(found)
            is_done |= deadline.passed
        now_s = time.monotonic()
        for leader in by_descriptor.values():
            if leader.is_busy and now_s >= leader.due_s:
                self._fail(leader, RequestTimedOut("The node did not respond in time."))

    def _take(self, leader: ShareLeader) -> bool:
        """Read what has arrived; return False if that is a part of a response only."""
        try:
            response = leader.receive()
            if response is None:
                return False
            self._handle(leader, response)
        except KafkaError as error:
            self._fail(leader, error)
        return True

    def _handle(self, leader: ShareLeader, response: ShareResponse) -> None:
        self.fetched.extend(response.records)
        if response.error is not None:
            leader.backoff.failed(response.error)
            self._note(response.error)
            return
        for failure in response.failures:
            leader.backoff.failed(failure.error)
            if isinstance(failure.error, StaleMetadata):
                self._make_stale(failure.partition.topic)
                if failure.leader is not None:
                    self._cluster.update_leader(*failure.partition, failure.leader)
            else:
                self._note(failure.error)
        if not response.failures:
            leader.backoff.succeeded()
            self._metadata_backoff.succeeded()

    def _note(self, error: KafkaError) -> None:
        """Raise an error that a retry does not solve in the next call."""
        if error.retriable:
            log.debug("Share request failed.  group=%s error=%s", self._group_id, error)
        else:
            self.errors.append(error)

    def _fail(self, leader: ShareLeader, error: KafkaError) -> None:
        """Reset the session of a leader after a failure of its connection."""
        leader.fail(error)
        for partition in self._wanted.get(leader.node_id, {}).values():
            self._make_stale(partition.topic)
        self._note(error)

    # Metadata.

    def _look_up_leaders(self, deadline: Deadline) -> float:
        """Look up the leaders of the assigned partitions; return when that is due again."""
        if self._stale_topics and not self._metadata_backoff.left_s:
            self._refresh()
        now_s = time.monotonic()
        if now_s >= self._wanted_due_s:
            self._wanted_due_s = now_s + LEADERS_AGE_S
            wanted: WantedByNode = {}
            for partition, topic_id in self._assigned.items():
                node_id = self._leader_of(partition)
                if node_id is not None:
                    wanted.setdefault(node_id, {})[topic_id, partition.partition] = partition
            self._wanted = wanted
        if self._stale_topics:
            return now_s + self._metadata_backoff.left_s
        return now_s + LEADERS_AGE_S

    def _leader_of(self, partition: TopicPartition) -> int | None:
        """Return the leader of a partition; None: it is looked up again after a pause."""
        if partition.topic not in self._stale_topics:
            try:
                topic = self._cluster.topic(partition.topic, METADATA_TIMEOUT_S)
                found = topic.partitions.get(partition.partition)
                if found is not None and found.leader != NO_LEADER:
                    return found.leader
            except KafkaError as error:
                self._metadata_backoff.failed(error)
                self._note(error)
        self._make_stale(partition.topic)
        return None

    def _make_stale(self, topic: str) -> None:
        """Have the metadata of a topic refreshed; its partitions are not fetched before."""
        self._stale_topics.add(topic)
        self._wanted_due_s = 0.0

    def _refresh(self) -> None:
        """Refresh the metadata of topics whose leaders have changed."""
        error: KafkaError = NetworkException("Metadata were refreshed just now.")
        try:
            self._cluster.refresh(*self._stale_topics, timeout_s=METADATA_TIMEOUT_S)
        except KafkaError as raised:
            error = raised
        else:
            self._stale_topics.clear()
        # Also after a success: the brokers may learn of a new leader later.
        self._metadata_backoff.failed(error)
        self._wanted_due_s = 0.0

    # The end.

    def end(self, deadline: Deadline) -> None:
        """Send what was acknowledged, and end the sessions."""
        self._collect()
        is_last_attempt = False
        while not is_last_attempt:
            is_last_attempt = deadline.passed
            for leader in self._leaders.values():
                # A fetch that waits could acquire what the end of its session releases.
                if leader.session.is_open and not leader.is_busy:
                    try:
                        leader.send_acknowledgements(deadline.left_s, is_final=True)
                    except KafkaError as error:
                        self._fail(leader, error)
            if not any(leader.is_busy for leader in self._leaders.values()):
                break
            self._waker.clear()
            self._receive(deadline.left_s)
        for leader in self._leaders.values():
            leader.disconnect()
            leader.session.reset(RequestTimedOut("The consumer was closed before the response."))
