"""The TLA+ model of replication, in the smallest bounds; `make model` checks larger ones."""

from __future__ import annotations

import pytest

from tests.model.checking import MUTANTS, ModelCheck, run
from tools.apache_kafka import Unavailable

TIMEOUT_S = 300
SMALL = ModelCheck("leader", 2, length_max=1, changes_max=2)
WITHOUT_WITNESSES = next(each for each in MUTANTS if each.mutant == "no_witnesses")


def result_of(check, directory):
    try:
        return run(check, directory, timeout_s=TIMEOUT_S, workers=1)
    except Unavailable as error:
        pytest.skip(str(error))


def test_model_holds_in_all_states_of_small_bounds(tmp_path):
    found = result_of(SMALL, tmp_path)
    assert (found.violated, found.is_complete) == (None, True), found.output


def test_model_without_witnesses_loses_records_in_a_power_failure(tmp_path):
    found = result_of(WITHOUT_WITNESSES, tmp_path)
    assert found.violated == "PowerFailureLosesNothing", found.output
