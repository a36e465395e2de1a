"""Isolation: a tiny run of the scenario, and each violation that the checks must find.

`python -m tests.faults.isolation` runs the full figures.
"""

import pytest

from kafkalite.metrics import COUNTER, GAUGE, Family, Read
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.records.batch import Record, build
from tests.faults.isolation.consumers import ConsumerPlan, choose, next_offset
from tests.faults.isolation.healthy import RoundTrip
from tests.faults.isolation.judge import Observed, judge, node_ticks, report
from tests.faults.isolation.load import unknown_partitions, unknown_topics
from tests.faults.isolation.plan import IsolationPlan
from tests.faults.isolation.run import run

TINY = IsolationPlan(
    partitions=24, topics=4, topic_partitions=2, topics_per_s=20.0, removed_bytes=6_000_000,
    consumers=8, consumer_partitions=6, wide_consumers=2, consumer_wait_ms=100,
    connects_per_s=100, time_lookups=2, lookup_partitions=2, lookup_records=1_000,
    lookups_per_s=20.0, sessions=4, session_partitions=200, sessions_kept=2, sessions_per_s=20.0,
    alone_s=0.2, beside_s=0.5, minutes_max=0.5,
)  # fmt: skip


def slow_ticks(**by_cause):
    """Return a node's ticks as parsed from its metrics page: cause → (slow, slow by CPU time)."""
    families = [
        Family("kafkalite_loop_slow_ticks_total", COUNTER, "",
               [({"cause": cause}, count) for cause, (count, _) in by_cause.items()]),
        Family("kafkalite_loop_slow_ticks_cpu_total", COUNTER, "",
               [({"cause": cause}, count) for cause, (_, count) in by_cause.items() if count]),
        Family("kafkalite_loop_longest_tick_seconds", GAUGE, "", [({}, 0.2)]),
        Family("kafkalite_loop_longest_tick_cpu_seconds", GAUGE, "", [({}, 0.09)]),
    ]  # fmt: skip
    return node_ticks(Read(1, 11, 0, families))


@pytest.fixture
def observed():
    """Return a good run of one worker, with client latencies of 1 ms and 2 ms."""
    trips = [RoundTrip(0.0, 1.0, 2.0, 0.1)] * 200
    return Observed({1: 11}, {1: 11}, [slow_ticks(Fetch=(3, 0))], "", trips, trips)


def test_isolation_run_of_tiny_amounts_is_complete():
    came = run(TINY)
    # Ticks and latency are checked by the full run, on a machine without other load.
    came.ticks = [ticks._replace(causes=[]) for ticks in came.ticks]
    assert judge(came, None) == []
    assert came.alone and came.beside
    assert {ticks.node for ticks in came.ticks} == came.nodes_before.keys() == {0, 1, 2}
    assert came.done["fetches"] >= 10 and not came.done["partition errors"]


def test_judge_accepts_a_good_run(observed):
    assert judge(observed, p99_ms_max=20) == []


def test_judge_reports_slow_wall_time_without_a_violation(observed):
    assert "    Fetch: 3 over 50 ms, 0 of them by processor time" in list(report(observed))


def test_judge_finds_a_tick_of_too_much_processor_time(observed):
    observed.ticks = [slow_ticks(Fetch=(3, 0), ListOffsets=(2, 1))]
    (violation,) = judge(observed, None)
    assert "1 ticks of over 50 ms of processor time because of ListOffsets" in violation


def test_judge_finds_a_node_without_a_page(observed):
    observed.ticks = []
    assert judge(observed, None) == ["Node 1 has no metrics page: its ticks are unknown"]


@pytest.mark.parametrize("after", [{1: 12}, {}])
def test_judge_finds_a_dead_worker(observed, after):
    observed.nodes_after = after
    assert any("Node 1 was process 11" in violation for violation in judge(observed, None))


@pytest.mark.parametrize(
    "line",
    [
        "WARNING node-0: Node 1 missed its heartbeats and is fenced. node=1",
        "ERROR launcher: Node 1 missed its heartbeat deadline; killing its process. node=1 pid=11",
        "ERROR launcher: Supervisor missed its heartbeats and is killed. pid=10 silent_ms=9100",
        "ERROR launcher: Node 1 exited: it was killed by signal 9; restarting it. node=1 pid=11",
        "ERROR launcher: Node 1 exited before it was ready: it ended; retrying. node=1 pid=11",
    ],
)
def test_judge_finds_a_fenced_worker_in_the_log(observed, line):
    observed.log = f"INFO node-1: ready\n{line}\n"
    assert judge(observed, None) == [f"The log says: {line}"]


def test_judge_finds_an_incomplete_load_and_failures_of_the_harness(observed):
    observed.done, observed.wanted = {"topics deleted": 3}, {"topics deleted": 4}
    observed.faults = ["Produce failed"]
    assert judge(observed, None) == [
        "Produce failed", "The load was incomplete: topics deleted 3 of 4"
    ]  # fmt: skip


def test_judge_finds_a_slow_healthy_client_when_the_limit_is_given(observed):
    observed.beside = [*observed.alone[:190], *[RoundTrip(0.0, 1.0, 25.0, 0.1)] * 10]
    (violation,) = judge(observed, p99_ms_max=20)
    assert violation == "The healthy client's p99 of fetch was 25.0 ms (limit 20 ms)"
    assert judge(observed, None) == []


def test_judge_finds_a_healthy_client_without_round_trips(observed):
    observed.beside = []
    assert len(judge(observed, p99_ms_max=20)) == 2


@pytest.mark.parametrize("request_of", [unknown_partitions, unknown_topics])
def test_hostile_session_names_each_partition(request_of):
    frame = request_of(200)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    # Size, key, version, correlation id, client id.
    fetch = FETCH.request.read(11, frame, 4 + 2 + 2 + 4 + 2 + len("hostile"))
    assert sum(len(topic.partitions) for topic in fetch.topics) == 200
    assert (fetch.session_id, fetch.session_epoch) == (0, 0)


def test_consumer_moves_on_behind_the_last_whole_batch():
    batches = [build([Record(value=b"a")] * 3, base_offset=offset) for offset in (5, 8)]
    assert next_offset(b"".join(batches)) == 11
    assert next_offset(b"".join(batches)[:-1]) == 8


def test_consumers_read_partitions_that_their_worker_leads():
    led = {("127.0.0.1", 1): [0, 2, 4], ("127.0.0.1", 2): [1, 3, 5]}
    chosen = choose(ConsumerPlan("many", led, 4, 2, 2, 100, 100, seed=1))
    assert [len(partitions) for _, partitions in chosen] == [3, 3, 2, 2, 2, 2]
    assert all(set(partitions) <= set(led[address]) for address, partitions in chosen)
