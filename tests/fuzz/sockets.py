"""Socket fuzzer: a real broker, many clients with arbitrary requests, and one healthy client.

    python -m tests.fuzz.sockets --frames 1000000                both shapes, half a million each
    python -m tests.fuzz.sockets --frames 20000 --workers 2 --seed 7
    python -m tests.fuzz.sockets --workers 0 --seed 7 --only 113     one conversation again

Checked: every response (conversations.py); no process or thread of the broker ends; its log and
output contain no stack trace; its memory does not grow; and the healthy client is served without
an error.  That client's latency, before and meanwhile, is reported beside that of a client of
another broker but not checked, because the fuzzer itself uses the processors.  Frames with a new
outcome are kept in corpus/sockets.txt with --keep, and sent first the next time.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kafkalite.process.log_file import LOG_FILE
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import DESCRIBE_GROUPS
from kafkalite.testing import Broker
from tests.fuzz.conversations import Conversation, Fault, Talk, Tally
from tests.fuzz.healthy import Connection, Healthy
from tests.fuzz.requests import GROUPS, HEALTHY, TOPICS, Sparing, World

CORPUS = Path(__file__).parent / "corpus" / "sockets.txt"
AT_ONCE = 24
ALONE_S = 5
WARM_FRAMES = 2_000
GROWTH_MAX = 96 << 20
"""Maximum growth of the broker's processes together after the first frames."""

KEPT_SIZE_MAX = 600
LAST_WORDS = 3000
TURN_S = 0.001
WORLD_EVERY = 50
MEMBERS_MAX = 50


class Campaign:
    """Conversations with one broker, made from one seed."""

    def __init__(self, broker: Broker, seed: int, at_once: int = AT_ONCE) -> None:
        self.broker = broker
        self.seed = seed
        self.at_once = at_once
        self.tally = Tally()
        self.sparing = Sparing()
        self.withheld = 0
        self.talks: list[Talk] = []
        self.addresses = [(node["host"], node["port"]) for node in broker.nodes if node["port"]]
        self.processes = processes(broker.pid)
        self.threads = {pid: threads(pid) for pid in self.processes}
        self.resident = 0

    def run(self, conversations: Iterator[Conversation], frames: int) -> None:
        """Run conversations, several at once, until `frames` frames were sent."""
        end = self.tally.frames + frames
        while self.talks or self.tally.frames < end:
            while len(self.talks) < self.at_once and self.tally.frames < end:
                conversation = next(conversations, None)
                if conversation is None:
                    end = 0
                    break
                self.begin(conversation)
            moved = self.tally.frames
            self.talks = [talk for talk in self.talks if self.moved(talk)]
            if moved == self.tally.frames:
                time.sleep(TURN_S)

    def begin(self, conversation: Conversation) -> None:
        if not conversation.spared_by(self.sparing):
            self.withheld += 1
            return
        address = conversation.dice.choice(self.addresses)
        try:
            self.talks.append(Talk(conversation, address, self.tally))
        except OSError as refused:
            last = "".join(f"\n{name}: {said[-LAST_WORDS:]}" for name, said in self.said())
            raise Fault(f"{conversation.seed}: no connection: {refused}{last}") from None

    def moved(self, talk: Talk) -> bool:
        try:
            return talk.turn()
        except Fault as fault:
            raise Fault(f"{talk.conversation.seed}: {fault}") from None

    def made(self, first: int = 0) -> Iterator[Conversation]:
        """Yield the seed's conversations."""
        world = None
        for number in itertools.count(first):
            if world is None or number % WORLD_EVERY == 0:
                world = self.world()
            yield Conversation(f"{self.seed} {number}", world)

    def world(self) -> World:
        """Return the current ids; with members of all groups, hence also of wrong groups."""
        connection = Connection(self.broker.bootstrap)
        asked = {"topics": [{"name": name} for name in TOPICS], "allow_auto_topic_creation": False}
        topics = connection.ask(METADATA, 12, asked).topics
        groups = connection.ask(DESCRIBE_GROUPS, 5, {"groups": GROUPS}).groups
        connection.close()
        members = [member.member_id for group in groups for member in group.members]
        return World([topic.topic_id for topic in topics], members[:MEMBERS_MAX])

    def judge(self) -> None:
        """Check the broker as a whole: its processes, its threads, its log, its memory."""
        for name, said in self.said():
            at = said.find("Traceback")
            if at >= 0:
                raise Fault(f"a stack trace in {name}: {said[max(0, at - 300) : at + 3000]}")
        if processes(self.broker.pid) != self.processes:
            raise Fault("a process of the broker ended or was started anew")
        for pid, count in self.threads.items():
            if threads(pid) < count:
                raise Fault(f"a thread of process {pid} ended")
        if self.resident and self.growth > GROWTH_MAX:
            raise Fault(f"the broker grew by {self.growth >> 20} MiB")

    def said(self) -> Iterator[tuple[str, str]]:
        """Yield the name and text of the broker's log and of its output."""
        for path in (self.broker.data / LOG_FILE, self.broker.directory / "output"):
            yield path.name, path.read_text() if path.exists() else ""

    @property
    def growth(self) -> int:
        return resident(self.processes) - self.resident


