"""Incremental fetches remembered (KIP-227).

A consumer of a thousand quiet partitions need not name them all in every request, nor be told of
each that nothing came.  A session remembers what was asked and what was last answered; a request
inside it names what changed, and so does the answer.

    session id 0, epoch -1   no session: the full list, the fast path (librdkafka knows no other)
    session id 0, epoch 0    the full list, and a new session please
    session id n, epoch 0    close n, the full list, and a new session please
    session id n, epoch e    what changed since e - 1
    session id n, epoch -1   the full list, and close n

Sessions are a cache: when all slots are taken, the one least recently used goes, and its client
hears FETCH_SESSION_ID_NOT_FOUND and begins anew.  A session names its topics as its first request
did, all by name or all by id; a request of the other kind hears FETCH_SESSION_TOPIC_ID_ERROR.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any

from kafkalite.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

PARTITIONS_MAX = 100_000
"""How many partitions one session may remember; a client that names more loses its session."""

Wanted = tuple[int, int, int, int, int, int]
"""One partition of a request: index, current leader epoch, fetch offset, last fetched epoch, log
start offset, size limit."""

Key = tuple[str | bytes, int]
"""The topic as the request names it (name, or id of 16 bytes) and the partition's index."""


class FetchSession:
    """What one client asked for, and what it was last told."""

    __slots__ = ("by_id", "epoch", "session_id", "told", "wanted")

    def __init__(self, session_id: int, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH + 1
        self.wanted: OrderedDict[Key, Wanted] = OrderedDict()
        self.told: dict[Key, tuple[int, int, int]] = {}

    def change(self, topics: list[Any], forgotten: list[Any]) -> None:
        """Take in what the request says has changed."""
        for topic, partitions in topics:
            for partition in partitions:
                self.wanted[topic, partition[0]] = partition
        for topic, indexes in forgotten:
            for index in indexes:
                self.wanted.pop((topic, index), None)
                self.told.pop((topic, index), None)

    def topics(self) -> list[tuple[str | bytes, list[Wanted]]]:
        """The full list, in the order the session keeps."""
        grouped: dict[str | bytes, list[Wanted]] = {}
        for (topic, _), partition in self.wanted.items():
            grouped.setdefault(topic, []).append(partition)
        return list(grouped.items())

    def news(self, topics: list[Any], everything: bool) -> list[Any]:
        """Of an answer, what the client has not been told: records, errors, moved offsets.

        A partition that gave records goes to the end of the line, so that in the next answer's
        byte limit the others come first.
        """
        answer = []
        for topic, partitions in topics:
            kept = []
            for entry in partitions:
                index, error_code, high_watermark, _, log_start_offset, *_ = entry
                records = entry[7]
                key = (topic, index)
                offsets = (error_code, high_watermark, log_start_offset)
                gave = records is not None and _size(records) > 0
                if everything or gave or error_code or self.told.get(key) != offsets:
                    kept.append(entry)
                    self.told[key] = offsets
                if gave and key in self.wanted:
                    self.wanted.move_to_end(key)
            if kept:
                answer.append((topic, kept))
        return answer


class FetchSessions:
    """The sessions of a node, least recently used first."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def resize(self, slots: int) -> None:
        """Remember at most so many from now on."""
        self._slots = slots
        while len(self._sessions) > slots:
            self._sessions.popitem(last=False)

    def enter(
        self,
        session_id: int,
        epoch: int,
        topics: list[Any],
        forgotten: list[Any],
        *,
        by_id: bool = False,
    ) -> FetchSession | None:
        """The session of this request, brought up to date; None for a request without one, or
        that took the last partition out of its own.  `by_id`: how it names its topics.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch and FetchSessionTopicIdError.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION:
                self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH or not self._slots:
                return None
            return self._begin(topics, by_id)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound()
        if epoch != session.epoch:
            raise InvalidFetchSessionEpoch()
        if by_id is not session.by_id:
            raise FetchSessionTopicIdError()
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.change(topics, forgotten)
        if len(session.wanted) > PARTITIONS_MAX:
            del self._sessions[session_id]
            raise FetchSessionIdNotFound()
        if not session.wanted:
            # Nothing is left to remember: it is over, and the answer bears no session's id.
            del self._sessions[session_id]
            return None
        self._sessions.move_to_end(session_id)
        return session

    def _begin(self, topics: list[Any], by_id: bool) -> FetchSession:
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = secrets.randbelow(EPOCH_MAX) + 1
        session = self._sessions[session_id] = FetchSession(session_id, by_id)
        session.change(topics, [])
        if len(self._sessions) > self._slots:
            self._sessions.popitem(last=False)
        return session


def _size(records: Any) -> int:
    return len(records) if isinstance(records, bytes) else records.size
