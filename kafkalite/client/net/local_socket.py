"""Local socket: the client's connection to a node's local listener on the same host.

    local = open_local(cluster_id, node_id, port, client_id)     # None: there is none
    local.send(READ(request_id=1, …))
    record, descriptors = local.receive(timeout_s=1.0)

A node on this host listens in its run directory (transport/run_directory.py) and speaks packets
(protocol/schemas/local.py).  A socket's file proves nothing, so the node must confirm the cluster,
the node id and the TCP port that Metadata names.  Packets are validated like any network input.
Every error of an open socket is a NetworkException; the socket is unusable then, and the client
uses TCP.

Calls block only for their timeouts.  Received descriptors must be closed by the calling code.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import Self

from kafkalite.errors import KafkaError, NetworkException
from kafkalite.protocol.schemas.local import (
    ATTACHED_DESCRIPTORS,
    HELLO,
    PACKET_SIZE_MAX,
    WELCOME,
    TypedRecord,
    read_packet,
    write_packet,
)
from kafkalite.transport.run_directory import local_sockets

OPEN_TIMEOUT_S = 2.0


def open_local(
    cluster_id: str,
    node_id: int,
    port: int,
    client_id: str | None,
    timeout_s: float = OPEN_TIMEOUT_S,
) -> LocalSocket | None:
    """Return the local socket of the node with this id and port, or None if there is none.

    Only for a node whose TCP connection stays within this host: a node of another host may have the
    same name there.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(OSError):  # a run directory may be removed meanwhile
        for path in local_sockets(cluster_id, node_id):
            with contextlib.suppress(KafkaError, OSError):
                local = LocalSocket(os.fspath(path))
                if local.handshake(cluster_id, node_id, port, client_id, deadline):
                    return local
    return None


class LocalSocket:
    """An open local socket; created by `open_local`.  Not thread-safe."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.setblocking(False)
            self.socket.connect(path)
        except BaseException:
            self.socket.close()
            raise
        self.welcome = TypedRecord(WELCOME, {})

    def handshake(
        self, cluster_id: str, node_id: int, port: int, client_id: str | None, deadline: float
    ) -> bool:
        """Shake hands; return whether it is that node, or close the socket."""
        is_it = False
        hello = HELLO(cluster_id=cluster_id, node_id=node_id, client_id=client_id)
        try:
            self.send(hello)
            received = self.receive(max(0.0, deadline - time.monotonic()))
            if received is not None:
                record, descriptors = received
                close_all(descriptors)
                self.welcome, fields = record, record.fields
                is_it = (
                    record.kind is WELCOME
                    and not descriptors
                    and fields["error_code"] == 0
                    and (fields["cluster_id"], fields["node_id"], fields["port"])
                    == (cluster_id, node_id, port)
                )
        except KafkaError:
            pass
        finally:
            if not is_it:
                self.close()
        return is_it

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, record: TypedRecord) -> bool:
        """Send a packet; return False if the socket's buffer is full, to be retried later."""
        try:
            self.socket.send(write_packet(record))
        except BlockingIOError:
            return False
        except OSError as error:
            raise NetworkException(f"The local socket was closed: {error.strerror}.") from None
        return True

    def receive(self, timeout_s: float | None = 0.0) -> tuple[TypedRecord, list[int]] | None:
        """Return the next packet and its descriptors; None after the timeout."""
        if timeout_s != 0.0:
            waiting = select.poll()
            waiting.register(self.socket, select.POLLIN)
            if not waiting.poll(None if timeout_s is None else max(0, timeout_s * 1000)):
                return None
        try:
            packet, descriptors, flags, _ = socket.recv_fds(
                self.socket, PACKET_SIZE_MAX, ATTACHED_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise NetworkException(f"The local socket was closed: {error.strerror}.") from None
        try:
            if not packet:
                raise NetworkException("The node closed its local socket.")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise NetworkException("A packet on the local socket was truncated.")
            return read_packet(packet), descriptors
        except KafkaError as error:
            close_all(descriptors)
            raise NetworkException(str(error)) from None

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
