"""Transactions under random faults, one seed each: see transaction_simulation.py.

`python -m tests.simulation.test_transactions SEED [REPLICAS]` tries one seed after the other.
With several replicas of the internal topics, the supervisor loses its logs now and then.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from itertools import count
from pathlib import Path

import pytest

from tests.simulation.transaction_simulation import TransactionSimulation

STEPS = 250


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("seed, durability", [(0, "os"), (1, "fsync")])
def test_transactions_are_whole_under_random_faults(tmp_path, seed, durability, replicas):
    TransactionSimulation(tmp_path / "data", seed, replicas, durability=durability).run(STEPS)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for seed in count(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as directory:
            print(seed, end=" ", flush=True)
            where = Path(directory) / "data"
            simulation = TransactionSimulation(where, seed, replicas, durability="fsync")
            simulation.run(STEPS)
            known = sum(len(client.outcomes) for client in simulation.clients)
            print(known, end="; ", flush=True)
