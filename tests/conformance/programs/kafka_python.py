"""kafka-python as a program."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kafka
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, KafkaAdminClient, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import BrokerResponseError, InvalidTopicError, RetriableError, for_code

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
POLL_MS = 200
"""A shorter poll, which ends during a join, sometimes loses track of the join."""

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
QUICK = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50, "retry_backoff_ms": 10}
PRODUCER = {
    "compression.type": ("compression_type", lambda codec: None if codec == "none" else codec),
    "acks": ("acks", lambda acks: acks if acks == "all" else int(acks)),
    "enable.idempotence": ("enable_idempotence", yes),
    "message.timeout.ms": ("delivery_timeout_ms", int),
    # Its batches are limited by size, not by count.
    "batch.num.messages": ("batch_size", lambda count: int(count) * 20),
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
OFFSETS = {
    "earliest": OffsetSpec.EARLIEST,
    "latest": OffsetSpec.LATEST,
    "youngest": OffsetSpec.MAX_TIMESTAMP,
}


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
        words = {"acks": "all", "max_request_size": 100_000_000, "request_timeout_ms": 8_000}
        words |= QUICK
        words |= translated(settings, PRODUCER)
        if words["acks"] != "all":
            words["enable_idempotence"] = False
        producer = KafkaProducer(bootstrap_servers=bootstrap, **words)
        try:
            sent = [
                producer.send(
                    topic,
                    raw(value),
                    raw(key),
                    headers=[(name, raw(content)) for name, content in headers],
                    partition=partition if partition >= 0 else None,
                    timestamp_ms=timestamp or None,
                )
                for value, key, headers, timestamp in records
            ]
            for future in sent:
                future.get(CONSUME_S_MAX)
        finally:
            producer.close(5)

    def consume(
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
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, allow_auto_create_topics=False, **words
        )
        try:
            consumer.assign([place])
            end = consumer.end_offsets([place])[place]
            consumer.seek(place, self.offset_of(consumer, place, start, end))
            got: list[list[Any]] = []
            deadline = time.monotonic() + CONSUME_S_MAX
            while len(got) < count if count is not None else consumer.position(place) != end:
                assert time.monotonic() < deadline, "the broker went silent"
                for records in consumer.poll(100).values():
                    got += map(told, records)
            return got[:count]
        finally:
            consumer.close()

    def offset_of(
        self, consumer: KafkaConsumer, place: TopicPartition, start: int | str, end: int
    ) -> int:
        if start == "end":
            return end
        first = consumer.beginning_offsets([place])[place]
        if start == "beginning":
            return int(first)
        if isinstance(start, int):
            return start if start >= 0 else max(first, end + start)
        found = consumer.offsets_for_times({place: int(start.removeprefix("s@"))})[place]
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

    producer: KafkaProducer | None = None

    def stream(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=1, **QUICK
        )
        self.topic = topic
        self.partitions = partitions
        self.sent = 0
        self.waiting: list[Any] = []
        self.awake = True

    def send_on(self) -> None:
        assert self.producer is not None
        while len(self.waiting) < IN_FLIGHT_MAX:
            partition = self.sent % self.partitions
            value = b"%d" % self.sent
            self.waiting.append((value, self.producer.send(self.topic, value, partition=partition)))
            self.sent += 1
        time.sleep(TURN_S)
        self.tell()

    def tell(self) -> None:
        acked = []
        for value, future in self.waiting:
            if future.failed():
                say(fault=str(future.exception))
            elif future.succeeded():
                acked.append([future.value.partition, future.value.offset, text(value)])
        self.waiting = [sent for sent in self.waiting if not sent[1].is_done]
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


class Listener(kafka.ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        say(revoked=places_told(revoked))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        say(assigned=places_told(assigned))


class Groups:
    """A member of a group."""

    consumer: KafkaConsumer | None = None

    def join(
        self, bootstrap: str, group: str, topics: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        words = {"fetch_max_wait_ms": 10, "auto_offset_reset": "earliest", **QUICK}
        words |= translated(settings, CONSUMER)
        self.consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **words)
        self.consumer.subscribe(topics=list(topics), listener=Listener())
        # A topic that it discovers after it began to join makes it rejoin, and a poll that ends
        # at that moment leaves it without heartbeats and partitions for ever.
        for topic in topics:
            self.consumer.partitions_for_topic(topic)
        self.awake = True

    def read_on(self) -> None:
        assert self.consumer is not None
        try:
            got = self.consumer.poll(POLL_MS)
        except RetriableError:
            return
        lines = [
            [record.topic, record.partition, record.offset, text(record.value)]
            for records in got.values()
            for record in records
        ]
        if lines:
            say(read=lines)

    def commit(self, offsets: Sequence[Any] | None, wait: bool) -> None:
        assert self.consumer is not None
        given = None if offsets is None else offsets_of(offsets)
        if wait:
            self.consumer.commit(given)
        else:
            self.consumer.commit_async(given)

    def leave(self) -> None:
        self.awake = False
        assert self.consumer is not None
        self.consumer.close()
        self.consumer = None


def places_told(places: Iterable[TopicPartition]) -> list[list[Any]]:
    return [[place.topic, place.partition] for place in places]


def offsets_of(offsets: Iterable[Sequence[Any]]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, at): OffsetAndMetadata(offset, said, -1)
        for topic, at, offset, said in offsets
    }


class Transactions:
    """A transactional producer."""

    def init(self, bootstrap: str, id: str, timeout_ms: int) -> None:
        self.transactional = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=id, transaction_timeout_ms=timeout_ms,
            **QUICK,
        )  # fmt: skip
        self.transactional.init_transactions()

    def begin(self) -> None:
        self.transactional.begin_transaction()

    def send(self, topic: str, records: Sequence[Any]) -> list[list[int]]:
        futures = [
            self.transactional.send(topic, raw(value), partition=partition)
            for partition, value in records
        ]
        placed = [future.get(CONSUME_S_MAX) for future in futures]
        return [[each.partition, each.offset] for each in placed]

    def add_offsets(self, bootstrap: str, group: str, offsets: Sequence[Any]) -> None:
        given = {
            TopicPartition(topic, at): OffsetAndMetadata(offset, "", -1)
            for topic, at, offset in offsets
        }
        self.transactional.send_offsets_to_transaction(given, group)

    def end(self, commit: bool) -> None:
        if commit:
            self.transactional.commit_transaction()
        else:
            self.transactional.abort_transaction()

    def retire(self) -> None:
        self.transactional.close(5)


class Admin:
    """The admin commands; the client is kept while the address is the same."""

    admins: dict[str, KafkaAdminClient] = {}

    def admin(self, bootstrap: str) -> KafkaAdminClient:
        if bootstrap not in self.admins:
            for other in self.admins.values():
                other.close()
            self.admins.clear()
            self.admins[bootstrap] = KafkaAdminClient(bootstrap_servers=bootstrap, **QUICK)
        return self.admins[bootstrap]

    def create_topic(
        self,
        bootstrap: str,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, str] = {},
        trial: bool = False,
    ) -> None:
        topic = {
            "num_partitions": partitions,
            "replication_factor": replicas,
            "configs": dict(config),
        }
        self.admin(bootstrap).create_topics({name: topic}, validate_only=trial)

    def delete_topic(self, bootstrap: str, name: str) -> None:
        self.admin(bootstrap).delete_topics([name])

    def grow_topic(self, bootstrap: str, name: str, partitions: int) -> None:
        self.admin(bootstrap).create_partitions({name: partitions})

    def list_topics(self, bootstrap: str) -> list[str]:
        return list(self.admin(bootstrap).list_topics())

    def describe_topic(self, bootstrap: str, name: str) -> dict[str, Any]:
        (topic,) = self.admin(bootstrap).describe_topics([name])
        failing(topic["error_code"])
        return {
            "internal": topic["is_internal"],
            "partitions": [
                {
                    "id": partition["partition_index"],
                    "leader": partition["leader_id"],
                    "replicas": partition["replica_nodes"],
                    "isr": partition["isr_nodes"],
                }
                for partition in topic["partitions"]
            ],
        }

    def delete_records(self, bootstrap: str, topic: str, partition: int, before: int) -> None:
        self.admin(bootstrap).delete_records({TopicPartition(topic, partition): before})

    def offset(self, bootstrap: str, topic: str, partition: int, at: str | int) -> int:
        spec = OFFSETS[at] if isinstance(at, str) else at
        asked = {TopicPartition(topic, partition): spec}
        (found,) = self.admin(bootstrap).list_partition_offsets(asked).values()
        return int(found.offset)

    def describe_cluster(self, bootstrap: str) -> dict[str, Any]:
        cluster = self.admin(bootstrap).describe_cluster()
        return {
            "id": cluster["cluster_id"],
            "controller": cluster["controller_id"],
            "nodes": [node["broker_id"] for node in cluster["brokers"]],
        }

    def describe_config(self, bootstrap: str, kind: str, name: str) -> dict[str, list[Any]]:
        found = self.admin(bootstrap).describe_configs(
            [ConfigResource(kind, name)], config_filter="all"
        )
        return {
            key: [entry["value"], entry["config_source"] == "DEFAULT_CONFIG"]
            for key, entry in found[kind][name].items()
        }

    def alter_config(
        self, bootstrap: str, kind: str, name: str, changes: Mapping[str, str | None]
    ) -> None:
        operations = {
            key: ("DELETE" if value is None else "SET", value) for key, value in changes.items()
        }
        self.altered(bootstrap, kind, name, operations, incremental=True)

    def replace_config(
        self, bootstrap: str, kind: str, name: str, changes: Mapping[str, str]
    ) -> None:
        # kafka-python sends the current values along, so that omitted keys are not unset.
        self.altered(bootstrap, kind, name, dict(changes), incremental=False)

    def altered(
        self, bootstrap: str, kind: str, name: str, changes: dict[str, Any], incremental: bool
    ) -> None:
        resource = ConfigResource(kind, name, changes)
        result = self.admin(bootstrap).alter_configs(
            [resource], raise_on_unknown=False, incremental=incremental
        )
        said = result[kind][name]
        if said != "OK":
            # It returns only the text, which begins with the code in brackets.
            raise for_code(int(said.split("]")[0].removeprefix("[Error ")))(said)

    def list_groups(self, bootstrap: str) -> dict[str, str]:
        listed = self.admin(bootstrap).list_groups()
        return {group["group_id"]: group.get("group_state") for group in listed}

    def describe_group(self, bootstrap: str, group: str) -> dict[str, Any]:
        described = self.admin(bootstrap).describe_groups([group])[group]
        return {
            "state": described["group_state"],
            "protocol": described["protocol_data"],
            "members": [
                {
                    "id": member["member_id"],
                    "client_id": member["client_id"],
                    "host": member["client_host"],
                    "instance": member.get("group_instance_id"),
                    "assigned": [
                        [entry["topic"], partition]
                        for entry in (member["member_assignment"] or {}).get(
                            "assigned_partitions", ()
                        )
                        for partition in entry["partitions"]
                    ],
                }
                for member in described["members"]
            ],
        }

    def delete_group(self, bootstrap: str, group: str) -> None:
        result = self.admin(bootstrap).delete_groups([group])[group]
        if result != "OK":
            raise getattr(kafka.errors, result)(group)

    def group_offsets(self, bootstrap: str, group: str) -> list[list[Any]]:
        found = self.admin(bootstrap).list_group_offsets([group])[group]
        return [[*place, at.offset, at.metadata or ""] for place, at in found.items()]

    def set_group_offsets(self, bootstrap: str, group: str, offsets: Sequence[Any]) -> None:
        results = self.admin(bootstrap).alter_group_offsets(group, offsets_of(offsets))
        for fault in results.values():
            failing(fault.errno)

    def delete_group_offsets(self, bootstrap: str, group: str, partitions: Sequence[Any]) -> None:
        places = [TopicPartition(*place) for place in partitions]
        for fault in self.admin(bootstrap).delete_group_offsets(group, places).values():
            failing(fault.errno)


def failing(code: int) -> None:
    if code:
        raise for_code(code)()


class KafkaPython(Records, Streams, Groups, Transactions, Admin):
    awake = False

    def turn(self) -> None:
        if self.consumer is not None:
            self.read_on()
        else:
            self.send_on()

    def code(self, fault: BaseException) -> int | None:
        if isinstance(fault, ValueError) and "Topic name" in str(fault):
            return int(InvalidTopicError.errno)
        return fault.errno if isinstance(fault, BrokerResponseError) else None


if __name__ == "__main__":
    serve(KafkaPython())
