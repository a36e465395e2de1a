"""The text that `kafkalite start` prints when it is ready: addresses, durability, next commands."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from kafkalite.config.settings import Settings
from kafkalite.config.topic import FLUSH_BYTES, FLUSH_MS
from kafkalite.process.status.ready import Ready
from kafkalite.storage.state.durability import Durability

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
WARNINGS_MAX = 5


def promise(settings: Settings) -> str:
    """Return one sentence on the failures that acknowledged records survive."""
    durability = Durability.of(settings)
    if durability is Durability.FSYNC:
        return (
            "a record acknowledged with acks=all survives the end of any process, a crash of the"
            " kernel and a power cut, but not the loss of the disk"
        )
    if durability is Durability.INTERVAL:
        return (
            "an acknowledged record survives the end of any process; a crash of the kernel or a"
            f" power cut may take what came in the last {settings[FLUSH_MS]} ms"
            f" (or the last {settings[FLUSH_BYTES]} bytes of a partition, if they came faster)"
        )
    return (
        "an acknowledged record survives the end of any process; a crash of the kernel or a power"
        " cut may take the last seconds, as with Kafka's own defaults on one host"
    )


def banner(
    ready: Ready,
    settings: Settings,
    log_file: Path,
    services: Mapping[str, str],
    warnings: Sequence[str],
) -> str:
    """Return the banner; it has colour and wrapped lines only if standard output is a terminal.

    `services` are texts about the services, by name.
    """
    nodes = ", ".join(
        f"{node['id']} ({node['role']}, port {node['port']}, pid {node['pid']})"
        for node in ready["nodes"]
    )
    facts = {
        "bootstrap": ready["bootstrap"],
        "nodes": nodes,
        "data": ready["data"],
        "log file": str(log_file),
        "durability": f"{ready['durability']}: {promise(settings)}",
    }
    facts |= services
    broker = ready["bootstrap"]
    ours = "" if broker == DEFAULT_BOOTSTRAP else f" -b {broker}"
    kafkalite = command_name()
    commands = [
        f"kcat -b {broker} -L",
        f"echo hello | {kafkalite} produce{ours} -t greetings",
        f"{kafkalite} consume{ours} -t greetings -o beginning -e",
        f"{kafkalite} demo{ours}",
    ]
    read_by_a_person = sys.stdout.isatty()
    bold = read_by_a_person and not os.environ.get("NO_COLOR")
    strong, plain = ("\x1b[1m", "\x1b[0m") if bold else ("", "")
    columns = shutil.get_terminal_size().columns if read_by_a_person else 0
    lines = [f"{strong}kafkalite is ready{plain}"]
    lines += [entry(name, value, columns) for name, value in facts.items()]
    lines += [entry("warning", warning, columns) for warning in warnings[:WARNINGS_MAX]]
    if len(warnings) > WARNINGS_MAX:
        more = f"{len(warnings) - WARNINGS_MAX} more of these are in the log file"
        lines.append(entry("warning", more, columns))
    lines += ["", "Try next, in another terminal:"]
    lines += [f"  {command}" for command in commands]
    lines += ["", "Ctrl-C ends it."]
    return "\n".join(lines)


def entry(name: str, value: str, columns: int) -> str:
    """Return a line with a named fact, wrapped between words if it is longer than the terminal."""
    line = f"  {name:<11} {value}"
    if not columns or " " not in value:
        return line
    return textwrap.fill(
        line,
        max(columns, 40),
        subsequent_indent=" " * 14,
        break_long_words=False,
        break_on_hyphens=False,
    )


def command_name() -> str:
    """Return the command that runs this program: its name if the shell finds it, else its path."""
    if shutil.which("kafkalite"):
        return "kafkalite"
    program = sys.argv[0]
    if os.path.basename(program) == "kafkalite":
        return program
    return f"{sys.executable} -m kafkalite"
