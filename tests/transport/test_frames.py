"""Request and response frames: whole and in order, however the bytes are split."""

import os
import random
import socket
import struct

import pytest

from kafkalite.errors import Fatal
from kafkalite.records.file_slice import FileSlice, OpenFile
from kafkalite.transport.connection import Disconnect

TCP_INFO_SIZE, DATA_SEGMENTS_IN = 160, 152
"""Size of struct tcp_info up to there, and the place of its tcpi_data_segs_in."""
SIZES = (1, 2, 3, 100, 60_000, 65_531, 65_532, 65_533, 200_000, 1_000_000, 5_000_000)


def framed(body):
    return struct.pack(">i", len(body)) + body


def test_frame_of_any_size_is_echoed(world):
    client = world().client()
    for size in SIZES:
        body = os.urandom(size)
        client.request(body)
        assert client.response() == body


def test_frame_received_byte_by_byte_is_one_frame(world):
    frames = []
    here = world(lambda connection, frame: frames.append(bytes(frame)))
    client = here.client()
    for byte in framed(b"slowly") + framed(b"but surely"):
        client.send(bytes([byte]))
        here.tick()
    here.until(lambda: len(frames) == 2)
    assert frames == [b"slowly", b"but surely"]


def test_frames_do_not_depend_on_how_bytes_are_split(world):
    dice = random.Random(11)
    bodies = [os.urandom(dice.choice((1, 7, 400, 70_000, 300_000))) for _ in range(60)]
    stream = b"".join(map(framed, bodies))
    frames = []
    here = world(lambda connection, frame: frames.append(bytes(frame)))
    client = here.client()
    position = 0
    while position < len(stream):
        size = dice.choice((1, 3, 5, 1000, 65_536, 100_000))
        client.send(stream[position : position + size])
        position += size
        if dice.random() < 0.5:
            here.tick()
    here.until(lambda: len(frames) == len(bodies))
    assert frames == bodies


def test_many_frames_in_one_write_get_responses_in_order(world):
    client = world().client()
    bodies = [b"%d" % number for number in range(1000)]
    client.request(*bodies)
    assert client.responses(1000) == bodies


def test_responses_are_sent_in_request_order(world):
    expected = []

    def serve(connection, frame):
        if frame[0] == ord("n"):
            return [bytes(frame)]
        expected.append((bytes(frame), connection.defer()))
        return expected[-1][1]

    here = world(serve)
    client = here.client()
    client.request(b"later 1", b"now 1", b"later 2", b"now 2", b"now 3")
    here.until(lambda: len(expected) == 2)
    here.quiet()
    assert not client.take() and not client.received
    (first, first_answer), (second, second_answer) = expected
    second_answer.send([second])
    here.quiet()
    assert not client.take() and not client.received
    first_answer.send([first])
    assert client.responses(5) == [b"later 1", b"now 1", b"later 2", b"now 2", b"now 3"]


def test_response_may_be_sent_before_the_handler_returns(world):
    def serve(connection, frame):
        answer = connection.defer()
        answer.send([b"early"])
        return answer

    assert world(serve).client().request(b"x").response() == b"early"


def test_response_cannot_be_sent_twice(world):
    answers = []

    def serve(connection, frame):
        answers.append(connection.defer())
        return answers[0]

    here = world(serve)
    here.client().request(b"x")
    here.until(lambda: answers)
    answers[0].send([b"once"])
    with pytest.raises(AssertionError, match="once"):
        answers[0].send([b"twice"])


def test_request_without_response_leaves_no_gap(world):
    here = world(lambda connection, frame: [bytes(frame)] if frame[0] == ord("a") else None)
    client = here.client().request(b"silent", b"a1", b"silent", b"a2")
    assert client.responses(2) == [b"a1", b"a2"]


def test_response_and_its_chunks_may_be_empty(world):
    answers = iter([[], [b""], [b"", b"x", b""]])
    here = world(lambda connection, frame: next(answers))
    assert here.client().request(b"1", b"2", b"3").responses(3) == [b"", b"", b"x"]