def processes(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += [int(child) for child in (task / "children").read_text().split()]
    return sorted([pid, *(each for child in children for each in processes(child))])


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def resident(pids: list[int]) -> int:
    """Return the resident memory of these processes in bytes."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * 4096


def corpus() -> Iterator[Conversation]:
    """Yield the conversations kept from earlier runs."""
    lines = CORPUS.read_text().split() if CORPUS.exists() else []
    for number, line in enumerate(lines):
        yield Conversation(f"corpus {number}", World(), bytes.fromhex(line))


def keep(tally: Tally) -> int:
    """Keep a short first frame for each kind of outcome; return their number."""
    kept = sorted({each for each in tally.kinds.values() if len(each) <= KEPT_SIZE_MAX})
    CORPUS.write_text("".join(f"{each.hex()}\n" for each in kept))
    return len(kept)


def fuzz(
    workers: int, seed: int, frames: int, only: int | None = None, at_once: int = AT_ONCE
) -> Tally:
    """Run one broker and `frames` frames; raise Fault with the seed in its message."""
    with Broker(workers=workers) as broker:
        broker.topic(name=HEALTHY)
        for name in TOPICS[:3]:
            broker.topic(name=name, partitions=3)
        campaign = Campaign(broker, seed, at_once)
        if only is not None:
            campaign.run(iter([next(campaign.made(only))]), 1)
            campaign.judge()
            return campaign.tally
        with (
            Broker(workers=workers) as other,
            Healthy(broker.bootstrap, HEALTHY) as healthy,
            Healthy(other.bootstrap, other.topic(name=HEALTHY)) as bystander,
        ):
            time.sleep(ALONE_S)
            alone = healthy.phase()
            bystander.phase()
            campaign.run(corpus(), frames)
            campaign.run(campaign.made(), min(WARM_FRAMES, frames // 4))
            campaign.resident = resident(campaign.processes)
            made = campaign.made(1 << 20)
            campaign.run(made, frames - campaign.tally.frames)
            tell(campaign, alone, healthy.phase(), bystander.phase())
            campaign.judge()
        return campaign.tally


def tell(
    campaign: Campaign,
    alone: dict[str, float],
    meanwhile: dict[str, float],
    elsewhere: dict[str, float],
) -> None:
    """Print the results of a run."""
    tally = campaign.tally
    print(
        f"seed {campaign.seed}, workers {campaign.broker.workers}: {tally.frames} frames,"
        f" {tally.answered.total()} answers, {len(tally.kinds)} kinds of answers,"
        f" {dict(tally.outcomes)}, {campaign.withheld} withheld,"
        f" {campaign.growth / (1 << 20):.1f} MiB more\n"
        f"    the healthy client alone: {alone}\n"
        f"    meanwhile: {meanwhile}, {meanwhile['a_second'] / alone['a_second']:.0%}\n"
        f"    another broker's client meanwhile: {elsewhere};"
        f" p99 of ours {meanwhile['p99'] / elsewhere['p99']:.2f} times that",
        flush=True,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sockets", description=__doc__)
    parser.add_argument("--frames", type=float, default=1e5, help="of all shapes together")
    parser.add_argument("--workers", type=int, action="append", help="a shape; 0 and 2 if not said")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--only", type=int, help="one conversation, by its number")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="conversations, %(default)s")
    parser.add_argument("--keep", action="store_true", help="write the corpus anew")
    words = parser.parse_args(arguments)
    shapes = words.workers or [0, 2]
    kinds = Tally()
    for workers in shapes:
        print(f"seed {words.seed}, workers {workers}", flush=True)
        try:
            frames = int(words.frames) // len(shapes)
            tally = fuzz(workers, words.seed, frames, words.only, words.at_once)
        except Fault as fault:
            print(f"FAULT: seed {words.seed}, workers {workers}, conversation {fault}")
            return 1
        kinds.kinds |= tally.kinds
    if words.keep:
        print(f"{keep(kinds)} inputs kept")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
