"""Share sessions: the partitions that a member of a share group fetches from this node (KIP-932).

    epoch 0         begins a session, in place of the member's earlier one
    epoch 1, 2, …   each request of the session, ShareFetch or ShareAcknowledge, has the next one
    epoch -1        ends the session and releases the records that the member has acquired here

A session also ends with its connection.  With a group's last session here, its share partitions are
dropped.  The number of sessions is limited, and that of their partitions, which need not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from kafkalite.errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

if TYPE_CHECKING:
    from kafkalite.broker.client_context import ClientConnection
    from kafkalite.broker.share.led_share_partition import LedSharePartition
    from kafkalite.broker.share.led_share_partitions import LedSharePartitions

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
EPOCH_MAX = 2**31 - 1
PARTITIONS_MAX = 20_000
"""Maximum number of partitions in a session; a session that exceeds it ends."""
PARTITIONS_MAX_IN_ALL = 250_000
"""Maximum number of partitions in all sessions together."""

MemberKey: TypeAlias = tuple[str, str]
"""Group and member of a session."""
TopicIdPartition: TypeAlias = tuple[bytes, int]


class ShareSession:
    """One member's session on this node."""

    __slots__ = ("acquired", "connection", "epoch", "is_ended", "is_new", "key", "partitions")

    def __init__(self, key: MemberKey, connection: ClientConnection) -> None:
        self.key = key
        self.connection = connection
        self.epoch = INITIAL_EPOCH
        """The epoch of the last request."""
        self.is_new = True
        """True during the session's first request."""
        self.is_ended = False
        """True once it is over or replaced: its requests that wait acquire no more records."""
        self.partitions: dict[TopicIdPartition, None] = {}
        self.acquired: WeakKeyDictionary[LedSharePartition, None] = WeakKeyDictionary()
        """The share partitions from which the member has acquired records.  Those that were dropped
        meanwhile are not kept: they have thousands of records."""


class ShareSessions:
    """The share sessions of a node."""

    def __init__(self, shares: LedSharePartitions) -> None:
        self._shares = shares
        self._sessions: dict[MemberKey, ShareSession] = {}
        self._counts: dict[str, int] = {}
        """Number of sessions of each group, with those whose records are being released."""
        self._partition_count = 0
        self._of_connections: dict[ClientConnection, dict[ShareSession, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, key: MemberKey, connection: ClientConnection, count_max: int) -> ShareSession:
        """Begin a session; raise ShareSessionLimitReached if there are too many."""
        replaced = self._sessions.get(key)
        if replaced is not None:
            self._forget(replaced)
        elif len(self._sessions) >= count_max:
            raise ShareSessionLimitReached()
        session = ShareSession(key, connection)
        if replaced is not None:
            session.acquired = replaced.acquired
        else:
            self._counts[key[0]] = self._counts.get(key[0], 0) + 1
        self._sessions[key] = session
        if connection not in self._of_connections:
            self._of_connections[connection] = {}
            connection.on_close(lambda: self._closed(connection))
        self._of_connections[connection][session] = None
        return session

    def change(
        self,
        session: ShareSession,
        added: Iterable[TopicIdPartition],
        removed: Iterable[TopicIdPartition],
    ) -> None:
        """Add and remove partitions of a session.

        Raises:
            InvalidRequest: The session has too many partitions, and has ended.
            ShareSessionLimitReached: All sessions together have; this one has ended.
        """
        before = len(session.partitions)
        session.partitions.update(dict.fromkeys(added))
        for partition in removed:
            session.partitions.pop(partition, None)
        self._partition_count += len(session.partitions) - before
        if len(session.partitions) > PARTITIONS_MAX:
            self.end(session)
            raise InvalidRequest(f"A share session has at most {PARTITIONS_MAX} partitions.")
        if self._partition_count > PARTITIONS_MAX_IN_ALL:
            self.end(session)
            raise ShareSessionLimitReached()

    def next(self, key: MemberKey, epoch: int) -> ShareSession:
        """Return the session of a request.

        Raises:
            ShareSessionNotFound: The member has no session here.
            InvalidShareSessionEpoch: The epoch is not the next one.
        """
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFound()
        if epoch == FINAL_EPOCH:
            return session
        if epoch != (1 if session.epoch == EPOCH_MAX else session.epoch + 1):
            raise InvalidShareSessionEpoch()
        session.epoch = epoch
        session.is_new = False
        return session

    def end(self, session: ShareSession) -> None:
        """End a session, and release what its member has acquired; not one that was replaced."""
        if session.is_ended:
            return
        self._forget(session)
        group_id, member_id = session.key
        self._shares.release(member_id, [*session.acquired], lambda: self._released(group_id))

    def _released(self, group_id: str) -> None:
        self._counts[group_id] -= 1
        if not self._counts[group_id]:
            del self._counts[group_id]
            self._shares.drop(group_id)

    def _forget(self, session: ShareSession) -> None:
        session.is_ended = True
        del self._sessions[session.key]
        self._partition_count -= len(session.partitions)
        sessions = self._of_connections.get(session.connection)
        if sessions is not None:
            sessions.pop(session, None)

    def _closed(self, connection: ClientConnection) -> None:
        for session in self._of_connections.pop(connection, {}):
            self.end(session)
