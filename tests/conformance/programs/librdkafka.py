"""confluent-kafka as a program: librdkafka through Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    AcknowledgeType,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.conformance.programs.lines import (
    CONSUME_S_MAX,
    TURN_S,
    raw,
    say,
    serve,
    text,
    told_headers,
)

OFFSET_TAIL = -2000
"""librdkafka's number for "before the end": this minus the distance."""

BEGINNING = -2
"""ListOffsets's timestamp for the log start offset."""

PRODUCER = {
    "acks": "all",
    "linger.ms": 0,
    # The broker decides on the size of a record.
    "message.max.bytes": 100_000_000,
}
QUICK = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
}
IN_FLIGHT_MAX = 500
KINDS = {"topic": ConfigResource.Type.TOPIC, "broker": ConfigResource.Type.BROKER}
STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
}
OFFSETS = {
    "earliest": OffsetSpec.earliest(),
    "latest": OffsetSpec.latest(),
    "youngest": OffsetSpec.max_timestamp(),
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
        faults: list[KafkaError] = []

        def heard(fault: KafkaError | None, _: Message) -> None:
            if fault is not None:
                faults.append(fault)

        producer = Producer({"bootstrap.servers": bootstrap, **QUICK, **PRODUCER, **settings})
        for value, key, headers, timestamp in records:
            pairs = [(name, raw(content)) for name, content in headers]
            producer.produce(
                topic, raw(value), raw(key), partition, heard, timestamp=timestamp, headers=pairs
            )
        assert producer.flush(CONSUME_S_MAX) == 0
        if faults:
            raise KafkaException(faults[0])

    def consume(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        start: int | str,
        count: int | None,
        settings: Mapping[str, str],
    ) -> list[list[Any]]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "conformance",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,
                **QUICK,
                **settings,
            }
        )
        try:
            offset = self.offset_of(consumer, topic, partition, start)
            consumer.assign([TopicPartition(topic, partition, offset)])
            return [told(message) for message in read(consumer, count)]
        finally:
            consumer.close()

    def offset_of(self, consumer: Consumer, topic: str, partition: int, start: int | str) -> int:
        if start == "end":
            return OFFSET_END
        if isinstance(start, int):
            return start if start >= 0 else OFFSET_TAIL + start
        # With OFFSET_BEGINNING itself, librdkafka would take half a second to resolve it.
        timestamp = BEGINNING if start == "beginning" else int(start.removeprefix("s@"))
        asked = TopicPartition(topic, partition, timestamp)
        (found,) = consumer.offsets_for_times([asked], CONSUME_S_MAX)
        if found.error is not None:
            raise KafkaException(found.error)
        return found.offset


def read(consumer: Consumer, count: int | None) -> list[Message]:
    """Read `count` records, or all up to the end."""
    records: list[Message] = []
    while count is None or len(records) < count:
        message = consumer.poll(CONSUME_S_MAX)
        assert message is not None, "the broker went silent"
        fault = message.error()
        if fault is None:
            records.append(message)
        elif fault.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(fault)
        elif count is None:
            break
    return records


def told(message: Message) -> list[Any]:
    return [
        message.partition(),
        message.offset(),
        text(message.key()),
        text(message.value()),
        told_headers(message.headers() or []),
        message.timestamp()[1],
    ]


class Streams:
    """A producer that keeps sending."""

    producer: Producer | None = None

    def stream(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                **QUICK,
            }
        )
        self.topic = topic
        self.partitions = partitions
        self.sent = 0
        self.acked: list[list[Any]] = []
        self.awake = True

    def send_on(self) -> None:
        producer = self.producer
        assert producer is not None
        while len(producer) < IN_FLIGHT_MAX:
            partition = self.sent % self.partitions
            value = str(self.sent)
            producer.produce(self.topic, value, partition=partition, on_delivery=self.heard)
            self.sent += 1
        producer.poll(TURN_S)
        self.tell()

    def heard(self, fault: KafkaError | None, message: Message) -> None:
        if fault is None:
            self.acked.append([message.partition(), message.offset(), text(message.value())])
        else:
            say(fault=str(fault))

    def tell(self) -> None:
        if self.acked:
            say(acked=self.acked)
            self.acked = []

    def unstream(self) -> int:
        self.awake = False
        assert self.producer is not None
        assert self.producer.flush(CONSUME_S_MAX) == 0
        self.tell()
        self.producer = None
        return self.sent


