"""kafka-transactions.sh: list and describe transactions, find hanging ones, end them.

Left out: TLS and SASL (cli/wire.py).  A topic or a partition that does not exist is an error at
once; Kafka's tool retries for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from kafkalite.cli.group_offsets import PartitionSelection
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.shell_tools.cluster import CONNECTION, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, ToolCommand, whole
from kafkalite.cli.transaction_admin import NONE, ActiveProducer, TransactionAdmin
from kafkalite.errors import Refusal

MAX_TIMEOUT_MINUTES = 15
MINUTE_MS = 60_000
UNSET = "None"
"""The cell of an id that is in no transaction."""

TOPIC = Flag("topic", "NAME", "name of the topic")
PARTITION = Flag("partition", "ID", "number of the partition", whole)
BROKER = Flag("broker-id", "ID", "the broker that responds, instead of the leader", whole)
COMMANDS = {
    "list": ToolCommand(
        "list transactional ids with their coordinators and states",
        (
            Flag("duration-filter", "MS", "only transactions that are open for longer", whole),
            Flag("transactional-id-pattern", "REGEX", "only ids that match this as a whole"),
        ),
    ),
    "describe": ToolCommand(
        "describe a transactional id", (Flag("transactional-id", "ID", "the transactional id"),)
    ),
    "describe-producers": ToolCommand(
        "describe the producers of a partition", (TOPIC, PARTITION, BROKER)
    ),
    "abort": ToolCommand(
        "abort the open transaction of a partition",
        (
            TOPIC,
            PARTITION,
            Flag("start-offset", "OFFSET", "where the transaction begins", whole),
            Flag("producer-id", "ID", "its producer, if --start-offset is not set", whole),
            Flag("producer-epoch", "EPOCH", "with --producer-id: its epoch", whole),
            Flag("coordinator-epoch", "EPOCH", "with --producer-id: its coordinator's", whole),
        ),
    ),
    "find-hanging": ToolCommand(
        "find open transactions that no coordinator knows",
        (
            BROKER,
            Flag("max-transaction-timeout", "MINUTES", "only older transactions (default: 15)",
                 whole),
            TOPIC,
            PARTITION,
        ),
    ),
    "forceTerminateTransaction": ToolCommand(
        "fence the producers of a transactional id and abort its transaction",
        (Flag("transactionalId", "ID", "the transactional id"),),
    ),
}  # fmt: skip

LISTED = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
DESCRIBED = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)
PRODUCERS = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
HANGING = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


def run(options: ParsedFlags) -> int | None:
    """List and describe transactions, find hanging ones, end them.

    Examples:
      kafka-transactions.sh --bootstrap-server localhost:9092 list
      kafka-transactions.sh --bootstrap-server localhost:9092 find-hanging --topic flights
      kafka-transactions.sh --bootstrap-server localhost:9092 abort --topic flights \\
          --partition 3 --start-offset 1042
    """
    with errors_as_refusals():
        return VERBS[options.command](TransactionAdmin(brokers(options)), options)


def list_transactions(admin: TransactionAdmin, options: ParsedFlags) -> None:
    found = admin.listed(
        min_duration_ms=max(options.one("duration-filter", NONE), NONE),
        pattern=options.one("transactional-id-pattern"),
    )
    rows = [
        (each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found
    ]
    print(table(LISTED, rows))


def describe(admin: TransactionAdmin, options: ParsedFlags) -> None:
    options.requires("transactional-id")
    transactional_id = options.one("transactional-id")
    for each in admin.described([transactional_id]):
        is_open = each.start_ms >= 0
        row = (
            each.coordinator,
            each.transactional_id,
            each.producer_id,
            each.producer_epoch,
            each.state,
            each.timeout_ms,
            each.start_ms if is_open else UNSET,
            now_ms() - each.start_ms if is_open else UNSET,
            ",".join(f"{topic}-{index}" for topic, index in sorted(each.partitions)),
        )
        print(table(DESCRIBED, [row]))
        return
    raise Refusal(f"transactional id {transactional_id} does not exist")


def describe_producers(admin: TransactionAdmin, options: ParsedFlags) -> None:
    topic, index = partition_of(options)
    partitions = admin.selected([PartitionSelection(topic, (index,))])
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp_ms,
            each.start_offset if each.start_offset >= 0 else UNSET,
        )
        for each in admin.producers(partitions, options.one("broker-id"))
    ]
    print(table(PRODUCERS, rows))


def abort(admin: TransactionAdmin, options: ParsedFlags) -> None:
    topic, index = partition_of(options)
    if "start-offset" in options:
        start_offset = options.one("start-offset")
        found = admin.transaction_at((topic, index), start_offset)
        if found is None:
            raise Refusal(f"no open transaction of {topic}-{index} begins at offset {start_offset}")
        producer = found
    else:
        why = ", or --start-offset"
        options.requires("producer-id", "producer-epoch", "coordinator-epoch", why=why)
        admin.selected([PartitionSelection(topic, (index,))])
        producer = ActiveProducer(
            topic,
            index,
            producer_id=options.one("producer-id"),
            producer_epoch=options.one("producer-epoch"),
            coordinator_epoch=options.one("coordinator-epoch"),
            last_sequence=NONE,
            last_timestamp_ms=NONE,
            start_offset=NONE,
        )
    admin.abort(producer)


def find_hanging(admin: TransactionAdmin, options: ParsedFlags) -> None:
    if "topic" not in options and "broker-id" not in options:
        raise Refusal("specify --topic or --broker-id, which limit the search")
    options.only_with("partition", "topic")
    minutes = options.one("max-transaction-timeout", MAX_TIMEOUT_MINUTES)
    index = options.one("partition")
    spans = [
        PartitionSelection(topic, None if index is None else (index,))
        for topic in options.all("topic")
    ]
    broker = options.one("broker-id")
    producers = admin.producers(admin.selected(spans, broker), broker)
    rows = [
        (
            each.topic,
            each.partition,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.start_offset,
            each.last_timestamp_ms,
            (now_ms() - each.last_timestamp_ms) // MINUTE_MS,
        )
        for each in admin.hanging(producers, minutes * MINUTE_MS)
    ]
    print(table(HANGING, rows))


def force_terminate(admin: TransactionAdmin, options: ParsedFlags) -> None:
    options.requires("transactionalId")
    admin.fence(options.one("transactionalId"))


def partition_of(options: ParsedFlags) -> PartitionKey:
    """Return the partition that --topic and --partition name, which are required."""
    options.requires("topic", "partition")
    return options.one("topic"), options.one("partition")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return columns of equal width, each with a tab after it, as Kafka prints them."""
    lines = [titles, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "".join(f"{cell:<{width}}\t" for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


VERBS = {
    "list": list_transactions,
    "describe": describe,
    "describe-producers": describe_producers,
    "abort": abort,
    "find-hanging": find_hanging,
    "forceTerminateTransaction": force_terminate,
}
TOOL = ShellTool((*CONNECTION,), run, COMMANDS)
