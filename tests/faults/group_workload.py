"""F22: groups whose members join, leave, are killed, pause and return as zombies, all the time.

Two groups of real clients read one topic; some members of each are static.  The first is of members
of the classic protocol, of librdkafka and others, with eager or cooperative rebalances.  The second
is mixed of both protocols and all clients (member_kinds.py), and changes its protocol when the last
member of the consumer protocol goes, or the first comes.  About every second a fault hits one of
the groups, now and then the coordinator.  With several replicas of the internal topics, half of the
coordinator's faults remove its logs as well.  All that the coordinator accepted is read from
`__consumer_offsets` by an ordinary consumer and checked (group_log.py); at the end every record
must have been read by each group, and all must be committed soon after the faults end.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import IO, Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafkalite.coordination.topic_names import CONSUMER_OFFSETS, INTERNAL_TOPICS
from kafkalite.protocol.schemas import consumer_group_records, group_records
from kafkalite.testing import Broker
from tests.faults import group_log
from tests.faults.group_log import (
    CommitResult,
    Committed,
    CurrentAssignment,
    Generation,
    GroupEnded,
    GroupEpoch,
    GroupHistory,
    assigned,
)
from tests.faults.group_member import HEARTBEAT_MS, SESSION_MS
from tests.faults.harness import load_factor
from tests.faults.history import ACKED, History, Send
from tests.faults.member_kinds import COOPERATIVE, EAGER, MIXED, GroupKinds, MemberKind
from tests.faults.prober import guarded
from tests.faults.processes import SUPERVISOR, Processes

DYNAMIC, STATIC = 3, 2
MEMBERS_MAX = 6
PACE_S = (0.2, 1.2)
SHORT_PAUSE_S = 0.5
STABLE_S_MAX = 10.0
QUIET_S_MAX = 60.0
"""Maximum wait for events that are expected much sooner."""
EXPECTED_ERRORS = ("fenced", "instance", "groupidnotfound", "rebalanceinprogress")
"""Words of the errors of two members with one instance id; of one of the consumer protocol that was
paused until its group was a classic one, which ends Java's consumer; and of one whose JoinGroup
waited while its group was upgraded, which ends aiokafka's."""
EXPECTED_EXITS = (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
"""The last two are of members that had hardly started; the last is Java's."""
OUTPUT_SIZE_MAX = 1_000
PRODUCE_PAUSE_S = 0.02
PRODUCE_COUNT = 40
CONFIG = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
}


def internal_factors(replicas: int) -> dict[str, str]:
    """Return the settings for this number of replicas of the internal topics."""
    return {
        f"{topic}.replication.factor": str(replicas)
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    }


@dataclass(eq=False)
class Member:
    """A member's process, and its events."""

    group: str
    name: str
    kind: MemberKind
    instance: str
    process: subprocess.Popen[str]
    stderr: IO[bytes]
    reader: threading.Thread | None = None
    resume_at: float = 0.0
    """Time at which a stopped member continues; 0 while it runs."""

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def last_output(self) -> str:
        """Return the end of what the process wrote to standard error."""
        self.stderr.seek(0)
        return self.stderr.read()[-OUTPUT_SIZE_MAX:].decode(errors="replace")