class Groups:
    """A member of a group."""

    consumer: Consumer | None = None

    def join(
        self, bootstrap: str, group: str, topics: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        words = {"fetch.wait.max.ms": 10, "auto.offset.reset": "earliest", **QUICK, **settings}
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **words})
        consumer.subscribe(
            list(topics),
            on_assign=lambda _, places: say(assigned=places_told(places)),
            on_revoke=lambda _, places: say(revoked=places_told(places)),
        )
        self.consumer = consumer
        self.awake = True

    def read_on(self) -> None:
        assert self.consumer is not None
        lines = []
        for message in self.consumer.consume(500, TURN_S):
            fault = message.error()
            if fault is None:
                place = message.topic(), message.partition(), message.offset()
                lines.append([*place, text(message.value())])
            elif not fault.retriable() and fault.code() != KafkaError._ALL_BROKERS_DOWN:
                say(fault=str(fault))
        if lines:
            say(read=lines)

    def commit(self, offsets: Sequence[Any] | None, wait: bool) -> None:
        assert self.consumer is not None
        given = {"offsets": partitions_of(offsets)} if offsets is not None else {}
        answered = self.consumer.commit(asynchronous=not wait, **given)
        for place in answered or []:
            if place.error is not None:
                raise KafkaException(place.error)

    def keep_membership(self) -> None:
        assert self.consumer is not None
        self.membership = self.consumer.consumer_group_metadata()

    def leave(self) -> None:
        self.awake = False
        assert self.consumer is not None
        self.consumer.close()
        self.consumer = None


def places_told(places: Iterable[TopicPartition]) -> list[list[Any]]:
    return [[place.topic, place.partition] for place in places]


def partitions_of(offsets: Iterable[Sequence[Any]]) -> list[TopicPartition]:
    return [TopicPartition(topic, at, offset, text) for topic, at, offset, text in offsets]


class ShareGroups:
    """A member of a share group."""

    def share_join(
        self, bootstrap: str, group: str, topics: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        words = {"share.acknowledgement.mode": "explicit", **QUICK, **settings}
        self.member = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **words})
        self.member.subscribe(list(topics))

    def share_poll(self, timeout_ms: int) -> list[list[Any]]:
        lines = []
        for message in self.member.poll(timeout_ms / 1000):
            fault = message.error()
            if fault is None:
                place = message.topic(), message.partition(), message.offset()
                lines.append([*place, text(message.value()), message.delivery_count()])
            elif not fault.retriable() and fault.code() != KafkaError._ALL_BROKERS_DOWN:
                raise KafkaException(fault)
        return lines

    def share_acknowledge(self, records: Sequence[Any]) -> list[list[Any]]:
        for *place, kind in records:
            self.member.acknowledge_offset(*place, AcknowledgeType[kind.upper()])
        outcomes = self.member.commit_sync(CONSUME_S_MAX)
        return [
            [place.topic, place.partition, fault.args[0].code()]
            for place, fault in outcomes.items()
            if fault is not None
        ]

    def share_leave(self) -> None:
        self.member.close()


class Transactions:
    """A transactional producer."""

    membership: Any

    def init(self, bootstrap: str, id: str, timeout_ms: int) -> None:
        self.transactional = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": id,
            "transaction.timeout.ms": timeout_ms, **QUICK, "linger.ms": 0,
        })  # fmt: skip
        self.transactional.init_transactions(CONSUME_S_MAX)

    def begin(self) -> None:
        self.transactional.begin_transaction()

    def send(self, topic: str, records: Sequence[Any]) -> list[list[int]]:
        placed: list[list[int]] = []
        faults: list[KafkaError] = []

        def heard(fault: KafkaError | None, message: Message) -> None:
            if fault is None:
                placed.append([message.partition(), message.offset()])
            else:
                faults.append(fault)

        for partition, value in records:
            self.transactional.produce(topic, raw(value), partition=partition, on_delivery=heard)
        try:
            assert self.transactional.flush(CONSUME_S_MAX) == 0
        except SystemError as interrupted:
            # confluent-kafka calls `heard` while the fatal error that it will raise is set.
            raise interrupted.__cause__ or interrupted from None
        if faults:
            raise KafkaException(faults[0])
        return placed

    def add_offsets(
        self, bootstrap: str, group: str, offsets: Sequence[Any], as_member: bool = False
    ) -> None:
        places = [TopicPartition(topic, at, offset) for topic, at, offset in offsets]
        if as_member:
            self.transactional.send_offsets_to_transaction(places, self.membership, CONSUME_S_MAX)
            return
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUICK})
        try:
            metadata = consumer.consumer_group_metadata()
            self.transactional.send_offsets_to_transaction(places, metadata, CONSUME_S_MAX)
        finally:
            consumer.close()

    def end(self, commit: bool) -> None:
        if commit:
            self.transactional.commit_transaction(CONSUME_S_MAX)
        else:
            self.transactional.abort_transaction(CONSUME_S_MAX)

    def retire(self) -> None:
        del self.transactional


