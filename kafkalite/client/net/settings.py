"""Client settings: configuration keys of a producer or consumer, typed and checked.

    settings = producer_settings("127.0.0.1:9092", {"linger_ms": 5})
    settings[LINGER_MS]                     # 5

Names are Kafka's, dotted or with underscores for keyword arguments; values are text as in a
properties file, or typed; None means the default.  An unknown name is an InvalidConfig that
suggests similar ones, and so is a contradiction between settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from kafkalite.client.net.topology import parse_address
from kafkalite.config.client import (
    ACKS,
    BOOTSTRAP_SERVERS,
    COMPRESSION_GZIP_LEVEL,
    COMPRESSION_LZ4_LEVEL,
    COMPRESSION_ZSTD_LEVEL,
    CONSUMER,
    DEFAULT_API_TIMEOUT_MS,
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    GROUP_ID,
    KEY_SERIALIZER,
    LINGER_MS,
    MAX_BLOCK_MS,
    MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION,
    PARTITIONER,
    PRODUCER,
    REQUEST_TIMEOUT_MS,
    RETRIES,
    SECURITY_PROTOCOL,
    SHARE_CONSUMER,
    TRANSACTIONAL_ID,
    VALUE_SERIALIZER,
)
from kafkalite.config.key import ConfigKey, Scope, Type, quoted
from kafkalite.errors import InvalidConfig
from kafkalite.records.compression import Codec

T = TypeVar("T")

Bootstrap: TypeAlias = str | list[str] | Mapping[str, Any] | None
"""The first argument of a client: brokers, or all its settings by Kafka's dotted names."""

FUNCTIONS = (KEY_SERIALIZER, PARTITIONER, VALUE_SERIALIZER)
"""Keys whose value is a function."""

LEVELS = {
    Codec.GZIP: COMPRESSION_GZIP_LEVEL,
    Codec.LZ4: COMPRESSION_LZ4_LEVEL,
    Codec.ZSTD: COMPRESSION_ZSTD_LEVEL,
}

IN_FLIGHT_MAX = 5
"""Batches of a producer id that a broker remembers, and so the maximum in flight per partition."""


class ClientSettings:
    """Typed values by key; a key that was not given has its default."""

    def __init__(self, scope: Scope, values: Mapping[ConfigKey[Any], Any]) -> None:
        self.scope = scope
        self._values = dict(values)
        self.addresses = [parse_address(server) for server in self[BOOTSTRAP_SERVERS]]

    def __getitem__(self, key: ConfigKey[T]) -> T:
        value: T = self._values.get(key, key.default)
        return value

    def is_given(self, key: ConfigKey[Any]) -> bool:
        """Return whether the key was set explicitly."""
        return key in self._values

    def with_value(self, key: ConfigKey[T], value: T) -> ClientSettings:
        """Return these settings with another value of one key."""
        return ClientSettings(self.scope, {**self._values, key: value})

    @property
    def call_timeout_s(self) -> float:
        """Timeout in seconds of calls without a timeout of their own."""
        key = MAX_BLOCK_MS if self.scope is PRODUCER else DEFAULT_API_TIMEOUT_MS
        return self[key] / 1000


def producer_settings(bootstrap: Bootstrap, keywords: Mapping[str, Any]) -> ClientSettings:
    """Return the producer settings, checked that acks, retries and idempotence are consistent."""
    values = parse_settings(PRODUCER, bootstrap, keywords)
    settings = ClientSettings(PRODUCER, values)
    for key, holds, words in (
        (ACKS, settings[ACKS] == "all", "all"),
        (RETRIES, settings[RETRIES] > 0, "above 0"),
        (
            MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION,
            settings[MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION] <= IN_FLIGHT_MAX,
            f"at most {IN_FLIGHT_MAX}",
        ),
    ):
        if holds:
            continue
        if values.get(ENABLE_IDEMPOTENCE):
            raise InvalidConfig(f"{ENABLE_IDEMPOTENCE.name} requires {key.name} to be {words}.")
        if TRANSACTIONAL_ID in values:
            raise InvalidConfig(f"{TRANSACTIONAL_ID.name} requires {key.name} to be {words}.")
        values[ENABLE_IDEMPOTENCE] = False
    if TRANSACTIONAL_ID in values and values.get(ENABLE_IDEMPOTENCE) is False:
        raise InvalidConfig(f"{TRANSACTIONAL_ID.name} requires {ENABLE_IDEMPOTENCE.name}.")
    least_ms = settings[LINGER_MS] + settings[REQUEST_TIMEOUT_MS]
    if settings[DELIVERY_TIMEOUT_MS] < least_ms:
        if settings.is_given(DELIVERY_TIMEOUT_MS):
            raise InvalidConfig(
                f"{DELIVERY_TIMEOUT_MS.name} must be at least {LINGER_MS.name} +"
                f" {REQUEST_TIMEOUT_MS.name}, which is {least_ms}."
            )
        values[DELIVERY_TIMEOUT_MS] = least_ms
    return ClientSettings(PRODUCER, values)


