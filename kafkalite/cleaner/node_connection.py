"""NodeConnection: a cleaner thread's connection to the local listener of one node.

    connection = NodeConnection(path, cluster_id, node_id)
    offered = connection.request(OFFER(request_id=connection.next_id()), OFFERED)

Packets that are not a response are kept: WAKE_UP in `is_awake`, CANCEL_JOB in `cancelled`.  Not
thread-safe; an error makes the connection unusable.
"""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path
from typing import Any

from kafkalite.errors import KafkaError, NetworkException
from kafkalite.protocol.record_kinds import RecordKind, TypedRecord
from kafkalite.protocol.schemas import cleaning, local
from kafkalite.protocol.schemas.local import PACKET_SIZE_MAX, read_packet, write_packet

HANDSHAKE_TIMEOUT_MS = 5_000
RESPONSE_TIMEOUT_MS = 60_000
"""Timeout for a response, except that to a finished job."""


class NodeConnection:
    """A connection to one node; the constructor raises NetworkException."""

    def __init__(self, path: Path, cluster_id: str, node_id: int) -> None:
        self.node_id = node_id
        self.is_awake = False
        """True if the node has requested an OFFER."""
        self.cancelled: dict[int, str] = {}
        """Reasons of cancelled jobs, by request id."""
        self._request_count = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise NetworkException(f"Node {node_id} cannot be reached: {error.strerror}.") from None
        hello = local.HELLO(cluster_id=cluster_id, node_id=node_id, client_id="log-cleaner")
        try:
            self._send(hello)
            welcome, _ = self._receive(HANDSHAKE_TIMEOUT_MS)
            if welcome.kind is not local.WELCOME or welcome.fields["error_code"]:
                reason = welcome.fields.get("error_message") or f"unexpected {welcome.kind} packet"
                raise NetworkException(f"Node {node_id} refuses the log cleaner: {reason}")
        except KafkaError:
            self.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def next_id(self) -> int:
        """Return a request id."""
        self._request_count += 1
        return self._request_count

    def request(
        self, record: TypedRecord, kind: RecordKind, timeout_ms: int | None = RESPONSE_TIMEOUT_MS
    ) -> tuple[dict[str, Any], int]:
        """Send a request; return the fields of its response, and its descriptor or -1."""
        self._send(record)
        while True:
            received, descriptor = self._receive(timeout_ms)
            expected = received.fields.get("request_id") == record.fields["request_id"]
            if received.kind is kind and expected:
                return received.fields, descriptor
            if descriptor >= 0:
                os.close(descriptor)
            self._note(received)

    def read_available(self) -> None:
        """Read the packets that have come, of which none is a response."""
        while self._is_readable(0):
            received, descriptor = self._receive(0)
            if descriptor >= 0:
                os.close(descriptor)
            self._note(received)

    def _note(self, received: TypedRecord) -> None:
        if received.kind is cleaning.WAKE_UP:
            self.is_awake = True
        elif received.kind is cleaning.CANCEL_JOB:
            self.cancelled = {received.fields["request_id"]: received.fields["reason"]}

    def _send(self, record: TypedRecord) -> None:
        try:
            self._socket.send(write_packet(record))
        except OSError as error:
            raise NetworkException(f"The node's socket is closed: {error.strerror}.") from None

    def _is_readable(self, timeout_ms: int | None) -> bool:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(timeout_ms))

    def _receive(self, timeout_ms: int | None) -> tuple[TypedRecord, int]:
        if not self._is_readable(timeout_ms):
            raise NetworkException(f"Node {self.node_id} did not respond in {timeout_ms} ms.")
        try:
            packet, descriptors, _, _ = socket.recv_fds(
                self._socket, PACKET_SIZE_MAX, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise NetworkException(f"The node's socket is closed: {error.strerror}.") from None
        if not packet:
            raise NetworkException("The node closed its socket.")
        return read_packet(packet), descriptors[0] if descriptors else -1

    def close(self) -> None:
        """Close the connection, which ends its job."""
        self._socket.close()
