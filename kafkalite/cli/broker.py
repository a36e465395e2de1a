"""kafkalite start, status, restart, stop: the broker itself."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.cli.command import argument, command, key_value
from kafkalite.errors import Refusal

if TYPE_CHECKING:
    from kafkalite.process.status.ready import Ready, RestartReady

DATA = argument(
    "--data",
    metavar="DIR",
    type=Path,
    help="data directory of the broker (default: $XDG_DATA_HOME/kafkalite or"
    " ~/.local/share/kafkalite)",
)

JSON = argument("--json", action="store_true", dest="as_json", help="print JSON")

POLL_INTERVAL_S = 0.02
NO_RESTART: RestartReady = {"asked": 0, "renewing": [], "failed": ""}
"""State of a broker for which no restart was requested."""


@command(
    argument("--listen", metavar="HOST:PORT", help="address to listen on (default 127.0.0.1:9092)"),
    argument(
        "--data",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="data directory (default: $XDG_DATA_HOME/kafkalite or ~/.local/share/kafkalite);"
        " repeat it to spread workers over the directories of several disks",
    ),
    argument(
        "--without-dir",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="give up a directory that is lost: its replicas are fetched again; may be repeated",
    ),
    argument(
        "--workers",
        metavar="N",
        type=int,
        help="number of worker processes that share the partitions (default: as at the last start;"
        " at the first start 3, or one per core); 0 runs one process on one port",
    ),
    argument(
        "--durability",
        choices=("fsync", "interval", "os"),
        help="when acknowledged records are on disk (default fsync: before the acknowledgement)",
    ),
    argument(
        "--ready-file",
        metavar="FILE",
        type=Path,
        help="write this file when every node accepts requests",
    ),
    argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="read configuration keys from this file, one key=value per line",
    ),
    argument(
        "-o",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=key_value,
        help="set a key, overriding the config file; may be repeated (see: kafkalite config keys)",
    ),
    argument(
        "--insecure",
        action="store_true",
        help="allow listening on addresses that other machines can reach, without authentication",
    ),
    argument(
        "--metrics", metavar="HOST:PORT", help="serve /metrics for Prometheus on this address"
    ),
    argument(
        "--gateway",
        metavar="ENDPOINT",
        help="accept messages over ZeroMQ on this endpoint: tcp://127.0.0.1:5555, or ipc://PATH",
    ),
)
def start(
    listen: str | None,
    data: list[Path],
    without_dir: list[Path],
    workers: int | None,
    durability: str | None,
    ready_file: Path | None,
    config: Path | None,
    overrides: list[tuple[str, str]],
    insecure: bool,
    metrics: str | None,
    gateway: str | None,
) -> int:
    """Run the broker in the foreground until SIGTERM or Ctrl-C.

    Examples:
      kafkalite start
      kafkalite start --listen 127.0.0.1:0 --data /tmp/try --durability os --ready-file ready.json
      kafkalite start -o num.partitions=6 -o log.retention.hours=24
      kafkalite start --metrics 127.0.0.1:9308
      kafkalite start --gateway tcp://127.0.0.1:5555
      kafkalite start --data /disk1/kafka --data /disk2/kafka --data /disk3/kafka
    """
    from kafkalite.process import launcher
    from kafkalite.process.options import Options

    options = Options(
        listen=listen,
        data=data[0] if data else None,
        log_dirs=data[1:],
        without_dirs=without_dir,
        workers=workers,
        durability=durability,
        ready_file=ready_file,
        config=config,
        overrides=dict(overrides),
        insecure=insecure,
        metrics=metrics,
        gateway=gateway,
    )
    return launcher.start(options)


@command(
    DATA,
    argument(
        "--json",
        action="store_true",
        dest="as_json",
        help="print JSON: the ready file, and counts of replicas",
    ),
)
def status(data: Path | None, as_json: bool) -> int:
    """Show the addresses and processes of the broker on a data directory.

    Partitions without a leader, below min.insync.replicas or under-replicated are counted, as of
    the last five seconds, with what to do.

    The exit code is 0 if a broker runs and is ready, 1 if not.  `kafkalite doctor` also sends a
    request to each node.

    Examples:
      kafkalite status
      kafkalite status --data /tmp/try --json
    """
    from kafkalite.process.services.table import describe_services
    from kafkalite.process.status.ready import not_ready, running

    directory = data_directory(data)
    ready = running(directory)
    if ready is None:
        raise Refusal(not_ready(directory))
    if as_json:
        from kafkalite.cli.replica_health import local_health

        health = local_health(ready)
        counts = None if health is None else health._asdict()
        print(json.dumps({**ready, "replicas": counts}, indent=2))
        return 0
    print(f"running     {ready['bootstrap']} (cluster {ready['cluster_id']})")
    for node in ready["nodes"]:
        print(f"node {node['id']:<6} {node['role']}, port {node['port']}, pid {node['pid']}")
    for node_id in ready.get("restart", NO_RESTART)["renewing"]:
        print(f"restarting  node {node_id} has not been restarted yet")
    for name, text in describe_services(ready).items():
        print(f"{name:<11} {text}")
    print(f"data        {ready['data']}")
    for entry in ready.get("log_dirs", []):
        names = ", ".join(map(str, entry["nodes"])) or "none"
        print(f"log dir     {entry['path']}, nodes {names}")
    print(f"durability  {ready['durability']}")
    print_replicas(ready)
    return 0


def print_replicas(ready: Ready) -> None:
    """Print what is wrong with replicas, and what to do."""
    from kafkalite.cli.replica_health import local_health, problems

    health = local_health(ready)
    for found, advice, _ in problems(health) if health is not None else ():
        print(f"replicas    {found}; {advice}")


@command(DATA, JSON)
def stop(data: Path | None, as_json: bool) -> int:
    """Stop the broker on a data directory, and wait until it has exited.

    A broker that is still starting is stopped too.

    Examples:
      kafkalite stop
      kafkalite stop --data /tmp/try
    """
    from kafkalite.process.status.ready import running

    directory = data_directory(data)
    ready = running(directory)
    pid, launcher = running_launcher(directory, "nothing to stop")
    send_signal(launcher, signal.SIGTERM, directory, pid)
    select.select([launcher], [], [])  # readable once the process has ended
    if as_json:
        print(json.dumps({"bootstrap": ready["bootstrap"] if ready else None, "pid": pid}))
    else:
        where = ready["bootstrap"] if ready else f"process {pid} (was not ready)"
        print(f"stopped     {where}")
    return 0


@command(DATA, JSON)
def restart(data: Path | None, as_json: bool) -> int:
    """Restart the broker's processes one by one, with the current code and config file.

    Clients are served throughout.  The new code is started on trial first; if that fails, the
    broker keeps running unchanged.  Listeners, data directory and number of workers cannot be
    changed by a restart: stop and start the broker instead.

    Examples:
      kafkalite restart
      kafkalite restart --data /tmp/try
    """
    from kafkalite.process.status.ready import not_ready, running

    directory = data_directory(data)
    pid, launcher = running_launcher(
        directory, "nothing to restart (start it with: kafkalite start)"
    )
    ready = running(directory)
    if ready is None:
        raise Refusal(f"{not_ready(directory)}; wait until it is ready, then restart it")
    if "restarts" not in ready:
        raise Refusal(
            "the running broker does not support restart: run kafkalite stop, then kafkalite start"
        )
    previous_request = ready.get("restart", NO_RESTART)["asked"]
    pids = {node["id"]: node["pid"] for node in ready["nodes"]}
    send_signal(launcher, signal.SIGUSR2, directory, pid)
    while True:
        if select.select([launcher], [], [], POLL_INTERVAL_S)[0]:
            raise Refusal(
                f"the broker exited during the restart; see {directory / 'kafkalite.log'}"
            )
        now = running(directory)
        progress = now.get("restart", NO_RESTART) if now is not None else NO_RESTART
        if now is None or progress["asked"] == previous_request:
            continue
        if progress["failed"]:
            raise Refusal(progress["failed"])
        for node in now["nodes"]:
            if pids.get(node["id"]) not in (node["pid"], None):
                pids[node["id"]] = node["pid"]
                if not as_json:
                    print(f"restarted   node {node['id']}, pid {node['pid']}", flush=True)
        if now["restarts"] > ready["restarts"] and not progress["renewing"]:
            nodes = [{"id": node["id"], "pid": node["pid"]} for node in now["nodes"]]
            fields = {"bootstrap": now["bootstrap"], "nodes": nodes}
            print(json.dumps(fields) if as_json else f"restarted   {now['bootstrap']}")
            return 0


def running_launcher(directory: Path, consequence: str) -> tuple[int, int]:
    """Return the pid of the running broker's launcher, ready or not, and a pidfd."""
    not_running = Refusal(f"no broker runs on {directory}: {consequence}")
    pid = launcher_of(directory)
    if not pid:
        raise not_running
    try:
        launcher = os.pidfd_open(pid)
    except ProcessLookupError:
        raise not_running from None
    if launcher_of(directory) != pid:  # it exited in between, and the pid may have been reused
        raise not_running
    return pid, launcher


