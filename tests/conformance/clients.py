"""The clients of the table: command lines with kcat's flags, and programs driven by commands."""

from __future__ import annotations

import shutil
import sys

from tests.conformance.commands import CommandLine, kcat_heard, ours_heard
from tests.conformance.driven import Driven
from tests.conformance.go_client import franz_go_v1_words, franz_go_words
from tests.conformance.java_client import java_v1_words, java_words
from tests.conformance.node import kafkajs_words
from tests.conformance.table import (
    ABORTABLE,
    ANY_OFFSETS,
    ASSIGNORS,
    ASYNC_COMMITS,
    CODECS,
    COMMITS,
    CONSUMER_PROTOCOL,
    COPIES,
    FENCED,
    GROUPS,
    HEADER_TWICE,
    HEADERS,
    INTERLEAVED,
    KEEPING,
    LONG_LIVED,
    LOOKS_ONLY,
    MEMBER_OFFSETS,
    METADATA,
    NO_RESET,
    NULL_HEADERS,
    NULLS_AND_EMPTIES,
    ORDERLY,
    RENEWALS,
    SHARE_GROUPS,
    STATIC,
    STEADY,
    TIMESTAMPS,
    TRANSACTIONS,
    VERSION_1,
    VERSION_2,
    YOUNGEST,
    Client,
)
from tools.apache_kafka import Unavailable

KAFKALITE = [sys.executable, "-m", "kafkalite"]
KCAT = CommandLine("kcat", ["kcat", "-P"], ["kcat", "-C"], ["kcat", "-u"], kcat_heard)
OURS = CommandLine(
    "kafkalite",
    [*KAFKALITE, "produce"],
    [*KAFKALITE, "consume"],
    [*KAFKALITE, "consume", "-v"],
    ours_heard,
    {ORDERLY, STEADY, KEEPING},
)
RECORDS = {HEADERS, HEADER_TWICE, TIMESTAMPS, NULLS_AND_EMPTIES, NO_RESET, LONG_LIVED}
TOPICS = {
    "create_topic",
    "delete_topic",
    "grow_topic",
    "list_topics",
    "describe_topic",
    "delete_records",
    "offset",
    "describe_cluster",
}
CONFIGS = {"describe_config", "alter_config", "replace_config"}
GROUP_ADMIN = {
    "list_groups",
    "describe_group",
    "delete_group",
    "group_offsets",
    "set_group_offsets",
    "delete_group_offsets",
}


def python(name: str, module: str, can: set[str], *more: str) -> Driven:
    words = [sys.executable, "-m", f"tests.conformance.programs.{module}", *more]
    return Driven(name, lambda: words, frozenset(can))


