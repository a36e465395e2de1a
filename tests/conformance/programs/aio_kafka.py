"""aiokafka as a program: an asyncio client, with the oldest request versions still in use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import BrokerResponseError, InvalidTopicError, OffsetOutOfRangeError, for_code
from aiokafka.structs import OffsetAndMetadata

from tests.conformance.programs.lines import (
    CONSUME_S_MAX,
    TURN_S,
    raw,
    say,
    text,
    told_headers,
    translated,
    worded,
    yes,
)

IN_FLIGHT_MAX = 500
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
PRODUCER = {
    "compression.type": ("compression_type", lambda codec: None if codec == "none" else codec),
    "acks": ("acks", lambda acks: acks if acks == "all" else int(acks)),
    "enable.idempotence": ("enable_idempotence", yes),
    # It retries for so long even for a topic that cannot exist.
    "message.timeout.ms": ("request_timeout_ms", lambda ms: int(ms) // 6),
    # Its batches are limited by size, not by count.
    "batch.num.messages": ("max_batch_size", lambda count: int(count) * 20),
}
CONSUMER = {
    "fetch.wait.max.ms": ("fetch_max_wait_ms", int),
    "fetch.max.bytes": ("fetch_max_bytes", int),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", int),
    "auto.offset.reset": ("auto_offset_reset", lambda where: "none" if where == "error" else where),
    "isolation.level": ("isolation_level", str),
    # Only librdkafka checks this key against the others.
    "message.max.bytes": None,
    "client.id": ("client_id", str),
    "group.instance.id": ("group_instance_id", str),
    "session.timeout.ms": ("session_timeout_ms", int),
    "heartbeat.interval.ms": ("heartbeat_interval_ms", int),
    "max.poll.interval.ms": ("max_poll_interval_ms", int),
    "enable.auto.commit": ("enable_auto_commit", yes),
    "auto.commit.interval.ms": ("auto_commit_interval_ms", int),
    "partition.assignment.strategy": (
        "partition_assignment_strategy",
        lambda name: [ASSIGNORS[name]],
    ),
}
QUICK = {"retry_backoff_ms": 10}
DEFAULT_CONFIG = 5
"""DescribeConfigs's source of a default value."""


class Records:
    """Produce and consume."""

    async def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Any],
        partition: int,
        settings: Mapping[str, str],
    ) -> None:
        words = {"acks": "all", "max_request_size": 100_000_000}
        words |= QUICK | translated(settings, PRODUCER)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, **words) as producer:
            sent = [
                await producer.send(
                    topic,
                    raw(value),
                    raw(key),
                    headers=[(name, raw(content)) for name, content in headers],
                    partition=partition if partition >= 0 else None,
                    timestamp_ms=timestamp or None,
                )
                for value, key, headers, timestamp in records
            ]
            await asyncio.gather(*sent)

    async def consume(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        start: int | str,
        count: int | None,
        settings: Mapping[str, str],
    ) -> list[list[Any]]:
        words = {"fetch_max_wait_ms": 10, "auto_offset_reset": "none", **QUICK}
        words |= translated(settings, CONSUMER)
        place = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, **words) as consumer:
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            consumer.seek(place, await self.offset_of(consumer, place, start, end))
            got: list[list[Any]] = []
            deadline = time.monotonic() + CONSUME_S_MAX
            while len(got) < count if count is not None else await consumer.position(place) != end:
                assert time.monotonic() < deadline, "the broker went silent"
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    got += map(told, records)
            return got[:count]

    async def offset_of(
        self, consumer: AIOKafkaConsumer, place: TopicPartition, start: int | str, end: int
    ) -> int:
        if start == "end":
            return end
        first = (await consumer.beginning_offsets([place]))[place]
        if start == "beginning":
            return int(first)
        if isinstance(start, int):
            return start if start >= 0 else max(first, end + start)
        found = (await consumer.offsets_for_times({place: int(start.removeprefix("s@"))}))[place]
        return end if found is None else int(found.offset)


def told(record: Any) -> list[Any]:
    return [
        record.partition,
        record.offset,
        text(record.key),
        text(record.value),
        told_headers(record.headers),
        record.timestamp,
    ]


