"""produce and consume, as run from a shell."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.testing import Broker
from tests.cli.conftest import TIMEOUT_S, Run


def consumed(run: Run, topic: str, *words: str) -> bytes:
    ended = run("consume", "-t", topic, "-e", *words)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == b""
    return ended.stdout


def produced(run: Run, topic: str, *words: str, given: bytes = b"") -> None:
    ended = run("produce", "-t", topic, *words, given=given)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_lines_are_produced_and_consumed(run, kafka_topic):
    produced(run, kafka_topic, given=b"one\n\nthree\nunended")
    assert consumed(run, kafka_topic) == b"one\n\nthree\nunended\n"


def test_keys_headers_and_nulls_use_the_flags_of_kcat(run, kafka_topic):
    words = ("-K", ":", "-k", "else", "-H", "h=1", "-H", "g=", "-Z")
    produced(run, kafka_topic, *words, given=b"k:v\nno key\ngone:\na:b:c\n")
    assert consumed(run, kafka_topic, "-f", "%k=%s %S %h\\n") == (
        b"k=v 1 h=1,g=\nelse=no key 6 h=1,g=\ngone= -1 h=1,g=\na=b:c 3 h=1,g=\n"
    )
    assert consumed(run, kafka_topic, "-K", "|", "-Z", "-o", "2", "-c", "1") == b"gone|NULL\n"


def test_json_is_one_object_per_record(run, kafka_topic):
    produced(run, kafka_topic, "-k", "k", given=b"a\nb\n")
    records = [json.loads(line) for line in consumed(run, kafka_topic, "-J").splitlines()]
    assert [(r["offset"], r["key"], r["payload"]) for r in records] == [
        (0, "k", "a"),
        (1, "k", "b"),
    ]


def test_any_delimiter_separates_records(run, kafka_topic):
    produced(run, kafka_topic, "-D", "\\r\\n", given=b"a\nb\r\nc\rd\r\n")
    assert consumed(run, kafka_topic, "-D", "%\\0") == b"a\nb%\0c\rd%\0"


def test_files_are_records_or_contain_lines(run, kafka_topic, tmp_path):
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3\n")
    files = [str(tmp_path / name) for name in "ab"]
    produced(run, kafka_topic, *files)
    produced(run, kafka_topic, files[0], "-l", files[1])
    assert consumed(run, kafka_topic, "-f", "%S,") == b"4,2,1,1,1,"


def test_large_pipe_is_consumed_whole_and_in_order(run, kafka_topic):
    lines = b"".join(b"%d %s\n" % (i, b"x" * (i % 300)) for i in range(30_000))
    produced(run, kafka_topic, given=lines)
    assert consumed(run, kafka_topic) == lines


def test_consume_starts_at_the_requested_offset(run, kafka_topic):
    produced(run, kafka_topic, given=b"0\n1\n2\n3\n")
    assert consumed(run, kafka_topic, "-o", "-1") == b"3\n"
    assert consumed(run, kafka_topic, "-o", "2") == b"2\n3\n"
    assert consumed(run, kafka_topic, "-o", "end") == b""
    assert consumed(run, kafka_topic, "-o", "@-10m", "-c", "1") == b"0\n"


@pytest.mark.parametrize("kafka_topic", [3], indirect=True)
def test_partitions_are_selected(run, kafka_topic):
    produced(run, kafka_topic, "-p", "1", given=b"one\n")
    produced(run, kafka_topic, "-p", "2", given=b"two\n")
    assert consumed(run, kafka_topic, "-p", "2", "-p", "0") == b"two\n"
    assert consumed(run, kafka_topic, "-p", "1", "-f", "%p %o\\n") == b"1 0\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("consume", "-t", "nobody-made-this", "-e"), "Unknown topic"),
        (("consume", "-t", "TOPIC", "-p", "7"), "has no partition 7; it has 1"),
        (("produce", "-t", "TOPIC", "-p", "7"), "has no partition 7; it has 1"),
        (("consume", "-t", "TOPIC", "-o", "7"), "offset 7 of "),
        (("produce", "-t", "TOPIC", "-X", "acks=7"), "acks"),
        (
            ("produce", "-t", "TOPIC", "-X", "no.such=1"),
            'No such configuration property: "no.such"',
        ),
        (("produce", "-t", "not/legal"), "Invalid topic"),
        (("produce", "-t", "TOPIC", "no such file"), "no such file: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_produce_or_consume_is_one_line_and_exit_code_1(run, kafka_topic, words, sentence):
    ended = run(*(kafka_topic if word == "TOPIC" else word for word in words), given=b"x\n")
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"kafkalite: ")
    assert ended.stderr.count(b"\n") == 1
    assert sentence in ended.stderr.decode()


def test_undelivered_records_are_counted_and_fail_the_command(run, kafka_broker):
    topic = kafka_broker.topic(config={"max.message.bytes": "2000"})
    ended = run("produce", "-t", topic, given=b"x" * 5_000 + b"\n")
    assert ended.returncode == 1
    assert b"1 of 1 records were not delivered: Message size too large" in ended.stderr


def test_unreachable_broker_is_one_line(run):
    for words in (["produce", "-t", "t"], ["consume", "-t", "t"], ["topic", "list"]):
        ended = run(*words, bootstrap="127.0.0.1:1")
        assert ended.returncode == 1
        assert ended.stderr.startswith(b"kafkalite: no broker responds at 127.0.0.1:1: Connect to")
        assert ended.stderr.count(b"\n") == 1


def started(broker: Broker, *words: str, **streams: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kafkalite", *words, "-b", broker.bootstrap]
    return subprocess.Popen(command, **streams)


def test_closed_output_pipe_ends_consume_silently(run, kafka_broker, kafka_topic):
    produced(run, kafka_topic, given=b"line\n" * 50_000)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(kafka_broker, "consume", "-t", kafka_topic, **pipes) as consume:
        assert consume.stdout is not None
        assert consume.stderr is not None
        assert consume.stdout.readline() == b"line\n"
        consume.stdout.close()
        assert consume.wait(TIMEOUT_S) == 141
        assert consume.stderr.read() == b""


def test_ctrl_c_ends_consume_with_exit_code_130(run, kafka_broker, kafka_topic):
    produced(run, kafka_topic, given=b"line\n")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(kafka_broker, "consume", "-t", kafka_topic, **pipes) as consume:
        assert consume.stdout is not None
        assert consume.stderr is not None
        assert consume.stdout.readline() == b"line\n"
        consume.send_signal(signal.SIGINT)
        assert consume.wait(TIMEOUT_S) == 130
        assert b"Traceback" not in consume.stderr.read()


def test_ctrl_c_delivers_complete_lines_and_reports_them(run, kafka_broker, kafka_topic):
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(kafka_broker, "produce", "-t", kafka_topic, **pipes) as produce:
        assert produce.stdin is not None
        assert produce.stderr is not None
        produce.stdin.write(b"one\ntwo\nhalf")
        produce.stdin.flush()
        # Once they are read, the producer has started and waits for more.
        assert run("consume", "-t", kafka_topic, "-c", "2").stdout == b"one\ntwo\n"
        produce.send_signal(signal.SIGINT)
        assert produce.wait(TIMEOUT_S) == 130
        result = produce.stderr.read().decode()
    assert "interrupted after 2 records" in result
    assert "no records undelivered" in result


def test_pipe_through_a_killed_broker_arrives_once_and_in_order():
    with Broker() as broker:
        topic = broker.topic()
        lines = [b"%d\n" % i for i in range(40_000)]
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
        follows = started(broker, "consume", "-t", topic, stdout=subprocess.PIPE)
        with follows as consume, started(broker, "produce", "-t", topic, **pipes) as produce:
            assert produce.stdin is not None
            assert produce.stderr is not None
            assert consume.stdout is not None
            produce.stdin.write(b"".join(lines[:20_000]))
            produce.stdin.flush()
            seen = [consume.stdout.readline()]
            broker.kill()
            produce.stdin.write(b"".join(lines[20_000:]))
            produce.stdin.close()
            broker.start()
            assert produce.wait(TIMEOUT_S) == 0
            assert b"Traceback" not in produce.stderr.read()
            seen += [consume.stdout.readline() for _ in lines[1:]]
            assert seen == lines
            consume.send_signal(signal.SIGINT)
            assert consume.wait(TIMEOUT_S) == 130


def test_summary_is_printed_on_a_terminal(kafka_broker, kafka_topic, tmp_path: Path):
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    ours, theirs = pty.openpty()
    words = ("produce", "-t", kafka_topic, "-l", str(tmp_path / "lines"))
    with started(kafka_broker, *words, stderr=theirs) as produce:
        assert produce.wait(TIMEOUT_S) == 0
    os.close(theirs)
    assert b"2 records, 4 B in " in os.read(ours, 10_000)
    os.close(ours)
