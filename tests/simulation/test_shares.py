"""Share groups under random faults, one seed each: see share_simulation.py for events and checks.

`python -m tests.simulation.test_shares SEED [REPLICAS]` runs one seed after the other until it is
stopped.  With several replicas of the internal topics, the supervisor loses its logs now and then.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from itertools import count
from pathlib import Path

import pytest

from tests.simulation.share_simulation import ShareSimulation

STEPS = 400


@pytest.mark.parametrize("seed, replicas", [(0, 1), (1, 1), (2, 1), (3, 1), (0, 3), (1, 3)])
def test_share_group_processes_each_record_under_random_faults(tmp_path, seed, replicas):
    ShareSimulation(tmp_path / "data", seed, replicas).run(STEPS)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for seed in count(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as directory:
            print(seed, end=" ", flush=True)
            ShareSimulation(Path(directory) / "data", seed, replicas).run(STEPS)
