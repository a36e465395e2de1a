"""A producer on a ring, of nothing but a socket and the ring itself: what F24's programs are of.

What they do they write down in a ledger, a line at a time and at once, so that whoever is killed
has told what it did:

    sent NAME NUMBER PARTITION      before the frame is committed
    late NAME NUMBER PARTITION      the same, into a ring whose lease had ended
    acked NAME NUMBER OFFSET        when the answer was taken

On standard output they say what must be known meanwhile:

    fault WORDS                     something that must not be
    done ACT COUNT                  an act is over; how much of it was done

A record's value says who sent it and which of its records it is.
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

ANSWER_S_MAX = 30.0
ATTACH_AGAIN_S = 0.005
BACK_S_MAX = 60.0
PADDING_MAX = 300


class Place(NamedTuple):
    """Where to write: a partition, and the node that leads it."""

    run_directory: str
    cluster_id: str
    node: int
    topic_id: str
    partition: int


def tell(*words: object) -> None:
    os.write(1, (" ".join(" ".join(map(str, words)).split()) + "\n").encode())


class Ledger:
    """What those who may be killed have done; many write into one file."""

    LINE_SIZE = 64
    """So that none lies across two pages: a kill would find it half written."""

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
    """The value of a sender's so-many-th record."""
    return f"{name}/{number}/{'x' * (number * 37 % PADDING_MAX)}"


def batch_of(name: str, number: int, **fields: Any) -> bytes:
    # An old timestamp would have the log begin another segment.
    record = Record(timestamp=round(time.time() * 1000), value=value_of(name, number).encode())
    return build([record], **fields)


class Lease:
    """A connection to a node's local socket, and the descriptors of the ring that came by it."""

    def __init__(self, place: Place) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.settimeout(ANSWER_S_MAX)
            self.socket.connect(str(local_path(Path(place.run_directory), place.node)))
            self._ask(
                local.HELLO(cluster_id=place.cluster_id, node_id=place.node, client_id="F24"), 0
            )
            self.descriptors = self._ask(local.ATTACH(request_id=1), local.ATTACHED_DESCRIPTORS)
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
        """Whether the node has ended it."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def close(self) -> None:
        """Let go of the connection; the descriptors are whoever's has taken them."""
        self.socket.close()


def attach(place: Place) -> Lease:
    """A lease, waited for while the node is away; what it is not given is told."""
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
    """Write a frame, with dice piece by piece; whether there was room."""
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
