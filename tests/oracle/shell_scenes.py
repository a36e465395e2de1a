"""Command lines for Kafka's tools and kafkalite's, tool by tool, and the form of their output.

A step is a command line.  `{b}` is the broker, `{x}` is the prefix of every name, a different one
for each side, so that both can run on one broker; `{d}` is the directory of the files below.
"""

from __future__ import annotations

import re
import shlex
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec
from tests.oracle.shell_members import MEMBERS, member_ids, no_member
from tests.oracle.shell_transactions import write_transactions

Run = Callable[[str, list[str], bytes], tuple[int, bytes]]
"""Runs a tool with words and input; returns its exit code and standard output."""


class Step(NamedTuple):
    words: str
    given: bytes = b""


class Printed(NamedTuple):
    """The result of a step: its exit code and its lines, in no order."""

    code: int
    lines: list[str]


def steps(tool: str, *lines: str | tuple[str, bytes]) -> list[Step]:
    """Return the steps of one tool; the broker's address is added unless it reads files."""
    asked = "" if tool == "dump-log" else " --bootstrap-server {b}"
    pairs = [(line, b"") if isinstance(line, str) else line for line in lines]
    return [Step(f"kafka-{tool}{asked} {words}", given) for words, given in pairs]


TOPICS = steps(
    "topics",
    "--create --topic {x}flights --partitions 3 --config retention.ms=60000"
    " --config cleanup.policy=delete",
    "--create --topic {x}flights",
    "--create --topic {x}flights --if-not-exists",
    "--create --topic {x}a.b --partitions 1",
    "--create --topic {x}none --partitions 0",
    "--create --topic '{x}not legal'",
    "--create --topic {x}none --config no.such=1",
    "--create --topic {x}placed --replica-assignment 0,0",
    "--create --topic {x}none --partitions 2 --replica-assignment 0",
    "--create",
    "--list --topic {x}.*",
    "--list --topic {x}nobody",
    "-list -topic={x}flights",
    "--describe --topic {x}flights",
    "--describe --topic '{x}fl.*,{x}a.*'",
    "--describe --topic {x}nobody",
    "--describe --topic {x}nobody --if-exists",
    "--describe --topic {x}flights --unavailable-partitions",
    "--describe --topic {x}flights --under-replicated-partitions",
    "--describe --topic {x}flights --at-min-isr-partitions",
    "--describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ",
    "--alter --topic {x}flights --partitions 5",
    "--alter --topic {x}flights --partitions 2",
    "--alter --topic {x}nobody --partitions 2",
    "--alter --topic {x}nobody --partitions 2 --if-exists",
    "--alter --topic {x}flights",
    "--describe --topic {x}flights",
    "--delete --topic {x}nobody",
    "--delete --topic {x}nobody --if-exists",
    "--delete --topic {x}a.b",
    "--delete --topic {x}flights",
    "--list --topic {x}.*",
    "--list --partitions 3",
    "--list --bogus",
    "--list --create --topic {x}none",
    "--list --topic",
    "--describe --topic {x}placed --delete-config retention.ms",
)

CONFIGS = [
    *steps("topics", "--create --topic {x}set --partitions 1"),
    *steps(
        "configs",
        "--describe --topic {x}set",
        "--alter --topic {x}set --add-config 'retention.ms=70000,cleanup.policy=[delete]'",
        "--describe --topic {x}set",
        "--describe --entity-type topics --entity-name {x}set",
        "--alter --entity-type topics --entity-name {x}set --delete-config cleanup.policy",
        "--describe --topic {x}set",
        "--alter --topic {x}set --add-config-file {d}/set.properties",
        "--describe --topic {x}set",
        "--alter --topic {x}set --add-config no.such=1",
        "--alter --topic {x}nobody --add-config retention.ms=1",
        "--describe --topic {x}nobody",
        "--alter --topic {x}set --add-config retention.ms=soon",
        "--alter --topic {x}set --add-config retention.ms",
        "--alter --topic {x}set",
        "--describe --broker 0",
        "--describe --broker 99",
        "--describe --group {x}nobody",
        "--describe",
        "--describe --entity-type nothings",
    ),
]

