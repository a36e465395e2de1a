"""kafkalite replica, and the replicas in status and doctor."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, Producer

from kafkalite import metrics
from kafkalite.cli import doctor, replica, replica_throttle
from kafkalite.cli.replica_health import (
    OFFLINE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    ReplicaHealth,
    health_of,
    problems,
)
from kafkalite.errors import ElectionNotNeeded
from kafkalite.metrics import GAUGE, Family
from kafkalite.process import run_directory
from kafkalite.testing import Broker


@pytest.fixture(scope="module")
def replicated():
    """A broker with three workers and topic `t` on all of them."""
    with Broker(workers=3) as broker:
        broker.topic(2, name="plain")
        yield broker


@pytest.fixture
def command(run_command, replicated, monkeypatch):
    monkeypatch.setenv("KAFKALITE_BOOTSTRAP", replicated.bootstrap)
    run_command("topic", "create", "t", "-p", "3", "--replicas", "3")
    return run_command


def test_replicas_are_listed_with_isr_and_lag(command):
    rows = command("replica", "list", "t", "--json").json
    assert [row["partition"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert sorted(row["replicas"]) == sorted(row["isr"]) == [1, 2, 3]
        assert row["lag"] == {str(node_id): 0 for node_id in row["replicas"]}
        assert (row["elr"], row["end_offset"]) == ([], 0)
    heads, first, *_ = command("replica", "list", "t").table
    assert heads == list(replica.TITLES)
    assert first[:2] == ["t", "0"]


def test_healthy_partitions_are_left_out(command):
    listed = command("replica", "list", "--unhealthy")
    assert (listed.code, listed.out.splitlines()[1:]) == (0, [])


def test_election_of_all_needs_none(command):
    elected = command("replica", "elect")
    assert (elected.code, elected.out) == (0, "all partitions are led by their preferred replica\n")
    (outcome, *_) = command("replica", "elect", "t", "--json").json
    assert outcome == {"topic": "t", "partition": 0, "outcome": "not needed", "error": None}


def test_partition_that_does_not_exist_fails(command):
    elected = command("replica", "elect", "t:7")
    assert elected.code == 1
    assert elected.out.startswith("t:7 failed: ")


@pytest.mark.parametrize("words", [("--to", "1"), ("--cancel",)], ids=["to", "cancel"])
def test_move_of_a_partition_that_does_not_exist_fails(command, words):
    moved = command("replica", "move", "t:7", *words)
    assert (moved.code, moved.out) == (1, "t:7 failed: Partition t-7 does not exist\n")


@pytest.mark.parametrize("verb", ["list", "elect"])
def test_topic_that_does_not_exist_is_refused(command, verb):
    refused = command("replica", verb, "nosuch")
    assert (refused.code, "'nosuch' does not exist" in refused.err) == (1, True)


def test_unclean_election_names_topics_and_is_confirmed(command, monkeypatch):
    assert "requires topics" in command("replica", "elect", "--unclean").err
    refused = command("replica", "elect", "t", "--unclean")
    assert (refused.code, "Add --yes" in refused.err) == (1, True)
    for word, code in (("no", 1), ("yes", 0)):
        terminal = io.StringIO(f"{word}\n")
        terminal.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", terminal)
        assert command("replica", "elect", "t", "--unclean").code == code
    assert command("replica", "elect", "t", "--unclean", "--yes").code == 0


def test_status_counts_partitions_that_need_attention(command, replicated):
    assert command("status", "--data", str(replicated.data), "--json").json["replicas"] == {
        "offline": 0, "under_min_isr": 0, "under_replicated": 0,
    }  # fmt: skip
    assert "replicas" not in command("status", "--data", str(replicated.data)).out


def test_node_list_counts_followed_replicas(command, replicated):
    before, after = (
        {each["id"]: each["replicas"] for each in nodes_listed(command, replicated, name)}
        for name in (None, "counted")
    )
    assert {node: after[node] - before[node] for node in (1, 2, 3)} == {1: 4, 2: 4, 3: 4}


def nodes_listed(command, broker: Broker, topic: str | None) -> list[dict]:
    if topic is not None:
        command("topic", "create", topic, "-p", "4", "--replicas", "3")
    return command("node", "list", "--json", "--data", str(broker.data)).json["nodes"]


def test_outcome_of_an_election_that_is_not_needed_is_no_failure():
    assert replica.outcome(KafkaError(ElectionNotNeeded.code))["outcome"] == "not needed"
    assert replica.outcome(KafkaError(80))["outcome"] == "failed"


def test_partition_without_leader_or_out_of_sync_is_unhealthy():
    for leader, isrs, expected in ((1, [1, 2], True), (1, [1], False), (-1, [1, 2], False)):
        partition = SimpleNamespace(leader=leader, isrs=isrs, replicas=[1, 2])
        assert replica.is_healthy(partition) is expected


def test_row_without_leader_has_dashes_and_question_marks():
    row = replica.ReplicaRow("t", 0, -1, [1, 2], [], [1], [], None, {1: None, 2: 3})
    assert replica.cells(row) == ["t", 0, "none", "1,2", "-", "1", None, "1:? 2:3"]


def test_leader_that_does_not_respond_has_no_end_and_no_lag(monkeypatch):
    monkeypatch.setattr(replica, "eligible_replicas", lambda *_: {})
    monkeypatch.setattr(replica, "end_offsets", lambda *_: {("t", 1): 5})
    monkeypatch.setattr(replica, "lags_by_node", lambda *_: {2: {("t", 0): 3}, 1: {("t", 1): 0}})
    found = {
        ("t", index): SimpleNamespace(leader=leader, replicas=[1, 2], isrs=[1, 2])
        for index, leader in enumerate((1, 2))
    }
    silent, other = replica.rows_of(None, None, None, found)
    assert (silent.end_offset, silent.lag) == (None, {1: None, 2: 3})
    assert (other.end_offset, other.lag) == (5, {1: 0, 2: 0})


def page(**counts):
    families = [Family(name, GAUGE, "", [({}, count)]) for name, count in counts.items()]
    return SimpleNamespace(node_id=0, families=families)


def test_counts_of_all_nodes_are_added():
    pages = [page(**{OFFLINE: 1, UNDER_REPLICATED: 2}), page(**{UNDER_REPLICATED: 3})]
    assert health_of(pages) == ReplicaHealth(1, 0, 5)
    assert health_of(pages[1:]) is None


def test_problems_say_what_to_do():
    found = [*problems(ReplicaHealth(1, 2, 3))]
    assert [each.is_error for each in found] == [True, True, False]
    assert found[0].found == "1 partition without a leader: not served"
    assert all("kafkalite replica" in each.advice.replace("\n", " ") for each in found)
    assert [*problems(ReplicaHealth(0, 0, 0))] == []


@pytest.mark.parametrize(
    ("counts", "levels"),
    [
        ({OFFLINE: 0}, ["ok"]),
        ({OFFLINE: 0, UNDER_REPLICATED: 1}, ["warning"]),
        ({OFFLINE: 1, UNDER_MIN_ISR: 1}, ["wrong", "wrong"]),
        ({}, []),
    ],
)
def test_doctor_checks_replicas(monkeypatch, counts, levels):
    monkeypatch.setattr(metrics, "read_pages", lambda *_: [page(**counts)])
    monkeypatch.setattr(run_directory, "bus_path", lambda _: Path("/run/bus"))
    assert [each.level for each in doctor.replicas({})] == levels


# -- move ------------------------------------------------------------------------------------------


def replicas_of(command, topic: str) -> list[list[int]]:
    return [row["replicas"] for row in command("replica", "list", topic, "--json").json]


@pytest.fixture
def single(command):
    """A topic of two partitions with one replica each."""
    command("topic", "create", "single", "-p", "2")
    yield "single"
    command("topic", "delete", "single", "--yes")


def test_replicas_are_moved_and_their_number_changes(command, single):
    moved = command("replica", "move", single, "--to", "2,3", "--json")
    assert moved.code == 0
    assert [each["outcome"] for each in moved.json] == ["moved"] * 2
    assert replicas_of(command, single) == [[2, 3], [3, 2]]
    moved = command("replica", "move", f"{single}:1", "--to", "1")
    assert (moved.code, moved.out) == (0, "single:1 moved\n")
    assert replicas_of(command, single) == [[2, 3], [1]]


def test_move_without_a_wait_is_in_progress_or_complete(command, single):
    moved = command("replica", "move", f"{single}:0", "--to", "1,2,3", "--timeout", "0")
    assert moved.out in ("single:0 in progress\n", "single:0 moved\n")
    assert command("replica", "move", f"{single}:0", "--to", "1,2,3").code == 0
    assert replicas_of(command, single)[0] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (
            ["--to", "1,9"],
            1,
            "single:0 failed: Node 9 in the replica list does not exist or takes no partitions;"
            " choose among 1, 2, 3\n",
        ),
        (["--to", "1,1"], 1, "single:0 failed: "),
        (["--cancel"], 1, "single:0 failed: "),
    ],
    ids=["unknown node", "repeated node", "nothing to cancel"],
)
def test_move_that_the_broker_refuses_is_a_failure(command, single, words, code, text):
    refused = command("replica", "move", "single:0", *words)
    assert refused.code == code
    assert refused.out.startswith(text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["single"], "name the nodes of the new replicas with --to, or --cancel a move"),
        (["single", "--to", "1", "--cancel"], "or --cancel a move"),
        (["missing", "--to", "1"], "topic 'missing' does not exist"),
        (["single", "--to", "one"], "'one' is not a list of node ids"),
        (["single", "--to", "1", "--timeout", "soon"], "'soon' is no number of seconds"),
    ],
)
def test_move_with_wrong_arguments_is_refused(command, words, text):
    refused = command("replica", "move", *words)
    assert refused.code != 0
    assert text in refused.err


# -- throttle --------------------------------------------------------------------------------------

NO_LIMITS = [{"node": node_id, "leader": None, "follower": None} for node_id in range(4)]


@pytest.fixture
def throttle(command):
    """The command, which is followed by the removal of all throttles."""
    yield lambda *words: command("replica", "throttle", *words)
    assert command("replica", "throttle", "--remove").code == 0


def limits(rate):
    return [{"node": node_id, "leader": rate, "follower": rate} for node_id in range(4)]


def test_throttles_are_set_shown_and_removed(throttle):
    assert throttle().out == "no replica is throttled\n"
    assert throttle("--json").json == {"rates": NO_LIMITS, "topics": []}
    entries = ["0:1", "0:2", "0:3"]
    state = throttle("--rate", "10MB", "t:0", "--json").json
    assert state["rates"] == limits(10_000_000)
    assert state["topics"] == [{"topic": "t", "leader": entries, "follower": entries}]
    assert throttle("--rate", "500", "t:2", "--json").json["rates"] == limits(500)
    table = throttle().out
    assert "1     500 B/s    500 B/s\n" in table
    assert f"t      {','.join(entries)},2:1,2:2,2:3  " in table
    state = throttle("--remove", "t:0", "--json").json
    assert [each["leader"] for each in state["topics"]] == [["2:1", "2:2", "2:3"]]
    assert state["rates"] == limits(500)
    assert throttle("--remove", "t:2", "--json").json == {"rates": NO_LIMITS, "topics": []}


def test_all_replicas_of_a_topic_are_throttled(throttle):
    state = throttle("--rate", "1KiB", "t", "--json").json
    assert state["topics"] == [{"topic": "t", "leader": ["*"], "follower": ["*"]}]
    assert throttle("--rate", "1KiB", "t:1", "--json").json == state
    refused = throttle("--remove", "t:1")
    assert (refused.code, "all replicas of topic 't' are throttled" in refused.err) == (1, True)
    assert throttle("--remove", "t", "--json").json == {"rates": NO_LIMITS, "topics": []}


def test_rate_alone_changes_the_rate(throttle):
    throttle("--rate", "1MB", "t:0")
    state = throttle("--rate", "2MB", "--json").json
    assert (state["rates"], len(state["topics"])) == (limits(2_000_000), 1)


def test_rate_of_one_node_gives_way(throttle, command):
    key = "leader.replication.throttled.rate"
    assert command("config", "set", "node", "1", f"{key}=7").code == 0
    shown = throttle("--json").json["rates"]
    assert [each["leader"] for each in shown] == [None, 7, None, None]
    assert throttle("--rate", "9", "t", "--json").json["rates"] == limits(9)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rate", "-1", "t"], "'-1' is no rate"),
        (["--rate", "0", "t"], "'0' is no rate"),
        (["--rate", "fast", "t"], "'fast' is no rate"),
        (["--rate", "99999999999GB", "t"], "is no rate"),
        (["--rate", "1MB", "t:9"], "topic 't' has no partition 9"),
        (["--rate", "1MB", "t:x"], "'t:x' is not of the form"),
        (["--rate", "1MB", "missing"], "topic 'missing' does not exist"),
        (["--rate", "1MB", "--remove"], "use one of them"),
        (["--rate", "1MB", "--moving"], "no replicas are being moved"),
        (["--remove", "--moving"], "no replicas are being moved"),
        (["--moving"], "requires --rate or --remove"),
        (["t:1"], "name no partitions"),
        (["missing"], "topic 'missing' does not exist"),
    ],
)
def test_throttle_with_wrong_arguments_is_refused(throttle, words, text):
    refused = throttle(*words)
    assert refused.code != 0
    assert text in refused.err
    assert throttle("--json").json == {"rates": NO_LIMITS, "topics": []}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500000", 500_000), ("1B/s", 1), ("1.5kB", 1_500), ("2k", 2_000), ("2K", 2_000),
        ("10MB/s", 10_000_000), ("10MiB", 10 << 20), ("1GiB", 1 << 30), ("1G", 10**9),
    ],
)  # fmt: skip
def test_rates_have_units(text, size):
    assert replica_throttle.rate(text) == size


@pytest.fixture
def slow_move(command, replicated, single):
    """A move of a topic with records that does not end, as its rate is 1 byte per second.

    Partition 0 of the topic is filled first: its records exceed the rate for the time of a test.
    """
    command("replica", "move", single, "--to", "1")
    producer = Producer({"bootstrap.servers": replicated.bootstrap})
    for number in range(40):
        producer.produce(single, bytes(500_000), partition=number % 2)
        producer.flush()
    words = ("replica", "move", single, "--to", "1,2", "--throttle", "1", "--timeout", "0")
    yield lambda: command(*words)
    command("replica", "throttle", "--remove")
    command("replica", "move", single, "--to", "1")


def test_move_under_a_throttle_goes_on_after_its_removal(slow_move, throttle, command, single):
    moving = slow_move()
    assert moving.code == 1
    assert "the throttle stays" in moving.err
    assert throttle("--json").json == {
        "rates": limits(1),
        "topics": [{"topic": single, "leader": ["0:1", "1:1"], "follower": ["0:2", "1:2"]}],
    }
    assert command("replica", "list", single, "--unhealthy").code == 1
    state = throttle("--rate", "5", "--moving", "--json").json
    assert state["rates"] == limits(5)
    throttle("--remove", "--moving")
    assert throttle("--json").json == {"rates": NO_LIMITS, "topics": []}
    assert command("replica", "move", single, "--to", "1,2").code == 0
    assert replicas_of(command, single) == [[1, 2], [2, 1]]


def test_throttle_of_a_move_is_removed_at_its_end(command, throttle, single):
    moved = command("replica", "move", single, "--to", "2,3", "--throttle", "100MB")
    assert (moved.code, moved.err) == (0, "")
    assert throttle("--json").json == {"rates": NO_LIMITS, "topics": []}


def test_move_under_a_throttle_leaves_that_of_other_replicas(command, throttle, single):
    throttle("--rate", "50MB", "t")
    assert command("replica", "move", single, "--to", "2,3", "--throttle", "100MB").code == 0
    state = throttle("--json").json
    assert (state["rates"], [each["topic"] for each in state["topics"]]) == (
        limits(100_000_000), ["t"],
    )  # fmt: skip


def test_end_of_a_move_has_no_throttle(command, single):
    refused = command("replica", "move", single, "--cancel", "--throttle", "1MB")
    assert (refused.code, "--cancel" in refused.err) == (1, True)


def test_throttled_move_of_a_partition_that_does_not_exist_fails(command, throttle):
    for name in ("t:9", "missing:0"):
        failed = command("replica", "move", name, "--to", "1,2", "--throttle", "1MB")
        assert (failed.code, failed.out.startswith(f"{name} failed: ")) == (1, True)
    assert throttle("--json").json == {"rates": NO_LIMITS, "topics": []}
