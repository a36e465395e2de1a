"""The clients of the table: command lines that speak kcat, and librdkafka through Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.conformance.table import (
    ADMIN,
    COMMAND,
    HEADERS,
    LONG_LIVED,
    NULLS_AND_EMPTIES,
    TIMESTAMPS,
    Kafka,
    Record,
    Refused,
    Sent,
    said,
)

RECORD_END = b"\x1e"
KEY_END = b"\x1f"
TIMEOUT_S = 60
OFFSET_TAIL = -2000
"""librdkafka's number for "so many before the end": this minus the distance."""

BEGINNING = -2
"""ListOffsets's timestamp for the first offset there is."""

PRODUCER = {
    "acks": "all",
    "linger.ms": "0",
    # What a record may weigh is the broker's to judge.
    "message.max.bytes": "100000000",
}
CONSUMER = {"fetch.wait.max.ms": "10"}


class CommandLine:
    """kcat, or a command that takes its flags."""

    can = frozenset({COMMAND})

    def __init__(self, name: str, produce: Sequence[str], consume: Sequence[str]) -> None:
        self.name = name
        self.produce_words = produce
        self.consume_words = consume

    def produce(
        self,
        kafka: Kafka,
        topic: str,
        records: Sequence[Sent],
        partition: int = -1,
        settings: Mapping[str, str] = {},
    ) -> None:
        flags = ["-b", kafka.bootstrap, "-t", topic, *properties(PRODUCER | settings)]
        flags += ["-D", "\\x1e", "-K", "\\x1f"]
        if partition >= 0:
            flags += ["-p", str(partition)]
        if any(None in (record.key, record.value) for record in records):
            assert all(b"" not in (record.key, record.value) for record in records)
            flags.append("-Z")
        (headers,) = {tuple(record.headers) for record in records}
        for header, content in headers:
            flags += ["-H", f"{header}={(content or b'').decode()}"]
        lines = [(record.key or b"") + KEY_END + (record.value or b"") for record in records]
        self.run([*self.produce_words, *flags], RECORD_END.join(lines) + RECORD_END)

    def consume(
        self,
        kafka: Kafka,
        topic: str,
        partition: int = 0,
        start: int | str = "beginning",
        count: int | None = None,
        settings: Mapping[str, str] = {},
    ) -> list[Record]:
        flags = ["-b", kafka.bootstrap, "-t", topic, "-p", str(partition), "-o", str(start)]
        flags += properties(CONSUMER | settings)
        flags += ["-e"] if count is None else ["-c", str(count)]
        # Sizes go before what they measure, so that any bytes can be told apart.
        form = "%p %o %T %K %S %h\\n%k%s\\n"
        return framed(self.run([*self.consume_words, "-q", *flags, "-f", form]))

    def run(self, words: Sequence[str], given: bytes = b"") -> bytes:
        ended = subprocess.run(
            words, input=given, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        if ended.returncode:
            raise Refused(ended.stderr.decode())
        return ended.stdout


def framed(output: bytes) -> list[Record]:
    """Records from `%p %o %T %K %S %h\\n%k%s\\n`."""
    records = []
    while output:
        line, _, output = output.partition(b"\n")
        partition, offset, timestamp_ms, key_size, size, headers = line.split(b" ", 5)
        key, output = sized(output, int(key_size))
        value, output = sized(output, int(size))
        assert output[:1] == b"\n"
        output = output[1:]
        pairs = [pair.split(b"=", 1) for pair in headers.split(b",") if pair]
        records.append(
            Record(
                int(partition),
                int(offset),
                key,
                value,
                [(name.decode(), content) for name, content in pairs],
                int(timestamp_ms),
            )
        )
    return records


def sized(output: bytes, size: int) -> tuple[bytes | None, bytes]:
    """The next bytes of this size, None for a negative one, and what follows."""
    return (None, output) if size < 0 else (output[:size], output[size:])


def properties(settings: Mapping[str, str]) -> list[str]:
    return [word for item in settings.items() for word in ("-X", "=".join(item))]


class Librdkafka:
    """confluent-kafka."""

    name = "confluent-kafka"
    can = frozenset({HEADERS, TIMESTAMPS, NULLS_AND_EMPTIES, ADMIN, LONG_LIVED})

    def produce(
        self,
        kafka: Kafka,
        topic: str,
        records: Sequence[Sent],
        partition: int = -1,
        settings: Mapping[str, str] = {},
    ) -> None:
        faults: list[KafkaError] = []

        def heard(fault: KafkaError | None, _: Message) -> None:
            if fault is not None:
                faults.append(fault)

        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "log_level": 0, **PRODUCER, **settings}
        )
        for value, key, headers, timestamp_ms in records:
            producer.produce(
                topic, value, key, partition, heard, timestamp=timestamp_ms, headers=[*headers]
            )
        assert producer.flush(TIMEOUT_S) == 0
        if faults:
            raise Refused(said(faults[0]))

    def consume(
        self,
        kafka: Kafka,
        topic: str,
        partition: int = 0,
        start: int | str = "beginning",
        count: int | None = None,
        settings: Mapping[str, str] = {},
    ) -> list[Record]:
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": "conformance",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 0,
                **CONSUMER,
                **settings,
            }
        )
        try:
            offset = self.offset(consumer, topic, partition, start)
            consumer.assign([TopicPartition(topic, partition, offset)])
            return read(consumer, count)
        except KafkaException as fault:
            raise Refused(said(fault.args[0])) from fault
        finally:
            consumer.close()

    def offset(self, consumer: Consumer, topic: str, partition: int, start: int | str) -> int:
        if start == "end":
            return OFFSET_END
        if isinstance(start, int):
            return start if start >= 0 else OFFSET_TAIL + start
        # Given OFFSET_BEGINNING itself, librdkafka would take half a second to find it out.
        timestamp = BEGINNING if start == "beginning" else int(start.removeprefix("s@"))
        asked = TopicPartition(topic, partition, timestamp)
        (found,) = consumer.offsets_for_times([asked], TIMEOUT_S)
        if found.error is not None:
            raise Refused(said(found.error))
        return found.offset


def read(consumer: Consumer, count: int | None) -> list[Record]:
    """So many records, or all up to the end."""
    records: list[Record] = []
    while count is None or len(records) < count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "the broker went silent"
        fault = message.error()
        if fault is None:
            records.append(record(message))
        elif fault.code() != KafkaError._PARTITION_EOF:
            raise Refused(said(fault)) from KafkaException(fault)
        elif count is None:
            break
    return records


def record(message: Message) -> Record:
    return Record(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers() or [],
        message.timestamp()[1],
    )


KCAT = CommandLine("kcat", ["kcat", "-P"], ["kcat", "-C"])
OURS = CommandLine(
    "kafkalite",
    [sys.executable, "-m", "kafkalite", "produce"],
    [sys.executable, "-m", "kafkalite", "consume"],
)
CLIENTS = [KCAT, OURS, Librdkafka()]


def missing(client: object) -> bool:
    """Whether a client is not on this machine."""
    return client is KCAT and shutil.which("kcat") is None