READ = "--topic {x}c --partition 0 --offset earliest --max-messages"
SHOW = "--formatter-property print."
CONSOLE = [
    *steps("topics", "--create --topic {x}c --partitions 1"),
    *steps(
        "console-producer",
        ("--topic {x}c", b"a\nb\n\nlast"),
        ("--topic {x}c", b"a\r\nb\rc\n\r\nd\r"),
        ("--topic {x}c --reader-property parse.key=true", b"k1\tv1\nnokey\n"),
        ("--topic {x}c --reader-property parse.key=true --reader-property key.separator=::",
         b"k1::v1\nk2::v:2\n"),
        ("--topic {x}c --reader-property parse.key=true --reader-property parse.headers=true",
         b"h1:v1,h2:v2\tkey\tvalue\n"),
        ("--topic {x}c --reader-property parse.key=true --reader-property parse.headers=true"
         " --reader-property null.marker=NIL", b"h1:NIL,h2:\tNIL\tNIL\nNIL\tk\tv\n"),
        ("--topic {x}c --reader-property parse.key=true --reader-property ignore.error=true",
         b"nokey\n"),
        ("--topic {x}c --reader-property parse.headers=true --reader-property ignore.error=true",
         b"x\tv\nh:1,,\tv\n"),
        ("--topic {x}c --reader-config {d}/reader.properties", b"k|v\n"),
        ("--topic {x}c --compression-codec zstd --sync", b"packed\n"),
        ("--topic {x}c --compression-codec", b"packed too\n"),
        ("--topic {x}c --compression-codec foo", b"x\n"),
        ("--topic {x}c --producer-property acks=1 --request-timeout-ms 5000", b"deprecated\n"),
        ("--topic {x}c --no-such-flag", b"x\n"),
    ),
    *steps(
        "console-consumer",
        f"{READ} 22",
        f"{READ} 18 {SHOW}key=true {SHOW}offset=true {SHOW}partition=true {SHOW}headers=true",
        f"{READ} 14 {SHOW}key=true {SHOW}headers=true --formatter-property key.separator=~"
        " --formatter-property null.literal=NIX --formatter-property headers.separator=;",
        f"{READ} 4 --property line.separator=@",
        f"{READ} 2 {SHOW}value=false {SHOW}offset=true",
        f"{READ} 3 --formatter org.apache.kafka.tools.consumer.NoOpMessageFormatter",
        "--topic {x}c --partition 0 --offset 3 --max-messages 2",
        "--topic {x}c --partition 0 --timeout-ms 1500",
        "--topic {x}c --group {x}g --from-beginning --max-messages 2",
        "--topic {x}c --group {x}g --max-messages 2",
        "--include {x}c --from-beginning --max-messages 1",
        "--topic {x}c --offset 1",
        "--topic {x}c --partition 0 --offset soon",
        "--topic {x}c --group {x}g --partition 0",
        "--topic {x}c --from-beginning --command-property auto.offset.reset=latest",
        "--topic {x}c --group {x}g --command-property group.id=other",
    ),
]  # fmt: skip

OFFSETS = [
    *steps("topics", "--create --topic {x}o1 --partitions 1"),
    *steps("topics", "--create --topic {x}o2 --partitions 3"),
    *steps("topics", "--create --topic {x}one --partitions 1"),
    *steps(
        "console-producer",
        ("--topic {x}o1 --sync", b"1\n2\n3\n4\n5\n"),
        ("--topic {x}one", b"1\n"),
    ),
    *steps(
        "get-offsets",
        "--topic {x}o1",
        "--topic '{x}o[12]'",
        "--topic {x}o2 --partitions 0,2",
        "--topic {x}o1 --time -2",
        "--topic {x}o1 --time earliest",
        "--topic {x}one --time max-timestamp",
        "--topic {x}o1 --time 0",
        "--topic {x}o1 --time 99999999999999",
        "--topic {x}o1 --time soon",
        "--topic {x}o1 --time earliest-local",
        "--topic {x}nobody",
        "--topic {x}o2 --partitions 9",
        "--topic {x}o2 --partitions x",
        "--topic-partitions {x}o1:0,{x}o2:1-3",
        "--topic-partitions {x}o2:1-,{x}o2:-1",
        "--topic-partitions {x}o1:x",
        "--topic-partitions {x}o1 --topic {x}o1",
    ),
    *steps(
        "delete-records",
        "--offset-json-file {d}/{x}cut.json",
        "--offset-json-file {d}/{x}too-far.json",
        "--offset-json-file {d}/{x}twice.json",
        "--offset-json-file {d}/torn.json",
        "--offset-json-file {d}/version.json",
        "--offset-json-file {d}/nothing.json",
        "--offset-json-file {d}/none.json",
    ),
    *steps("get-offsets", "--topic {x}o1 --time earliest"),
]

