"""The kinds of members of F22's groups: their clients and protocols, and how each is started."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conformance.java_client import words
from tests.faults.group_member import (
    HEARTBEAT_MS,
    MAX_POLL_INTERVAL_MS,
    READ_COUNT_MAX,
    SESSION_MS,
)
from tools.apache_kafka import BROKER, Unavailable

LIBRDKAFKA, NATIVE = "librdkafka", "native"
KAFKA_PYTHON, AIOKAFKA, JAVA = "kafka_python", "aiokafka", "java"
EAGER, COOPERATIVE, MIXED = "eager", "cooperative", "mixed"
JAVA_SETTINGS = {
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": HEARTBEAT_MS,
    "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
    "max.poll.records": READ_COUNT_MAX,
}


class MemberKind(NamedTuple):
    """The client of a member, and its assignor; "consumer" is the consumer protocol."""

    client: str
    strategy: str

    @property
    def is_classic(self) -> bool:
        return self.strategy != "consumer"

    @property
    def may_be_static(self) -> bool:
        """False if the client goes on when it is told that another has its instance id."""
        return self.client != AIOKAFKA

    @property
    def is_available(self) -> bool:
        if self.client != JAVA:
            return True
        try:
            java_command()
        except Unavailable:
            return False
        return True

    def command(self) -> Sequence[str]:
        """Return the command of the member's program, without its arguments."""
        if self.client == JAVA:
            return java_command()
        return [sys.executable, "-m", f"tests.faults.{self.client}_member"]


CLASSIC_CLIENTS = (LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA, JAVA)
CONSUMER_CLIENTS = (LIBRDKAFKA, NATIVE, JAVA)
KINDS = {
    EAGER: tuple(MemberKind(client, "roundrobin") for client in (LIBRDKAFKA, AIOKAFKA, JAVA)),
    COOPERATIVE: tuple(MemberKind(client, "cooperative-sticky") for client in (LIBRDKAFKA, JAVA)),
    MIXED: (
        *(MemberKind(client, "range") for client in CLASSIC_CLIENTS),
        *(MemberKind(client, "consumer") for client in CONSUMER_CLIENTS),
    ),
}
"""The kinds of a group's members."""


@functools.cache
def java_command() -> Sequence[str]:
    """Return the command of Java's member; raise Unavailable if it cannot be compiled."""
    java, *more = words(Path(__file__).with_name("java_members"), "GroupMember", BROKER)
    return [java, *(f"-D{key}={value}" for key, value in JAVA_SETTINGS.items()), *more]


class GroupKinds:
    """The available kinds of a group's members, and those of its static ones.

    All static members have one protocol, so that the group of both protocols changes its own when
    the last member of the other comes or goes.
    """

    def __init__(self, group: str, *, static_classic: bool) -> None:
        self.all = [kind for kind in KINDS[group] if kind.is_available]
        self.static = [
            kind for kind in self.all
            if kind.may_be_static and (group != MIXED or kind.is_classic is static_classic)
        ]  # fmt: skip

    def choose(self, dice: random.Random, *, static: bool) -> MemberKind:
        return dice.choice(self.static if static else self.all)
