"""kafkalite shell-tools: scripts with Kafka's names, their flags, and their errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from kafkalite.cli import main
from kafkalite.cli.shell_tools import MARK, TOOLS, flags, start
from kafkalite.cli.shell_tools.flags import Flag, ShellTool, ToolCommand, parse, whole
from kafkalite.errors import Refusal
from tests.oracle import shell_recording

FLAGS = (
    Flag("topic", "NAME"),
    Flag("config", "KEY=VALUE", kind=flags.key_value, repeated=True),
    Flag("partitions", "COUNT", kind=whole),
    Flag("state", "STATE", optional=True),
    Flag("list"),
    Flag("property", "KEY=VALUE", instead="config"),
    Flag("force", refused="is left out: nothing is forced here"),
)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--topic", "a"], "topic", "a"),
        (["--topic=a"], "topic", "a"),
        (["-topic", "a"], "topic", "a"),
        (["-topic=a=b"], "topic", "a=b"),
        (["--topic", "--list"], "topic", "--list"),
        (["--partitions", "-3"], "partitions", -3),
        (["--partitions", "+3"], "partitions", 3),
        (["--state", "--list"], "state", None),
        (["--list", "--state"], "state", None),
        (["--state", "stable"], "state", "stable"),
    ],
)
def test_flags_are_parsed_as_by_kafka(words, name, value):
    options = parse(words, FLAGS)
    assert name in options
    assert options.one(name, "nothing") == value


def test_repeatable_flag_collects_its_values():
    options = parse(["--config", "a=1", "--config=b=2=3", "--config", "c="], FLAGS)
    assert options.all("config") == [("a", "1"), ("b", "2=3"), ("c", "")]
    assert options.all("state") == []


def test_deprecated_flag_is_replaced_with_one_warning(capsys):
    options = parse(["--property", "a=1", "--property", "b=2"], FLAGS)
    assert options.all("config") == [("a", "1"), ("b", "2")]
    assert capsys.readouterr().err == "kafkalite: --property is deprecated: use --config\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--topics", "a"], "unknown flag --topics; did you mean --topic?"),
        (["--to", "a"], "unknown flag --to"),
        (["--force"], "--force is left out: nothing is forced here"),
        (["--zookeeper", "here"], "--zookeeper is not a flag of Kafka 4: use --bootstrap-server"),
        (["--topic", "a", "--topic", "b"], "--topic was specified more than once"),
        (["--topic"], "--topic requires a value: NAME"),
        (["--list=yes"], "--list does not take a value"),
        (["--partitions", "few"], "--partitions must be an integer, not 'few'"),
        (["--partitions", "٣"], "--partitions must be an integer"),
        (["--partitions", "9" * 30], "--partitions must be an integer"),
        (["--config", "retention"], "--config must be KEY=VALUE, not 'retention'"),
        (["stray"], "unexpected argument 'stray'"),
        (["--list", "-"], "unexpected argument '-'"),
        (["--list", "--"], "unexpected argument '--'"),
    ],
)
def test_invalid_arguments_are_one_sentence(words, sentence):
    with pytest.raises(Refusal) as refused:
        parse(words, FLAGS)
    assert sentence in str(refused.value)
    assert refused.value.exit_code == 1


COMMANDS = {
    "list": ToolCommand("list things", (Flag("state", "STATE"),)),
    "abort": ToolCommand("abort a thing"),
}


def test_command_has_flags_of_its_own():
    options = parse(["--topic", "a", "list", "--state", "open"], FLAGS, COMMANDS)
    assert (options.command, options.one("topic"), options.one("state")) == ("list", "a", "open")
    assert parse(["abort"], FLAGS, COMMANDS).command == "abort"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--topic", "a"], "specify a command: list, abort"),
        (["forget"], "unknown command 'forget'; the commands are list, abort"),
        (["list", "--topic", "a"], "unknown flag --topic"),
        (["list", "stray"], "unexpected argument 'stray'"),
        (["abort", "--state", "a"], "unknown flag --state"),
    ],
)
def test_command_and_its_flags_are_checked(words, sentence):
    with pytest.raises(Refusal) as refused:
        parse(words, FLAGS, COMMANDS)
    assert sentence in str(refused.value)


def test_help_lists_commands_with_their_flags():
    tool = ShellTool(FLAGS, lambda options: 0, COMMANDS)
    page = flags.page("a.sh", "Does things.", "Examples:", tool)
    assert page.startswith("usage: a.sh --FLAG VALUE … COMMAND --FLAG VALUE …\n")
    assert "\n\nlist: list things\n  --state STATE " in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("describe-producers --topic TOPIC --partition 0 --broker-id 99", "there is no broker 99"),
        ("describe-producers --topic TOPIC --partition 9", "has no partition 9"),
        ("find-hanging --topic no-such-topic", "topic no-such-topic"),
        ("abort --topic TOPIC --partition 0 --start-offset 7", "begins at offset 7"),
        ("abort --topic TOPIC --partition 0 --producer-id 7", "--producer-epoch, or"),
    ],
)
def test_transactions_that_cannot_be_found_are_one_sentence(
    kafka_broker, kafka_topic, capsys, words, sentence
):
    command = words.replace("TOPIC", kafka_topic).split()
    connection = ["--bootstrap-server", kafka_broker.bootstrap]
    assert start.main(["kafka-transactions", *connection, *command]) == 1
    result = capsys.readouterr()
    assert result.out == "" and result.err.count("\n") == 1
    assert sentence in result.err


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shell tools")
    assert main(["shell-tools", str(directory)]) == 0
    return directory


def test_every_tool_has_a_script_of_its_kafka_name(scripts):
    assert sorted(path.name for path in scripts.iterdir()) == sorted(f"{n}.sh" for n in TOOLS)
    for path in scripts.iterdir():
        assert os.access(path, os.X_OK)
    assert set(TOOLS) == set(shell_recording.CLASSES)


def test_own_scripts_are_overwritten_and_other_files_kept(tmp_path, capsys):
    assert main(["shell-tools", str(tmp_path)]) == 0
    assert main(["shell-tools", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "kafka-topics.sh").write_text("#!/bin/bash\nexec kafka-run-class.sh\n")
    assert main(["shell-tools", str(tmp_path)]) == 1
    assert "kafka-topics.sh exists and was not written by this command" in capsys.readouterr().err
    assert MARK not in (tmp_path / "kafka-topics.sh").read_text()


@pytest.mark.parametrize("name", TOOLS)
def test_every_script_prints_help_from_any_directory(scripts, tmp_path, name):
    # Modules in the current directory must not be imported.
    for trap in ("json", "kafkalite", "confluent_kafka"):
        (tmp_path / f"{trap}.py").write_text("raise SystemExit('the wrong one')")
    ended = subprocess.run(
        [scripts / f"{name}.sh", "--help"], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    page = ended.stdout.decode()
    assert page.startswith(f"usage: {name}.sh ")
    assert f"  {name}.sh" in page.partition("Examples:")[2]


@pytest.mark.parametrize("name", TOOLS)
def test_missing_and_unknown_flags_exit_with_1(name, capsys):
    assert start.main([name]) == 1
    result = capsys.readouterr()
    assert result.out == "" and "usage:" in result.err
    assert start.main([name, "--no-such-flag"]) == 1
    result = capsys.readouterr()
    assert result.out == "" and result.err.count("\n") == 1
    assert result.err.startswith("kafkalite: unknown flag --no-such-flag")


def test_unreachable_broker_is_one_line(capfd):
    nowhere = "127.0.0.1:1"
    assert start.main(["kafka-get-offsets", "--bootstrap-server", nowhere]) == 1
    result = capfd.readouterr().err
    assert result.startswith(f"kafkalite: no broker responds at {nowhere}")
    assert result.count("\n") == 1


def test_signal_commits_printed_records_of_console_consumer(kafka_broker, kafka_topic, capsys):
    with subprocess.Popen(
        [sys.executable, "-m", "kafkalite.cli.shell_tools.start", "kafka-console-consumer"]
        + ["--bootstrap-server", kafka_broker.bootstrap, "--topic", kafka_topic]
        + ["--group", f"{kafka_topic}-readers", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
        for value in "abc":
            producer.produce(kafka_topic, value)
        assert producer.flush(30) == 0
        try:
            assert consumer.stdout is not None and consumer.stderr is not None
            assert [consumer.stdout.readline() for _ in "abc"] == [b"a\n", b"b\n", b"c\n"]
            consumer.terminate()
            assert consumer.wait(30) == 128 + signal.SIGTERM
            assert consumer.stderr.read() == b"Processed a total of 3 messages\n"
        finally:
            consumer.kill()
    options = ["--describe", "--group", f"{kafka_topic}-readers"]
    start.main(["kafka-consumer-groups", "--bootstrap-server", kafka_broker.bootstrap, *options])
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[1:6] == [kafka_topic, "0", "3", "3", "0"]


def test_configs_of_a_group_that_does_not_exist_are_set_and_described(kafka_broker, capfd):
    def run(*options):
        at = ["--bootstrap-server", kafka_broker.bootstrap]
        code = start.main(["kafka-configs", *at, *options, "--group", "configured"])
        result = capfd.readouterr()
        return code, result.out + result.err

    name = "consumer.session.timeout.ms"
    assert run("--alter", "--add-config", f"{name}=30000")[0] == 0
    code, out = run("--describe")
    assert code == 0
    assert f"  {name}=30000 sensitive=false" in out
    assert f"DEFAULT_CONFIG:group.{name}=45000" in out
    code, out = run("--alter", "--add-config", f"{name}=5")
    assert code == 1
    assert f"{name} must be greater than or equal to group.consumer.min.session.timeout.ms" in out
    assert run("--alter", "--delete-config", name)[0] == 0
    assert name not in run("--describe")[1]
