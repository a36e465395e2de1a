"""Service: the declaration of a process that runs beside the broker, a row of the table (table.py).

Every service is a command of kafkalite, on listening sockets that the broker binds if it has any:

    settings ──▶ ServicePlan: its command line, how its sockets are bound
    sockets ───▶ its entry in status.json ───▶ text for banner, log and `kafkalite status`

It is ready when it has printed the line `ready` (service_output.py).  The broker does not wait for
a service that starts on demand, which costs nothing until then.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kafkalite.config.key import ConfigKey
from kafkalite.config.settings import Settings

Listeners = Sequence[socket.socket]


class ServicePlan(NamedTuple):
    """The command line and the sockets with which a configured service is started."""

    arguments: Sequence[str]
    """Command and flags of `kafkalite`, without the data directory and the sockets."""
    bind: Callable[[], list[socket.socket]]
    """Binds the listening sockets; raises Refusal."""


class Service(NamedTuple):
    """A service, whether it is configured or not."""

    name: str
    """In log lines and error texts."""
    key: str
    """In status.json, in the banner, and in the state that a restart carries over."""
    socket_keys: Sequence[ConfigKey[Any]]
    """Configuration keys of the sockets, which no restart can change."""
    plan: Callable[[Settings, bool], ServicePlan | None]
    """Takes the settings and `--insecure`; returns None if the service is not configured, raises
    Refusal if a setting is not allowed."""
    status: Callable[[Listeners], Any]
    """Returns the entry in status.json."""
    describe: Callable[[Any], str]
    """Formats the entry in status.json for people."""
    is_on_demand: bool = False
    """True if it is started only once it is needed (ServiceGroup.demand)."""
    remove_files: Callable[[Listeners], object] = lambda listeners: None
    """Removes the files of the sockets at shutdown, before they are closed."""
