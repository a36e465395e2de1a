"""kafka-console-consumer.sh: print records as they arrive.

With a group, offsets are committed after the records are printed.  Without one, partitions are
assigned directly, while Kafka's tool joins a group with a generated name.

Left out: formatters other than DefaultMessageFormatter and NoOpMessageFormatter; without a group,
topics and partitions that are created after the start.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from kafkalite.cli.command import print_stderr, warn, write_stdout
from kafkalite.cli.member_positions import MemberPositions
from kafkalite.cli.shell_tools import record_lines
from kafkalite.cli.shell_tools.cluster import CONNECTION, ToolCluster, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, property_value, whole
from kafkalite.cli.shell_tools.java_properties import properties_in
from kafkalite.cli.shell_tools.topic_names import matcher
from kafkalite.cli.signal_handling import SignalHandling
from kafkalite.errors import Refusal

BATCH_COUNT_MAX = 5_000
POLL_S = 0.1
OFFSETS = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
LEVELS = ("read_uncommitted", "read_committed")
UNSEEN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)


def offset(text: str) -> int:
    """Parse the argument of --offset."""
    try:
        number = OFFSETS[text] if text in OFFSETS else whole(text)
    except ValueError:
        number = -1
    if number < 0 and text not in OFFSETS:
        raise ValueError("earliest, latest or an offset")
    return number


def level(text: str) -> str:
    """Parse the argument of --isolation-level."""
    if text not in LEVELS:
        raise ValueError(" or ".join(LEVELS))
    return text


OUTPUT = (
    Flag(
        "formatter-property",
        "KEY=VALUE",
        f"{', '.join(record_lines.DEFAULTS)}; may be repeated",
        property_value,
        repeated=True,
    ),
    Flag("formatter-config", "FILE", "file with formatter properties"),
    Flag("formatter", "CLASS", "DefaultMessageFormatter or NoOpMessageFormatter"),
    Flag("key-deserializer", "CLASS", "deserializer of keys"),
    Flag("value-deserializer", "CLASS", "deserializer of values"),
    Flag(
        "command-property",
        "KEY=VALUE",
        "consumer property; may be repeated",
        property_value,
        repeated=True,
    ),
    Flag("property", "KEY=VALUE", instead="formatter-property"),
    Flag("consumer-property", "KEY=VALUE", instead="command-property"),
    Flag("enable-systest-events", refused="is not supported: it is for Kafka's system tests"),
)
"""Flags of every console consumer: how records are printed, and the consumer's properties."""

FLAGS = (
    *CONNECTION,
    Flag("topic", "NAME", "name of the topic"),
    Flag("include", "REGEX", "regular expression of topic names"),
    Flag("group", "ID", "join this consumer group"),
    Flag("from-beginning", help="start at the beginning of partitions without committed offset"),
    Flag("partition", "ID", "only this partition", whole),
    Flag(
        "offset", "WHERE", "start of the partition: earliest, latest (default) or an offset", offset
    ),
    Flag("max-messages", "COUNT", "exit after this number of records", whole),
    Flag("timeout-ms", "MS", "exit if no record arrives for this time", whole),
    Flag("isolation-level", "LEVEL", f"{' or '.join(LEVELS)} (default {LEVELS[0]})", level),
    Flag("skip-message-on-error", help="skip records that cannot be printed"),
    *OUTPUT,
    Flag("consumer.config", "FILE", instead="command-config"),
)


def run(options: ParsedFlags) -> int | None:
    """Print the records of topics, one value per line.

    Examples:
      kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic flights --from-beginning
      kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic people --group readers \\
          --formatter-property print.key=true --timeout-ms 5000
    """
    check(options)
    lines = formatter(options)
    gc.disable()  # no cycles are created here, and each collection would traverse the batches
    with errors_as_refusals():
        reader = ConsoleReader(options)
        try:
            with reader.signals.deferred():
                for batch in reader.batches():
                    write_stdout(lines(batch))
                    reader.done(batch)
        except SystemError:
            # confluent-kafka discards exceptions that a signal handler raises in a callback.
            raise KeyboardInterrupt from None
        finally:
            reader.consumer.close()
            print_stderr(f"Processed a total of {reader.count} messages")
    return 128 + reader.signals.received if reader.signals.received else 0


def check(options: ParsedFlags) -> None:
    options.requires("bootstrap-server")
    options.action("topic", "include")
    options.only_with("offset", "partition")
    options.only_with("partition", "topic")
    options.excludes("partition", ["group"])
    options.excludes("offset", ["from-beginning"])
    check_numbers(options)


def check_numbers(options: ParsedFlags) -> None:
    for flag in ("max-messages", "timeout-ms", "partition"):
        if options.one(flag, 0) < 0 and not (flag == "max-messages" and options.one(flag) == -1):
            raise Refusal(f"--{flag} must not be negative")


def formatter(options: ParsedFlags) -> record_lines.Lines:
    path = options.one("formatter-config")
    properties = dict([*(properties_in(path) if path else ()), *options.all("formatter-property")])
    for flag in ("key-deserializer", "value-deserializer"):
        if flag in options:
            properties[flag.replace("-", ".")] = options.one(flag)
    name = options.one("formatter", "DefaultMessageFormatter").rpartition(".")[2]
    if name == "NoOpMessageFormatter":
        return record_lines.nothing
    if name != "DefaultMessageFormatter":
        raise Refusal(f"--formatter {name} is not supported (for JSON, use kafkalite consume -J)")
    return record_lines.default(properties, "skip-message-on-error" in options)


