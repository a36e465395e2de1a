"""kafkalite topic, as run from a shell."""

from __future__ import annotations

import json
import os

from confluent_kafka import Consumer, TopicPartition

from tests.cli.conftest import Run


def fresh(name: str) -> str:
    return f"{name}-{os.getpid()}"


def as_json(run: Run, *words: str) -> list[dict]:
    ended = run("topic", *words, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_topics_are_created_listed_described_and_deleted(run):
    first, second = fresh("walk-a"), fresh("walk-b")
    words = ("-p", "3", "-c", "retention.ms=60000")
    assert run("topic", "create", first, second, *words).stdout.decode() == (
        f"{first} created\n{second} created\n"
    )
    assert as_json(run, "list", first) == [
        {"name": first, "partitions": 3, "replication_factor": 1}
    ]
    assert run("topic", "list", first, "--names").stdout.decode() == f"{first}\n"
    (table, row) = run("topic", "list", second).stdout.decode().splitlines()
    assert table.split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert row.split() == [second, "3", "1"]

    run("produce", "-t", first, "-p", "2", given=b"1\n2\n")
    (described,) = as_json(run, "describe", first)
    assert described["name"] == first
    assert not described["internal"]
    ends = [(p["partition"], p["start_offset"], p["end_offset"]) for p in described["partitions"]]
    assert ends == [(0, 0, 0), (1, 0, 0), (2, 0, 2)]
    assert described["configs"] in (None, {"retention.ms": "60000"})
    page = run("topic", "describe", first, second).stdout.decode()
    assert f"topic {first}\nid {described['topic_id']}\n" in page
    assert f"\n\ntopic {second}\n" in page

    assert run("topic", "delete", first, second).returncode == 0
    assert as_json(run, "list", first) == []


def test_existing_or_missing_topic_is_an_error_unless_allowed(run):
    name = fresh("again")
    assert as_json(run, "create", name) == [{"name": name, "created": True}]
    ended = run("topic", "create", name)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.decode() == f"kafkalite: The topic {name} already exists.\n"
    assert run("topic", "create", name, "--if-not-exists").stdout.decode() == (
        f"{name} existed already\n"
    )
    assert run("topic", "delete", name).returncode == 0
    ended = run("topic", "delete", name)
    assert ended.returncode == 1
    assert b"Unknown topic or partition" in ended.stderr
    assert as_json(run, "delete", name, "--if-exists") == [{"name": name, "deleted": False}]


def test_error_of_one_topic_does_not_stop_creation_of_others(run):
    name = fresh("good")
    ended = run("topic", "create", "not/legal", name)
    assert ended.returncode == 1
    assert ended.stdout.decode() == f"{name} created\n"
    assert b"not/legal" in ended.stderr


def test_invalid_topic_create_is_one_line(run):
    for words, sentence in [
        (("-p", "0"), "-p 0: the number of partitions must be 1 to 100,000"),
        (("-p", "1000000"), "-p 1000000: the number of partitions must be 1 to 100,000"),
        (("-r", "0"), "-r 0: the number of replicas must be 1 to 10,000"),
        (("-r", "-2"), "-r -2: the number of replicas must be 1 to 10,000"),
        (("-r", "40000"), "-r 40000: the number of replicas must be 1 to 10,000"),
        (("-r", "9"), "Unable to replicate the partition 9 time(s)"),
        (("-c", "no.such.key=1"), "no.such.key"),
        (("-c", "retention.ms=soon"), "retention.ms"),
    ]:
        ended = run("topic", "create", fresh("wrong"), *words)
        assert ended.returncode == 1
        assert sentence in ended.stderr.decode()
        assert ended.stderr.count(b"\n") == 1


def test_describe_of_unknown_topic_fails(run):
    ended = run("topic", "describe", fresh("nobody"))
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"Unknown topic or partition" in ended.stderr


def test_topic_alter_changes_partitions_and_configs(run_command, kafka_topic):
    words = ("-p", "3", "-c", "retention.ms=60000", "-c", "segment.ms=5000")
    assert run_command("topic", "alter", kafka_topic, *words).out == f"{kafka_topic} altered\n"
    (topic,) = run_command("topic", "describe", kafka_topic, "--json").json
    assert len(topic["partitions"]) == 3
    assert topic["configs"] == {"retention.ms": "60000", "segment.ms": "5000"}
    assert run_command("topic", "alter", kafka_topic, "-u", "segment.ms", "--json").json == [
        {"name": kafka_topic, "altered": True, "dry_run": False}
    ]
    (topic,) = run_command("topic", "describe", kafka_topic, "--json").json
    assert topic["configs"] == {"retention.ms": "60000"}


def test_internal_topic_is_described_without_the_state_of_the_log_cleaner(
    run_command, kafka_broker
):
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": "internal"})
    consumer.committed([TopicPartition("any", 0)], timeout=30)
    consumer.close()
    (topic,) = run_command("topic", "describe", "__consumer_offsets", "--json").json
    assert topic["internal"] and topic["configs"]["cleanup.policy"] == "compact"
    assert "compaction" not in topic["partitions"][0]


def test_dry_run_of_topic_alter_changes_nothing(run_command, kafka_topic):
    words = ("-p", "3", "-c", "retention.ms=60000")
    result = run_command("topic", "alter", kafka_topic, *words, "--dry-run")
    assert result.out == f"{kafka_topic} can be altered\n"
    (topic,) = run_command("topic", "describe", kafka_topic, "--json").json
    assert (len(topic["partitions"]), topic["configs"]) == (1, {})


def test_invalid_topic_alter_is_one_line_and_changes_nothing(run_command, kafka_topic):
    for words, code, sentence in [
        ((), 2, "specify what to alter"),
        (("-p", "0"), 1, "-p 0: the number of partitions must be 1 to 100,000"),
        (("-p", "1", "-c", "retention.ms=1"), 1, kafka_topic),
        (("-c", "retentoin.ms=1"), 1, "did you mean retention.ms"),
        (("-c", "retention.ms=soon"), 1, "retention.ms"),
    ]:
        result = run_command("topic", "alter", kafka_topic, *words)
        assert (result.code, result.out) == (code, "")
        assert sentence in result.err
        assert result.err.count("\n") == 1
    (topic,) = run_command("topic", "describe", kafka_topic, "--json").json
    assert (len(topic["partitions"]), topic["configs"]) == (1, {})


def test_error_of_one_topic_does_not_stop_alteration_of_others(run_command, kafka_topic):
    result = run_command("topic", "alter", fresh("nobody"), kafka_topic, "-p", "2")
    assert (result.code, result.out) == (1, f"{kafka_topic} altered\n")
    assert fresh("nobody") in result.err
