"""Samples as text: tables printed as lines, or redrawn on a terminal.

A terminal shows as many rows of each table as fit, and the number of the others.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kafkalite.cli import signal_handling
from kafkalite.cli.command import columns
from kafkalite.cli.progress import format_size
from kafkalite.cli.top_rates import Measurements

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

CONTROL_KEYS = 6
"""Index of the control characters in the list of tcgetattr."""
POLL_INTERVAL_S = 0.2
"""Interval between two checks of the size of the terminal."""
TABLE_LINES = 2
"""Lines of a table without its rows: the blank line above and the titles."""


ROWS_MIN = 3
"""A table with less space is not shown, and the tables after it get the space."""
GAP = 2
NAME_WIDTH = 16
"""Least width of a name on a narrow terminal."""


class ScreenTable(NamedTuple):
    """Titles and rows; the first `left` columns are left-aligned text, the others numbers."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    left: int
    share: float
    """Share of the terminal's height that it may use, at the expense of the tables after it."""


def heading(round: Measurements) -> str:
    """Return the line about the whole cluster."""
    totals = round["totals"]
    parts = [
        (number(totals["records_per_s"]), "records/s"),
        (speed(totals["bytes_in_per_s"]), "in"),
        (speed(totals["bytes_out_per_s"]), "out"),
        (number(totals["lag"]), "records of lag"),
        (number(totals["topics"]), "topics"),
        (number(totals["partitions"]), "partitions"),
        (number(totals["leaderless"] or None), "without a leader"),
        (number(totals["under_replicated"] or None), "under-replicated"),
        (number(totals["groups"]), "groups"),
    ]
    return ", ".join(
        f"{value} {what.removesuffix('s') if value == '1' else what}"
        for value, what in parts
        if value is not None
    )


def tables(round: Measurements) -> list[ScreenTable]:
    """Return the tables of nodes, groups and topics that are not empty."""
    every = [
        ScreenTable(NODE_TITLES, [node_row(each) for each in round["nodes"]], 3, 0.3),
        ScreenTable(GROUP_TITLES, [group_row(each) for each in round["groups"]], 3, 0.5),
        ScreenTable(TOPIC_TITLES, [topic_row(each) for each in round["topics"]], 1, 1.0),
    ]
    return [known(table) for table in every if table.rows]


def known(table: ScreenTable) -> ScreenTable:
    """Return a table without its empty columns."""
    kept_columns = [
        at for at in range(len(table.titles)) if any(row[at] is not None for row in table.rows)
    ]
    rows = [[row[at] for at in kept_columns] for row in table.rows]
    return table._replace(titles=[table.titles[at] for at in kept_columns], rows=rows)


NODE_TITLES = (
    "NODE", "ADDRESS", "ROLE", "LEADERS", "CPU", "MEMORY", "CONNECTIONS", "REQUESTS/S",
    "SLOW TICKS",
)  # fmt: skip


def node_row(node: Mapping[str, Any]) -> list[str | None]:
    host = f"[{node['host']}]" if ":" in node["host"] else node["host"]
    role = node["role"]
    if node["controller"]:
        role = f"{role}, controller" if role else "controller"
    cpu, memory = node["cpu"], node["memory"]
    return [
        str(node["id"]),
        printed(f"{host}:{node['port']}"),
        role,
        f"{node['leaders']:,}",
        f"{100 * cpu:.0f} %" if cpu is not None else None,
        format_size(memory) if memory is not None else None,
        number(node["connections"]),
        number(node["requests_per_s"]),
        number(node["slow_ticks"] or None),
    ]


GROUP_TITLES = ("GROUP", "TYPE", "STATE", "MEMBERS", "TOPICS", "LAG", "RECORDS/S")


def group_row(group: Mapping[str, Any]) -> list[str | None]:
    counts = [number(group[key]) for key in ("members", "topics", "lag", "records_per_s")]
    return [printed(group["name"]), group["type"], group["state"], *counts]


TOPIC_TITLES = (
    "TOPIC", "PARTITIONS", "LEADERLESS", "UNDER-REPLICATED", "RECORDS/S", "IN/S", "OUT/S", "SIZE",
)  # fmt: skip


def topic_row(topic: Mapping[str, Any]) -> list[str | None]:
    size = topic["size"]
    return [
        printed(topic["name"]),
        f"{topic['partitions']:,}",
        number(topic["leaderless"] or None),
        number(topic["under_replicated"] or None),
        number(topic["records_per_s"]),
        speed(topic["bytes_in_per_s"]),
        speed(topic["bytes_out_per_s"]),
        format_size(size) if size is not None else None,
    ]


def number(value: float | None) -> str | None:
    """Return a number as text; small rates are not rounded to zero."""
    if value is None:
        return None
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def speed(value: float | None) -> str | None:
    return f"{format_size(value)}/s" if value is not None else None


