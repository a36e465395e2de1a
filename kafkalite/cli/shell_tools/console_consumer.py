"""kafka-console-consumer.sh: print records as they arrive.

With a group it joins and commits what was printed.  Without one it reads the partitions there are
at the start and leaves no trace, where Kafka's joins a group of a name of its own making.

Left out: formatters other than the default one and none; topics and partitions made after the
start, where no group is given.
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
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from kafkalite.cli.command import put, say, warn
from kafkalite.cli.ending import SignalHandling
from kafkalite.cli.reading import let_commit
from kafkalite.cli.shell_tools import record_lines
from kafkalite.cli.shell_tools.cluster import CONNECTION, ToolCluster, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, property_value, whole
from kafkalite.cli.shell_tools.java_properties import properties_in
from kafkalite.cli.shell_tools.topic_names import matcher
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


FLAGS = (
    *CONNECTION,
    Flag("topic", "NAME", "the topic"),
    Flag("include", "REGEX", "all topics whose name matches this"),
    Flag("group", "ID", "read as a member of this group"),
    Flag("from-beginning", words="begin with the oldest record where nothing else is known"),
    Flag("partition", "ID", "only this partition", whole),
    Flag("offset", "WHERE", "of the partition: earliest, latest (default) or an offset", offset),
    Flag("max-messages", "COUNT", "end after so many records", whole),
    Flag("timeout-ms", "MS", "end when no record came for so long", whole),
    Flag("isolation-level", "LEVEL", f"{' or '.join(LEVELS)} ({LEVELS[0]})", level),
    Flag(
        "formatter-property",
        "KEY=VALUE",
        f"{', '.join(record_lines.DEFAULTS)}; may be repeated",
        property_value,
        repeated=True,
    ),
    Flag("formatter-config", "FILE", "a file with formatter properties"),
    Flag("formatter", "CLASS", "DefaultMessageFormatter or NoOpMessageFormatter"),
    Flag("key-deserializer", "CLASS", "what makes text of keys"),
    Flag("value-deserializer", "CLASS", "what makes text of values"),
    Flag("skip-message-on-error", words="pass over records that cannot be printed"),
    Flag(
        "command-property",
        "KEY=VALUE",
        "a property of the consumer; may be repeated",
        property_value,
        repeated=True,
    ),
    Flag("property", "KEY=VALUE", instead="formatter-property"),
    Flag("consumer-property", "KEY=VALUE", instead="command-property"),
    Flag("consumer.config", "FILE", instead="command-config"),
    Flag("enable-systest-events", refused="is left out: it is for Kafka's own system tests"),
)


def run(asked: ParsedFlags) -> int | None:
    """Print the records of topics, each value on its line.

    Examples:
      kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic flights --from-beginning
      kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic people --group readers \\
          --formatter-property print.key=true --timeout-ms 5000
    """
    check(asked)
    lines = formatter(asked)
    gc.disable()  # no cycles are made here, and it would walk every batch again and again
    with errors_as_refusals():
        reading = ConsoleReader(asked)
        try:
            with reading.ending.at_a_look():
                for batch in reading.batches():
                    put(lines(batch))
                    reading.done(batch)
        except SystemError:
            # A signal that arrives in the middle of a callback is swallowed by confluent-kafka.
            raise KeyboardInterrupt from None
        finally:
            reading.consumer.close()
            say(f"Processed a total of {reading.count} messages")
    return 128 + reading.ending.asked if reading.ending.asked else 0


def check(asked: ParsedFlags) -> None:
    asked.wants("bootstrap-server")
    asked.action("topic", "include")
    asked.only_with("offset", "partition")
    asked.only_with("partition", "topic")
    asked.excludes("partition", ["group"])
    asked.excludes("offset", ["from-beginning"])
    for flag in ("max-messages", "timeout-ms", "partition"):
        if asked.one(flag, 0) < 0 and not (flag == "max-messages" and asked.one(flag) == -1):
            raise Refusal(f"--{flag} wants a number that is not negative")


def formatter(asked: ParsedFlags) -> record_lines.Lines:
    path = asked.one("formatter-config")
    properties = dict([*(properties_in(path) if path else ()), *asked.all("formatter-property")])
    for flag in ("key-deserializer", "value-deserializer"):
        if flag in asked:
            properties[flag.replace("-", ".")] = asked.one(flag)
    name = asked.one("formatter", "DefaultMessageFormatter").rpartition(".")[2]
    if name == "NoOpMessageFormatter":
        return record_lines.nothing
    if name != "DefaultMessageFormatter":
        raise Refusal(f"--formatter {name} is left out (try kafkalite consume -J)")
    return record_lines.default(properties, "skip-message-on-error" in asked)


class ConsoleReader:
    """A consumer with a limit of records or of time."""

    def __init__(self, asked: ParsedFlags) -> None:
        self.asked = asked
        self.cluster = brokers(asked, asked.all("command-property"))
        self.group = group_of(asked, self.cluster)
        most = asked.one("max-messages", -1)
        self.left = most if most >= 0 else sys.maxsize
        self.count = 0
        self.ending = SignalHandling()
        timeout_ms = asked.one("timeout-ms")
        self.idle_timeout_s = float("inf") if timeout_ms is None else timeout_ms / 1000
        self.deadline_s = time.monotonic() + self.idle_timeout_s
        self.consumer = self.cluster.consumer(settings(asked, self.cluster, self.group))
        self.cluster.metadata(self.consumer)

    def batches(self) -> Iterator[list[Message]]:
        """Yield records until the limit is reached or none arrives within the timeout."""
        if not self._begin():
            return
        while self.left and not self.ending.asked:
            if (rest_s := self.deadline_s - time.monotonic()) <= 0:
                return
            # The first record is waited for, and only what is there already goes along with it.
            batch = self.consumer.consume(1, min(POLL_S, rest_s))
            if batch and self.left > 1:
                batch += self.consumer.consume(min(BATCH_COUNT_MAX, self.left - 1), 0)
            if good := [message for message in batch if sound(message)]:
                self.left -= len(good)
                yield good
                self.deadline_s = time.monotonic() + self.idle_timeout_s

    def done(self, batch: list[Message]) -> None:
        """Mark records as printed, so that their offsets are committed."""
        self.count += len(batch)
        if self.group is not None:
            let_commit(self.consumer, batch)

    def _begin(self) -> bool:
        """Subscribe or assign; return False if no topic exists within the timeout."""
        pattern = self.asked.one("include")
        if self.group is not None:
            # To librdkafka a name that begins with ^ is a pattern.
            self.consumer.subscribe([self.asked.one("topic") or f"^({pattern})$"])
            return True
        warned = False
        while not (places := self._places()):
            if not warned:
                warned = True
                warn(f"there is no topic {pattern or self.asked.one('topic')} yet; waiting for it")
            if self.ending.asked or time.monotonic() > self.deadline_s:
                return False
            self.consumer.poll(POLL_S)
        self.consumer.assign(places)
        return True

    def _places(self) -> list[TopicPartition]:
        """Return the partitions to read, with their start offsets."""
        asked, name = self.asked, self.asked.one("topic")
        topics = self.cluster.metadata(self.consumer, name).topics
        meant = matcher(asked.one("include", re.escape(name or "")))
        partition = asked.one("partition")
        start = asked.one("offset")
        if start is None:
            start = OFFSETS[reset(asked, self.cluster)]
        places = []
        for topic in topics.values():
            if topic.error is not None and topic.error.code() not in UNSEEN:
                raise KafkaException(topic.error)
            known = sorted(topic.partitions) if meant(str(topic.topic)) else []
            if known and partition is not None and partition not in known:
                raise Refusal(f"topic {name} has no partition {partition}: it has {len(known)}")
            chosen = known if partition is None else known[partition : partition + 1]
            places += [TopicPartition(str(topic.topic), number, start) for number in chosen]
        return places


def group_of(asked: ParsedFlags, cluster: ToolCluster) -> str | None:
    """Return the group that a flag or a property names; raise Refusal if they differ."""
    named, held = asked.one("group"), cluster.properties.get("group.id")
    if named is not None and held not in (None, named):
        raise Refusal(f"--group is {named}, and the property group.id is {held}")
    group = named if named is not None else held
    if group is not None and "partition" in asked:
        raise Refusal("--partition cannot be used with a group, which hands out partitions")
    return str(group) if group is not None else None


def reset(asked: ParsedFlags, cluster: ToolCluster) -> str:
    """Return auto.offset.reset, as flags and properties give it."""
    held = cluster.properties.get("auto.offset.reset")
    if held not in (None, "earliest") and "from-beginning" in asked:
        raise Refusal(f"--from-beginning contradicts auto.offset.reset={held}")
    beginning = "from-beginning" in asked or held == "earliest"
    return "earliest" if beginning else "latest"


def settings(asked: ParsedFlags, cluster: ToolCluster, group: str | None) -> dict[str, Any]:
    """Return defaults of the consumer's properties."""
    chosen: dict[str, Any] = {
        "allow.auto.create.topics": True,
        "auto.offset.reset": reset(asked, cluster),
        "client.id": "console-consumer",
        "enable.partition.eof": False,
        "isolation.level": asked.one("isolation-level", LEVELS[0]),
    }
    if group is not None:
        chosen |= {"group.id": group, "enable.auto.commit": True}
    return chosen


def sound(message: Message) -> bool:
    """Return True for a record, False for an end or an unknown topic; raise other errors."""
    error = message.error()
    if error is None:
        return True
    if error.code() in (*UNSEEN, KafkaError._PARTITION_EOF):
        return False
    raise KafkaException(error)


TOOL = ShellTool(FLAGS, run)
