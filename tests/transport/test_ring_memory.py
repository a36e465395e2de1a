"""The ring's memory and wake-ups: neither end can remove or block them, and nothing leaks."""

import ctypes
import fcntl
import gc
import mmap
import os
import select
import socket
import struct
import threading

import pytest

from kafkalite._ext.ring import COUNTERS_SIZE, FRAMES_POSITION, WRONG_CHECKSUM
from kafkalite.transport import ring
from kafkalite.transport.ring import ProducerRing, RingError, WorkerRing
from tests.transport.rings import SMALL, TOPIC, attached, copies

PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
LIBC = ctypes.CDLL(None, use_errno=True)
CALLS = [
    "os.memfd_create", "os.posix_fallocate", "mmap.mmap", "fcntl.fcntl", "os.eventfd", "os.preadv",
    "socket.socketpair",
]  # fmt: skip


@pytest.fixture
def worker():
    made = WorkerRing.make(SMALL)
    yield made
    made.close()


@pytest.fixture
def handed(worker):
    """Yield the producer's descriptors as it gets them; those not taken are closed at the end."""
    made = copies(worker.descriptors)
    yield made
    for descriptor in made:
        os.close(descriptor)


@pytest.fixture
def producer(worker):
    made = ProducerRing(copies(worker.descriptors))
    yield made
    made.close()


def send(producer, batch=b"a batch", correlation=0):
    producer.writer.reserve(len(batch))[:] = batch
    return producer.writer.commit(TOPIC, 0, correlation, 1, 1000, len(batch))


# The memory.


def test_memory_files_are_sealed(handed):
    for memory in handed[:2]:
        size = os.fstat(memory).st_size
        for change in (0, size - 4096, size + 4096, 1 << 40):
            with pytest.raises(PermissionError):
                os.ftruncate(memory, change)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        with pytest.raises(OSError):
            os.posix_fallocate(memory, size, 4096)
        assert os.fstat(memory).st_size == size


def test_producer_cannot_write_the_counters(handed):
    counters = handed[1]
    with pytest.raises(PermissionError):
        mmap.mmap(counters, COUNTERS_SIZE)
    with pytest.raises(PermissionError):
        os.pwrite(counters, b"\xff", 0)
    again = os.open(f"/proc/self/fd/{counters}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(again, COUNTERS_SIZE)
    finally:
        os.close(again)
    LIBC.mmap.restype = ctypes.c_void_p
    size = ctypes.c_size_t(COUNTERS_SIZE)
    mapped = ctypes.c_void_p(
        LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, counters, ctypes.c_long(0))
    )
    assert mapped.value != ctypes.c_void_p(-1).value
    try:
        assert LIBC.mprotect(mapped, size, mmap.PROT_READ | mmap.PROT_WRITE) == -1
    finally:
        LIBC.munmap(mapped, size)


def test_worker_can_update_its_counters(worker, producer):
    send(producer, correlation=7)
    assert worker.reader.take()[2] == 7
    worker.reader.respond(7, 0, 41, -1, 0)
    assert producer.take_acks() == [(7, 0, 41, -1, 0)]


def test_ring_memory_is_allocated_before_use(handed):
    for memory in handed[:2]:
        status = os.fstat(memory)
        assert status.st_blocks * 512 >= status.st_size


def punch(memory, position, size):
    position, size = ctypes.c_long(position), ctypes.c_long(size)
    if LIBC.fallocate(memory, PUNCH_HOLE, position, size):
        raise OSError(ctypes.get_errno(), "no hole")


def test_punched_hole_is_not_a_valid_frame(worker, producer, handed):
    send(producer)
    punch(handed[0], 0, FRAMES_POSITION + SMALL)
    assert worker.reader.take() is None
    send(producer, b"behind the hole")
    assert worker.reader.take() is None, "what stands before it is not there"


def test_frame_length_over_a_punched_hole_is_refused(worker, producer, handed):
    send(producer, bytes(900))
    punch(handed[0], FRAMES_POSITION, SMALL)
    os.pwrite(handed[0], struct.pack("<I", 948), FRAMES_POSITION)
    assert worker.reader.take() == WRONG_CHECKSUM


# Access rights of the descriptors.