RESET = "--reset-offsets --group {x}g1 --dry-run"
GROUPS = [
    *steps("topics", "--create --topic {x}g --partitions 1"),
    *steps("console-producer", ("--topic {x}g --sync", b"1\n2\n3\n4\n5\n6\n7\n8\n")),
    *steps(
        "console-consumer",
        "--topic {x}g --group {x}g1 --from-beginning --max-messages 5",
        "--topic {x}g --group {x}g2 --from-beginning --max-messages 8",
    ),
    *steps(
        "consumer-groups",
        "--describe --group {x}g1",
        "--describe --group {x}g1 --members",
        "--describe --group {x}g1 --members --verbose",
        "--describe --group {x}g1 --state",
        "--describe --group {x}g1 --state --verbose",
        "--describe --group {x}g1 --offsets --verbose",
        "--describe --group {x}g1 --group {x}g2",
        "--describe --group {x}nobody",
        "--describe",
        "--list --state foo",
        "--list --type foo",
        "--list --group {x}g1",
        "--describe --group {x}g1 --members --state",
        f"{RESET} --topic {{x}}g --to-earliest",
        f"{RESET} --topic {{x}}g:0 --to-latest --export",
        f"{RESET} --all-topics --to-current",
        f"{RESET} --topic {{x}}g --shift-by -2",
        f"{RESET} --topic {{x}}g --shift-by 100",
        f"{RESET} --topic {{x}}g --to-offset 3 --export",
        f"{RESET} --topic {{x}}g --to-datetime 2020-01-01T00:00:00.000",
        f"{RESET} --topic {{x}}g --to-datetime 2099-01-01T00:00:00.000+01:00",
        f"{RESET} --topic {{x}}g --to-datetime 2020",
        f"{RESET} --topic {{x}}g --by-duration P1D",
        f"{RESET} --topic {{x}}g --by-duration foo",
        f"{RESET} --from-file {{d}}/{{x}}one.csv",
        f"{RESET} --group {{x}}g2 --from-file {{d}}/{{x}}two.csv --export",
        f"{RESET} --topic {{x}}nobody --to-latest",
        f"{RESET} --topic {{x}}g:9 --to-latest",
        f"{RESET} --topic {{x}}g:x --to-latest",
        f"{RESET} --to-latest",
        f"{RESET} --topic {{x}}g",
        f"{RESET} --topic {{x}}g --to-latest --to-earliest",
        f"{RESET} --execute --topic {{x}}g --to-latest",
        "--reset-offsets --group {x}g1 --topic {x}g --to-offset 2 --execute",
        "--reset-offsets --group {x}g3 --topic {x}g --to-earliest --execute",
        "--describe --group {x}g1",
        "--delete-offsets --group {x}g1 --topic {x}g",
        "--delete-offsets --group {x}g2 --topic {x}g:0",
        "--delete-offsets --group {x}nobody --topic {x}g",
        "--delete --group {x}g1",
        "--delete --group {x}nobody --group {x}g2",
        "--delete --group {x}nobody",
        "--describe --group {x}g1",
    ),
]

EPOCHS = [
    *steps(
        "consumer-groups",
        "--describe --group {x}e",
        "--describe --group {x}e --offsets --verbose",
        "--describe --group {x}e --members",
        "--describe --group {x}e --members --verbose",
        "--describe --group {x}e --state",
        "--describe --group {x}e --state --verbose",
        "--list --type consumer",
        "--list --type consumer --state stable",
        "--list --type consumer --state assigning,reconciling",
        "--reset-offsets --group {x}e --all-topics --to-earliest --dry-run",
        "--delete --group {x}e",
    ),
    *steps(
        "groups",
        "--list --group-type consumer",
        "--list --group-type CONSUMER --protocol consumer",
        "--list --group-type consumer --protocol connect",
        "--list --streams",
        "--list --group-type none",
        "--list --consumer --share",
        "--list --share --protocol consumer",
        "--share",
        "--list --bogus",
    ),
]

