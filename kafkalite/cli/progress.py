"""Progress of a long command: records, bytes and records/s on a terminal's last line.

Nothing is drawn in the first second, or if stderr is not a terminal; rich is imported only when
drawing starts.  `summary` is the message for the end.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

QUIET_S = 1.0
REDRAW_S = 0.2


class Progress:
    """Counts records and bytes, and redraws the line from time to time."""

    def __init__(
        self,
        title: str,
        total_count: int | None = None,
        total_size: int | None = None,
        drawn: bool = True,
    ) -> None:
        self.title = title
        self.total = total_count if total_count is not None else total_size
        self.by_count = total_count is not None
        self.count = 0
        self.size = 0
        self.started = time.monotonic()
        self.stopped = 0.0
        drawn = drawn and sys.stderr.isatty()
        self.draw_at = self.started + QUIET_S if drawn else float("inf")
        self.bar: Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def add(self, count: int, size: int) -> None:
        """Count more records and their bytes."""
        self.count += count
        self.size += size
        if time.monotonic() >= self.draw_at:
            self.draw()

    def draw(self) -> None:
        self.draw_at = time.monotonic() + REDRAW_S
        if self.bar is None:
            self.bar = new_bar(self.total is not None)
            self.bar.add_task(self.title, total=self.total, numbers="")
            self.bar.start()
        self.bar.update(
            self.bar.task_ids[0],
            completed=self.count if self.by_count else self.size,
            numbers=self.numbers(),
        )
        self.bar.refresh()

    def numbers(self) -> str:
        rate = self.count / max(self.elapsed_s, 1e-9)
        return f"{format_count(self.count)}  {format_size(self.size)}  {rate:,.0f} records/s"

    @property
    def elapsed_s(self) -> float:
        return (self.stopped or time.monotonic()) - self.started

    def stop(self) -> None:
        """Stop measuring the time."""
        self.stopped = time.monotonic()

    def summary(self) -> str:
        rate = self.count / max(self.elapsed_s, 1e-9)
        return (
            f"{format_count(self.count)}, {format_size(self.size)} in {self.elapsed_s:.1f} s "
            f"({rate:,.0f} records/s)"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self.bar is not None:
            self.draw()
            self.bar.stop()


def new_bar(has_total: bool) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    return Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *([BarColumn()] if has_total else []),
        TextColumn("{task.fields[numbers]}"),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )


def format_count(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def format_size(size: float) -> str:
    """Return a size with its unit."""
    if size < 1024:
        return f"{size:,.0f} B"
    units = ["KiB", "MiB", "GiB"]
    while (size := size / 1024) >= 1024 and len(units) > 1:
        units.pop(0)
    return f"{size:,.1f} {units[0]}"
