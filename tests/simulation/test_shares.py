"""Share groups under random faults, one seed each: see share_simulation.py for events and checks.

`python -m tests.simulation.test_shares SEED` runs one seed after the other until it is stopped.
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


@pytest.mark.parametrize("seed", range(4))
def test_share_group_processes_each_record_under_random_faults(tmp_path, seed):
    ShareSimulation(tmp_path / "data", seed).run(STEPS)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in count(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as directory:
            print(seed, end=" ", flush=True)
            ShareSimulation(Path(directory) / "data", seed).run(STEPS)
