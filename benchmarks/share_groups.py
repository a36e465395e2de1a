"""Share groups (KIP-932): records per second that one member takes and acknowledges.

A member of a new group takes records of one partition and accepts them; acknowledgements ride on
its next fetch, and the time ends when the last one is confirmed.  The same client reads the same
records without a group beside it.

Estimate: with a record batch as the unit, a share fetch costs the broker a fetch (50 us), an
acquisition and a state write (100 us together) for as many records as a batch has.  A member waits
for its state write before the next fetch of the partition responds, so that share consumption stays
below plain consumption, which reads ahead.  A round has a fixed cost of about 500 us, so that the
rate grows with the limit of records in flight: the budget beside plain consumption is measured with
Kafka's default of it, 2,000, and with the most that a broker with default settings allows, 4,000.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from benchmarks.harness import Bench, cpu_s, run_client, topic
from benchmarks.native import in_turn, program, rate
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import Subject
from kafkalite import Admin

RECORDS, BATCH_RECORDS = 300_000, 1_000
CONFIGS = {"file.delete.delay.ms": "0"}
GROUP_CONFIG = {"share.auto.offset.reset": "earliest"}
RECORD_LOCKS = "share.partition.max.record.locks"
LOCKS_MAX = 4_000
"""The greatest limit of a group that a broker with default settings allows."""
NO_CONFIG: Mapping[str, str] = {}
PLAIN = "without a group"
MORE_LOCKS = f"{LOCKS_MAX:,} records in flight"
CLIENTS = {
    # Client: its modes (programs.py) with a share group and without, and the options of the latter.
    "native, batches": ("share_batches", "batches", {"native": "off"}),
    "confluent-kafka": ("share_consume", "consume", {}),
}

_numbers = itertools.count()


def run(bench: Bench) -> None:
    records = bench.scale(RECORDS, at_least=2_000)
    for name in CLIENTS:
        acknowledged(bench, name, records)
        beside_plain(bench, name, records)


def new_group(subject: Subject, config: Mapping[str, str]) -> str:
    """Return the name of a share group that begins with the first record."""
    name = f"bench-{os.getpid()}-sharers-{next(_numbers)}"
    with Admin(subject.bootstrap) as admin:
        admin.alter_config("group", name, {**GROUP_CONFIG, **config})
    return name


def taken(
    subject: Subject, client: str, records: int, name: str, config: Mapping[str, str] = NO_CONFIG
) -> Callable[[], float]:
    """Return a measurement of the records per second that a new group acknowledges."""
    mode = CLIENTS[client][0]

    def side() -> float:
        words = {"bootstrap": subject.bootstrap, "topic": name, "records": records}
        return rate(program("programs", mode, **words, group=new_group(subject, config)))

    return side


def acknowledged(bench: Bench, client: str, records: int) -> None:
    """Measure the same client with a share group of each subject."""
    with ExitStack() as topics:
        names = {
            subject.name: topics.enter_context(filled(subject, records))
            for subject in bench.subjects
        }

        def measure(subject: Subject) -> Mapping[str, float]:
            before_s = sum(cpu_s(subject.pids))
            per_second = taken(subject, client, records, names[subject.name])()
            used_s = sum(cpu_s(subject.pids)) - before_s
            return {
                "acknowledged, records/s": per_second,
                "broker's CPU, us/record": used_s / records * 1e6,
            }

        budgets = {"acknowledged, records/s": Budget(at_least=2.0)}
        bench.compare(f"a share group, {client}", measure, budgets)


def beside_plain(bench: Bench, client: str, records: int) -> None:
    """Measure our broker with a share group, and without one."""
    _, plain, options = CLIENTS[client]
    with filled(bench.ours, records) as name:
        words = {"bootstrap": bench.ours.bootstrap, "topic": name, "records": records}
        values = in_turn(bench, {
            OURS: taken(bench.ours, client, records, name),
            PLAIN: lambda: rate(program("programs", plain, **words, **options)),
            MORE_LOCKS: taken(
                bench.ours, client, records, name, {RECORD_LOCKS: str(LOCKS_MAX)}
            ),
        })  # fmt: skip
    what = f"one partition in a share group, {client}"
    budget = Budget(at_least=0.4)
    for subject_name, figure in ((OURS, what), (MORE_LOCKS, f"{what}, {MORE_LOCKS}")):
        beside = {OURS: values[subject_name], PLAIN: values[PLAIN]}
        bench.figures.append(Figure(figure, "records/s", beside, budget))
    floor = Budget(at_least=200_000, of_value=True) if "batches" in client else None
    alone = {OURS: values[OURS]}
    bench.figures.append(Figure(f"{what}, ours alone", "records/s", alone, floor))


@contextmanager
def filled(subject: Subject, records: int) -> Iterator[str]:
    """Create a topic with these records, in batches of a thousand or so."""
    with topic(subject, configs=CONFIGS) as name:
        run_client(subject, "produce", topic=name, records=records, batch_records=BATCH_RECORDS)
        yield name
