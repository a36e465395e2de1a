"""What `kafkalite start` prints when it is ready: where it is, what it promises, what is next."""

from __future__ import annotations

import sys
from pathlib import Path

from kafkalite.config.settings import Settings
from kafkalite.config.topic import DURABILITY, FLUSH_BYTES, FLUSH_MS
from kafkalite.process.ready import Ready

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def promise(settings: Settings) -> str:
    """What is safe once it was acknowledged, in one sentence."""
    mode = settings[DURABILITY]
    if mode == "fsync":
        return (
            "an acknowledged record survives the end of any process, a crash of the kernel and a"
            " power cut, but not the loss of the disk"
        )
    if mode == "interval":
        return (
            "an acknowledged record survives the end of any process; a crash of the kernel or a"
            f" power cut may take what came in the last {settings[FLUSH_MS]} ms"
            f" (or the last {settings[FLUSH_BYTES]} bytes of a partition, if they came faster)"
        )
    return (
        "an acknowledged record survives the end of any process; a crash of the kernel or a power"
        " cut may take the last seconds, as with Kafka's own defaults on one host"
    )


def banner(ready: Ready, settings: Settings, log_file: Path) -> str:
    """The whole text, plain unless a person reads it on a terminal."""
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
    broker = ready["bootstrap"]
    ours = "" if broker == DEFAULT_BOOTSTRAP else f" -b {broker}"
    commands = [
        f"kcat -b {broker} -L",
        f"echo hello | kafkalite produce{ours} -t greetings",
        f"kafkalite consume{ours} -t greetings -o beginning -e",
        f"kafkalite demo{ours}",
    ]
    strong, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    lines = [f"{strong}kafkalite is ready{plain}"]
    lines += [f"  {name:<11} {value}" for name, value in facts.items()]
    lines += ["", "Try next, in another terminal:"]
    lines += [f"  {command}" for command in commands]
    lines += ["", "Ctrl-C ends it."]
    return "\n".join(lines)
