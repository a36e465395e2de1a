"""The programs in examples/ run as a user runs them, against a broker of their own."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.testing import Broker

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 300
TESTED = {
    "asyncio_pipeline.py",
    "data_frames.py",
    "directories_lost.py",
    "exactly_once.py",
    "exactly_once_confluent.py",
    "event_sourcing.py",
    "order_saga.py",
    "produce_and_consume.py",
    "replicas_killed.py",
    "spark_report.py",
    "test_orders.py",
    "zeromq_sensor.py",
}


def run(*command: str | Path) -> str:
    """Run a command of this interpreter in the root of the clone; return its output."""
    ended = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def bootstrap():
    """The address of a broker without topics."""
    with Broker() as broker:
        yield broker.bootstrap


def test_each_example_is_tested_and_says_how_to_run_it():
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED
    index = (ROOT / "docs/index.md").read_text()
    for name in TESTED:
        docstring = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
        assert f"examples/{name}" in docstring
        assert f"../examples/{name}" in index


def test_exactly_once(bootstrap):
    output = run(EXAMPLES / "exactly_once.py", bootstrap)
    assert output.count("crashed inside transaction") == 2
    assert "bills: 1000 orders billed once: True" in output


def test_exactly_once_confluent(bootstrap):
    output = run(EXAMPLES / "exactly_once_confluent.py", bootstrap)
    assert "aborted: this transaction fails" in output
    assert "squares: 500 each once: True" in output


def test_produce_and_consume(bootstrap):
    output = run(EXAMPLES / "produce_and_consume.py", bootstrap)
    assert "offset=999" in output
    assert "read: 1000" in output
    assert "continued at offset: 500" in output


def test_asyncio_pipeline(bootstrap):
    assert run(EXAMPLES / "asyncio_pipeline.py", bootstrap) == "200 readings, 40 alarms\n"


def test_data_frames(bootstrap):
    output = run(EXAMPLES / "data_frames.py", bootstrap)
    assert "9998" in output and "9999" in output  # the highest price of each symbol
    assert output.count("5000") == 2  # rows per key


def test_event_sourcing(bootstrap):
    compact = ["-c", "cleanup.policy=compact"]
    run("-m", "kafkalite", "topic", "create", "balances", *compact, "-b", bootstrap)
    output = run(EXAMPLES / "event_sourcing.py", bootstrap)
    assert "rebuilt from the compacted topic: True" in output
    assert "before the second run, from the events: True" in output


def test_order_saga(bootstrap):
    output = run(EXAMPLES / "order_saga.py", bootstrap)
    assert output == "{'released': 10, 'shipped': 40, 'sold out': 10}\n"


def test_zeromq_sensor():
    with Broker(config={"gateway.listener": "tcp://127.0.0.1:0"}) as broker:
        endpoints = broker.status["gateway"]
        output = run(EXAMPLES / "zeromq_sensor.py", endpoints["push"], endpoints["dealer"])
        assert output.strip() == "message 1: error code 0"


def test_replicas_killed():
    output = run(EXAMPLES / "replicas_killed.py")
    for pair in ("1 and 2", "1 and 3", "2 and 3"):
        assert f"killed workers {pair}: 0 of " in output
    assert output.count("none twice") == 3
    assert output.endswith("all acknowledged records are read: True\n")


def test_directories_lost():
    output = run(EXAMPLES / "directories_lost.py")
    for pair in ("1 and 2", "1 and 3", "2 and 3"):
        assert f"lost directories {pair}: 0 of " in output
    assert output.count("none twice") == 3
    assert output.endswith("all acknowledged records are read: True\n")


def test_test_orders():
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "test_orders.py")
    assert "3 passed" in output


@pytest.mark.spark
@pytest.mark.skipif(not importlib.util.find_spec("pyspark"), reason="pyspark is not installed")
def test_spark_report(bootstrap):
    output = run("-m", "kafkalite", "spark", "run", EXAMPLES / "spark_report.py", bootstrap)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    assert ["carrier 2", "333", "59"] in rows
