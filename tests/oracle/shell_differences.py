"""Every difference between the output of Kafka's tools and of kafkalite's, with its reason.

A difference that is not listed here is a bug; one that is listed and no longer occurs fails as
well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

from tests.oracle.shell_recording import Both


class Listed(NamedTuple):
    """The steps that differ, by their command lines, and the reason."""

    steps: str
    why: str


class Brokers(NamedTuple):
    """Steps of a family whose output differs with kafkalite's broker, and the reason."""

    family: str
    steps: str
    why: str


FAILED = "what failed is exit code 1, and one sentence; theirs says so and ends with 0"
DEPRECATED = "that a flag is deprecated is said on stderr, and not among the records"
NOTHING = "what has no effect is refused, and not passed over"

DIFFERENCES = (
    Listed("kafka-topics * --delete-config *", NOTHING),
    Listed("kafka-console-producer * --producer-property *", DEPRECATED),
    Listed("kafka-console-consumer * --property *", DEPRECATED),
    Listed("kafka-get-offsets * --time earliest-local", "librdkafka does not ask about tiers"),
    Listed("kafka-delete-records * {d}/{x}too-far.json", FAILED),
    Listed(
        "kafka-consumer-groups * --describe --group {x}g1 --offsets --verbose",
        "librdkafka commits the leader's epoch along with an offset; their console does not",
    ),
    Listed("kafka-consumer-groups * --describe --group {x}nobody", FAILED),
    Listed("kafka-consumer-groups * --describe --group {x}g1", FAILED),
    Listed(
        "kafka-consumer-groups * --to-datetime 2099-*",
        "that no record is so young is what --to-datetime is for; theirs calls it empty",
    ),
    Listed("kafka-consumer-groups * --to-datetime 2020", FAILED),
    Listed("kafka-consumer-groups * --by-duration foo", FAILED),
    Listed("kafka-consumer-groups * --topic {x}nobody --to-latest", FAILED),
    Listed("kafka-consumer-groups * --topic {x}g:9 --to-latest", FAILED),
    Listed("kafka-consumer-groups * --delete-offsets --group {x}nobody *", FAILED),
    Listed("kafka-consumer-groups * --delete --group {x}nobody*", FAILED),
    Listed("kafka-consumer-groups * --reset-offsets --group {x}e *", FAILED),
    Listed("kafka-consumer-groups * --delete --group {x}e", FAILED),
    Listed("kafka-share-groups * --describe --group {x}nobody", FAILED),
    Listed("kafka-share-groups * --to-datetime 2020 *", FAILED),
    Listed("kafka-share-groups * --topic {x}nobody", FAILED),
    Listed("kafka-share-groups * --topic {x}s:9", FAILED),
    Listed("kafka-share-groups * --delete --group *", FAILED),
    Listed("kafka-share-groups * --delete-offsets --group {x}nobody *", FAILED),
    Listed("kafka-share-groups * --delete-offsets --group {x}m *", FAILED),
    Listed(
        "kafka-share-groups * --reset-offsets --group {x}m *",
        "a group with members is an error on stdout as well",
    ),
    Listed("kafka-dump-log --files {d}/nothing", FAILED),
    Listed("kafka-dump-log * --offsets-decoder", NOTHING),
)

WORDS = "our broker says in its own words what is wrong"
MINIMUM = (
    "Kafka writes min.insync.replicas into the cluster's own configuration; here it is a default"
)
SYNONYM = "a default is told as a synonym too"
STARTS = "the stored start offset passes acknowledged records at once, in Kafka at the next write"
FEATURE = "the metadata log and the groups have no features here"

BROKERS = (
    Brokers("topics", "* --create --topic {x}flights", WORDS),
    Brokers("topics", "* --create --topic '{x}not legal'", WORDS),
    Brokers("topics", "* --partitions 2", WORDS),
    Brokers("topics", "* --describe --topic *", MINIMUM),
    Brokers("configs", "* --describe * {x}set", SYNONYM),
    Brokers("configs", "* --describe --topic {x}set", SYNONYM),
    Brokers("share", "* --describe --group {x}w", STARTS),
    Brokers("share", "* --describe --group {x}w --offsets --verbose", STARTS),
    Brokers("share", "* --delete-offsets --group {x}w --topic {x}nobody", WORDS),
    Brokers("share", "* --delete-offsets --group {x}nobody *", WORDS),
    Brokers("share-members", "* --delete-offsets --group {x}m *", WORDS),
    Brokers("features", "* describe", FEATURE),
    Brokers("features", "* describe --node-id 0", FEATURE),
)


Entry = TypeVar("Entry", Listed, Brokers)


def judge(found: Iterable[Both], listed: Sequence[Entry]) -> tuple[list[Both], list[Entry]]:
    """Return the differing steps that are not listed, and the entries without a difference."""
    unlisted: list[Both] = []
    needed: set[Entry] = set()
    for both in found:
        reasons = [entry for entry in listed if fnmatchcase(both.words, entry.steps)]
        needed.update(reasons)
        if not reasons:
            unlisted.append(both)
    return unlisted, [entry for entry in listed if entry not in needed]
