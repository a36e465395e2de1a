"""A ring's memory and wake-ups, made by a worker and handed to a producer of the same host.

    WorkerRing     makes everything: two memory files, sealed; an eventfd; a pair of sockets
    ProducerRing   is handed the descriptors, checks and maps them

What moves through it is ext/ring.pyx's; how the descriptors travel is the local socket's, which is
also the ring's lease: when it ends, either side closes.  Nothing has a name, so nothing is left
behind by whoever dies.

The worker chooses the size, and takes the memory before anybody may write to it.  Both files are
sealed against shrinking and growing, so no access can fall behind their end.  The counters are
sealed against new writable maps as well: the worker has the one there is.  A hole that a producer
punches reads as zeros, which is no frame.

The producer wakes the worker by an eventfd, of which the worker reads without waiting whatever
the descriptor's flags say.  An eventfd cannot be written so: its flags are common to all who
hold it, and a producer that clears O_NONBLOCK and fills the count would stop the worker.  So the
worker wakes the producer by a byte into a socket pair, whose ends share nothing.  It also tells the
producer of the worker's end.

A frame names its topic by id and its partition by number.  There is no handle to be opened before,
none that could mean another partition after one has moved, and nothing for the worker to remember
about a producer but its ring.
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
    WRONG_ANSWERS_TAKEN,
    WRONG_CHECKSUM,
    WRONG_PADDING,
    WRONG_RESERVED,
    WRONG_SEQUENCE,
    WRONG_SIZE,
    RingFault,
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
    "RingFault",
    "WorkerRing",
    "frame_size_max",
]

RING_SIZE_DEFAULT = 4 << 20
RING_SIZE_MIN, RING_SIZE_MAX = CAPACITY_MIN, CAPACITY_MAX

REASONS = {
    WRONG_SIZE: "a frame's size is too small, too large, or leads over the ring's end",
    WRONG_PADDING: "a padding frame does not end where the ring ends",
    WRONG_CHECKSUM: "a frame's header does not match its checksum",
    WRONG_SEQUENCE: "a frame is not the one that follows",
    WRONG_RESERVED: "a frame's reserved field is not zero",
    WRONG_ANSWERS_TAKEN: "more answers were taken than given, or fewer than before",
}
"""What a producer did whose ring is left, by RingReader.take's number."""

F_SEAL_FUTURE_WRITE = 0x10  # the fcntl module has no name for it
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
RING_SEALS = SIZE_SEALS | fcntl.F_SEAL_SEAL
COUNTERS_SEALS = RING_SEALS | F_SEAL_FUTURE_WRITE
# Every page there from the start, in the page tables too.
MAP_FLAGS = mmap.MAP_SHARED | mmap.MAP_POPULATE


def frame_size_max(ring_size: int) -> int:
    """The largest frame a ring of this size takes, its header included."""
    return ring_size // SHARE


