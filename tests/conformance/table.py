"""The table: scenarios, the clients that can run them, and the Kafka they run against.

A scenario is a function of a client and a Kafka; its name is a sentence that could be false, and
`needs` lists abilities that not every client has.  It does not depend on the broker: the bootstrap
address of Apache Kafka works as well.  `cases()` pairs each scenario with every client that can
run it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError as KafkaPythonError

HEADERS = "headers of each record"
HEADER_TWICE = "one header twice, in order"
NULL_HEADERS = "headers that are null"
TIMESTAMPS = "timestamps of the sender's choice"
NO_RESET = "an offset that is not there is a fault, and nothing else is read"
LOOKS_ONLY = "asking for a topic does not make it"
NULLS_AND_EMPTIES = "nulls and empty bytes in one run"
LONG_LIVED = "one producer over a restart"
COMMAND = "a command line"
YOUNGEST = "youngest"
GROUPS = "members of groups"
COMMITS = "commits when told to"
ASYNC_COMMITS = "commits that are not waited for"
METADATA = "a text beside each committed offset"
STATIC = "members with a name of their own"
FENCED = "a member that gives up when it is told that it was replaced"
STEADY = "a member that outlives its connection"
ORDERLY = "a member that leaves has handed on all that it commits"
KEEPING = "a member that keeps its position in a partition that it keeps"
TRANSACTIONS = "transactions"
INTERLEAVED = "aborted transactions in the order of their ends"
VERSION_1 = "transactions of version 1, whatever version the cluster has"
VERSION_2 = "transactions of version 2, where the cluster has it"
MEMBER_OFFSETS = "offsets in a transaction as a member of the group (KIP-447)"
ANY_OFFSETS = "offsets of any group in a transaction"
COPIES = "a member that commits its position in the transactions of its copies"
CONSUMER_PROTOCOL = "members of the consumer protocol"
SHARE_GROUPS = "members of share groups"
RENEWALS = "renewed locks of records"
ABORTABLE = "a transaction with a refused record is aborted, and its producer goes on"

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
COOPERATIVE = "cooperative-sticky"
OPTIONAL = frozenset({*CODECS, *ASSIGNORS})
"""Values of variants that not every client supports: the client of the variant must."""

ANSWER_S_MAX = 60.0
WAIT_S_MAX = 90.0
"""Far longer than any wait should take; a test that waits in vain ends after it."""

QUICK = {"log_level": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}

Answer = TypeVar("Answer")


class Sent(NamedTuple):
    """A record to produce."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0


class Record(NamedTuple):
    """A consumed record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Refused(Exception):
    """The client got an error; the text is librdkafka's name of it."""


class Read(NamedTuple):
    """A record that a member of a group has read."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


Place = tuple[str, int]
"""A topic and a partition index."""


class Delivered(NamedTuple):
    """A record that a member of a share group has got, with its delivery count."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    count: int


class Member(Protocol):
    """A client that keeps reading in a group, in a process of its own."""

    read: list[Read]
    """The records it has read, in the order of arrival."""

    assigned: frozenset[Place]
    changes: list[tuple[str, frozenset[Place]]]
    """Its "assigned" and "revoked" events, with the partitions."""

    faults: list[str]
    """Errors that stopped it, or that it reported."""

    def commit(
        self, offsets: Mapping[Place, tuple[int, str]] | None = None, wait: bool = True
    ) -> None:
        """Commit its position, or these offsets, each with its metadata."""

    def leave(self) -> None:
        """Leave the group in an orderly way."""

    def kill(self) -> None:
        """Send SIGKILL."""


