"""Random mixtures from a seed: late responses, slow readers, bounds, slices, closed connections."""

import os
import random
import struct
import sys

import pytest

from kafkalite.records.file_slice import FileSlice, OpenFile

CONTENT = random.Random(5).randbytes(3_000_000)
REQUEST = struct.Struct(">cIII")  # action, request number, size of the response, padding


@pytest.fixture
def segment(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    return OpenFile(path, os.O_RDONLY)


class Server:
    """A server that responds at once, later, from a file or not at all, as each request asks."""

    def __init__(self, dice, segment):
        self.dice = dice
        self.segment = segment
        self.later = []

    def serve(self, connection, frame):
        how, number, size, padding = REQUEST.unpack_from(frame)
        assert len(frame) == REQUEST.size + padding
        chunks = [struct.pack(">I", number), CONTENT[:size]]
        if how == b"f":
            chunks = [struct.pack(">I", number), FileSlice(self.segment, 0, size)]
        if how == b"n":
            return None
        if how == b"l":
            self.later.append((connection.defer(), chunks))
            return self.later[-1][0]
        return chunks

    def answer_some(self):
        self.dice.shuffle(self.later)
        for _ in range(self.dice.randrange(len(self.later) + 1)):
            answer, chunks = self.later.pop()
            answer.send(chunks)


def requests(dice, count):
    """Return request frames and the responses they should get."""
    frames, answers = [], []
    for number in range(count):
        how = dice.choice([b"a", b"a", b"f", b"l", b"n"])
        size = dice.choice((0, 1, 100, 5_000, 300_000 if dice.random() < 0.1 else 10))
        padding = dice.choice((0, 0, 0, 50, 2_000, 150_000 if dice.random() < 0.1 else 1))
        body = REQUEST.pack(how, number, size, padding) + bytes(padding)
        frames.append(struct.pack(">i", len(body)) + body)
        if how != b"n":
            answers.append(struct.pack(">iI", size + 4, number) + CONTENT[:size])
    return b"".join(frames), b"".join(answers)


@pytest.mark.parametrize("seed", range(8))
def test_every_client_gets_exactly_its_responses_in_order(world, segment, seed):
    dice = random.Random(seed)
    server = Server(dice, segment)
    here = world(
        server.serve,
        in_flight_max=dice.choice((1, 3, 100)),
        queued_size_max=dice.choice((1, 20_000, 4 << 20)),
        queued_sum_max=dice.choice((-1, 300_000, 4 << 20)),
        held_size_max=dice.choice((0, 200_000)),
    )
    here.reactor._slow_readers.size_max = -1  # those above the bound wait, and are not closed
    plans = []
    for _ in range(8):
        client = here.client(SO_RCVBUF=dice.choice((4_096, 200_000)))
        plans.append([client, *map(memoryview, requests(dice, 60))])
    leaver = here.client()
    leaver.send(requests(dice, 60)[0][:9_000])
    while any(left or expected for _, left, expected in plans):
        for plan in plans:
            client, left, _ = plan
            if left and dice.random() < 0.7:
                try:
                    plan[1] = left[client.socket.send(left[: dice.choice((1, 500, 100_000))]) :]
                except BlockingIOError:
                    pass
            if dice.random() < 0.5:
                client.take()
                came, expected = client.received, plan[2]
                assert came == expected[: len(came)]
                plan[2] = expected[len(came) :]
                client.received = bytearray()
        here.reactor.tick(0)
        server.answer_some()
        if dice.random() < 0.01:
            leaver.close()
    # the last requests may need no response, and the kernel may still hold them back
    clients = [connection for connection in here.reactor.connections if connection.id <= 8]
    here.until(lambda: all(connection.frames == 60 for connection in clients))
    here.quiet()
    assert not any(client.take() or client.received for client, _, _ in plans)
    assert not any(connection.has_buffered_bytes for connection in clients)


def test_sent_and_dropped_responses_are_released(world, segment):
    chunk = bytes(bytearray(100_000))
    file_slice = FileSlice(segment, 0, 1_000_000)
    here = world(lambda connection, frame: [chunk, file_slice], queued_size_max=10 << 20)
    before = sys.getrefcount(chunk), sys.getrefcount(file_slice)
    reader, leaver = here.client(), here.client(SO_RCVBUF=4_096)
    for _ in range(3):
        reader.request(b"x")
        assert len(reader.response()) == 1_100_000
    assert (sys.getrefcount(chunk), sys.getrefcount(file_slice)) == before
    leaver.request(*[b"x"] * 20)
    here.quiet()
    assert sys.getrefcount(chunk) > before[0]
    leaver.close()
    here.connected(1)
    assert (sys.getrefcount(chunk), sys.getrefcount(file_slice)) == before
