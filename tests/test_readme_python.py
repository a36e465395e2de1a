"""The README's Python examples run as they are written, one after the other, each a program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.testing import Broker

README = Path(__file__).resolve().parent.parent / "README.md"
PATIENCE_S = 120
ADDRESS = "127.0.0.1:9092"


def examples() -> list[str]:
    section = README.read_text().partition("\n## In Python\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=2) as started:
        yield started


def test_every_example_runs_as_written(broker):
    elsewhere = (
        "from kafkalite.config.client import BOOTSTRAP_SERVERS\n"
        f"BOOTSTRAP_SERVERS.default = ({broker.bootstrap!r},)\n"
    )
    said = []
    for example in examples():
        ended = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-c",
             elsewhere + example.replace(ADDRESS, broker.bootstrap)],
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert ended.returncode == 0, f"{example}\n{ended.stderr}"
        assert not ended.stderr, f"{example}\n{ended.stderr}"
        said.append(ended.stdout)
    assert len(said) == 7
    assert "offset=1000" in said[0]
    assert len(said[1].splitlines()) == 1001
    assert sum(int(line) for line in said[3].splitlines() if line.isdecimal()) == 1_000_000
    assert "ABC" in said[4]
    assert "offset=999990" in said[5]
    assert said[6].splitlines()[-1] == "b'event 99'"
