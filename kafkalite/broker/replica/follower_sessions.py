"""FollowerSessions: the fetches of other nodes that follow partitions led here.

    request ─▶ partitions that it names ─▶ unread ─▶ read ─▶ response
    partition changed (purgatory) ─▶ unread ─▶ the waiting request is completed

Each node that follows has one connection and one fetch session (KIP-227), with all partitions that
it fetches from this node.  The session is registered with its partitions as long as it has them, so
that a request costs only what it names and what has news: the rest is neither looked up nor read.
A request that does not name a partition repeats the last fetch of it, which counts for the ISR
(SessionRequests in isr.py).

A partition is read once for each change, on either side.  The follower applies what it receives and
names the partition in a later request, or it has named it already in one that is on its way.

A high watermark alone waits up to HIGH_WATERMARK_MS for other news: under load the next records are
there before, and each batch costs one request of each follower instead of two.

The minimum size of a response counts only while a request waits: what can be read when the request
comes is sent at once.

Records of a throttled partition are withheld from a follower that is not in sync while the quota of
the node is exceeded (replication_quota.py).  Its fetch is noted, and it is read again when the rate
has fallen, or when the quota or the topic's config changes.

A session begins with session id 0 and epoch 0; its requests are numbered.  It ends with its
connection.  If the follower sends a request while another one waits, that one is completed first,
with what is unread at that time.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite.broker.replica.delayed_operation import DelayedOperation, WatchedPartition
from kafkalite.broker.replica.fetch_sessions import (
    EPOCH_MAX,
    INITIAL_EPOCH,
    FetchPartition,
    SessionOwner,
)
from kafkalite.broker.replica.isr import UNKNOWN, FollowerFetch, SessionRequests
from kafkalite.broker.replica.replica_fetch import PartitionKey, ReplicaFetch
from kafkalite.broker.request_metrics import EXPECTED
from kafkalite.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from kafkalite.protocol.results import FetchResponse, PartitionFetchResult
from kafkalite.storage.log.log_reader import available

if TYPE_CHECKING:
    from kafkalite.broker.future import Future
    from kafkalite.broker.replica.leader_replication import LeaderReplication
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_fetch import ReplicaFetchResponse
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.broker.replica.replication_quota import ReplicationQuota
    from kafkalite.broker.scheduler import ScheduledCall, Scheduler
    from kafkalite.clock import Clock

READ_MAX = 200
"""Maximum number of partitions that are read for one response, which takes a few ms; if more have
news, the next request gets a response at once."""

PARTITIONS_MAX = 250_000
"""Maximum number of partitions in a session, at about 500 bytes each."""

JOINING_MAX = READ_MAX // 2
"""Maximum number of these for each request that are read because the follower may join the ISR."""

THROTTLED_MAX = READ_MAX // 2
"""Maximum number of throttled partitions that are read at once when the rate has fallen."""

HIGH_WATERMARK_MS = 5
"""Maximum delay of a high watermark that no records follow, while a request waits."""

FOLLOWER_FIELDS = 8
"""Number of fields of a partition in the request of a follower."""


class PeerFetch(NamedTuple):
    """A Fetch request of a follower."""

    node_id: int
    node_epoch: int
    session_id: int
    session_epoch: int
    topics: list[Any]
    forgotten: list[Any]
    limits: ResponseLimits


class ResponseLimits(NamedTuple):
    """The limits of a request for its response."""

    wait_ms: int
    min_bytes: int
    max_bytes: int


class SessionPartition:
    """One partition of a session: the last fetch of it, and the partition if it is led here."""

    __slots__ = ("fetch", "is_new", "partition", "readable", "size_max")

    def __init__(self, fetch: ReplicaFetch, size_max: int) -> None:
        self.fetch = fetch
        self.size_max = size_max
        self.partition: Partition | None = None
        self.is_new = True
        """True until a response has had it."""
        self.readable = 0
        """Number of bytes that a read would return, as of the last change."""

    def leader(self) -> LeaderReplication:
        """Return the replication of the partition; raise if it is not led here with followers."""
        assert self.partition is not None, "it was looked up"
        if self.partition.error is not None:
            raise self.partition.error.copy()
        if self.partition.replication is None:
            raise UnknownLeaderEpoch()  # the follower's image is newer: it has another replica
        return self.partition.replication

    def has_news(self, response: ReplicaFetchResponse) -> bool:
        """Return whether the follower needs this response for more than its high watermark."""
        epoch, last_epoch, follower = self.fetch
        return (
            self.is_new
            or response.records is not None
            or response.diverging is not None
            or response.is_out_of_range
            or UNKNOWN < follower.log_start_offset < response.log.start_offset
            # It has reached the start of the leader's epoch, and notes the epoch.
            or (last_epoch < epoch and follower.offset == response.epoch_start)
        )


class WaitingFetch(DelayedOperation):
    """The last request of a session, while it waits for news."""

    def __init__(self, session: FollowerSession, limits: ResponseLimits) -> None:
        self.limits = limits
        self._session = session

    def build_response(self) -> FetchResponse:
        return self._session.read_for(self)


class FollowerSession(DelayedOperation):
    """The session of one follower.

    It is registered with its partitions as a delayed operation is, and is never completed.
    """

    def __init__(
        self,
        session_id: int,
        replicas: ReplicaManager,
        scheduler: Scheduler,
        clock: Clock,
        quota: ReplicationQuota,
    ) -> None:
        self.session_id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self._replicas = replicas
        self._scheduler = scheduler
        self._clock = clock
        self._quota = quota
        self._requests = SessionRequests(clock.monotonic_ms())
        self._partitions: dict[PartitionKey, SessionPartition] = {}
        self._unread: dict[PartitionKey, None] = {}
        """Partitions to read for the next response, longest unread first."""
        self._behind: dict[PartitionKey, None] = {}
        """Partitions of which the follower may not know the high watermark."""
        self._is_timed = False
        """True while a timer runs for these."""
        self._joining: dict[PartitionKey, None] = {}
        """Partitions whose ISR lacks the follower.  Each request reads some of them: whether it may
        join depends on the image of its node, too."""
        self._throttled: dict[PartitionKey, None] = {}
        """Partitions whose records are withheld by the quota, for the longest time first."""
        self._throttle_timer: ScheduledCall | None = None
        self._readable = 0
        """The bytes that can be read, of all partitions together."""
        self._waiting: WaitingFetch | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def fetch(self, request: PeerFetch) -> FetchResponse | Future[FetchResponse]:
        """Apply a request; return its response, or a Future of it if there is no news yet."""
        self.complete()
        self._requests.last_ms = self._clock.monotonic_ms()
        for topic_id, indexes in request.forgotten:
            for index in indexes:
                self._forget((topic_id, index))
        for topic_id, partitions in request.topics:
            for fields in partitions:
                self._name(request, topic_id, fields)
        self._unread.update(dict.fromkeys(itertools.islice(self._joining, JOINING_MAX)))
        limits = request.limits
        results = self._read(limits)
        if results or limits.wait_ms <= 0 or self._unread:
            return self._response(results)
        self._waiting = WaitingFetch(self, limits)
        self._await_high_watermarks()
        return self._replicas.purgatory.watch_registered(self._waiting, limits.wait_ms)

    def complete(self) -> None:
        """Complete the waiting request, if there is one, with what is unread now."""
        if self._waiting is not None:
            self._replicas.purgatory.complete_now(self._waiting)

    def close(self) -> None:
        """Leave all partitions."""
        for key in list(self._partitions):
            self._forget(key)
        self._stop_throttle_timer()

    # -- partitions --------------------------------------------------------------------------

    def _name(self, request: PeerFetch, topic_id: bytes, fields: FetchPartition) -> None:
        """Take the fetch of a partition in a request."""
        index, leader_epoch, offset, last_fetched_epoch, log_start, size_max = fields[:6]
        high_watermark, durable_offset = UNKNOWN, UNKNOWN
        if len(fields) == FOLLOWER_FIELDS:
            high_watermark, durable_offset = fields[6:]
        follower = FollowerFetch(
            request.node_id, request.node_epoch, offset, durable_offset, high_watermark, log_start
        )
        fetch = ReplicaFetch(leader_epoch, last_fetched_epoch, follower)
        key = (topic_id, index)
        entry = self._partitions.get(key)
        if entry is None:
            entry = self._partitions[key] = SessionPartition(fetch, size_max)
        else:
            entry.fetch, entry.size_max = fetch, size_max
        self._unread[key] = None

    def _forget(self, key: PartitionKey) -> None:
        entry = self._partitions.pop(key, None)
        if entry is None:
            return
        self._unread.pop(key, None)
        self._behind.pop(key, None)
        self._joining.pop(key, None)
        self._throttled.pop(key, None)
        self._set_readable(entry, 0)
        if entry.partition is not None:
            self._leave(entry, entry.partition)

    def _leave(self, entry: SessionPartition, partition: Partition) -> None:
        partition.waiting.pop(self, None)
        if partition.replication is not None:
            node_id = entry.fetch.follower.node_id
            partition.replication.isr.end_repetition(node_id, self._requests)
        entry.partition = None

    def _look_up(self, key: PartitionKey, entry: SessionPartition) -> Partition:
        """Register with the partition that is led here now, and return it; raise if there is
        none."""
        partition = entry.partition
        if partition is not None and partition.error is None:
            return partition
        if partition is not None:
            self._leave(entry, partition)
        partition = self._replicas.leader(*key)
        partition.waiting[self] = None
        entry.partition = partition
        return partition

    # -- news --------------------------------------------------------------------------------

    def check(self, partition: WatchedPartition) -> bool:
        """Note that a partition has changed; complete the waiting request if that is news."""
        changed: Any = partition
        key = (changed.topic_id, changed.index)
        entry = self._partitions[key]
        try:
            is_due = self._measure(entry)
        except (KafkaError, OSError):  # the next read has the error, too
            self._unread[key] = None
            is_due = True
        waiting = self._waiting
        if waiting is not None and (is_due or self._readable >= waiting.limits.min_bytes):
            self._replicas.purgatory.complete_early(waiting)
        elif waiting is not None:
            self._await_high_watermarks()
        return False

    def _measure(self, entry: SessionPartition) -> bool:
        """Add a partition to the unread ones if it has news; return whether that cannot wait for
        the minimum size of the response."""
        leader, partition = entry.leader(), entry.partition
        assert partition is not None, "it is registered"
        partition.check_epoch(entry.fetch.leader_epoch)
        follower, isr, log = entry.fetch.follower, leader.isr, partition.log
        readable = 0
        key = (partition.topic_id, partition.index)
        is_due = (
            follower.offset > log.end_offset  # the log was truncated since
            or UNKNOWN < follower.log_start_offset < log.log_start_offset
        )
        if key in self._throttled and follower.offset < log.end_offset:
            if self._is_throttled(entry, leader):
                isr.end_repetition(follower.node_id, self._requests)
                return is_due
            del self._throttled[key]
        if follower.high_watermark < isr.high_watermark:
            self._behind[key] = None
        if follower.offset < log.end_offset:
            isr.end_repetition(follower.node_id, self._requests)
            readable = 1  # enough to know, unless the request waits for more
            if self._waiting is not None and self._waiting.limits.min_bytes > 1:
                readable = available(log, follower.offset, log.end_offset, entry.size_max)
        self._set_readable(entry, readable)
        # One that has left the ISR joins with a fetch after that.
        if is_due or readable or follower.node_id not in isr.partition.isr:
            self._unread[key] = None
        return is_due

    def _await_high_watermarks(self) -> None:
        """Complete the waiting request within HIGH_WATERMARK_MS if the follower may not know a
        high watermark."""
        if self._behind and not self._is_timed:
            self._is_timed = True
            self._scheduler.call_later(HIGH_WATERMARK_MS, self._high_watermarks_are_due)

    def _high_watermarks_are_due(self) -> None:
        self._is_timed = False
        if self._behind and self._waiting is not None:
            self._replicas.purgatory.complete_early(self._waiting)

    # -- quota -------------------------------------------------------------------------------

    def _is_throttled(self, entry: SessionPartition, leader: LeaderReplication) -> bool:
        """Return whether the records of a partition are withheld from the follower now."""
        partition = entry.partition
        return (
            partition is not None
            and partition.is_throttled
            and entry.fetch.follower.node_id not in leader.isr.partition.isr
            and self._quota.is_exceeded
        )

    def _withhold(self, key: PartitionKey) -> None:
        """Withhold the records of a partition until the rate has fallen."""
        self._throttled[key] = None
        if self._throttle_timer is None:
            self._throttle_timer = self._scheduler.call_later(
                self._quota.wait_ms, self._throttled_are_due
            )

    def _throttled_are_due(self) -> None:
        self._throttle_timer = None
        self.read_throttled()

    def read_throttled(self) -> None:
        """Read throttled partitions if the quota is not exceeded any more."""
        self._stop_throttle_timer()
        if not self._throttled:
            return
        self._resume_throttled()
        if self._unread and self._waiting is not None:
            self._replicas.purgatory.complete_early(self._waiting)
        for key in list(itertools.islice(self._throttled, 1)):
            self._withhold(key)

    def _stop_throttle_timer(self) -> None:
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None

    def _resume_throttled(self) -> None:
        """Have some of the throttled partitions read, unless the quota is exceeded."""
        if not self._quota.is_exceeded:
            for key in list(itertools.islice(self._throttled, THROTTLED_MAX)):
                del self._throttled[key]
                self._unread[key] = None

    def _set_readable(self, entry: SessionPartition, size: int) -> None:
        self._readable += size - entry.readable
        entry.readable = size

    # -- responses ---------------------------------------------------------------------------

    def read_for(self, waiting: WaitingFetch) -> FetchResponse:
        """Return the response of a request that waits no longer."""
        if self._waiting is waiting:
            self._waiting = None
        return self._response(self._read(waiting.limits))

    def _response(self, results: dict[PartitionKey, PartitionFetchResult]) -> FetchResponse:
        """Return the response with these results, and with high watermarks."""
        for key in list(itertools.islice(self._behind, READ_MAX)):
            del self._behind[key]
            if key not in results and key not in self._unread:
                result = self._read_one(key, 0, whole_first=False, with_high_watermark=True)
                if result is not None:
                    results[key] = result
        topics: dict[bytes, list[PartitionFetchResult]] = {}
        for (topic_id, _), result in results.items():
            topics.setdefault(topic_id, []).append(result)
        return FetchResponse(list(topics.items()), self.session_id)

    def _read(self, limits: ResponseLimits) -> dict[PartitionKey, PartitionFetchResult]:
        """Read what is unread, within the limits; return the results that the follower needs."""
        results: dict[PartitionKey, PartitionFetchResult] = {}
        size = 0
        for key in list(itertools.islice(self._unread, READ_MAX)):
            del self._unread[key]
            left = max(0, limits.max_bytes - size)
            result = self._read_one(key, left, whole_first=left > 0 and not size)
            if result is not None:
                results[key] = result
                size += result.records.size if result.records is not None else 0
        return results

    def _read_one(
        self,
        key: PartitionKey,
        size_left: int,
        *,
        whole_first: bool,
        with_high_watermark: bool = False,
    ) -> PartitionFetchResult | None:
        """Read a partition for the follower; return None if it needs no result of it.

        The fetch acknowledges the records before its offset.
        """
        entry = self._partitions[key]
        self._set_readable(entry, 0)
        is_withheld = False
        try:
            partition = self._look_up(key, entry)
            leader = entry.leader()
            if partition.is_throttled and self._is_throttled(entry, leader):
                is_withheld, size_left, whole_first = True, 0, False
            response = leader.read(
                entry.fetch, min(entry.size_max, size_left), whole_first=whole_first,
                session=self._requests,
            )  # fmt: skip
        except KafkaError as error:
            return self._failed(key, error)
        except OSError as error:
            return self._failed(key, KafkaStorageError(f"{entry.partition}: {error}"))
        follower = entry.fetch.follower
        self._joining.pop(key, None)
        if follower.node_id not in entry.leader().isr.partition.isr:
            self._joining[key] = None  # after those that were read longer ago
        if response.records is not None:
            self._sent(key, partition, response.records.size)
        elif follower.offset < response.log.end_offset and not (
            response.diverging or response.is_out_of_range
        ):
            if is_withheld:
                self._withhold(key)
            else:
                self._unread[key] = None  # there was no space in the response
        is_behind = follower.high_watermark < response.high_watermark
        if not entry.has_news(response) and not (is_behind and with_high_watermark):
            if is_behind and not is_withheld:  # otherwise it comes with the records
                self._behind[key] = None
            return None
        entry.is_new = False
        return PartitionFetchResult(
            key[1],
            OffsetOutOfRange.code if response.is_out_of_range else 0,
            response.high_watermark,
            -1,
            response.log.start_offset,
            None,
            -1,
            response.records,
            diverging_epoch=response.diverging,
            epoch_start=response.epoch_start,
        )

    def _sent(self, key: PartitionKey, partition: Partition, size: int) -> None:
        partition.traffic.replication_bytes_out += size
        if partition.is_throttled:
            self._quota.record(size)
            self._throttled.pop(key, None)

    def _failed(self, key: PartitionKey, error: KafkaError) -> PartitionFetchResult:
        if error.code not in EXPECTED:
            self._replicas.traffic_of(key[0]).failed_fetches += 1
        return PartitionFetchResult.failed(key[1], error)


class FollowerSessions:
    """The sessions of all followers of this node, by their connections."""

    def __init__(
        self,
        replicas: ReplicaManager,
        scheduler: Scheduler,
        clock: Clock,
        quota: ReplicationQuota,
    ) -> None:
        self._replicas = replicas
        self._quota = quota
        quota.add_listener(self._quota_changed)
        self._scheduler = scheduler
        self._clock = clock
        self._ids = itertools.count(1)
        self._sessions: dict[SessionOwner, FollowerSession] = {}
        self.idle_requests = 0
        """Number of requests that named no partition."""

    def fetch(
        self, request: PeerFetch, owner: SessionOwner
    ) -> FetchResponse | Future[FetchResponse]:
        """Serve a request of a follower, in the session of its connection.

        Raises:
            InvalidRequest: it does not identify the follower.
            FetchSessionIdNotFound, InvalidFetchSessionEpoch: the follower begins a new session.
        """
        self.idle_requests += not request.topics and not request.forgotten
        if request.node_id < 0:
            raise InvalidRequest("A fetch of another node has its id and its epoch.")
        if request.session_epoch == INITIAL_EPOCH:
            session = self._begin(owner)
        else:
            session = self._continue(request, owner)
        if len(session) > PARTITIONS_MAX:
            session.complete()
            self._end(owner)
            raise FetchSessionIdNotFound()
        return session.fetch(request)

    def _begin(self, owner: SessionOwner) -> FollowerSession:
        former = self._sessions.pop(owner, None)
        if former is None:
            owner.on_close(lambda: self._end(owner))
        else:
            former.complete()
            former.close()
        session = FollowerSession(
            next(self._ids) % EPOCH_MAX + 1, self._replicas, self._scheduler, self._clock,
            self._quota,
        )  # fmt: skip
        self._sessions[owner] = session
        return session

    def _continue(self, request: PeerFetch, owner: SessionOwner) -> FollowerSession:
        session = self._sessions.get(owner)
        if session is None or session.session_id != request.session_id:
            raise FetchSessionIdNotFound()
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch()
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        return session

    def _quota_changed(self) -> None:
        for session in self._sessions.values():
            session.read_throttled()

    def _end(self, owner: SessionOwner) -> None:
        session = self._sessions.pop(owner, None)
        if session is not None:
            session.close()
