"""kafkalite cleaner: compact the logs of a running broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.cli.broker import DATA, data_directory
from kafkalite.cli.command import argument, command
from kafkalite.errors import Refusal

if TYPE_CHECKING:
    from kafkalite.cleaner.cleaner_thread import CleanedBroker


@command(
    DATA,
    argument(
        "--descriptors", metavar="", help="end with the end of stdin (for kafkalite start)"
    ),
)  # fmt: skip
def cleaner(data: Path | None, descriptors: str | None) -> int:
    """Compact the logs of a running broker until SIGTERM or Ctrl-C.

    A broker starts its own cleaner when it has a compacted topic, unless log.cleaner.enable is
    false.

    Examples:
      kafkalite cleaner
      kafkalite cleaner --data /tmp/try
    """
    from kafkalite.cleaner.cleaner_main import run
    from kafkalite.process.log_file import LOG_FILE, log_to
    from kafkalite.process.services.service_output import report_ready

    directory = data_directory(data)
    if not directory.is_dir():
        raise Refusal(
            f"{directory} does not exist; specify the broker's data directory with --data"
        )
    log_to(directory / LOG_FILE, "cleaner")
    if descriptors is not None:
        return run(lambda: broker_on(directory), sys.stdin.fileno(), report_ready)
    return run(lambda: broker_on(directory), None)


def broker_on(directory: Path) -> CleanedBroker | None:
    """Return the broker on a data directory if one runs and is ready."""
    from kafkalite.cleaner.cleaner_thread import CleanedBroker
    from kafkalite.process.run_directory import bus_path
    from kafkalite.process.status.ready import running

    try:
        ready = running(directory)
        if ready is None:
            return None
        node_ids = tuple(node["id"] for node in ready["nodes"])
        return CleanedBroker(ready["cluster_id"], node_ids, bus_path(ready).parent)
    except (Refusal, OSError, KeyError, TypeError):
        return None