SHARE_RESET = "--reset-offsets --group {x}w --dry-run"
SHARE = [
    *steps("topics", "--create --topic {x}s --partitions 1"),
    *steps("configs", "--alter --group {x}w --add-config share.auto.offset.reset=earliest"),
    *steps("console-producer", ("--topic {x}s --sync", b"1\n2\n3\n4\n5\n6\n7\n8\n")),
    *steps(
        "console-share-consumer",
        f"--topic {{x}}s --group {{x}}w --max-messages 2 {SHOW}delivery=true {SHOW}offset=true",
        "--topic {x}s --group {x}w --max-messages 1 --reject",
        "--topic {x}s --group {x}w --max-messages 1 --release",
        "--topic {x}s --group {x}w --max-messages 2",
        "--topic {x}s --release --reject",
        "--group {x}w",
        "--topic {x}s --group {x}w --command-property group.id=other",
        "--topic {x}s --no-such-flag",
    ),
    *steps(
        "share-groups",
        "--list",
        "--list --state",
        "--list --state empty",
        "--list --state stable,dead",
        "--list --state foo",
        "--list --group {x}w",
        "--describe --group {x}w",
        "--describe --group {x}w --offsets --verbose",
        "--describe --group {x}w --members",
        "--describe --group {x}w --state",
        "--describe --all-groups --state",
        "--describe --group {x}nobody",
        "--describe",
        "--describe --group {x}w --members --state",
        f"{SHARE_RESET} --to-earliest",
        f"{SHARE_RESET} --to-latest --all-topics",
        f"{SHARE_RESET} --to-earliest --topic {{x}}s:0",
        f"{SHARE_RESET} --to-datetime 2020-01-01T00:00:00.000 --topic {{x}}s",
        f"{SHARE_RESET} --to-datetime 2020 --topic {{x}}s",
        f"{SHARE_RESET} --to-latest --topic {{x}}nobody",
        f"{SHARE_RESET} --to-latest --topic {{x}}s:9",
        f"{SHARE_RESET} --to-latest --to-earliest",
        f"{SHARE_RESET} --execute --to-latest --all-topics",
        f"{SHARE_RESET}",
        "--reset-offsets --group {x}w --to-latest",
        "--reset-offsets --group {x}nobody --all-topics --to-latest --dry-run",
        "--reset-offsets --group {x}w --to-earliest --execute --topic {x}s",
        "--describe --group {x}w",
        "--delete-offsets --group {x}w --topic {x}s",
        "--delete-offsets --group {x}w --topic {x}nobody",
        "--delete-offsets --group {x}nobody --topic {x}s",
        "--describe --group {x}w",
        "--delete --group {x}nobody --group {x}w",
        "--delete --group {x}w",
        "--delete",
        "--list",
    ),
]

SHARE_MEMBERS = [
    *steps(
        "share-groups",
        "--describe --group {x}m --members",
        "--describe --group {x}m --members --verbose",
        "--describe --group {x}m --state",
        "--describe --group {x}m --state --verbose",
        "--list --state stable",
        "--reset-offsets --group {x}m --all-topics --to-earliest --execute",
        "--delete --group {x}m",
        "--delete-offsets --group {x}m --topic {x}m",
    ),
    *steps("groups", "--list --share", "--list --group-type share"),
]

DUMP = steps(
    "dump-log",
    "--files {d}/sound/00000000000000000000.log",
    "--files {d}/sound/00000000000000000000.log --print-data-log",
    "--files {d}/sound/00000000000000000000.log --deep-iteration",
    "--files {d}/sound/00000000000000000000.log --print-data-log --skip-record-metadata",
    "--files {d}/sound/00000000000000000000.log --max-bytes 100",
    "--files {d}/sound/00000000000000000000.index,{d}/sound/00000000000000000000.timeindex",
    "--files {d}/sound/00000000000000000000.index --index-sanity-check",
    "--files {d}/sound/00000000000000000000.timeindex --verify-index-only",
    "--files {d}/torn/00000000000000000000.log",
    "--files {d}/flipped/00000000000000000000.log",
    "--files {d}/nothing",
    "--max-bytes 3",
    "--files {d}/sound/00000000000000000000.log --offsets-decoder",
)

