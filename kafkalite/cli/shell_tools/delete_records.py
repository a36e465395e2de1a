"""kafka-delete-records.sh: advance log start offsets to those in a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from kafkalite.cli.clients import clean_error, settled
from kafkalite.cli.shell_tools.cluster import CONNECTION, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool
from kafkalite.errors import Refusal

VERSION = 1
SHAPE = '{"partitions": [{"topic": "flights", "partition": 0, "offset": 42}], "version": 1}'
FIELDS = {"topic": str, "partition": int, "offset": int}
OFFSET_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1
FILE_SIZE_MAX = 64 << 20

FLAGS = (
    *CONNECTION,
    Flag(
        "offset-json-file",
        "FILE",
        "JSON file with the new start offset of each partition; -1 is its end",
    ),
)


def run(options: ParsedFlags) -> int | None:
    """Delete the records below an offset, partition by partition.

    The file has the form {"partitions": [{"topic": …, "partition": …, "offset": …}], "version": 1}

    Examples:
      kafka-delete-records.sh --bootstrap-server localhost:9092 --offset-json-file flights.json
    """
    options.requires("bootstrap-server", "offset-json-file")
    topic_partitions = offsets_in(options.one("offset-json-file"))
    with errors_as_refusals():
        admin = brokers(options).connected_admin()
        print("Executing records delete operation", flush=True)
        deleted, errors = (
            settled(admin.delete_records(topic_partitions)) if topic_partitions else ({}, {})
        )
    print("Records delete operation completed:")
    for topic_partition in topic_partitions:
        named = f"partition: {topic_partition.topic}-{topic_partition.partition}"
        if topic_partition in errors:
            print(f"{named}\terror: {clean_error(errors[topic_partition].str())}")
        else:
            print(f"{named}\tlow_watermark: {deleted[topic_partition].low_watermark}")
    return 1 if errors else 0


def offsets_in(name: str) -> list[TopicPartition]:
    """Return the offsets in a file; raise Refusal if it is invalid."""
    path = Path(name)
    if path.stat().st_size > FILE_SIZE_MAX:
        raise Refusal(f"{name} is larger than {FILE_SIZE_MAX >> 20} MiB; split it")
    try:
        read = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{name} is not valid JSON: {error}") from None
    if not isinstance(read, dict) or not isinstance(read.get("partitions"), list):
        raise Refusal(f"{name} has no list of partitions; the format is {SHAPE}")
    if read.get("version", VERSION) != VERSION:
        raise Refusal(f"{name}: version must be {VERSION}, not {read['version']!r}")
    topic_partitions = [partition_of(entry, name) for entry in read["partitions"]]
    if len(set(topic_partitions)) < len(topic_partitions):
        twice = next(
            topic_partition
            for topic_partition in topic_partitions
            if topic_partitions.count(topic_partition) > 1
        )
        raise Refusal(f"{name} contains {twice.topic}-{twice.partition} more than once")
    return topic_partitions


def partition_of(entry: Any, name: str) -> TopicPartition:
    def is_valid(field: str, kind: type) -> bool:
        return isinstance(entry.get(field), kind) and not isinstance(entry[field], bool)

    if not isinstance(entry, dict) or not all(is_valid(*field) for field in FIELDS.items()):
        raise Refusal(f"{name}: {json.dumps(entry)} is not a partition; the format is {SHAPE}")
    partition, offset = entry["partition"], entry["offset"]
    if not 0 <= partition <= PARTITION_MAX or not -1 <= offset <= OFFSET_MAX or not entry["topic"]:
        raise Refusal(
            f"{name}: {json.dumps(entry)} has an empty topic, or a partition or offset out of range"
        )
    return TopicPartition(entry["topic"], partition, offset)


TOOL = ShellTool(FLAGS, run)
