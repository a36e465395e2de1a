"""Parent watch: a broker that shuts down and removes its directory when its starter ends.

    python -m kafkalite.process.parent_watch DIR '{"listen": "127.0.0.1:0", "durability": "os"}'

The second argument holds the launcher's Options, in which other directories are names in DIR.  The
data directory is DIR/data, the ready file DIR/ready.json.

Standard input is a pipe whose write end only the starter holds, and never writes to.  The kernel
closes that end however the starter ends, so end of file always arrives.  The broker then shuts down
cleanly and removes DIR.  A broker that was ended by a signal leaves DIR to the starter, which may
start it again on the same data.
"""

from __future__ import annotations

import json
import select
import shutil
import sys
from pathlib import Path

from kafkalite.errors import Refusal
from kafkalite.process.launcher import start
from kafkalite.process.options import Options

STDIN = 0


def main(directory: Path, options: Options) -> int:
    """Run a broker; remove the directory if the starter has ended."""
    files = options._replace(
        data=directory / "data",
        log_dirs=[directory / name for name in options.log_dirs],
        without_dirs=[directory / name for name in options.without_dirs],
        ready_file=directory / "ready.json",
    )
    try:
        return start(files, until=STDIN)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return refusal.exit_code
    finally:
        if has_starter_exited():
            shutil.rmtree(directory, ignore_errors=True)


def has_starter_exited() -> bool:
    """Return True if the other end of standard input is closed."""
    return bool(select.select([STDIN], [], [], 0)[0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Options(**json.loads(sys.argv[2]))))
