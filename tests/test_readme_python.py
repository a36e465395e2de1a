"""The Python examples of the README and the tutorials run as written, each as a program.

They run page by page in the order of PAGES, against one broker: a later example may read a topic
that an earlier one wrote.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.testing import Broker

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": 2,
    "docs/tutorials/pandas-and-polars.md": 4,
    "docs/tutorials/reading.md": 1,
    "docs/tutorials/asyncio.md": 1,
}
"""Number of examples by page."""
README_SECTION = "In Python"
TIMEOUT_S = 120
ADDRESS = "127.0.0.1:9092"


def examples(page: str) -> list[str]:
    """Return the Python examples of a page; of the README, those of README_SECTION."""
    text = (ROOT / page).read_text()
    if page == "README.md":
        text = text.partition(f"\n## {README_SECTION}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=2) as started:
        yield started


def test_every_example_runs_as_written(broker):
    assert {page: len(examples(page)) for page in PAGES} == PAGES
    prelude = (
        "from kafkalite.config.client import BOOTSTRAP_SERVERS\n"
        f"BOOTSTRAP_SERVERS.default = ({broker.bootstrap!r},)\n"
    )
    outputs = []
    for example in (each for page in PAGES for each in examples(page)):
        ended = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-c",
             prelude + example.replace(ADDRESS, broker.bootstrap)],
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert ended.returncode == 0, f"{example}\n{ended.stderr}"
        assert not ended.stderr, f"{example}\n{ended.stderr}"
        outputs.append(ended.stdout)
    rows_sent, rows_read, rows_as_json, _, tables_read, range_read, positions, coroutines = outputs
    assert "offset=1000" in rows_sent
    assert len(rows_read.splitlines()) == 1001
    assert "ABC" in rows_as_json
    assert sum(int(line) for line in tables_read.splitlines() if line.isdecimal()) == 1_000_000
    assert range_read == "4000\n"
    assert "offset=999990" in positions
    assert coroutines.splitlines()[-1] == "b'event 99'"