STALE = "--producer-id 4711 --producer-epoch 1 --coordinator-epoch 0"
AGAIN = "--producer-id 4711 --producer-epoch 3 --coordinator-epoch -1"
TRANSACTIONS = steps(
    "transactions",
    "list --transactional-id-pattern {x}.*",
    "list --transactional-id-pattern {x}o..n",
    "list --transactional-id-pattern {x}",
    "list --transactional-id-pattern '{x}('",
    "list --transactional-id-pattern {x}.* --duration-filter 3600000",
    "list --transactional-id-pattern {x}.* --duration-filter -5",
    "list --duration-filter soon",
    "list --bogus",
    "list {x}open",
    "list --bootstrap-server {b}",
    "describe --transactional-id {x}committed",
    "describe --transactional-id {x}open",
    "describe --transactional-id {x}nobody",
    "describe",
    "describe-producers --topic {x}t --partition 0",
    "describe-producers --topic {x}t --partition 0 --broker-id 0",
    "describe-producers --topic {x}t",
    "find-hanging",
    "find-hanging --broker-id 0 --partition 0",
    "find-hanging --topic {x}t",
    "find-hanging --topic {x}t --max-transaction-timeout 0",
    "find-hanging --topic {x}hanging",
    "find-hanging --topic {x}hanging --max-transaction-timeout 120",
    "find-hanging --topic {x}hanging --partition 0 --broker-id 0",
    "find-hanging --broker-id 0",
    "describe-producers --topic {x}hanging --partition 0",
    "abort --topic {x}hanging --partition 0",
    "abort --topic {x}hanging --partition 0 --start-offset 9",
    "abort --topic {x}hanging --partition 0 --producer-id 4711",
    f"abort --topic {{x}}hanging --partition 0 {STALE}",
    "abort --topic {x}hanging --partition 0 --start-offset 0",
    f"abort --topic {{x}}hanging --partition 0 {AGAIN}",
    "find-hanging --topic {x}hanging",
    "describe-producers --topic {x}hanging --partition 0",
    "forceTerminateTransaction --transactionalId {x}open",
    "describe --transactional-id {x}open",
    "forceTerminateTransaction --transactionalId {x}nobody",
    "describe --transactional-id {x}nobody",
    "forceTerminateTransaction",
    "--bogus list",
    "forget",
    "",
)

FEATURES = steps(
    "features",
    "describe",
    "describe --node-id 0",
    "describe --node-id -1",
    "describe --bogus",
    "upgrade",
    "upgrade --feature transaction.version",
    "upgrade --feature transaction.version=soon",
    "upgrade --feature transaction.version=0",
    "upgrade --feature transaction.version=1 --feature transaction.version=2",
    "upgrade --feature transaction.version=1",
    "upgrade --feature transaction.version=2",
    "upgrade --feature transaction.version=7",
    "upgrade --feature transaction.version=7 --dry-run",
    "upgrade --feature transaction.version=2 --feature no.such=1",
    "downgrade --feature transaction.version=1 --dry-run",
    "downgrade --feature transaction.version=1",
    "downgrade --feature transaction.version=1 --unsafe",
    "downgrade --feature transaction.version=2",
    "downgrade --feature no.such=1",
    "upgrade --feature transaction.version=2 --unsafe",
    "disable",
    "disable --feature transaction.version=1",
    "disable --feature transaction.version --dry-run",
    "disable --feature transaction.version",
    "disable --feature transaction.version --unsafe",
    "upgrade --feature transaction.version=2",
    "",
)

NUMBERS = {
    "ProducerId",
    "LastTimestamp",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "Duration(min)",
}
"""Titles of the columns whose numbers differ between runs."""

FAMILIES = {
    "topics": TOPICS,
    "configs": CONFIGS,
    "console": CONSOLE,
    "offsets": OFFSETS,
    "groups": GROUPS,
    "epochs": EPOCHS,
    "share": SHARE,
    "share-members": SHARE_MEMBERS,
    "dump": DUMP,
    "transactions": TRANSACTIONS,
    "features": FEATURES,
}


