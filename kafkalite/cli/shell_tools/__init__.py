"""kafkalite shell-tools: Kafka's own script names, for scripts that call them.

A script runs this Python interpreter with the module of the tool.  Each tool is one module: its
`TOOL` is a table of flags and a function.  The tools work with any Kafka broker, and their stdout
is that of Kafka's tools where scripts read it.  tests/oracle/test_shell_tools.py runs the same
command lines with both, and tests/oracle/shell_differences.py lists each difference with its
reason.

Left out: the tools of Kafka that are not in TOOLS.
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
    "kafka-console-share-consumer": "console_share_consumer",
    "kafka-consumer-groups": "consumer_groups",
    "kafka-share-groups": "share_groups",
    "kafka-groups": "groups",
    "kafka-get-offsets": "get_offsets",
    "kafka-delete-records": "delete_records",
    "kafka-dump-log": "dump_log",
    "kafka-transactions": "transactions",
    "kafka-features": "features",
}
"""The module of each script."""

MARK = "# Made by `kafkalite shell-tools`."
SCRIPT = """#!/bin/sh
{mark}
exec {python} -P -m {start} {name} "$@"
"""
START = "kafkalite.cli.shell_tools.start"


@command(
    argument(
        "directory", metavar="DIR", type=Path, help="directory of the scripts; created if missing"
    ),
    name="shell-tools",
)
def write(directory: Path) -> None:
    """Write kafka-topics.sh and other scripts with the names of Kafka's tools.

    They accept the flags of Kafka 4 and print the same output, without starting a JVM.  Flags that
    are not supported are rejected with an error and exit code 1.

    Examples:
      kafkalite shell-tools ~/kafka/bin
      PATH="$HOME/kafka/bin:$PATH" kafka-topics.sh --bootstrap-server localhost:9092 --list
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / f"{name}.sh" for name in TOOLS}
    for path in paths.values():
        if path.exists() and not is_generated(path):
            raise Refusal(
                f"{path} exists and was not written by this command; choose another directory"
            )
    for name, path in paths.items():
        python = shlex.quote(sys.executable)
        text = SCRIPT.format(mark=MARK, python=python, start=START, name=name)
        # Replaced atomically, since the script may be running.
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o755)
        os.replace(fresh, path)
        print(path)


def is_generated(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(len(SCRIPT) + len(MARK))
