"""A storm of connects leaves no trace in a broker.  A longer one: python -m tests.fuzz.connects."""

from __future__ import annotations

import pytest

from tests.fuzz import connects


@pytest.mark.parametrize("workers", [0, 2])
def test_thousand_simultaneous_connects_leak_nothing(workers):
    print(connects.weathered(workers, seed=1, connects=1_000))
