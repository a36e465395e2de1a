"""What clients tell of themselves, if somebody has subscribed to it (KIP-714).

GetTelemetrySubscriptions   v0   which metrics a client is to push, how often, how compressed
PushTelemetry               v0   the client's metrics, as OTLP

They are advertised where somebody would hear: with an exporter, or once a subscription is set.  A
client that finds them asks at once, and some say so to their users.  Without an exporter what is
pushed is accepted and dropped (broker/client_telemetry.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite.broker.handlers import At, Caller, Response, serves
from kafkalite.config.broker import METRICS_LISTENER, TELEMETRY_MAX_BYTES
from kafkalite.config.resources import Resource
from kafkalite.errors import InvalidRequest
from kafkalite.ids import METADATA_ID, NO_ID, new_id
from kafkalite.protocol.schemas.configs import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from kafkalite.records.compression import Codec

if TYPE_CHECKING:
    from kafkalite.broker.node import Node

KEYS = (GET_TELEMETRY_SUBSCRIPTIONS.key, PUSH_TELEMETRY.key)
ACCEPTED = [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]
"""The first is what clients take if they can; to send it as it is they may always."""
RESERVED = (NO_ID, METADATA_ID)


def wanted(node: Node) -> bool:
    """Whether clients are to find that they can tell of themselves."""
    subscribed = any(kind == Resource.CLIENT_METRICS for kind, _ in node.image.configs)
    return subscribed or bool(node.settings[METRICS_LISTENER])


@serves(GET_TELEMETRY_SUBSCRIPTIONS, versions="0", at=At.ANY)
def telemetry_subscriptions(node: Node, request: Any, caller: Caller) -> Response:
    """What this client is to push; one that has no instance id yet is given one."""
    node.telemetry.configure(node.image.configs)
    instance_id = request.client_instance_id
    if instance_id == NO_ID:
        instance_id = new_id()
    instance = node.telemetry.ask(instance_id, caller)
    return {
        "client_instance_id": instance_id,
        "subscription_id": instance.subscription_id,
        "accepted_compression_types": ACCEPTED,
        "push_interval_ms": instance.interval_ms,
        "telemetry_max_bytes": node.settings[TELEMETRY_MAX_BYTES],
        "delta_temporality": True,
        "requested_metrics": instance.metrics,
    }


@serves(PUSH_TELEMETRY, versions="0", at=At.ANY)
def push_telemetry(node: Node, request: Any, caller: Caller) -> Response:
    """Take what a client pushes."""
    if request.client_instance_id in RESERVED:
        raise InvalidRequest("A push names its client's instance id.")
    node.telemetry.configure(node.image.configs)
    node.telemetry.push(request, caller, node.settings[TELEMETRY_MAX_BYTES])
    return {}
