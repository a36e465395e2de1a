"""Memory and wake-ups of a ring, created by a worker for a producer on the same host.

    WorkerRing     creates two sealed memory files, an eventfd and a socket pair
    ProducerRing   receives the descriptors, checks and maps them

ext/net/ring.pyx defines the content.  The descriptors are sent over a connection to the local
listener, which is also the lease of the ring: when it ends, both sides close.  Nothing has a name,
so a process that is killed leaves nothing behind.

The worker chooses the size and allocates the memory before a producer may write to it.  Both files
are sealed against shrinking and growing, so no access can error beyond their end.  The counters are
also sealed against new writable mappings: only the worker has one.  A hole that a producer punches
reads as zeros, which are not a valid frame.

The producer wakes the worker by an eventfd, which the worker reads without blocking whatever the
descriptor's flags are.  An eventfd cannot be written that way: its flags are shared by all its
holders, and a producer that clears O_NONBLOCK and fills the counter would block the worker.  So the
worker wakes the producer by a byte through a socket pair, whose ends share no flags; the pair also
reports the end of the worker.

A frame names its topic by id and its partition by number.  There are no handles that must be opened
first or that could refer to another partition after a transfer, and the worker keeps no state of a
producer except its ring.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from kafkalite._ext.ring import (
    CAPACITY_MAX,
    CAPACITY_MIN,
    COUNTERS_SIZE,
    FRAMES_POSITION,
    SHARE,
    WRONG_CHECKSUM,
    WRONG_PADDING,
    WRONG_RESERVED,
    WRONG_RESPONSES_TAKEN,
    WRONG_SEQUENCE,
    WRONG_SIZE,
    RingError,
    RingReader,
    RingWriter,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "REASONS",
    "RING_SIZE_DEFAULT",
    "RING_SIZE_MAX",
    "RING_SIZE_MIN",
    "ProducerRing",
    "RingError",
    "WorkerRing",
    "frame_size_max",
]

RING_SIZE_DEFAULT = 4 << 20
RING_SIZE_MIN, RING_SIZE_MAX = CAPACITY_MIN, CAPACITY_MAX

REASONS = {
    WRONG_SIZE: "the size of a frame is too small, too large, or crosses the end of the ring",
    WRONG_PADDING: "a padding frame does not end where the ring ends",
    WRONG_CHECKSUM: "the header of a frame does not match its checksum",
    WRONG_SEQUENCE: "the sequence of a frame is not the next one",
    WRONG_RESERVED: "the reserved field of a frame is not zero",
    WRONG_RESPONSES_TAKEN: "the count of taken responses exceeds the written ones, or decreased",
}
"""Reasons for closing a producer's ring, by the error number of RingReader.take."""

F_SEAL_FUTURE_WRITE = 0x10  # the fcntl module has no name for it
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
RING_SEALS = SIZE_SEALS | fcntl.F_SEAL_SEAL
COUNTERS_SEALS = RING_SEALS | F_SEAL_FUTURE_WRITE
# All pages allocated and in the page tables from the start.
MAP_FLAGS = mmap.MAP_SHARED | mmap.MAP_POPULATE


def frame_size_max(ring_size: int) -> int:
    """Return the largest frame, header included, that a ring of this size accepts."""
    return ring_size // SHARE