class ConsoleReader:
    """A consumer with a limit of records or of time."""

    def __init__(self, options: ParsedFlags) -> None:
        self.options = options
        self.cluster = brokers(options, options.all("command-property"))
        self.group = group_of(options, self.cluster)
        most = options.one("max-messages", -1)
        self.left = most if most >= 0 else sys.maxsize
        self.count = 0
        self.signals = SignalHandling()
        timeout_ms = options.one("timeout-ms")
        self.idle_timeout_s = float("inf") if timeout_ms is None else timeout_ms / 1000
        self.deadline_s = time.monotonic() + self.idle_timeout_s
        self.consumer = self.cluster.consumer(settings(options, self.cluster, self.group))
        self.positions = MemberPositions(self.consumer)
        self.cluster.metadata(self.consumer)

    def batches(self) -> Iterator[list[Message]]:
        """Yield records until the limit is reached or none arrives within the timeout."""
        if not self._begin():
            return
        while self.left and not self.signals.received:
            if (remaining_s := self.deadline_s - time.monotonic()) <= 0:
                return
            # Wait for one record, and add those that are queued already.
            batch = self.consumer.consume(1, min(POLL_S, remaining_s))
            if batch and self.left > 1:
                self.positions.advance(batch)
                batch += self.consumer.consume(min(BATCH_COUNT_MAX, self.left - 1), 0)
            if good := [message for message in batch if is_record(message)]:
                self.left -= len(good)
                yield good
                self.deadline_s = time.monotonic() + self.idle_timeout_s

    def done(self, batch: list[Message]) -> None:
        """Mark records as printed, so that their offsets are committed."""
        self.count += len(batch)
        if self.group is not None:
            self.positions.store(batch)

    def _begin(self) -> bool:
        """Subscribe or assign; return False if no topic exists within the timeout."""
        pattern = self.options.one("include")
        if self.group is not None:
            # librdkafka subscribes to a pattern if the name begins with ^.
            change = self._on_change
            self.consumer.subscribe(
                [self.options.one("topic") or f"^({pattern})$"],
                on_assign=change,
                on_revoke=change,
                on_lost=change,
            )
            return True
        warned = False
        while not (topic_partitions := self._start_positions()):
            if not warned:
                warned = True
                warn(f"topic {pattern or self.options.one('topic')} does not exist; waiting for it")
            if self.signals.received or time.monotonic() > self.deadline_s:
                return False
            self.consumer.poll(POLL_S)
        self.consumer.assign(topic_partitions)
        return True

    def _on_change(self, _: Consumer, topic_partitions: list[TopicPartition]) -> None:
        self.positions.change(topic_partitions)

    def _start_positions(self) -> list[TopicPartition]:
        """Return the partitions to read, with their start offsets."""
        options, name = self.options, self.options.one("topic")
        topics = self.cluster.metadata(self.consumer, name).topics
        matches = matcher(options.one("include", re.escape(name or "")))
        partition = options.one("partition")
        start = options.one("offset")
        if start is None:
            start = OFFSETS[reset(options, self.cluster)]
        topic_partitions = []
        for topic in topics.values():
            if topic.error is not None and topic.error.code() not in UNSEEN:
                raise KafkaException(topic.error)
            known = sorted(topic.partitions) if matches(str(topic.topic)) else []
            if known and partition is not None and partition not in known:
                raise Refusal(
                    f"topic {name} has no partition {partition}; it has {len(known)} partitions"
                )
            chosen = known if partition is None else known[partition : partition + 1]
            topic_partitions += [
                TopicPartition(str(topic.topic), number, start) for number in chosen
            ]
        return topic_partitions


def group_of(options: ParsedFlags, cluster: ToolCluster) -> str | None:
    """Return the group that a flag or a property names; raise Refusal if they differ."""
    named, configured = options.one("group"), cluster.properties.get("group.id")
    if named is not None and configured not in (None, named):
        raise Refusal(f"--group {named} contradicts the property group.id={configured}")
    group = named if named is not None else configured
    if group is not None and "partition" in options:
        raise Refusal("--partition cannot be used with a group, which assigns the partitions")
    return str(group) if group is not None else None


def reset(options: ParsedFlags, cluster: ToolCluster) -> str:
    """Return auto.offset.reset, from flags and properties."""
    configured = cluster.properties.get("auto.offset.reset")
    if configured not in (None, "earliest") and "from-beginning" in options:
        raise Refusal(f"--from-beginning contradicts auto.offset.reset={configured}")
    beginning = "from-beginning" in options or configured == "earliest"
    return "earliest" if beginning else "latest"


def settings(options: ParsedFlags, cluster: ToolCluster, group: str | None) -> dict[str, Any]:
    """Return defaults of the consumer's properties."""
    chosen: dict[str, Any] = {
        "allow.auto.create.topics": True,
        "auto.offset.reset": reset(options, cluster),
        "client.id": "console-consumer",
        "enable.partition.eof": False,
        "isolation.level": options.one("isolation-level", LEVELS[0]),
    }
    if group is not None:
        chosen |= {"group.id": group, "enable.auto.commit": True}
    return chosen


def is_record(message: Message) -> bool:
    """Return True for a record, False for an end or an unknown topic; raise other errors."""
    error = message.error()
    if error is None:
        return True
    if error.code() in (*UNSEEN, KafkaError._PARTITION_EOF):
        return False
    raise KafkaException(error)


TOOL = ShellTool(FLAGS, run)