class Streams:
    """A producer that keeps sending."""

    async def stream(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=1, **QUICK
        )
        await self.producer.start()
        self.sent = 0
        self.waiting: list[Any] = []
        self.ended = False
        self.sending = asyncio.ensure_future(self.send_on(topic, partitions))

    async def send_on(self, topic: str, partitions: int) -> None:
        while not self.ended:
            while len(self.waiting) < IN_FLIGHT_MAX:
                value = b"%d" % self.sent
                future = await self.producer.send(topic, value, partition=self.sent % partitions)
                self.waiting.append((value, future))
                self.sent += 1
            await asyncio.sleep(TURN_S)
            self.tell()

    def tell(self) -> None:
        acked = []
        for value, future in self.waiting:
            if not future.done():
                continue
            if future.exception() is not None:
                say(fault=str(future.exception()))
            else:
                placed = future.result()
                acked.append([placed.partition, placed.offset, text(value)])
        self.waiting = [sent for sent in self.waiting if not sent[1].done()]
        if acked:
            say(acked=acked)

    async def unstream(self) -> int:
        self.ended = True
        await self.sending
        await self.producer.flush()
        await asyncio.gather(*(future for _, future in self.waiting), return_exceptions=True)
        self.tell()
        await self.producer.stop()
        return self.sent


class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        say(revoked=places_told(revoked))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        say(assigned=places_told(assigned))


class Groups:
    """A member of a group."""

    async def join(
        self, bootstrap: str, group: str, topics: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        words = {"fetch_max_wait_ms": 10, "auto_offset_reset": "earliest", **QUICK}
        words |= translated(settings, CONSUMER)
        self.consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **words)
        self.consumer.subscribe(topics=list(topics), listener=Listener())
        self.reading = asyncio.ensure_future(self.read_on())

    async def read_on(self) -> None:
        try:
            await self.consumer.start()
            while True:
                got = await self.consumer.getmany(timeout_ms=int(TURN_S * 1000))
                lines = [
                    [record.topic, record.partition, record.offset, text(record.value)]
                    for records in got.values()
                    for record in records
                ]
                if lines:
                    say(read=lines)
        except Exception as fault:
            say(fault=worded(fault))

    async def commit(self, offsets: Sequence[Any] | None, wait: bool) -> None:
        assert wait, "aiokafka has no other"
        given = offsets and {
            TopicPartition(topic, at): OffsetAndMetadata(offset, said)
            for topic, at, offset, said in offsets
        }
        await self.consumer.commit(given)

    async def leave(self) -> None:
        self.reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.reading
        await self.consumer.stop()


def places_told(places: Iterable[TopicPartition]) -> list[list[Any]]:
    return [[place.topic, place.partition] for place in places]


class Transactions:
    """A transactional producer."""

    async def init(self, bootstrap: str, id: str, timeout_ms: int) -> None:
        self.transactional = AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=id, transaction_timeout_ms=timeout_ms,
            **QUICK,
        )  # fmt: skip
        await self.transactional.start()

    async def begin(self) -> None:
        await self.transactional.begin_transaction()

    async def send(self, topic: str, records: Sequence[Any]) -> list[list[int]]:
        futures = [
            await self.transactional.send(topic, raw(value), partition=partition)
            for partition, value in records
        ]
        placed = await asyncio.gather(*futures)
        return [[each.partition, each.offset] for each in placed]

    async def add_offsets(self, bootstrap: str, group: str, offsets: Sequence[Any]) -> None:
        given = {TopicPartition(topic, at): offset for topic, at, offset in offsets}
        await self.transactional.send_offsets_to_transaction(given, group)

    async def end(self, commit: bool) -> None:
        if commit:
            await self.transactional.commit_transaction()
        else:
            await self.transactional.abort_transaction()

    async def retire(self) -> None:
        await self.transactional.stop()


