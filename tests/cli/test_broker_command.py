"""kafkalite status, restart and stop in JSON, for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkalite.cli import main
from kafkalite.testing import Broker


@pytest.fixture
def broker():
    with Broker(workers=1) as broker:
        yield broker


def json_output(capsys, word: str, data: Path) -> dict:
    assert main([word, "--data", str(data), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_status_restart_and_stop_print_json(broker, capsys):
    before = json_output(capsys, "status", broker.data)
    assert before["bootstrap"] == broker.bootstrap
    renewed = json_output(capsys, "restart", broker.data)
    assert renewed["bootstrap"] == broker.bootstrap
    assert [node["id"] for node in renewed["nodes"]] == [0, 1]
    pids = {node["pid"] for node in before["nodes"]}
    assert pids.isdisjoint(node["pid"] for node in renewed["nodes"])
    assert json_output(capsys, "stop", broker.data) == {
        "bootstrap": broker.bootstrap,
        "pid": before["launcher_pid"],
    }
    assert main(["status", "--data", str(broker.data), "--json"]) == 1
