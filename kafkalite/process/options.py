"""Options: the command line of a broker, and the settings and paths that follow from it.

Invalid values are refused here, before anything is bound, created or forked.
"""

from __future__ import annotations

import ipaddress
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kafkalite.config.broker import GATEWAY_LISTENER, LISTENERS, LOG_DIRS, METRICS_LISTENER, WORKERS
from kafkalite.config.listener import Listener, parse_listener
from kafkalite.config.settings import Settings, read_properties
from kafkalite.config.topic import DURABILITY
from kafkalite.errors import InvalidConfig, Refusal
from kafkalite.process.status.ready import default_data_directory
from kafkalite.storage.manager.log_directories import LogDirectories

PORT_MAX = 65_535
WORKERS_MIN = 3
"""Default minimum: with fewer cores than this, a replication factor of 3 still works."""


class Options(NamedTuple):
    """Values of the command line; None if not given."""

    listen: str | None = None
    data: Path | None = None
    log_dirs: Sequence[Path] = ()
    """The directories after the first, if `data` is given several times."""
    without_dirs: Sequence[Path] = ()
    workers: int | None = None
    durability: str | None = None
    ready_file: Path | None = None
    config: Path | None = None
    overrides: Mapping[str, str] = {}
    insecure: bool = False
    metrics: str | None = None
    gateway: str | None = None


def settings_of(options: Options) -> Settings:
    """Return the settings: flags override `-o`, which overrides the config file."""
    static = read_properties(options.config) if options.config else {}
    static |= options.overrides
    if options.listen is not None:
        _, colon, port = options.listen.rpartition(":")
        if not colon or not port.isdecimal() or "://" in options.listen:
            raise Refusal(f"--listen must be HOST:PORT, not {options.listen!r}")
        static[LISTENERS.name] = f"PLAINTEXT://{options.listen}"
    if options.metrics is not None:
        static[METRICS_LISTENER.name] = options.metrics
    if options.gateway is not None:
        static[GATEWAY_LISTENER.name] = options.gateway
    if options.durability is not None:
        static[DURABILITY.name] = options.durability
    if options.workers is not None:
        static[WORKERS.name] = str(options.workers)
    try:
        return Settings.broker(static)
    except InvalidConfig as error:
        raise Refusal(f"{error} (kafkalite config keys lists what may be set)") from None


def listen_address(settings: Settings, insecure: bool) -> Listener:
    """Return the address to listen on; raise Refusal for one that other machines can reach, unless
    `insecure` is set."""
    address = parse_listener(settings[LISTENERS][0])
    if not (insecure or is_loopback(address.host)):
        raise Refusal(
            f"{address.host or 'every address'} can be reached from other machines, whose"
            " clients could read and write every topic; listen on 127.0.0.1, or add --insecure"
        )
    return address


def metrics_address(text: str | None, insecure: bool) -> Listener | None:
    """Parse HOST:PORT; raise Refusal for an address that other machines can reach, unless
    `insecure` is set."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise Refusal(f"metrics.listener must be HOST:PORT, not {text!r}")
    if not (insecure or is_loopback(host)):
        raise Refusal(
            f"{host or 'every address'} can be reached from other machines, which could read the"
            " names of topics, groups and clients; serve metrics on 127.0.0.1, or add --insecure"
        )
    return Listener(host, int(port))


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_workers(directory_count: int = 1) -> int:
    """Return the default number of workers: one for each core, but enough for replicas and for one
    in each log directory."""
    return max(WORKERS_MIN, len(os.sched_getaffinity(0)), directory_count)


def ready_file(options: Options) -> Path | None:
    """Return the absolute path of the ready file, or None."""
    if options.ready_file is None:
        return None
    path = options.ready_file.absolute()
    if not path.parent.is_dir():
        raise Refusal(
            f"the directory of the ready file {options.ready_file} does not exist; create it"
        )
    return path


def log_directories(options: Options, settings: Settings) -> LogDirectories:
    """Return the configured log directories, or the user's own: $XDG_DATA_HOME/kafkalite.

    Raises Refusal if they cannot be used together.
    """
    paths = [Path(path) for path in settings[LOG_DIRS]] or [default_data_directory()]
    if options.data is not None:
        paths = [options.data, *options.log_dirs]
    try:
        return LogDirectories(
            [path.absolute() for path in paths], [path.absolute() for path in options.without_dirs]
        )
    except OSError as error:
        raise Refusal(
            f"{error.filename} cannot be read: {error.strerror}; if its disk has failed, start"
            " with --without-dir and the directory of log.dirs that it is in"
        ) from None


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors to its maximum: each segment and connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
