"""The producer of the gateway."""

from __future__ import annotations

from kafkalite.client.producer.producer import Producer
from kafkalite.config.broker import (
    GATEWAY_ACKS,
    GATEWAY_BUFFER_MEMORY,
    GATEWAY_COMPRESSION_TYPE,
)
from kafkalite.config.settings import Settings
from kafkalite.gateway.batch_forwarder import BatchProducer

CLIENT_ID = "kafkalite-gateway"
DELIVERY_TIMEOUT_MS = 30_000
"""Delivery timeout: short, since a DEALER waits for the outcome and the memory is needed."""


def create_producer(bootstrap: str, settings: Settings) -> BatchProducer:
    """Return a producer that accepts whole batches, and fails at once when it has no room."""
    return Producer(
        bootstrap,
        client_id=CLIENT_ID,
        acks=settings[GATEWAY_ACKS],
        buffer_memory=settings[GATEWAY_BUFFER_MEMORY],
        compression_type=settings[GATEWAY_COMPRESSION_TYPE],
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        linger_ms=0,
        max_block_ms=0,
    )
