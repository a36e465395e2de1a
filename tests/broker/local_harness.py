"""Local programs for tests, made of plain sockets and a ring.  They use the local listener of a
node in this process, which is run tick by tick, or of a broker."""

from __future__ import annotations

import array
import gc
import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafkalite.protocol.schemas import local
from kafkalite.protocol.schemas.local import TypedRecord, read_packet, write_packet
from kafkalite.records.batch import Record as Row
from kafkalite.records.batch import batches, build
from kafkalite.storage.log.log_reader import read
from kafkalite.transport.ring import ProducerRing
from kafkalite.transport.run_directory import local_path
from tests.handlers.conftest import InProcess

Until = Callable[[Callable[[], bool]], object]

DESCRIPTORS_MAX = 8
READ = {
    "partition": 0, "leader_epoch": -1, "offset": 0, "size_max": 1 << 20, "isolation_level": 0,
    "wait_ms": 0,
}  # fmt: skip


class LocalNode(InProcess):
    """A node with a local listener."""

    def __init__(self, directory: Path, **settings: str) -> None:
        # A socket's path is limited in length, and the tests' directory may be deep.
        self.run_directory = Path(tempfile.mkdtemp(prefix="kl-", dir="/tmp"))
        self.local_clients: list[LocalClient] = []
        super().__init__(directory, **settings)

    def open(self) -> None:
        super().open()
        self.node.serve_locally(self.run_directory)

    @property
    def local_listener(self) -> Any:
        """The node's local listener, which is open."""
        assert self.node.local_listener is not None
        return self.node.local_listener

    @property
    def path(self) -> Path:
        return local_path(self.run_directory, self.node.node_id)

    def remove(self) -> None:
        for local_client in self.local_clients:
            local_client.close()
        self.close()
        shutil.rmtree(self.run_directory, ignore_errors=True)

    def local_client(self) -> LocalClient:
        """Return a connection that has not sent anything yet."""
        self.local_clients.append(LocalClient(self.path, self.until, self.node.cluster_id))
        return self.local_clients[-1]

    def connect_client(self, **hello: Any) -> LocalClient:
        """Return a connection that has completed the handshake."""
        local_client = self.local_client()
        assert local_client.hello(**hello).fields["error_code"] == 0
        return local_client

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        """Return the values in the log."""
        log = self.node.replicas.leader(topic, partition).log
        values: list[bytes | None] = []
        offset = log.log_start_offset
        while (found := read(log, offset, 64 << 20, log.end_offset)) is not None:
            rows = [row for batch in batches(found.read()) for row in batch]
            values += [row.value for row in rows]
            offset += len(rows)
        return values


