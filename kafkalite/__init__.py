"""kafkalite: a Kafka broker, clients and services for one host.

    foundation  _ext errors clock … / config records / protocol http   bytes, declarations
    broker      storage transport coordination / broker / process      serves requests
    client      client / gateway exporter                              sends requests
    top         cli testing, and this module

This module exports the public names and imports each one when it is first used, so that `import
kafkalite` loads neither broker nor client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite._ext.message_reader import Message
    from kafkalite.client.admin.admin import Admin
    from kafkalite.client.consumer.async_consumer import AsyncConsumer
    from kafkalite.client.consumer.consumer import Consumer
    from kafkalite.client.consumer.range_reader import RangeReader, RecordsLost
    from kafkalite.client.net.group_metadata import GroupMetadata
    from kafkalite.client.net.producer_identity import ProducerIdentity
    from kafkalite.client.net.topology import TopicPartition
    from kafkalite.client.producer.async_producer import AsyncProducer
    from kafkalite.client.producer.producer import Producer
    from kafkalite.client.share.async_share_consumer import AsyncShareConsumer
    from kafkalite.client.share.share_consumer import ShareConsumer
    from kafkalite.client.share.share_messages import ShareBatch, ShareMessage
    from kafkalite.config.client_keywords import (
        ConsumerConfig,
        ProducerConfig,
        ShareConsumerConfig,
    )
    from kafkalite.testing import Broker
    from kafkalite.version import __version__

__all__ = [
    "Admin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncShareConsumer",
    "Broker",
    "Consumer",
    "ConsumerConfig",
    "GroupMetadata",
    "Message",
    "Producer",
    "ProducerConfig",
    "ProducerIdentity",
    "RangeReader",
    "RecordsLost",
    "ShareBatch",
    "ShareConsumer",
    "ShareConsumerConfig",
    "ShareMessage",
    "TopicPartition",
    "__version__",
]

_HOME = {
    "Admin": "kafkalite.client.admin.admin",
    "AsyncConsumer": "kafkalite.client.consumer.async_consumer",
    "AsyncProducer": "kafkalite.client.producer.async_producer",
    "AsyncShareConsumer": "kafkalite.client.share.async_share_consumer",
    "Broker": "kafkalite.testing",
    "Consumer": "kafkalite.client.consumer.consumer",
    "ConsumerConfig": "kafkalite.config.client_keywords",
    "GroupMetadata": "kafkalite.client.net.group_metadata",
    "Message": "kafkalite._ext.message_reader",
    "Producer": "kafkalite.client.producer.producer",
    "ProducerConfig": "kafkalite.config.client_keywords",
    "ProducerIdentity": "kafkalite.client.net.producer_identity",
    "RangeReader": "kafkalite.client.consumer.range_reader",
    "RecordsLost": "kafkalite.client.consumer.range_reader",
    "ShareBatch": "kafkalite.client.share.share_messages",
    "ShareConsumer": "kafkalite.client.share.share_consumer",
    "ShareConsumerConfig": "kafkalite.config.client_keywords",
    "ShareMessage": "kafkalite.client.share.share_messages",
    "TopicPartition": "kafkalite.client.net.topology",
    "__version__": "kafkalite.version",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kafkalite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