def producer_keys() -> frozenset[str]:
    """Return the names of the producer's configuration keys, as Kafka writes them.

    Returns:
        Names with dots ("linger.ms").
    """
    return frozenset(PRODUCER)


def consumer_settings(bootstrap: Bootstrap, keywords: Mapping[str, Any]) -> ClientSettings:
    """Return the consumer settings."""
    return ClientSettings(CONSUMER, parse_settings(CONSUMER, bootstrap, keywords))


def share_consumer_settings(bootstrap: Bootstrap, keywords: Mapping[str, Any]) -> ClientSettings:
    """Return the settings of a share consumer, which must name the group."""
    values = parse_settings(SHARE_CONSUMER, bootstrap, keywords)
    if values.get(GROUP_ID) is None:
        raise InvalidConfig(f"A share consumer needs {GROUP_ID.name}: group=\"...\".")
    return ClientSettings(SHARE_CONSUMER, values)


def required_acks(settings: ClientSettings) -> int:
    """Return `acks` as in a Produce request: 0, 1, or -1 for all."""
    acks = settings[ACKS]
    return -1 if acks == "all" else int(acks)


def compression_level(settings: ClientSettings, codec: Codec) -> int | None:
    """Return the configured level; None: the codec's default."""
    level = LEVELS.get(codec)
    return None if level is None or not settings.is_given(level) else settings[level]


def parse_settings(
    scope: Scope, bootstrap: Bootstrap, keywords: Mapping[str, Any]
) -> dict[ConfigKey[Any], Any]:
    """Return the typed values of keyword arguments and of a bootstrap mapping, by key."""
    values: dict[ConfigKey[Any], Any] = {}
    given = dict(keywords)
    if isinstance(bootstrap, Mapping):
        if twice := given.keys() & bootstrap.keys():
            raise InvalidConfig(f"{twice.pop()} is given twice.")
        given |= bootstrap
    elif bootstrap is not None:
        if not isinstance(bootstrap, str | list | tuple):
            raise InvalidConfig(
                f"{BOOTSTRAP_SERVERS.name} must be HOST:PORT or a list of them, not {bootstrap!r}."
            )
        if any(name.replace("_", ".") == BOOTSTRAP_SERVERS.name for name in given):
            raise InvalidConfig(
                f"{BOOTSTRAP_SERVERS.name} is given twice: the first argument, {bootstrap!r}, is"
                " also bootstrap.servers.  Pass a consumer's topics as topics=..."
            )
        given[BOOTSTRAP_SERVERS.name] = bootstrap
    for name, value in given.items():
        if not isinstance(name, str):
            raise InvalidConfig(f"A configuration key must be text, not {name!r}.")
        key = scope.named(name.replace("_", "."))
        if key in values:
            raise InvalidConfig(f"{key.name} is given twice.")
        if value is not None:
            values[key] = parse_value(key, value)
    return values


def parse_value(key: ConfigKey[Any], value: Any) -> Any:
    """Return the typed value of a key."""
    if key in FUNCTIONS and callable(value):
        return value
    if key is ACKS and str(value) == "-1":
        value = "all"
    if key is SECURITY_PROTOCOL:
        value = str(value).upper()
    if isinstance(value, list | tuple) and key.type is Type.LIST:
        value = ",".join(map(str, value))
    if not isinstance(value, str | int | float):
        raise InvalidConfig(f"{key.name} cannot be a {type(value).__name__}: {quoted(str(value))}.")
    return key.parse(value if isinstance(value, str) else key.format(value))