def printed(name: str) -> str:
    """Return a name without terminal control characters."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name
    )


# -- lines of text -------------------------------------------------------------------------------


def text_of(round: Measurements) -> str:
    """Return a sample as text, for an output that is not redrawn."""
    parts = [f"{round['at']}  {heading(round)}"]
    parts += [columns(table.titles, table.rows) for table in tables(round)]
    if round["left_out"]:
        parts.append("\n".join(f"left out: {printed(each)}" for each in round["left_out"]))
    return "\n\n".join(parts)


# -- a terminal ----------------------------------------------------------------------------------


def drawn(round: Measurements, error: str, width: int, height: int) -> Group:
    """Return a sample that fits a terminal of this size."""
    from rich.console import Group
    from rich.text import Text

    name = round["cluster_id"] or "Kafka"
    title = f"kafkalite top  {round['bootstrap']}  {printed(name)}  {round['at'][11:19]} UTC"
    head: list[Text] = [one_line(title, "bold"), one_line(heading(round), "")]
    head += [one_line(f"left out: {printed(each)}", "yellow") for each in round["left_out"]]
    foot = one_line(error, "bold red") if error else one_line("q: quit", "dim")
    left = height - len(head) - 1
    shown = [narrowed(table, width) for table in tables(round)]
    parts: list[Any] = [*head]
    for at, table in enumerate(shown):
        after = sum(TABLE_LINES + len(each.rows) for each in shown[at + 1 :])
        row_count_max = max(int(left * table.share), left - after) - TABLE_LINES
        if row_count_max >= min(len(table.rows), ROWS_MIN if after else 1):
            parts += [Text(""), *rich_table(table, width, row_count_max)]
            left -= TABLE_LINES + min(len(table.rows), row_count_max)
    return Group(*parts, foot)


def one_line(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def narrowed(table: ScreenTable, width: int) -> ScreenTable:
    """Return a table without the last columns that do not fit; long names are cut."""
    needed = [width_of(table, at) for at in range(len(table.titles))]
    needed[0] = min(needed[0], NAME_WIDTH)
    kept_columns = len(needed)
    while kept_columns > 1 and sum(needed[:kept_columns]) + GAP * (kept_columns - 1) > width:
        kept_columns -= 1
    return table._replace(
        titles=table.titles[:kept_columns], rows=[row[:kept_columns] for row in table.rows]
    )


def width_of(table: ScreenTable, at: int) -> int:
    """Return the width of a column."""
    return max(len(table.titles[at]), *(len(row[at] or "-") for row in table.rows))


def rich_table(table: ScreenTable, width: int, row_count_max: int) -> Iterator[Any]:
    """Yield a table of at most `row_count_max` rows, the last of which counts those left out."""
    from rich.table import Table as Drawn
    from rich.text import Text

    grid = Drawn(box=None, padding=(0, GAP, 0, 0), header_style="bold", pad_edge=False)
    widths = [width_of(table, at) for at in range(len(table.titles))]
    widths[0] = min(widths[0], width - sum(widths[1:]) - GAP * (len(widths) - 1))
    for at, title in enumerate(table.titles):
        grid.add_column(
            title,
            justify="right" if at >= table.left else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=widths[at],
        )
    rows = table.rows if len(table.rows) <= row_count_max else table.rows[: row_count_max - 1]
    for row in rows:
        grid.add_row(*(Text("-" if cell is None else cell) for cell in row))
    yield grid
    if len(rows) < len(table.rows):
        yield one_line(f"… {len(table.rows) - len(rows):,} more", "dim")


class KeyReader:
    """Reads single keys of a terminal; none if stdin is not a terminal."""

    def __init__(self) -> None:
        self.descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None

    def __enter__(self) -> Self:
        if self.descriptor is not None:
            self.before = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor)
            # Ctrl-Z is disabled: it would leave the shell in the alternate screen, without a
            # cursor.
            mode = termios.tcgetattr(self.descriptor)
            mode[CONTROL_KEYS][termios.VSUSP] = b"\0"
            termios.tcsetattr(self.descriptor, termios.TCSADRAIN, mode)
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:
            termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self.before)

    def pressed(self, wait_s: float) -> str:
        """Return the key that is pressed within this time, or ""."""
        if self.descriptor is None:
            time.sleep(wait_s)
        elif select.select([self.descriptor], [], [], wait_s)[0]:
            key = os.read(self.descriptor, 1)
            return key.decode("latin-1") if key else "q"  # the terminal was closed
        return ""


class TopScreen:
    """The terminal's alternate screen, restored at the end."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self.console = console
        self.keys = KeyReader()
        self.live = Live(console=console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        signal_handling.install_handlers()
        self.keys.__enter__()
        try:
            self.live.__enter__()
        except BaseException:
            self.keys.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.live.__exit__(None, None, None)
        finally:
            self.keys.__exit__()

    def show(self, round: Measurements, error: str, wait_s: float) -> bool:
        """Show a sample for this time; return False when `q` is pressed."""
        until = time.monotonic() + wait_s
        size = None
        while True:
            if self.console.size != size:
                size = self.console.size
                self.live.update(drawn(round, error, size.width, size.height), refresh=True)
            # Also at the deadline: with a slow cluster, keys would never be read otherwise.
            left_s = max(0.0, until - time.monotonic())
            if self.keys.pressed(min(left_s, POLL_INTERVAL_S)) in ("q", "Q"):
                return False
            if not left_s:
                return True