def test_bytes_and_file_slices_are_sent_in_order(world, tmp_path):
    content = os.urandom(3_000_000)
    path = tmp_path / "segment"
    path.write_bytes(content)
    file = OpenFile(path, os.O_RDONLY)
    chunks = [b"head", FileSlice(file, 5, 2_500_000), b"", FileSlice(file, 0, 0), b"mid"]
    chunks += [FileSlice(file, 0, 10), FileSlice(file, 2_999_990, 10), b"tail"]
    client = world(lambda connection, frame: list(chunks)).client()
    whole = b"head" + content[5:2_500_005] + b"mid" + content[:10] + content[-10:] + b"tail"
    assert client.request(b"x", b"y").responses(2) == [whole, whole]


def test_end_of_a_response_shares_the_segment_of_the_file_slice_before_it(world, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(10_000))
    chunks = [b"head", FileSlice(OpenFile(path, os.O_RDONLY), 0, 10_000), b"tail"]
    here = world(lambda connection, frame: list(chunks))
    client = here.client()
    here.connected(1)
    for count in (1, 2):
        client.request(b"x")
        assert client.response() == b"head" + bytes(10_000) + b"tail"
        info = client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
        assert struct.unpack_from("=I", info, DATA_SEGMENTS_IN) == (count,)


def test_file_slice_keeps_its_file_until_it_is_sent(world, tmp_path, open_descriptors):
    path = tmp_path / "segment"
    path.write_bytes(bytes(20_000_000))
    served = []

    def serve(connection, frame):
        served.append(bytes(frame))
        return [FileSlice(OpenFile(path, os.O_RDONLY), 0, 20_000_000)]

    here = world(serve)
    client = here.client()
    here.connected(1)
    before = open_descriptors()
    client.request(b"x")
    here.until(lambda: served)  # a busy kernel may deliver the request after a quiet tick
    path.unlink()
    assert open_descriptors() == before + 1
    assert client.response() == bytes(20_000_000)
    assert open_descriptors() == before


def test_file_shorter_than_its_slice_closes_only_its_connection(world, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    file = OpenFile(path, os.O_RDONLY)
    here = world(
        lambda connection, frame: [FileSlice(file, 0, 100)] if frame == b"cut" else [b"fine"]
    )
    other, client = here.client(), here.client()
    client.request(b"cut")
    here.until(client.is_closed)
    assert other.request(b"x").response() == b"fine"


def test_frame_view_stays_valid_after_the_handler_returns(world):
    kept = []

    def serve(connection, frame):
        kept.append(frame)
        return [b"ok"]

    here = world(serve)
    client = here.client()
    bodies = [bytes([number]) * 5000 for number in range(40)] + [b"z" * 300_000]
    for body in bodies:
        client.request(body)
        assert client.response() == b"ok"
    assert [bytes(view) for view in kept] == bodies
    assert here.reactor.counters["views_kept"] > 0


def test_frame_view_is_read_only(world):
    seen = []
    here = world(lambda connection, frame: seen.append(frame.readonly))
    here.client().request(b"x")
    here.until(lambda: seen)
    assert seen == [True]


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1001, 2**31 - 1])
def test_invalid_frame_size_closes_after_earlier_responses(world, size, caplog):
    here = world(frame_size_max=1000)
    client, other = here.client(), here.client()
    client.send(framed(b"good") + struct.pack(">i", size) + b"rest")
    assert client.response() == b"good"
    here.until(client.is_closed)
    assert other.request(b"still here").response() == b"still here"
    assert f"a request of {size} bytes" in caplog.text


def test_frame_of_the_maximum_size_is_served(world):
    client = world(frame_size_max=1000).client()
    assert client.request(bytes(1000)).response() == bytes(1000)


def test_disconnect_closes_after_earlier_responses(world, caplog):
    def serve(connection, frame):
        if frame == b"bad":
            raise Disconnect("it said something bad")
        return [bytes(frame)]

    here = world(serve)
    client = here.client().request(b"1", b"2", b"bad", b"3")
    assert client.responses(2) == [b"1", b"2"]
    here.until(client.is_closed)
    assert not client.received
    assert "it said something bad" in caplog.text


