"""Client telemetry (KIP-714): subscriptions of client instances, and their metrics pushes.

    client-metrics resources of the image ─▶ Subscriptions ─ match a client ─▶ its ClientInstance
    a push in time, with the current subscription id ─▶ a datagram ─▶ the exporter

A client gets its subscription, pushes at its interval, and gets a new subscription when the id it
has is out of date.  A subscription id is computed only from the subscription and the client
instance id, so all nodes compute the same one and a client may push to any of them.

Without an exporter, pushes are accepted and dropped: there is no reader for them, and a client that
got an error would only log it.  With one, a push too large for a datagram is rejected with
TelemetryTooLarge, and a push that comes while the exporter is busy is dropped and counted.

Left out: INVALID_RECORD for payloads that are not OTLP: only the exporter parses them, so the node
neither decompresses nor parses what a client sends.
"""

from __future__ import annotations

import errno
import re
import socket
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite._ext.record_batch import crc32c
from kafkalite.config.client_metrics import INTERVAL_MS, MATCH, METRICS, parse_match
from kafkalite.errors import (
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
    UnsupportedCompressionType,
)
from kafkalite.ids import written_id
from kafkalite.metrics import PUSH_SIZE_MAX, Push
from kafkalite.records.compression import Codec

if TYPE_CHECKING:
    from kafkalite.broker.client_context import ClientContext
    from kafkalite.clock import Clock
    from kafkalite.config.key import ConfigKey

CLIENT_METRICS = 16
"""The resource type of a subscription."""
ALL = "*"
INSTANCES_MAX = 16_384
INSTANCE_MS_MIN = 60_000
INSTANCE_INTERVALS = 3
SOFTWARE_MAX = 16_384
LABEL_LENGTH_MAX = 200

NEVER_MS = -(1 << 62)

Configs = Mapping[str, Mapping[str, str]]


class TelemetrySubscription(NamedTuple):
    """A client-metrics resource: the requested metrics, the interval and the client patterns."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, re.Pattern[str]]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether each pattern fully matches the client's attribute."""
        return all(pattern.fullmatch(labels[of]) for of, pattern in self.match.items())


