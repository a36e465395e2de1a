"""Shell completion, requested as the shells do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from kafkalite.cli import MODULES, completion, main
from kafkalite.testing import Broker
from tests.cli.conftest import TIMEOUT_S
from tests.process.waiting import until

PROGRAM = "from kafkalite.cli import main; main()"
BETWEEN = "\v"


@pytest.fixture
def offered(kafka_broker: Broker, tmp_path):
    """A function that returns the completions of a line."""

    def offered(line: str, bootstrap: str = "") -> set[str]:
        response = tmp_path / "answer"
        env = {
            **os.environ,
            "KAFKALITE_BOOTSTRAP": bootstrap or kafka_broker.bootstrap,
            "XDG_CONFIG_HOME": str(tmp_path),
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SHELL": "bash",
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(response),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "COMP_TYPE": "9",
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=env,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        assert (done.stdout, done.stderr) == (b"", b"")
        return {word for word in response.read_text().split(BETWEEN) if word}

    return offered


def test_commands_and_flags_are_completed(offered):
    assert offered("kafkalite ") == set(MODULES)
    assert offered("kafkalite gro") == {"group"}
    assert offered("kafkalite group ") == {"list", "describe", "delete", "reset"}
    assert offered("kafkalite group reset g --to") == {"--to", "--topic"}
    assert offered("kafkalite group list --type ") == {"classic", "consumer", "share"}
    assert {"Assigning", "Reconciling"} <= offered("kafkalite group list --state ")
    assert offered("kafkalite consume -G g --protocol ") == {"classic", "consumer"}
    assert offered("kafkalite start --durability ") == {"fsync", "interval", "os"}


# A broker on a busy machine may respond too late for a completion; the user repeats the tab then.


def test_topic_and_node_names_are_completed_from_the_broker(offered, kafka_broker):
    name = kafka_broker.topic(name=f"offered-{os.getpid()}")
    until(lambda: name in offered("kafkalite topic describe "))
    until(lambda: offered("kafkalite consume -t offered-") == {name})
    until(lambda: offered(f"kafkalite group reset g -t {name[:-1]}") == {name})
    until(lambda: offered("kafkalite config get topic offered-") == {name})
    until(lambda: offered("kafkalite config get node ") == {"0"})


def test_groups_are_completed_from_the_broker(offered, kafka_topic, kafka_broker):
    group = f"offered-group-{os.getpid()}"
    words = ["group", "reset", group, "-t", kafka_topic, "--to", "end"]
    assert main([*words, "-b", kafka_broker.bootstrap]) == 0
    until(lambda: offered("kafkalite group describe offered-g") == {group})
    until(lambda: offered("kafkalite consume -G offered-g") == {group})


def test_config_keys_are_completed_by_resource_type(offered):
    assert offered("kafkalite config get topic t reten") == {"retention.ms", "retention.bytes"}
    assert offered("kafkalite config set topic t retention.m") == {"retention.ms="}
    assert "log.retention.hours=" in offered("kafkalite config set cluster log.ret")
    assert offered("kafkalite config get client-metrics m inter") == {"interval.ms"}
    assert offered("kafkalite topic create t -c retention.m") == {"retention.ms="}


def test_unreachable_broker_completes_no_names(offered):
    assert offered("kafkalite topic describe ", bootstrap="127.0.0.1:1") == set()
    assert offered("kafkalite topic describe -b 127.0.0.1:1 ") == set()


def test_profiles_are_completed(offered, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["profile", "add", "prod", "-b", "a:1"]) == 0
    assert offered("kafkalite topic list --profile ") == {"prod"}
    assert offered("kafkalite profile use ") == {"prod"}


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_script_is_valid_in_each_shell(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "kafkalite" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    subprocess.run([shell, "-n", str(script)], check=True, timeout=TIMEOUT_S)


def test_bash_completes_a_command():
    script = (
        'COMP_LINE="kafkalite gr"; COMP_POINT=12; _python_argcomplete "$1"; echo "${COMPREPLY[*]}"'
    )
    lines = f'source <("$1" completion bash); {script}'
    command = shutil.which("kafkalite", path=os.path.dirname(sys.executable))
    if command is None:
        pytest.skip("kafkalite is not installed here")
    done = subprocess.run(
        ["bash", "-c", lines, "bash", command], capture_output=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.split() == [b"group"]
