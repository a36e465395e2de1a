"""The launcher: what `kafkalite start` does, from its flags to a clean end.

    settings → data directory locked → listener bound → node opened → answers itself → ready

The socket is bound before the logs are opened, so a client that comes early waits in the backlog
and is not refused.  The ready file is written when the node has answered a request over its own
socket, not before.  SIGTERM and SIGINT end it cleanly; a second one ends it at once.  SIGHUP, sent
when a terminal closes, ends it cleanly too, unless it was ignored from the start (nohup).

Left out: with `workers=0` there is one node, in this process.  Node processes of their own, and
their restart, come with a later version.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NamedTuple

from kafkalite.broker.node import Node
from kafkalite.clock import SystemClock
from kafkalite.config.broker import (
    ADVERTISED_LISTENERS,
    CONNECTIONS_MAX_IDLE_MS,
    LISTENERS,
    LOG_DIRS,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    QUEUED_MAX_REQUEST_BYTES,
    SOCKET_LISTEN_BACKLOG_SIZE,
    SOCKET_RECEIVE_BUFFER_BYTES,
    SOCKET_REQUEST_MAX_BYTES,
    SOCKET_SEND_BUFFER_BYTES,
    Listener,
    parse_listener,
)
from kafkalite.config.settings import Settings, read_properties
from kafkalite.config.topic import DURABILITY
from kafkalite.errors import InvalidConfig, Refusal
from kafkalite.process.banner import banner
from kafkalite.process.ready import (
    STATUS_FILE,
    Ready,
    default_data_directory,
    put_whole,
    text_of,
)
from kafkalite.storage.log_directory import LogDirectory
from kafkalite.storage.log_manager import LogManager
from kafkalite.transport.reactor import Limits, Reactor

log = logging.getLogger("kafkalite.process")

COLLECT_AFTER = 100_000
"""How many objects more than before there must be, for cycles to be searched."""

LOG_FILE = "kafkalite.log"
LOG_SIZE_MAX = 10 << 20
LOG_FILES_KEPT = 3
API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 0, -1)
"""The smallest request there is: ApiVersions v0, correlation 0, no client id."""
ASK_AGAIN_MS = 20


class Options(NamedTuple):
    """What the command line said; None where it said nothing."""

    listen: str | None = None
    data: Path | None = None
    workers: int = 0
    durability: str | None = None
    ready_file: Path | None = None
    config: Path | None = None
    overrides: Mapping[str, str] = {}
    insecure: bool = False


def start(options: Options, until: int | None = None) -> int:
    """Run a broker until it is told to end; the process's exit code.

    `until` is a descriptor whose end of file ends the broker, too.
    """
    if sys.platform != "linux":
        raise Refusal(
            f"the broker runs on Linux, not on {sys.platform}; its clients run here as well"
        )
    if options.workers != 0:
        raise Refusal("--workers other than 0 comes with a later version; leave it out for now")
    os.umask(0o077)
    settings = settings_of(options)
    address = listen_address(settings, options.insecure)
    if options.ready_file is not None and not options.ready_file.absolute().parent.is_dir():
        raise Refusal(f"there is no directory for the ready file {options.ready_file}")
    raise_descriptor_limit()
    data = data_directory(options, settings)
    return Launcher(options, settings, data, address).run(until)


def settings_of(options: Options) -> Settings:
    """Flags over `-o` over the config file."""
    static = read_properties(options.config) if options.config else {}
    static |= options.overrides
    if options.listen is not None:
        _, colon, port = options.listen.rpartition(":")
        if not colon or not port.isdecimal() or "://" in options.listen:
            raise Refusal(f"--listen wants HOST:PORT, not {options.listen!r}")
        static[LISTENERS.name] = f"PLAINTEXT://{options.listen}"
    if options.durability is not None:
        static[DURABILITY.name] = options.durability
    try:
        return Settings.broker(static)
    except InvalidConfig as fault:
        raise Refusal(f"{fault} (kafkalite config keys lists what may be set)") from None


def listen_address(settings: Settings, insecure: bool) -> Listener:
    """Where to listen; an address that others can reach is refused unless asked for twice."""
    address = parse_listener(settings[LISTENERS][0])
    if not (insecure or is_loopback(address.host)):
        raise Refusal(
            f"{address.host or 'every address'} can be reached from other machines, and whoever"
            " reaches it may read and write everything; listen on 127.0.0.1, or add --insecure"
        )
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def data_directory(options: Options, settings: Settings) -> Path:
    """The directory asked for, or the user's own: $XDG_DATA_HOME/kafkalite."""
    if options.data is not None:
        return options.data.absolute()
    if settings[LOG_DIRS]:
        return Path(settings[LOG_DIRS][0]).absolute()
    return default_data_directory()


