"""kafka-console-share-consumer.sh: print records as a member of a share group (KIP-932).

Records are acknowledged after they are printed.  Those that were received and not printed, because
of --max-messages or a signal, are released to the other members.

Left out: formatters other than DefaultMessageFormatter and NoOpMessageFormatter; topics that are
created after the start.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import AcknowledgeType, Message

from kafkalite.cli.command import print_stderr, warn, write_stdout
from kafkalite.cli.native_groups import check_group_type
from kafkalite.cli.share_member import ShareMember
from kafkalite.cli.shell_tools.cluster import CONNECTION, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.console_consumer import (
    OUTPUT,
    check_numbers,
    formatter,
    group_of,
)
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, whole
from kafkalite.cli.shell_tools.record_lines import Lines
from kafkalite.errors import Refusal

GROUP_DEFAULT = "share"

FLAGS = (
    *CONNECTION,
    Flag("topic", "NAME", "name of the topic"),
    Flag("group", "ID", f"join this share group (default {GROUP_DEFAULT})"),
    Flag("max-messages", "COUNT", "exit after this number of records", whole),
    Flag("timeout-ms", "MS", "exit if no record arrives for this time", whole),
    Flag("release", help="release the records after printing them: they are delivered again"),
    Flag("reject", help="reject the records after printing them: they are not delivered again"),
    Flag("reject-message-on-error", help="reject records that cannot be printed, and continue"),
    *OUTPUT,
    Flag("consumer-config", "FILE", instead="command-config"),
)


def run(options: ParsedFlags) -> int | None:
    """Print the records of a topic as a member of a share group, one value per line.

    Each record is delivered to one of the members, and again if that member releases it or is
    killed.  A new group begins where its configuration share.auto.offset.reset says.

    Examples:
      kafka-console-share-consumer.sh --bootstrap-server localhost:9092 --topic jobs --group workers
      kafka-console-share-consumer.sh --bootstrap-server localhost:9092 --topic jobs \\
          --formatter-property print.delivery=true --release --max-messages 5
    """
    options.requires("topic", "bootstrap-server")
    options.excludes("release", ["reject"])
    check_numbers(options)
    lines = formatter(options)
    cluster = brokers(options, options.all("command-property"))
    group = group_of(options, cluster) or GROUP_DEFAULT
    advice = "read it with kafka-console-consumer.sh"
    check_group_type(cluster, group, is_share=True, advice=advice)
    cluster.properties.setdefault("client.id", "console-share-consumer")
    # As in Kafka's tool, records are always acknowledged one by one.
    cluster.properties.pop("share.acknowledgement.mode", None)
    most, timeout_ms = options.one("max-messages", -1), options.one("timeout-ms")
    count = 0
    with errors_as_refusals():
        try:
            with ShareMember(cluster, group, [options.one("topic")], outcome_of(options)) as member:
                for batch in member.batches(
                    None if most < 0 else most,
                    float("inf") if timeout_ms is None else timeout_ms / 1000,
                ):
                    count += len(batch)
                    print_batch(member, batch, lines, "reject-message-on-error" in options)
        finally:
            print_stderr(f"Processed a total of {count} messages")
    return 0


def outcome_of(options: ParsedFlags) -> AcknowledgeType:
    """Return how printed records are acknowledged."""
    if "release" in options:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.REJECT if "reject" in options else AcknowledgeType.ACCEPT


def print_batch(
    member: ShareMember, batch: Sequence[Message], lines: Lines, is_rejecting: bool
) -> None:
    """Print records and acknowledge them; one that cannot be printed is rejected or an error."""
    printed: list[bytes] = []
    outcomes: list[AcknowledgeType] = []
    try:
        for message in batch:
            try:
                printed.append(lines([message]))
                outcomes.append(member.outcome)
            except Refusal as refusal:
                if not is_rejecting:
                    raise
                warn(f"record rejected: {refusal}")
                outcomes.append(AcknowledgeType.REJECT)
    finally:
        write_stdout(b"".join(printed))
        for outcome in outcomes:
            member.processed(1, outcome)


TOOL = ShellTool(FLAGS, run)