class ShareMember(Protocol):
    """A member of a share group, in a process of its own."""

    def poll(self, timeout_ms: int) -> list[Delivered]:
        """Return records as soon as there are any, none after the time."""

    def acknowledge(self, records: Mapping[Delivered, str]) -> dict[Place, int]:
        """Accept, release or reject records of the last poll; return the codes of errors.

        Without records, in the implicit mode, all of the last poll are accepted.
        """

    def leave(self) -> None:
        """Leave the group in an orderly way."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Stream(Protocol):
    """An idempotent producer that keeps sending; the value of a record is its number."""

    acked: dict[int, dict[int, bytes | None]]
    """Acknowledged records: by partition, offset to value."""

    count: int
    """The number of acknowledged records."""

    faults: list[str]

    def end(self) -> int:
        """Wait for the last acknowledgement; return the number of records sent."""


class Transactions(Protocol):
    """A transactional producer, in a process of its own."""

    def begin(self) -> None: ...

    def send(self, topic: str, records: Sequence[tuple[int, bytes]]) -> dict[int, list[int]]:
        """Send values to partitions; return the offsets by partition once all are acknowledged.

        kafkajs returns only the first offset of each.
        """

    def join(
        self, kafka: Kafka, group: str, topics: Sequence[str], settings: Mapping[str, str] = ...
    ) -> Member:
        """Become a member of a group in the same process; needs MEMBER_OFFSETS."""

    def keep_membership(self) -> None:
        """Keep what now identifies its member, for `add_offsets`; needs MEMBER_OFFSETS."""

    def add_offsets(
        self, group: str, offsets: Mapping[Place, int], *, as_member: bool = False
    ) -> None:
        """Commit a group's offsets as a part of the transaction; needs ANY_OFFSETS."""

    def end(self, *, commit: bool) -> None: ...

    def retire(self) -> None:
        """Close the producer."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Copier(Protocol):
    """A member of a group that copies what it reads in transactions, in a process of its own."""

    def copy(self, count: int, how: str) -> int:
        """Copy at most so many records in a transaction; return how many were committed.

        `how` is "commit", "abort", or "leave" for a transaction that is left open.  A rebalance
        aborts a transaction as well.
        """

    def kill(self) -> None:
        """Send SIGKILL."""


class Client(Protocol):
    """The interface of a client to a scenario; settings are librdkafka's."""

    name: str
    can: frozenset[str]
    only: frozenset[str]
    """Abilities that a scenario must need, for a client that is not asked the others."""

    def produce(
        self,
        kafka: Kafka,
        topic: str,
        records: Sequence[Sent],
        partition: int = -1,
        settings: Mapping[str, str] = ...,
    ) -> None:
        """Send in order and wait for the acknowledgements; raise Refused for an error."""

    def consume(
        self,
        kafka: Kafka,
        topic: str,
        partition: int = 0,
        start: int | str = "beginning",
        count: int | None = None,
        settings: Mapping[str, str] = ...,
    ) -> list[Record]:
        """Read `count` records, waiting for them, or all up to the end.

        `start` is an offset, a negative distance from the end, "beginning", "end" or
        "s@MILLISECONDS".
        """

    def join(
        self, kafka: Kafka, group: str, topics: Sequence[str], settings: Mapping[str, str] = ...
    ) -> Member:
        """Become a member of a group, and keep reading; needs GROUPS."""

    def share(
        self, kafka: Kafka, group: str, topics: Sequence[str], settings: Mapping[str, str] = ...
    ) -> ShareMember:
        """Become a member of a share group; needs SHARE_GROUPS."""

    def stream(self, kafka: Kafka, topic: str, partitions: int) -> Stream:
        """Send to the partitions in turn until the stream is ended; needs LONG_LIVED."""

    def transactional(self, kafka: Kafka, id: str, timeout_ms: int) -> Transactions:
        """Start a producer with a transactional id; needs TRANSACTIONS."""

    def copier(self, kafka: Kafka, id: str, group: str, source: str, sink: str) -> Copier:
        """Start a copier; the number that is a record's value chooses one of two partitions of
        `sink`.  Needs COPIES."""

    def ask(self, kafka: Kafka, what: str, **arguments: Any) -> Any:
        """Execute an admin command, named as in `can`; driven.py lists the results."""


class Lifetime(Protocol):
    """The part of kafkalite.testing.Broker that ends and restarts it."""

    workers: int

    @property
    def data(self) -> Path: ...

    def kill(self, node_id: int | None = None) -> None: ...
    def stop(self) -> None: ...
    def start(self) -> None: ...


