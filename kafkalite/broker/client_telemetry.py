"""Client telemetry (KIP-714): which clients are asked for which metrics, and what they push.

    client-metrics resources of the image ─▶ Subscriptions ─ match a client ─▶ its Instance
    a push that is due, under the subscription it was given ─▶ a datagram ─▶ the exporter

A client asks for its subscription, then pushes in its interval, and asks again when what it was
given is no longer what it should have.  The id of a subscription follows from what it says and from
the client alone, so every node gives the same one and a client may push to another than it asked.

Without an exporter what is pushed is accepted and dropped: nobody is there to see it, and a client
that was refused would only log that.  With one, what is too large for a datagram is refused as too
large, and what comes while it is busy is dropped and counted.

Left out: INVALID_RECORD for what is no OTLP, which only the exporter opens; so the node need
neither decompress nor parse what a client sends.
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
    from kafkalite.broker.handlers import Caller
    from kafkalite.clock import Clock
    from kafkalite.config.key import Key

CLIENT_METRICS = 16
"""The resource type of a subscription."""
ALL = "*"
INSTANCES_MAX = 16_384
KEPT_MS_MIN = 60_000
KEPT_INTERVALS = 3
NAMED_MAX = 16_384
WORD_LENGTH_MAX = 200

LONG_AGO = -(1 << 62)

Configs = Mapping[str, Mapping[str, str]]


class Subscription(NamedTuple):
    """What a client-metrics resource asks for, of whom."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, re.Pattern[str]]

    def matches(self, client: Mapping[str, str]) -> bool:
        """Whether it asks this client: each pattern matches in full."""
        return all(pattern.fullmatch(client[of]) for of, pattern in self.match.items())


class Instance:
    """One client instance: what it was given, and when it was heard last."""

    __slots__ = ("fault", "interval_ms", "last_get_ms", "last_push_ms", "metrics",
                 "subscription_id", "terminating")  # fmt: skip

    def __init__(self, instance_id: bytes, metrics: list[str], interval_ms: int) -> None:
        self.metrics = metrics
        self.interval_ms = interval_ms
        said = f"{metrics}{interval_ms}".encode()
        crc = crc32c(said) ^ crc32c(instance_id)
        self.subscription_id = crc - (1 << 32) if crc >> 31 else crc
        self.last_get_ms = self.last_push_ms = LONG_AGO
        self.terminating = False
        self.fault: type[KafkaError] | None = None

    def may_ask(self, now_ms: int) -> bool:
        """Whether it is time to ask for the subscription; noted if it is."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Whether it is time to push; noted if it is.  The first push after a subscription was
        given may come at any time, since clients spread them."""
        if self.last_get_ms <= self.last_push_ms and (
            now_ms - self.last_push_ms < self.interval_ms
        ):
            return False
        self.last_push_ms = now_ms
        return True

    def forgotten(self, now_ms: int) -> bool:
        """Whether it was silent for so long that it begins anew."""
        kept_ms = max(KEPT_MS_MIN, KEPT_INTERVALS * self.interval_ms)
        return now_ms - max(self.last_get_ms, self.last_push_ms) > kept_ms


