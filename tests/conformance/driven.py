"""Clients that are programs of their own, driven over JSON lines: one protocol for every language.

A program reads commands from stdin, one per line, and writes the response to each to stdout before
it reads the next:

    {"do": "produce", "bootstrap": "127.0.0.1:9092", "topic": …}     a command
    {"answer": …}                                                    its result
    {"refused": {"code": 3, "text": "…"}}                            an error code of Kafka's
    {"refused": {"code": null, "text": "…"}}                         an error of the client itself

Bytes are strings of the characters 0 to 255, and null is null.  Settings are librdkafka's; a
program translates those it gets.  A program ends when its stdin ends.

    produce    topic, records [[value, key, [[header, content]…], timestamp_ms]…], partition (-1:
               by key), settings; a timestamp of 0 is left to the client
    consume    topic, partition, start, count, settings: [[partition, offset, key, value, headers,
               timestamp_ms]…]; start and count are as in table.Client
    stream     topic, partitions: responds at once; from then on record i, its value the number in
               decimals, goes to partition i % partitions without an end, by an idempotent producer
               with up to 500 in flight, and each acknowledgement is an event
    unstream   stop that, wait for all acknowledgements: number of records sent

    join       group, topics, settings: responds at once; from then on it reads, and sends events.
               "enable.auto.commit" is the client's own; where it is "false", only `commit`
               commits
    commit     offsets [[topic, partition, offset, metadata]…] or null for its position, wait:
               True if the call waits for the broker
    leave      close the consumer in an orderly way

    events, between responses:
    {"assigned": [[topic, partition]…]}     partitions added; {"revoked": …} partitions removed
    {"read": [[topic, partition, offset, value]…]}
    {"acked": [[partition, offset, value]…]}
    {"fault": "…"}                          the error that ended its member or stream

Commands of a member of a share group, one in a program, which does nothing between them:

    share_join   group, topics, settings: null; "share.acknowledgement.mode" is "explicit" unless
                 it is given
    share_poll   timeout_ms: [[topic, partition, offset, value, delivery count]…], empty after the
                 time
    share_acknowledge  records [[topic, partition, offset, type]…] of the last share_poll, with a
                 type "accept", "release" or "reject"; none in the implicit mode: [[topic,
                 partition, error code]…] of the partitions that failed
    share_leave  close it: null

Commands of a transactional producer, one in a program:

    init         id, timeout_ms: null                   begin         null
    send         topic, records [[partition, value]…]: [[partition, offset]…], in no order, once
                 all are acknowledged
    add_offsets  group, offsets [[topic, partition, offset]…], as_member: null
    keep_membership  keep what identifies the member of `join` for add_offsets as_member: null
    end          commit (False aborts): null            retire        close it: null

A command of a member that copies in transactions, one in a program:

    copy         id, timeout_ms, group, source, sink, partitions (of the sink), count, how
                 ("commit", "abort", "leave"): number of records committed, or left open

Optional commands (`can`), and their results:

    create_topic         name, partitions, replicas, config {}, trial: null
    delete_topic         name: null                     grow_topic    name, partitions: null
    list_topics          [name…]
    describe_topic       name: {"internal": …, "partitions": [{"id", "leader", "replicas", "isr"}…]}
    delete_records       topic, partition, before: null
    offset               topic, partition, at ("earliest", "latest", milliseconds; "youngest" where
                         `can` contains it): the offset
    describe_cluster     {"id", "controller", "nodes": [id…]}
    describe_config      kind ("topic", "broker", "group"), name: {key: [value, is it a default]}
    alter_config         kind, name, changes {key: value, null to unset}: null
    replace_config       the same, but other keys are unset (AlterConfigs)
    list_groups          {group: state, or null if the client does not return it}
    describe_group       group: {"state", "protocol" (the assignor), "members": [{"id", "client_id",
                         "host", "instance", "assigned": [[topic, partition]…]}…]}
    delete_group         group: null
    group_offsets        group: [[topic, partition, offset, metadata]…]
    set_group_offsets    group, offsets [[topic, partition, offset, metadata]…]: null
    delete_group_offsets group, partitions [[topic, partition]…]: null
"""

from __future__ import annotations

import atexit
import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from tests.conformance.table import (
    Delivered,
    Kafka,
    Member,
    Place,
    Read,
    Record,
    Refused,
    Sent,
)

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 60
COPY_TIMEOUT_MS = 60_000
Event = dict[str, Any]


