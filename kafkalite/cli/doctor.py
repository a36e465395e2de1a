"""kafkalite doctor: check whether this machine and data directory are fit for a broker.

Each check has a result and, if it is a warning or an error, a remedy.  Nothing is changed, except
for a temporary file that is written to measure the flush time.  A broker may be running.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import platform
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafkalite._ext import module_names
from kafkalite.cli.broker import DATA, data_directory
from kafkalite.cli.command import argument, columns, command

if TYPE_CHECKING:
    from kafkalite.process.status.ready import Ready

OK, WARNING, WRONG = "ok", "warning", "wrong"

DESCRIPTORS_MIN, DESCRIPTORS_LOW = 256, 4_096
MEMORY_LOW = 256 << 20
FLUSHES = 9
FLUSH_SLOW_S = 0.020
FILL = b"x" * 4096
RESPONSE_TIMEOUT_S = 2.0
CLOCK_AHEAD_S = 60.0
CLOCK_NOT_SET = 1_700_000_000
"""A time before this code was written: an earlier clock was never set."""
NOT_SYNCHRONISED = 5  # adjtimex's TIME_ERROR
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"}
VOLATILE = {"tmpfs", "ramfs"}
LINES_SHOWN = 3
UNCLEANABLE = "kafka_log_logcleanermanager_uncleanable_partitions_count"
DEAD_THREADS = "kafka_log_logcleaner_deadthreadcount"
SINCE_LAST_RUN = "kafka_log_logcleanermanager_time_since_last_run_ms"
LAST_RUN_MS_MAX = 600_000


class CheckResult(NamedTuple):
    """The result of one check."""

    level: str
    what: str
    found: str
    advice: str = ""


@command(
    argument(
        "--listen",
        metavar="HOST:PORT",
        help="address on which the broker will listen (default: as at the last start)",
    ),
    DATA,
    argument("--json", action="store_true", dest="as_json", help="print the results as JSON"),
)
def doctor(listen: str | None, data: Path | None, as_json: bool) -> int:
    """Check this machine and a data directory, and print remedies.

    Checks limits, memory, the clock, the disk and its flush time, ports, the data directory, and
    the broker if one is running.  The exit code is 1 if a check failed, 0 if there are warnings at
    most.

    Examples:
      kafkalite doctor
      kafkalite doctor --data /var/lib/kafkalite --listen 0.0.0.0:9092 --json
    """
    from kafkalite.process.status.ready import running

    directory = data_directory(data)
    try:
        ready = running(directory)
        findings = list(examined(directory, listen, ready))
    except PermissionError as error:
        findings = [CheckResult(WRONG, "data directory", str(error), "run this as its owner")]
    if as_json:
        import json

        print(json.dumps({"data": str(directory), "findings": [f._asdict() for f in findings]}))
    else:
        print(as_table(findings))
    return int(any(finding.level == WRONG for finding in findings))


def as_table(findings: Iterable[tuple[str, str, str, str]]) -> str:
    """Return check results as a table, with the advice below it."""
    found = list(findings)
    lines = [columns(("", "what", "found"), (each[:3] for each in found))]
    lines += [f"{level}: {what}: {advice}" for level, what, _, advice in found if advice]
    return "\n".join(lines)


def examined(directory: Path, listen: str | None, ready: Ready | None) -> Iterator[CheckResult]:
    """Yield the results of all checks."""
    yield software()
    yield descriptors()
    yield memory()
    yield clock(directory)
    yield owner(directory)
    yield file_system_check(directory)
    yield free_space(directory)
    yield flush_time(directory)
    yield from log_directories(directory)
    yield from stray_files(directory)
    yield run_directory_check()
    yield from ports(directory, listen, ready)
    yield from broker(directory, ready)
    yield from replicas(ready)
    yield from compaction(ready)


# -- the machine ---------------------------------------------------------------------------------


def software() -> CheckResult:
    """Check Python, the compiled modules and the operating system."""
    missing = []
    for name in module_names():
        try:
            importlib.import_module(f"kafkalite._ext.{name}")
        except ImportError:
            missing.append(name)
    value = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if missing:
        advice = "run make build, or reinstall kafkalite"
        return CheckResult(
            WRONG, "software", f"missing compiled modules: {', '.join(missing)}", advice
        )
    if sys.platform != "linux":
        return CheckResult(
            WRONG,
            "software",
            value,
            "run the broker on Linux; the clients of other systems can connect to it",
        )
    return CheckResult(OK, "software", value)


def descriptors() -> CheckResult:
    """Check how many files and connections a process may have open."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    value = f"{hard:,}" if hard != resource.RLIM_INFINITY else "unlimited"
    advice = "raise the limit: ulimit -Hn 65536, LimitNOFILE= (systemd), --ulimit (containers)"
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_MIN:
        return CheckResult(WRONG, "open files", value, advice)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_LOW:
        return CheckResult(WARNING, "open files", value, f"each partition needs several; {advice}")
    return CheckResult(OK, "open files", value)


