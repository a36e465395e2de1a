"""Command loop of the table's Python programs: reads commands, writes responses and events.

A program is an object with a method for each command.  While it is `awake` (a member of a group,
or sending) its `turn()` is called between commands, and must return quickly.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

TURN_S = 0.02
CONSUME_S_MAX = 45.0

Setting = tuple[str, Callable[[str], Any]]


class Orders(Protocol):
    """An object with a method for each command."""

    awake: bool

    def turn(self) -> None: ...

    def code(self, fault: BaseException) -> int | None:
        """Return the broker's error code of an exception, or None if it has none."""


def say(**told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def serve(program: Orders) -> None:
    """Execute commands until stdin ends."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        # The client's cleanup would only take time.
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            line = lines.get(block=not program.awake)
        except queue.Empty:
            try:
                program.turn()
            except Exception as fault:
                program.awake = False
                say(fault=worded(fault))
            continue
        order = json.loads(line)
        try:
            answer = getattr(program, order.pop("do"))(**order)
        except Exception as fault:
            say(refused={"code": program.code(fault), "text": worded(fault)})
        else:
            say(answer=answer)


def worded(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}"


def translated(settings: Mapping[str, str], table: Mapping[str, Setting | None]) -> dict[str, Any]:
    """Translate settings to a client's own keys; the table has None for keys it lacks."""
    words = {}
    for name, value in settings.items():
        setting = table[name]
        if setting is not None:
            own, meant = setting
            words[own] = meant(value)
    return words


def yes(value: str) -> bool:
    return value == "true"


def raw(told: str | None) -> bytes | None:
    return None if told is None else told.encode("latin-1")


def text(content: bytes | None) -> str | None:
    return None if content is None else bytes(content).decode("latin-1")


def told_headers(headers: Iterable[tuple[str, bytes | None]]) -> list[list[str | None]]:
    return [[name, text(content)] for name, content in headers]
