"""consume -G, as run from a shell: members share, commit what they wrote, and leave."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkalite.cli.clients import CONSUMER, ClusterClients
from kafkalite.cli.membership import GroupMember
from kafkalite.testing import Broker
from tests.cli.conftest import TIMEOUT_S, Run, RunCommand
from tests.conformance.commands import ours_heard
from tests.process.waiting import until

_numbers = itertools.count(1)


@pytest.fixture
def group() -> str:
    return f"sharing-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def member(kafka_broker: Broker, tmp_path: Path):
    """Start `kafkalite consume -G` with output to files; it ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> Member:
        names = [tmp_path / f"{kind}-{len(started)}" for kind in ("out", "err")]
        with names[0].open("wb") as out, names[1].open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "kafkalite", "consume", "-v", *words],
                env={**os.environ, "KAFKALITE_BOOTSTRAP": kafka_broker.bootstrap},
                stdout=out,
                stderr=err,
            )
        started.append(process)
        return Member(process, *names)

    yield start
    for process in started:
        process.kill()
        process.wait()


class Member:
    """A running member."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self.out = out
        self.err = err

    @property
    def result(self) -> list[str]:
        """Its messages about partitions so far: `assigned t:0`."""
        lines = self.err.read_text().splitlines()
        return [re.sub(r"^group \S+, member \S+: ", "", line) for line in lines]

    def partitions(self, topic: str) -> set[int]:
        """The partitions of a topic that it has."""
        found: set[int] = set()
        for what, places in filter(None, map(ours_heard, self.err.read_text().splitlines())):
            heard = {partition for name, partition in places if name == topic}
            found = found | heard if what == "assigned" else found - heard
        return found

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


def consumed(run: Run, *words: str) -> bytes:
    ended = run("consume", *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def lag(run_command: RunCommand, group: str) -> int:
    (found,) = run_command("group", "describe", group, "--json").json
    return found["lag"]


def test_group_consumer_continues_at_committed_offsets(run, run_command, kafka_topic, group):
    run("produce", "-t", kafka_topic, given=b"1\n2\n3\n4\n5\n")
    assert consumed(run, "-G", group, kafka_topic, "-c", "2") == b"1\n2\n"
    assert lag(run_command, group) == 3
    assert consumed(run, "-G", group, "-t", kafka_topic, "-e") == b"3\n4\n5\n"
    assert consumed(run, "-G", group, kafka_topic, "-e") == b""
    run_command("group", "reset", group, "--all-topics", "--to", "4")
    assert consumed(run, "-G", group, kafka_topic, "-e") == b"5\n"


@pytest.mark.parametrize("kafka_topic", [3], indirect=True)
def test_group_member_reads_several_topics_and_prints_its_assignment(
    run, kafka_topic, kafka_broker, group
):
    other = kafka_broker.topic()
    for topic, partition in (kafka_topic, "2"), (other, "0"):
        run("produce", "-t", topic, "-p", partition, given=b"x\n")
    ended = run("consume", "-G", group, kafka_topic, "-t", other, "-e", "-J", "-v")
    assert ended.returncode == 0
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    found = sorted((record["topic"], record["partition"]) for record in records)
    assert found == sorted([(kafka_topic, 2), (other, 0)])
    given, returned = ended.stderr.decode().splitlines()
    spans = " ".join(sorted([f"{kafka_topic}:0-2", f"{other}:0"]))
    assert re.fullmatch(rf"group {group}, member \S+: assigned {re.escape(spans)}", given)
    assert re.fullmatch(rf"group {group}, member \S+: revoked {re.escape(spans)}", returned)


def test_new_group_may_start_at_the_end(run, kafka_topic, group):
    run("produce", "-t", kafka_topic, given=b"old\n")
    assert consumed(run, "-G", group, kafka_topic, "-o", "end", "-e") == b""


@pytest.mark.parametrize("kafka_topic", [2], indirect=True)
def test_members_share_partitions_and_take_over_of_a_left_member(
    run, run_command, kafka_topic, group, member
):
    first = member("-G", group, kafka_topic)
    until(lambda: first.result == [f"assigned {kafka_topic}:0-1"])
    second = member("-G", group, kafka_topic)
    until(lambda: len(first.result) == 3 and len(second.result) == 1)
    assert first.result[1] == f"revoked {kafka_topic}:0-1"
    shares = {first.result[2], second.result[0]}
    assert shares == {f"assigned {kafka_topic}:0", f"assigned {kafka_topic}:1"}
    for partition in "0", "1":
        run("produce", "-t", kafka_topic, "-p", partition, given=b"x\n")
    until(lambda: first.out.read_bytes() == second.out.read_bytes() == b"x\n")
    assert second.end(signal.SIGINT) == 130
    until(lambda: first.result[-1] == f"assigned {kafka_topic}:0-1")
    assert first.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert lag(run_command, group) == 0


COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


class SteppingBackConsumer(Consumer):
    """Goes back to the start of each partition before each rebalance callback.

    librdkafka itself goes back by the records that consume() returns when the rebalance begins.
    """

    is_closing = False

    def close(self):
        self.is_closing = True
        super().close()

    def subscribe(self, topics, **callbacks):
        stepping = {name: self._stepping_back(each) for name, each in callbacks.items()}
        super().subscribe(topics, **stepping)

    def _stepping_back(self, callback):
        def called(consumer, topic_partitions):
            for each in self.assignment() if not self.is_closing else ():
                self.seek(TopicPartition(each.topic, each.partition, 0))
            callback(consumer, topic_partitions)

        return called


class SteppingBackClients(ClusterClients):
    """Clients whose consumer goes back."""

    def consumer(self, settings):
        return SteppingBackConsumer(self.settings(CONSUMER | settings))


@pytest.fixture
def same_handlers():
    """Restore the signal handlers, which a member replaces."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("same_handlers")
