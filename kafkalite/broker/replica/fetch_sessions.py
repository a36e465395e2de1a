"""Fetch sessions: incremental fetch requests and responses (KIP-227).

With a session, a consumer of a thousand idle partitions does not list them all in every request,
nor receive an empty entry for each.  The session stores the requested partitions and the last
response; an incremental request and its response contain only what changed.

    session id 0, epoch -1   no session: full fetch, the fast path (all that librdkafka uses)
    session id 0, epoch 0    full fetch that creates a session
    session id n, epoch 0    close n; full fetch that creates a session
    session id n, epoch e    incremental fetch: changes since e - 1
    session id n, epoch -1   full fetch that closes n

Sessions are a cache with two limits: its slots, and the partitions of all sessions together.  When
a limit is reached, a session is evicted for a new one if it was not used for two minutes, or, for a
slot, if it is older than that and smaller than the new one (Kafka's rules).  Otherwise the request
gets a full response with session id 0: evicting a session in use costs its client a full fetch,
which would evict the next session, until every request is a full fetch.

A session ends with the connection that created it.  Java's consumer continues its session after its
idle connection was closed, gets FETCH_SESSION_ID_NOT_FOUND and creates a new session: one round
trip.  All requests of a session identify topics as the first one did, by name or by id; a request
of the other kind gets FETCH_SESSION_TOPIC_ID_ERROR.

Followers have sessions of another kind (follower_sessions.py), of which clients evict none.
"""

from __future__ import annotations

import heapq
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from kafkalite.clock import Clock
from kafkalite.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)
from kafkalite.protocol.results import PartitionFetchResult

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

EVICTION_MS_MIN = 120_000
"""Time after its last use in which a session is not evicted, and after its creation in which it is
not evicted for a larger one; Kafka's min.incremental.fetch.session.eviction.ms, also a constant."""

PARTITIONS_MAX = 20_000
"""Maximum number of partitions in a session; a session that exceeds it is removed."""

PARTITIONS_MAX_IN_ALL = 250_000
"""Maximum number of partitions in all sessions together, at about 500 bytes each."""

FetchPartition = tuple[int, ...]
"""One partition of a request: index, current leader epoch, fetch offset, last fetched epoch, log
start offset, size limit; of a follower also its high watermark and its durable offset."""

CONSUMER_FIELDS = 6
"""Number of fields of a partition in a consumer's request."""

FetchKey = tuple[str | bytes, int]
"""The topic as in the request (name, or id of 16 bytes) and the partition's index."""


class FetchSession:
    """One fetch session: the requested partitions, and the offsets last sent for each."""

    __slots__ = ("by_id", "created_ms", "epoch", "heap_size", "last_used_ms", "owner",
                 "sent_offsets", "session_id", "wanted")  # fmt: skip

    def __init__(self, session_id: int, by_id: bool, owner: SessionOwner, now_ms: int) -> None:
        self.owner = owner
        self.session_id = session_id
        self.by_id = by_id
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.heap_size = -1
        """Number of partitions with which it is in the heap of sessions that larger ones evict."""
        self.epoch = INITIAL_EPOCH + 1
        self.wanted: dict[FetchKey, FetchPartition] = {}
        """The requested partitions; one that returned records moves to the end, so that the others
        come first under the next response's byte limit."""
        self.sent_offsets: dict[FetchKey, tuple[int, int, int]] = {}

    def change(self, topics: list[Any], forgotten_topics: list[Any]) -> None:
        """Apply the changed and forgotten partitions of a request."""
        for topic, indexes in forgotten_topics:
            for index in indexes:
                self.wanted.pop((topic, index), None)
                self.sent_offsets.pop((topic, index), None)
        for topic, partitions in topics:
            for partition in partitions:
                self.wanted[topic, partition[0]] = partition

    def must_include(
        self, topic: str | bytes, result: PartitionFetchResult, everything: bool
    ) -> bool:
        """Return whether the response must include this result, and store its offsets as sent.

        It must if the result has records, an error, a preferred replica or changed offsets.
        """
        index, error_code, high_watermark, _, log_start_offset, _, preferred, records, _, _, _ = (
            result
        )
        key = (topic, index)
        offsets = (error_code, high_watermark, log_start_offset)
        has_records = records is not None and _size(records) > 0
        wanted = self.wanted.get(key)
        if has_records and wanted is not None:
            del self.wanted[key]
            self.wanted[key] = wanted
        is_changed = has_records or error_code or preferred >= 0
        if not (everything or is_changed or self.sent_offsets.get(key) != offsets):
            return False
        if wanted is not None:
            self.sent_offsets[key] = offsets
        return True


