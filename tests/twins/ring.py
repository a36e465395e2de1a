"""The twin of ext/net/ring.pyx: the same bytes and results, in one process, no memory ordering."""

import struct

from .crc32c import crc32c as crc

FRAMES, ANSWERS = 4096, 1024
COUNTERS_SIZE = 4096 + ANSWERS * 32
WORD, COUNT = struct.Struct("<I"), struct.Struct("<Q")
NAMED = struct.Struct("<Q16siIhHi")
ANSWER = struct.Struct("<IhHqqq")
ANSWERS_TAKEN, PRODUCER_SLEEPS = 0, 128
CONSUMED, WORKER_SLEEPS, ANSWERS_GIVEN = 0, 128, 256
AWAITS, WANTS_ROOM = 1, 2
PADDING = 1 << 31


def stride(size):
    return -(-size // 8) * 8


class End:
    def __init__(self, ring, counters):
        self.ring, self.counters = ring, counters
        self.capacity = len(ring) - FRAMES
        self.frame_size_max = self.capacity // 4
        self.position = self.sequence = 0

    def at(self, position):
        return FRAMES + position % self.capacity


class Writer(End):
    def __init__(self, ring, counters):
        super().__init__(ring, counters)
        self.answers_taken = 0
        self.reserved = None
        self.looked = 0
        self.wants_room = False

    def left(self, size):
        """Return the size of the rest of the lap if the frame does not fit there, or 0."""
        left = self.capacity - self.position % self.capacity
        return left if stride(48 + size) > left else 0

    def reserve(self, size):
        self.reserved = None
        needed = self.left(size) + stride(48 + size) + 8
        if needed > self.capacity - (self.position - self.looked):
            (self.looked,) = COUNT.unpack_from(self.counters, CONSUMED)
        self.wants_room = needed > self.capacity - (self.position - self.looked)
        if self.wants_room:
            return None
        self.reserved = self.left(size)
        begin = self.at(self.position + self.reserved) + 48
        return memoryview(self.ring)[begin : begin + size]

    def commit(self, topic_id, partition, correlation, acks, timeout_ms, size):
        padding, self.reserved = self.reserved, None
        if padding:
            WORD.pack_into(self.ring, self.at(self.position), PADDING | padding)
            self.position += padding
            self.sequence += 1
        frame = self.at(self.position)
        named = NAMED.pack(self.sequence, topic_id, partition, correlation, acks, 0, timeout_ms)
        self.ring[frame : frame + 48] = WORD.pack(48 + size) + WORD.pack(crc(named)) + named
        self.position += stride(48 + size)
        self.sequence += 1
        WORD.pack_into(self.ring, self.at(self.position), 0)
        return WORD.unpack_from(self.counters, WORKER_SLEEPS)[0] & AWAITS != 0

    def has_acks(self):
        return COUNT.unpack_from(self.counters, ANSWERS_GIVEN)[0] != self.answers_taken

    def take_acks(self):
        (given,) = COUNT.unpack_from(self.counters, ANSWERS_GIVEN)
        places = [4096 + n % ANSWERS * 32 for n in range(self.answers_taken, given)]
        answers = [ANSWER.unpack_from(self.counters, place) for place in places]
        self.answers_taken = given
        if answers:
            COUNT.pack_into(self.ring, ANSWERS_TAKEN, given)
        return [answer[:2] + answer[3:] for answer in answers]

    def freed(self):
        return WORD.unpack_from(self.counters, WORKER_SLEEPS)[0] & WANTS_ROOM != 0

    def rest(self):
        before = self.looked
        if self.wants_room:
            (self.looked,) = COUNT.unpack_from(self.counters, CONSUMED)
        sleeps = not self.has_acks() and self.looked == before
        how = AWAITS | (WANTS_ROOM if self.wants_room else 0)
        WORD.pack_into(self.ring, PRODUCER_SLEEPS, how if sleeps else 0)
        return sleeps

    def woke(self):
        WORD.pack_into(self.ring, PRODUCER_SLEEPS, 0)


class Reader(End):
    def __init__(self, ring, counters):
        super().__init__(ring, counters)
        self.in_flight = self.given = self.answers_taken = self.fault = 0

    def word(self):
        return WORD.unpack_from(self.ring, self.at(self.position))[0]

    def consume(self, size):
        self.position += stride(size)
        COUNT.pack_into(self.counters, CONSUMED, self.position)

    def has_lane(self):
        if self.in_flight + self.given - self.answers_taken >= ANSWERS:
            (taken,) = COUNT.unpack_from(self.ring, ANSWERS_TAKEN)
            if not self.answers_taken <= taken <= self.given:
                self.fault = 6
                return False
            self.answers_taken = taken
        return self.in_flight + self.given - self.answers_taken < ANSWERS

    def may_take(self):
        return self.fault != 0 or self.has_lane() or self.fault != 0

    def take(self):
        if self.fault:
            return self.fault
        if self.word() == 0 or not self.has_lane():
            return self.fault or None
        while self.word() & PADDING:
            left = self.capacity - self.position % self.capacity
            if self.word() - PADDING != left or left >= self.frame_size_max:
                self.fault = 2
                return self.fault
            self.sequence += 1
            self.consume(left)
        size, left = self.word(), self.capacity - self.position % self.capacity
        if size == 0:
            return None
        if not 48 <= size <= min(self.frame_size_max, left):
            self.fault = 1
            return self.fault
        begin = self.at(self.position)
        frame = bytes(self.ring[begin : begin + size])
        self.consume(size)
        return self.judged(frame)

    def judged(self, frame):
        sequence, topic_id, partition, correlation, acks, zero, timeout_ms = NAMED.unpack_from(
            frame, 8
        )
        if WORD.unpack_from(frame, 4)[0] != crc(frame[8:48]):
            self.fault = 3
        elif sequence != self.sequence:
            self.fault = 4
        elif zero:
            self.fault = 5
        if self.fault:
            return self.fault
        self.sequence += 1
        self.in_flight += acks != 0
        return topic_id, partition, correlation, acks, timeout_ms, frame[48:]

    def answer(self, correlation, error_code, base_offset, append_time_ms, log_start_offset):
        self.in_flight -= 1
        return self.give(correlation, error_code, base_offset, append_time_ms, log_start_offset)

    def refuse(self, correlation, error_code):
        return self.has_lane() and self.give(correlation, error_code, -1, -1, -1)

    def give(self, correlation, error_code, *numbers):
        place = 4096 + self.given % ANSWERS * 32
        ANSWER.pack_into(self.counters, place, correlation, error_code, 0, *numbers)
        self.given += 1
        COUNT.pack_into(self.counters, ANSWERS_GIVEN, self.given)
        return WORD.unpack_from(self.ring, PRODUCER_SLEEPS)[0] & AWAITS != 0

    def freed(self):
        return WORD.unpack_from(self.ring, PRODUCER_SLEEPS)[0] & WANTS_ROOM != 0

    def rest(self):
        lane = self.has_lane()
        sleeps = not self.fault and not (lane and self.word() != 0)
        how = AWAITS if lane else WANTS_ROOM
        WORD.pack_into(self.counters, WORKER_SLEEPS, how if sleeps else 0)
        return sleeps

    def woke(self):
        WORD.pack_into(self.counters, WORKER_SLEEPS, 0)