def raise_descriptor_limit() -> None:
    """As many descriptors as we may have: each segment and each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bind(address: Listener, backlog: int) -> socket.socket:
    """The listening socket, or one sentence on why there is none."""
    host = address.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        where = socket.getaddrinfo(host, address.port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(where, family=family, backlog=backlog)
    except socket.gaierror as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise Refusal(f"cannot listen on {host}: {reason}; choose another with --listen") from None
    except OSError as fault:
        reason = os.strerror(fault.errno or 0).lower()
        raise Refusal(
            f"cannot listen on {host}:{address.port}: {reason}; choose another with --listen"
            " HOST:PORT (port 0 takes a free one)"
        ) from None


def limits_of(settings: Settings) -> Limits:
    """The loop's bounds, from the keys that name them."""
    return Limits(
        frame_size_max=settings[SOCKET_REQUEST_MAX_BYTES],
        held_size_max=settings[QUEUED_MAX_REQUEST_BYTES],
        idle_ms_max=settings[CONNECTIONS_MAX_IDLE_MS],
        connections_max=settings[MAX_CONNECTIONS],
        connections_per_address_max=settings[MAX_CONNECTIONS_PER_IP],
        send_buffer_size=settings[SOCKET_SEND_BUFFER_BYTES],
        receive_buffer_size=settings[SOCKET_RECEIVE_BUFFER_BYTES],
    )


