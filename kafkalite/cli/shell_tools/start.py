"""python -m kafkalite.cli.shell_tools.start kafka-topics …: entry point of the scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from kafkalite.cli import guarded
from kafkalite.cli.command import described
from kafkalite.cli.shell_tools import TOOLS, flags
from kafkalite.errors import Refusal

HELP = flags.Flag("help", help="show this help page and exit")
VERSION = flags.Flag("version", help="print the version of kafkalite and exit")


def main(argv: Sequence[str]) -> int:
    """Run one tool and return its exit code."""
    return guarded(lambda: run(argv))


def run(argv: Sequence[str]) -> int:
    name, *arguments = argv or [""]
    if name not in TOOLS:
        raise Refusal(f"unknown tool {name!r}; the tools are {', '.join(TOOLS)}")
    tool: flags.ShellTool = import_module(f"kafkalite.cli.shell_tools.{TOOLS[name]}").TOOL
    tool = tool._replace(flags=(*tool.flags, HELP, VERSION))
    if not arguments or any(word in ("--help", "-help", "-h") for word in arguments):
        page = flags.page(f"{name}.sh", *described(tool.run.__doc__), tool)
        print(page, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 1
    parsed = flags.parse(arguments, tool.flags, tool.commands)
    if "version" in parsed:
        from importlib.metadata import version

        print("kafkalite", version("kafkalite"))
        return 0
    return tool.run(parsed) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
