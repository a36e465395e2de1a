"""kafkalite top: rounds against a real broker, and the rates computed from two samples."""

from __future__ import annotations

import fcntl
import io
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkalite.cli import main
from kafkalite.cli.top import GROUP_ORDER, TOPIC_ORDER, SampleRounds, print_rounds
from kafkalite.cli.top_rates import CPU, SLOW_TICKS, TRAFFIC, RateMeter
from kafkalite.cli.top_sampling import (
    ClusterSample,
    ClusterUnreachable,
    SampledGroup,
    SampledNode,
    share_groups,
)
from kafkalite.cli.top_screen import (
    TOPIC_TITLES,
    ScreenTable,
    drawn,
    group_row,
    heading,
    narrowed,
    node_row,
    text_of,
)
from kafkalite.client import GroupDescription, ShareOffset
from kafkalite.errors import GroupIdNotFound, Refusal
from kafkalite.metrics import COUNTER, GAUGE, Family, Read
from kafkalite.testing import Broker
from tests.process.waiting import WAIT_S_MAX, until

COMMAND = [sys.executable, "-m", "kafkalite", "top"]
_numbers = itertools.count(1)

# -- two samples ---------------------------------------------------------------------------------

PLACE = ("t", 0)


def sample(at_s: float, end: int, **more) -> ClusterSample:
    """Return a sample of one topic with one partition, of which one group has read two records."""
    whole = ClusterSample(
        cluster_id="c",
        controller=1,
        nodes={1: SampledNode("h", 9092, None)},
        leaders={PLACE: 1},
        ends={PLACE: end},
        ends_at_s=at_s,
        sizes={},
        sizes_at_s=at_s,
        groups={"g": SampledGroup("classic", "Stable", 1, {PLACE: 2}, at_s)},
        pages=[],
        left_out=[],
    )
    return whole._replace(**more)


def page(at_ms: int, bytes_in: int, cpu: float, pid: int = 7) -> Read:
    counted = [({}, bytes_in), ({"topic": "t"}, bytes_in)]
    families = [Family(TRAFFIC[0], COUNTER, "", counted), Family(CPU, COUNTER, "", [({}, cpu)])]
    families.append(Family("kafka_log_log_size", GAUGE, "", [({"topic": "t"}, 11)]))
    return Read(1, pid, at_ms, families)


def measured(*samples: ClusterSample):
    """Return the meter's result for the last sample."""
    meter = RateMeter()
    return [meter.measured(each) for each in samples][-1]


def test_rate_is_the_difference_over_the_interval():
    output = measured(sample(10.0, 5), sample(12.0, 25))
    assert output["topics"][0]["records_per_s"] == output["totals"]["records_per_s"] == 10.0
    assert output["groups"][0]["lag"] == output["totals"]["lag"] == 23
    assert output["groups"][0]["records_per_s"] == 0
    assert output["nodes"][0]["leaders"] == 1 and output["nodes"][0]["controller"]


def test_first_sample_and_recreated_topic_have_no_rate():
    assert measured(sample(10.0, 5))["topics"][0]["records_per_s"] is None
    assert measured(sample(10.0, 5), sample(12.0, 3))["topics"][0]["records_per_s"] is None
    deleted = sample(11.0, 0, leaders={}, ends={})
    recreated = measured(sample(10.0, 5), deleted, sample(12.0, 25))
    assert recreated["topics"][0]["records_per_s"] is None


def test_group_without_commits_has_no_lag():
    output = measured(sample(1.0, 5, groups={"g": SampledGroup("classic", "Empty", 0, {}, 1.0)}))
    assert output["groups"][0]["lag"] is output["totals"]["lag"] is None


def test_share_group_has_the_lag_that_the_broker_counts():
    share = SampledGroup("share", "Stable", 2, {PLACE: 1}, 1.0, lag=3)
    output = measured(sample(1.0, 5, groups={"g": share}))
    assert output["groups"][0]["lag"] == output["totals"]["lag"] == 3
    assert group_row(output["groups"][0])[:6] == ["g", "share", "Stable", "2", "1", "3"]
    unknown = measured(sample(1.0, 5, groups={"g": share._replace(lag=None)}))
    assert unknown["groups"][0]["lag"] is None


class OneShareGroup:
    """A cluster with one share group, and no response after it."""

    @contextmanager
    def admin(self):
        yield self

    def describe_group(self, name):
        if name == "deleted":
            raise GroupIdNotFound
        if name == "lost":
            raise Refusal("request timed out")
        return GroupDescription(name, "share", "Stable", "simple", 3, 3, 0, members=(None, None))

    def share_offsets(self, name):
        return {PLACE: ShareOffset(5, 2, 0), ("t", 1): ShareOffset(None, None, None)}