def test_exception_closes_its_connection_and_is_logged(world, caplog):
    def serve(connection, frame):
        if frame == b"bad":
            raise ValueError("a bug")
        return [bytes(frame)]

    here = world(serve)
    client, other = here.client(), here.client()
    client.request(b"bad")
    here.until(client.is_closed)
    assert other.request(b"x").response() == b"x"
    assert "ValueError: a bug" in caplog.text and "Traceback" in caplog.text
    assert here.reactor.counters["faults"] == 1


@pytest.mark.parametrize("fault", [AssertionError, Fatal])
def test_assertion_or_fatal_error_ends_the_loop(world, fault):
    def serve(connection, frame):
        raise fault("this cannot be")

    here = world(serve)
    client = here.client().request(b"x")
    with pytest.raises(fault, match="this cannot be"):
        here.until(client.is_closed)


def test_rate_limited_log_keeps_kinds_apart(world, caplog):
    def serve(connection, frame):
        if frame == b"bug":
            raise ValueError("a bug")
        raise Disconnect("a bad word")

    here = world(serve, frame_size_max=10)
    for body in (b"word", b"bug", b"far too long for it", b"word", b"bug"):
        client = here.client().request(body)
        here.until(client.is_closed)
    for words in ("a bad word", "ValueError: a bug", "announced"):
        assert caplog.text.count(words) == 1


def test_rate_limited_log_suppresses_repeated_lines(world, caplog):
    here = world(frame_size_max=10)
    for _ in range(100):
        client = here.client().send(struct.pack(">i", 11))
        here.until(client.is_closed)
        client.close()
    assert caplog.text.count("announced") == 1


def test_closed_connection_abandons_pending_responses(world):
    gone, abandoned, answers = [], [], []

    def serve(connection, frame):
        connection.on_close(lambda: gone.append(connection.id))
        answers.append(connection.defer())
        answers[-1].abandoned = lambda: abandoned.append(connection.id)
        return answers[-1]

    here = world(serve)
    client = here.client().request(b"x")
    here.until(lambda: answers)
    (connection,) = here.reactor.connections
    client.close()
    here.until(lambda: gone)
    assert gone == abandoned == [connection.id]
    assert not connection.open
    answers[0].send([b"too late"])
    here.quiet()
    assert here.reactor.connections == []


def test_sent_response_is_not_abandoned(world):
    abandoned = []

    def serve(connection, frame):
        answer = connection.defer()
        answer.abandoned = lambda: abandoned.append(frame)
        answer.send([b"done"])
        return answer

    here = world(serve)
    client = here.client().request(b"x")
    assert client.response() == b"done"
    client.close()
    here.connected(0)
    assert not abandoned


def test_handler_may_close_any_connection(world):
    def serve(connection, frame):
        for each in here.reactor.connections:
            each.close()
        return [b"nobody reads this"]

    here = world(serve)
    one, two = here.client(), here.client()
    here.connected(2)
    two.request(b"both at once")
    one.request(b"both at once", b"and one more")
    here.until(lambda: one.is_closed() and two.is_closed())
    assert here.reactor.connections == []


def test_half_closed_client_gets_its_responses(world):
    here = world()
    client = here.client().request(*[b"%d" % number for number in range(300)])
    client.socket.shutdown(socket.SHUT_WR)
    assert client.responses(300) == [b"%d" % number for number in range(300)]
    here.until(client.is_closed)


def test_half_closed_client_may_read_a_long_response_slowly(world):
    here = world(lambda connection, frame: [bytes(20_000_000)])
    client = here.client(SO_RCVBUF=10_000).request(b"x")
    client.socket.shutdown(socket.SHUT_WR)
    here.quiet()
    assert client.response() == bytes(20_000_000)
    here.until(client.is_closed)


def test_connection_has_both_addresses(world):
    here = world()
    client = here.client()
    (connection,) = here.connected(1)
    assert connection.peer == client.socket.getsockname()
    assert connection.local == here.address
