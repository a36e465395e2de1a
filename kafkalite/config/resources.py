"""Resources: the kinds of resources that have configuration, and the keys of each.

A logger's key is its name, and the value the lowest level of its log lines.
"""

from __future__ import annotations

import enum

from kafkalite.config.broker import BROKER
from kafkalite.config.client_metrics import CLIENT_METRICS
from kafkalite.config.group import GROUP
from kafkalite.config.key import Scope, Type, UpdateMode, one_of
from kafkalite.config.topic import TOPIC


class Resource(enum.IntEnum):
    """A kind of resource; the numbers are those of the config APIs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


LOGGER = Scope("broker's logger", UpdateMode.CLUSTER_WIDE)
LEVELS = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
"""Kafka's names of levels, with the numbers of Python's logging."""

ROOT_LOGGER = LOGGER.declare(
    "kafkalite", Type.STRING, "INFO",
    """Log level of the loggers that have none of their own.""",
    check=one_of(*LEVELS),
)
for name in ("broker", "process", "storage", "transport"):
    LOGGER.declare(
        f"{ROOT_LOGGER.name}.{name}", Type.STRING, None,
        f"""Log level of the package kafkalite.{name}.""",
        check=one_of(*LEVELS),
    )

SCOPES: dict[Resource, Scope] = {
    Resource.TOPIC: TOPIC,
    Resource.BROKER: BROKER,
    Resource.BROKER_LOGGER: LOGGER,
    Resource.CLIENT_METRICS: CLIENT_METRICS,
    Resource.GROUP: GROUP,
}
