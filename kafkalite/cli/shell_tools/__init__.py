"""kafkalite shell-tools: Kafka's own script names, for scripts that call them.

A script is two lines of sh: this Python, and the tool's module here.  One module is one of Kafka's
tools: its `TOOL` is a table of flags and the function behind them.  The tools use the protocol, so
they work with any Kafka, and print what Kafka's print where scripts read it.
tests/oracle/test_shell_tools.py runs the same command lines with both, and
tests/oracle/shell_differences.py lists each difference with its reason.

Left out: every tool of Kafka's that is not in TOOLS.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from kafkalite.cli.command import argument, command
from kafkalite.errors import Refusal

TOOLS = {
    "kafka-topics": "topics",
    "kafka-configs": "configs",
    "kafka-console-producer": "console_producer",
    "kafka-console-consumer": "console_consumer",
    "kafka-consumer-groups": "consumer_groups",
    "kafka-get-offsets": "get_offsets",
    "kafka-delete-records": "delete_records",
    "kafka-dump-log": "dump_log",
}
"""The module of each script."""

MARK = "# Made by `kafkalite shell-tools`."
SCRIPT = """#!/bin/sh
{mark}
exec {python} -P -m {start} {name} "$@"
"""
START = "kafkalite.cli.shell_tools.start"


@command(
    argument("directory", metavar="DIR", type=Path, help="where to write them; made if need be"),
    name="shell-tools",
)
def write(directory: Path) -> None:
    """Write kafka-topics.sh and its like, which scripts made for Kafka call.

    They take the flags of Kafka 4 and print what its own tools print, without a JVM to wait for.
    What is not supported is refused in one sentence with exit code 1.

    Examples:
      kafkalite shell-tools ~/kafka/bin
      PATH="$HOME/kafka/bin:$PATH" kafka-topics.sh --bootstrap-server localhost:9092 --list
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / f"{name}.sh" for name in TOOLS}
    for path in paths.values():
        if path.exists() and not is_generated(path):
            raise Refusal(f"{path} is there already and not ours (name another directory)")
    for name, path in paths.items():
        python = shlex.quote(sys.executable)
        text = SCRIPT.format(mark=MARK, python=python, start=START, name=name)
        # All or nothing, since a script may be running just now.
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o755)
        os.replace(fresh, path)
        print(path)


def is_generated(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(len(SCRIPT) + len(MARK))
