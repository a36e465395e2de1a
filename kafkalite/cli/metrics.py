"""kafkalite metrics: print the metrics of a running broker."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.cli.broker import DATA, data_directory
from kafkalite.cli.command import argument, command, print_stderr
from kafkalite.errors import Refusal

if TYPE_CHECKING:
    from kafkalite.exporter.exporter_main import MonitoredBroker


@command(
    DATA,
    argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:9308",
        help="serve /metrics, /healthz and /readyz on this address (default 127.0.0.1:9308)",
    ),
    argument(
        "--insecure", action="store_true",
        help="allow listening on addresses that other machines can reach",
    ),
    argument(
        "--descriptors", metavar="N",
        help="serve on this inherited socket until the end of stdin (for start --metrics)",
    ),
)  # fmt: skip
def metrics(data: Path | None, listen: str, insecure: bool, descriptors: str | None) -> int:
    """Serve a broker's metrics to Prometheus until SIGTERM or Ctrl-C.

    `kafkalite start --metrics HOST:PORT` starts and stops it with the broker.

    Examples:
      kafkalite metrics
      kafkalite metrics --data /tmp/try --listen 127.0.0.1:9400
    """
    from kafkalite.exporter.exporter_main import export
    from kafkalite.process.options import metrics_address
    from kafkalite.process.services.exporter_service import bind_metrics
    from kafkalite.process.services.service_output import report_ready

    directory = data_directory(data)
    if descriptors is not None:
        inherited = socket.socket(fileno=int(descriptors))
        return export(inherited, lambda: broker_on(directory), sys.stdin.fileno(), report_ready)
    address = metrics_address(listen, insecure)
    assert address is not None
    if not directory.is_dir():
        raise Refusal(
            f"{directory} does not exist; specify the broker's data directory with --data"
        )
    listener = bind_metrics(address, "--listen")
    host, port = listener.getsockname()[:2]
    print_stderr(f"metrics at http://{host}:{port}/metrics")
    return export(listener, lambda: broker_on(directory), None)


def broker_on(directory: Path) -> MonitoredBroker | None:
    """Return the broker on a data directory if one runs and is ready."""
    from kafkalite.exporter.exporter_main import MonitoredBroker
    from kafkalite.process.run_directory import bus_path
    from kafkalite.process.status.ready import running

    try:
        ready = running(directory)
        if ready is None:
            return None
        nodes = {node["id"]: (node["host"], node["port"]) for node in ready["nodes"]}
        return MonitoredBroker(ready["bootstrap"], nodes, bus_path(ready).parent)
    except (Refusal, OSError, KeyError, TypeError):
        return None
