"""The Python examples of the README and of docs/ run as written.

Each runs as a program, page by page in the order of PROGRAMS, against one broker: a later example
may read a topic that an earlier one wrote.  The examples with test functions run under pytest, and
those for Spark as one job.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from kafkalite import Producer
from kafkalite.testing import Broker
from tools.doc_pages import ROOT, pages

PROGRAMS = {
    "README.md": 2,
    "docs/quickstart.md": 2,
    "docs/tutorials/ingestion.md": 1,
    "docs/tutorials/pandas-and-polars.md": 5,
    "docs/tutorials/groups.md": 2,
    "docs/tutorials/queue.md": 4,
    "docs/tutorials/reading.md": 1,
    "docs/tutorials/asyncio.md": 1,
    "docs/tutorials/transactions.md": 3,
    "docs/tutorials/administration.md": 1,
    "docs/tutorials/test-suite.md": 2,
    "docs/tutorials/zeromq.md": 3,
}
"""Number of programs by page."""
TESTS = {"docs/tutorials/test-suite.md": 2}
SPARK = {"docs/tutorials/spark.md": 3}
GATEWAY_PAGE = {"kafkalite/gateway/README.md"}
"""Tested by tests/gateway/test_readme_programs.py."""
TIMEOUT_S = 120
SPARK_TIMEOUT_S = 300
ADDRESS = "127.0.0.1:9092"
GATEWAY = {"push": "tcp://127.0.0.1:5555", "dealer": "tcp://127.0.0.1:5556"}


def examples(page: str) -> list[str]:
    """Return the Python examples of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def is_test(example: str) -> bool:
    return "\ndef test_" in example


def run(*arguments: object, timeout_s: int = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a command of this interpreter that must succeed."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "spark")])},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=2, config={"gateway.listener": "tcp://127.0.0.1:0"}) as started:
        yield started


def test_every_example_belongs_to_a_test():
    counts = {page: len(examples(page)) for page in pages() if examples(page)}
    tested = {
        page: sum(group.get(page, 0) for group in (PROGRAMS, TESTS, SPARK))
        for page in PROGRAMS | TESTS | SPARK
    }
    assert {page: count for page, count in counts.items() if page not in GATEWAY_PAGE} == tested


def test_programs_run_as_written(broker):
    prelude = (
        "from kafkalite.config.client import BOOTSTRAP_SERVERS\n"
        f"BOOTSTRAP_SERVERS.default = ({broker.bootstrap!r},)\n"
    )
    addresses = {ADDRESS: broker.bootstrap}
    addresses |= {GATEWAY[name]: endpoint for name, endpoint in broker.status["gateway"].items()}
    outputs = {}
    for page in PROGRAMS:
        outputs[page] = []
        for example in examples(page):
            if is_test(example):
                continue
            for written, actual in addresses.items():
                example = example.replace(written, actual)
            ended = run("-W", "error::ResourceWarning", "-c", prelude + example)
            assert not ended.stderr, f"{example}\n{ended.stderr}"
            outputs[page].append(ended.stdout)
    assert {page: len(each) for page, each in outputs.items()} == PROGRAMS

    written, done = outputs["README.md"]
    assert "offset=1000" in written
    assert len(written.splitlines()) == 1002
    assert sorted(done.splitlines()) == sorted(f"1 mail {number}" for number in range(100))
    member, read = outputs["docs/quickstart.md"]
    assert member == "b'hello 0'\n"
    assert len(read.splitlines()) == 1003
    as_json, _, tables, as_group, fetched_range = outputs["docs/tutorials/pandas-and-polars.md"]
    assert "ABC" in as_json
    assert sum(int(line) for line in tables.splitlines() if line.isdecimal()) == 1_001_000
    assert "1001" in as_group
    assert fetched_range == "4000\n"
    in_group, _ = outputs["docs/tutorials/groups.md"]
    assert len(in_group.splitlines()) == 1000
    once, dead_letter, columns, in_loop = outputs["docs/tutorials/queue.md"]
    assert sorted(once.splitlines()) == sorted(f"job {number}" for number in range(100))
    assert dead_letter.startswith("b'job ")
    assert columns == "100\n"
    assert in_loop == "100\n"
    assert "offset=999990" in outputs["docs/tutorials/reading.md"][0]
    assert outputs["docs/tutorials/asyncio.md"][0].splitlines()[-1] == "b'event 99'"
    assert outputs["docs/tutorials/test-suite.md"][1] == "1\n"
    _, requests, _ = outputs["docs/tutorials/zeromq.md"]
    assert [line.partition(",")[0] for line in requests.splitlines()] == [
        f"message {number}: error 0" for number in range(3)
    ]


@pytest.mark.parametrize("page", TESTS)
def test_test_functions_pass_as_written(page, tmp_path):
    written = [example for example in examples(page) if is_test(example)]
    assert len(written) == TESTS[page]
    for number, example in enumerate(written):
        (tmp_path / f"test_{number}.py").write_text(example)
    ended = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, tmp_path)
    assert f"{len(written)} passed" in ended.stdout


@pytest.mark.spark
@pytest.mark.skipif(not importlib.util.find_spec("pyspark"), reason="pyspark is not installed")
def test_spark_examples_run_as_one_job(tmp_path):
    with Broker() as broker:
        with Producer(broker.bootstrap) as producer:
            for minutes in (10.0, 70.0, 90.0):
                flight = {"carrier": "UA", "dep_delay": minutes}
                producer.send("flights", json.dumps(flight))
        job = tmp_path / "job.py"
        written = [example for page in SPARK for example in examples(page)]
        job.write_text("\n".join(written).replace(ADDRESS, broker.bootstrap))
        output = run("-m", "kafkalite", "spark", "run", job, timeout_s=SPARK_TIMEOUT_S).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    assert ["UA", str(170 / 3)] in rows  # minutes
    assert ["UA", "2"] in rows  # flights over an hour late