class WorkerRing:
    """The worker's end of a ring."""

    def __init__(
        self, descriptors: tuple[int, int, int, int], wake_socket: socket.socket, reader: RingReader
    ) -> None:
        self._producer_descriptors: tuple[int, ...] = descriptors
        self._event = descriptors[2]
        self._wake_socket = wake_socket
        self._count = bytearray(8)
        self.reader = reader
        self.closed = False

    @classmethod
    def make(cls, size: int = RING_SIZE_DEFAULT, scratch: Buffer | None = None) -> WorkerRing:
        """Create a ring of `size` bytes, a power of two; raise OSError if the machine cannot.

        Frames are copied to `scratch`, which the rings of one thread may share.
        """
        if size & (size - 1) or not RING_SIZE_MIN <= size <= RING_SIZE_MAX:
            raise ValueError(
                f"Invalid ring size {size}: it must be a power of two from {RING_SIZE_MIN}"
                f" to {RING_SIZE_MAX}."
            )
        with ExitStack() as cleanup:
            ring = _memory("kafkalite-ring", FRAMES_POSITION + size, cleanup)
            frames = _mapped(ring, FRAMES_POSITION + size, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(ring, fcntl.F_ADD_SEALS, RING_SEALS)
            counters = _memory("kafkalite-ring-counters", COUNTERS_SIZE, cleanup)
            counts = _mapped(counters, COUNTERS_SIZE, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(counters, fcntl.F_ADD_SEALS, COUNTERS_SEALS)
            reader = RingReader(frames, counts, scratch or bytearray(frame_size_max(size)))
            event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            cleanup.callback(os.close, event)
            _drain(event, bytearray(8))  # fails on a kernel without this read: no rings there
            worker_socket, producer_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            worker_socket.setblocking(False)
            descriptors = ring, counters, event, producer_socket.detach()
            worker_ring = cls(descriptors, worker_socket, reader)
            cleanup.pop_all()
            return worker_ring

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors to send to the producer: ring, counters, worker's event, producer's event."""
        return self._producer_descriptors

    def sent(self) -> None:
        """Close the descriptors that only the producer needs, once they were sent."""
        for descriptor in self._producer_descriptors:
            if descriptor != self._event:
                os.close(descriptor)
        self._producer_descriptors = ()

    def fileno(self) -> int:
        """Return the descriptor that is readable when the producer has woken this end."""
        return self._event

    def clear(self) -> None:
        """Reset the wake-up, so that the descriptor is readable only after the next one."""
        _drain(self._event, self._count)

    def wake(self) -> None:
        """Wake the producer."""
        # Full: the producer has unread wake-ups.  Closed: the lease reports it.
        with suppress(BlockingIOError, ConnectionError):
            self._wake_socket.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Release all resources; the producer notices when it sleeps or looks."""
        if not self.closed:
            self.closed = True
            self.reader.close()
            self._wake_socket.close()
            self.sent()
            os.close(self._event)


class ProducerRing:
    """The producer's end of a ring; not usable in a process forked from this one."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Adopt these descriptors; close them and raise RingError if they are not a valid ring."""
        with ExitStack() as cleanup:
            for descriptor in descriptors:
                cleanup.callback(os.close, descriptor)
            if len(descriptors) != 4:
                raise RingError(f"a ring has 4 descriptors, not {len(descriptors)}")
            ring, counters, event, wake_socket = descriptors
            try:
                size = _checked_size(ring, RING_SEALS)
                frames = _mapped(ring, size, mmap.PROT_READ | mmap.PROT_WRITE)
                counts = _mapped(counters, _checked_size(counters, COUNTERS_SEALS), mmap.PROT_READ)
                self.writer = RingWriter(frames, counts)
                self._wake_socket = socket.socket(fileno=wake_socket)
                # Independent of the socket default of this program.
                self._wake_socket.setblocking(False)
            except (OSError, ValueError) as error:
                raise RingError(f"the worker's descriptors are not a ring: {error}") from error
            cleanup.pop_all()
        self._event = event
        os.close(ring)
        os.close(counters)
        self._pid = os.getpid()
        self.closed = False

    def take_acks(self) -> list[tuple[int, int, int, int, int]]:
        """Return the acknowledgements that arrived; wake a worker that waits for room for more."""
        acks = self.writer.take_acks()
        if acks and self.writer.is_space_awaited():
            self.wake_worker()
        return acks

    def wake_worker(self) -> None:
        """Wake the worker."""
        self._check_process()
        with suppress(BlockingIOError):  # the counter is full: the worker has unread wake-ups
            os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        """Return the descriptor that is readable when the worker has woken this end or ended."""
        return self._wake_socket.fileno()

    def clear(self) -> None:
        """Reset the wake-up; raise RingError if the worker has closed the ring."""
        self._check_process()
        try:
            if self._wake_socket.recv(4096, socket.MSG_DONTWAIT):
                return
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        raise RingError("the worker has closed the ring")

    def close(self) -> None:
        """Release all resources; in a forked process, its copies of them."""
        if not self.closed:
            self.closed = True
            self.writer.close()
            self._wake_socket.close()
            os.close(self._event)

    def _check_process(self) -> None:
        if self.closed:
            raise RingError("the ring is closed")
        if os.getpid() != self._pid:
            raise RingError("a ring cannot be used after a fork; open another")


def _memory(name: str, size: int, cleanup: ExitStack) -> int:
    """Create a fully allocated memory file; `cleanup` closes it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    cleanup.callback(os.close, descriptor)
    os.posix_fallocate(descriptor, 0, size)
    return descriptor


def _mapped(descriptor: int, size: int, protection: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=MAP_FLAGS, prot=protection)


def _drain(event: int, count: bytearray) -> None:
    """Reset an eventfd's counter to zero, without blocking whatever its flags are."""
    with suppress(BlockingIOError):
        os.preadv(event, [count], -1, os.RWF_NOWAIT)


def _checked_size(descriptor: int, seals: int) -> int:
    """Return the size of a memory file after checking its seals."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a memory file")
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & seals != seals:
        raise OSError(errno.EPERM, "the memory file is not sealed")
    return status.st_size