class Admin:
    """The admin commands; the client is kept while the address is the same."""

    admins: dict[str, AdminClient] = {}

    def admin(self, bootstrap: str) -> AdminClient:
        if bootstrap not in self.admins:
            self.admins.clear()
            self.admins[bootstrap] = AdminClient({"bootstrap.servers": bootstrap, **QUICK})
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
        topic = NewTopic(name, partitions, replicas, config=dict(config))
        done(self.admin(bootstrap).create_topics([topic], validate_only=trial))

    def delete_topic(self, bootstrap: str, name: str) -> None:
        done(self.admin(bootstrap).delete_topics([name]))

    def grow_topic(self, bootstrap: str, name: str, partitions: int) -> None:
        done(self.admin(bootstrap).create_partitions([NewPartitions(name, partitions)]))

    def list_topics(self, bootstrap: str) -> list[str]:
        return list(self.admin(bootstrap).list_topics(timeout=10).topics)

    def describe_topic(self, bootstrap: str, name: str) -> dict[str, Any]:
        topic = done(self.admin(bootstrap).describe_topics(TopicCollection([name])))
        return {
            "internal": topic.is_internal,
            "partitions": [
                {
                    "id": partition.id,
                    "leader": partition.leader.id,
                    "replicas": [node.id for node in partition.replicas],
                    "isr": [node.id for node in partition.isr],
                }
                for partition in topic.partitions
            ],
        }

    def delete_records(self, bootstrap: str, topic: str, partition: int, before: int) -> None:
        done(self.admin(bootstrap).delete_records([TopicPartition(topic, partition, before)]))

    def offset(self, bootstrap: str, topic: str, partition: int, at: str | int) -> int:
        spec = OFFSETS[at] if isinstance(at, str) else OffsetSpec.for_timestamp(at)
        asked = {TopicPartition(topic, partition): spec}
        return int(done(self.admin(bootstrap).list_offsets(asked)).offset)

    def describe_cluster(self, bootstrap: str) -> dict[str, Any]:
        cluster = self.admin(bootstrap).describe_cluster().result(CONSUME_S_MAX)
        return {
            "id": cluster.cluster_id,
            "controller": cluster.controller.id,
            "nodes": [node.id for node in cluster.nodes],
        }

    def describe_config(self, bootstrap: str, kind: str, name: str) -> dict[str, list[Any]]:
        resource = ConfigResource(KINDS[kind], name)
        entries = done(self.admin(bootstrap).describe_configs([resource]))
        return {key: [entry.value, entry.is_default] for key, entry in entries.items()}

    def alter_config(
        self, bootstrap: str, kind: str, name: str, changes: Mapping[str, str | None]
    ) -> None:
        operations = {True: AlterConfigOpType.DELETE, False: AlterConfigOpType.SET}
        entries = [
            ConfigEntry(key, value, incremental_operation=operations[value is None])
            for key, value in changes.items()
        ]
        resource = ConfigResource(KINDS[kind], name, incremental_configs=entries)
        done(self.admin(bootstrap).incremental_alter_configs([resource]))

    def replace_config(
        self, bootstrap: str, kind: str, name: str, changes: Mapping[str, str]
    ) -> None:
        resource = ConfigResource(KINDS[kind], name, set_config=dict(changes))
        done(self.admin(bootstrap).alter_configs([resource]))

    def list_groups(self, bootstrap: str) -> dict[str, str]:
        listed = self.admin(bootstrap).list_consumer_groups().result(CONSUME_S_MAX)
        for fault in listed.errors:
            raise fault
        return {group.group_id: state_told(group.state) for group in listed.valid}

    def describe_group(self, bootstrap: str, group: str) -> dict[str, Any]:
        described = done(self.admin(bootstrap).describe_consumer_groups([group]))
        return {
            "state": state_told(described.state),
            "protocol": described.partition_assignor,
            "members": [
                {
                    "id": member.member_id,
                    "client_id": member.client_id,
                    "host": member.host,
                    "instance": member.group_instance_id,
                    "assigned": places_told(member.assignment.topic_partitions),
                }
                for member in described.members
            ],
        }

    def delete_group(self, bootstrap: str, group: str) -> None:
        done(self.admin(bootstrap).delete_consumer_groups([group]))

    def group_offsets(self, bootstrap: str, group: str) -> list[list[Any]]:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = done(self.admin(bootstrap).list_consumer_group_offsets(asked))
        places = failing(found.topic_partitions)
        return [[at.topic, at.partition, at.offset, at.metadata or ""] for at in places]

    def set_group_offsets(self, bootstrap: str, group: str, offsets: Sequence[Any]) -> None:
        given = [ConsumerGroupTopicPartitions(group, partitions_of(offsets))]
        failing(done(self.admin(bootstrap).alter_consumer_group_offsets(given)).topic_partitions)


def done(futures: Mapping[Any, Any]) -> Any:
    """Return the result of the only future."""
    (future,) = futures.values()
    return future.result(CONSUME_S_MAX)


def failing(places: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
    """Return the places; raise if one of them has an error."""
    for place in places:
        if place.error is not None:
            raise KafkaException(place.error)
    return places


def state_told(state: Any) -> str:
    """Return the state in Kafka's spelling."""
    return STATES.get(state.name, state.name.capitalize())


class Librdkafka(Records, Streams, Groups, ShareGroups, Transactions, Admin):
    awake = False

    def turn(self) -> None:
        if self.consumer is not None:
            self.read_on()
        else:
            self.send_on()

    def code(self, fault: BaseException) -> int | None:
        given = fault.args[0] if isinstance(fault, KafkaException) else None
        return given.code() if isinstance(given, KafkaError) else None


if __name__ == "__main__":
    serve(Librdkafka())
