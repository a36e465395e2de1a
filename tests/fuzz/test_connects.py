"""A storm of connects leaves no trace in a broker.  A longer one: python -m tests.fuzz.connects."""

from __future__ import annotations

import pytest

from tests.fuzz import connects


@pytest.mark.parametrize("workers", [0, 2])
def test_a_thousand_connects_at_once_leave_nothing_behind(workers):
    print(connects.weathered(workers, seed=1, connects=1_000))
