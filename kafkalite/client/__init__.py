"""The native client: a producer and a consumer of rows and of Arrow columns.

    producer/    Producer, AsyncProducer; partition queues, batches, the send loop, transports
    consumer/    Consumer, AsyncConsumer, RangeReader; fetches, direct reads, decoding, tables
    share/       ShareConsumer, AsyncShareConsumer: members of share groups
    admin/       Admin: topics, configurations, groups and offsets
    group/       membership of a group: state machines, heartbeat thread
    decoding/    record sets, decoded into messages and columns
    net/         the cluster's metadata, connections, the local socket, deadlines, settings

`producer`, `consumer`, `share` and `admin` import the others, and not each other.  The client knows
a broker by its wire protocol alone, over TCP or the local socket, so it works against any Kafka.  A
Producer has one thread of its own, and so has a consumer that is a member of a group.

`import kafkalite` has the public classes.  This module exports the types and functions that go with
them, for libraries built on the client; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite.client.admin.config_requests import ConfigValue
    from kafkalite.client.admin.group_requests import (
        GroupDescription,
        GroupListing,
        MemberDescription,
    )
    from kafkalite.client.admin.share_requests import ShareOffset
    from kafkalite.client.net.cluster import ClientClosed
    from kafkalite.client.net.settings import consumer_settings, producer_keys, producer_settings
    from kafkalite.client.net.topology import TopicMetadata
    from kafkalite.client.producer.column_batches import Deliveries

__all__ = [
    "ClientClosed",
    "ConfigValue",
    "Deliveries",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "ShareOffset",
    "TopicMetadata",
    "consumer_settings",
    "producer_keys",
    "producer_settings",
]

_HOME = {
    "ClientClosed": "kafkalite.client.net.cluster",
    "ConfigValue": "kafkalite.client.admin.config_requests",
    "Deliveries": "kafkalite.client.producer.column_batches",
    "GroupDescription": "kafkalite.client.admin.group_requests",
    "GroupListing": "kafkalite.client.admin.group_requests",
    "MemberDescription": "kafkalite.client.admin.group_requests",
    "ShareOffset": "kafkalite.client.admin.share_requests",
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
