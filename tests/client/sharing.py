"""Shared code of the share consumers' tests: groups, and records for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any

from kafkalite.client.admin.admin import Admin
from kafkalite.client.share.share_consumer import ShareConsumer
from tests.client.consuming import TIMEOUT_S, produce

SHORT_TIMES = {
    "group.share.heartbeat.interval.ms": "100",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.min.record.lock.duration.ms": "1000",
}
"""Configuration of a broker whose share groups settle quickly."""


class SharingCluster:
    """A broker, its topics, and groups that begin at the first record."""

    def __init__(self, bootstrap: str, topic: Callable[..., str]) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self._groups = count(1)

    def group(self, **config: Any) -> str:
        """Return the name of a new group with this configuration."""
        name = f"group-{os.getpid()}-{next(self._groups)}"
        values = {"share.auto.offset.reset": "earliest"}
        values |= {key.replace("_", "."): str(value) for key, value in config.items()}
        with Admin(self.bootstrap) as admin:
            admin.alter_config("group", name, values)
        return name

    def produce(self, topic: str, values: list[bytes], **options: Any) -> None:
        produce(self.bootstrap, topic, values, **options)

    def consumer(self, topic: str, group: str, **options: Any) -> ShareConsumer:
        options.setdefault("fetch_max_wait_ms", 50)  # which close() waits for
        return ShareConsumer(self.bootstrap, topics=topic, group=group, **options)


def collect(consumer: ShareConsumer, number: int) -> list[Any]:
    """Return this many messages, waiting for each; each call accepts those of the one before."""
    messages: list[Any] = []
    while len(messages) < number:
        found = consumer.consume(number - len(messages), TIMEOUT_S)
        assert found, f"{len(messages)} of {number} came"
        messages += found
    return messages


def values(messages: list[Any]) -> list[bytes]:
    return [message.value for message in messages]
