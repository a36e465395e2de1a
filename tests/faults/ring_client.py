"""Minimal producer on a ring, of only a socket and the ring itself: used by F24's programs.

They write each action to a ledger, one line at a time and immediately, so that a killed program's
actions are known:

    sent NAME NUMBER PARTITION      before the frame is committed
    late NAME NUMBER PARTITION      the same, into a ring whose lease had ended
    acked NAME NUMBER OFFSET        when the acknowledgement was taken

On standard output they write what is needed during the run:

    fault WORDS                     a violation
    done ACT COUNT                  an act is complete; number of repetitions

A record's value has its sender's name and its number.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kafkalite.protocol.schemas import local
from kafkalite.protocol.schemas.local import read_packet, write_packet
from kafkalite.records.batch import Record, build
from kafkalite.transport.ring import ProducerRing
from kafkalite.transport.run_directory import local_path

RESPONSE_S_MAX = 30.0
ATTACH_AGAIN_S = 0.005
BACK_S_MAX = 60.0
PADDING_MAX = 300


class Place(NamedTuple):
    """The target of writes: a partition, and the node that leads it."""

    run_directory: str
    cluster_id: str
    node: int
    topic_id: str
    partition: int


def tell(*words: object) -> None:
    os.write(1, (" ".join(" ".join(map(str, words)).split()) + "\n").encode())


class Ledger:
    """The actions of programs that may be killed; several write to one file."""

    LINE_SIZE = 64
    """Fixed, so that no line crosses a page: a kill could leave it half written."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, word: str, name: str, number: int, where: int) -> None:
        line = f"{word} {name} {number} {where}"
        assert len(line) < self.LINE_SIZE
        os.write(self.file, line.ljust(self.LINE_SIZE - 1).encode() + b"\n")

    @staticmethod
    def read(path: Path) -> Iterator[tuple[str, str, int, int]]:
        for line in path.read_text().splitlines():
            word, name, number, where = line.split()
            yield word, name, int(number), int(where)


def value_of(name: str, number: int) -> str:
    """Return the value of a sender's record with this number."""
    return f"{name}/{number}/{'x' * (number * 37 % PADDING_MAX)}"


def batch_of(name: str, number: int, **fields: Any) -> bytes:
    # An old timestamp would make the log roll a segment.
    record = Record(timestamp=round(time.time() * 1000), value=value_of(name, number).encode())
    return build([record], **fields)


class Lease:
    """A connection to a node's local socket, and the ring's descriptors received over it."""

    def __init__(self, place: Place) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.settimeout(RESPONSE_S_MAX)
            self.socket.connect(str(local_path(Path(place.run_directory), place.node)))
            self._ask(
                local.HELLO(cluster_id=place.cluster_id, node_id=place.node, client_id="F24"), 0
            )
            attach = local.ATTACH(request_id=1, transactional_id=None)
            self.descriptors = self._ask(attach, local.ATTACHED_DESCRIPTORS)
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise

    def _ask(self, message: Any, count: int) -> list[int]:
        self.socket.send(write_packet(message))
        packet, descriptors, _, _ = socket.recv_fds(self.socket, local.PACKET_SIZE_MAX, 8)
        if not packet:
            raise ConnectionResetError("the node hung up")
        answer = read_packet(packet).fields
        if answer["error_code"] or len(descriptors) != count:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ConnectionRefusedError(f"{answer['error_code']}: {answer['error_message']}")
        return descriptors

    @property
    def ended(self) -> bool:
        """True if the node has ended the lease."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def close(self) -> None:
        """Close the connection; the descriptors belong to the ring that uses them."""
        self.socket.close()


def attach(place: Place) -> Lease:
    """Return a lease, with retries while the node is unavailable; report and raise a failure."""
    deadline = time.monotonic() + BACK_S_MAX
    while True:
        try:
            return Lease(place)
        except OSError as fault:
            if time.monotonic() > deadline:
                tell("fault", f"I14: no ring at node {place.node} after {BACK_S_MAX} s: {fault}")
                raise
        time.sleep(ATTACH_AGAIN_S)


def commit(
    ring: ProducerRing,
    place: Place,
    batch: bytes,
    correlation: int,
    acks: int,
    dice: random.Random | None = None,
) -> bool:
    """Write a frame, in pieces if `dice` is given; return False if there is no room."""
    room = ring.writer.reserve(len(batch))
    if room is None:
        return False
    if dice is None:
        room[:] = batch
    else:
        cut = dice.randrange(len(batch))
        room[:cut] = batch[:cut]
        time.sleep(0)
        room[cut:] = batch[cut:]
    if ring.writer.commit(
        bytes.fromhex(place.topic_id), place.partition, correlation, acks, 30_000, len(batch)
    ):
        ring.wake_worker()
    return True
