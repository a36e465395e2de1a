"""kafka-get-offsets.sh: the offsets of partitions, one `topic:partition:offset` a line.

Left out: --time for tiered storage (-4, -5, -6), which librdkafka does not support.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_INVALID, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafkalite.cli.clients import settled
from kafkalite.cli.command import print_stderr
from kafkalite.cli.shell_tools.cluster import (
    CONNECTION,
    brokers,
    errors_as_refusals,
    internal_topics,
)
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, whole
from kafkalite.cli.shell_tools.topic_names import matcher
from kafkalite.errors import Refusal

LATEST = "latest"
SPECS: dict[str, Callable[[], Any]] = {
    LATEST: OffsetSpec.latest,
    "-1": OffsetSpec.latest,
    "earliest": OffsetSpec.earliest,
    "-2": OffsetSpec.earliest,
    "max-timestamp": OffsetSpec.max_timestamp,
    "-3": OffsetSpec.max_timestamp,
}
OF_TIERS = ("-4", "earliest-local", "-5", "latest-tiered", "-6", "earliest-pending-upload")
UNKNOWN = -1

Filter = Callable[[str, int], bool]


def moment(text: str) -> Any:
    """Parse the argument of --time."""
    if text in SPECS:
        return SPECS[text]()
    if text in OF_TIERS:
        raise Refusal(f"--time {text} is not supported: there is no tiered storage")
    try:
        return OffsetSpec.for_timestamp(max(0, whole(text)))
    except ValueError:
        raise ValueError("latest, earliest, max-timestamp or a timestamp in milliseconds") from None


FLAGS = (
    *CONNECTION,
    Flag("topic", "NAME", "regular expression of topic names (default: all)"),
    Flag("partitions", "ID,ID,…", "only these partitions"),
    Flag("topic-partitions", "RULE,RULE,…", "NAME, NAME:ID, NAME:FROM-TO, NAME:FROM- or NAME:-TO"),
    Flag("time", "WHEN", "latest (default), earliest, max-timestamp or milliseconds", moment),
    Flag("exclude-internal-topics", help="exclude internal topics"),
)


def run(options: ParsedFlags) -> int | None:
    """Print the offsets of partitions: their ends, or those at --time.

    Examples:
      kafka-get-offsets.sh --bootstrap-server localhost:9092 --topic flights
      kafka-get-offsets.sh --bootstrap-server localhost:9092 --topic-partitions 'fl.*:0-3'
      kafka-get-offsets.sh --bootstrap-server localhost:9092 --topic flights --time earliest
    """
    options.requires("bootstrap-server")
    options.excludes("topic-partitions", ["topic", "partitions"])
    is_selected = partition_filter(options)
    spec = options.one("time", SPECS[LATEST]())
    with errors_as_refusals():
        admin = brokers(options).connected_admin()
        topic_partitions = partitions(admin, is_selected, "exclude-internal-topics" in options)
        if not topic_partitions:
            raise Refusal("no partition matches the flags")
        found, errors = settled(admin.list_offsets(dict.fromkeys(topic_partitions, spec)))
    has_all = True
    for each in topic_partitions:
        reason = errors[each].str() if each in errors else None
        if reason is None and found[each].offset == OFFSET_INVALID:
            reason = "its leader did not respond"
        if reason is not None:
            has_all = False
            print_stderr(f"kafkalite: {each.topic}-{each.partition} skipped: {reason}")
        elif found[each].offset != UNKNOWN:
            print(f"{each.topic}:{each.partition}:{found[each].offset}")
    return 0 if has_all else 1


def partition_filter(options: ParsedFlags) -> Filter:
    """Return a function that is true for the partitions that the flags select."""
    if rules := options.one("topic-partitions"):
        filters = [rule(text.strip()) for text in rules.split(",")]
        return lambda topic, partition: any(one(topic, partition) for one in filters)
    named = matcher(options.one("topic", ".*"))
    ids = options.one("partitions")
    try:
        chosen = {whole(part.strip()) for part in ids.split(",")} if ids else None
    except ValueError:
        raise Refusal(f"--partitions must be partition ids (0,1,2), not {ids!r}") from None
    return lambda topic, id: bool(named(topic)) and (chosen is None or id in chosen)


def rule(text: str) -> Filter:
    """Parse one rule of --topic-partitions; the upper bound of a range is exclusive."""
    parts = re.fullmatch(r"([^:]*)(?::(?:([0-9]+)|([0-9]*)-([0-9]*))?)?", text)
    if parts is None:
        raise Refusal(f"--topic-partitions: {text!r} is not a valid rule (example: NAME:0-3)")
    name, one, first, end = parts.groups()
    named = matcher(name or ".*")
    low = int(one or first or 0)
    high = int(one) + 1 if one else int(end) if end else None
    return lambda topic, id: bool(named(topic)) and low <= id and (high is None or id < high)


def partitions(admin: AdminClient, is_selected: Filter, no_internal: bool) -> list[TopicPartition]:
    found = admin.list_topics().topics
    names = sorted(found.keys() - (internal_topics(admin, found) if no_internal else set()))
    return [
        TopicPartition(name, id)
        for name in names
        for id in sorted(found[name].partitions)
        if is_selected(name, id)
    ]


TOOL = ShellTool(FLAGS, run)
