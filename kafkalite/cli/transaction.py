"""kafkalite transaction: list and describe transactions, find hanging ones and abort them.

Works with any Kafka broker from 3.0 on, without TLS and logins.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any, Unpack

from kafkalite.cli.clients import CONNECTION, ClusterClients, ConnectionArguments
from kafkalite.cli.command import argument, columns, command, print_stderr, printable
from kafkalite.cli.group_offsets import PartitionSelection, span
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.start_position import UNIT_MS
from kafkalite.cli.transaction_admin import ActiveProducer, DescribedTransaction, TransactionAdmin
from kafkalite.config.broker import TRANSACTION_MAX_TIMEOUT_MS
from kafkalite.errors import Refusal
from kafkalite.protocol.schemas.transaction_records import NO_TIMEOUT_MS, TransactionState

STATES = tuple(state.title for state in TransactionState)
UNFINISHED = tuple(
    state.title
    for state in (
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
    )
)
ANY_AGE_MS = -1 << 62
"""Longest timeout of a transaction for which none is too young to be looked at."""

JSON = argument("--json", action="store_true", dest="as_json", help="print JSON")
PRODUCER_TITLES = ("TOPIC", "PARTITION", "PRODUCER-ID", "EPOCH", "START-OFFSET", "LAST-WRITE")


def duration_ms(text: str) -> int:
    """Parse a number of seconds, minutes, hours, days or weeks; an argument type."""
    digits = text.rstrip("".join(UNIT_MS))
    unit = text[len(digits) :]
    if not digits.isascii() or not digits.isdigit() or unit not in UNIT_MS:
        raise ArgumentTypeError(f"{text!r} is not a duration such as 30s, 15m, 2h or 1d")
    return int(digits) * UNIT_MS[unit]


def one_partition(text: str) -> PartitionKey:
    """Parse TOPIC:PARTITION; an argument type."""
    selection = span(text)
    if selection.partitions is None or len(selection.partitions) != 1:
        raise ArgumentTypeError(f"{text!r} is not of the form TOPIC:PARTITION (flights:3)")
    return selection.topic, selection.partitions[0]


@command(
    argument("pattern", nargs="?", default="", help="only ids that contain this"),
    argument(
        "--state",
        dest="states",
        action="append",
        default=[],
        choices=STATES,
        metavar="STATE",
        help=f"only ids in this state; may be repeated ({', '.join(STATES)})",
    ),
    argument(
        "--longer-than",
        type=duration_ms,
        dest="min_duration_ms",
        default=-1,
        metavar="DURATION",
        help="only transactions that are not completed and began this long ago (30s, 15m, 2h)",
    ),
    argument(
        "--names", action="store_true", dest="only_names", help="print only the ids, one per line"
    ),
    JSON,
    *CONNECTION,
    name="list",
)
def list_transactions(
    pattern: str,
    states: Sequence[str],
    min_duration_ms: int,
    only_names: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """List the transactional ids with their states and producers.

    Examples:
      kafkalite transaction list
      kafkalite transaction list --state Ongoing --longer-than 1m
    """
    admin = TransactionAdmin(ClusterClients(**connection))
    if min_duration_ms >= 0 and not states:
        states = UNFINISHED  # an id in another state has the start of its last transaction, or none
    found = [
        each
        for each in admin.listed(states=states, min_duration_ms=min_duration_ms)
        if pattern in each.transactional_id
    ]
    if as_json:
        print(json.dumps([each._asdict() for each in found]))
    elif only_names:
        print("".join(f"{each.transactional_id}\n" for each in found), end="")
    else:
        rows = [
            [each.transactional_id, each.state, each.producer_id, each.coordinator]
            for each in found
        ]
        print(columns(["TRANSACTIONAL-ID", "STATE", "PRODUCER-ID", "COORDINATOR"], rows))


@command(
    argument("ids", nargs="+", metavar="ID", type=printable, help="a transactional id"),
    JSON,
    *CONNECTION,
)
def describe(ids: Sequence[str], as_json: bool, **connection: Unpack[ConnectionArguments]) -> None:
    """Describe transactional ids: producer, state, timeout and partitions.

    Examples:
      kafkalite transaction describe billing
      kafkalite transaction describe billing --json | jq '.[0].partitions'
    """
    found = TransactionAdmin(ClusterClients(**connection)).described(ids)
    if as_json:
        print(json.dumps([fields(each) for each in found]))
    elif found:
        print("\n\n".join(map(page, found)))
    missing = set(ids) - {each.transactional_id for each in found}
    if missing:
        raise Refusal(
            f"transactional id {', '.join(sorted(missing))} does not exist"
            " (see: kafkalite transaction list)"
        )


@command(
    argument(
        "-t",
        "--topic",
        dest="spans",
        type=span,
        action="append",
        default=[],
        metavar="TOPIC[:PARTITIONS]",
        help="only this topic, or these partitions of it (flights:0,2-5); may be repeated",
    ),
    argument(
        "--max-timeout",
        type=duration_ms,
        dest="max_timeout_ms",
        default=TRANSACTION_MAX_TIMEOUT_MS.default,
        metavar="DURATION",
        help="longest timeout of a transaction; a transaction that wrote later is not"
        " looked at (default: 15m, as transaction.max.timeout.ms)",
    ),
    JSON,
    *CONNECTION,
    name="find-hanging",
)
def find_hanging(
    spans: Sequence[PartitionSelection],
    max_timeout_ms: int,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> int:
    """Find open transactions that no coordinator knows; the exit code is 1 if there are any.

    They block consumers with isolation.level=read_committed until they are aborted.

    Examples:
      kafkalite transaction find-hanging
      kafkalite transaction find-hanging -t flights --max-timeout 1m
    """
    admin = TransactionAdmin(ClusterClients(**connection))
    found = admin.hanging(admin.producers(admin.selected(spans)), max_timeout_ms)
    if as_json:
        print(json.dumps([each._asdict() for each in found]))
    elif found:
        print(columns(PRODUCER_TITLES, map(row, found)))
        print_stderr("abort one with: kafkalite transaction abort TOPIC:PARTITION START-OFFSET")
    else:
        print_stderr("no transaction is hanging")
    return 1 if found else 0


@command(
    argument(
        "partition", metavar="TOPIC:PARTITION", type=one_partition, help="a partition (flights:3)"
    ),
    argument("start_offset", metavar="START-OFFSET", type=int, help="where the transaction begins"),
    argument(
        "--force",
        action="store_true",
        help="also if its coordinator knows the transaction, whose other partitions may then be"
        " committed",
    ),
    JSON,
    *CONNECTION,
)
def abort(
    partition: PartitionKey,
    start_offset: int,
    force: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Abort a hanging transaction of one partition.

    Examples:
      kafkalite transaction abort flights:3 1042
    """
    admin = TransactionAdmin(ClusterClients(**connection))
    name = f"{partition[0]}-{partition[1]}"
    producer = admin.transaction_at(partition, start_offset)
    if producer is None:
        raise Refusal(
            f"no transaction of {name} begins at offset {start_offset}"
            " (see: kafkalite transaction find-hanging)"
        )
    if not force and not admin.hanging([producer], ANY_AGE_MS):
        raise Refusal(
            f"the transaction of producer {producer.producer_id} is not hanging: its coordinator"
            " ends it (--force aborts it in this partition alone)"
        )
    admin.abort(producer)
    if as_json:
        print(json.dumps({**producer._asdict(), "aborted": True}))
    else:
        print(f"transaction of producer {producer.producer_id} in {name} aborted")