def test_share_groups_are_sampled_with_start_offsets_and_lag():
    left_out = []
    found = share_groups(OneShareGroup(), ["deleted", "g", "lost"], left_out)
    (group,) = found.values()
    assert group == SampledGroup("share", "Stable", 2, {PLACE: 5}, group.at_s, lag=2)
    assert left_out == ["share groups: request timed out"]


def test_byte_rate_without_pages_is_the_growth_of_files():
    output = measured(
        sample(1.0, 0, sizes={"t": 100}), sample(3.0, 0, sizes={"t": 300}, sizes_at_s=3.0)
    )
    assert output["topics"][0]["bytes_in_per_s"] == 100.0
    assert output["topics"][0]["bytes_out_per_s"] is None
    shrunk = measured(sample(1.0, 0, sizes={"t": 100}), sample(3.0, 0, sizes={"t": 50}))
    assert shrunk["topics"][0]["bytes_in_per_s"] is None


def test_page_rates_use_page_times_and_stale_page_keeps_its_rate():
    pages = [page(1_000, 0, 0.0), page(3_000, 400, 1.0), page(3_000, 400, 1.0)]
    output = measured(*(sample(float(at), 0, pages=[each]) for at, each in enumerate(pages)))
    assert output["topics"][0]["bytes_in_per_s"] == 200.0
    assert output["nodes"][0]["cpu"] == 0.5


def test_slow_ticks_are_summed_over_causes():
    slow = Family(SLOW_TICKS, COUNTER, "", [({"cause": "Fetch"}, 2), ({"cause": "timer"}, 3)])
    with_some, without = page(1_000, 0, 0.0), page(1_000, 0, 0.0)
    with_some.families.append(slow)
    (node,) = measured(sample(1.0, 0, pages=[with_some]))["nodes"]
    assert node["slow_ticks"] == 5 and node_row(node)[-1] == "5"
    (node,) = measured(sample(1.0, 0, pages=[without]))["nodes"]
    assert node["slow_ticks"] is None


def test_restarted_process_has_no_rate():
    output = measured(
        sample(1.0, 0, pages=[page(1_000, 100, 1.0)]),
        sample(2.0, 0, pages=[page(2_000, 500, 2.0, pid=8)]),
    )
    assert output["topics"][0]["bytes_in_per_s"] is None
    assert output["nodes"][0]["cpu"] is None
    assert output["nodes"][0]["pid"] == 8


def test_topic_missing_from_pages_has_zero_rate():
    quiet = {PLACE: 1, ("quiet", 0): 1}
    output = measured(
        sample(1.0, 0, leaders=quiet, pages=[page(1_000, 100, 1.0)]),
        sample(2.0, 0, leaders=quiet, pages=[page(2_000, 500, 2.0)]),
    )
    rates = {topic["name"]: topic["bytes_in_per_s"] for topic in output["topics"]}
    assert rates == {"t": 400.0, "quiet": 0.0}


def test_topic_new_in_a_page_counts_from_zero():
    silent = page(1_000, 0, 1.0)
    silent.families[0] = Family(TRAFFIC[0], COUNTER, "", [({}, 0)])
    output = measured(sample(1.0, 0, pages=[silent]), sample(2.0, 0, pages=[page(3_000, 400, 1.0)]))
    assert output["topics"][0]["bytes_in_per_s"] == 200.0


def test_topics_and_groups_are_ordered_by_rate_size_and_lag():
    topics = [
        {"name": "a", "records_per_s": None, "size": 1},
        {"name": "b", "records_per_s": 1, "size": None},
        {"name": "c", "records_per_s": 2, "size": 2},
    ]
    names = {
        how: "".join(each["name"] for each in sorted(topics, key=order))
        for how, order in TOPIC_ORDER.items()
    }
    assert names == {"rate": "cba", "size": "cab", "name": "abc"}
    groups = [{"name": "a", "lag": 0}, {"name": "b", "lag": 9}]
    assert sorted(groups, key=GROUP_ORDER["rate"])[0]["name"] == "b"


class Staged:
    """A sampler with prepared samples, followed by Ctrl-C."""

    def __init__(self, *samples: ClusterSample | type[BaseException]) -> None:
        self.left = [*samples, KeyboardInterrupt]

    def sample(self) -> ClusterSample:
        found = self.left.pop(0)
        if isinstance(found, ClusterSample):
            return found
        raise found


