"""Two processes and a ring: every frame arrives, whichever end dies or stops, and no end hangs."""

import os
import random
import signal
import time

import pytest

from kafkalite._ext import ring
from tests.transport.rings import TOPIC, ended, lives, producer_elsewhere, slept

NET_S = 10
"""Limit of a sleep while there is work to do; a busy machine uses a part of it."""
SIZES = (0, 1, 100, 1_000, 5_000, 16_336)
SMALL_RING = 1 << 16


def batch_of(number):
    size = SIZES[number % len(SIZES)]
    return (number.to_bytes(8, "little") * (size // 8 + 1))[:size]


def produce(count, in_flight=200):
    """Return a producer that sends `count` numbered frames and checks every response."""

    def play(end):
        sent = answered = 0
        while answered < count:
            for correlation, code, base_offset, *_ in end.take_acks():
                assert (correlation, code, base_offset) == (answered, 0, answered * 3)
                answered += 1
            if sent < count and sent - answered < in_flight:
                batch = batch_of(sent)
                room = end.writer.reserve(len(batch))
                if room is not None:
                    room[:] = batch
                    if end.writer.commit(TOPIC, 3, sent, -1, 9, len(batch)):
                        end.wake_worker()
                    sent += 1
                    continue
            elif answered == count:
                break
            assert slept(end, end.writer, NET_S), "nobody woke the producer"

    return play


class Served:
    """The worker's side: checks and acknowledges every frame."""

    def __init__(self, worker, pid):
        self.worker, self.pid = worker, pid
        self.number = 0

    def drain(self):
        """Take all available frames."""
        woken = False
        while (taken := self.worker.reader.take()) is not None:
            assert not isinstance(taken, int), f"reason {taken}"
            assert taken[:5] == (TOPIC, 3, self.number, -1, 9)
            assert taken[5] == batch_of(self.number), self.number
            woken |= self.worker.reader.respond(self.number, 0, self.number * 3, -1, 0)
            self.number += 1
        if woken or self.worker.reader.is_space_awaited():
            self.worker.wake()

    def until(self, count):
        while self.number < count:
            self.drain()
            if self.number < count and not slept(self.worker, self.worker.reader, NET_S):
                assert self.worker.reader.take() is None, "a wake-up was lost"
                assert lives(self.pid), "the producer has failed"


@pytest.mark.parametrize("in_flight", [1, 7, 5_000], ids="in flight {}".format)
def test_frames_and_acknowledgements_arrive_in_order(in_flight):
    with producer_elsewhere(produce(3_000, in_flight), SMALL_RING) as (worker, pid):
        Served(worker, pid).until(3_000)
        assert ended(pid) == 0


@pytest.mark.parametrize("seed", range(20))
def test_killed_producer_leaves_only_whole_frames(seed):
    dice = random.Random(seed)
    with producer_elsewhere(produce(1 << 40), SMALL_RING) as (worker, pid):
        served = Served(worker, pid)
        end = time.monotonic() + dice.random() * 0.03
        while time.monotonic() < end:
            served.drain()
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL
        served.drain()
        assert worker.reader.take() is None


def test_stopped_producer_resumes_where_it_was():
    with producer_elsewhere(produce(3_000), SMALL_RING) as (worker, pid):
        served = Served(worker, pid)
        served.until(500)
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        served.drain()
        at = served.number
        assert at < 3_000, "it had ended before it was stopped"
        assert worker.reader.take() is None and worker.reader.begin_sleep()
        worker.reader.end_sleep()
        os.kill(pid, signal.SIGCONT)
        served.until(3_000)
        assert ended(pid) == 0


def ping(count):
    """Return a producer that sends each frame once the last one was acknowledged, after a sleep."""

    def play(end):
        for number in range(count):
            end.writer.reserve(8)[:] = number.to_bytes(8, "little")
            if end.writer.commit(TOPIC, 0, number & 0xFFFFFFFF, 1, 0, 8):
                end.wake_worker()
            while not (answers := end.take_acks()):
                if not slept(end, end.writer, NET_S):
                    assert not end.writer.has_acks(), "a wake-up was lost"
            assert answers[0][0] == number & 0xFFFFFFFF

    return play


def pong(worker, pid, count):
    """Respond to pings; both sides sleep as soon as they may, so that every wake-up counts."""
    number = 0
    while number < count:
        taken = worker.reader.take()
        if taken is None:
            if not slept(worker, worker.reader, NET_S):
                assert worker.reader.take() is None, "a wake-up was lost"
                assert lives(pid), "the producer has failed"
        else:
            assert taken[5] == number.to_bytes(8, "little")
            if worker.reader.respond(taken[2], 0, 0, -1, 0):
                worker.wake()
            number += 1


def play_ping_pong(count):
    with producer_elsewhere(ping(count), ring.CAPACITY_MIN) as (worker, pid):
        pong(worker, pid, count)
        assert ended(pid) == 0


def test_two_processes_lose_no_wakeup():
    play_ping_pong(5_000)


@pytest.mark.faults
def test_two_processes_lose_no_wakeup_in_ten_million_round_trips():
    play_ping_pong(int(os.environ.get("PING_PONGS", 10_000_000)))