class Program:
    """One running program."""

    def __init__(self, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        self.answers: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.heard: Callable[[Event], None] = ignored
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()

    def listen(self) -> None:
        """Read responses and events until the program ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            if "answer" in told or "refused" in told:
                self.answers.put(told)
            else:
                self.heard(told)
        self.answers.put({"refused": {"code": None, "text": "the program has ended"}})

    def order(self, do: str, **arguments: Any) -> Any:
        """Send a command and return its result; raise Refused for an error."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        told = self.answers.get(timeout=PATIENCE_S)
        if "answer" in told:
            return told["answer"]
        raise Refused(named(**told["refused"]))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


def ignored(_: Event) -> None:
    """Ignore an event."""


def named(code: int | None, text: str) -> str:
    """Return librdkafka's name of the broker's error code, followed by the client's own text."""
    return text if code is None else f"{KafkaError(code).str()}: {text}"


class Driven:
    """A client that is a program; idle programs are kept for the next command.

    `words` returns the command line, and raises Unavailable where the program is not available.
    """

    def __init__(
        self,
        name: str,
        words: Callable[[], Sequence[str]],
        can: frozenset[str],
        only: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.words = words
        self.can = can
        self.only = only
        self.idle: list[Program] = []
        atexit.register(self.close)

    def close(self) -> None:
        while self.idle:
            self.idle.pop().kill()

    def program(self) -> Program:
        """Return an idle program, or start one."""
        try:
            return self.idle.pop()
        except IndexError:
            return Program(self.words())

    @contextlib.contextmanager
    def busy(self) -> Iterator[Program]:
        """Yield a program for one command; one that did not respond is not used again."""
        program = self.program()
        try:
            yield program
        except Refused:
            if program.process.poll() is None:
                self.idle.append(program)
            else:
                program.kill()
            raise
        except BaseException:
            program.kill()
            raise
        self.idle.append(program)

    def ask(self, kafka: Kafka, what: str, **arguments: Any) -> Any:
        with self.busy() as program:
            return program.order(what, bootstrap=kafka.bootstrap, **arguments)

    def produce(
        self,
        kafka: Kafka,
        topic: str,
        records: Sequence[Sent],
        partition: int = -1,
        settings: Mapping[str, str] = {},
    ) -> None:
        lines = [
            [text(r.value), text(r.key), [[n, text(c)] for n, c in r.headers], r.timestamp_ms]
            for r in records
        ]
        self.ask(
            kafka,
            "produce",
            topic=topic,
            records=lines,
            partition=partition,
            settings=dict(settings),
        )

    def consume(
        self,
        kafka: Kafka,
        topic: str,
        partition: int = 0,
        start: int | str = "beginning",
        count: int | None = None,
        settings: Mapping[str, str] = {},
    ) -> list[Record]:
        lines = self.ask(
            kafka,
            "consume",
            topic=topic,
            partition=partition,
            start=start,
            count=count,
            settings=dict(settings),
        )
        return [
            Record(at, offset, raw(key), raw(value), [(n, raw(c)) for n, c in headers], time_ms)
            for at, offset, key, value, headers, time_ms in lines
        ]

    def join(
        self,
        kafka: Kafka,
        group: str,
        topics: Sequence[str],
        settings: Mapping[str, str] = {},
    ) -> DrivenMember:
        return DrivenMember(self, kafka, group, topics, settings)

    def share(
        self,
        kafka: Kafka,
        group: str,
        topics: Sequence[str],
        settings: Mapping[str, str] = {},
    ) -> DrivenShareMember:
        return DrivenShareMember(self, kafka, group, topics, settings)

    def stream(self, kafka: Kafka, topic: str, partitions: int) -> DrivenStream:
        return DrivenStream(self, kafka, topic, partitions)

    def transactional(self, kafka: Kafka, id: str, timeout_ms: int) -> DrivenTransactions:
        return DrivenTransactions(self, kafka, id, timeout_ms)

    def copier(self, kafka: Kafka, id: str, group: str, source: str, sink: str) -> DrivenCopier:
        place = {"bootstrap": kafka.bootstrap, "group": group, "source": source, "sink": sink}
        return DrivenCopier(self.program(), {"id": id, **place})


class DrivenMember(Member):
    """A program that is a member of a group."""

    def __init__(
        self,
        client: Driven,
        kafka: Kafka,
        group: str,
        topics: Sequence[str],
        settings: Mapping[str, str],
        shared: Program | None = None,
    ) -> None:
        """`shared` is a program that does more than this."""
        self.client = client
        self.is_shared = shared is not None
        self.read: list[Read] = []
        self.assigned: frozenset[Place] = frozenset()
        self.changes: list[tuple[str, frozenset[Place]]] = []
        self.faults: list[str] = []
        self.program = client.program() if shared is None else shared
        self.program.heard = self.hear
        self.program.order(
            "join",
            bootstrap=kafka.bootstrap,
            group=group,
            topics=list(topics),
            settings=dict(settings),
        )

    def hear(self, event: Event) -> None:
        for what, told in event.items():
            if what == "read":
                self.read += [Read(topic, at, offset, raw(v)) for topic, at, offset, v in told]
            elif what == "fault":
                self.faults.append(told)
            else:
                places = frozenset((topic, partition) for topic, partition in told)
                if what == "revoked" and not places:
                    continue
                self.changes.append((what, places))
                if what == "assigned":
                    self.assigned |= places
                else:
                    self.assigned -= places

    def commit(
        self, offsets: Mapping[Place, tuple[int, str]] | None = None, wait: bool = True
    ) -> None:
        given = None if offsets is None else [[*at, *what] for at, what in offsets.items()]
        self.program.order("commit", offsets=given, wait=wait)

    def leave(self) -> None:
        try:
            self.program.order("leave")
        except BaseException:
            self.kill()
            raise
        self.program.heard = ignored
        self.assigned = frozenset()
        if not self.is_shared:
            self.client.idle.append(self.program)

    def kill(self) -> None:
        self.program.kill()
        self.assigned = frozenset()


class DrivenShareMember:
    """A program that is a member of a share group."""

    def __init__(
        self,
        client: Driven,
        kafka: Kafka,
        group: str,
        topics: Sequence[str],
        settings: Mapping[str, str],
    ) -> None:
        self.client = client
        self.program = client.program()
        self.program.order(
            "share_join",
            bootstrap=kafka.bootstrap,
            group=group,
            topics=list(topics),
            settings=dict(settings),
        )

    def poll(self, timeout_ms: int) -> list[Delivered]:
        lines = self.program.order("share_poll", timeout_ms=timeout_ms)
        return [
            Delivered(topic, partition, offset, raw(value), count)
            for topic, partition, offset, value, count in lines
        ]

    def acknowledge(self, records: Mapping[Delivered, str]) -> dict[Place, int]:
        lines = [[each.topic, each.partition, each.offset, kind] for each, kind in records.items()]
        failed = self.program.order("share_acknowledge", records=lines)
        return {(topic, partition): code for topic, partition, code in failed}

    def leave(self) -> None:
        self.program.order("share_leave")
        self.client.idle.append(self.program)

    def kill(self) -> None:
        self.program.kill()


class DrivenStream:
    """A program whose producer keeps sending; `acked` has its acknowledgements: offset to value."""

    def __init__(self, client: Driven, kafka: Kafka, topic: str, partitions: int) -> None:
        self.client = client
        self.acked: dict[int, dict[int, bytes | None]] = {at: {} for at in range(partitions)}
        self.faults: list[str] = []
        self.program = client.program()
        self.program.heard = self.hear
        self.program.order("stream", bootstrap=kafka.bootstrap, topic=topic, partitions=partitions)

    def hear(self, event: Event) -> None:
        if "fault" in event:
            self.faults.append(event["fault"])
        for partition, offset, value in event.get("acked", ()):
            self.acked[partition][offset] = raw(value)

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    def end(self) -> int:
        """Wait for the last acknowledgement; return the number of records sent."""
        try:
            sent = self.program.order("unstream")
        except BaseException:
            self.program.kill()
            raise
        self.program.heard = ignored
        self.client.idle.append(self.program)
        return int(sent)


class DrivenTransactions:
    """A program whose producer is transactional."""

    def __init__(self, client: Driven, kafka: Kafka, id: str, timeout_ms: int) -> None:
        self.client = client
        self.bootstrap = kafka.bootstrap
        self.program = client.program()
        try:
            self.program.order("init", bootstrap=self.bootstrap, id=id, timeout_ms=timeout_ms)
        except BaseException:
            self.kill()
            raise

    def begin(self) -> None:
        self.program.order("begin")

    def send(self, topic: str, records: Sequence[tuple[int, bytes]]) -> dict[int, list[int]]:
        lines = [[partition, text(value)] for partition, value in records]
        placed: dict[int, list[int]] = {}
        for partition, offset in self.program.order("send", topic=topic, records=lines):
            placed.setdefault(partition, []).append(offset)
        return placed

    def join(
        self, kafka: Kafka, group: str, topics: Sequence[str], settings: Mapping[str, str] = {}
    ) -> DrivenMember:
        return DrivenMember(self.client, kafka, group, topics, settings, self.program)

    def keep_membership(self) -> None:
        self.program.order("keep_membership")

    def add_offsets(
        self, group: str, offsets: Mapping[Place, int], *, as_member: bool = False
    ) -> None:
        lines = [[*place, offset] for place, offset in offsets.items()]
        more = {"as_member": True} if as_member else {}
        self.program.order(
            "add_offsets", bootstrap=self.bootstrap, group=group, offsets=lines, **more
        )

    def end(self, *, commit: bool) -> None:
        self.program.order("end", commit=commit)

    def retire(self) -> None:
        self.program.order("retire")
        self.client.idle.append(self.program)

    def kill(self) -> None:
        self.program.kill()


class DrivenCopier:
    """A program that copies in transactions; it is used for nothing else."""

    def __init__(self, program: Program, words: Mapping[str, str]) -> None:
        self.program = program
        self.words = words

    def copy(self, count: int, how: str) -> int:
        return int(
            self.program.order(
                "copy", **self.words, timeout_ms=COPY_TIMEOUT_MS, partitions=2, count=count, how=how
            )
        )

    def kill(self) -> None:
        self.program.kill()


def text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("latin-1")


def raw(told: str | None) -> bytes | None:
    return None if told is None else told.encode("latin-1")
