"""kafkalite group, as run from a shell."""

from __future__ import annotations

import io
import itertools
import os
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    Producer,
    TopicPartition,
)

from kafkalite.cli import group as group_command
from kafkalite.cli.clients import ConnectionArguments
from kafkalite.cli.group_offsets import PartitionSelection, read_offsets, span
from kafkalite.cli.membership import format_partitions
from kafkalite.errors import Refusal
from kafkalite.testing import Broker
from tests.cli.conftest import RunCommand
from tests.process.waiting import until

_numbers = itertools.count(1)
COUNT = 10


@pytest.fixture
def group() -> str:
    return f"group-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(kafka_broker: Broker) -> str:
    """Two partitions, ten records in each, one a second from the epoch on."""
    name = kafka_broker.topic(2, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for partition, number in itertools.product(range(2), range(COUNT)):
        producer.produce(name, b"x", partition=partition, timestamp=1_000 * (number + 1))
    producer.flush()
    return name


@pytest.fixture
def member(kafka_broker: Broker, topic: str, group: str):
    """A consumer with all partitions of the topic, for the duration of the test."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap,
            "group.id": group,
            "client.id": "sitter",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])

    def has_all():
        consumer.poll(0.05)
        return len(consumer.assignment()) == 2

    until(has_all)
    yield consumer
    consumer.close()


def committed(run_command: RunCommand, group: str) -> dict[int, int]:
    (found,) = run_command("group", "describe", group, "--json").json
    return {each["partition"]: each["committed"] for each in found["partitions"]}


def test_group_is_listed_and_described_with_lag_and_members(run_command, topic, group, member):
    member.commit(offsets=[TopicPartition(topic, 0, 4, metadata="here")], asynchronous=False)
    assert [group, "Stable", "classic"] in run_command("group", "list").table
    (found,) = run_command("group", "describe", group, "--json").json
    (owner,) = found["members"]
    assert (found["name"], found["state"], found["type"]) == (group, "Stable", "classic")
    assert (found["assignor"], found["lag"]) == ("range", 6)
    assert found["coordinator"]["id"] == 0
    assert owner["id"].startswith("sitter-")
    assert (owner["client_id"], owner["instance_id"]) == ("sitter", None)
    assert owner["host"].startswith("/127.0.0.1")
    assert owner["partitions"] == {topic: [0, 1]}
    rows = {"topic": topic, "end": COUNT, "member": owner["id"]}
    assert found["partitions"] == [
        {**rows, "partition": 0, "committed": 4, "lag": 6, "metadata": "here"},
        {**rows, "partition": 1, "committed": None, "lag": None, "metadata": None},
    ]
    page = run_command("group", "describe", group).out.splitlines()
    assert page[0] == f"group {group}"
    assert page[1] == "state Stable (classic, range)"
    assert page[2].startswith("coordinator node 0 at 127.0.0.1:")
    assert page[3:5] == ["lag 6, partitions uncommitted: 1", ""]
    assert page[5].split() == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
    assert page[6].split() == [topic, "0", "4", "10", "6", owner["id"]]
    assert page[7].split() == [topic, "1", "-", "10", "-", owner["id"]]
    assert page[9].split() == ["MEMBER", "CLIENT", "HOST", "INSTANCE", "PARTITIONS"]
    assert page[10].split() == [owner["id"], "sitter", owner["host"], "-", f"{topic}:0-1"]


@pytest.fixture
def consumer_member(kafka_broker: Broker, topic: str, group: str):
    """A member of the consumer protocol with all partitions, for the duration of the test."""
    settings = {"bootstrap.servers": kafka_broker.bootstrap, "group.id": group}
    consumer = Consumer({**settings, "group.protocol": "consumer", "client.id": "sitter"})
    consumer.subscribe([topic])

    def has_all():
        consumer.poll(0.05)
        return len(consumer.assignment()) == 2

    until(has_all)
    yield consumer
    consumer.close()


def test_consumer_group_is_described_with_its_epochs(run_command, topic, group, consumer_member):
    consumer_member.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    assert [group, "Stable", "consumer"] in run_command("group", "list").table
    (found,) = run_command("group", "describe", group, "--json").json
    assert (found["state"], found["type"], found["assignor"]) == ("Stable", "consumer", "uniform")
    assert found["lag"] == 6
    assert found["epoch"] == found["assignment_epoch"] > 0
    (owner,) = found["members"]
    assert owner["id"] == consumer_member.memberid()
    assert (owner["epoch"], owner["partitions"]) == (found["epoch"], {topic: [0, 1]})
    page = run_command("group", "describe", group).out.splitlines()
    assert page[1] == f"state Stable (consumer, uniform, epoch {found['epoch']})"
    titles, row = page[-2].split(), page[-1].split()
    assert dict(zip(titles, row, strict=True))["EPOCH"] == str(found["epoch"])


def test_consumer_group_without_members_keeps_its_epoch(run_command, topic, group, consumer_member):
    consumer_member.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    (before,) = run_command("group", "describe", group, "--json").json
    consumer_member.unsubscribe()

    def has_left():
        consumer_member.poll(0.01)
        return [group, "Empty", "consumer"] in run_command("group", "list", group).table

    until(has_left)
    (after,) = run_command("group", "describe", group, "--json").json
    assert after["members"] == []
    assert after["epoch"] == after["assignment_epoch"] > before["epoch"]


def test_group_list_is_filtered_by_name_state_and_type(run_command, topic, group, member):
    run_command("group", "reset", f"{group}-idle", "-t", topic, "--to", "end")
    assert run_command("group", "list", group, "--names").out == f"{group}\n{group}-idle\n"
    assert (
        run_command("group", "list", group, "--state", "Empty", "--names").out == f"{group}-idle\n"
    )
    assert run_command("group", "list", group, "--state", "Stable", "--json").json == [
        {"name": group, "state": "Stable", "type": "classic", "simple": False}
    ]
    for words in ("--type", "consumer"), ("--type", "share"), ("--state", "Reconciling"):
        assert run_command("group", "list", group, *words).table == [["GROUP", "STATE", "TYPE"]]


def test_group_with_members_is_neither_reset_nor_deleted(run_command, topic, group, member):
    member.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    for words, sentence in [
        (
            ("reset", group, "--all-topics", "--to", "end"),
            "is Stable with 1 member; stop its members",
        ),
        (("delete", group), f"group {group}: "),
        (("delete", group, "-t", topic), f"group {group}: "),
    ]:
        result = run_command("group", *words)
        assert (result.code, result.out) == (1, "")
        assert sentence in result.err
        assert result.err.count("\n") == 1
    assert committed(run_command, group) == {0: 4, 1: None}


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (["--to", "beginning"], {0: 0, 1: 0}),
        (["--to", "end"], {0: 10, 1: 10}),
        (["--to", "3"], {0: 3, 1: 3}),
        (["--to", "-3"], {0: 7, 1: 7}),
        (["--to", "-300"], {0: 0, 1: 0}),
        (["--to", "current"], {0: 5, 1: 5}),
        (["--to", "@5500"], {0: 5, 1: 5}),
        (["--to", "@1970-01-01T00:00:07+00:00"], {0: 6, 1: 6}),
        (["--to", "@-1h"], {0: 10, 1: 10}),
        (["--shift-by", "2"], {0: 7, 1: 7}),
        (["--shift-by", "-2"], {0: 3, 1: 3}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_reset_commits_the_requested_offsets(words, offsets, run_command, topic, group):
    assert run_command("group", "reset", group, "-t", topic, "--to", "5").code == 0
    before = run_command("group", "reset", group, "--all-topics", *words, "--dry-run")
    assert before.err == "dry run: no offsets were committed\n"
    assert committed(run_command, group) == {0: 5, 1: 5}
    after = run_command("group", "reset", group, "--all-topics", *words)
    assert (after.out, after.err) == (before.out, "")
    assert after.table == [
        ["GROUP", "TOPIC", "PARTITION", "OLD", "NEW"],
        *([group, topic, str(index), "5", str(offset)] for index, offset in offsets.items()),
    ]
    assert committed(run_command, group) == offsets


def test_reset_out_of_range_is_clamped_and_reported(run_command, topic, group):
    result = run_command("group", "reset", group, "-t", f"{topic}:1", "--to", "999")
    assert result.table[1:] == [[group, topic, "1", "-", "10"]]
    assert result.err == f"{topic} [1] has offsets 0 to 10: using 10, not 999\n"
    result = run_command(
        "group", "reset", group, "-t", f"{topic}:1", "--shift-by", "-999", "--json"
    )
    row = {"group": group, "topic": topic, "partition": 1, "old_offset": 10, "new_offset": 0}
    assert result.json == [row]


def test_exported_offsets_are_imported(run_command, topic, group, tmp_path, monkeypatch):
    run_command("group", "reset", group, "-t", topic, "--to", "7")
    words = ("--all-topics", "--to", "current", "--dry-run", "--export")
    exported = run_command("group", "reset", group, *words).out
    assert exported == f"{topic},0,7\n{topic},1,7\n"
    run_command("group", "reset", group, "-t", topic, "--to", "end")
    (tmp_path / "offsets.csv").write_text(exported)
    assert (
        run_command("group", "reset", group, "--from-file", str(tmp_path / "offsets.csv")).code == 0
    )
    assert committed(run_command, group) == {0: 7, 1: 7}
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{group},{topic},1,2\n"))
    assert run_command("group", "reset", group, "--from-file", "-").code == 0
    assert committed(run_command, group) == {0: 7, 1: 2}


def test_export_of_several_groups_contains_their_names(run_command, topic, group):
    both = (group, f"{group}-too")
    result = run_command("group", "reset", *both, "-t", f"{topic}:0", "--to", "2", "--export")
    assert result.out == f"{group},{topic},0,2\n{group}-too,{topic},0,2\n"


def test_failed_reset_of_one_group_leaves_others_unchanged(run_command, topic, group, member):
    idle = f"{group}-idle"
    run_command("group", "reset", idle, "-t", topic, "--to", "5")
    assert run_command("group", "reset", idle, group, "-t", topic, "--to", "end").code == 1
    assert committed(run_command, idle) == {0: 5, 1: 5}


def test_committed_offsets_of_partition_or_topic_are_deleted(run_command, topic, group):
    run_command("group", "reset", group, "-t", topic, "--to", "5")
    result = run_command("group", "delete", group, "-t", f"{topic}:1")
    assert result.table == [["GROUP", "TOPIC", "PARTITION", "DELETED"], [group, topic, "1", "5"]]
    assert committed(run_command, group) == {0: 5}
    row = {"group": group, "topic": topic, "partition": 0, "offset": 5}
    result = run_command("group", "delete", "nobody", "-t", topic, "--if-exists")
    assert result.table == [["GROUP", "TOPIC", "PARTITION", "DELETED"]]
    assert run_command("group", "delete", group, "-t", topic, "--json").json == [row]


def test_groups_are_deleted(run_command, topic, group):
    run_command("group", "reset", group, "-t", topic, "--to", "5")
    result = run_command("group", "delete", "nobody", group)
    assert (result.code, result.out) == (1, f"{group} deleted\n")
    assert "group nobody: " in result.err
    assert run_command("group", "describe", group).code == 1
    assert run_command("group", "delete", group, "--if-exists").out == f"{group} did not exist\n"
    assert run_command("group", "delete", group, "--if-exists", "--json").json == [
        {"name": group, "deleted": False}
    ]


REFUSED = [
    (["describe", ""], 2, "'' is not a valid name"),
    (["describe", "a\nb"], 2, r"'a\nb' is not a valid name"),
    (["delete", "\udcff"], 2, "is not a valid name"),
    (["reset", "g", "-t", ":1", "--to", "1"], 2, "not of the form TOPIC or TOPIC:PARTITIONS"),
    (["describe", "nobody"], 1, "group nobody does not exist (see: kafkalite group list)"),
    (["delete", "nobody"], 1, "group nobody: "),
    (["delete", "nobody", "-t", "t"], 1, "group nobody does not exist"),
    (["list", "--state", "Idle"], 2, "invalid choice: 'Idle'"),
    (["reset", "g", "--to", "end"], 2, "exactly one of -t TOPIC, --all-topics"),
    (
        ["reset", "g", "-t", "t", "--all-topics", "--to", "end"],
        2,
        "exactly one of -t TOPIC, --all-topics",
    ),
    (["reset", "g", "--all-topics"], 2, "exactly one of --to WHERE, --shift-by"),
    (
        ["reset", "g", "-t", "t", "--to", "1", "--shift-by", "1"],
        2,
        "exactly one of --to WHERE, --shift-by",
    ),
    (
        ["reset", "g", "-t", "t", "--to", "soon"],
        2,
        "'soon' is not a start position: use beginning, curr",
    ),
    (["reset", "g", "-t", "t", "--shift-by", "far"], 2, "invalid int value: 'far'"),
    (["reset", "g", "-t", "t:x", "--to", "1"], 2, "'t:x' is not of the form TOPIC"),
    (["reset", "g", "-t", "t:0-999999", "--to", "1"], 2, "selects more than 100,000 partitions"),
    (["reset", "g", "-t", "t", "--to", "1", "--export", "--json"], 2, "exclude each other"),
    (
        ["reset", "nobody", "--all-topics", "--to", "end"],
        1,
        "group nobody has no committed offsets",
    ),
    (["reset", "nobody", "-t", "nowhere", "--to", "end"], 1, "topic 'nowhere' does not exist"),
    (["reset", "g", "--from-file", "/no/such"], 1, "/no/such: No such file or directory"),
]


@pytest.mark.parametrize(("words", "code", "sentence"), REFUSED, ids=lambda v: str(v)[:60])
def test_invalid_group_command_is_one_line(run_command, words, code, sentence):
    result = run_command("group", *words)
    assert (result.code, result.out) == (code, "")
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_reset_of_unknown_partition_is_rejected(run_command, topic, group):
    result = run_command("group", "reset", group, "-t", f"{topic}:0-2", "--to", "end")
    assert (result.code, result.out) == (1, "")
    assert f"topic {topic!r} has no partition 2; it has 2" in result.err
    assert run_command("group", "describe", group).code == 1


def test_shift_of_missing_offset_is_rejected(run_command, topic, group):
    run_command("group", "reset", group, "-t", f"{topic}:0", "--to", "5")
    result = run_command("group", "reset", group, "-t", topic, "--shift-by", "1")
    assert (result.code, result.out) == (1, "")
    assert f"{topic} [1] has no committed offset to shift" in result.err


@pytest.mark.parametrize(
    ("line", "groups", "sentence"),
    [
        ("t,zero,1", ["g"], "line 1: expected topic,partition,offset, found 't,zero,1'"),
        ("t,0,-1", ["g"], "line 1: expected topic,partition,offset, found 't,0,-1'"),
        ("t,0", ["g"], "line 1: expected topic,partition,offset, found 't,0'"),
        ("t,0,1", ["g", "h"], "line 1: expected group,topic,partition,offset, found 't,0,1'"),
        ("\nother,t,0,1", ["g"], "line 2: group other is not on the command line"),
        ("t,,5", ["g"], "line 1: expected topic,partition,offset, found 't,,5'"),
        ("t,0," + "9" * 30, ["g"], "expected topic,partition,offset, found"),
    ],
)
def test_invalid_line_of_offsets_file_is_named(line, groups, sentence):
    with pytest.raises(Refusal, match="offsets.csv, ") as refused:
        read_offsets("offsets.csv", line.splitlines(), groups)
    assert sentence in str(refused.value)


def test_partition_ranges_are_written_and_parsed():
    assert format_partitions({"a": [0, 1, 2, 5, 7, 8], "b": [3]}) == "a:0-2,5,7-8 b:3"
    assert span("a:0-2,5,7-8") == PartitionSelection("a", (0, 1, 2, 5, 7, 8))
    assert span("a") == PartitionSelection("a", None)
    assert format_partitions({}) == ""


def test_groups_of_other_nodes_are_listed_if_one_does_not_respond(monkeypatch, capsys):
    class SilentNode:
        def __init__(self, cluster):
            pass

        def listed(self):
            raise Refusal("h:2 did not respond in time")

    group = SimpleNamespace(
        group_id="g", state=ConsumerGroupState.EMPTY, type=ConsumerGroupType.CLASSIC,
        is_simple_consumer_group=False,
    )  # fmt: skip
    found: Future[SimpleNamespace] = Future()
    found.set_result(SimpleNamespace(valid=[group], errors=[KafkaError(-185)]))
    admin = SimpleNamespace(list_consumer_groups=lambda **_: found)
    cluster = SimpleNamespace(connected_admin=lambda: admin)
    monkeypatch.setattr(group_command, "ClusterClients", lambda **_: cluster)
    monkeypatch.setattr(group_command, "NativeGroups", SilentNode)
    connection = ConnectionArguments(bootstrap="h:1", profile=None, properties=())
    with pytest.raises(Refusal, match="incomplete, a node did not respond: h:2 did not respond"):
        group_command.list_groups("", None, None, True, False, **connection)
    assert capsys.readouterr().out == "g\n"
