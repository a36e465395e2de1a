"""The ring: frames arrive once, in order and whole; a violation of the layout is named."""

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafkalite._ext import ring
from kafkalite._ext.ring import RESPONSE_SLOTS, RingError, RingReader, RingWriter
from kafkalite.transport.ring import REASONS
from tests.transport.rings import SMALL, TOPIC, Pair, as_bytes, resealed, twins
from tests.twins import ring as twin

FRAME_MAX = SMALL // 4
BATCH_MAX = FRAME_MAX - ring.HEADER_SIZE


class Both(RuleBasedStateMachine):
    """Random calls to the compiled ends and their twins, against a list of frames in flight."""

    @initialize(capacity=st.sampled_from([SMALL, 2 * SMALL]))
    def begin(self, capacity):
        self.ours, self.twins = Pair(capacity), twins(capacity)
        self.sent, self.open, self.answers = [], [], []
        self.correlations = itertools.count()

    def both(self, do):
        ours, twins = do(self.ours), do(self.twins)
        assert ours == twins
        return ours

    @rule(
        size=st.integers(0, BATCH_MAX),
        acks=st.sampled_from([-1, 0, 1, 7]),
        partition=st.integers(-(1 << 31), (1 << 31) - 1),
        dice=st.randoms(use_true_random=False),
    )
    def commit(self, size, acks, partition, dice):
        frame = (TOPIC, partition, next(self.correlations), acks, 30_000, dice.randbytes(size))
        came = self.both(lambda pair: pair.send(frame[5], frame[2], acks, partition, 30_000))
        if came is not None:
            self.sent.append(frame)

    @rule(more=st.integers(0, 300), size=st.integers(0, 300))
    def reserve_more_than_is_committed(self, more, size):
        def do(pair):
            room = pair.writer.reserve(size + more)
            if room is None:
                return None
            room[:size] = bytes(size)
            room[size:] = b"\xff" * more  # left from an earlier frame
            return pair.writer.commit(TOPIC, 1, correlation, 1, 0, size)

        correlation = next(self.correlations)
        if self.both(do) is not None:
            self.sent.append((TOPIC, 1, correlation, 1, 0, bytes(size)))

    @rule(count=st.integers(1, 12))
    def take(self, count):
        for _ in range(count):
            taken = self.both(Pair.taken)
            assert taken == (self.sent.pop(0) if self.sent else None)
            if taken is not None and taken[3] != 0:
                self.open.append(taken[2])

    @rule(dice=st.randoms(use_true_random=False), code=st.integers(-1, 130))
    def answer(self, dice, code):
        if self.open:
            correlation = self.open.pop(dice.randrange(len(self.open)))
            answer = (correlation, code, dice.getrandbits(60), -1, 5)
            self.both(lambda pair: pair.reader.respond(*answer))
            self.answers.append(answer)

    @rule(code=st.integers(1, 130))
    def refuse(self, code):
        self.both(lambda pair: pair.reader.reject(9, code))
        self.answers.append((9, code, -1, -1, -1))

    @rule()
    def take_acks(self):
        assert self.both(lambda pair: pair.writer.take_acks()) == self.answers
        self.answers = []

    @rule(
        end=st.sampled_from(["writer", "reader"]),
        call=st.sampled_from(["begin_sleep", "end_sleep"]),
    )
    def sleep_or_wake(self, end, call):
        self.both(lambda pair: getattr(getattr(pair, end), call)())

    @rule()
    def ask(self):
        self.both(lambda pair: pair.writer.has_acks())
        self.both(lambda pair: pair.writer.is_space_awaited())
        self.both(lambda pair: pair.reader.is_space_awaited())
        assert self.both(lambda pair: pair.reader.can_take())

    @invariant()
    def the_memory_is_the_same(self):
        if hasattr(self, "ours"):
            assert self.ours.counters == self.twins.counters
            assert self.ours.ring == self.twins.ring


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize(
    "ends", [(RingWriter, twin.Reader), (twin.Writer, RingReader)], ids=["ours out", "ours in"]
)
def test_each_end_works_with_the_twin_of_the_other(ends):
    pair = Pair(ends=ends)
    for number in range(500):
        batch = bytes([number % 256]) * (number * 37 % BATCH_MAX)
        assert pair.send(batch, number, partition=-number, acks=-1) is False
        assert pair.taken() == (TOPIC, -number, number, -1, 1000, batch)
        pair.reader.respond(number, 0, number << 33, 17, 3)
        assert pair.writer.take_acks() == [(number, 0, number << 33, 17, 3)]


