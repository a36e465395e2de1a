"""The clients of the table: command lines that speak kcat, and programs that are driven."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.conformance.driven import Driven
from tests.conformance.java_client import java_words
from tests.conformance.node import kafkajs_words
from tests.conformance.table import (
    ASSIGNORS,
    ASYNC_COMMITS,
    CODECS,
    COMMAND,
    COMMITS,
    GROUPS,
    HEADER_TWICE,
    HEADERS,
    LONG_LIVED,
    LOOKS_ONLY,
    METADATA,
    NO_RESET,
    NULL_HEADERS,
    NULLS_AND_EMPTIES,
    STATIC,
    TIMESTAMPS,
    YOUNGEST,
    Client,
    Kafka,
    Record,
    Refused,
    Sent,
)
from tools.apache_kafka import Unavailable

RECORD_END = b"\x1e"
KEY_END = b"\x1f"
TIMEOUT_S = 60
PRODUCER = {
    "acks": "all",
    "linger.ms": "0",
    # What a record may weigh is the broker's to judge.
    "message.max.bytes": "100000000",
}
CONSUMER = {"fetch.wait.max.ms": "10"}


class CommandLine:
    """kcat, or a command that takes its flags."""

    can = frozenset({COMMAND, *CODECS, HEADER_TWICE, NO_RESET, LOOKS_ONLY})

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


KCAT = CommandLine("kcat", ["kcat", "-P"], ["kcat", "-C"])
OURS = CommandLine(
    "kafkalite",
    [sys.executable, "-m", "kafkalite", "produce"],
    [sys.executable, "-m", "kafkalite", "consume"],
)
RECORDS = {HEADERS, HEADER_TWICE, TIMESTAMPS, NULLS_AND_EMPTIES, NO_RESET, LONG_LIVED}
TOPICS = {
    "create_topic",
    "delete_topic",
    "grow_topic",
    "list_topics",
    "describe_topic",
    "delete_records",
    "offset",
    "describe_cluster",
}
CONFIGS = {"describe_config", "alter_config", "replace_config"}
GROUP_ADMIN = {
    "list_groups",
    "describe_group",
    "delete_group",
    "group_offsets",
    "set_group_offsets",
    "delete_group_offsets",
}


def python(name: str, module: str, can: set[str]) -> Driven:
    words = [sys.executable, "-m", f"tests.conformance.programs.{module}"]
    return Driven(name, lambda: words, frozenset(can))


LIBRDKAFKA = python(
    "confluent-kafka",
    "librdkafka",
    {*CODECS, *RECORDS, NULL_HEADERS, LOOKS_ONLY, *TOPICS, YOUNGEST, *CONFIGS}
    | {GROUPS, COMMITS, ASYNC_COMMITS, METADATA, STATIC}
    | {"range", "roundrobin", "cooperative-sticky"}
    | GROUP_ADMIN - {"delete_group_offsets"},
)
KAFKA_PYTHON = python(
    "kafka-python",
    "kafka_python",
    {*CODECS, *RECORDS, *TOPICS, YOUNGEST, *CONFIGS, *GROUP_ADMIN}
    | {GROUPS, COMMITS, ASYNC_COMMITS, METADATA, STATIC, *ASSIGNORS},
)
AIOKAFKA = python(
    "aiokafka",
    "aio_kafka",
    {*CODECS, *RECORDS, *TOPICS, "describe_config", "replace_config"}
    | {GROUPS, COMMITS, METADATA, STATIC, "range", "roundrobin", "sticky"}
    | {"list_groups", "describe_group", "group_offsets"},
)
JAVA = Driven(
    "java",
    java_words,
    frozenset({*CODECS, *RECORDS, NULL_HEADERS, LOOKS_ONLY, *TOPICS, YOUNGEST})
    | {"describe_config", "alter_config"}
    | {GROUPS, COMMITS, ASYNC_COMMITS, METADATA, STATIC, *ASSIGNORS, *GROUP_ADMIN},
)
KAFKAJS = Driven(
    "kafkajs",
    kafkajs_words,
    frozenset(
        {"none", "gzip", "snappy", "zstd", TIMESTAMPS, NULLS_AND_EMPTIES, LOOKS_ONLY, LONG_LIVED, *TOPICS}
        | {"describe_config", "replace_config", GROUPS, COMMITS, METADATA, "roundrobin"}
        | GROUP_ADMIN - {"delete_group_offsets"}
    ),
)
CLIENTS: list[Client] = [KCAT, OURS, LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA, KAFKAJS, JAVA]


def missing(client: Client) -> str:
    """Why a client cannot run here; nothing where it can."""
    if client is KCAT and shutil.which("kcat") is None:
        return "there is no `kcat` on the path"
    try:
        if isinstance(client, Driven):
            client.words()
    except Unavailable as unavailable:
        return str(unavailable)
    return ""