def printed_of(*samples, once: bool = False) -> None:
    cluster = SimpleNamespace(bootstrap="h:1")
    print_rounds(SampleRounds(cluster, Staged(*samples), "rate", interval_s=0.001), True, once)


def test_unreachable_cluster_is_reported_once(capsys):
    with pytest.raises(KeyboardInterrupt):
        printed_of(
            sample(1.0, 0),
            sample(2.0, 8),
            ClusterUnreachable,
            ClusterUnreachable,
            sample(3.0, 9),
            ClusterUnreachable,
        )
    output, errors = capsys.readouterr()
    rates = [json.loads(line)["totals"]["records_per_s"] for line in output.splitlines()]
    assert rates == [8.0, 1.0]
    assert errors == "kafkalite: connection to h:1 lost; retrying (press Ctrl-C to stop)\n" * 2


@pytest.mark.parametrize("samples", [[ClusterUnreachable], [sample(1.0, 0), ClusterUnreachable]])
def test_unreachable_cluster_fails_a_single_round(samples):
    with pytest.raises(Refusal, match="no broker responds at h:1"):
        printed_of(*samples, once=True)


# -- screen --------------------------------------------------------------------------------------


def round_of(count: int, name: str = "t"):
    """Return a round of `count` topics."""
    leaders = {(f"{name}{number:03}", 0): 1 for number in range(count)}
    groups = {"g\x1b[2J": SampledGroup("classic", "Dead", 0, {}, 1.0)}
    output = measured(sample(1.0, 0, leaders=leaders, groups=groups))
    return {"at": "2026-01-02T03:04:05Z", "bootstrap": "h:1", **output}


def lines_of(round, width: int, height: int, trouble: str = "") -> list[str]:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(drawn(round, trouble, width, height))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 50), (20, 8)])
def test_lines_fit_the_terminal(size):
    lines = lines_of(round_of(100), *size)
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]
    assert any("more" in line for line in lines)
    assert any("t000" in line for line in lines)


def test_all_rows_that_fit_are_drawn():
    lines = lines_of(round_of(5), 80, 24)
    assert all(any(f"t00{number}" in line for line in lines) for number in range(5))
    assert not any("more" in line for line in lines)


def test_control_characters_in_names_are_replaced():
    assert not any("\x1b" in line for line in lines_of(round_of(1), 80, 24))
    assert "\x1b" not in text_of(round_of(1))
    assert "g\N{REPLACEMENT CHARACTER}[2J" in text_of(round_of(1))


def test_trouble_is_shown_below_the_last_round():
    lines = lines_of(round_of(1), 80, 24, trouble="no broker responds at h:1")
    assert lines[-1].startswith("no broker responds at h:1")
    assert any("t000" in line for line in lines)


def test_narrow_table_loses_last_columns_only_if_required():
    table = ScreenTable(["TOPIC", "SIZE", "MORE"], [["x" * 50, "12345", "12345"]], 1, 1.0)
    assert narrowed(table, 80).titles == ["TOPIC", "SIZE", "MORE"]
    assert narrowed(table, 25).titles == ["TOPIC", "SIZE"]
    assert narrowed(table, 5).titles == ["TOPIC"]


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_narrow_terminal_truncates_names_only(width):
    round = round_of(2, name="long" * 10)
    for topic in round["topics"]:
        topic.update(size=123_456_789, records_per_s=1_234_567.0, bytes_in_per_s=5e6)
    lines = lines_of(round, width, 30)
    (titles,) = [re.split(r"  +", line.strip()) for line in lines if line.startswith("TOPIC")]
    assert titles == list(TOPIC_TITLES[:2] + TOPIC_TITLES[4:])[: len(titles)]
    rows = [re.split(r"  +", line.strip()) for line in lines if line.startswith("long")]
    assert [len(row) for row in rows] == [len(titles)] * 2
    assert not any("…" in cell for row in rows for cell in row[1:])


def test_heading_contains_known_counts_only():
    assert heading(round_of(1)) == "1 topic, 1 partition, 1 group"


# -- a broker ------------------------------------------------------------------------------------


@pytest.fixture
def watched(kafka_broker: Broker):
    """A topic, and a group with a lag of three records; the name of both."""
    name = f"watched-{os.getpid()}-{next(_numbers)}"
    kafka_broker.topic(2, name=name)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for _ in range(5):
        producer.produce(name, b"x" * 100, partition=0)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": name})
    consumer.commit(offsets=[TopicPartition(name, 0, 2)], asynchronous=False)
    consumer.close()
    return name


def once(run_command, *words):
    return run_command("top", "--once", "--interval", "0.1", "--json", *words).json