NEW_MEMBERS = {CONSUMER_PROTOCOL, SHARE_GROUPS}
MEMBERS = {GROUPS, STEADY, ORDERLY, COMMITS, METADATA, STATIC}
# Not KEEPING: librdkafka goes back by some records in a partition that it keeps, if a rebalance
# begins just when it returns them to the application (kafkalite/cli/member_positions.py).
LIBRDKAFKA = python(
    "confluent-kafka",
    "librdkafka",
    {*CODECS, *RECORDS, NULL_HEADERS, LOOKS_ONLY, *TOPICS, YOUNGEST, *CONFIGS}
    | {TRANSACTIONS, INTERLEAVED, VERSION_1, ANY_OFFSETS, MEMBER_OFFSETS}
    | {*MEMBERS, ASYNC_COMMITS, FENCED, "range", "roundrobin", "cooperative-sticky"}
    | GROUP_ADMIN - {"delete_group_offsets"}
    | NEW_MEMBERS,
)
KAFKA_PYTHON = python(
    "kafka-python",
    "kafka_python",
    {*CODECS, *RECORDS, *TOPICS, YOUNGEST, *CONFIGS, *GROUP_ADMIN, TRANSACTIONS, INTERLEAVED}
    # An offset that was refused is sent again in its next transaction, so no MEMBER_OFFSETS.
    | {VERSION_1, ANY_OFFSETS, *MEMBERS, KEEPING, ASYNC_COMMITS, *ASSIGNORS},
)
AIOKAFKA = python(
    "aiokafka",
    "aio_kafka",
    {*CODECS, *RECORDS, *TOPICS, "describe_config", "replace_config", TRANSACTIONS, INTERLEAVED}
    | {VERSION_1, ANY_OFFSETS}
    | {*MEMBERS, "range", "roundrobin", "sticky"}
    | {"list_groups", "describe_group", "group_offsets"},
)
JAVA = Driven(
    "java",
    java_words,
    frozenset({*CODECS, *RECORDS, NULL_HEADERS, LOOKS_ONLY, *TOPICS, YOUNGEST})
    | {"describe_config", "alter_config", TRANSACTIONS, VERSION_2, INTERLEAVED, ABORTABLE}
    # Without any broker it forgets its topics, and rejoins when metadata names them again.
    | MEMBERS - {STEADY}
    | {ANY_OFFSETS, MEMBER_OFFSETS, ASYNC_COMMITS, FENCED, *ASSIGNORS, *GROUP_ADMIN, *NEW_MEMBERS}
    | {RENEWALS, KEEPING},
)
# Java's client uses version 2 of transactions wherever a broker has it.  Its last release that
# knows only version 1 runs the scenarios of transactions alone.
JAVA_V1 = Driven(
    "java-v1",
    java_v1_words,
    frozenset({TRANSACTIONS, INTERLEAVED, VERSION_1, ABORTABLE, ANY_OFFSETS, MEMBER_OFFSETS}),
    only=frozenset({TRANSACTIONS}),
)
KAFKAJS = Driven(
    "kafkajs",
    kafkajs_words,
    frozenset(
        {"none", "gzip", "snappy", "zstd", TIMESTAMPS, NULLS_AND_EMPTIES, LOOKS_ONLY}
        | {LONG_LIVED, *TOPICS, TRANSACTIONS, VERSION_1, ABORTABLE}
        | {ANY_OFFSETS, "describe_config", "replace_config", "roundrobin"}
        | MEMBERS - {STATIC, STEADY}
        # To set an offset it joins the group, and takes five seconds to leave.
        | GROUP_ADMIN - {"set_group_offsets", "delete_group_offsets"}
    ),
)
# Its transactions have the offsets of its own consumer, as a member of a group.
FRANZ_GO = Driven(
    "franz-go",
    franz_go_words,
    frozenset({*CODECS, *RECORDS, NULL_HEADERS, LOOKS_ONLY})
    | {TRANSACTIONS, VERSION_2, INTERLEAVED, ABORTABLE, COPIES},
)
FRANZ_GO_V1 = Driven(
    "franz-go-v1",
    franz_go_v1_words,
    frozenset({TRANSACTIONS, INTERLEAVED, VERSION_1, ABORTABLE, COPIES}),
    only=frozenset({TRANSACTIONS}),
)
NATIVE = python(
    "native",
    "native",
    {*CODECS, *RECORDS, NULL_HEADERS, LOOKS_ONLY, *MEMBERS, *NEW_MEMBERS}
    | {"range", "cooperative-sticky", RENEWALS, KEEPING},
)
# A share consumer uses TCP in any case.
NATIVE_TCP = python("native-tcp", "native", set(NATIVE.can) - {SHARE_GROUPS}, "off")
CLIENTS: list[Client] = [
    KCAT, OURS, LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA, KAFKAJS, JAVA, JAVA_V1, FRANZ_GO, FRANZ_GO_V1,
    NATIVE, NATIVE_TCP,
]  # fmt: skip


def missing(client: Client) -> str:
    """Return the reason why a client cannot run here, or an empty string."""
    if client is KCAT and shutil.which("kcat") is None:
        return "there is no `kcat` on the path"
    try:
        if isinstance(client, Driven):
            client.words()
    except Unavailable as unavailable:
        return str(unavailable)
    return ""
