"""Clusters under random faults, one seed each: see cluster_simulation.py for the events and checks.

A failure is reproduced by its seed, as is every run of `python -m tests.simulation.test_cluster`,
which tries one seed after the other until it is stopped.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from itertools import count
from pathlib import Path

import pytest

from tests.simulation.cluster_simulation import ClusterSimulation

STEPS = 600


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_cluster_keeps_each_record_once_under_random_faults(tmp_path, seed, durability):
    ClusterSimulation(tmp_path / "data", seed, durability=durability).run(STEPS)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in count(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as directory:
            print(seed, end=" ", flush=True)
            ClusterSimulation(Path(directory) / "data", seed, durability="fsync").run(STEPS)