def test_single_round_contains_topics_groups_and_nodes(run_command, kafka_broker, watched):
    output = once(run_command, watched)
    (topic,), (group,), (node,) = output["topics"], output["groups"], output["nodes"]
    assert (topic["name"], topic["partitions"], topic["leaderless"]) == (watched, 2, 0)
    assert topic["records_per_s"] == 0 and topic["size"] > 500
    assert (group["name"], group["state"], group["members"]) == (watched, "Empty", 0)
    assert (group["lag"], group["topics"], group["records_per_s"]) == (3, 1, 0)
    assert group["type"] == "classic"
    assert f"{node['host']}:{node['port']}" == output["bootstrap"] == kafka_broker.bootstrap
    assert node["leaders"] == 2 and node["controller"]
    assert output["left_out"] == []
    # Without --data no metrics page is read: another broker may use the default directory.
    assert node["cpu"] is node["pid"] is node["role"] is None


def test_group_of_the_consumer_protocol_is_shown(run_command, kafka_broker, watched):
    name = f"{watched}-consumer"
    settings = {"bootstrap.servers": kafka_broker.bootstrap, "group.id": name}
    consumer = Consumer({**settings, "group.protocol": "consumer"})
    consumer.subscribe([watched])
    try:
        until(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2)
        (group,) = once(run_command, name)["groups"]
    finally:
        consumer.close()
    assert (group["type"], group["state"], group["members"]) == ("consumer", "Stable", 1)


def test_data_directory_adds_process_figures(run_command, kafka_broker, watched):
    output = once(run_command, watched, "--data", str(kafka_broker.data))
    (node,) = output["nodes"]
    assert node["pid"] in {each["pid"] for each in kafka_broker.nodes}
    assert node["memory"] > 1 << 20 and node["connections"] is not None
    assert node["role"] == kafka_broker.nodes[0]["role"]


def test_data_directory_names_the_broker(kafka_broker, watched, monkeypatch, capsys):
    monkeypatch.setenv("KAFKALITE_BOOTSTRAP", "127.0.0.1:1")
    words = ["--once", "--interval", "0.1", "--data", str(kafka_broker.data), "--json"]
    assert main(["top", watched, *words]) == 0
    assert json.loads(capsys.readouterr().out)["bootstrap"] == kafka_broker.bootstrap


def test_single_round_is_printed_as_text_without_a_terminal(run_command, watched):
    errors = run_command("top", "--once", "--interval", "0.1", watched)
    rows = errors.table
    assert ["TOPIC", "PARTITIONS", "RECORDS/S"] == [row for row in rows if row[:1] == ["TOPIC"]][0][
        :3
    ]
    assert [watched, "2", "0"] in [row[:3] for row in rows]


def test_internal_topics_are_shown_if_requested(run_command, watched):
    assert once(run_command, "__consumer")["topics"] == []
    output = once(run_command, "__consumer", "--internal")
    assert [topic["name"] for topic in output["topics"]] == ["__consumer_offsets"]


