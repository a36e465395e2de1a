"""Kafkalite's tools, one after the other, each in a fork of one process that has imported them all.

Commands and results have the form of ../conformance/java_tools/Tools.java, so that both sides of a
comparison run in the same way, without a start of a hundred processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import import_module
from typing import Any

from kafkalite.cli.shell_tools import TOOLS, start


def main() -> None:
    for name in TOOLS.values():
        import_module(f"kafkalite.cli.shell_tools.{name}")
    for line in sys.stdin:
        print(json.dumps({"answer": run(json.loads(line))}), flush=True)


def run(order: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
        given.write(order["given"].encode())
        given.seek(0)
        child = os.fork()
        if not child:
            os.dup2(given.fileno(), 0)
            os.dup2(printed.fileno(), 1)
            live([order["tool"], *order["words"]])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        return {"code": code, "printed": printed.read().decode(errors="backslashreplace")}


def live(words: list[str]) -> None:
    """Run the tool, and exit the process."""
    code = 70
    try:
        code = start.main(words)
        sys.stdout.flush()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
