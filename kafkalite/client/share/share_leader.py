"""ShareLeader: the connection to one leader, with the share session over it.

Requests of a session are counted, so one is in flight at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.deadline import Backoff
from kafkalite.client.share.leader_session import LeaderSession, ShareResponse, Wanted
from kafkalite.config.client import (
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT_MS,
    FETCH_MIN_BYTES,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    SHARE_ACQUIRE_MODE,
)
from kafkalite.errors import InvalidRequest, KafkaError, NetworkException, UnsupportedVersion
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas.share import SHARE_ACKNOWLEDGE, SHARE_FETCH

CONNECT_TIMEOUT_S_MIN = 1.0
CONNECT_TIMEOUT_S_MAX = 5.0
RENEWS_SINCE = 2
"""The version that knows renewals and acquire modes (KIP-1206, KIP-1222)."""
ACQUIRE_MODES = {"batch_optimized": 0, "record_limit": 1}
NEVER = float("inf")


class ShareLeader:
    """One leader; `due_s` is the time by which it must have responded."""

    def __init__(self, cluster: Cluster, session: LeaderSession, purpose: str) -> None:
        self.session = session
        self.due_s = NEVER
        self.sent_s = 0.0
        """Time of the last request."""
        settings = cluster.settings
        self.backoff = Backoff(settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS])
        self._cluster = cluster
        self._purpose = purpose
        self._connection: BrokerConnection | None = None
        self._version = 0
        """Version of the request in flight."""

    @property
    def node_id(self) -> int:
        return self.session.node_id

    @property
    def is_busy(self) -> bool:
        """True if a request is in flight."""
        return self.session.in_flight is not None

    def fileno(self) -> int:
        assert self._connection is not None, "not connected"
        return self._connection.fileno()

    # Requests.

    def send_fetch(self, wanted: Wanted, records_max: int, left_s: float) -> None:
        """Fetch about this many records from these partitions."""
        settings = self._cluster.settings
        connection = self._connected(left_s)
        version = connection.version(SHARE_FETCH)
        limits = {
            "max_wait_ms": settings[FETCH_MAX_WAIT_MS],
            "min_bytes": settings[FETCH_MIN_BYTES],
            "max_bytes": settings[FETCH_MAX_BYTES],
            "max_records": records_max,
            "batch_size": records_max,
        }
        if version >= RENEWS_SINCE:
            limits["share_acquire_mode"] = ACQUIRE_MODES[settings[SHARE_ACQUIRE_MODE]]
        fields = self.session.fetch(wanted, limits, time.monotonic())
        self._send(connection, SHARE_FETCH, version, fields, settings[FETCH_MAX_WAIT_MS])

    def send_acknowledgements(self, left_s: float, *, is_final: bool = False) -> None:
        """Send what was acknowledged; a final request ends the session."""
        connection = self._connected(left_s)
        version = connection.version(SHARE_ACKNOWLEDGE)
        if self.session.has_renewals and version < RENEWS_SINCE:
            self.session.refuse_renewals(
                UnsupportedVersion(f"Node {self.node_id} does not support renewals of locks.")
            )
        fields = self.session.acknowledge(time.monotonic(), is_final=is_final)
        self._send(connection, SHARE_ACKNOWLEDGE, version, fields, 0)

    def _connected(self, left_s: float) -> BrokerConnection:
        connection = self._connection
        if connection is None or connection.closed:
            if self.session.is_open:
                raise NetworkException(f"The connection to node {self.node_id} was lost.")
            timeout_s = min(max(left_s, CONNECT_TIMEOUT_S_MIN), CONNECT_TIMEOUT_S_MAX)
            connection = self._cluster.connection(self.node_id, self._purpose, timeout_s)
            self._connection = connection
        return connection

    def _send(
        self,
        connection: BrokerConnection,
        api: Api,
        version: int,
        fields: Mapping[str, Any],
        wait_ms: int,
    ) -> None:
        self.sent_s = time.monotonic()
        self.due_s = self.sent_s + (self._cluster.settings[REQUEST_TIMEOUT_MS] + wait_ms) / 1000
        self._version = version
        connection.send(api, version, dict(fields))

    def receive(self) -> ShareResponse | None:
        """Handle a response that has arrived; None if it is not complete yet."""
        connection, sent = self._connection, self.session.in_flight
        assert connection is not None and sent is not None, "no request is in flight"
        taken = connection.take()
        if taken is None:
            return None
        self.due_s = NEVER
        try:
            return self.session.handle(sent.api.response.read(self._version, taken[1]))
        except InvalidRequest as error:
            raise NetworkException(
                f"Node {self.node_id} sent an invalid response: {error}"
            ) from None

    # Failures.

    def fail(self, error: KafkaError) -> None:
        """Close the connection, reset the session, and start the backoff."""
        self.disconnect()
        self.session.reset(error)
        self.backoff.failed(error)

    def disconnect(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self.due_s = NEVER
        if connection is not None:
            connection.close()
