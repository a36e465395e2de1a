"""kafkalite: Apache Kafka's whole job on one host.

    cellar    _ext errors clock / config records / protocol          bytes
    broker    storage transport coordination / broker / process      what serves them
    client    client / gateway exporter                              what asks
    roof      cli testing, and this file

This file names what a user imports and loads nothing until a name is used, so that `import
kafkalite` costs neither tower.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite._ext.message_reader import Message
    from kafkalite.client.consumer.async_consumer import AsyncConsumer
    from kafkalite.client.consumer.consumer import Consumer
    from kafkalite.client.net.topology import TopicPartition
    from kafkalite.client.producer.async_producer import AsyncProducer
    from kafkalite.client.producer.producer import Producer
    from kafkalite.testing import Broker

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "Broker",
    "Consumer",
    "Message",
    "Producer",
    "TopicPartition",
    "__version__",
]

__version__ = "0.1.0"

_HOME = {
    "AsyncConsumer": "kafkalite.client.consumer.async_consumer",
    "AsyncProducer": "kafkalite.client.producer.async_producer",
    "Broker": "kafkalite.testing",
    "Consumer": "kafkalite.client.consumer.consumer",
    "Message": "kafkalite._ext.message_reader",
    "Producer": "kafkalite.client.producer.producer",
    "TopicPartition": "kafkalite.client.net.topology",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kafkalite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
