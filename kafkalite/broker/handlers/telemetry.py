"""Client metrics, for the subscriptions that are set (KIP-714).

GetTelemetrySubscriptions   v0   which metrics to push, how often, with which compression
PushTelemetry               v0   the client's metrics, as OTLP

Both APIs are advertised only with a metrics listener or once a subscription is set: a client that
finds them sends a request at once, and some report that to their users.  Without an exporter,
pushed metrics are accepted and dropped (broker/client_telemetry.py).
"""

from __future__ import annotations

from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.client_telemetry import ClientTelemetry
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.config.broker import METRICS_LISTENER, TELEMETRY_MAX_BYTES
from kafkalite.config.resources import Resource
from kafkalite.errors import InvalidRequest
from kafkalite.ids import METADATA_ID, NO_ID, new_id
from kafkalite.protocol.schemas.configs import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from kafkalite.records.compression import Codec

KEYS = (GET_TELEMETRY_SUBSCRIPTIONS.key, PUSH_TELEMETRY.key)
ACCEPTED = [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]
"""In order of preference: clients take the first they support.  Uncompressed is always allowed."""
RESERVED = (NO_ID, METADATA_ID)


def wanted(node: TelemetryNode) -> bool:
    """Return whether to advertise the telemetry APIs."""
    subscribed = any(kind == Resource.CLIENT_METRICS for kind, _ in node.image.configs)
    return subscribed or bool(node.settings[METRICS_LISTENER])


class TelemetryNode(HandlerNode, Protocol):
    """The components that telemetry requests use."""

    telemetry: ClientTelemetry


@serves(GET_TELEMETRY_SUBSCRIPTIONS, versions="0", at=ServingNode.ANY)
def telemetry_subscriptions(node: TelemetryNode, request: Any, client: ClientContext) -> Response:
    """Return the client's subscription, with a new instance id if the client has none."""
    node.telemetry.configure(node.image.configs)
    instance_id = request.client_instance_id
    if instance_id == NO_ID:
        instance_id = new_id()
    instance = node.telemetry.subscribe(instance_id, client)
    return {
        "client_instance_id": instance_id,
        "subscription_id": instance.subscription_id,
        "accepted_compression_types": ACCEPTED,
        "push_interval_ms": instance.interval_ms,
        "telemetry_max_bytes": node.settings[TELEMETRY_MAX_BYTES],
        "delta_temporality": True,
        "requested_metrics": instance.metrics,
    }


@serves(PUSH_TELEMETRY, versions="0", at=ServingNode.ANY)
def push_telemetry(node: TelemetryNode, request: Any, client: ClientContext) -> Response:
    """Accept a client's metrics."""
    if request.client_instance_id in RESERVED:
        raise InvalidRequest("The client instance id is missing.")
    node.telemetry.configure(node.image.configs)
    node.telemetry.push(request, client, node.settings[TELEMETRY_MAX_BYTES])
    return {}