class LocalClient:
    """One program's connection, its ring, and the descriptors it was given."""

    def __init__(self, path: Path, until: Until, cluster_id: str, node_id: int = 0) -> None:
        self.until = until
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)
        self.files: dict[int, int] = {}
        self.ring: ProducerRing | None = None
        self.acks: list[tuple[int, int, int, int, int]] = []
        self.ids = itertools.count()
        self.ended = False

    def send(self, packet: bytes | TypedRecord) -> None:
        self.socket.send(packet if isinstance(packet, bytes) else write_packet(packet))

    def try_receive(self) -> tuple[TypedRecord, list[int]] | None:
        """Return the next message, or None; set `ended` when the connection has ended."""
        descriptors = array.array("i")
        room = socket.CMSG_LEN(DESCRIPTORS_MAX * descriptors.itemsize)
        try:
            packet, ancillary, flags, _ = self.socket.recvmsg(local.PACKET_SIZE_MAX, room)
        except BlockingIOError:
            return None
        except ConnectionError:
            packet, ancillary, flags = b"", [], 0
        if not packet:
            self.ended = True
            return None
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        for _, _, sent in ancillary:
            descriptors.frombytes(sent)
        return read_packet(packet), list(descriptors)

    def receive(self) -> tuple[TypedRecord, list[int]]:
        """Wait for the next message and return it."""
        found: list[tuple[TypedRecord, list[int]]] = []

        def came() -> bool:
            message = self.try_receive()
            if message is not None:
                found.append(message)
            return bool(found) or self.ended

        self.until(came)
        assert found, "the connection ended"
        return found[0]

    def is_disconnected(self) -> bool:
        """Return whether the node closes this connection soon without sending a message."""

        def ends() -> bool:
            assert self.try_receive() is None
            return self.ended

        self.until(ends)
        return True

    def hello(self, **hello: Any) -> TypedRecord:
        fields = {
            "cluster_id": self.cluster_id, "node_id": self.node_id, "client_id": "local_client",
        }  # fmt: skip
        self.send(local.HELLO(**(fields | hello)))
        return self.receive()[0]

    # -- writing -----------------------------------------------------------------------------

    def request_ring(self, transactional_id: str | None = None) -> tuple[dict[str, Any], list[int]]:
        self.send(local.ATTACH(request_id=next(self.ids), transactional_id=transactional_id))
        answer, descriptors = self.receive()
        assert answer.kind is local.ATTACHED
        return answer.fields, descriptors

    def attach(self, transactional_id: str | None = None) -> ProducerRing:
        answer, descriptors = self.request_ring(transactional_id)
        assert answer["error_code"] == 0, answer["error_message"]
        self.ring = ProducerRing(descriptors)
        return self.ring

    def put(
        self, batch: bytes, topic_id: bytes, *, partition: int = 0, acks: int = 1,
        timeout_ms: int = 30_000,
    ) -> int:  # fmt: skip
        """Commit a frame, wake the node if it sleeps, and return the frame's correlation."""
        assert self.ring is not None
        correlation = next(self.ids)
        room = self.ring.writer.reserve(len(batch))
        assert room is not None, "the ring is full"
        room[:] = batch
        if self.ring.writer.commit(topic_id, partition, correlation, acks, timeout_ms, len(batch)):
            self.ring.wake_worker()
        return correlation

    def take_acks(self) -> list[tuple[int, int, int, int, int]]:
        assert self.ring is not None
        self.acks += self.ring.take_acks()
        return self.acks

    def wait_for_acks(self, count: int = 1) -> list[tuple[int, int, int, int, int]]:
        """Wait for `count` acknowledgements, and return all received by then."""
        self.until(lambda: len(self.take_acks()) >= count)
        return self.acks

    # -- reading -----------------------------------------------------------------------------

    def send_read(self, topic_id: bytes, **read: Any) -> int:
        """Send a READ and return its request id."""
        number = next(self.ids)
        self.send(local.READ(request_id=number, topic_id=topic_id, **(READ | read)))
        return number

    def receive_grant(self) -> dict[str, Any]:
        """Wait for the response to a READ; keep its descriptor, if any, under its file number."""
        answer, descriptors = self.receive()
        assert answer.kind is local.GRANTED
        grant = answer.fields
        assert len(descriptors) == grant["fresh"]
        if grant["fresh"]:
            assert grant["file"] not in self.files, "a number was given twice"
            self.files[grant["file"]] = descriptors[0]
        return grant

    def read(self, topic_id: bytes, **read: Any) -> dict[str, Any]:
        self.send_read(topic_id, **read)
        return self.receive_grant()

    def content(self, grant: dict[str, Any]) -> bytes:
        """Return the granted bytes, read from the file."""
        return os.pread(self.files[grant["file"]], grant["size"], grant["position"])

    def close(self) -> None:
        self.socket.close()
        if self.ring is not None:
            self.ring.close()
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()


def descriptor_count() -> int:
    """Return the number of open descriptors, without those held by garbage."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def batch_of(*values: bytes, **more: Any) -> bytes:
    """Return a batch with these values."""
    return bytes(build([Row(timestamp=1_000, value=value) for value in values], **more))