def memory() -> CheckResult:
    """Check the free memory, since reads are served from the page cache."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    cores = len(os.sched_getaffinity(0))
    value = f"{available >> 20:,} MiB free, {cores} core{'s' if cores > 1 else ''}"
    if available < MEMORY_LOW:
        advice = "free some memory: the page cache uses it to serve reads without the disk"
        return CheckResult(WARNING, "memory", value, advice)
    return CheckResult(OK, "memory", value)


def clock(directory: Path) -> CheckResult:
    """Check the clock, which retention and timestamps depend on."""
    now = time.time()
    value = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < CLOCK_NOT_SET:
        return CheckResult(
            WRONG, "clock", value, "set the clock: record timestamps and retention depend on it"
        )
    newest = max(
        (path.stat().st_mtime for path in directory.glob("*-*/*.log") if path.is_file()),
        default=0.0,
    )
    if newest > now + CLOCK_AHEAD_S:
        advice = "a segment has a later modification time than the clock: the clock went backwards"
        return CheckResult(WARNING, "clock", value, advice)
    if not synchronised():
        return CheckResult(OK, "clock", f"{value}, not synchronised")
    return CheckResult(OK, "clock", f"{value}, synchronised")


def synchronised() -> bool:
    """Return True if the kernel reports that the clock is synchronised."""
    status = ctypes.create_string_buffer(256)  # struct timex with modes 0: read only
    try:
        return bool(0 <= ctypes.CDLL(None).adjtimex(status) < NOT_SYNCHRONISED)
    except (OSError, AttributeError):
        return False


# -- the disk ------------------------------------------------------------------------------------


def nearest_existing(directory: Path) -> Path:
    """Return the directory, or its nearest parent that exists."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def owner(directory: Path) -> CheckResult:
    """Check that this user may write to the directory."""
    existing = nearest_existing(directory)
    what = "data directory"
    if not existing.is_dir():
        return CheckResult(
            WRONG, what, f"{existing} is not a directory", "choose another with --data"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        found = f"{existing} is not writable for this user"
        return CheckResult(
            WRONG, what, found, f"chown it to uid {os.getuid()}, or choose another with --data"
        )
    if existing != directory:
        return CheckResult(OK, what, f"{directory} will be created")
    status = existing.stat()
    if status.st_uid != os.getuid():
        found = f"{existing} belongs to uid {status.st_uid}, not to uid {os.getuid()} (this user)"
        return CheckResult(WARNING, what, found, "always run the broker as the same user")
    if status.st_mode & 0o022:
        advice = f"writable for other users; run: chmod go-w {existing}"
        return CheckResult(WARNING, what, f"{existing}, mode {status.st_mode & 0o777:o}", advice)
    return CheckResult(OK, what, str(existing))


def file_system_check(directory: Path) -> CheckResult:
    """Check which file system the directory is on, and whether that is durable."""
    kind = file_system(nearest_existing(directory))
    if kind in REMOTE:
        advice = "flushes may not reach a disk and locks may fail; use a local file system"
        return CheckResult(WARNING, "file system", kind, advice)
    if kind in VOLATILE:
        return CheckResult(
            WARNING, "file system", kind, "in memory: all records are lost at a reboot; use a disk"
        )
    return CheckResult(OK, "file system", kind)


def file_system(directory: Path) -> str:
    """Return the type of a directory's file system, from the kernel's list of mounts."""
    wanted = os.stat(directory).st_dev
    device = f"{os.major(wanted)}:{os.minor(wanted)}"
    kind = "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, _, tail = line.partition(" - ")
        if head.split()[2] == device:
            kind = tail.split()[0]
    return kind


def free_space(directory: Path) -> CheckResult:
    """Check the free space against the default of storage.min.free.bytes."""
    from kafkalite.storage.manager.log_manager import MIN_FREE_MAX, MIN_FREE_SHARE

    existing = nearest_existing(directory)
    disk = os.statvfs(existing)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    value = f"{free / 1e9:,.1f} GB free of {size / 1e9:,.1f}"
    if free < min(MIN_FREE_MAX, size // MIN_FREE_SHARE):
        advice = (
            "below storage.min.free.bytes, produce requests fail: free space, or lower that key"
        )
        return CheckResult(WRONG, "free space", value, advice)
    if disk.f_favail == 0 and disk.f_files:
        return CheckResult(WRONG, "free space", f"{value}, no free inodes", "delete files")
    return CheckResult(OK, "free space", value)


def log_directories(directory: Path) -> Iterator[CheckResult]:
    """Check the other directories of log.dirs, and whether some are on one disk."""
    from kafkalite.storage.manager.log_directories import listed_paths

    others = [path for path in listed_paths(directory) if path != directory]
    devices = {os.stat(nearest_existing(directory)).st_dev: directory}
    for path in others:
        what = "log directory"
        try:
            device = path.stat().st_dev
        except OSError as error:
            advice = "mount its disk, or see --without-dir of kafkalite start"
            yield CheckResult(WRONG, what, f"{path}: {error.strerror}", advice)
            continue
        if device in devices:
            found = f"{path} is on one disk with {devices[device]}"
            yield CheckResult(WARNING, what, found, "both are lost with it: use another disk")
        else:
            yield CheckResult(OK, what, str(path))
        devices.setdefault(device, path)
        for check in (file_system_check(path), free_space(path)):
            if check.level != OK:
                yield check._replace(found=f"{path}: {check.found}")


def flush_time(directory: Path) -> CheckResult:
    """Check how long an acknowledgement waits for the disk with durability=fsync."""
    existing = nearest_existing(directory)
    try:
        with tempfile.TemporaryFile(dir=existing, prefix=".doctor-") as file:
            taken = [flush_time_s(file.fileno()) for _ in range(FLUSHES)]
    except OSError as error:
        value = f"{existing}: {error.strerror}"
        return CheckResult(
            WRONG, "flush time", value, "cannot write a file: check permissions and free space"
        )
    median = statistics.median(taken)
    value = f"{median * 1e3:.1f} ms for 4 KiB (median of {FLUSHES})"
    if median > FLUSH_SLOW_S:
        advice = "with durability=fsync each acknowledgement waits for a flush; see --durability"
        return CheckResult(WARNING, "flush time", value, advice)
    return CheckResult(OK, "flush time", value)


def flush_time_s(descriptor: int) -> float:
    begun = time.monotonic()
    os.write(descriptor, FILL)
    os.fdatasync(descriptor)
    return time.monotonic() - begun


def stray_files(directory: Path) -> Iterator[CheckResult]:
    """Check for stray partition directories, and for a clean shutdown of the last run."""
    from kafkalite.process.status.ready import is_locked
    from kafkalite.storage.files.layout import CLEAN_SHUTDOWN

    if not directory.is_dir():
        return
    strays = sorted(path.name for path in directory.glob("**/*-stray") if path.is_dir())
    if strays:
        advice = "directories without a topic: inspect them (kafkalite log dump), then delete them"
        yield CheckResult(WARNING, "strays", f"{len(strays)}, first: {strays[0]}", advice)
    if is_locked(directory) or not (directory / "meta.properties").exists():
        return
    if (directory / CLEAN_SHUTDOWN).exists():
        yield CheckResult(OK, "last shutdown", "clean")
    else:
        yield CheckResult(OK, "last shutdown", "unclean: the next start recovers the logs")


def run_directory_check() -> CheckResult:
    """Check the private directory for the sockets of the broker's processes."""
    from kafkalite.transport.run_directory import is_private, user_directory

    directory = user_directory()
    if directory.exists() and not is_private(directory):
        advice = f"it must belong to this user with mode 700: chmod 700 {directory}, or delete it"
        return CheckResult(
            WRONG, "run directory", f"{directory} is accessible for other users", advice
        )
    return CheckResult(OK, "run directory", str(directory))


# -- ports and the broker ------------------------------------------------------------------------


def ports(directory: Path, listen: str | None, ready: Ready | None) -> Iterator[CheckResult]:
    """Check that node 0 and the workers can listen on their ports."""
    from kafkalite.config.broker import LISTENERS
    from kafkalite.config.listener import parse_listener
    from kafkalite.process.ports import load_ports

    if ready is not None:
        taken = ", ".join(str(node["port"]) for node in ready["nodes"])
        yield CheckResult(OK, "ports", f"{taken}: in use by this broker")
        return
    default = parse_listener(LISTENERS.default[0])
    listener = parse_listener(f"PLAINTEXT://{listen}") if listen else default
    saved = load_ports(directory)
    wanted = [listener.port]
    if saved is not None and not saved.free and saved.ports[0] == listener.port:
        wanted = sorted(saved.ports.values())
    if listener.port == 0:
        yield CheckResult(OK, "ports", "port 0: free ports will be chosen")
        return
    for port in wanted:
        error = bind_error(listener.host, port)
        if error:
            advice = "stop that process, or choose another port with --listen"
            yield CheckResult(WRONG, f"port {port}", f"{error}{holder(port)}", advice)
        else:
            yield CheckResult(OK, f"port {port}", "free")
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first <= max(wanted) and min(wanted) <= last:
        advice = (
            "an outgoing connection may use the port while the broker is down; choose one outside"
        )
        yield CheckResult(
            WARNING, "port range", f"{first}-{last} is the range of ephemeral ports", advice
        )


def bind_error(host: str, port: int) -> str:
    """Return why a port cannot be bound, or ""."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen()
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
    return ""


def holder(port: int) -> str:
    """Return the process that uses a port, if this user may inspect it."""
    wanted = {f"socket:[{inode}]" for inode in inodes_listening(port)}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it exited, or belongs to another user
            for descriptor in (process / "fd").iterdir():
                if target(descriptor) in wanted:
                    name = (process / "comm").read_text().strip()
                    return f" by {name} (process {process.name})"
    return ""


def target(link: Path) -> str:
    """Return the target of a link, or "" if the link does not exist any more."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def inodes_listening(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def broker(directory: Path, ready: Ready | None) -> Iterator[CheckResult]:
    """Check whether a broker runs, whether each node responds, and its last warnings."""
    from kafkalite.process.log_file import LINE, LOG_FILE
    from kafkalite.process.status.ready import not_ready

    if ready is None:
        yield CheckResult(OK, "broker", not_ready(directory))
    else:
        for node in ready["nodes"]:
            what = f"node {node['id']}"
            error = probe_error(node["host"], node["port"])
            if error:
                advice = f"see {directory / LOG_FILE}"
                yield CheckResult(WRONG, what, f"port {node['port']}: {error}", advice)
            else:
                yield CheckResult(OK, what, f"{node['role']} on port {node['port']} responds")
    try:
        lines = (directory / LOG_FILE).read_text(errors="replace").splitlines()
    except OSError:
        return
    warnings = [line for line in lines if LINE.match(line)]
    if warnings:
        advice = "latest: " + "; ".join(line[:200] for line in warnings[-LINES_SHOWN:])
        yield CheckResult(WARNING, "log", f"{len(warnings)} warnings and errors", advice)


def replicas(ready: Ready | None) -> Iterator[CheckResult]:
    """Check that partitions have leaders and in-sync replicas, by the metrics of the nodes."""
    from kafkalite.cli.replica_health import local_health, problems

    health = local_health(ready) if ready is not None else None
    if health is None:
        return
    found = [*problems(health)]
    for what, advice, is_error in found:
        yield CheckResult(WRONG if is_error else WARNING, "replicas", what, advice)
    if not found:
        yield CheckResult(OK, "replicas", "all partitions have leaders, and all replicas in sync")


def compaction(ready: Ready | None) -> Iterator[CheckResult]:
    """Check the log cleaner of a running broker, by the metrics of its nodes."""
    from kafkalite.metrics import read_pages
    from kafkalite.process.run_directory import bus_path

    if ready is None:
        return
    values = {
        (page.node_id, family.name): value
        for page in read_pages(bus_path(ready).parent, int(time.monotonic() * 1000))
        for family in page.families
        if family.name in (UNCLEANABLE, DEAD_THREADS, SINCE_LAST_RUN)
        for _, value in family.samples
    }
    if not values:
        return  # no topic is compacted
    wrong = False
    for (node_id, name), value in sorted(values.items()):
        if name == SINCE_LAST_RUN:
            if value > LAST_RUN_MS_MAX:
                wrong = True
                yield CheckResult(
                    WARNING, "compaction",
                    f"node {node_id}: no cleaner has looked for dirty logs for"
                    f" {value // 60_000:.0f} min",
                    "it is in a long pass, or hangs: if the broker's log has no recent line about a"
                    " compacted log, kill the process of the log cleaner; the launcher restarts it",
                )  # fmt: skip
            continue
        if value and name == UNCLEANABLE:
            wrong = True
            yield CheckResult(
                WARNING, "compaction", f"node {node_id}: {value} logs cannot be compacted",
                "see `kafkalite topic describe TOPIC` and the broker's log; a restart of the node"
                " retries it",
            )  # fmt: skip
        elif value:
            wrong = True
            yield CheckResult(
                WARNING, "compaction", f"node {node_id}: {value} cleaner threads do not run",
                "see the lines of the cleaner in the broker's log",
            )  # fmt: skip
    if not wrong:
        yield CheckResult(OK, "compaction", "the log cleaner runs")


def probe_error(host: str, port: int) -> str:
    """Return why a node does not respond, or ""."""
    from kafkalite.process.ports import reachable
    from kafkalite.protocol.readiness_request import READINESS_REQUEST, RESPONSE_HEAD_SIZE

    try:
        with socket.create_connection((reachable(host), port), RESPONSE_TIMEOUT_S) as client:
            client.sendall(READINESS_REQUEST)
            return "" if client.recv(RESPONSE_HEAD_SIZE) else "closed the connection"
    except OSError as error:
        return str(error.strerror or error)