class Admin:
    """The admin commands; the client is kept while the address is the same."""

    admins: dict[str, AIOKafkaAdminClient] = {}

    async def admin(self, bootstrap: str) -> AIOKafkaAdminClient:
        if bootstrap not in self.admins:
            for other in self.admins.values():
                await other.close()
            self.admins.clear()
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **QUICK)
            await admin.start()
            self.admins[bootstrap] = admin
        return self.admins[bootstrap]

    async def create_topic(
        self,
        bootstrap: str,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, str] = {},
        trial: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replicas, topic_configs=dict(config))
        admin = await self.admin(bootstrap)
        answer = await admin.create_topics([topic], validate_only=trial)
        failing(answer.topic_errors[0][1])

    async def delete_topic(self, bootstrap: str, name: str) -> None:
        answer = await (await self.admin(bootstrap)).delete_topics([name])
        failing(answer.topic_error_codes[0][1])

    async def grow_topic(self, bootstrap: str, name: str, partitions: int) -> None:
        admin = await self.admin(bootstrap)
        await admin.create_partitions({name: NewPartitions(partitions)})

    async def list_topics(self, bootstrap: str) -> list[str]:
        return list(await (await self.admin(bootstrap)).list_topics())

    async def describe_topic(self, bootstrap: str, name: str) -> dict[str, Any]:
        (topic,) = await (await self.admin(bootstrap)).describe_topics([name])
        failing(topic["error_code"])
        return {
            "internal": topic["is_internal"],
            "partitions": [
                {
                    "id": partition["partition"],
                    "leader": partition["leader"],
                    "replicas": partition["replicas"],
                    "isr": partition["isr"],
                }
                for partition in topic["partitions"]
            ],
        }

    async def delete_records(self, bootstrap: str, topic: str, partition: int, before: int) -> None:
        asked = {TopicPartition(topic, partition): RecordsToDelete(before)}
        await (await self.admin(bootstrap)).delete_records(asked)

    async def offset(self, bootstrap: str, topic: str, partition: int, at: str | int) -> int:
        place = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, **QUICK) as consumer:
            if at == "earliest":
                return int((await consumer.beginning_offsets([place]))[place])
            if at == "latest":
                return int((await consumer.end_offsets([place]))[place])
            found = (await consumer.offsets_for_times({place: at}))[place]
            return -1 if found is None else int(found.offset)

    async def describe_cluster(self, bootstrap: str) -> dict[str, Any]:
        cluster = await (await self.admin(bootstrap)).describe_cluster()
        return {
            "id": cluster["cluster_id"],
            "controller": cluster["controller_id"],
            "nodes": [node["node_id"] for node in cluster["brokers"]],
        }

    async def describe_config(self, bootstrap: str, kind: str, name: str) -> dict[str, list[Any]]:
        admin = await self.admin(bootstrap)
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        (answer,) = await admin.describe_configs([resource])
        ((code, _, _, _, entries),) = answer.resources
        failing(code)
        return {key: [value, source == DEFAULT_CONFIG] for key, value, _, source, *_ in entries}

    async def replace_config(
        self, bootstrap: str, kind: str, name: str, changes: Mapping[str, str]
    ) -> None:
        admin = await self.admin(bootstrap)
        resource = ConfigResource(ConfigResourceType[kind.upper()], name, dict(changes))
        for answer in await admin.alter_configs([resource]):
            for code, *_ in answer.resources:
                failing(code)

    async def list_groups(self, bootstrap: str) -> dict[str, None]:
        listed = await (await self.admin(bootstrap)).list_consumer_groups()
        return {group: None for group, *_ in listed}

    async def describe_group(self, bootstrap: str, group: str) -> dict[str, Any]:
        (answer,) = await (await self.admin(bootstrap)).describe_consumer_groups([group])
        ((code, _, state, _, protocol, members, *_),) = answer.groups
        failing(code)
        return {
            "state": state,
            "protocol": protocol,
            "members": [
                {
                    "id": member_id,
                    "client_id": client_id,
                    "host": host,
                    "instance": None,
                    "assigned": assignment_told(assignment),
                }
                for member_id, client_id, host, _, assignment in members
            ],
        }

    async def group_offsets(self, bootstrap: str, group: str) -> list[list[Any]]:
        admin = await self.admin(bootstrap)
        found = await admin.list_consumer_group_offsets(group)
        return [[*place, at.offset, at.metadata or ""] for place, at in found.items()]


def assignment_told(assignment: bytes) -> list[list[Any]]:
    if not assignment:
        return []
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return [[topic, at] for topic, partitions in decoded.assignment for at in partitions]


def failing(code: int) -> None:
    if code:
        raise for_code(code)()


class AioKafka(Records, Streams, Groups, Transactions, Admin):
    def code(self, fault: BaseException) -> int | None:
        if isinstance(fault, ValueError) and "opic name" in str(fault):
            return int(InvalidTopicError.errno)
        if isinstance(fault, OffsetOutOfRangeError):
            return int(OffsetOutOfRangeError.errno)
        return fault.errno if isinstance(fault, BrokerResponseError) else None


async def serve(program: AioKafka) -> None:
    """Serve commands like lines.serve, for a program that runs an event loop."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        order = json.loads(await lines.get())
        try:
            answer = await getattr(program, order.pop("do"))(**order)
        except Exception as fault:
            say(refused={"code": program.code(fault), "text": worded(fault)})
        else:
            say(answer=answer)


if __name__ == "__main__":
    asyncio.run(serve(AioKafka()))