class SessionOwner(Protocol):
    """The connection that a session belongs to."""

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when the connection closes."""


class FetchSessions:
    """The sessions of a node, least recently used first."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._size_heap: list[tuple[int, int]] = []
        """Heap of (number of partitions, session id) of sessions older than EVICTION_MS_MIN.
        Entries of sessions that have ended or changed size are skipped."""
        self._ids_by_owner: dict[SessionOwner, set[int]] = {}
        """Ids of the sessions that each open connection created."""
        self.partition_count = 0
        """Number of partitions in all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def resize(self, slots: int) -> None:
        """Set the maximum number of sessions; remove the least recently used beyond it."""
        self._slots = slots
        while len(self._sessions) > slots:
            self._remove(next(iter(self._sessions)))

    def open(
        self,
        session_id: int,
        epoch: int,
        topics: list[Any],
        forgotten_topics: list[Any],
        owner: SessionOwner,
        *,
        by_id: bool = False,
    ) -> FetchSession | None:
        """Return the session of this request, with the request's changes applied.

        Returns None if the request uses no session, if there is no room for one, or if the request
        removed the session's last partition.  `by_id`: True if it identifies topics by id.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch and FetchSessionTopicIdError.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION:
                self._remove(session_id)
            if epoch == FINAL_EPOCH or not self._slots:
                return None
            return self._begin(topics, owner, by_id)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound()
        if epoch != session.epoch:
            raise InvalidFetchSessionEpoch()
        if by_id is not session.by_id:
            raise FetchSessionTopicIdError()
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        self._mark_used(session)
        before = len(session.wanted)
        session.change(topics, forgotten_topics)
        self.partition_count += len(session.wanted) - before
        self._update_size_heap(session)
        if len(session.wanted) > PARTITIONS_MAX or not self._evict_unused_for(0):
            self._remove(session_id)
            raise FetchSessionIdNotFound()
        if not session.wanted:
            # A session without partitions ends; the response has session id 0.
            self._remove(session_id)
            return None
        return session

    def _begin(self, topics: list[Any], owner: SessionOwner, by_id: bool) -> FetchSession | None:
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = secrets.randbelow(EPOCH_MAX) + 1
        session = FetchSession(session_id, by_id, owner, self._clock.monotonic_ms())
        session.change(topics, [])
        if not self._evict_for(session):
            return None
        self._sessions[session_id] = session
        self.partition_count += len(session.wanted)
        if owner not in self._ids_by_owner:
            self._ids_by_owner[owner] = set()
            owner.on_close(lambda: self._closed(owner))
        self._ids_by_owner[owner].add(session_id)
        return session

    def _mark_used(self, session: FetchSession) -> None:
        session.last_used_ms = self._clock.monotonic_ms()
        self._sessions.move_to_end(session.session_id)

    def _update_size_heap(self, session: FetchSession) -> None:
        """Add a session that is old enough for larger ones to evict to the heap, by its size."""
        size = len(session.wanted)
        age_ms = session.last_used_ms - session.created_ms
        if session.heap_size == size or age_ms <= EVICTION_MS_MIN:
            return
        session.heap_size = size
        heapq.heappush(self._size_heap, (size, session.session_id))
        if len(self._size_heap) > 2 * len(self._sessions) + 100:
            self._size_heap = [
                (each.heap_size, session_id)
                for session_id, each in self._sessions.items()
                if each.heap_size >= 0
            ]
            heapq.heapify(self._size_heap)

    def _evict_for(self, session: FetchSession) -> bool:
        """Return whether a new session fits, evicting another one if necessary."""
        size = len(session.wanted)
        if not self._evict_unused_for(size):
            return False
        if len(self._sessions) < self._slots:
            return True
        return self._remove_unused() or self._remove_smaller(size)

    def _evict_unused_for(self, size: int) -> bool:
        """Return whether `size` more partitions fit, evicting unused sessions if necessary."""
        while self.partition_count + size > PARTITIONS_MAX_IN_ALL:
            if not self._remove_unused():
                return False
        return True

    def _remove_unused(self) -> bool:
        """Remove the least recently used session if it was unused for EVICTION_MS_MIN."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or self._clock.monotonic_ms() - oldest.last_used_ms <= EVICTION_MS_MIN:
            return False
        self._remove(oldest.session_id)
        return True

    def _remove_smaller(self, size: int) -> bool:
        """Remove the smallest session in the heap if it has fewer than `size` partitions."""
        while self._size_heap:
            heap_size, session_id = self._size_heap[0]
            session = self._sessions.get(session_id)
            if session is not None and session.heap_size == heap_size:
                if heap_size >= size:
                    return False
                self._remove(session_id)
                return True
            heapq.heappop(self._size_heap)
        return False

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.wanted)
            self._ids_by_owner[session.owner].discard(session_id)

    def _closed(self, owner: SessionOwner) -> None:
        for session_id in list(self._ids_by_owner[owner]):
            self._remove(session_id)
        del self._ids_by_owner[owner]


def _size(records: Any) -> int:
    return len(records) if isinstance(records, bytes) else records.size
