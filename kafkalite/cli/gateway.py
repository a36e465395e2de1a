"""kafkalite gateway: accept messages over ZeroMQ and produce them to a broker."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.cli.broker import DATA, JSON, data_directory
from kafkalite.cli.command import argument, command, key_value, print_stderr
from kafkalite.errors import InvalidConfig, Refusal

if TYPE_CHECKING:
    from kafkalite.config.settings import Settings
    from kafkalite.gateway.batch_forwarder import BatchProducer
    from kafkalite.gateway.gateway_main import GatewayListener, TargetBroker


@command(
    DATA,
    argument(
        "--listen",
        metavar="ENDPOINT",
        default="tcp://127.0.0.1:5555",
        help="endpoint for PUSH sockets (default tcp://127.0.0.1:5555); DEALER: the next port",
    ),
    argument(
        "-o",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=key_value,
        help="set a configuration key; may be repeated (see: kafkalite config keys gateway)",
    ),
    argument(
        "--insecure",
        action="store_true",
        help="allow listening on addresses that other machines can reach, without CURVE keys",
    ),
    argument(
        "--descriptors",
        metavar="N,M",
        help="serve on these inherited sockets until the end of stdin (for start --gateway)",
    ),
)
def serve(
    data: Path | None,
    listen: str,
    overrides: list[tuple[str, str]],
    insecure: bool,
    descriptors: str | None,
) -> int:
    """Accept messages over ZeroMQ and produce them to a broker, until SIGTERM or Ctrl-C.

    `kafkalite start --gateway ENDPOINT` starts and stops it with the broker.

    Examples:
      kafkalite gateway serve
      kafkalite gateway serve --data /tmp/try --listen ipc:///tmp/try.sock
    """
    from kafkalite.gateway.gateway_main import serve as serve_gateway
    from kafkalite.process.log_file import LOG_FILE, log_to
    from kafkalite.process.services.gateway_service import (
        bind_gateway,
        gateway_endpoints,
        remove_paths,
    )
    from kafkalite.process.services.service_output import report_ready

    directory = data_directory(data)
    texts = dict(overrides)
    texts.setdefault("gateway.listener", listen)
    settings = settings_of(texts)
    if descriptors is not None:
        log_to(directory / LOG_FILE, "gateway")
        sockets = [socket.socket(fileno=int(number)) for number in descriptors.split(",")]
        return serve_gateway(
            listening(sockets), settings, lambda: broker_on(directory),
            lambda bootstrap: producer(bootstrap, settings), sys.stdin.fileno(),
            report_ready,
        )  # fmt: skip
    endpoints = gateway_endpoints(settings, insecure)
    assert endpoints is not None
    if not directory.is_dir():
        raise Refusal(
            f"{directory} does not exist; specify the broker's data directory with --data"
        )
    sockets = bind_gateway(endpoints, "--listen")
    log_to(directory / LOG_FILE, "gateway")
    where = listening(sockets)
    print_stderr(f"gateway at {where[0].endpoint} (PUSH), {where[1].endpoint} (DEALER)")
    try:
        return serve_gateway(
            where, settings, lambda: broker_on(directory),
            lambda bootstrap: producer(bootstrap, settings), None,
        )  # fmt: skip
    finally:
        remove_paths(sockets)


@command(
    argument("name", help="name of the key files"),
    argument(
        "--directory",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="directory of NAME.key and NAME.key_secret (default: the current one)",
    ),
    JSON,
)
def keys(name: str, directory: Path, as_json: bool) -> int:
    """Create a CURVE key pair: the public key NAME.key and the secret key NAME.key_secret.

    The gateway has one key pair, and each client its own.  gateway.curve.clients is a directory
    with the public key of each client that may connect.

    Examples:
      kafkalite gateway keys server
      kafkalite gateway keys sensor-7 --directory clients
    """
    from kafkalite.gateway.curve import make_keys, own_keys

    if not name.isprintable() or "/" in name or name.startswith("."):
        raise Refusal(f"{name!r} is not a valid file name: use letters, digits, '-', '_' and '.'")
    secret = make_keys(directory, name)
    public, _ = own_keys(secret)
    if as_json:
        print(json.dumps({"public": public.decode(), "secret_file": str(secret)}))
    else:
        print(f"public key  {public.decode()}")
        print(f"files       {secret.with_suffix('.key')}, {secret}")
    return 0


def settings_of(texts: dict[str, str]) -> Settings:
    """Return the gateway's settings; raise Refusal if one is invalid."""
    from kafkalite.config.settings import Settings

    try:
        return Settings.broker(texts)
    except InvalidConfig as error:
        raise Refusal(f"{error} (see: kafkalite config keys gateway)") from None


def listening(sockets: list[socket.socket]) -> list[GatewayListener]:
    """Return the bound sockets, each with its endpoint."""
    from kafkalite.gateway.gateway_main import GatewayListener
    from kafkalite.process.services.gateway_service import endpoint_of

    for each in sockets:
        os.set_inheritable(each.fileno(), False)
    return [GatewayListener(each, endpoint_of(each)) for each in sockets]


def producer(bootstrap: str, settings: Settings) -> BatchProducer:
    """Return the gateway's producer."""
    from kafkalite.gateway.gateway_producer import create_producer

    return create_producer(bootstrap, settings)


def broker_on(directory: Path) -> TargetBroker | None:
    """Return the broker on a data directory if one runs and is ready."""
    from kafkalite.gateway.gateway_main import TargetBroker
    from kafkalite.process.run_directory import bus_path
    from kafkalite.process.status.ready import running

    try:
        ready = running(directory)
        if ready is None:
            return None
        return TargetBroker(ready["bootstrap"], bus_path(ready).parent)
    except (Refusal, OSError, KeyError, TypeError):
        return None