@pytest.mark.parametrize("size", [1, 8, 56, 333, 900, BATCH_MAX - 1, BATCH_MAX])
def test_frames_are_intact_at_any_wrap_position(size):
    """From each position a frame can begin at, over more than a lap."""
    for first in range(0, BATCH_MAX, 8):
        pair = Pair()
        for number, batch in enumerate([bytes(first), *[b"x" * size] * (6000 // (size + 48))]):
            assert pair.send(batch, number, acks=0) is not None
            assert pair.taken()[2:] == (number, 0, 1000, batch)


@given(st.lists(st.integers(0, BATCH_MAX), min_size=1, max_size=60))
def test_full_ring_refuses_frames_until_it_is_read(sizes):
    pair = Pair()
    sent = taken = 0
    for size in sizes * 3:
        while pair.send(b"z" * size, sent, acks=0) is None:
            assert pair.taken()[2] == taken  # never None: a ring that refuses a frame is not empty
            taken += 1
        sent += 1
    for number in range(taken, sent):
        assert pair.taken()[2] == number
    assert pair.taken() is None


def test_batch_above_the_frame_limit_is_refused():
    pair = Pair()
    with pytest.raises(ValueError, match="does not fit this ring"):
        pair.writer.reserve(BATCH_MAX + 1)
    with pytest.raises(ValueError, match="does not fit this ring"):
        pair.writer.reserve(-1)
    assert pair.send(bytes(BATCH_MAX)) is False


def test_commit_requires_a_reservation():
    pair = Pair()
    with pytest.raises(ValueError, match="are reserved"):
        pair.writer.commit(TOPIC, 0, 0, 1, 0, 0)
    pair.writer.reserve(10)
    with pytest.raises(ValueError, match="are reserved"):
        pair.writer.commit(TOPIC, 0, 0, 1, 0, 11)
    with pytest.raises(ValueError, match="not a topic id"):
        pair.writer.commit(TOPIC[1:], 0, 0, 1, 0, 10)
    assert pair.taken() is None
    pair.writer.commit(TOPIC, 0, 0, 1, 0, 10)
    with pytest.raises(ValueError, match="are reserved"):
        pair.writer.commit(TOPIC, 0, 0, 1, 0, 10)
    assert pair.taken() is not None and pair.taken() is None


def test_uncommitted_reservation_is_not_visible():
    pair = Pair()
    room = pair.writer.reserve(100)
    room[:] = b"\xff" * 100
    assert pair.taken() is None
    pair.send(b"another")
    assert pair.taken()[5] == b"another"


def test_batch_is_a_copy_of_the_ring_memory():
    pair = Pair()
    pair.send(b"as it was committed")
    batch = pair.reader.take()[5]
    assert batch.readonly
    pair.ring[:] = b"\xff" * len(pair.ring)
    assert bytes(batch) == b"as it was committed"


# The response ring.


def filled_lane(answered):
    """Return a pair with as many frames in flight as the response ring holds, some acknowledged."""
    pair = Pair(1 << 20)
    for number in range(RESPONSE_SLOTS):
        pair.send(b"", number)
        pair.taken()
    for number in range(answered):
        pair.reader.respond(number, 0, number, -1, 0)
    return pair


@pytest.mark.parametrize("answered", [0, 1, RESPONSE_SLOTS // 2, RESPONSE_SLOTS])
def test_worker_takes_no_more_frames_than_it_can_acknowledge(answered):
    pair = filled_lane(answered)
    pair.send(b"one too many")
    assert not pair.reader.can_take() and pair.taken() is None
    assert len(pair.writer.take_acks()) == answered
    assert pair.reader.can_take() == (answered > 0)
    assert (pair.taken() is not None) == (answered > 0)


def test_acknowledgements_wrap_without_loss():
    pair = Pair(1 << 20)
    answers = []
    for number in range(3 * RESPONSE_SLOTS + 5):
        pair.send(b"", number)
        pair.taken()
        pair.reader.respond(number, number % 99, number << 20, number, 7)
        if number % 700 == 0:
            answers += pair.writer.take_acks()
    answers += pair.writer.take_acks()
    assert answers == [(n, n % 99, n << 20, n, 7) for n in range(3 * RESPONSE_SLOTS + 5)]


def test_acks_0_frame_takes_no_acknowledgement_slot():
    pair = Pair(1 << 20)
    for number in range(2 * RESPONSE_SLOTS):
        pair.send(b"", number, acks=0)
        assert pair.taken() is not None
    assert pair.reader.in_flight == 0
    for number in range(2 * RESPONSE_SLOTS):
        pair.reader.reject(number, 3)
    assert [answer[:2] for answer in pair.writer.take_acks()] == [
        (n, 3) for n in range(RESPONSE_SLOTS)
    ]


def test_unexpected_response_is_a_violation_by_the_worker():
    pair = Pair()
    pair.send(b"", acks=0)
    pair.taken()
    with pytest.raises(AssertionError, match="no frame waits"):
        pair.reader.respond(0, 0, 0, -1, 0)


# Errors a producer can make.


def word(value, padding=0):
    return lambda pair, at: struct.pack_into("<I", pair.ring, at, value | padding << 31)


def changed(place, flip=1):
    def change(pair, at):
        pair.ring[at + place] ^= flip

    return change


def answers_taken(value):
    return lambda pair, at: struct.pack_into("<Q", pair.ring, 0, value)


VIOLATIONS = {
    "a size of one": (word(1), ring.WRONG_SIZE),
    "less than a header": (word(47), ring.WRONG_SIZE),
    "more than a share": (word(FRAME_MAX + 1), ring.WRONG_SIZE),
    "more than the ring": (word(SMALL + 8), ring.WRONG_SIZE),
    "the largest number": (word((1 << 31) - 1), ring.WRONG_SIZE),
    "padding of nothing": (word(0, padding=1), ring.WRONG_PADDING),
    "padding of a lap": (word(SMALL, padding=1), ring.WRONG_PADDING),
    "padding too short": (word(FRAME_MAX - 8, padding=1), ring.WRONG_PADDING),
    "padding too long": (word((1 << 31) - 1, padding=1), ring.WRONG_PADDING),
    "all ones": (word(0xFFFFFFFF), ring.WRONG_PADDING),
    "another checksum": (changed(4), ring.WRONG_CHECKSUM),
    "another sequence": (changed(8), ring.WRONG_CHECKSUM),
    "another topic": (changed(16), ring.WRONG_CHECKSUM),
    "another partition": (changed(32), ring.WRONG_CHECKSUM),
    "another correlation": (changed(36), ring.WRONG_CHECKSUM),
    "another acks": (changed(40), ring.WRONG_CHECKSUM),
    "another reserved field": (changed(42), ring.WRONG_CHECKSUM),
    "another time-out": (changed(47, 0x80), ring.WRONG_CHECKSUM),
    "a frame again": (lambda p, at: resealed(p.ring, at, sequence=0), ring.WRONG_SEQUENCE),
    "a frame left out": (lambda p, at: resealed(p.ring, at, sequence=2), ring.WRONG_SEQUENCE),
    "a reserved field": (lambda p, at: resealed(p.ring, at, reserved=1), ring.WRONG_RESERVED),
}


@pytest.mark.parametrize(("breach", "reason"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_invalid_frame_ends_the_ring_with_its_reason(breach, reason):
    pair = Pair()
    pair.send(b"a good one")
    pair.send(b"one that is broken now")
    pair.send(b"and one more")
    second = pair.header(64)
    breach(pair, second)
    assert pair.taken()[5] == b"a good one"
    assert pair.taken() == reason
    assert pair.taken() == reason, "the ring is good for nothing any more"
    assert pair.reader.can_take() and not pair.reader.begin_sleep(), "so that it is looked at"
    assert reason in REASONS


@pytest.mark.parametrize("size", [FRAME_MAX, 72])
def test_frame_that_exceeds_the_ring_end_is_refused(size):
    pair = Pair()
    position = 0
    while SMALL - position > 64:
        pair.send(bytes(16), acks=0)
        pair.taken()
        position += 64
    word(size)(pair, pair.header(position))
    assert pair.taken() == ring.WRONG_SIZE


def test_padding_after_padding_is_refused():
    pair = Pair()
    for _ in range(4):
        pair.send(bytes(BATCH_MAX - 56), acks=0)
        pair.taken()
    left = 4 * 56
    word(left, padding=1)(pair, pair.header(SMALL - left))
    word(SMALL, padding=1)(pair, pair.header(0))
    assert pair.taken() == ring.WRONG_PADDING


@pytest.mark.parametrize("taken", [RESPONSE_SLOTS + 1, 1 << 40, (1 << 64) - 1])
def test_producer_that_takes_unsent_acknowledgements_is_refused(taken):
    pair = filled_lane(RESPONSE_SLOTS)
    pair.send(b"")
    answers_taken(taken)(pair, 0)
    assert pair.reader.can_take(), "so that it is looked at"
    assert pair.taken() == ring.WRONG_RESPONSES_TAKEN


def test_producer_that_returns_acknowledgements_is_refused():
    pair = filled_lane(RESPONSE_SLOTS)
    pair.writer.take_acks()
    for number in range(2):
        pair.send(b"", number)
        assert pair.taken()
        pair.reader.respond(number, 0, 0, -1, 0)
    answers_taken(RESPONSE_SLOTS - 1)(pair, 0)
    for _ in range(RESPONSE_SLOTS):
        pair.send(b"")
        if pair.taken() == ring.WRONG_RESPONSES_TAKEN:
            return
    pytest.fail("it was believed")


@settings(max_examples=300, deadline=None)
@given(
    frames=st.lists(st.integers(0, BATCH_MAX), min_size=1, max_size=5),
    scribbles=st.lists(
        st.tuples(st.integers(0, SMALL + 4095), st.binary(min_size=1, max_size=12)), max_size=6
    ),
)
def test_random_ring_contents_are_read_as_by_the_twin(frames, scribbles):
    pairs = Pair(), twins()
    for pair in pairs:
        for number, size in enumerate(frames):
            pair.send(b"\x2a" * size, number)
        for at, scribble in scribbles:
            pair.ring[at : at + len(scribble)] = scribble[: len(pair.ring) - at]
    for _ in range(len(frames) + 2):
        ours, twins_ = (pair.taken() for pair in pairs)
        assert ours == twins_
        assert pairs[0].counters == pairs[1].counters


# Invalid counters of a worker.


@pytest.mark.parametrize("consumed", [SMALL + 8, 1 << 40, (1 << 64) - 8])
def test_producer_detects_a_worker_that_consumed_unwritten_bytes(consumed):
    pair = Pair()
    while pair.send(bytes(BATCH_MAX)) is not None:
        pass
    struct.pack_into("<Q", pair.counters, 0, consumed)
    with pytest.raises(RingError, match="as consumed"):
        pair.send(bytes(BATCH_MAX))
    with pytest.raises(RingError, match="as consumed"):
        pair.writer.begin_sleep()


def test_producer_detects_a_worker_that_takes_space_back():
    pair = Pair()
    while pair.send(bytes(BATCH_MAX), acks=0) is not None:
        pass
    pair.taken()
    assert pair.send(bytes(BATCH_MAX), acks=0) is not None
    struct.pack_into("<Q", pair.counters, 0, 8)
    with pytest.raises(RingError, match="as consumed"):
        pair.send(bytes(BATCH_MAX))


@pytest.mark.parametrize("given", [RESPONSE_SLOTS + 1, (1 << 64) - 1])
def test_producer_detects_too_many_acknowledgements(given):
    pair = Pair()
    struct.pack_into("<Q", pair.counters, 256, given)
    with pytest.raises(RingError, match="the ring holds"):
        pair.writer.take_acks()


def test_producer_detects_acknowledgements_taken_back():
    pair = filled_lane(3)
    pair.writer.take_acks()
    struct.pack_into("<Q", pair.counters, 256, 2)
    with pytest.raises(RingError, match="the ring holds"):
        pair.writer.take_acks()


# Memory that is not a ring.


@pytest.mark.parametrize("size", [0, 4096, 8191, 8192 - 8, 8192 + 8, 4096 + 3 * 4096])
def test_ring_size_must_be_a_page_and_a_power_of_two(size):
    with pytest.raises(ValueError, match="cannot be a ring"):
        RingWriter(bytearray(size), bytearray(ring.COUNTERS_SIZE))
    with pytest.raises(ValueError, match="cannot be a ring"):
        RingReader(bytearray(size), bytearray(ring.COUNTERS_SIZE), bytearray(size))


def test_wrong_counter_or_scratch_size_is_refused():
    with pytest.raises(ValueError, match="counters of a ring"):
        RingWriter(bytearray(8192), bytearray(ring.COUNTERS_SIZE - 1))
    with pytest.raises(ValueError, match="cannot hold a frame"):
        RingReader(bytearray(8192), bytearray(ring.COUNTERS_SIZE), bytearray(FRAME_MAX - 1))
    with pytest.raises(BufferError):
        RingReader(bytearray(8192), bytes(ring.COUNTERS_SIZE), bytearray(FRAME_MAX))


def test_unaligned_ring_is_refused():
    memory = memoryview(bytearray(8193))[1:]
    with pytest.raises(ValueError, match="multiple of 8"):
        RingWriter(memory, bytearray(ring.COUNTERS_SIZE))


# Sleep.


def test_wakeup_is_requested_only_for_a_sleeping_end():
    pair = Pair()
    assert pair.send(b"") is False
    assert pair.reader.begin_sleep() is False, "a frame is there"
    pair.taken()
    assert pair.reader.begin_sleep() is True
    assert pair.send(b"") is True
    pair.reader.end_sleep()
    assert pair.send(b"") is False
    assert pair.reader.respond(0, 0, 0, -1, 0) is False
    assert pair.writer.begin_sleep() is False, "an answer is there"
    pair.writer.take_acks()
    assert pair.writer.begin_sleep() is True
    pair.taken()
    assert pair.reader.is_space_awaited() is False, "it does not wait for room"
    assert pair.reader.respond(0, 0, 0, -1, 0) is True
    pair.writer.end_sleep()
    pair.taken()
    assert pair.reader.respond(0, 0, 0, -1, 0) is False


def test_producer_waiting_for_space_is_woken_by_space():
    pair = Pair()
    while pair.send(bytes(BATCH_MAX), acks=0) is not None:
        pass
    assert pair.writer.begin_sleep() is True
    assert pair.reader.is_space_awaited() is True
    pair.taken()
    assert pair.writer.begin_sleep() is False, "there may be room now"
    assert pair.reader.is_space_awaited() is False
    assert pair.send(bytes(BATCH_MAX), acks=0) is not None
    assert pair.writer.begin_sleep() is True
    assert pair.reader.is_space_awaited() is False, "it does not wait for room any more"


def test_worker_waiting_for_slots_is_woken_only_by_free_slots():
    pair = filled_lane(3)
    assert pair.reader.begin_sleep() is True, "there is nothing to take"
    assert pair.send(b"one too many") is False, "it could not take it"
    assert pair.writer.is_space_awaited() is True
    assert len(pair.writer.take_acks()) == 3
    assert pair.reader.begin_sleep() is False
    assert as_bytes(pair.reader.take())[5] == b"one too many"
    assert pair.writer.is_space_awaited() is False


def test_closed_end_cannot_be_used():
    pair = Pair()
    pair.writer.close()
    pair.reader.close()
    for use in (lambda: pair.writer.reserve(1), pair.writer.take_acks, pair.writer.begin_sleep):
        with pytest.raises(RingError, match="closed"):
            use()
    with pytest.raises(AssertionError):
        pair.reader.take()
    pair.ring.extend(b"")  # no buffer is exported, so it could be resized


@pytest.mark.parametrize("kept", ["writer", "reader"])
def test_view_outlives_its_end(kept):
    pair = Pair()
    room = pair.writer.reserve(8)
    room[:] = b"12345678"
    pair.writer.commit(TOPIC, 0, 0, 1, 0, 8)
    view = room if kept == "writer" else pair.reader.take()[5]
    pair.writer.close()
    pair.reader.close()
    del room, pair
    assert bytes(view) == b"12345678"
