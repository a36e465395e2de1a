"""Keyword arguments of the native clients, as types for type checkers and editors.

Written by tools/gen_keywords.py from the keys of client.py; run `make reference` to update it.
None stands for the default of a key, and text is parsed as in a properties file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

Serializer: TypeAlias = Callable[[Any], bytes | str | None]
Partitioner: TypeAlias = Callable[[str, bytes | None, int], int]
"""Function of topic, key and number of partitions that returns a partition."""


class ClientConfig(TypedDict, total=False):
    """Keys of both clients."""

    bootstrap_servers: str | Sequence[str] | None
    """Brokers to begin with, each as HOST:PORT; the others are learned from the first that
    answers."""
    client_id: str | None
    """The name under which the broker's log and quotas know this client."""
    security_protocol: str | None
    """How connections are protected."""
    native: str | None
    """Whether to use shared memory and the log's own files when the broker is on this host; `auto`
    does where it is possible, `off` always goes by TCP."""
    request_timeout_ms: int | str | None
    """How long an answer may take before the connection is given up."""
    socket_connection_setup_timeout_ms: int | str | None
    """How long it may take until a connection stands and the broker has said what it serves."""
    connections_max_idle_ms: int | str | None
    """The time after which a connection nobody used is closed; -1 keeps them."""
    metadata_max_age_ms: int | str | None
    """The age at which what is known of a topic is asked anew although nothing went wrong."""
    reconnect_backoff_ms: int | str | None
    """The rest before a broker that could not be reached is tried again. It doubles with each
    failure, up to reconnect.backoff.max.ms, and is varied by a fifth so that clients spread."""
    reconnect_backoff_max_ms: int | str | None
    """The longest rest before a broker is tried again."""
    retry_backoff_ms: int | str | None
    """The rest before a request that failed in passing is sent again. It doubles with each failure,
    up to retry.backoff.max.ms, and is varied by a fifth."""
    retry_backoff_max_ms: int | str | None
    """The longest rest before a request is sent again."""
    send_buffer_bytes: int | str | None
    """The size of a socket's buffer for what is sent; -1 leaves it to the kernel."""
    receive_buffer_bytes: int | str | None
    """The size of a socket's buffer for what arrives; -1 leaves it to the kernel."""


class ProducerConfig(ClientConfig, total=False):
    """Keys of a producer."""

    acks: str | int | None
    """When a record counts as written: `0` when it was sent, `1` when its leader has it, `all` when
    it is committed and as durable as the topic promises."""
    enable_idempotence: bool | str | None
    """Whether batches are numbered, so that one sent again is not written twice. It needs acks=all;
    other acks turn it off unless it was asked for."""
    transactional_id: str | None
    """The name under which transactions are continued."""
    retries: int | str | None
    """How often a batch is sent again; delivery.timeout.ms is the better bound."""
    delivery_timeout_ms: int | str | None
    """How long after send() a record may wait, travel and be sent again before it has failed; at
    least linger.ms + request.timeout.ms."""
    max_in_flight_requests_per_connection: int | str | None
    """How many requests may be unanswered on a connection; at most 5 keep their order with
    enable.idempotence."""
    batch_size: int | str | None
    """The size at which a batch is sent without waiting for more; 0 sends each record alone."""
    linger_ms: int | str | None
    """How long a batch that is not full waits for more records."""
    buffer_memory: int | str | None
    """How many bytes of records may wait to be sent; send() waits when it is used up."""
    max_block_ms: int | str | None
    """How long send() waits for room, or for the topic to be there, before it fails."""
    max_request_size: int | str | None
    """The largest record, uncompressed, and the largest request."""
    partitioner: str | Partitioner | None
    """Where a record without a partition goes. `murmur2`: by its key, as Java's clients do it, and
    without a key to one partition for as long as it takes to fill a batch. `round_robin`: to each
    in turn. Or a function of topic, key and the number of partitions."""
    key_serializer: Serializer | None
    """A function of a key that returns bytes or text; without one, keys are bytes or text."""
    value_serializer: Serializer | None
    """A function of a value that returns bytes or text; without one, values are bytes or text.
    None, a tombstone, is not given to it."""
    compression_type: str | None
    """How batches are compressed."""
    compression_gzip_level: int | str | None
    """How hard gzip tries, from 1 to 9; -1 is zlib's own choice."""
    compression_lz4_level: int | str | None
    """How hard lz4 tries; 9 is the fast compressor."""
    compression_zstd_level: int | str | None
    """How hard zstd tries."""


class ConsumerConfig(ClientConfig, total=False):
    """Keys of a consumer."""

    group_id: str | None
    """The name under which offsets are committed and found again. The consumer does not become a
    member of the group: it reads the partitions it is told to."""
    auto_offset_reset: str | None
    """Where to begin without an offset, or with one that is gone; `none` raises instead."""
    enable_auto_commit: bool | str | None
    """Whether offsets are committed by themselves."""
    isolation_level: str | None
    """Whether records of transactions that are not committed are read."""
    allow_auto_create_topics: bool | str | None
    """Whether to ask about a topic makes it, where the broker allows that."""
    check_crcs: bool | str | None
    """Whether the checksum of each batch is computed again before its records are believed."""
    default_api_timeout_ms: int | str | None
    """How long a call may take that was given no timeout of its own."""
    consumer_timeout_ms: int | str | None
    """How long an iteration waits for a record before it ends; -1 waits for ever."""
    fetch_min_bytes: int | str | None
    """How many bytes of records the broker waits for before it answers."""
    fetch_max_wait_ms: int | str | None
    """How long it waits for them."""
    fetch_max_bytes: int | str | None
    """How many bytes of records an answer may bring; the first batch always comes whole."""
    max_partition_fetch_bytes: int | str | None
    """How many of them from one partition."""
