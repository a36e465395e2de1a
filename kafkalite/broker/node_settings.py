"""NodeSettings: the effective settings of one node, and the callbacks on their change.

    config file and flags ────────────────────────────────────┐
    metadata log: configs of all brokers and of this broker ──┴─▶ Settings ─▶ callbacks

Cluster-only keys set on node 0 count as defaults of all brokers.

Code that reads `node.settings` at each use needs no callback.  The levels of the node's loggers are
set in the same way, by records of the metadata log; unlike Kafka's, they persist across restarts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.config.broker import (
    BROKER,
    CONNECTIONS_MAX_IDLE_MS,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    QUEUED_MAX_REQUEST_BYTES,
    QUEUED_MAX_RESPONSE_BYTES,
    SOCKET_RECEIVE_BUFFER_BYTES,
    SOCKET_REQUEST_MAX_BYTES,
    SOCKET_SEND_BUFFER_BYTES,
    WORKER_DEDICATED_MAX,
    WORKERS,
    WORKERS_LEADING,
    WORKERS_MAX,
)
from kafkalite.config.key import UpdateMode
from kafkalite.config.replication import (
    REPLICA_FETCH_BACKOFF_MS,
    REPLICA_FETCH_MAX_BYTES,
    REPLICA_FETCH_MIN_BYTES,
    REPLICA_FETCH_RESPONSE_MAX_BYTES,
    REPLICA_FETCH_WAIT_MAX_MS,
)
from kafkalite.config.resources import LEVELS, LOGGER, Resource
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.placement import PlacementLimits
from kafkalite.errors import InvalidConfig
from kafkalite.transport.reactor import ReactorLimits

if TYPE_CHECKING:
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.image import ClusterImage

log = logging.getLogger("kafkalite.broker")

SettingsListener = Callable[["Settings"], object]


def effective_settings(static: Settings, image: ClusterImage, node_id: int) -> Settings:
    """Return the effective settings of a node: dynamic configs override its static settings."""
    first, own = (
        _valid_configs(image.config_of(Resource.BROKER, str(n))) for n in (SUPERVISOR_ID, node_id)
    )
    default = _valid_configs(image.config_of(Resource.BROKER, ""))
    if node_id != SUPERVISOR_ID:
        for name, text in first.items():
            if BROKER[name].update is UpdateMode.CLUSTER_ONLY:
                default[name] = text
    return static.with_dynamic(default, own)


def _valid_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the configs valid in this version; another version may have written the others."""
    known = {}
    for name, text in configs.items():
        try:
            BROKER.named(name).parse(text)
        except InvalidConfig as error:
            log.warning(
                "Config is not valid in this version; ignoring it. key=%s error=%r",
                name,
                str(error),
            )
        else:
            known[name] = text
    return known


def reactor_limits(settings: Settings) -> ReactorLimits:
    """Return the event loop's limits from the settings."""
    return ReactorLimits(
        frame_size_max=settings[SOCKET_REQUEST_MAX_BYTES],
        queued_sum_max=settings[QUEUED_MAX_RESPONSE_BYTES],
        held_size_max=settings[QUEUED_MAX_REQUEST_BYTES],
        idle_ms_max=settings[CONNECTIONS_MAX_IDLE_MS],
        connections_max=settings[MAX_CONNECTIONS],
        connections_per_address_max=settings[MAX_CONNECTIONS_PER_IP],
        send_buffer_size=settings[SOCKET_SEND_BUFFER_BYTES],
        receive_buffer_size=settings[SOCKET_RECEIVE_BUFFER_BYTES],
    )


def placement_limits(settings: Settings) -> PlacementLimits:
    """Return the placement limits in the supervisor's settings."""
    leading_max = settings[WORKERS_LEADING]
    is_default = leading_max is None
    if leading_max is None:
        # On two cores shared with the clients, one leading worker has 1.5 times the throughput of
        # three.
        cores = len(os.sched_getaffinity(0))
        leading_max = max(1, cores // 2) if settings[WORKERS] is None else WORKERS_MAX
    return PlacementLimits(settings[WORKER_DEDICATED_MAX], leading_max, is_default)


class ReplicaFetchSettings(NamedTuple):
    """Settings of the fetches of a node from the leaders of the partitions that it follows."""

    wait_max_ms: int
    min_bytes: int
    partition_max_bytes: int
    response_max_bytes: int
    backoff_max_ms: int

    @classmethod
    def of(cls, settings: Settings) -> ReplicaFetchSettings:
        """Return what the settings of a node have."""
        return cls(
            settings[REPLICA_FETCH_WAIT_MAX_MS],
            settings[REPLICA_FETCH_MIN_BYTES],
            settings[REPLICA_FETCH_MAX_BYTES],
            settings[REPLICA_FETCH_RESPONSE_MAX_BYTES],
            settings[REPLICA_FETCH_BACKOFF_MS],
        )


class NodeSettings:
    """The settings of one node; see the module."""

    def __init__(self, static: Settings, node_id: int, image: ClusterImage) -> None:
        self.current = effective_settings(static, image, node_id)
        self._static = static
        self._node_id = node_id
        self._listeners: list[SettingsListener] = []
        own_levels = image.config_of(Resource.BROKER_LOGGER, str(node_id))
        if own_levels:
            set_levels(own_levels)

    def add_listener(self, listener: SettingsListener) -> None:
        """Call `listener(settings)` now and after each change."""
        self._listeners.append(listener)
        listener(self.current)

    def apply_change(self, kind: int, name: str, image: ClusterImage) -> None:
        """Apply a config change of a resource, if it concerns this node."""
        if kind == Resource.BROKER and name in ("", str(SUPERVISOR_ID), str(self._node_id)):
            self.current = effective_settings(self._static, image, self._node_id)
            for listener in self._listeners:
                listener(self.current)
        elif kind == Resource.BROKER_LOGGER and name == str(self._node_id):
            set_levels(image.config_of(kind, name))


# -- loggers -------------------------------------------------------------------------------------


def set_levels(configs: Mapping[str, str]) -> None:
    """Set the levels of all loggers; those without a level get their default."""
    for key in LOGGER.values():
        word = configs.get(key.name, key.default)
        logging.getLogger(key.name).setLevel(LEVELS.get(word, logging.NOTSET))


def logger_levels() -> dict[str, str]:
    """Return the effective level of each logger, with Kafka's level names."""
    return {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in LOGGER}


def _level_name(level: int) -> str:
    return next((word for word, least in LEVELS.items() if level >= least), "TRACE")