class Launcher:
    """One run of the broker on one data directory."""

    def __init__(self, options: Options, settings: Settings, data: Path, address: Listener) -> None:
        self.options = options
        self.settings = settings
        self.data = data
        self.address = address
        self.reactor = Reactor(SystemClock(), limits_of(settings))
        self.warnings = Warnings()
        self.files: list[Path] = []
        self.ending = False
        self.signals = 0

    def run(self, until: int | None = None) -> int:
        """Open, serve and end; see the module."""
        clock = self.reactor.clock
        directory = LogDirectory(self.data)
        directory.lock()
        logs = LogManager(self.data, self.settings, clock)
        logs.open_directory(directory.cluster_id, 0)
        for left_by_a_killed_one in (self.data / STATUS_FILE, self.options.ready_file):
            if left_by_a_killed_one is not None:
                remove(left_by_a_killed_one)
        listener = bind(self.address, self.settings[SOCKET_LISTEN_BACKLOG_SIZE])
        log_to(self.data / LOG_FILE)
        logging.getLogger("kafkalite").addHandler(self.warnings)
        watch_signals(self.reactor, self.signalled)
        if until is not None:
            self.reactor.watch(until, self.end)
        try:
            self.serve(Node(self.settings, clock, self.reactor, logs, listener), listener)
        except Refusal:
            raise
        except Exception:
            log.critical("the broker ends because of a fault", exc_info=True)
            raise
        finally:
            for file in self.files:
                file.unlink(missing_ok=True)
        return 0

    def serve(self, node: Node, listener: socket.socket) -> None:
        """Open the node, say that it is ready when it is, and close it at the end."""
        log.info("starting on %s, data in %s", listener.getsockname(), self.data)
        node.open()
        gc.collect()
        gc.freeze()  # what is there now stays; collections need not look at it
        gc.set_threshold(COLLECT_AFTER)  # a request leaves no cycles, so there is little to find
        try:
            if not self.ending:
                ask_itself(self.reactor, listener, lambda: self.ready(node.cluster_id, listener))
                self.reactor.run()
        except Refusal:
            self.close(node)
            raise
        self.close(node)

    def close(self, node: Node) -> None:
        """The clean end: what the logs hold is flushed, and the next start need not look."""
        log.info("ending")
        node.close()
        log.info("ended")

    def signalled(self) -> None:
        """Told to end; told twice, end at once."""
        self.signals += 1
        if self.signals > 1:
            os._exit(1)
        self.end()

    def end(self) -> None:
        """End after this tick, or after opening."""
        self.ending = True
        self.reactor.stop()

    def ready(self, cluster_id: str, listener: socket.socket) -> None:
        """Write the files that say so, and the banner."""
        host, port = listener.getsockname()[:2]
        advertised = self.settings[ADVERTISED_LISTENERS]
        told = parse_listener(advertised[0]) if advertised else Listener(reachable(host), port)
        told_host = f"[{told.host}]" if ":" in told.host else told.host
        ready = Ready(
            bootstrap=f"{told_host}:{told.port}",
            cluster_id=cluster_id,
            data=str(self.data),
            durability=self.settings[DURABILITY],
            launcher_pid=os.getpid(),
            nodes=[
                {
                    "id": 0,
                    "role": "supervisor",
                    "host": told.host,
                    "port": told.port,
                    "pid": os.getpid(),
                }
            ],
        )
        self.write(self.data / STATUS_FILE, ready)
        if self.options.ready_file is not None:
            self.write(self.options.ready_file.absolute(), ready)
        log.info("ready: %s", ready)
        logging.getLogger("kafkalite").removeHandler(self.warnings)
        log_file = self.data / LOG_FILE
        with suppress(OSError):  # that nobody reads it is no reason to end
            print(banner(ready, self.settings, log_file, self.warnings.said), flush=True)

    def write(self, path: Path, ready: Ready) -> None:
        try:
            put_whole(path, text_of(ready))
        except OSError as fault:
            raise Refusal(f"cannot write the ready file {path}: {fault.strerror}") from None
        self.files.append(path)


def remove(path: Path) -> None:
    """Remove a ready file, if it is there and is a file."""
    try:
        path.unlink(missing_ok=True)
    except OSError as fault:
        raise Refusal(f"{path} cannot be the ready file: {fault.strerror}") from None


def reachable(host: str) -> str:
    """An address by which this machine reaches a socket bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def ask_itself(reactor: Reactor, listener: socket.socket, answered: Callable[[], None]) -> None:
    """Send one request to our own listener, and call back when the loop has answered it."""
    host, port = listener.getsockname()[:2]
    client = socket.socket(listener.family)
    client.setblocking(False)
    client.connect_ex((reachable(host), port))

    def ask() -> None:
        try:
            client.send(API_VERSIONS_REQUEST)
        except BlockingIOError:
            # Early clients fill the backlog.  The loop lets them in, the kernel connects again.
            reactor.call_later(ASK_AGAIN_MS, ask)

    def read() -> None:
        reply = client.recv(10)  # size, correlation id, error code: sent in one piece
        reactor.unwatch(client.fileno())
        client.close()
        assert len(reply) == 10 and reply[4:] == bytes(6), f"ApiVersions is answered by {reply!r}"
        answered()

    reactor.watch(client.fileno(), read)
    ask()


def watch_signals(reactor: Reactor, signalled: Callable[[], None]) -> None:
    """Hear SIGTERM, SIGINT and SIGHUP, and wake the loop for them if it waits."""
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    reactor.watch(woken, lambda: os.read(woken, 512))
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: signalled())


def log_to(path: Path) -> None:
    """Let what modules log go to a file that cannot grow without bound."""
    handler = RotatingFileHandler(path, maxBytes=LOG_SIZE_MAX, backupCount=LOG_FILES_KEPT)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("kafkalite")
    root.setLevel(logging.INFO)
    root.propagate = False
    root.handlers = [handler]


class Warnings(logging.Handler):
    """Keeps what is logged as a warning or worse while a broker starts, for the banner to say."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