def fields(transaction: DescribedTransaction) -> dict[str, Any]:
    """Return a transactional id's JSON."""
    partitions = [
        {"topic": topic, "partition": index} for topic, index in sorted(transaction.partitions)
    ]
    return {**transaction._asdict(), "partitions": partitions}


def page(transaction: DescribedTransaction) -> str:
    """Return a transactional id's description."""
    partitions = ", ".join(f"{topic}-{index}" for topic, index in sorted(transaction.partitions))
    lines = [
        ("transactional id", transaction.transactional_id),
        ("state", transaction.state),
        ("producer", f"{transaction.producer_id}, epoch {transaction.producer_epoch}"),
        ("coordinator", f"node {transaction.coordinator}"),
        ("timeout", timeout(transaction.timeout_ms)),
    ]
    if transaction.start_ms >= 0:
        age_s = max(0.0, time.time() - transaction.start_ms / 1000)
        lines.append(("begun", f"{clock_time(transaction.start_ms)} ({age_s:.0f} s ago)"))
    lines.append(("partitions", partitions or "none"))
    return "\n".join(f"{title:<16}  {value}" for title, value in lines)


def row(producer: ActiveProducer) -> Sequence[object]:
    return [
        producer.topic,
        producer.partition,
        producer.producer_id,
        producer.producer_epoch,
        producer.start_offset,
        clock_time(producer.last_timestamp_ms),
    ]


def timeout(timeout_ms: int) -> str:
    """Return a transaction timeout; with two-phase commit there is none."""
    return "none" if timeout_ms == NO_TIMEOUT_MS else f"{timeout_ms / 1000:g} s"


def clock_time(at_ms: int) -> str:
    """Return a time in the local zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
