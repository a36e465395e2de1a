"""kafkalite bench against a real broker: small loads, and every way in which one may end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from kafkalite.cli import bench_load, main
from kafkalite.cli.bench import limited, lines, phase, round_trip, rounded, summary_lines
from kafkalite.cli.bench_load import BenchLoad, BenchPhase, payloads
from kafkalite.cli.cpu_meter import CpuShares, ThreadTimes, busiest, share, since, threads
from kafkalite.testing import Broker
from tests.process.waiting import WAIT_S_MAX, until

FEW = ["--records", "300", "--trips", "3", "--json"]
NOTHING = CpuShares(None, None, None, None)


def leftover_topics(broker: Broker) -> list[str]:
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics
    return [name for name in topics if name.startswith("kafkalite-bench")]


# -- a broker ------------------------------------------------------------------------------------


@pytest.fixture
def broker():
    """A broker of this module alone, without topics of other tests."""
    with Broker() as broker:
        yield broker


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_bench_reports_produce_fetch_and_round_trip(run_command, acks, codec):
    output = run_command("bench", *FEW, "--size", "50", "--acks", acks, "-z", codec, "-p", "2").json
    assert (output["records"], output["size"], output["partitions"]) == (300, 50, 2)
    assert (output["acks"], output["compression"]) == (acks, codec)
    for part in output["produce"], output["fetch"]:
        assert part["records"] <= 300
        assert acks == "0" or part["records"] == 300 and not part["ended_early"]
        assert part["bytes"] == 50 * part["records"]
        assert part["records_per_s"] == pytest.approx(part["records"] / part["seconds"], rel=0.01)
    trip = output["round_trip"]
    assert trip["records"] == 3
    assert 0 < trip["p50_ms"] <= trip["p99_ms"] <= trip["max_ms"]
    assert output["verdict"][0].startswith("This client produces ")


def test_bench_deletes_its_topic(broker, capsys):
    assert main(["bench", "-b", broker.bootstrap, *FEW]) == 0
    assert leftover_topics(broker) == []


def test_bench_with_data_directory_uses_its_broker(broker, monkeypatch, capsys):
    monkeypatch.setenv("KAFKALITE_BOOTSTRAP", "127.0.0.1:1")
    assert main(["bench", "--data", str(broker.data), *FEW]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["bootstrap"], output["durability"]) == (broker.bootstrap, "os")
    assert any("Durability is os" in sentence for sentence in output["verdict"])


def test_bench_prints_a_table_and_a_verdict(run_command):
    result = run_command("bench", "--records", "300", "--trips", "0")
    assert [row[0] for row in result.table[:2]] == ["produce", "fetch"]
    assert "round trip" not in result.out
    assert "This client produces " in result.out


def test_bench_ends_at_its_time_limit(broker, capsys):
    words = ["--records", "1000000000", "--seconds", "1", "--trips", "1", "--json"]
    assert main(["bench", "-b", broker.bootstrap, *words]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["produce"]["ended_early"] and 0 < output["produce"]["records"] < 1_000_000_000
    assert any("Producing stopped after 1 s" in sentence for sentence in output["verdict"])
    assert output["produce"]["busy"]["client"] > 0
    assert leftover_topics(broker) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_signal_ends_bench_and_deletes_its_topic(broker, number, code):
    words = ["-b", broker.bootstrap, "--records", "1000000000", "--seconds", "600"]
    command = [sys.executable, "-m", "kafkalite", "bench", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **streams) as process:
        until(lambda: leftover_topics(broker), process)
        process.send_signal(number)
        output, result = process.communicate(timeout=WAIT_S_MAX)
    assert (process.returncode, output, result) == (code, "", "")
    assert leftover_topics(broker) == []


def test_record_too_large_is_one_line(broker, capsys):
    words = ["--records", "2", "--size", "2000000"]
    assert main(["bench", "-b", broker.bootstrap, *words]) == 1
    result = capsys.readouterr().err
    assert " of the records were not delivered: " in result and "Message size too large" in result
    assert result.count("\n") == 1
    assert leftover_topics(broker) == []


def test_producer_queue_too_small_is_one_line(run_command):
    result = run_command("bench", *FEW, "-X", "queue.buffering.max.messages=10")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "the producer's queue is full" in result.err


def test_wrong_record_count_fails_the_run(run_command, monkeypatch):
    produced = bench_load.produced

    def more(*arguments):
        return produced(*arguments)._replace(records=301)

    monkeypatch.setattr("kafkalite.cli.bench.produced", more)
    monkeypatch.setattr(bench_load, "REQUEST_TIMEOUT_S", 0.5)
    result = run_command("bench", *FEW)
    assert result.code == 1
    assert "has only 300 of the 301 acknowledged records" in result.err


def test_undeleted_topic_is_reported(broker, monkeypatch, capsys):
    def killed(*_):
        broker.kill()
        raise KeyboardInterrupt

    monkeypatch.setattr("kafkalite.cli.bench.produced", killed)
    monkeypatch.setattr(bench_load, "REQUEST_TIMEOUT_S", 0.5)
    assert main(["bench", "-b", broker.bootstrap, *FEW]) == 130
    result = capsys.readouterr().err
    assert " was not deleted: " in result and "kafkalite topic delete kafkalite-bench-" in result


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--records", "0"], 2, "'0' is not 1 to 1,000,000,000"),
        (["--size", "many"], 2, "'many' is not 1 to 104,857,600"),
        (["--acks", "2"], 2, "invalid choice: '2'"),
        (["-z", "rar"], 2, "invalid choice: 'rar'"),
        (["-p", "0"], 2, "'0' is not 1 to 100,000"),
        (["-b", "127.0.0.1:1"], 1, "no broker responds at 127.0.0.1:1"),
        (["--data", "/nowhere"], 1, "no broker runs on /nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_bench_arguments_are_one_line(run_command, words, code, sentence):
    result = run_command("bench", *words)
    assert result.code == code
    assert result.err.startswith("kafkalite: ") and result.err.count("\n") == 1
    assert sentence in result.err


# -- numbers and names ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 200, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_payloads_have_the_requested_size(size):
    values = payloads(size)
    assert {len(value) for value in values} == {size}
    assert size != 200 or len(set(values)) == len(values) > 1_000


def test_round_trip_percentiles_are_computed():
    output = round_trip([0.001 * count for count in range(100, 0, -1)])
    assert output == {"records": 100, "p50_ms": 50.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert round_trip([0.5])["p50_ms"] == round_trip([0.5])["p99_ms"] == 500.0
    assert round_trip([]) is None


@pytest.mark.parametrize(
    ("shares", "limit", "words"),
    [
        (CpuShares(0.97, 0.2, 0.1, 0), "client", "this client is the limit; its busiest thread"),
        (CpuShares(0.97, None, 0.1, 0), "client", "97 % of the time. More clients reach"),
        (CpuShares(0.3, 0.97, 0.1, 0), "broker", "the broker is the limit"),
        (CpuShares(0.9, 0.97, 0.1, 0), "both", "client and broker are both at their limit"),
        (CpuShares(0.3, 0.4, 0.1, 0), "waiting", "neither client nor broker is the limit"),
        (CpuShares(0.3, None, 0.1, 0), None, "not the limit (busiest thread: 30 % of the time)"),
        (CpuShares(0.9, 0.3, 0.5, 0), "cores", "cores are the limit. Client or broker waited"),
        (CpuShares(0.7, 0.3, 0.6, 0), "cores", "waited for a core 60 % of the time"),
        (CpuShares(0.3, 0.3, 0.2, 0), "waiting", "neither client nor broker is the limit"),
    ],
)
def test_limit_is_the_busiest_participant(shares, limit, words):
    assert shares.limit == limit
    (sentence,) = limited("Producing and fetching", shares, None)
    assert words in sentence


def test_each_direction_has_its_own_limit():
    into, out = (
        BenchPhase(10, 10, 1.0, CpuShares(c, b, 0.0, 0.0)) for c, b in ((0.9, 0.1), (0.1, 0.9))
    )
    output = {"produce": phase(into, 1), "fetch": phase(out, 1), "round_trip": None, "size": 1}
    words = "\n".join(summary_lines(output, into, out, None))
    assert "Producing: this client is the limit" in words
    assert "Fetching: the broker is the limit" in words
    assert "Producing and fetching: this client" in "\n".join(
        summary_lines(output, into, into, None)
    )


def test_unknown_cpu_shares_report_no_limit():
    assert NOTHING.limit is None
    assert list(limited("Producing and fetching", NOTHING, None)) == []


def test_cpu_use_of_other_programs_is_reported():
    load = BenchLoad(10, 1, 0, 1, "all", "none")
    part = BenchPhase(10, 10, 1.0, CpuShares(0.5, None, 0.1, 0.4))
    output = {"produce": phase(part, 1), "fetch": phase(part, 1), "round_trip": None}
    output = {**output, **load._asdict(), "bootstrap": "h:1", "partitions": 1}
    words = list(summary_lines(output, part, part, None))
    assert any("Other processes used up to 40 % of this machine's" in each for each in words)
    assert "(10 records in 1.00 s)" in "\n".join(lines({**output, "verdict": words}))


def test_busiest_thread_includes_run_queue_time():
    second = 1_000_000_000
    long, queued = ThreadTimes(second, 0), ThreadTimes(second // 2, second)
    assert busiest([long, queued, ThreadTimes(0, 0)]) == queued
    assert share(queued, 2.0) == 0.75
    assert share(queued, 1.0) == 1.0
    assert busiest([]) is share(None, 1.0) is None


def test_thread_times_count_cpu_time():
    before = threads(os.getpid())

    def has_run():
        sum(range(10_000))
        return any(spent.ran > 0 for spent in since(before, threads(os.getpid())))

    until(has_run)
    assert threads(1 << 30) == {}


@pytest.mark.parametrize(
    ("value", "words"), [(0.4, "0.4"), (12.345, "12.3"), (999.4, "999"), (1_234_567, "1,230,000")]
)
def test_figures_are_rounded_to_three_digits(value, words):
    assert rounded(value) == words