@dataclass
class Churn:
    """One run of F22."""

    broker: Broker
    topic: str
    partitions: int
    seed: int
    history: History
    replicas: int = 1
    """The number of replicas of the internal topics."""
    faults: list[str] = field(default_factory=list)
    diary: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.processes = Processes(self.broker)
        names = ((EAGER, COOPERATIVE)[self.seed % 2], MIXED)
        self.groups = {name: GroupHistory() for name in names}
        static_classic = self.seed // 2 % 2 == 0
        self.kinds = {name: GroupKinds(name, static_classic=static_classic) for name in names}
        self.started: Counter[str] = Counter()
        """The number of members by client and strategy."""
        self.client_ids: dict[tuple[str, str], str] = {}
        """By group and member id, of members of groups of the consumer protocol."""
        self.members: list[Member] = []
        self.turns: dict[str, int] = defaultdict(int)
        self.reads: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self.running = True
        self.quiet = False
        self.names = 0
        self.threads = [
            threading.Thread(target=guarded, args=(work, self.faults))
            for work in (self.produce, self.follow)
        ]
        self.recoveries: dict[str, list[float]] = defaultdict(list)
        self.events: list[str] = []
        """The reports of the members, with times."""

    @property
    def generations(self) -> int:
        """The number of generations in the log of both groups."""
        return sum(history.generations for history in self.groups.values())

    # -- clients -----------------------------------------------------------------------------

    def produce(self) -> None:
        """Write to every partition until the run becomes quiet."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

        def outcome(send: Send, fault: Any, message: Any) -> None:
            if fault is None:
                send.outcome, send.offset = ACKED, message.offset()

        number = 0
        while not self.quiet:
            for _ in range(PRODUCE_COUNT):
                send = Send("producer", number % self.partitions, str(number))
                self.history.sends.append(send)
                producer.produce(
                    self.topic, send.value, partition=send.partition,
                    on_delivery=lambda fault, message, send=send: outcome(send, fault, message),
                )  # fmt: skip
                number += 1
            producer.poll(0)
            time.sleep(PRODUCE_PAUSE_S)
        producer.flush(QUIET_S_MAX)

    def follow(self) -> None:
        """Read from `__consumer_offsets` what the coordinator accepted."""
        consumer = Consumer({
            "bootstrap.servers": self.broker.bootstrap, "group.id": "follower", "log_level": 0,
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
        })  # fmt: skip
        consumer.assign([TopicPartition(CONSUMER_OFFSETS, 0, 0)])
        while self.running:
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.accepted(message.key(), message.value())
        consumer.close()

    def accepted(self, key: bytes, value: bytes | None) -> None:
        record = group_records.read(key, value)
        assert record is not None, f"a record of an unknown kind: {key!r}"
        history = self.groups[record.group_id]
        value = record.value
        match record.kind:
            case group_records.OFFSET_COMMIT if value is not None:
                word = value.metadata.rstrip("\0")  # librdkafka's terminating zero
                history.log.append(Committed(record.key.partition, value.offset, word))
            case group_records.GROUP_METADATA if value is not None:
                owners = tuple(
                    (each["client_id"], assigned(each["assignment"], self.topic))
                    for each in value["members"]
                )
                history.log.append(Generation(value["generation"], owners))
            case consumer_group_records.CONSUMER_GROUP if value is not None:
                history.log.append(GroupEpoch(value["epoch"]))
            case group_records.GROUP_METADATA | consumer_group_records.CONSUMER_GROUP:
                history.log.append(GroupEnded())
            case consumer_group_records.CONSUMER_MEMBER if value is not None:
                self.client_ids[record.key] = value["client_id"]
            case consumer_group_records.CURRENT_ASSIGNMENT:
                self.owns(history, record.key, value)

    def owns(
        self, history: GroupHistory, member: tuple[str, str], value: dict[str, Any] | None
    ) -> None:
        """Note what a member of the consumer protocol owns; None: it was removed."""
        parts: list[int] = []
        if value is not None:
            # The group reads one topic.
            for each in (*value["assigned_partitions"], *value["partitions_pending_revocation"]):
                parts += each["partitions"]
        name = self.client_ids.get(member, "")
        history.log.append(CurrentAssignment(member[1], name, tuple(sorted(parts))))

    # -- members -----------------------------------------------------------------------------

    def start(self, group: str, instance: str = "", kind: MemberKind | None = None) -> Member:
        """Start a member, or restart a static one, of this kind or of one by chance."""
        self.names += 1
        name = instance or f"{group}-{self.names}"
        kind = kind or self.kinds[group].choose(self.dice, static=bool(instance))
        self.started[" ".join(kind)] += 1
        self.turns[name] += 1
        words = [self.broker.bootstrap, self.topic, group, name, str(self.turns[name]),
                 kind.strategy, *([instance] if instance else [])]  # fmt: skip
        stderr = tempfile.TemporaryFile()
        process = subprocess.Popen(
            [*kind.command(), *words], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        member = Member(group, name, kind, instance, process, stderr)
        member.reader = threading.Thread(
            target=guarded, args=(lambda: self.listen(member), self.faults)
        )
        member.reader.start()
        self.members.append(member)
        return member

    def listen(self, member: Member) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            if not line.endswith("\n"):
                break  # killed within a line
            word, *said = json.loads(line)
            self.events.append(f"{time.time():.3f} {member.name} {' '.join(member.kind)} {line}")
            if word == "commit":
                self.groups[member.group].results.append(CommitResult(*said))
            elif word == "read":
                partition, first, last = said
                self.reads[member.group, partition].append((first, last))
            elif word == "error" and not any(each in said[0].lower() for each in EXPECTED_ERRORS):
                self.faults.append(f"{member.name} was told: {said[0]}")

    def living(self, group: str, *, static: bool | None = None) -> list[Member]:
        """Return the members that run and are not stopped, of one kind or of both."""
        return [
            member
            for member in self.members
            if member.group == group and member.lives and not member.resume_at
            and static in (None, bool(member.instance))
        ]  # fmt: skip

    def send(self, member: Member, number: signal.Signals) -> None:
        if member.lives:
            member.process.send_signal(number)

    def signal_one(self, group: str, number: signal.Signals) -> None:
        """Send a signal to one of the members that are not static, if any of them runs."""
        there = self.living(group, static=False)
        if there:
            self.send(self.dice.choice(there), number)

    # -- faults ------------------------------------------------------------------------------

    def kill(self, group: str) -> None:
        """Kill a member; start another."""
        self.signal_one(group, signal.SIGKILL)
        self.start(group)

    def leave(self, group: str) -> None:
        """Terminate a member in an orderly way; start another."""
        self.signal_one(group, signal.SIGTERM)
        self.start(group)

    def grow(self, group: str) -> None:
        if len(self.living(group)) < MEMBERS_MAX:
            self.start(group)

    def shrink(self, group: str) -> None:
        there = self.living(group, static=False)
        if len(there) > 1:
            self.send(self.dice.choice(there), signal.SIGTERM)

    def zombie(self, group: str) -> None:
        """Stop a member until its session has expired, then let it continue."""
        self.pause(group, SESSION_MS / 1000 + 1 + self.dice.random())
        if not self.living(group, static=False):
            self.start(group)

    def doze(self, group: str) -> None:
        """Stop a member for a moment."""
        self.pause(group, SHORT_PAUSE_S)

    def pause(self, group: str, seconds: float) -> None:
        member = self.dice.choice(self.living(group))
        self.send(member, signal.SIGSTOP)
        member.resume_at = time.monotonic() + seconds

    def restart_static(self, group: str) -> None:
        """Kill a static member and restart it within its session.

        With the consumer protocol it is terminated, because one that was killed keeps its instance
        id until the session expires.
        """
        member = self.dice.choice(self.living(group, static=True) or self.living(group))
        if member.kind.is_classic:
            self.send(member, signal.SIGKILL)
        else:
            self.send(member, signal.SIGTERM)
            member.process.wait(QUIET_S_MAX)
        self.start(group, member.instance, member.kind)

    def conflict(self, group: str) -> None:
        """Start a second member with the instance id of a running one."""
        for member in self.living(group, static=True)[:1]:
            self.start(group, member.instance, member.kind)

    def kill_coordinator(self, group: str) -> None:
        """Kill the supervisor, and perhaps remove its logs of internal topics."""
        for history in self.groups.values():
            history.interrupted = True
        if self.replicas > 1 and self.dice.random() < 0.5:
            self.diary.append(f"{time.time():.3f} the coordinator's logs are removed")
            for topic in INTERNAL_TOPICS:
                for directory in self.broker.data.glob(f"{topic}-*"):
                    shutil.rmtree(directory)
        self.processes.kill(SUPERVISOR)

    ACTS = (kill, kill, leave, leave, grow, shrink, zombie, zombie, doze, restart_static, conflict,
            kill_coordinator)  # fmt: skip

    # -- the run -----------------------------------------------------------------------------

    def play(self, count: int) -> None:
        """Run until there were `count` rebalances, then wait until the groups are stable."""
        for group in self.groups:
            for number in range(DYNAMIC + STATIC):
                self.start(group, f"{group}-static-{number}" if number < STATIC else "")
        for thread in self.threads:
            thread.start()
        deadline = time.monotonic() + 30 + 4 * count * load_factor()
        while self.generations < count and not self.faults:
            time.sleep(self.dice.uniform(*PACE_S))
            self.resume(time.monotonic())
            group = self.dice.choice([*self.groups])
            if not self.living(group):
                self.start(group)
            act = self.dice.choice(self.ACTS)
            self.diary.append(f"{time.time():.3f} {act.__name__} {group}")
            act(self, group)
            if time.monotonic() > deadline:
                self.faults.append(f"I14: only {self.generations} rebalances of {count}")
        self.quiet = True
        self.threads[0].join()
        self.settle()
        self.end()
        self.judge()

    def resume(self, now: float) -> None:
        for member in self.members:
            if member.resume_at and member.resume_at <= now:
                self.send(member, signal.SIGCONT)
                member.resume_at = 0.0

    def settle(self) -> None:
        """Let all members run; both groups must soon be stable and have committed everything."""
        self.resume(float("inf"))
        for group in self.groups:
            if not self.living(group):
                self.start(group)
        begun = time.monotonic()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        left = self.behind(admin)
        while left and time.monotonic() - begun < QUIET_S_MAX:
            time.sleep(0.1)
            left = self.behind(admin)
        seconds = time.monotonic() - begun
        self.recoveries["churn over: all is read and committed"].append(seconds)
        if left or seconds > STABLE_S_MAX * load_factor():
            self.faults.append(f"I14: {seconds:.1f} s after the churn the groups lack {left}")

    def behind(self, admin: AdminClient) -> dict[str, int]:
        """Return the number of records each group has not committed yet."""
        ends = [0] * self.partitions
        for send in self.history.sends:
            if send.outcome == ACKED:
                ends[send.partition] = max(ends[send.partition], send.offset + 1)
        left = {}
        for group, history in self.groups.items():
            at = [0] * self.partitions
            for each in list(history.log):
                if isinstance(each, Committed):
                    at[each.partition] = each.offset
            lag = sum(max(0, end - there) for end, there in zip(ends, at, strict=True))
            try:
                state = admin.describe_consumer_groups([group])[group].result().state.name
            except KafkaException as fault:
                state = str(fault)  # of a coordinator that was just killed
            if lag or state != "STABLE":
                left[f"{group}, {state}"] = lag
        return left

    def end(self) -> None:
        """End members and threads, and check that none is left; a second call does nothing."""
        self.resume(float("inf"))
        ending, self.members = self.members, []
        for member in ending:
            self.send(member, signal.SIGTERM)
        for member in ending:
            try:
                member.process.wait(QUIET_S_MAX)
            except subprocess.TimeoutExpired:
                self.faults.append(f"I14: {member.name} does not end")
                member.process.kill()
                member.process.wait()
            if member.process.returncode not in EXPECTED_EXITS:
                self.faults.append(
                    f"{member.name}, {' '.join(member.kind)}, ended with"
                    f" {member.process.returncode}: {member.last_output()}"
                )
            assert member.reader is not None and member.process.stdout is not None
            member.reader.join()
            member.process.stdout.close()
            member.stderr.close()
        self.quiet = True
        self.running = False
        for thread in self.threads:
            if thread.is_alive():
                thread.join()

    def group_logs(self) -> list[str]:
        """Return the entries of each group's log as text."""
        return [f"{name} {each}" for name, group in self.groups.items() for each in group.log]

    def judge(self) -> None:
        for group, history in self.groups.items():
            self.faults += [f"{group}: {each}" for each in group_log.violations(history)]
        for group in self.groups:
            for partition in range(self.partitions):
                self.all_read(group, partition)

    def all_read(self, group: str, partition: int) -> None:
        reached = 0
        for first, last in sorted(self.reads[group, partition]):
            if first > reached:
                break
            reached = max(reached, last + 1)
        acked = [
            send.offset for send in self.history.sends
            if send.partition == partition and send.outcome == ACKED
        ]  # fmt: skip
        if acked and reached <= max(acked):
            self.faults.append(
                f"I6: {group} read {partition} only up to {reached}, of {max(acked)}"
            )
