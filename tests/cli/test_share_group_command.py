"""kafkalite group and consume --share with share groups, as run from a shell."""

from __future__ import annotations

import itertools
import os

import pytest
from confluent_kafka import ShareConsumer

from kafkalite.cli.shell_tools import start
from tests.process.waiting import WAIT_S_MAX, until

_numbers = itertools.count(1)
COUNT = 6


@pytest.fixture
def group(run_command):
    """Name of a share group that begins at the first record."""
    name = f"workers-{os.getpid()}-{next(_numbers)}"
    set_ = run_command("config", "set", "group", name, "share.auto.offset.reset=earliest")
    assert set_.code == 0, set_.err
    return name


@pytest.fixture
def topic(kafka_broker, run):
    """One partition with COUNT records."""
    name = kafka_broker.topic()
    lines = b"".join(b"%d\n" % number for number in range(COUNT))
    assert run("produce", "-t", name, given=lines).returncode == 0
    return name


def partition_of(run_command, group):
    """Return (start offset, lag) of the only partition that the group knows."""
    (found,) = run_command("group", "describe", group, "--json").json
    (partition,) = found["partitions"]
    return partition["start"], partition["lag"]


def await_all_read(run_command, group):
    """Wait until the start offset is at the end.

    The leader may store it after the last response (`SharePartition.final_write`).
    """
    until(lambda: partition_of(run_command, group) == (COUNT, 0))


def test_records_are_consumed_once_by_members_of_a_share_group(run, run_command, topic, group):
    first = run("consume", "-G", group, "--share", topic, "-c", "4")
    assert (first.returncode, first.stdout) == (0, b"0\n1\n2\n3\n")
    second = run("consume", "-G", group, "--share", topic, "-c", "2")
    assert (second.returncode, second.stdout) == (0, b"4\n5\n")
    await_all_read(run_command, group)


def test_consume_refuses_a_group_of_another_type(run, topic, group):
    readers = f"readers-{group}"
    assert run("consume", "-G", readers, topic, "-e", "-q").returncode == 0
    assert run("consume", "-G", group, "--share", topic, "-c", "1", "-q").returncode == 0
    shared = run("consume", "-G", readers, "--share", topic, "-c", "1")
    assert (shared.returncode, shared.stderr.decode()) == (
        1,
        f"kafkalite: group {readers} is a classic group: read it without --share, or choose another"
        " name for a share group\n",
    )
    found = run("consume", "-G", group, "--protocol", "consumer", topic, "-e")
    assert (found.returncode, found.stderr.decode()) == (
        1,
        f"kafkalite: group {group} is a share group: read it with --share, or choose another"
        " name\n",
    )


def test_console_share_consumer_refuses_a_group_of_another_type(run, topic, kafka_broker, capsys):
    readers = f"readers-{topic}"
    assert run("consume", "-G", readers, topic, "-e", "-q").returncode == 0
    at = ["--bootstrap-server", kafka_broker.bootstrap]
    tool = ["kafka-console-share-consumer", *at, "--topic", topic, "--group", readers]
    assert start.main(tool) == 1
    assert capsys.readouterr().err == (
        f"kafkalite: group {readers} is a classic group: read it with kafka-console-consumer.sh, or"
        " choose another name for a share group\n"
    )


def test_consume_names_the_address_at_which_no_broker_responds(run):
    found = run("consume", "-G", "g", "--share", "t", "-c", "1", bootstrap="127.0.0.1:1")
    (line,) = found.stderr.decode().splitlines()
    assert found.returncode == 1
    assert line.startswith("kafkalite: no broker responds at 127.0.0.1:1: ")


def test_share_group_is_listed_and_described_with_members(
    kafka_broker, run_command, topic, group
):
    consumer = ShareConsumer(
        {"bootstrap.servers": kafka_broker.bootstrap, "group.id": group, "client.id": "worker"}
    )
    received = []

    def receive():
        received.extend(each for each in consumer.poll(0.1) if each.error() is None)
        return len(received) == COUNT

    try:
        consumer.subscribe([topic])
        until(receive)
        consumer.commit_sync(WAIT_S_MAX)
        await_all_read(run_command, group)
        assert [group, "Stable", "share"] in run_command("group", "list").table
        assert run_command("group", "list", group, "--type", "share", "--json").json == [
            {"name": group, "state": "Stable", "type": "share", "simple": False}
        ]
        (found,) = run_command("group", "describe", group, "--json").json
        (member,) = found["members"]
        assert (found["state"], found["type"], found["assignor"]) == ("Stable", "share", "simple")
        assert (member["client_id"], member["partitions"]) == ("worker", {topic: [0]})
        assert found["epoch"] == found["assignment_epoch"] == member["epoch"]
        assert found["partitions"] == [
            {
                "topic": topic, "partition": 0, "start": COUNT, "end": COUNT, "lag": 0,
                "in_flight": 0, "deliveries": 0,
            }
        ]
        page = run_command("group", "describe", group).out.splitlines()
        assert page[1] == f"state Stable (share, simple, epoch {found['epoch']})"
        assert page[3] == "lag 0"
        assert page[5].split() == [*"TOPIC PARTITION START END LAG IN FLIGHT DELIVERIES".split()]
        assert page[6].split() == [topic, "0", str(COUNT), str(COUNT), "0", "0", "0"]
        refused = run_command("group", "reset", group, "--all-topics", "--to", "beginning")
        assert refused.code == 1 and "stop its members" in refused.err
        assert run_command("group", "delete", group, "-t", topic).code == 1
    finally:
        consumer.close()


def test_share_group_is_reset_and_deleted(run, run_command, topic, group):
    assert run("consume", "-G", group, "--share", topic, "-c", str(COUNT)).returncode == 0
    await_all_read(run_command, group)
    reset = run_command("group", "reset", group, "--all-topics", "--to", "3")
    assert reset.table[1] == [group, topic, "0", str(COUNT), "3"]
    assert partition_of(run_command, group) == (3, 3)
    run_command("group", "reset", group, "-t", topic, "--shift-by", "1")
    assert partition_of(run_command, group) == (4, 2)
    again = run("consume", "-G", group, "--share", topic, "-c", "2")
    assert again.stdout == b"4\n5\n"
    await_all_read(run_command, group)
    refused = run_command("group", "delete", group, "-t", f"{topic}:0")
    assert refused.code == 1 and "only whole topics" in refused.err
    deleted = run_command("group", "delete", group, "-t", topic)
    assert deleted.table[1] == [group, topic, "0", str(COUNT)]
    assert run_command("group", "describe", group, "--json").json[0]["partitions"] == []
    assert run_command("group", "delete", group).out == f"{group} deleted\n"
    assert run_command("group", "describe", group).code == 1
