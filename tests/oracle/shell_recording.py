"""Kafka's own tools and kafkalite's over the same steps, and the output of both.

shell_recorded.json     by family and step: their exit code and lines, and kafkalite's
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.driven import Program
from tests.conformance.java_client import tools_words
from tests.oracle.shell_scenes import FAMILIES, Printed, Run, play

RECORDED = Path(__file__).with_name("shell_recorded.json")

# Prefixes of names, of the same length, because the width of tables depends on names.
THEIRS, OURS = "theirs-", "our-own"

# Kafka responds to a change before the next broker that gets a request knows of it, and no request
# can find out if it does.
CHANGES = {"--create", "--alter", "--delete"}
SETTLED_S = 0.3

PACKAGE = "org.apache.kafka.tools"
CLASSES = {
    "kafka-topics": f"{PACKAGE}.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": f"{PACKAGE}.ConsoleProducer",
    "kafka-console-consumer": f"{PACKAGE}.consumer.ConsoleConsumer",
    "kafka-console-share-consumer": f"{PACKAGE}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{PACKAGE}.consumer.group.ConsumerGroupCommand",
    "kafka-share-groups": f"{PACKAGE}.consumer.group.ShareGroupCommand",
    "kafka-groups": f"{PACKAGE}.GroupsCommand",
    "kafka-get-offsets": f"{PACKAGE}.GetOffsetShell",
    "kafka-delete-records": f"{PACKAGE}.DeleteRecordsCommand",
    "kafka-dump-log": f"{PACKAGE}.DumpLogSegments",
    "kafka-transactions": f"{PACKAGE}.TransactionsCommand",
    "kafka-features": f"{PACKAGE}.FeatureCommand",
}


class Both(NamedTuple):
    """A step, and its results in their tool and in kafkalite's."""

    words: str
    theirs: Printed
    ours: Printed


@contextmanager
def kafkas() -> Iterator[Run]:
    """Run Kafka's own tools, one after the other in one JVM."""
    with program(tools_words()) as run:

        def settled(tool: str, words: list[str], given: bytes) -> tuple[int, bytes]:
            ended = run(CLASSES[tool], words, given)
            if CHANGES & {*words}:
                time.sleep(SETTLED_S)
            return ended

        yield settled


@contextmanager
def our_own() -> Iterator[Run]:
    """Run kafkalite's tools, one after the other."""
    with program([sys.executable, "-m", "tests.oracle.our_tools"]) as run:
        yield run


@contextmanager
def program(command: Sequence[str]) -> Iterator[Run]:
    """Start a program that runs tools on commands; yield its run function."""
    started = Program(command)

    def run(tool: str, words: list[str], given: bytes) -> tuple[int, bytes]:
        ended = started.order("run", tool=tool, words=words, given=given.decode())
        return ended["code"], ended["printed"].encode()

    try:
        yield run
    finally:
        started.kill()


def record(bootstrap: str, directory: Path) -> dict[str, list[Both]]:
    """Run all families with both, and store the results."""
    found = {}
    with kafkas() as their_tools, our_own() as our_tools:
        for family, steps in FAMILIES.items():
            theirs = play(their_tools, family, bootstrap, THEIRS, directory)
            ours = play(our_tools, family, bootstrap, OURS, directory)
            found[family] = [
                Both(step.words, *pair)
                for step, pair in zip(steps, zip(theirs, ours, strict=True), strict=True)
            ]
    text = json.dumps({family: list(map(as_json, found[family])) for family in found}, indent=1)
    RECORDED.write_text(text + "\n")
    return found


def as_json(both: Both) -> dict[str, Any]:
    """Return a step's JSON form, with kafkalite's result only if it differs."""
    kept = {"asked": both.words, "theirs": both.theirs._asdict()}
    return kept | ({"ours": both.ours._asdict()} if both.ours != both.theirs else {})


def recorded() -> dict[str, list[Both]]:
    found = json.loads(RECORDED.read_text())
    return {family: list(map(as_both, found[family])) for family in found}


def as_both(kept: dict[str, Any]) -> Both:
    theirs = Printed(**kept["theirs"])
    return Both(kept["asked"], theirs, Printed(**kept["ours"]) if "ours" in kept else theirs)


def different(found: dict[str, list[Both]]) -> Iterator[Both]:
    """Yield the steps in which their tool and kafkalite's differ."""
    for both in (each for family in found.values() for each in family):
        if both.theirs != both.ours:
            yield both