class WorkerRing:
    """The worker's end of a ring."""

    def __init__(
        self, descriptors: tuple[int, int, int, int], wakes: socket.socket, reader: RingReader
    ) -> None:
        self._handed: tuple[int, ...] = descriptors
        self._event = descriptors[2]
        self._wakes = wakes
        self._count = bytearray(8)
        self.reader = reader
        self.closed = False

    @classmethod
    def make(cls, size: int = RING_SIZE_DEFAULT, scratch: Buffer | None = None) -> WorkerRing:
        """A new ring of `size` bytes, a power of two; OSError when this machine has none to give.

        Frames are shown in the scratch, which the rings of one thread may share.
        """
        if size & (size - 1) or not RING_SIZE_MIN <= size <= RING_SIZE_MAX:
            raise ValueError(f"a ring has a power of two of bytes, {RING_SIZE_MIN} at least")
        with ExitStack() as undo:
            ring = _memory("kafkalite-ring", FRAMES_POSITION + size, undo)
            frames = _mapped(ring, FRAMES_POSITION + size, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(ring, fcntl.F_ADD_SEALS, RING_SEALS)
            counters = _memory("kafkalite-ring-counters", COUNTERS_SIZE, undo)
            counts = _mapped(counters, COUNTERS_SIZE, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(counters, fcntl.F_ADD_SEALS, COUNTERS_SEALS)
            reader = RingReader(frames, counts, scratch or bytearray(frame_size_max(size)))
            event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, event)
            _drain(event, bytearray(8))  # a kernel that cannot do it has no rings
            ours, producers = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            ours.setblocking(False)
            made = cls((ring, counters, event, producers.detach()), ours, reader)
            undo.pop_all()
            return made

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the producer is to be sent: ring, counters, worker's event, producer's event."""
        return self._handed

    def sent(self) -> None:
        """The producer has its descriptors: those that are only its own are closed here."""
        for descriptor in self._handed:
            if descriptor != self._event:
                os.close(descriptor)
        self._handed = ()

    def fileno(self) -> int:
        """What is readable when the producer has woken this end."""
        return self._event

    def clear(self) -> None:
        """Make it unreadable, until the producer wakes this end again."""
        _drain(self._event, self._count)

    def wake(self) -> None:
        """Wake the producer."""
        # Full: it is awake already.  Gone: the lease says so.
        with suppress(BlockingIOError, ConnectionError):
            self._wakes.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Give everything back; the producer learns of it when it sleeps or looks."""
        if not self.closed:
            self.closed = True
            self.reader.close()
            self._wakes.close()
            self.sent()
            os.close(self._event)


class ProducerRing:
    """The producer's end of a ring; of no use in a process forked from this one."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Take these descriptors over; RingFault, and they are closed, when they are no ring."""
        with ExitStack() as undo:
            for descriptor in descriptors:
                undo.callback(os.close, descriptor)
            if len(descriptors) != 4:
                raise RingFault(f"a ring comes as 4 descriptors, not {len(descriptors)}")
            ring, counters, event, wakes = descriptors
            try:
                size = _checked_size(ring, RING_SEALS)
                frames = _mapped(ring, size, mmap.PROT_READ | mmap.PROT_WRITE)
                counts = _mapped(counters, _checked_size(counters, COUNTERS_SEALS), mmap.PROT_READ)
                self.writer = RingWriter(frames, counts)
                self._wakes = socket.socket(fileno=wakes)
                self._wakes.setblocking(False)  # whatever this program's default is
            except (OSError, ValueError) as fault:
                raise RingFault(f"the worker's descriptors are no ring: {fault}") from fault
            undo.pop_all()
        self._event = event
        os.close(ring)
        os.close(counters)
        self._pid = os.getpid()
        self.closed = False

    def take_acks(self) -> list[tuple[int, int, int, int, int]]:
        """The answers that came; a worker that waits for room for more is woken."""
        acks = self.writer.take_acks()
        if acks and self.writer.freed():
            self.wake_worker()
        return acks

    def wake_worker(self) -> None:
        """Wake the worker."""
        self._check_process()
        with suppress(BlockingIOError):  # the count is full: it is awake already
            os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        """What is readable when the worker has woken this end, or is gone."""
        return self._wakes.fileno()

    def clear(self) -> None:
        """Make it unreadable, until the worker wakes this end again; RingFault: it is gone."""
        self._check_process()
        try:
            if self._wakes.recv(4096, socket.MSG_DONTWAIT):
                return
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        raise RingFault("the worker has closed the ring")

    def close(self) -> None:
        """Give everything back; after a fork, this process's share of it."""
        if not self.closed:
            self.closed = True
            self.writer.close()
            self._wakes.close()
            os.close(self._event)

    def _check_process(self) -> None:
        if self.closed:
            raise RingFault("the ring is closed")
        if os.getpid() != self._pid:
            raise RingFault("a ring cannot be used after a fork: open another")


def _memory(name: str, size: int, undo: ExitStack) -> int:
    """A memory file of this size, all of it there, to be closed on the way back."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    undo.callback(os.close, descriptor)
    os.posix_fallocate(descriptor, 0, size)
    return descriptor


def _mapped(descriptor: int, size: int, protection: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=MAP_FLAGS, prot=protection)


def _drain(event: int, count: bytearray) -> None:
    """Set an eventfd's count to zero; never wait, whatever its flags have become."""
    with suppress(BlockingIOError):
        os.preadv(event, [count], -1, os.RWF_NOWAIT)


def _checked_size(descriptor: int, seals: int) -> int:
    """The size of a memory file that keeps it for good."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no memory file")
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & seals != seals:
        raise OSError(errno.EPERM, "it is not sealed")
    return status.st_size