class ClientInstance:
    """One client instance: its subscription, and the times of its last requests."""

    __slots__ = ("interval_ms", "last_get_ms", "last_push_ms", "metrics", "refusal",
                 "subscription_id", "terminating")  # fmt: skip

    def __init__(self, instance_id: bytes, metrics: list[str], interval_ms: int) -> None:
        self.metrics = metrics
        self.interval_ms = interval_ms
        encoded = f"{metrics}{interval_ms}".encode()
        crc = crc32c(encoded) ^ crc32c(instance_id)
        self.subscription_id = crc - (1 << 32) if crc >> 31 else crc
        self.last_get_ms = self.last_push_ms = NEVER_MS
        self.terminating = False
        self.refusal: type[KafkaError] | None = None

    def may_subscribe(self, now_ms: int) -> bool:
        """Return whether the client may get its subscription now; if so, store the time."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Return whether the client may push now; if so, store the time.

        The first push after a get may come at any time, since clients add jitter to it.
        """
        if self.last_get_ms <= self.last_push_ms and (
            now_ms - self.last_push_ms < self.interval_ms
        ):
            return False
        self.last_push_ms = now_ms
        return True

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the instance has expired: it sent no request for several intervals."""
        timeout_ms = max(INSTANCE_MS_MIN, INSTANCE_INTERVALS * self.interval_ms)
        return now_ms - max(self.last_get_ms, self.last_push_ms) > timeout_ms


class PushSender:
    """A non-blocking sender of pushes to the exporter's socket."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PUSH_SIZE_MAX)

    def __call__(self, push: Push) -> bool:
        """Send a push; return whether the exporter's socket accepted it.

        Raises TelemetryTooLarge if the push does not fit into a datagram.
        """
        try:
            self._socket.sendto(push.packed(), self._path)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                raise TelemetryTooLarge() from None
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class ClientTelemetry:
    """The client instances known to this node; see the module."""

    def __init__(self, clock: Clock) -> None:
        self.push_sender: PushSender | None = None
        """Sends pushes to the exporter; None without a run directory."""
        self.counts: Counter[str] = Counter()
        """Number of pushes by result: "taken" or "dropped"."""
        self._clock = clock
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._software: OrderedDict[tuple[str, int], tuple[str, str]] = OrderedDict()
        self._configs: dict[str, dict[str, str]] = {}
        self._subscriptions: list[TelemetrySubscription] = []

    def set_software(self, peer: tuple[str, int], name: str, version: str) -> None:
        """Store the software name and version that a connection sent in ApiVersions."""
        self._software.pop(peer, None)
        self._software[peer] = (name[:LABEL_LENGTH_MAX], version[:LABEL_LENGTH_MAX])
        while len(self._software) > SOFTWARE_MAX:
            self._software.popitem(last=False)

    def configure(self, configs: Mapping[tuple[int, str], Mapping[str, str]]) -> None:
        """Apply the subscriptions of the image; if any changed, remove all client instances.

        A client whose subscription is unaffected gets an instance with the same id again.
        """
        wanted = {
            name: dict(config)
            for (kind, name), config in configs.items()
            if kind == CLIENT_METRICS and config
        }
        if wanted != self._configs:
            self._configs = wanted
            self._subscriptions = [subscription(config) for _, config in sorted(wanted.items())]
            self._instances.clear()

    def subscribe(self, instance_id: bytes, client: ClientContext) -> ClientInstance:
        """Return the client's instance with its subscription.

        Raises ThrottlingQuotaExceeded if the client's push interval has not passed.
        """
        instance = self._instance(instance_id, client)
        must_resubscribe = instance.refusal in (UnknownSubscriptionId, UnsupportedCompressionType)
        if not (instance.may_subscribe(self._clock.monotonic_ms()) or must_resubscribe):
            raise ThrottlingQuotaExceeded("The push interval has not passed yet.")
        instance.refusal = None
        return instance

    def push(self, request: Any, client: ClientContext, size_max: int) -> None:
        """Validate a push and send it to the exporter.

        Raises KafkaError if the push is not valid.
        """
        instance = self._instance(request.client_instance_id, client)
        try:
            self._validate(instance, request, size_max)
            if request.metrics:
                self._export(instance, request, client)
        except KafkaError as error:
            instance.refusal = type(error)
            raise
        finally:
            instance.terminating = request.terminating
        instance.refusal = None

    def _validate(self, instance: ClientInstance, request: Any, size_max: int) -> None:
        if instance.terminating:
            raise InvalidRequest("The client has sent its terminating push; it cannot push again.")
        in_time = instance.may_push(self._clock.monotonic_ms())
        if not (in_time or request.terminating):
            raise ThrottlingQuotaExceeded("The push interval has not passed yet.")
        if request.subscription_id != instance.subscription_id:
            raise UnknownSubscriptionId()
        if not 0 <= request.compression_type <= max(Codec):
            raise UnsupportedCompressionType()
        if len(request.metrics) > size_max:
            raise TelemetryTooLarge()

    def _export(self, instance: ClientInstance, request: Any, client: ClientContext) -> None:
        labels = self._labels_of(request.client_instance_id, client)
        del labels["client_source_port"]  # the instance id identifies the client
        push = Push(labels, request.compression_type, instance.interval_ms, bytes(request.metrics))
        is_sent = self.push_sender is not None and self.push_sender(push)
        self.counts["taken" if is_sent else "dropped"] += 1

    def _instance(self, instance_id: bytes, client: ClientContext) -> ClientInstance:
        instance = self._instances.pop(instance_id, None)
        if instance is None or instance.has_expired(self._clock.monotonic_ms()):
            labels = self._labels_of(instance_id, client)
            matching = [each for each in self._subscriptions if each.matches(labels)]
            metrics = sorted({name for each in matching for name in each.metrics})
            intervals = [each.interval_ms for each in matching]
            instance = ClientInstance(
                instance_id,
                [ALL] if ALL in metrics else metrics,
                min([INTERVAL_MS.default, *intervals]),
            )
        self._instances[instance_id] = instance
        while len(self._instances) > INSTANCES_MAX:
            self._instances.popitem(last=False)
        return instance

    def _labels_of(self, instance_id: bytes, client: ClientContext) -> dict[str, str]:
        """Return the attributes of a client that patterns are matched against."""
        name, version = self._software.get(client.peer, ("", ""))
        host, port = client.peer
        return {
            "client_instance_id": written_id(instance_id),
            "client_id": (client.client_id or "")[:LABEL_LENGTH_MAX],
            "client_software_name": name,
            "client_software_version": version,
            "client_source_address": host,
            "client_source_port": str(port),
        }


def subscription(config: Mapping[str, str]) -> TelemetrySubscription:
    """Return the subscription of a client-metrics resource.

    Patterns are validated when they are set; one that is invalid gives an empty subscription.
    """
    try:
        match = parse_match(value_of(MATCH, config))
    except InvalidConfig:
        return TelemetrySubscription((), INTERVAL_MS.default, {})
    return TelemetrySubscription(value_of(METRICS, config), value_of(INTERVAL_MS, config), match)


def value_of(key: ConfigKey[Any], config: Mapping[str, str]) -> Any:
    """Return the value of a key, or its default."""
    text = config.get(key.name)
    return key.default if text is None else key.parse(text)
