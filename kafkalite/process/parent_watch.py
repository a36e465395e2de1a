"""A broker on a leash: it ends when whoever started it is gone, and takes its directory with it.

    python -m kafkalite.process.parent_watch DIR '{"listen": "127.0.0.1:0", "durability": "os"}'

The second argument holds the launcher's Options.  The data stands in DIR/data, the ready file is
DIR/ready.json.

Standard input is a pipe of which the starter holds the other end and to which nobody writes.  The
kernel closes that end however the starter dies, so the end of the file is the one message that
always arrives.  The broker then ends cleanly and removes DIR.  Ended by a signal instead, it
leaves DIR to the starter, who may start it again on the same data.
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
    """Run a broker; remove the directory if nobody is left who would."""
    files = options._replace(data=directory / "data", ready_file=directory / "ready.json")
    try:
        return start(files, until=STDIN)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return refusal.exit_code
    finally:
        if starter_is_gone():
            shutil.rmtree(directory, ignore_errors=True)


def starter_is_gone() -> bool:
    """Whether the other end of standard input is closed."""
    return bool(select.select([STDIN], [], [], 0)[0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Options(**json.loads(sys.argv[2]))))