@pytest.mark.parametrize("size", [0, 1, SMALL // 2, SMALL + 8, 3 * SMALL, 1 << 31, -SMALL])
def test_ring_of_invalid_size_is_refused(size):
    with pytest.raises(ValueError, match="power of two"):
        WorkerRing.make(size)


def memory_file(size, seals):
    descriptor = os.memfd_create("a test's", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


WRONG_THINGS = {
    "not sealed": lambda: memory_file(FRAMES_POSITION + SMALL, fcntl.F_SEAL_GROW),
    "another size": lambda: memory_file(FRAMES_POSITION + 100, ring.COUNTERS_SEALS),
    "no size at all": lambda: memory_file(0, ring.COUNTERS_SEALS),
    "not memory": lambda: os.open("/dev/null", os.O_RDWR),
    "a file on disk": lambda: os.open(__file__, os.O_RDONLY),
    "no descriptor": lambda: -1,
}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("thing", WRONG_THINGS.values(), ids=WRONG_THINGS)
def test_producer_refuses_invalid_ring_memory(thing, place, worker, open_descriptors):
    before = open_descriptors()
    given = copies(worker.descriptors)
    os.close(given[place])
    given[place] = thing()
    with pytest.raises((RingError, OSError)):
        ProducerRing(given)
    assert open_descriptors() == before


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_producer_requires_four_descriptors(count, worker, open_descriptors):
    before = open_descriptors()
    given = [*copies(worker.descriptors), os.dup(0)]
    for descriptor in given[count:]:
        os.close(descriptor)
    with pytest.raises(RingError, match="4 descriptors"):
        ProducerRing(given[:count])
    assert open_descriptors() == before


def test_descriptors_in_wrong_order_are_refused(worker, open_descriptors):
    before = open_descriptors()
    for turn in range(1, 4):
        given = copies(worker.descriptors)
        with pytest.raises(RingError, match="not a ring"):
            ProducerRing(given[turn:] + given[:turn])
    assert open_descriptors() == before


# No leaks.


@pytest.fixture
def ring_maps():
    def count():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return sum("memfd:kafkalite-ring" in line for line in maps)

    return count


def test_closed_rings_leave_no_descriptor_or_memory(open_descriptors, ring_maps):
    descriptors, maps = open_descriptors(), ring_maps()
    for _ in range(50):
        with attached(SMALL) as (worker, producer):
            send(producer)
            worker.reader.take()
            worker.wake()
            producer.wake_worker()
        producer.close()
        worker.close()
    assert (open_descriptors(), ring_maps()) == (descriptors, maps)


def test_worker_closes_sent_descriptors(open_descriptors):
    before = open_descriptors()
    worker = WorkerRing.make(SMALL)
    made = open_descriptors()
    worker.sent()
    worker.sent()
    assert worker.descriptors == ()
    assert open_descriptors() == made - 3
    worker.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("nth", [1, 2])
def test_failed_ring_creation_leaves_no_descriptor_or_memory(
    call, nth, monkeypatch, open_descriptors, ring_maps
):
    module, name = call.split(".")
    real, calls = getattr(getattr(ring, module), name), []

    def fails(*args, **kwargs):
        calls.append(1)
        if len(calls) == nth:
            raise OSError("there is no more of it")
        return real(*args, **kwargs)

    before = open_descriptors(), ring_maps()
    monkeypatch.setattr(getattr(ring, module), name, fails)
    try:
        WorkerRing.make(SMALL).close()
    except OSError:
        assert len(calls) == nth
    monkeypatch.undo()
    assert calls, "it was never asked"
    assert (open_descriptors(), ring_maps()) == before


# Wake-ups.


def is_readable(file):
    return bool(select.select([file], [], [], 0)[0])


def test_each_side_wakes_the_other_until_cleared(worker, producer):
    assert not is_readable(worker) and not is_readable(producer)
    for _ in range(3):
        producer.wake_worker()
        worker.wake()
    assert is_readable(worker) and is_readable(producer)
    worker.clear()
    producer.clear()
    assert not is_readable(worker) and not is_readable(producer)
    worker.clear()
    producer.clear()


def without_waiting(do):
    """Call `do`, and fail instead of hanging if it blocks."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits"


def test_blocking_eventfd_does_not_block_the_worker(worker, producer, handed):
    _, _, event, wakes = handed
    for each in (event, wakes):
        fcntl.fcntl(each, fcntl.F_SETFL, 0)  # now it blocks, in every process
    without_waiting(worker.clear)
    os.eventfd_write(event, (1 << 64) - 2)
    without_waiting(lambda: [worker.wake() for _ in range(5_000)])
    without_waiting(worker.clear)
    assert not is_readable(worker)


def test_default_socket_timeout_does_not_block_wakeups(worker):
    socket.setdefaulttimeout(60)
    try:
        producer = ProducerRing(copies(worker.descriptors))
        elsewhere = WorkerRing.make(SMALL)
    finally:
        socket.setdefaulttimeout(None)
    without_waiting(producer.clear)
    without_waiting(lambda: [elsewhere.wake() for _ in range(5_000)])
    producer.close()
    elsewhere.close()


def test_full_eventfd_does_not_block_the_producer(worker, producer, handed):
    os.eventfd_write(handed[2], (1 << 64) - 2)
    without_waiting(producer.wake_worker)
    assert is_readable(worker)


def test_closed_ring_of_the_worker_raises_ring_fault():
    with attached(SMALL) as (worker, producer):
        worker.wake()
        worker.close()
        assert is_readable(producer)
        with pytest.raises(RingError, match="has closed the ring"):
            producer.clear()
            producer.clear()


def test_wake_of_an_ended_producer_is_ignored(worker):
    producer = ProducerRing(copies(worker.descriptors))
    worker.sent()
    producer.close()
    worker.wake()
    worker.clear()
    assert worker.reader.take() is None


# Fork.


def test_ring_is_unusable_in_a_forked_child(worker, producer):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            refused = 0
            writer = producer.writer
            for use in (
                lambda: writer.reserve(10), writer.take_acks, writer.has_acks, writer.begin_sleep,
                writer.end_sleep, writer.is_space_awaited, lambda: writer.spin(0),
                lambda: writer.commit(TOPIC, 0, 0, 1, 0, 0),
                producer.take_acks, producer.wake_worker, producer.clear,
            ):  # fmt: skip
                try:
                    use()
                except RingError as fault:
                    refused += "after a fork" in str(fault)
            producer.close()
            code = 0 if refused == 11 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    send(producer, b"as before")
    assert bytes(worker.reader.take()[5]) == b"as before"


def test_closed_ring_is_reported():
    with attached(SMALL) as (_, producer):
        producer.close()
        for use in (producer.take_acks, producer.wake_worker, producer.clear):
            with pytest.raises(RingError, match="closed"):
                use()


def test_ring_descriptors_are_not_inheritable(worker, producer):
    for descriptor in (*worker.descriptors, worker.fileno(), producer.fileno()):
        assert not os.get_inheritable(descriptor)
