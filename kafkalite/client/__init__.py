"""The native client: a producer and a consumer of rows and of Arrow columns.

    producer/    Producer, AsyncProducer; partition queues, batches, the send loop, transports
    consumer/    Consumer, AsyncConsumer, RangeReader; fetches, direct reads, decoding, tables
    admin/       Admin: metadata, offsets and log sizes
    net/         the cluster's metadata, connections, the local socket, deadlines, settings

`producer`, `consumer` and `admin` import `net`, and not each other.  The client knows a broker by
its wire protocol alone, over TCP or the local socket, so it works against any Kafka.  A Producer
has one thread of its own; a Consumer has none.

`import kafkalite` has the public classes.  This module exports the types and functions that go with
them, for libraries built on the client; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite.client.net.cluster import ClientClosed
    from kafkalite.client.net.settings import consumer_settings, producer_keys, producer_settings
    from kafkalite.client.net.topology import TopicMetadata
    from kafkalite.client.producer.column_batches import Deliveries

__all__ = [
    "ClientClosed",
    "Deliveries",
    "TopicMetadata",
    "consumer_settings",
    "producer_keys",
    "producer_settings",
]

_HOME = {
    "ClientClosed": "kafkalite.client.net.cluster",
    "Deliveries": "kafkalite.client.producer.column_batches",
    "TopicMetadata": "kafkalite.client.net.topology",
    "consumer_settings": "kafkalite.client.net.settings",
    "producer_keys": "kafkalite.client.net.settings",
    "producer_settings": "kafkalite.client.net.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kafkalite.client' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
