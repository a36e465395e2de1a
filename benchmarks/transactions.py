"""Transactions: commits per second, and what a transaction costs its producer and its consumers.

Estimate of a commit over 3 partitions, in one process: 0.25 ms of its processor, 15 % of it in the
kernel; so 4,000 commits/s of one core alone.  librdkafka takes 2 ms of a processor for a commit,
more than the broker: on two cores it commits at most 700 times a second, whatever the broker does,
so plain sockets measure the broker.  Inside a long transaction a produce differs by one look at the
producer's state.  A read_committed fetch reads the same bytes; with aborted transactions, it looks
them up by bisection, and the client skips them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.harness import Bench, Run, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Subject
from benchmarks.transactional_sockets import commit_transactions

PARTITIONS = 3
PRODUCERS = 16
COMMITS, VISIBLE = 20_000, 2_000
RECORDS = 2_000_000
TRANSACTION_RECORDS, ABORT_EVERY = 1_000, 100


def run(bench: Bench) -> None:
    commits(bench)
    librdkafka_commits(bench)
    visibility(bench)
    produce(bench)
    read_committed(bench)


def commits(bench: Bench) -> None:
    """Measure producers that commit one record to each of three partitions at a time."""
    count = bench.scale(COMMITS, at_least=PRODUCERS)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, PARTITIONS) as name:
            run = commit_transactions(subject, name, PRODUCERS, count)
        return commit_figures(run)

    what = f"{PRODUCERS} transactional producers over {PARTITIONS} partitions, plain sockets"
    bench.compare(what, measure, {"commits, commits/s": Budget(at_least=2.0)})
    alone = {"commits, commits/s": Budget(at_least=1_000, of_value=True)}
    bench.compare(f"{what}, ours alone", measure, alone, subjects=[bench.ours])


def librdkafka_commits(bench: Bench) -> None:
    """Measure the same with librdkafka, whose processor time limits it."""
    count = bench.scale(COMMITS, at_least=PRODUCERS)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, PARTITIONS) as name:
            run = run_client(
                subject, "transactions", topic=name, partitions=PARTITIONS, records=count,
                connections=PRODUCERS,
            )  # fmt: skip
        return commit_figures(run)

    bench.compare(f"{PRODUCERS} transactional producers over {PARTITIONS} partitions", measure)


def commit_figures(run: Run) -> Mapping[str, float]:
    return {
        "commits, commits/s": run.per_second,
        "latency p50, us": run.client["p50_us"],
        "latency p99, us": run.client["p99_us"],
        "CPU, us/commit": run.cpu_us_per(run.client["records"]),
    }


def visibility(bench: Bench) -> None:
    """Measure from the end of a commit until a read_committed consumer has the record."""
    count = bench.scale(VISIBLE, at_least=10)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject) as name:
            run = run_client(
                subject, "visible", topic=name, records=count, warm_up=count // 10
            )  # fmt: skip
        return {
            "committed to visible p50, us": run.client["p50_us"],
            "committed to visible p99, us": run.client["p99_us"],
        }

    budgets = {"committed to visible p99, us": Budget(at_most=10_000, of_value=True)}
    bench.compare("read_committed", measure, budgets)


def produce(bench: Bench) -> None:
    """Measure one long transaction beside the same records outside of one.

    A transactional producer is an idempotent one, which has a cost of its own in librdkafka: the
    budget is for what the transaction adds to that.  The time includes the commit.
    """
    records = bench.scale(RECORDS, at_least=1_000)

    def measure(subject: Subject) -> Mapping[str, float]:
        rates, cpu_us = {}, {}
        for key, options in {
            "outside, plain": {"acks": "all"},
            "outside, idempotent": {"acks": "all", "idempotence": "true"},
            "inside": {"transactional_id": "long", "transaction_records": 2 * records},
        }.items():
            with topic(subject) as name:
                run = run_client(subject, "produce", topic=name, records=records, **options)
            rates[key], cpu_us[key] = run.per_second, run.cpu_us_per(records)
        return {
            "throughput, records/s": rates["inside"],
            "throughput of an idempotent one outside, share": (
                rates["inside"] / rates["outside, idempotent"]
            ),
            "throughput of a plain one outside, share": rates["inside"] / rates["outside, plain"],
            **{f"CPU {key}, us/record": value for key, value in cpu_us.items()},
        }

    kept = Budget(at_least=0.95, of_value=True)
    budgets = {"throughput of an idempotent one outside, share": kept}
    bench.compare("produce in a transaction", measure, budgets)


def read_committed(bench: Bench) -> None:
    """Measure read_committed beside read_uncommitted, without aborts and with 1 % of them."""
    for what, options, share in (
        ("no aborts", {}, 0.95),
        ("1 % aborted", {"abort_every": ABORT_EVERY}, 0.9),
    ):
        records = bench.scale(RECORDS, at_least=4_000) // TRANSACTION_RECORDS * TRANSACTION_RECORDS
        with ExitStack() as topics:
            names = {each.name: topics.enter_context(topic(each)) for each in bench.subjects}
            for subject in bench.subjects:
                run_client(
                    subject, "produce", topic=names[subject.name], transactional_id="reader",
                    transaction_records=TRANSACTION_RECORDS, records=records + 50_000, **options,
                )  # fmt: skip

            def measure(subject: Subject, names=names, records=records) -> Mapping[str, float]:
                rates = {
                    isolation: run_client(
                        subject, "consume", topic=names[subject.name], records=records * 98 // 100,
                        transactional_id="gaps", isolation=isolation,
                    ).per_second
                    for isolation in ("read_uncommitted", "read_committed")
                }  # fmt: skip
                committed = rates["read_committed"]
                return {
                    "throughput, records/s": committed,
                    "throughput of read_uncommitted, share": committed / rates["read_uncommitted"],
                }

            kept = Budget(at_least=share, of_value=True)
            budgets = {"throughput of read_uncommitted, share": kept}
            bench.compare(f"fetch with read_committed, {what}", measure, budgets)
