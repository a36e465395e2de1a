"""kafkalite's own client as a program: `native`, and `native off` for TCP alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kafkalite import Consumer, Producer, ShareConsumer
from kafkalite.errors import KafkaError
from tests.conformance.programs.lines import (
    CONSUME_S_MAX,
    TURN_S,
    raw,
    say,
    serve,
    text,
    told_headers,
    translated,
    yes,
)

IN_FLIGHT_MAX = 500
SHARED_COUNT_MAX = 500
READ_COUNT_MAX = 500
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "request.timeout.ms": 8_000,
}
PRODUCER = {
    "compression.type": ("compression.type", str),
    "acks": ("acks", str),
    "enable.idempotence": ("enable.idempotence", str),
    "message.timeout.ms": ("delivery.timeout.ms", int),
    # Its batches are limited by size, not by count.
    "batch.num.messages": ("batch.size", lambda count: int(count) * 20),
}
CONSUMER = {
    "fetch.wait.max.ms": ("fetch.max.wait.ms", int),
    "fetch.max.bytes": ("fetch.max.bytes", int),
    "max.partition.fetch.bytes": ("max.partition.fetch.bytes", int),
    "auto.offset.reset": ("auto.offset.reset", lambda at: "none" if at == "error" else at),
    "isolation.level": ("isolation.level", str),
    # Only librdkafka checks this key against the others.
    "message.max.bytes": None,
}
MEMBER = CONSUMER | {
    "group.protocol": ("group.protocol", str),
    "group.instance.id": ("group.instance.id", str),
    "group.remote.assignor": ("group.remote.assignor", str),
    "partition.assignment.strategy": ("partition.assignment.strategy", str),
    "session.timeout.ms": ("session.timeout.ms", int),
    "heartbeat.interval.ms": ("heartbeat.interval.ms", int),
    "max.poll.interval.ms": ("max.poll.interval.ms", int),
    "enable.auto.commit": ("enable.auto.commit", yes),
    "auto.commit.interval.ms": ("auto.commit.interval.ms", int),
}
LANE = {"native": sys.argv[1] if sys.argv[1:] else "auto"}


class Records:
    """Produce and consume."""

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Any],
        partition: int,
        settings: Mapping[str, str],
    ) -> None:
        words = {"max.request.size": 100_000_000, "buffer.memory": 200_000_000, **QUICK, **LANE}
        words |= translated(settings, PRODUCER)
        if words.get("acks", "all") != "all":
            words["enable.idempotence"] = False
        with Producer(bootstrap, **words) as producer:
            sent = [
                producer.send(
                    topic,
                    raw(value),
                    raw(key),
                    headers=[(name, raw(content)) for name, content in headers],
                    partition=partition if partition >= 0 else None,
                    timestamp=timestamp or None,
                )
                for value, key, headers, timestamp in records
            ]
            for delivery in sent:
                delivery.result(CONSUME_S_MAX)

    def consume(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        start: int | str,
        count: int | None,
        settings: Mapping[str, str],
    ) -> list[list[Any]]:
        words = {"fetch.max.wait.ms": 10, "auto.offset.reset": "none", **QUICK, **LANE}
        words |= {"allow.auto.create.topics": False, "default.api.timeout.ms": 3_000}
        words |= translated(settings, CONSUMER)
        with Consumer(bootstrap, **words) as consumer:
            place = (topic, partition)
            consumer.assign([place])
            low, high = consumer.watermarks(place)
            consumer.seek(place, self.offset_of(consumer, place, start, low, high))
            got: list[list[Any]] = []
            deadline = time.monotonic() + CONSUME_S_MAX
            while len(got) < count if count is not None else consumer.position(place) != high:
                assert time.monotonic() < deadline, "the broker went silent"
                message = consumer.poll(0.1)
                if message is not None:
                    got.append(told(message))
            return got

    def offset_of(
        self, consumer: Consumer, place: tuple[str, int], start: int | str, low: int, high: int
    ) -> int:
        if start == "end":
            return high
        if start == "beginning":
            return low
        if isinstance(start, int):
            return start if start >= 0 else max(low, high + start)
        (found,) = consumer.offsets_for_times({place: int(start.removeprefix("s@"))}).values()
        return high if found is None else found.offset


def told(message: Any) -> list[Any]:
    return [
        message.partition,
        message.offset,
        text(message.key),
        text(message.value),
        told_headers(message.headers),
        message.timestamp,
    ]


class Streams:
    """A producer that keeps sending."""

    producer: Producer | None = None

    def stream(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.producer = Producer(bootstrap, linger_ms=1, **QUICK, **LANE)
        self.topic = topic
        self.partitions = partitions
        self.sent = 0
        self.waiting: list[Any] = []
        self.awake = True

    def send_on(self) -> None:
        assert self.producer is not None
        while len(self.waiting) < IN_FLIGHT_MAX:
            value = b"%d" % self.sent
            at = self.sent % self.partitions
            self.waiting.append((value, self.producer.send(self.topic, value, partition=at)))
            self.sent += 1
        time.sleep(TURN_S)
        self.tell()

    def tell(self) -> None:
        acked, waiting = [], []
        for value, delivery in self.waiting:
            if not delivery.done():
                waiting.append((value, delivery))
            elif (fault := delivery.exception()) is not None:
                say(fault=str(fault))
            else:
                found = delivery.result()
                acked.append([found.partition, found.offset, text(value)])
        self.waiting = waiting
        if acked:
            say(acked=acked)

    def unstream(self) -> int:
        self.awake = False
        assert self.producer is not None
        self.producer.flush(CONSUME_S_MAX)
        self.tell()
        self.producer.close()
        self.producer = None
        return self.sent


class Groups:
    """A member of a group."""

    consumer: Consumer | None = None

    def join(
        self, bootstrap: str, group: str, topics: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        words = {"fetch.max.wait.ms": 10, "group.protocol": "classic", **QUICK, **LANE}
        words |= translated(settings, MEMBER)
        self.consumer = Consumer(
            bootstrap,
            topics,
            group,
            on_assign=lambda places: say(assigned=places),
            on_revoke=lambda places: say(revoked=places),
            **words,
        )
        self.awake = True

    def read_on(self) -> None:
        assert self.consumer is not None
        lines = [
            [message.topic, message.partition, message.offset, text(message.value)]
            for message in self.consumer.consume(READ_COUNT_MAX, TURN_S)
        ]
        if lines:
            say(read=lines)

    def commit(self, offsets: Sequence[Any] | None, wait: bool) -> None:
        assert self.consumer is not None and wait
        given = None if offsets is None else {(t, at): (offset, x) for t, at, offset, x in offsets}
        self.consumer.commit(given, CONSUME_S_MAX)

    def leave(self) -> None:
        self.awake = False
        assert self.consumer is not None
        self.consumer.close(CONSUME_S_MAX)
        self.consumer = None


class ShareGroups:
    """A member of a share group."""

    def share_join(
        self, bootstrap: str, group: str, topics: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        words = {"share.acknowledgement.mode": "explicit", **QUICK, **settings}
        self.member = ShareConsumer(bootstrap, topics, group, **words)
        self.polled: dict[tuple[str, int, int], Any] = {}
        # It joins with its first call.
        self.first = self.member.consume(SHARED_COUNT_MAX, 0)

    def share_poll(self, timeout_ms: int) -> list[list[Any]]:
        messages = self.first or self.member.consume(SHARED_COUNT_MAX, timeout_ms / 1000)
        self.first = []
        polled = {(each.topic, each.partition, each.offset): each for each in messages}
        if polled:  # a renewed message is kept until others come
            self.polled = polled
        return [[*place, text(each.value), each.delivery_count] for place, each in polled.items()]

    def share_acknowledge(self, records: Sequence[Any]) -> list[list[Any]]:
        for *place, kind in records:
            message = self.polled[tuple(place)]
            if kind == "renew":
                self.member.renew(message)
            else:
                getattr(message, kind)()
        outcomes = self.member.commit(CONSUME_S_MAX)
        return [
            [*place, error.code] for place, error in outcomes.items() if error is not None
        ]

    def share_leave(self) -> None:
        self.member.close()


class Client(Records, Streams, Groups, ShareGroups):
    """The program: all commands that the native client supports."""

    awake = False

    def turn(self) -> None:
        if self.producer is not None:
            self.send_on()
        if self.consumer is not None:
            self.read_on()

    def code(self, fault: BaseException) -> int | None:
        return fault.code if isinstance(fault, KafkaError) else None


if __name__ == "__main__":
    serve(Client())
