"""kafka-groups.sh: list the groups of all types.

Left out: connections with TLS or SASL, which the native client does not support; librdkafka lists
consumer groups only.
"""

from __future__ import annotations

from kafkalite.cli.command import warn
from kafkalite.cli.native_groups import NativeGroups
from kafkalite.cli.shell_tools.cluster import CONNECTION, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool
from kafkalite.client.admin.group_requests import CONSUMER, SHARE, GroupListing
from kafkalite.errors import Refusal

WIDTH = 20
STREAMS = "streams"
TYPES = ("classic", CONSUMER, SHARE, STREAMS)
FILTERS = (CONSUMER, SHARE, STREAMS)


def group_type(text: str) -> str:
    """Parse the argument of --group-type."""
    if text.lower() not in TYPES:
        raise ValueError(f"one of {', '.join(TYPES)}")
    return text.lower()


FLAGS = (
    *CONNECTION,
    Flag("list", help="list the groups"),
    Flag("group-type", "TYPE", f"only groups of this type: {', '.join(TYPES)}", group_type),
    Flag("protocol", "NAME", "only groups of this protocol type"),
    Flag("consumer", help="only consumer groups: classic, simple and of the consumer protocol"),
    Flag("share", help="only share groups"),
    Flag("streams", help="only streams groups"),
)


def run(options: ParsedFlags) -> int | None:
    """List the groups of all types.

    Examples:
      kafka-groups.sh --bootstrap-server localhost:9092 --list
      kafka-groups.sh --bootstrap-server localhost:9092 --list --share
    """
    options.requires("bootstrap-server")
    options.action("list")
    for name in FILTERS:
        others = {"group-type", "protocol", *FILTERS} - {name}
        options.excludes(name, sorted(others))
    try:
        with errors_as_refusals():
            cluster = brokers(options)
            cluster.connected_admin()
            with NativeGroups(cluster).admin() as admin:
                found = admin.list_groups()
    except Refusal as refusal:
        # Kafka writes errors to stdout, where scripts read them; users expect them on stderr.
        print(f"Error while executing groups command : {refusal}")
        warn(str(refusal))
        return refusal.exit_code
    print(table([group for group in found if is_chosen(group, options)]))
    return 0


def is_chosen(group: GroupListing, options: ParsedFlags) -> bool:
    """Return whether the flags select a group."""
    if "consumer" in options:
        return group.type == CONSUMER or group.protocol_type in (CONSUMER, "")
    if "share" in options or "streams" in options:
        return group.type == (SHARE if "share" in options else STREAMS)
    wanted = options.one("group-type", group.type), options.one("protocol", group.protocol_type)
    return (group.type, group.protocol_type) == wanted


def table(groups: list[GroupListing]) -> str:
    """Return the groups in columns of one width, each row with a space at its end, as in Kafka."""
    rows = [[each.group_id, each.type.capitalize(), each.protocol_type] for each in groups]
    width = max([WIDTH, *(len(cell) for row in rows for cell in row)])
    header = " ".join(title.ljust(width) for title in ("GROUP", "TYPE", "PROTOCOL"))
    return "\n".join([header, *("".join(f"{cell:<{width}} " for cell in row) for row in rows)])


TOOL = ShellTool(FLAGS, run)