@pytest.fixture
def top(kafka_broker: Broker):
    """Start `kafkalite top` in a process of its own, and end it with the test."""
    started = []

    def start(*words: str, **streams) -> subprocess.Popen[str]:
        env = {**os.environ, "KAFKALITE_BOOTSTRAP": kafka_broker.bootstrap}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        process = subprocess.Popen([*COMMAND, *words], text=True, env=env, **streams)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Stream:
    """The output of a `top --json`."""

    def __init__(self, process) -> None:
        self.process = process
        self.output = []

    def more(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.output.append(json.loads(line))
        return self.output[-1]

    def until(self, *conditions):
        """Read until each condition was true of a round; return the first one's latest round."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not all(any(map(each, self.output)) for each in conditions):
            assert time.monotonic() < deadline, self.output[-1]
            self.more()
        return [each for each in self.output if conditions[0](each)][-1]


def test_produced_and_consumed_records_appear_as_rates(top, kafka_broker, watched):
    process = top(watched, "--json", "--interval", "0.1", "--data", str(kafka_broker.data))
    rounds = Stream(process)
    assert rounds.more()["totals"]["records_per_s"] == 0
    settings = {"bootstrap.servers": kafka_broker.bootstrap}
    producer = Producer(settings)
    for _ in range(1_000):
        producer.produce(watched, b"x" * 1_000, partition=0)
    producer.flush()
    rounds.until(
        lambda output: output["totals"]["lag"] == 1_003,
        lambda output: output["totals"]["records_per_s"] > 0,
        lambda output: (output["totals"]["bytes_in_per_s"] or 0) > 0,
    )
    consumer = Consumer({**settings, "group.id": watched})
    consumer.commit(offsets=[TopicPartition(watched, 0, 1_000)], asynchronous=False)
    consumer.close()
    rounds.until(
        lambda output: output["totals"]["lag"] == 5,
        lambda output: (output["groups"][0]["records_per_s"] or 0) > 0,
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_S_MAX)
    assert (process.returncode, errors) == (130, "")


def test_killed_broker_is_waited_for(top):
    with Broker() as broker:
        broker.topic(name="here")
        process = top("-b", broker.bootstrap, "--json", "--interval", "0.1")
        rounds = Stream(process)
        assert rounds.more()["totals"]["topics"] == 1
        broker.kill()
        assert "lost; retrying" in process.stderr.readline()
        broker.start()
        broker.topic(name="back")
        rounds.until(lambda output: output["totals"]["topics"] == 2)


def test_closed_output_pipe_ends_top_silently(top):
    process = top("--interval", "0.1")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(WAIT_S_MAX) == 141
    assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--interval", "0"], 2, "'0' is not an interval of 0.1 to 3,600 s"),
        (["--interval", "nan"], 2, "'nan' is not an interval of 0.1 to 3,600 s"),
        (["--sort", "colour"], 2, "invalid choice: 'colour'"),
        (["-b", "127.0.0.1:1"], 1, "no broker responds at 127.0.0.1:1"),
        (["--data", "/nowhere"], 1, "no broker runs on /nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_top_arguments_are_one_line(run_command, words, code, sentence):
    errors = run_command("top", *words)
    assert errors.code == code
    assert errors.err.startswith("kafkalite: ") and errors.err.count("\n") == 1
    assert sentence in errors.err


# -- a terminal ----------------------------------------------------------------------------------

ALTERNATE, NORMAL = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A pseudo-terminal, and a command on it."""

    def __init__(self, start, *words: str) -> None:
        self.ours, self.its = pty.openpty()
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.before = termios.tcgetattr(self.its)
        self.seen = b""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.its)
        ours = {"start_new_session": True, "preexec_fn": self.control}
        self.process = start(*words, **streams, **ours)

    def control(self) -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ^C reaches it

    def shows(self, wanted: bytes) -> bool:
        while select.select([self.ours], [], [], 0)[0]:
            self.seen += os.read(self.ours, 65536)
        return wanted in re.sub(rb"\x1b\[[0-9;]*m", b"", self.seen)

    def press(self, keys: bytes) -> int:
        """Type keys and return the exit code; the terminal must be restored."""
        os.write(self.ours, keys)
        deadline = time.monotonic() + WAIT_S_MAX
        while self.process.poll() is None and time.monotonic() < deadline:
            self.shows(b"")
            time.sleep(0.01)
        self.shows(b"")
        assert self.seen.count(ALTERNATE) == self.seen.count(NORMAL) == 1
        assert self.seen.rindex(NORMAL) > self.seen.rindex(b"q: quit")
        assert termios.tcgetattr(self.its) == self.before
        return self.process.returncode

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.its)


@pytest.fixture
def terminal(top, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    opened = []

    def open_one(*words: str) -> Terminal:
        opened.append(Terminal(top, *words))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)], ids=["q", "ctrl-c"])
def test_screen_is_drawn_until_a_key_ends_it(terminal, watched, key, code):
    shown = terminal(watched, "--interval", "0.1")
    until(lambda: shown.shows(b"TOPIC") and shown.shows(watched.encode()))
    until(lambda: shown.shows(b"0 records/s"))
    assert shown.press(key) == code


def test_terminated_top_restores_the_terminal(terminal, watched):
    shown = terminal(watched)
    until(lambda: shown.shows(b"q: quit"))
    shown.process.terminate()
    assert shown.press(b"") == 128 + signal.SIGTERM


def test_other_keys_are_ignored(terminal, watched):
    shown = terminal(watched, "--interval", "0.1")
    until(lambda: shown.shows(b"q: quit"))
    # Ctrl-Z is a key like any other: stopping would leave the shell half a screen.
    assert termios.tcgetattr(shown.its)[6][termios.VSUSP] == b"\0"
    assert shown.press(b"x\x1b[A\x1aq") == 0


def test_key_ends_top_while_the_broker_is_unreachable(terminal):
    with Broker() as broker:
        shown = terminal("-b", broker.bootstrap, "--interval", "0.1")
        until(lambda: shown.shows(b"q: quit"))
        broker.kill()
        until(lambda: shown.shows(b"no broker responds"))
        assert shown.press(b"q") == 0
