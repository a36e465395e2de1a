"""The texts that seeded bugs replace exist; in the long tier each bug is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.seeded_bug import SeededBug
from tests.faults.seeded_bugs import BUGS, ROOT, caught, copied


@pytest.mark.parametrize("bug", BUGS, ids=[bug.number for bug in BUGS])
def test_text_of_a_seeded_bug_is_in_its_file_once(bug: SeededBug) -> None:
    assert (ROOT / bug.file).read_text().count(bug.old) == 1
    assert all((ROOT / path).exists() for path in bug.tests.split())


@pytest.fixture(scope="module")
def copy():
    with copied() as directory:
        yield directory


@pytest.mark.faults
@pytest.mark.parametrize("bug", BUGS, ids=[bug.number for bug in BUGS])
def test_seeded_bug_is_caught(bug: SeededBug, copy: Path) -> None:
    assert caught(bug, copy), f"{bug.what}: no test fails"
