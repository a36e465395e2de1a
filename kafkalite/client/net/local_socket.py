"""The client's end of a node's local socket: found, opened, and asked who it is.

    lane = open_local(cluster_id, node_id, port, client_id)     # None: there is no lane
    lane.send(READ(request_id=1, …))
    record, descriptors = lane.receive(timeout_s=1.0)

A node on this host listens in its run directory (transport/run_directory.py) and speaks packets
(protocol/schemas/local.py).  A socket's file proves nothing, so whoever answers must name the
cluster, the node and the TCP port that Metadata names.  What comes is checked like bytes from
anywhere.  Whatever goes wrong on an open one is a NetworkException, and the socket is of no more
use: the caller goes on over TCP.

Nothing here blocks but for the time-outs given, and descriptors that are handed out are the
caller's to close.
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
    Record,
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
    """The local socket of the node that Metadata names so; None where there is none that answers.

    Ask only for a node whose TCP connection stays within this host: another host's node may have
    the same name there.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(OSError):  # run directories come and go
        for path in local_sockets(cluster_id, node_id):
            with contextlib.suppress(KafkaError, OSError):
                lane = LocalSocket(os.fspath(path))
                if lane.met(cluster_id, node_id, port, client_id, deadline):
                    return lane
    return None


class LocalSocket:
    """One open local socket; made by `open_local`.  One thread at a time."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.setblocking(False)
            self.socket.connect(path)
        except BaseException:
            self.socket.close()
            raise
        self.welcome = Record(WELCOME, {})

    def met(
        self, cluster_id: str, node_id: int, port: int, client_id: str | None, deadline: float
    ) -> bool:
        """Say hello; whether it is that node, else it is closed, and by an interrupt as well."""
        is_it = False
        hello = HELLO(cluster_id=cluster_id, node_id=node_id, client_id=client_id)
        try:
            self.send(hello)
            heard = self.receive(max(0.0, deadline - time.monotonic()))
            if heard is not None:
                record, descriptors = heard
                close_all(descriptors)
                self.welcome, said = record, record.fields
                is_it = (
                    record.kind is WELCOME
                    and not descriptors
                    and said["error_code"] == 0
                    and (said["cluster_id"], said["node_id"], said["port"])
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

    def send(self, record: Record) -> bool:
        """Send a packet; False when the node has not taken what was sent before, try later."""
        try:
            self.socket.send(write_packet(record))
        except BlockingIOError:
            return False
        except OSError as fault:
            raise NetworkException(f"The local socket ended: {fault.strerror}.") from None
        return True

    def receive(self, timeout_s: float | None = 0.0) -> tuple[Record, list[int]] | None:
        """The next packet and the descriptors with it; None when the time is up."""
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
        except OSError as fault:
            raise NetworkException(f"The local socket ended: {fault.strerror}.") from None
        try:
            if not packet:
                raise NetworkException("The node closed its local socket.")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise NetworkException("A packet of the local socket came in part.")
            return read_packet(packet), descriptors
        except KafkaError as fault:
            close_all(descriptors)
            raise NetworkException(str(fault)) from None

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
