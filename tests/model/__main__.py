"""python -m tests.model: check the model of replication and its mutants.

    python -m tests.model            what `make model` does: about five minutes on two cores
    python -m tests.model --long     larger bounds: minutes for each

Prints a line for each check.  The exit code is 0 if the model holds within all bounds, and TLC has
found a violation for each mutant.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.model.checking import CHECKS, LONG, MUTANTS, ModelCheck, run
from tools.apache_kafka import Unavailable

TIMEOUT_S, LONG_TIMEOUT_S = 600, 6 * 3600


def line_of(check: ModelCheck, timeout_s: float) -> tuple[bool, str]:
    """Run a check; return whether its result is as expected, and a line about it."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            found = run(check, Path(directory), timeout_s=timeout_s)
        except TimeoutError as error:
            return False, f"TIMEOUT    {error}"
        is_good = found.is_expected(check)
        result = "holds" if found.violated is None else f"{found.violated} is violated"
        if not is_good:
            print(found.output)
        return is_good, (
            f"{'good' if is_good else 'BAD':10} {check}: {result}, {found.states:,} states,"
            f" {found.duration_s:.0f} s"
        )


def main() -> int:
    """Run the checks of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.model", description="Check the TLA+ model of replication with TLC."
    )
    parser.add_argument("--long", action="store_true", help="check larger bounds")
    is_long = parser.parse_args().long
    bad = 0
    try:
        for check in LONG if is_long else CHECKS + MUTANTS:
            is_good, line = line_of(check, LONG_TIMEOUT_S if is_long else TIMEOUT_S)
            bad += not is_good
            print(line, flush=True)
    except Unavailable as error:
        print(f"The model was not checked: {error}.", file=sys.stderr)
        return 2
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
