"""Rings for tests: both ends in this process, or a producer in a child process."""

import os
import select
import signal
import struct
import traceback
from contextlib import contextmanager

from kafkalite._ext.ring import COUNTERS_SIZE, FRAMES_POSITION, RingReader, RingWriter
from kafkalite.transport.ring import ProducerRing, WorkerRing
from tests.twins import ring as twin

TOPIC = bytes(range(16))
SMALL = 4096


class Pair:
    """Both ends over plain memory, and the memory."""

    def __init__(self, capacity=SMALL, ends=(RingWriter, RingReader)):
        self.ring = bytearray(FRAMES_POSITION + capacity)
        self.counters = bytearray(COUNTERS_SIZE)
        writer, reader = ends
        self.writer = writer(self.ring, self.counters)
        if reader is RingReader:
            self.reader = RingReader(self.ring, self.counters, bytearray(capacity // 4))
        else:
            self.reader = reader(self.ring, self.counters)

    def send(self, batch, correlation=0, acks=1, partition=0, timeout_ms=1000):
        """Commit a batch; return whether the worker must be woken, or None if there is no room."""
        room = self.writer.reserve(len(batch))
        if room is None:
            return None
        room[:] = batch
        return self.writer.commit(TOPIC, partition, correlation, acks, timeout_ms, len(batch))

    def taken(self):
        """Return what the reader takes next, with the batch as bytes."""
        return as_bytes(self.reader.take())

    def header(self, position=0):
        """Return the index in the ring's memory of the frame at this position."""
        return FRAMES_POSITION + position % (len(self.ring) - FRAMES_POSITION)


def as_bytes(taken):
    return (*taken[:-1], bytes(taken[-1])) if isinstance(taken, tuple) else taken


def twins(capacity=SMALL):
    return Pair(capacity, (twin.Writer, twin.Reader))


def resealed(memory, frame, **fields):
    """Change fields of the frame at this index and recompute its checksum."""
    places = {"sequence": (8, "<Q"), "acks": (40, "<h"), "reserved": (42, "<H")}
    for name, value in fields.items():
        place, form = places[name]
        struct.pack_into(form, memory, frame + place, value)
    struct.pack_into("<I", memory, frame + 4, twin.crc(bytes(memory[frame + 8 : frame + 48])))


def copies(descriptors):
    """Return duplicates of these descriptors, as a socket would deliver them."""
    return [os.dup(descriptor) for descriptor in descriptors]


@contextmanager
def attached(size=1 << 20):
    """Yield both ends of a real ring."""
    worker = WorkerRing.make(size)
    try:
        producer = ProducerRing(copies(worker.descriptors))
        worker.sent()
        try:
            yield worker, producer
        finally:
            producer.close()
    finally:
        worker.close()


@contextmanager
def producer_elsewhere(play, size=1 << 20):
    """Yield a worker's end and the pid of a child process that runs `play(producer ring)`.

    The child exits with 0 when `play` returns and with 1 when it raises; a child that still runs at
    the end is killed.
    """
    worker = WorkerRing.make(size)
    handed = copies(worker.descriptors)
    pid = os.fork()
    if pid == 0:
        failed = 1
        try:
            worker.close()
            play(ProducerRing(handed))
            failed = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(failed)
    try:
        for descriptor in handed:
            os.close(descriptor)
        worker.sent()
        yield worker, pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        worker.close()


def ended(pid):
    """Return the exit code of the process once it has ended, without reaping it."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def lives(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None


def slept(end, rested, seconds):
    """Sleep on the end's descriptor if allowed; return False if nothing woke it in `seconds`."""
    if not rested.begin_sleep():
        return True
    woken = bool(select.select([end], [], [], seconds)[0])
    rested.end_sleep()
    end.clear()
    return woken
