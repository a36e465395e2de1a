"""Kafka Streams programs with exactly_once_v2: counts, a windowed join, and sums of a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.conformance.java_client import SMALL, compiled
from tests.faults.application import Application
from tools.apache_kafka import STREAMS, classpath, java_executable

WORDS = [f"word-{number}" for number in range(50)]
LINE_WORDS = 5
LINES_A_PACE = 100
PAIRS_A_PACE, CHANGES_A_PACE = 40, 40
USERS = [f"user-{number}" for number in range(40)]
TEAMS = [f"team-{number}" for number in range(6)]
AMOUNT_MAX = 1_000


class StreamsApplication(Application):
    """A program of the folder java/."""

    main: str

    def prepare(self) -> None:
        jars = classpath(STREAMS)
        classes = compiled(Path(__file__).with_name("java"), [jars])
        self.java = [java_executable(), *SMALL, "-cp", f"{classes}:{jars}", self.main]

    def command(self, instance: int) -> list[str]:
        state = str(self.state(instance))
        return [*self.java, self.victim.bootstrap, state, *self.sources, *self.sinks]


class WordCount(StreamsApplication):
    """java/WordCount.java, with RocksDB state and its changelog, and a repartition topic.

    Every change of a count is written, so the counts of each word must be 1, 2, 3 … up to the
    number of times that the word was sent.
    """

    name = "STREAMS"
    main = "WordCount"
    sources = ("words",)
    sinks = ("word-counts",)
    progress_min = 300

    def __init__(self, *arguments: Any) -> None:
        self.words: Counter[str] = Counter()
        self.counts: dict[str, list[int]] = defaultdict(list)
        super().__init__(*arguments)

    def send(self) -> None:
        for _ in range(LINES_A_PACE):
            words = self.dice.choices(WORDS, k=LINE_WORDS)
            self.words.update(words)
            at = self.dice.randrange(self.partitions)
            self.producer.produce(self.sources[0], " ".join(words).encode(), partition=at)
        self.producer.poll(0)
        self.run.sent = self.words.total()

    def take(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        self.counts[(key or b"").decode()].append(int.from_bytes(value or b"", "big"))

    def is_complete(self) -> bool:
        return sum(map(len, self.counts.values())) >= self.words.total()

    def judge(self) -> list[str]:
        complaints = []
        for word, count in self.words.items():
            wanted = list(range(1, count + 1))
            if (found := self.counts[word]) != wanted:
                pairs = zip(found, wanted, strict=False)
                at = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)
                complaints.append(
                    f"{word} was sent {count} times; {len(found)} counts, wrong from {at}:"
                    f" {found[at or 0 :][:5]}, the last {found[-3:]}"
                )
        return complaints


class JoinAndSums(StreamsApplication):
    """java/JoinAndSums.java: a windowed join of two topics, and the sums of a table by team.

    Two processes have standby replicas of each other's state.  Each key is once in either topic, so
    the join must give it once; each user's last change counts, so the last sums are known.
    """

    name = "STREAMS-JOIN"
    main = "JoinAndSums"
    sources = ("left", "right", "users")
    sinks = ("joined", "sums")
    instances = 2
    progress_min = 150

    def __init__(self, *arguments: Any) -> None:
        self.pairs = 0
        self.users: dict[str, tuple[str, int]] = {}
        self.joined: Counter[bytes] = Counter()
        self.wrong: list[bytes] = []
        self.sums: dict[str, int] = {}
        super().__init__(*arguments)

    def send(self) -> None:
        for _ in range(PAIRS_A_PACE):
            key = b"%d" % self.pairs
            sides = [("left", b"l" + key), ("right", b"r" + key)]
            self.dice.shuffle(sides)
            for topic, value in sides:
                self.producer.produce(topic, value, key)
            self.pairs += 1
        for _ in range(CHANGES_A_PACE):
            user, team = self.dice.choice(USERS), self.dice.choice(TEAMS)
            amount = self.dice.randint(1, AMOUNT_MAX)
            self.users[user] = (team, amount)
            self.producer.produce("users", f"{team} {amount}".encode(), user.encode())
        self.producer.poll(0)
        self.run.sent += 2 * PAIRS_A_PACE + CHANGES_A_PACE

    def take(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        if topic == "sums":
            self.sums[(key or b"").decode()] = int.from_bytes(value or b"", "big", signed=True)
            return
        self.joined[key or b""] += 1
        if value != b"l%s r%s" % (key, key):
            self.wrong.append(value or b"")

    def expected_sums(self) -> dict[str, int]:
        sums = dict.fromkeys(TEAMS, 0)
        for team, amount in self.users.values():
            sums[team] += amount
        return sums

    def found_sums(self) -> dict[str, int]:
        return {team: self.sums.get(team, 0) for team in TEAMS}

    def is_complete(self) -> bool:
        return self.joined.total() >= self.pairs and self.found_sums() == self.expected_sums()

    def judge(self) -> list[str]:
        missing = [key for key in range(self.pairs) if b"%d" % key not in self.joined]
        doubled = [key for key, count in self.joined.items() if count > 1]
        complaints = []
        if missing or doubled or self.wrong:
            complaints.append(
                f"of {self.pairs} pairs {len(missing)} are missing ({missing[:5]}),"
                f" {len(doubled)} are twice or more ({doubled[:5]}), wrong: {self.wrong[:5]}"
            )
        if self.found_sums() != self.expected_sums():
            complaints.append(f"sums {self.found_sums()}, expected {self.expected_sums()}")
        return complaints
