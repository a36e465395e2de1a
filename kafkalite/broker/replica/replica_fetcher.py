"""ReplicaFetcher: fetches the partitions that this node follows from one leader node.

    partitions that changed ─▶ Fetch (one session) ─▶ leader
    records, high watermarks ◀─ response: applied within APPLY_MS a tick ─▶ next Fetch

All partitions that the node leads share one connection and one fetch session: a request names only
the partitions whose state has changed since, and a response only those with news.  The leader
responds at once if it has news, otherwise after `replica.fetch.wait.max.ms`.  A change that cannot
wait, such as a new partition, is sent in a second request; the leader then completes the first.

A response concerns the partitions as they were when its request was sent: what a later request has
changed, such as the leader epoch of a partition, is not applied.

A throttled partition that is not in sync leaves the session while the node's quota is exceeded
(replication_quota.py), and is fetched again when the rate has fallen.

A partition whose log is being truncated leaves the session until that is done (Log.is_truncating).
One whose fetch failed leaves it for a time that doubles with each failure.  If the connection is
lost, the next one begins a new session with a full fetch.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalite.broker.replica.divergence import LogRange
from kafkalite.broker.replica.replica_fetch import (
    CommittedRecordsDiffer,
    PartitionKey,
    ReplicaFetch,
    ReplicaFetchResponse,
)
from kafkalite.errors import (
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    raise_for,
)
from kafkalite.protocol.frame import response_header, write_header
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.storage.log.replicated_append import InvalidReplicatedBatch
from kafkalite.storage.state.leader_epochs import EpochEnd

if TYPE_CHECKING:
    from kafkalite.broker.node_settings import ReplicaFetchSettings
    from kafkalite.broker.replica.followed_partition import FollowedPartition
    from kafkalite.broker.replica.replication_quota import ReplicationQuota
    from kafkalite.broker.scheduler import ScheduledCall, Scheduler
    from kafkalite.clock import Clock

log = logging.getLogger("kafkalite.broker")

VERSION = FETCH.versions[1]
HEADER_SIZE = len(response_header(0, FETCH.response_header_flexible(VERSION)))

IN_FLIGHT_MAX = 2
"""Maximum number of requests without a response."""

CHANGED_MAX = 500
"""Maximum number of partitions in a request, which takes a few ms to build and to handle."""

THROTTLED_MAX = CHANGED_MAX // 5
"""Maximum number of throttled partitions that are fetched at once when the rate has fallen."""

DISK_RETRY_MS = 1_000
"""Delay before a partition is fetched again whose log could not be written, as on a full disk."""

APPLY_MS = 10
"""Maximum duration of the application of responses in one tick; at least one partition each."""

RETRY_MS_MIN = 5
"""First delay of a retry; doubled each time."""

CONNECT_RETRY_MS_MAX = 500
"""Maximum delay between two attempts to connect to the leader."""


class FollowerNode(NamedTuple):
    """This node as a follower."""

    node_id: int
    node_epoch: int


class FollowerThrottle(NamedTuple):
    """The throttle of the partitions that a node follows."""

    quota: ReplicationQuota
    is_in_sync: Callable[[bytes, int], bool]
    """Returns whether the node is in the ISR of a partition."""


class SentFetch(NamedTuple):
    """The fetch of a partition in the session, and the request that it was first sent in."""

    fetch: ReplicaFetch
    request: int


class FetchedPartition(NamedTuple):
    """The part of a response that concerns one partition."""

    key: PartitionKey
    request: int
    error_code: int
    response: ReplicaFetchResponse


class PeerChannel(Protocol):
    """The connection to a leader (transport/peer_connection.py)."""

    def send(self, frame: bytes) -> None:
        """Send a request."""

    def close(self) -> None:
        """Close the connection, without a call of `on_close`."""


Connect = Callable[[Callable[[memoryview], object], Callable[[], object]], PeerChannel]
"""`connect(on_response, on_close)` opens the connection to the leader."""


class ReplicaFetcher:
    """The fetches from one leader; see the module."""

    def __init__(
        self,
        node: FollowerNode,
        connect: Connect,
        settings: Callable[[], ReplicaFetchSettings],
        scheduler: Scheduler,
        clock: Clock,
        on_applied: Callable[[FollowedPartition], object],
        throttle: FollowerThrottle,
    ) -> None:
        """`on_applied` is called when the log or the high watermark of a partition has changed."""
        self._throttle = throttle
        self._throttled: dict[PartitionKey, None] = {}
        """Partitions that are out of the session until the rate has fallen."""
        self._behind: dict[PartitionKey, None] = {}
        """Throttled partitions in the session that were not in sync when they were last sent."""
        self._throttle_timer: ScheduledCall | None = None
        self._node = node
        self._connect = connect
        self._settings = settings
        self._scheduler = scheduler
        self._clock = clock
        self._on_applied = on_applied
        self._connection: PeerChannel | None = None
        self._partitions: dict[PartitionKey, FollowedPartition] = {}
        self._waiting: dict[PartitionKey, ScheduledCall] = {}
        """Partitions that are out of the session until their retry."""
        self._sent: dict[PartitionKey, SentFetch] = {}
        """The session at the leader, once it has all requests."""
        self._changed: dict[PartitionKey, None] = {}
        self._forgotten: dict[PartitionKey, None] = {}
        self._session_id = self._session_epoch = 0
        self._is_first_request = True
        self._request = 0
        self._in_flight = 0
        self._unapplied: deque[FetchedPartition] = deque()
        self._is_urgent = False
        """True if a change is to be sent while another request is in flight."""
        self._timer: ScheduledCall | None = None
        self._connect_retry_ms = 0
        self.failures = 0
        """Number of fetches of partitions that failed."""
        self.bytes_in = 0
        """Bytes of records received."""

    def __len__(self) -> int:
        return len(self._partitions)

    # -- partitions --------------------------------------------------------------------------

    def renew(self, node: FollowerNode) -> None:
        """Fetch as another registration of this process from now on."""
        if node != self._node:
            self._node = node
            self._restart()

    def add(self, partition: FollowedPartition) -> None:
        """Fetch a partition from now on, in place of an earlier one with its key."""
        key = partition.key
        self._stop_waiting(key)
        self._throttled.pop(key, None)
        self._partitions[key] = partition
        self._forgotten.pop(key, None)
        self._changed[key] = None
        self._send_now()

    def remove(self, key: PartitionKey) -> None:
        """Stop fetching a partition."""
        self._stop_waiting(key)
        self._throttled.pop(key, None)
        self._partitions.pop(key, None)
        self._forget(key)
        if not self._partitions:
            self.close()

    def resume(self, partition: FollowedPartition) -> None:
        """Fetch a partition again, after its log was truncated."""
        key = partition.key
        is_fetched = self._partitions.get(key) is partition and partition.error is None
        if is_fetched and key not in self._waiting and not partition.log.is_truncating:
            self._forgotten.pop(key, None)
            self._changed[key] = None
            self._send_now()

    def flushed(self, partition: FollowedPartition) -> None:
        """Tell the leader that more of a log is flushed, with the next request, or at once if that
        commits records."""
        if partition.key in self._sent:
            self._changed[partition.key] = None
            if partition.is_flush_awaited:
                self._send_now()

    def close(self) -> None:
        """Close the connection and forget all partitions."""
        for key in list(self._waiting):
            self._stop_waiting(key)
        self._partitions.clear()
        self._throttled.clear()
        self._stop_throttle_timer()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            self._connection.close()
        self._disconnected()

    def _stop_waiting(self, key: PartitionKey) -> None:
        timer = self._waiting.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _forget(self, key: PartitionKey) -> None:
        self._changed.pop(key, None)
        self._behind.pop(key, None)
        if self._sent.pop(key, None) is not None:
            self._forgotten[key] = None

    # -- connection and session --------------------------------------------------------------

    def _send_now(self) -> None:
        """Send what has changed in the next tick, with other changes of this one."""
        self._is_urgent = True
        if self._timer is None:
            self._timer = self._scheduler.call_later(0, self._send_in_tick)

    def _send_in_tick(self) -> None:
        self._timer = None
        if not self._partitions:
            return
        if self._connection is None:
            self._connection = self._connect(self._received, self._closed)
            self._is_first_request = True
        self._send()

    def _closed(self) -> None:
        """Handle the loss of the connection."""
        self._disconnected()
        if self._partitions and self._timer is None:
            self._connect_retry_ms = min(
                CONNECT_RETRY_MS_MAX, max(RETRY_MS_MIN, 2 * self._connect_retry_ms)
            )
            self._timer = self._scheduler.call_later(self._connect_retry_ms, self._send_in_tick)

    def _disconnected(self) -> None:
        self._connection = None
        self._in_flight = 0
        self._unapplied.clear()
        self._end_session()

    def _end_session(self) -> None:
        """Begin another session with the next request."""
        self._session_id = self._session_epoch = 0
        self._sent.clear()
        self._behind.clear()
        self._forgotten.clear()
        self._throttled.clear()  # it is decided with the next request
        self._changed = dict.fromkeys(self._partitions.keys() - self._waiting.keys())

    # -- requests ----------------------------------------------------------------------------

    def _send(self) -> None:
        """Send a request, if none is in flight or something cannot wait."""
        if self._connection is None or self._unapplied:
            return
        # A session that is being created has no id yet for a second request.
        is_pending = self._in_flight > 0 and not (self._is_urgent and self._session_id)
        if is_pending or self._in_flight >= IN_FLIGHT_MAX:
            return
        if self._in_flight and not self._changed and not self._forgotten:
            self._is_urgent = False
            return
        self._request += 1
        if self._behind and not self._in_flight and self._throttle.quota.is_exceeded:
            # The leader would send the records of these, too.
            self._changed.update(dict.fromkeys(itertools.islice(self._behind, CHANGED_MAX)))
        changed = self._take_changed()
        self._is_urgent = bool(self._changed)
        if not self._session_id and not changed:
            return  # all partitions wait for a retry
        self._in_flight += 1
        self._connection.send(self._frame(changed))

    def _take_changed(self) -> list[tuple[FollowedPartition, ReplicaFetch]]:
        found: list[tuple[FollowedPartition, ReplicaFetch]] = []
        withheld = 0
        while self._changed and len(found) + withheld < CHANGED_MAX:
            key = next(iter(self._changed))
            del self._changed[key]
            partition = self._partitions[key]
            if partition.log.is_truncating:
                continue
            fetch = partition.replication.next_fetch()
            sent = self._sent.get(key)
            if partition.is_throttled and self._is_withheld(partition, fetch, sent):
                self._withhold(key)
                withheld += 1
                continue
            if sent is None or sent.fetch != fetch:
                self._sent[key] = SentFetch(fetch, self._request)
                found.append((partition, fetch))
        return found

    def _is_withheld(
        self, partition: FollowedPartition, fetch: ReplicaFetch, sent: SentFetch | None
    ) -> bool:
        """Return whether a partition is not fetched now because the quota is exceeded.

        A fetch that was sent before stays: a response to it may be on its way.
        """
        if partition.has_all_committed or self._throttle.is_in_sync(*partition.key):
            self._behind.pop(partition.key, None)
            return False
        self._behind[partition.key] = None
        was_sent = sent is not None and sent.fetch.follower.offset == fetch.follower.offset
        return self._throttle.quota.is_exceeded and not (was_sent and self._in_flight)

    def _withhold(self, key: PartitionKey) -> None:
        """Fetch a partition again when the rate has fallen."""
        self._forget(key)
        self._throttled[key] = None
        self._await_rate()

    def _await_rate(self) -> None:
        if self._throttled and self._throttle_timer is None:
            self._throttle_timer = self._scheduler.call_later(
                self._throttle.quota.wait_ms, self._throttled_are_due
            )

    def _throttled_are_due(self) -> None:
        self._throttle_timer = None
        self.fetch_throttled()

    def fetch_throttled(self) -> None:
        """Fetch throttled partitions again, if the quota is not exceeded any more."""
        self._stop_throttle_timer()
        if not self._throttle.quota.is_exceeded:
            for key in list(itertools.islice(self._throttled, THROTTLED_MAX)):
                self._fetch_again(key)
        self._await_rate()

    def reconfigured(self, partition: FollowedPartition) -> None:
        """Fetch a partition again if the topic's config does not throttle it any more."""
        if not partition.is_throttled and partition.key in self._throttled:
            self._fetch_again(partition.key)

    def _fetch_again(self, key: PartitionKey) -> None:
        del self._throttled[key]
        self._forgotten.pop(key, None)
        self._changed[key] = None
        self._send_now()

    def _stop_throttle_timer(self) -> None:
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None

    def _frame(self, changed: Iterable[tuple[FollowedPartition, ReplicaFetch]]) -> bytes:
        settings = self._settings()
        topics: dict[bytes, list[dict[str, Any]]] = {}
        for partition, fetch in changed:
            topic_id, index = partition.key
            topics.setdefault(topic_id, []).append({
                "partition": index,
                "current_leader_epoch": fetch.leader_epoch,
                "fetch_offset": fetch.follower.offset,
                "last_fetched_epoch": fetch.last_fetched_epoch,
                "log_start_offset": fetch.follower.log_start_offset,
                "partition_max_bytes": settings.partition_max_bytes,
                "high_watermark": fetch.follower.high_watermark,
                "durable_offset": fetch.follower.durable_offset,
            })  # fmt: skip
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        self._forgotten.clear()
        request = {
            "replica_state": {
                "replica_id": self._node.node_id,
                "replica_epoch": self._node.node_epoch,
            },
            # Partitions that are added meanwhile do not wait for the session to be created.
            "max_wait_ms": 0 if self._is_first_request else settings.wait_max_ms,
            "min_bytes": settings.min_bytes,
            "max_bytes": settings.response_max_bytes,
            "isolation_level": 0,
            "session_id": self._session_id,
            "session_epoch": self._session_epoch,
            "topics": [
                {"topic_id": topic_id, "partitions": each} for topic_id, each in topics.items()
            ],
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": each} for topic_id, each in forgotten.items()
            ],
            "rack_id": "",
        }
        self._is_first_request = False
        if self._session_id:
            self._session_epoch += 1
        header = write_header(
            FETCH.key, VERSION, self._request & 0x7FFFFFFF, f"replica-{self._node.node_id}",
            FETCH.request_header_flexible(VERSION),
        )  # fmt: skip
        return header + FETCH.request.write(VERSION, request)

    # -- responses ---------------------------------------------------------------------------

    def _received(self, frame: memoryview) -> None:
        request = int.from_bytes(frame[:4], "big")
        self._in_flight -= 1
        try:
            response = FETCH.response.read(VERSION, frame, HEADER_SIZE)
            raise_for(response.error_code)
        except KafkaError as error:
            # The session is gone at the leader, or the node is not registered there yet.
            log.debug("Fetch session ended; starting another. error=%s", error.name)
            self._restart()
            return
        self._connect_retry_ms = 0
        if not self._session_id and response.session_id:
            self._session_id, self._session_epoch = response.session_id, 1
        elif not response.session_id:
            self._end_session()  # the leader has no room for it: each fetch is a full one
        for topic in response.responses:
            for fields in topic.partitions:
                self.bytes_in += len(fields.records or b"")
                key = topic.topic_id, fields.partition_index
                self._unapplied.append(
                    FetchedPartition(key, request, fields.error_code, _response(fields))
                )
        self._apply()
        if self._unapplied:
            # The frame is overwritten by the next one: keep what was not applied.
            self._unapplied = deque(map(_copied, self._unapplied))

    def _restart(self) -> None:
        """Connect again after a pause, which ends the session."""
        if self._connection is not None:
            self._connection.close()
        self._closed()

    def _apply(self) -> None:
        """Apply the received parts until APPLY_MS have passed, then send the next request."""
        end_ns = self._clock.monotonic_ns() + APPLY_MS * 1_000_000
        while self._unapplied:
            self._apply_one(self._unapplied.popleft())
            if self._unapplied and self._clock.monotonic_ns() >= end_ns:
                self._scheduler.call_later(0, self._apply)
                return
        # What was applied acknowledges records; a request in flight may wait at the leader.
        self._is_urgent = self._is_urgent or bool(self._changed and self._in_flight)
        self._send()

    def _apply_one(self, fetched: FetchedPartition) -> None:
        partition, sent = self._partitions.get(fetched.key), self._sent.get(fetched.key)
        if partition is None or sent is None or sent.request > fetched.request:
            return
        if partition.is_throttled:
            self._throttle.quota.record(len(fetched.response.records or b""))
        error_code = fetched.error_code
        try:
            if error_code != OffsetOutOfRange.code:
                raise_for(error_code)
            partition.replication.apply(sent.fetch, fetched.response)
        except InvalidReplicatedBatch as error:
            log.warning(
                "Leader sent invalid records; retrying. partition=%s leader=%d error=%r",
                partition, partition.leader, str(error),
            )  # fmt: skip
            self._retry_later(partition)
        except KafkaStorageError as error:
            if error_code:
                self._retry_later(partition)  # the leader's log failed
            elif not self._has_failed(partition, error):
                self._retry_later(partition, DISK_RETRY_MS)
        except KafkaError as error:
            log.debug(
                "Fetch of a partition failed; retrying. partition=%s leader=%d error=%s",
                partition, partition.leader, error.name,
            )  # fmt: skip
            self._retry_later(partition)
        else:
            if partition.log.is_truncating:
                partition.retry_ms = 0
                self._forget(partition.key)
            elif error_code:  # out of range, and the log could not be reset
                self._retry_later(partition)
            else:
                partition.retry_ms = 0
                self._changed[partition.key] = None
        self._on_applied(partition)

    def _has_failed(self, partition: FollowedPartition, error: KafkaStorageError) -> bool:
        """Stop following a partition if its log has failed or has other committed records; return
        whether it was stopped."""
        if partition.retry_ms < DISK_RETRY_MS:  # otherwise it was reported before
            log.error(
                "Partition cannot follow its leader. partition=%s leader=%d error=%r",
                partition, partition.leader, str(error),
            )  # fmt: skip
        if isinstance(error, CommittedRecordsDiffer):
            # After an unclean election: the log is set aside whole, and fetched again.
            partition.log.failure = str(error)
        if partition.log.failure is None:
            return False
        self._forget(partition.key)
        partition.error = error
        return True

    def _retry_later(self, partition: FollowedPartition, retry_ms_min: int = RETRY_MS_MIN) -> None:
        self.failures += 1
        key = partition.key
        self._forget(key)
        doubled_ms = min(self._settings().backoff_max_ms, 2 * partition.retry_ms)
        partition.retry_ms = max(retry_ms_min, doubled_ms)

        def retry() -> None:
            del self._waiting[key]
            self._forgotten.pop(key, None)  # no request was sent since
            self._changed[key] = None
            self._send_now()

        self._stop_waiting(key)
        self._waiting[key] = self._scheduler.call_later(partition.retry_ms, retry)


def _response(fields: Any) -> ReplicaFetchResponse:
    diverging = fields.diverging_epoch
    return ReplicaFetchResponse(
        LogRange(fields.log_start_offset, -1),
        fields.high_watermark,
        fields.epoch_start,
        fields.records,
        EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        fields.error_code == OffsetOutOfRange.code,
    )


def _copied(fetched: FetchedPartition) -> FetchedPartition:
    records = fetched.response.records
    if not isinstance(records, memoryview):
        return fetched
    return fetched._replace(response=fetched.response._replace(records=bytes(records)))