class Kafka:
    """The Kafka under test: an address, and its broker's lifetime if the test started it."""

    def __init__(
        self, bootstrap: str, lifetime: Lifetime | None = None, replicas: int = 1
    ) -> None:
        self.bootstrap = bootstrap
        self.lifetime = lifetime
        self.replicas = replicas
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK})
        self.topics = itertools.count(1)

    def name(self) -> str:
        """Return a topic name that is not in use."""
        return f"conformance-{os.getpid()}-{time.time_ns():x}-{next(self.topics)}"

    def topic(self, partitions: int = 1, name: str = "", **config: str) -> str:
        """Create a topic and wait for its leaders; `segment_bytes="…"` sets `segment.bytes`."""
        name = name or self.name()
        keys = {key.replace("_", "."): value for key, value in config.items()}
        done(self.admin.create_topics([NewTopic(name, partitions, self.replicas, config=keys)]))
        until(lambda: self.led(name) == partitions)
        return name

    def led(self, name: str) -> int:
        """Return how many of a topic's partitions have a leader that responds as such."""
        count = len(self.admin.list_topics(name, timeout=ANSWER_S_MAX).topics[name].partitions)
        asked = {TopicPartition(name, index): OffsetSpec.latest() for index in range(count)}
        if not asked:
            return 0
        answers = self.admin.list_offsets(asked).values()
        return sum(answer.exception(ANSWER_S_MAX) is None for answer in answers)

    def end(self, topic: str, partition: int = 0, *, committed: bool) -> int:
        """Return a partition's last stable offset if `committed`, else its high watermark."""
        asked = {TopicPartition(topic, partition): OffsetSpec.latest()}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        (found,) = done(self.admin.list_offsets(asked, isolation_level=level))
        return int(found.offset)

    def remove_records(self, topic: str, before: int) -> None:
        """Delete the records of a topic's first partition before an offset."""
        done(self.admin.delete_records([TopicPartition(topic, 0, before)]))

    def committed(self, group: str) -> dict[Place, tuple[int, str]]:
        """Return a group's committed offsets and their metadata."""
        # librdkafka's admin reads a byte beyond the metadata.
        try:
            with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
                found = admin.list_group_offsets([group])[group]
        except KafkaPythonError as fault:
            raise Refused(str(fault)) from fault
        return {
            # confluent-kafka also commits the zero byte that ends a C string.
            (*place,): (at.offset, (at.metadata or "").removesuffix("\0"))
            for place, at in found.items()
        }


class Scenario(NamedTuple):
    name: str
    run: Callable[[Client, Kafka], None]
    needs: frozenset[str]
    restarts: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *needs: str, restarts: bool = False, **variants: Sequence[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to the table, once for each value of its variant if it has one."""
    assert len(variants) < 2

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        words = function.__name__
        for variant, values in variants.items():
            for value in values:
                run = bound(function, variant, value)
                name = f"{words}[{value}]"
                wanted = {*needs, value} if value in OPTIONAL else needs
                SCENARIOS[name] = Scenario(name, run, frozenset(wanted), restarts)
        if not variants:
            assert words not in SCENARIOS
            SCENARIOS[words] = Scenario(words, function, frozenset(needs), restarts)
        return function

    return enter


def bound(
    function: Callable[..., None], variant: str, value: object
) -> Callable[[Client, Kafka], None]:
    return lambda client, kafka: function(client, kafka, **{variant: value})


def cases(clients: Sequence[Client]) -> Iterator[tuple[Client, Scenario]]:
    """Yield each scenario with every client that can run it."""
    for client in clients:
        for entry in SCENARIOS.values():
            if client.only <= entry.needs <= client.can:
                yield client, entry


def done(futures: Mapping[Any, Any]) -> list[Any]:
    """Return all results of the admin; raise Refused for an error."""
    try:
        return [future.result(ANSWER_S_MAX) for future in futures.values()]
    except KafkaException as fault:
        raise Refused(said(fault.args[0])) from fault


def said(fault: KafkaError) -> str:
    """Return librdkafka's name of an error, followed by its text."""
    return f"{KafkaError(fault.code()).str()}: {fault.str()}"


def until(holds: Callable[[], bool], timeout_s: float = WAIT_S_MAX) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
