"""The twin of ext/net/ring.pyx: the same bytes and results, in one process, no memory ordering."""

import struct

from .crc32c import crc32c as crc

FRAMES, RESPONSE_SLOTS = 4096, 1024
COUNTERS_SIZE = 4096 + RESPONSE_SLOTS * 32
WORD, COUNT = struct.Struct("<I"), struct.Struct("<Q")
NAMED = struct.Struct("<Q16siIhHi")
RESPONSE = struct.Struct("<IhHqqq")
RESPONSES_TAKEN, PRODUCER_SLEEPS = 0, 128
CONSUMED, WORKER_SLEEPS, RESPONSES_WRITTEN = 0, 128, 256
WAITS_FOR_DATA, WAITS_FOR_SPACE = 1, 2
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
        self.responses_taken = 0
        self.reserved = None
        self.consumed = 0
        self.waits_for_space = False

    def left(self, size):
        """Return the size of the padding before a frame of this size; 0 without padding."""
        left = self.capacity - self.position % self.capacity
        return left if stride(48 + size) > left else 0

    def reserve(self, size):
        self.reserved = None
        needed = self.left(size) + stride(48 + size) + 8
        if needed > self.capacity - (self.position - self.consumed):
            (self.consumed,) = COUNT.unpack_from(self.counters, CONSUMED)
        self.waits_for_space = needed > self.capacity - (self.position - self.consumed)
        if self.waits_for_space:
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
        return WORD.unpack_from(self.counters, WORKER_SLEEPS)[0] & WAITS_FOR_DATA != 0

    def has_acks(self):
        return COUNT.unpack_from(self.counters, RESPONSES_WRITTEN)[0] != self.responses_taken

    def take_acks(self):
        (written,) = COUNT.unpack_from(self.counters, RESPONSES_WRITTEN)
        places = [4096 + n % RESPONSE_SLOTS * 32 for n in range(self.responses_taken, written)]
        responses = [RESPONSE.unpack_from(self.counters, place) for place in places]
        self.responses_taken = written
        if responses:
            COUNT.pack_into(self.ring, RESPONSES_TAKEN, written)
        return [response[:2] + response[3:] for response in responses]

    def is_space_awaited(self):
        return WORD.unpack_from(self.counters, WORKER_SLEEPS)[0] & WAITS_FOR_SPACE != 0

    def begin_sleep(self):
        before = self.consumed
        if self.waits_for_space:
            (self.consumed,) = COUNT.unpack_from(self.counters, CONSUMED)
        sleeps = not self.has_acks() and self.consumed == before
        how = WAITS_FOR_DATA | (WAITS_FOR_SPACE if self.waits_for_space else 0)
        WORD.pack_into(self.ring, PRODUCER_SLEEPS, how if sleeps else 0)
        return sleeps

    def end_sleep(self):
        WORD.pack_into(self.ring, PRODUCER_SLEEPS, 0)


class Reader(End):
    def __init__(self, ring, counters):
        super().__init__(ring, counters)
        self.in_flight = self.responses_written = self.responses_taken = self.violation = 0

    def word(self):
        return WORD.unpack_from(self.ring, self.at(self.position))[0]

    def consume(self, size):
        self.position += stride(size)
        COUNT.pack_into(self.counters, CONSUMED, self.position)

    def has_response_space(self):
        if self.in_flight + self.responses_written - self.responses_taken >= RESPONSE_SLOTS:
            (taken,) = COUNT.unpack_from(self.ring, RESPONSES_TAKEN)
            if not self.responses_taken <= taken <= self.responses_written:
                self.violation = 6
                return False
            self.responses_taken = taken
        return self.in_flight + self.responses_written - self.responses_taken < RESPONSE_SLOTS

    def can_take(self):
        return self.violation != 0 or self.has_response_space() or self.violation != 0

    def take(self):
        if self.violation:
            return self.violation
        if self.word() == 0 or not self.has_response_space():
            return self.violation or None
        while self.word() & PADDING:
            left = self.capacity - self.position % self.capacity
            if self.word() - PADDING != left or left >= self.frame_size_max:
                self.violation = 2
                return self.violation
            self.sequence += 1
            self.consume(left)
        size, left = self.word(), self.capacity - self.position % self.capacity
        if size == 0:
            return None
        if not 48 <= size <= min(self.frame_size_max, left):
            self.violation = 1
            return self.violation
        begin = self.at(self.position)
        frame = bytes(self.ring[begin : begin + size])
        self.consume(size)
        return self.checked(frame)

    def checked(self, frame):
        sequence, topic_id, partition, correlation, acks, zero, timeout_ms = NAMED.unpack_from(
            frame, 8
        )
        if WORD.unpack_from(frame, 4)[0] != crc(frame[8:48]):
            self.violation = 3
        elif sequence != self.sequence:
            self.violation = 4
        elif zero:
            self.violation = 5
        if self.violation:
            return self.violation
        self.sequence += 1
        self.in_flight += acks != 0
        return topic_id, partition, correlation, acks, timeout_ms, frame[48:]

    def respond(self, correlation, error_code, base_offset, append_time_ms, log_start_offset):
        self.in_flight -= 1
        return self.write_response(
            correlation, error_code, base_offset, append_time_ms, log_start_offset
        )

    def reject(self, correlation, error_code):
        return self.has_response_space() and self.write_response(
            correlation, error_code, -1, -1, -1
        )

    def write_response(self, correlation, error_code, *numbers):
        place = 4096 + self.responses_written % RESPONSE_SLOTS * 32
        RESPONSE.pack_into(self.counters, place, correlation, error_code, 0, *numbers)
        self.responses_written += 1
        COUNT.pack_into(self.counters, RESPONSES_WRITTEN, self.responses_written)
        return WORD.unpack_from(self.ring, PRODUCER_SLEEPS)[0] & WAITS_FOR_DATA != 0

    def is_space_awaited(self):
        return WORD.unpack_from(self.ring, PRODUCER_SLEEPS)[0] & WAITS_FOR_SPACE != 0

    def begin_sleep(self):
        has_space = self.has_response_space()
        sleeps = not self.violation and not (has_space and self.word() != 0)
        how = WAITS_FOR_DATA if has_space else WAITS_FOR_SPACE
        WORD.pack_into(self.counters, WORKER_SLEEPS, how if sleeps else 0)
        return sleeps

    def end_sleep(self):
        WORD.pack_into(self.counters, WORKER_SLEEPS, 0)