@pytest.mark.parametrize("kafka_topic", [4], indirect=True)
@pytest.mark.parametrize(
    ("settings", "protocol"),
    [({**COOPERATIVE, "heartbeat.interval.ms": "50"}, "classic"), ({}, "consumer")],
)
def test_member_reads_a_partition_that_it_keeps_once(
    settings, protocol, run, kafka_topic, kafka_broker, group, member
):
    for partition in range(4):
        run("produce", "-t", kafka_topic, "-p", str(partition), given=b"x\n" * 5)
    clients = SteppingBackClients(kafka_broker.bootstrap, [*settings.items()])
    first = GroupMember(clients, group, [kafka_topic], "earliest", protocol=protocol)
    read = []

    def read_records(count: int) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            for batch in first.batches(to_end=False, count=count):
                read.extend((message.partition(), message.offset()) for message in batch)

    with first:
        read_records(20)
        words = [word for each in settings.items() for word in ("-X", "=".join(each))]
        second = member("-G", group, kafka_topic, "--protocol", protocol, *words)
        reader = threading.Thread(target=read_records, args=[2])
        reader.start()
        try:
            until(lambda: len(second.partitions(kafka_topic)) == 2)
            kept = sorted({*range(4)} - second.partitions(kafka_topic))
            for partition in kept:
                run("produce", "-t", kafka_topic, "-p", str(partition), given=b"x\n")
            reader.join(TIMEOUT_S)
        finally:
            first.signals.received = signal.SIGINT  # ends the reader, if it still waits
            reader.join()
    assert sorted(read[:20]) == [(each, offset) for each in range(4) for offset in range(5)]
    assert sorted(read[20:]) == [(each, 5) for each in kept]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_commits_and_leaves_the_group(number, run, run_command, kafka_topic, group, member):
    run("produce", "-t", kafka_topic, given=b"1\n2\n3\n")
    ended = member("-G", group, kafka_topic)
    until(lambda: ended.out.read_bytes() == b"1\n2\n3\n")
    ended.end(number)
    (found,) = run_command("group", "describe", group, "--json").json
    assert (found["state"], found["members"], found["lag"]) == ("Empty", [], 0)


def test_records_not_written_are_not_committed(run, run_command, kafka_topic, kafka_broker, group):
    run("produce", "-t", kafka_topic, given=b"x" * 99 + b"\n" + b"y\n" * 50_000)
    words = [sys.executable, "-m", "kafkalite", "consume", "-G", group, kafka_topic]
    env = {**os.environ, "KAFKALITE_BOOTSTRAP": kafka_broker.bootstrap}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 141
    assert 0 < lag(run_command, group) <= 50_001


@pytest.fixture
def stuck(run, kafka_topic, kafka_broker, group):
    """A member in the middle of printing a record: its output is not read."""
    run("produce", "-t", kafka_topic, given=(b"y" * 100_000 + b"\n") * 9)
    words = [sys.executable, "-m", "kafkalite", "consume", "-G", group, kafka_topic]
    env = {**os.environ, "KAFKALITE_BOOTSTRAP": kafka_broker.bootstrap}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        until(lambda: unread(process.stdout) == 4096)
        yield process
        process.kill()


def unread(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_signal_waits_for_the_commit_of_the_current_batch(run_command, stuck, group):
    stuck.send_signal(signal.SIGINT)
    lines = stuck.stdout.read().splitlines()
    assert stuck.wait(TIMEOUT_S) == 130
    assert {len(line) for line in lines} == {100_000}
    assert lag(run_command, group) == 9 - len(lines)


def test_second_signal_ends_a_blocked_member(run, stuck, kafka_topic, group):
    stuck.send_signal(signal.SIGTERM)
    until(lambda: signal_is_handled(stuck, signal.SIGTERM))
    stuck.send_signal(signal.SIGINT)
    assert stuck.wait(TIMEOUT_S) == 130
    assert consumed(run, "-G", group, kafka_topic, "-e").count(b"\n") == 9


def signal_is_handled(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Return True if a signal that was sent is no longer pending."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    pending = [int(word, 16) for word in re.findall(r"^S[hi][dg]Pnd:\s+(\w+)", status, re.M)]
    return not any(word >> number - 1 & 1 for word in pending)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["-G", "g", "nowhere"], 1, "topic 'nowhere': Unknown topic"),
        (["-G", "g", "t", "-p", "0"], 2, "-p and -G exclude each other"),
        (["t", "--share"], 2, "--share requires -G"),
        (["t", "--protocol", "consumer"], 2, "--protocol requires -G"),
        (["-G", "g", "t", "--share", "-e"], 2, "-e and --share exclude each other"),
        (["-G", "g", "t", "--share", "-v"], 2, "-v and --share exclude each other"),
        (["-G", "g", "t", "--share", "-o", "end"], 2, "share.auto.offset.reset"),
        (["-G", "g", "t", "--share", "--protocol", "classic"], 2, "exclude each other"),
        (["-G", "g", "t", "-o", "5"], 2, "-o with -G must be beginning or end: "),
        (["t", "-v"], 2, "-v requires -G"),
        (["-G", "g"], 2, "specify the topic: -t TOPIC"),
        (["t", "u"], 2, "to read several topics, specify a group with -G"),
        (["-G", "", "t"], 2, "'' is not a valid name"),
        (["-G", "g\udcff", "t"], 2, "is not a valid name"),
    ],
)
def test_invalid_group_arguments_are_one_line(words, code, sentence, run):
    ended = run("consume", *words)
    assert (ended.returncode, ended.stdout) == (code, b"")
    assert sentence in ended.stderr.decode()
    assert ended.stderr.count(b"\n") == 1