def launcher_of(directory: Path) -> int:
    """Return the process id of the running broker's launcher, 0 if there is none."""
    from kafkalite.process.status.ready import lock_holder, running

    ready = running(directory)
    return lock_holder(directory) if ready is None else ready["launcher_pid"]


def send_signal(launcher: int, number: signal.Signals, directory: Path, pid: int) -> None:
    """Send a signal to the launcher."""
    try:
        signal.pidfd_send_signal(launcher, number)
    except ProcessLookupError:
        pass  # it has exited; its descriptor is readable
    except PermissionError:
        raise Refusal(
            f"cannot signal the broker on {directory}: process {pid} belongs to another user"
        ) from None


def data_directory(data: Path | None) -> Path:
    """Return the given data directory, or the default one; for another log directory, the data
    directory that it lists."""
    from kafkalite.process.status.ready import default_data_directory
    from kafkalite.storage.files.layout import LOG_DIRECTORIES

    directory = data.absolute() if data is not None else default_data_directory()
    if (directory / LOG_DIRECTORIES).exists():
        from kafkalite.storage.manager.log_directories import listed_paths

        return next(iter(listed_paths(directory)), directory)
    return directory


def address_of(data: Path) -> str:
    """Return the address of the broker on a data directory; raise Refusal if none is ready."""
    from kafkalite.process.status.ready import not_ready, running

    directory = data_directory(data)
    ready = running(directory)
    if ready is None:
        raise Refusal(not_ready(directory))
    return ready["bootstrap"]


def local_broker(directory: Path, cluster_id: str | None) -> Ready | None:
    """Return the broker on a data directory if it is this cluster's and readable by this user."""
    from kafkalite.process.status.ready import running

    try:
        ready = running(directory)
        return ready if ready is not None and ready["cluster_id"] == cluster_id else None
    except (Refusal, KeyError):
        return None
