"""kafka-consumer-groups.sh: list, describe, reset and delete consumer groups.

A failure exits with code 1, also where Kafka's tool prints it and exits with 0.

Left out: --validate-regex, which requires RE2.  If a partition has no record since --to-datetime or
--by-duration, its offset is set to the end, without a message on stdout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import ConsumerGroupDescription, OffsetSpec

from kafkalite.cli import start_position
from kafkalite.cli.clients import REQUEST_TIMEOUT_S, clean_error, node_error, settled
from kafkalite.cli.command import print_stderr, warn
from kafkalite.cli.group_offsets import (
    STATE_NAMES,
    STATES,
    CurrentPosition,
    Destination,
    GroupOffsets,
    ListedOffsets,
    ShiftedPosition,
    read_offsets,
)
from kafkalite.cli.native_groups import NativeGroups, state_of
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.shell_tools import group_tables
from kafkalite.cli.shell_tools.cluster import CONNECTION, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, whole
from kafkalite.cli.wire import WireClient
from kafkalite.errors import BY_CODE, Refusal
from kafkalite.protocol.schemas.groups import OFFSET_DELETE

ACTIONS = ("list", "describe", "reset-offsets", "delete", "delete-offsets")
VIEWS = ("offsets", "members", "state")
TYPES = {"classic": "Classic", "consumer": "Consumer"}
REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
MILLISECOND = timedelta(milliseconds=1)


def states(text: str) -> list[str]:
    """Parse the argument of --state: names of states, in any case."""
    known = {state.lower(): state for state in STATE_NAMES}
    names = [part.strip().lower() for part in text.split(",")]
    if not set(names) <= known.keys():
        raise ValueError(f"a list of {', '.join(known.values())}")
    return [known[name] for name in names]


def types(text: str) -> list[str]:
    """Parse the argument of --type."""
    names = [part.strip().lower() for part in text.split(",")]
    if not set(names) <= TYPES.keys():
        raise ValueError(f"a list of {', '.join(TYPES.values())}")
    return [TYPES[name] for name in names]


def topic(text: str) -> tuple[str, list[int] | None]:
    """Parse the argument of --topic: NAME or NAME:0,1,2."""
    name, colon, ids = text.partition(":")
    if not colon:
        return name, None
    try:
        return name, [whole(part.strip()) for part in ids.split(",")]
    except ValueError:
        raise ValueError("NAME or NAME:0,1,2") from None


def moment(text: str) -> Destination:
    """Parse the argument of --to-datetime; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(text) if "T" in text else None
    except ValueError:
        when = None
    if when is None:
        raise ValueError("of the form YYYY-MM-DDThh:mm:ss.sss")
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return start_position.SinceTimestamp(max(0, (when - epoch) // MILLISECOND))


def age(text: str) -> Destination:
    """Parse the argument of --by-duration."""
    number = r"([0-9]{1,9})"
    form = rf"P(?:{number}D)?(?:T(?:{number}H)?(?:{number}M)?(?:{number}(?:\.([0-9]{{1,9}}))?S)?)?"
    parts = re.fullmatch(form, text.upper())
    if parts is None or not any(parts.groups()):
        raise ValueError("of the form PnDTnHnMnS (P1DT12H)")
    days, hours, minutes, seconds, fraction = (part or "0" for part in parts.groups())
    whole_s = int(days) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return start_position.SinceAge(whole_s * 1000 + int(fraction.ljust(3, "0")[:3]))


def at(text: str) -> Destination:
    return start_position.AtOffset(whole(text))


def by(text: str) -> Destination:
    return ShiftedPosition(whole(text))


def timeout(text: str) -> int:
    """Parse the argument of --timeout."""
    if whole(text) < REQUEST_TIMEOUT_S * 1000:
        raise ValueError(f"at least {REQUEST_TIMEOUT_S * 1000:.0f}, the timeout of a request")
    return whole(text)


POSITIONS: dict[str, Destination] = {
    "to-earliest": start_position.SinceTimestamp(start_position.BEGINNING),
    "to-latest": start_position.SinceTimestamp(start_position.END),
    "to-current": CurrentPosition(),
}
DESTINATIONS = (*POSITIONS, "to-offset", "shift-by", "to-datetime", "by-duration", "from-file")
FLAGS = (
    *CONNECTION,
    Flag("list", help="list the groups"),
    Flag("describe", help="describe groups with their offsets and lag"),
    Flag("reset-offsets", help="reset offsets with --execute; without it, print them"),
    Flag("delete", help="delete groups and their offsets"),
    Flag("delete-offsets", help="delete the committed offsets of a group for topics"),
    Flag("group", "ID", "id of the group; may be repeated", repeated=True),
    Flag("all-groups", help="all groups"),
    Flag("topic", "NAME[:ID,…]", "topic, or partitions of it; may be repeated", topic, True),
    Flag("all-topics", help="all topics with committed offsets of the group"),
    Flag("offsets", help="with --describe: offsets and lag (default)"),
    Flag("members", help="with --describe: the members"),
    Flag("state", "STATE,…", "with --describe: the state; with --list: filter by state", states,
         optional=True),
    Flag("type", "TYPE,…", "with --list: print types, or filter by type", types, optional=True),
    Flag("verbose", help="with --describe: more columns"),
    Flag("to-earliest", help="reset to the earliest offset"),
    Flag("to-latest", help="reset to the latest offset"),
    Flag("to-current", help="reset to the current offset"),
    Flag("to-offset", "OFFSET", "reset to this offset", at),
    Flag("shift-by", "COUNT", "shift the current offset by COUNT, which may be negative", by),
    Flag("to-datetime", "WHEN", "reset to YYYY-MM-DDThh:mm:ss.sss (UTC without a zone)", moment),
    Flag("by-duration", "PnDTnHnMnS", "reset to this duration before now", age),
    Flag("from-file", "FILE", "reset to the offsets in a CSV file"),
    Flag("dry-run", help="print the new offsets (default)"),
    Flag("execute", help="commit the new offsets"),
    Flag("export", help="print the new offsets as CSV, for --from-file"),
    Flag("timeout", "MS", "time limit of the command", timeout),
    Flag("validate-regex", "REGEX", refused="is not supported: it requires RE2"),
)  # fmt: skip


def run(options: ParsedFlags) -> int | None:
    """List, describe, reset and delete consumer groups.

    Examples:
      kafka-consumer-groups.sh --bootstrap-server localhost:9092 --describe --group readers
      kafka-consumer-groups.sh --bootstrap-server localhost:9092 --reset-offsets --group readers \\
          --topic flights --to-earliest --execute
    """
    options.requires("bootstrap-server")
    action = options.action(*ACTIONS)
    check(options, action)
    try:
        with errors_as_refusals():
            groups = GroupOffsets(brokers(options))
            return VERBS[action](groups, options)
    except Refusal as refusal:
        # Kafka writes errors to stdout, where scripts read them; users expect them on stderr.
        print(f"\nError: Executing consumer group command failed due to {refusal}")
        warn(str(refusal))
        return refusal.exit_code


def check(options: ParsedFlags, action: str) -> None:
    for name in ("all-topics", "execute", "dry-run", "export", *DESTINATIONS):
        options.only_with(name, "reset-offsets")
    for name in ("offsets", "members", "verbose"):
        options.only_with(name, "describe")
    options.only_with("state", "describe", "list")
    options.only_with("type", "list")
    options.only_with("topic", "reset-offsets", "delete-offsets")
    options.only_with("all-groups", "describe", "reset-offsets", "delete")
    if action == "list":
        options.excludes("list", ["group"])
    elif action == "delete-offsets":
        options.requires("group", "topic")
        if len(options.all("group")) > 1:
            raise Refusal("--delete-offsets accepts only one --group")
    else:
        options.action("group", "all-groups")
    if action == "describe":
        if len([name for name in VIEWS if name in options]) > 1:
            raise Refusal(f"specify at most one of --{', --'.join(VIEWS)}")
        if options.one("state"):
            raise Refusal("--state does not take a value with --describe")
    if action == "reset-offsets":
        options.action(*DESTINATIONS)
        options.excludes("execute", ["dry-run"])
        if "from-file" not in options:
            options.action("topic", "all-topics")


def names(groups: GroupOffsets, options: ParsedFlags) -> list[str]:
    """Return the selected groups, each once."""
    if "all-groups" in options:
        return [name for name, _, _ in every(groups)]
    return list(dict.fromkeys(options.all("group")))


def every(groups: GroupOffsets) -> list[tuple[str, str, str]]:
    """Return all groups of the cluster: name, type, state."""
    found = groups.admin.list_consumer_groups().result()
    for error in found.errors:
        raise Refusal(node_error(error))
    newer = NativeGroups(groups.cluster).listed()
    return sorted(
        (
            group.group_id,
            group.type.name.capitalize(),
            state_of(newer.get(group.group_id)) or STATES[group.state],
        )
        for group in found.valid
    )


def list_groups(groups: GroupOffsets, options: ParsedFlags) -> int:
    chosen = [
        group
        for group in every(groups)
        if group[1] in (options.one("type") or [group[1]])
        and group[2] in (options.one("state") or [group[2]])
    ]
    if "type" in options or "state" in options:
        print(group_tables.listing(chosen, "type" in options, "state" in options))
    elif chosen:
        print("\n".join(name for name, _, _ in chosen))
    return 0


# -- describe --------------------------------------------------------------------------------------


def describe(groups: GroupOffsets, options: ParsedFlags) -> int:
    verbose = "verbose" in options
    for name in names(groups, options):
        group = groups.described(name)
        if group is None:
            raise Refusal(f"Group {name} not found.")
        has_epochs = group.type is ConsumerGroupType.CONSUMER
        newer = NativeGroups(groups.cluster).described(name) if has_epochs else None
        state = state_of(newer) or STATES[group.state]
        if "state" in options:
            shown: str | None = group_tables.state(group, newer, state, verbose)
        elif "members" in options:
            shown = group_tables.members(group, newer, verbose)
        else:
            shown = offsets(groups, group, verbose)
        if state == "Empty":
            print_stderr(f"\nConsumer group '{name}' has no active members.")
        elif state in REBALANCING:
            print_stderr(f"\nWarning: Consumer group '{name}' is rebalancing.")
        if shown is not None:
            print(f"\n{shown}", flush=True)
    return 0


def offsets(groups: GroupOffsets, group: ConsumerGroupDescription, verbose: bool) -> str | None:
    committed = groups.committed(group.group_id)
    owned = {key for member in group.members for key in group_tables.assigned(member)}
    ends = groups.bounds({*committed, *owned}, OffsetSpec.latest())
    return group_tables.offsets(group, committed, ends, verbose)


# -- reset -----------------------------------------------------------------------------------------


def reset(groups: GroupOffsets, options: ParsedFlags) -> int:
    chosen = names(groups, options)
    if "execute" not in options and "dry-run" not in options:
        print_stderr("kafkalite: dry run, no offsets were committed (commit them with --execute)")
    listed = from_file(options, chosen)
    rows: list[tuple[str, str, int, int]] = []
    code = 0
    for name in chosen:
        found = groups.described(name)
        state = STATES[found.state] if found else "Dead"
        if found and found.members:
            state = state_of(NativeGroups(groups.cluster).described(name)) or state
        if state not in ("Empty", "Dead"):
            print(
                f"\nError: Assignments can only be reset if the group '{name}' is inactive,"
                f" but the current state is {state}."
            )
            code = 1
            continue
        new = destinations(groups, options, name, listed.get(name), exists=found is not None)
        if new and "execute" in options:
            groups.commit(name, new)
        rows += [(name, *key, offset) for key, offset in sorted(new.items())]
    if "export" in options:
        first = 1 if len(chosen) == 1 else 0
        print("".join(",".join(map(str, [*row][first:])) + "\n" for row in rows))
    else:
        print(f"\n{group_tables.new_offsets(rows)}")
    return code


def from_file(options: ParsedFlags, chosen: list[str]) -> dict[str, dict[PartitionKey, int]]:
    path = options.one("from-file")
    if path is None:
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        try:
            return read_offsets(path, file, chosen)
        except UnicodeDecodeError:
            raise Refusal(f"{path} is not valid UTF-8") from None


def destinations(
    groups: GroupOffsets,
    options: ParsedFlags,
    name: str,
    listed: dict[PartitionKey, int] | None,
    exists: bool,
) -> dict[PartitionKey, int]:
    """Return the new offsets of a group."""
    committed = groups.committed(name) if exists else {}
    if listed is not None:
        return groups.destinations(list(listed), ListedOffsets(listed), committed)
    topic_partitions = list(committed) if "all-topics" in options else list(named(groups, options))
    flag = next(flag for flag in DESTINATIONS if flag in options)
    where: Destination = POSITIONS[flag] if flag in POSITIONS else options.one(flag)
    mine = {key: commit for key, commit in committed.items() if key in topic_partitions}
    return groups.destinations(topic_partitions, where, mine)


def named(groups: GroupOffsets, options: ParsedFlags) -> Iterator[PartitionKey]:
    """Yield the partitions that --topic names; raise Refusal if one does not exist."""
    for name, ids in options.all("topic"):
        known_partitions = groups.topics.get(name)
        if known_partitions is None:
            raise Refusal(f"topic {name} does not exist")
        for number in known_partitions if ids is None else ids:
            if number not in known_partitions:
                raise Refusal(f'The partitions "{name}-{number}" do not exist')
            yield name, number


# -- delete ----------------------------------------------------------------------------------------


def delete(groups: GroupOffsets, options: ParsedFlags) -> int:
    chosen = names(groups, options)
    done, errors = settled(groups.admin.delete_consumer_groups(chosen)) if chosen else ({}, {})
    texts = {name: clean_error(error.str()) for name, error in errors.items()}
    return print_deletions("consumer", done, texts)


def print_deletions(kind: str, done: Iterable[str], errors: Mapping[str, str]) -> int:
    """Print which groups of a kind were deleted, and return the exit code."""
    quoted = ", ".join(f"'{name}'" for name in done)
    if not errors:
        print(f"Deletion of requested {kind} groups ({quoted}) was successful.")
        return 0
    print(f"\nError: Deletion of some {kind} groups failed:")
    for name, error in errors.items():
        print(f"* Group '{name}' could not be deleted due to: {error}")
    if quoted:
        print(f"\nThese {kind} groups were deleted successfully: {quoted}")
    return 1


def delete_offsets(groups: GroupOffsets, options: ParsedFlags) -> int:
    (name,) = options.all("group")
    topic_partitions: list[PartitionKey] = []
    rows: list[tuple[str, int | None, str]] = []
    for topic_name, ids in options.all("topic"):
        known_partitions = groups.topics.get(topic_name)
        if known_partitions is None and ids is None:
            rows.append((topic_name, None, f"Error: {BY_CODE[3]()}"))
        topic_partitions += [
            (topic_name, number) for number in ((known_partitions or []) if ids is None else ids)
        ]
    whole_code, codes = (
        deletion_errors(groups, name, topic_partitions) if topic_partitions else (0, {})
    )
    for key, code in sorted(codes.items()):
        rows.append((*key, f"Error: {error_text(code)}" if code else "Successful"))
    if whole_code:
        print(f"\nError: {error_text(whole_code)}")
    elif any(codes.values()):
        print("\nError: Encountered some partition-level error, see the follow-up details.")
    else:
        print(f"Request succeeded for deleting offsets from group {name}.")
    print(f"\n{group_tables.statuses(rows)}")
    return 0 if all(status == "Successful" for _, _, status in rows) else 1


def deletion_errors(
    groups: GroupOffsets, name: str, topic_partitions: list[PartitionKey]
) -> tuple[int, dict[PartitionKey, int]]:
    """Delete committed offsets; return the error code of the response and of each partition."""
    node = groups.admin.describe_consumer_groups([name])[name].result().coordinator
    topics: dict[str, list[dict[str, int]]] = {}
    for topic_name, number in topic_partitions:
        topics.setdefault(topic_name, []).append({"partition_index": number})
    request = {
        "group_id": name,
        "topics": [{"name": known, "partitions": parts} for known, parts in topics.items()],
    }
    response = WireClient(groups.cluster).request(OFFSET_DELETE, request, (node.host, node.port))
    if response.error_code:
        return response.error_code, dict.fromkeys(topic_partitions, response.error_code)
    return 0, {
        (known.name, part.partition_index): part.error_code
        for known in response.topics
        for part in known.partitions
    }


def error_text(code: int) -> str:
    return str(BY_CODE[code]()) if code in BY_CODE else f"error {code}"


VERBS = {
    "list": list_groups,
    "describe": describe,
    "reset-offsets": reset,
    "delete": delete,
    "delete-offsets": delete_offsets,
}
TOOL = ShellTool(FLAGS, run)