class Pusher:
    """Hands pushes to the exporter, if there is one; never waits."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PUSH_SIZE_MAX)

    def __call__(self, push: Push) -> bool:
        """Whether it was taken; TelemetryTooLarge when it never could be."""
        try:
            self._socket.sendto(push.packed(), self._path)
        except OSError as fault:
            if fault.errno == errno.EMSGSIZE:
                raise TelemetryTooLarge() from None
            return False
        return True

    def close(self) -> None:
        """Nothing is handed on any more."""
        self._socket.close()


class ClientTelemetry:
    """The client instances that this node heard of; see the module."""

    def __init__(self, clock: Clock) -> None:
        self.deliver: Pusher | None = None
        """Given by whoever knows where an exporter listens."""
        self.counts: Counter[str] = Counter()
        """Pushes that were taken, and those that were dropped."""
        self._clock = clock
        self._instances: OrderedDict[bytes, Instance] = OrderedDict()
        self._software: OrderedDict[tuple[str, int], tuple[str, str]] = OrderedDict()
        self._configs: dict[str, dict[str, str]] = {}
        self._subscriptions: list[Subscription] = []

    def named(self, peer: tuple[str, int], name: str, version: str) -> None:
        """A connection said which software is behind it."""
        self._software.pop(peer, None)
        self._software[peer] = (name[:WORD_LENGTH_MAX], version[:WORD_LENGTH_MAX])
        while len(self._software) > NAMED_MAX:
            self._software.popitem(last=False)

    def configure(self, configs: Mapping[tuple[int, str], Mapping[str, str]]) -> None:
        """Take the subscriptions as the image has them now; those whose clients are given
        something else by it begin anew."""
        wanted = {
            name: dict(config)
            for (kind, name), config in configs.items()
            if kind == CLIENT_METRICS and config
        }
        if wanted != self._configs:
            self._configs = wanted
            self._subscriptions = [subscription(config) for _, config in sorted(wanted.items())]
            self._instances.clear()

    def ask(self, instance_id: bytes, caller: Caller) -> Instance:
        """What this client is to push; ThrottlingQuotaExceeded when it asks too often."""
        instance = self._instance(instance_id, caller)
        told_to = instance.fault in (UnknownSubscriptionId, UnsupportedCompressionType)
        if not (instance.may_ask(self._clock.monotonic_ms()) or told_to):
            raise ThrottlingQuotaExceeded("It asks again before its push interval has passed.")
        instance.fault = None
        return instance

    def push(self, request: Any, caller: Caller, size_max: int) -> None:
        """Take a push, or raise what is wrong with it."""
        instance = self._instance(request.client_instance_id, caller)
        try:
            self._judge(instance, request, size_max)
            if request.metrics:
                self._pass_on(instance, request, caller)
        except KafkaError as fault:
            instance.fault = type(fault)
            raise
        finally:
            instance.terminating = request.terminating
        instance.fault = None

    def _judge(self, instance: Instance, request: Any, size_max: int) -> None:
        if instance.terminating:
            raise InvalidRequest("The client said with its last push that it ends.")
        in_time = instance.may_push(self._clock.monotonic_ms())
        if not (in_time or request.terminating):
            raise ThrottlingQuotaExceeded("It pushes again before its push interval has passed.")
        if request.subscription_id != instance.subscription_id:
            raise UnknownSubscriptionId()
        if not 0 <= request.compression_type <= max(Codec):
            raise UnsupportedCompressionType()
        if len(request.metrics) > size_max:
            raise TelemetryTooLarge()

    def _pass_on(self, instance: Instance, request: Any, caller: Caller) -> None:
        client = self._client(request.client_instance_id, caller)
        del client["client_source_port"]  # the instance's id tells clients apart, for good
        push = Push(client, request.compression_type, instance.interval_ms, bytes(request.metrics))
        taken = self.deliver is not None and self.deliver(push)
        self.counts["taken" if taken else "dropped"] += 1

    def _instance(self, instance_id: bytes, caller: Caller) -> Instance:
        instance = self._instances.pop(instance_id, None)
        if instance is None or instance.forgotten(self._clock.monotonic_ms()):
            client = self._client(instance_id, caller)
            asking = [each for each in self._subscriptions if each.matches(client)]
            metrics = sorted({name for each in asking for name in each.metrics})
            intervals = [each.interval_ms for each in asking]
            instance = Instance(
                instance_id,
                [ALL] if ALL in metrics else metrics,
                min([INTERVAL_MS.default, *intervals]),
            )
        self._instances[instance_id] = instance
        while len(self._instances) > INSTANCES_MAX:
            self._instances.popitem(last=False)
        return instance

    def _client(self, instance_id: bytes, caller: Caller) -> dict[str, str]:
        """What a client may be matched by."""
        name, version = self._software.get(caller.peer, ("", ""))
        host, port = caller.peer
        return {
            "client_instance_id": written_id(instance_id),
            "client_id": (caller.client_id or "")[:WORD_LENGTH_MAX],
            "client_software_name": name,
            "client_software_version": version,
            "client_source_address": host,
            "client_source_port": str(port),
        }


def subscription(config: Mapping[str, str]) -> Subscription:
    """What a resource's keys say; its patterns were checked when they were set."""
    try:
        match = parse_match(value_of(MATCH, config))
    except InvalidConfig:
        return Subscription((), INTERVAL_MS.default, {})
    return Subscription(value_of(METRICS, config), value_of(INTERVAL_MS, config), match)


def value_of(key: Key[Any], config: Mapping[str, str]) -> Any:
    """A key's value, or its default."""
    text = config.get(key.name)
    return key.default if text is None else key.parse(text)