def play(run: Run, family: str, bootstrap: str, names: str, directory: Path) -> list[Printed]:
    """Return the result of each step of a family; `names` is the prefix of every name it makes."""
    write_files(directory, names)
    if family == "transactions":
        write_transactions(bootstrap, names)
    said = []
    with MEMBERS.get(family, no_member)(bootstrap, names):
        ids = member_ids(bootstrap, names) if family in MEMBERS else []
        for step in FAMILIES[family]:
            tool, *words = [
                word.format(b=bootstrap, x=names, d=directory) for word in shlex.split(step.words)
            ]
            code, printed = run(tool, words, step.given)
            for member_id in ids:
                printed = printed.replace(member_id.encode(), b"{member}")
            said.append(Printed(code, kept(printed, bootstrap, names, directory)))
    return said


def kept(printed: bytes, bootstrap: str, names: str, directory: Path) -> list[str]:
    """Return the lines with ids, addresses and order removed, which differ between runs."""
    text = printed.decode(errors="backslashreplace")
    text = text.replace(str(directory), "{d}").replace(bootstrap, "{b}").replace(names, "{x}")
    text = re.sub(r"TopicId: \S+", "TopicId: {id}", text)
    text = re.sub(r"\bEpoch: \d+", "Epoch: {epoch}", text)
    return sorted(without_numbers(text.splitlines()))


def without_numbers(lines: list[str]) -> list[str]:
    """Replace digits in the columns of a table of kafka-transactions that differ between runs."""
    titles = lines[0].split("\t") if lines and lines[0].endswith("\t") else []
    at = {number for number, title in enumerate(titles) if title.strip() in NUMBERS}
    return [
        "\t".join(
            re.sub("[0-9 ]", "#", cell) if number in at and line is not lines[0] else cell
            for number, cell in enumerate(line.split("\t"))
        )
        for line in lines
    ]


# -- files -----------------------------------------------------------------------------------------


def write_files(directory: Path, names: str) -> None:
    """Write the files that steps name."""

    def place(topic: str, offset: int) -> str:
        return f'{{"topic": "{names}{topic}", "partition": 0, "offset": {offset}}}'

    texts = {
        "set.properties": "# kept\nretention.ms = 80000\nmax.message.bytes:2000\n",
        "reader.properties": "parse.key = true\nkey.separator = |\n",
        f"{names}cut.json": f'{{"partitions": [{place("o1", 2)}], "version": 1}}',
        f"{names}too-far.json": f'{{"partitions": [{place("o1", 99)}]}}',
        f"{names}twice.json": f'{{"partitions": [{place("o1", 3)}, {place("o1", 4)}]}}',
        "torn.json": '{"partitions": [',
        "version.json": '{"partitions": [], "version": 2}',
        "none.json": '{"partitions": []}',
        f"{names}one.csv": f"{names}g,0,2\n",
        f"{names}two.csv": f"{names}g1,{names}g,0,1\n{names}g2,{names}g,0,4\n",
    }
    for name, text in texts.items():
        (directory / name).write_text(text)
    write_logs(directory)


def write_logs(directory: Path) -> None:
    first = build(
        [
            Record(timestamp=1000, key=b"k", value=b"v1"),
            Record(timestamp=1001, value=b"v2", headers=(("h", b"x"), ("n", None))),
        ],
        leader_epoch=3,
    )
    producer = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
    end = struct.pack(">hi", 0, 5)
    batches = [
        first,
        build([Record(timestamp=1002, key=b"k3")], base_offset=2, codec=Codec.GZIP),
        build([Record(timestamp=1003, value=b"tx")], base_offset=3, base_sequence=0, **producer),
        *(
            build(
                [Record(timestamp=1004, key=struct.pack(">hh", 0, kind), value=end)],
                base_offset=5 - kind, control=True, **producer,
            )
            for kind in (1, 0)
        ),
    ]  # fmt: skip
    log = b"".join(batches)
    flipped = bytearray(log)
    flipped[len(first) + 43] ^= 1  # in the second batch's producer id
    index = struct.pack(">ii", 2, len(first))
    times = struct.pack(">qiqi", 1002, 2, 1004, 4)
    logs: Iterable[tuple[str, str, bytes]] = [
        ("sound", ".log", log),
        ("sound", ".index", index),
        ("sound", ".timeindex", times),
        ("torn", ".log", log + log[:40]),
        ("flipped", ".log", bytes(flipped)),
    ]
    for name, suffix, content in logs:
        (directory / name).mkdir(exist_ok=True)
        (directory / name / f"{0:020d}{suffix}").write_bytes(content)
