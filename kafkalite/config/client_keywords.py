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
    """Keys of every client."""

    bootstrap_servers: str | Sequence[str] | None
    """Brokers for the first connection, each as HOST:PORT. The others are discovered from the first
    one that responds."""
    client_id: str | None
    """Name of this client in requests, for the broker's log and quotas."""
    security_protocol: str | None
    """Protocol of connections to brokers."""
    native: str | None
    """Use shared memory and the log's files if the broker is on this host: `auto` if possible;
    `off` always uses TCP."""
    request_timeout_ms: int | str | None
    """Maximum time to wait for a response before the connection is closed."""
    socket_connection_setup_timeout_ms: int | str | None
    """Maximum time to connect and to receive the broker's supported API versions."""
    connections_max_idle_ms: int | str | None
    """Time after which an idle connection is closed; -1 disables the timeout."""
    metadata_max_age_ms: int | str | None
    """Maximum age of a topic's metadata, after which they are refreshed even without an error."""
    reconnect_backoff_ms: int | str | None
    """Initial backoff before a retry of a failed connection. It doubles with each failure, up to
    reconnect.backoff.max.ms, with a random jitter of 20 %."""
    reconnect_backoff_max_ms: int | str | None
    """Maximum backoff before a retry of a failed connection."""
    retry_backoff_ms: int | str | None
    """Initial backoff before a retry of a request that failed with a retriable error. It doubles
    with each failure, up to retry.backoff.max.ms, with a random jitter of 20 %."""
    retry_backoff_max_ms: int | str | None
    """Maximum backoff before a retry of a request."""
    send_buffer_bytes: int | str | None
    """Size of a socket's send buffer (SO_SNDBUF); -1 uses the default of the kernel."""
    receive_buffer_bytes: int | str | None
    """Size of a socket's receive buffer (SO_RCVBUF); -1 uses the default of the kernel."""


class ProducerConfig(ClientConfig, total=False):
    """Keys of a producer."""

    acks: str | int | None
    """Acknowledgement after which a record counts as written: `0` none, `1` that of the leader,
    `all` when it is committed, with the durability of the topic."""
    enable_idempotence: bool | str | None
    """Add sequence numbers to batches, so that a retry does not write one twice. It requires
    acks=all; other values of acks disable it unless it is set explicitly."""
    transactional_id: str | None
    """Name under which this producer writes transactions. A second producer with the same id fences
    the first; after a restart the id's open transaction is aborted. It requires
    enable.idempotence."""
    transaction_timeout_ms: int | str | None
    """Time after the first record of a transaction when the broker aborts it and fences the
    producer; at most the broker's transaction.max.timeout.ms."""
    retries: int | str | None
    """Maximum number of retries of a batch; delivery.timeout.ms is the better limit."""
    delivery_timeout_ms: int | str | None
    """Maximum time from send() to the outcome of a record, including retries; at least linger.ms +
    request.timeout.ms."""
    max_in_flight_requests_per_connection: int | str | None
    """Maximum number of requests in flight on a connection. With enable.idempotence up to 5
    preserve the order of records."""
    batch_size: int | str | None
    """Size at which a batch is sent without waiting for more records; 0 disables batching."""
    linger_ms: int | str | None
    """Maximum time for which a batch that is not full waits for more records."""
    buffer_memory: int | str | None
    """Maximum bytes of records that wait to be sent; send() blocks when it is used up."""
    max_block_ms: int | str | None
    """Maximum time for which send() blocks for buffer memory or metadata before it fails."""
    max_request_size: int | str | None
    """Maximum size of a record before compression, and of a request."""
    partitioner: str | Partitioner | None
    """Partition of a record that has none. `murmur2`: by the hash of the key, as in the Java
    client; without a key, one partition until a batch is full. `round_robin`: each partition in
    turn. Or a function of topic, key and number of partitions."""
    key_serializer: Serializer | None
    """Function that converts a key to bytes or text; without one, keys are bytes or text."""
    value_serializer: Serializer | None
    """Function that converts a value to bytes or text; without one, values are bytes or text. It is
    not called for None, a tombstone."""
    compression_type: str | None
    """Compression of batches."""
    compression_gzip_level: int | str | None
    """Compression level of gzip, from 1 to 9; -1 is the default of zlib."""
    compression_lz4_level: int | str | None
    """Compression level of lz4; 9 is the fast compressor."""
    compression_zstd_level: int | str | None
    """Compression level of zstd."""


class ConsumerConfig(ClientConfig, total=False):
    """Keys of a consumer."""

    group_id: str | None
    """Group under which offsets are committed and fetched. A consumer with topics joins it as a
    member; one with assigned partitions does not."""
    group_protocol: str | None
    """Protocol of a member: `consumer` (KIP-848), in which the broker assigns partitions, or
    `classic`, in which a member does. `auto`: `consumer` if the broker supports it."""
    group_instance_id: str | None
    """Name of a static member: after a restart within the session timeout it gets its partitions
    back. No two members of a group may have the same one."""
    group_remote_assignor: str | None
    """Assignor that the broker uses for this group, with group.protocol=consumer: `uniform` or
    `range`; by default the broker chooses."""
    partition_assignment_strategy: str | Sequence[str] | None
    """Assignors that a member supports, with group.protocol=classic. If cooperative-sticky is the
    only one, a rebalance revokes only the partitions that move; otherwise it revokes all."""
    session_timeout_ms: int | str | None
    """Time without heartbeats after which the broker removes a member, with group.protocol=classic;
    with `consumer` the broker's configuration sets it."""
    heartbeat_interval_ms: int | str | None
    """Interval of heartbeats, with group.protocol=classic; with `consumer` the broker's
    configuration sets it."""
    max_poll_interval_ms: int | str | None
    """Maximum time between two calls for records by a member, after which it leaves the group; and
    the time for which a rebalance waits for a member."""
    auto_offset_reset: str | None
    """Start offset without a committed offset, or if that is out of range; `none` raises an error
    instead."""
    enable_auto_commit: bool | str | None
    """Commit the positions of a member of a group: at intervals, before partitions are revoked, and
    when it is closed. Only records that were returned before the current call are covered.
    Positions of assigned partitions are committed by commit() only."""
    auto_commit_interval_ms: int | str | None
    """Interval of automatic commits; they are made by the calls for records."""
    isolation_level: str | None
    """Visibility of records of open and aborted transactions: `read_uncommitted` returns them,
    `read_committed` does not."""
    allow_auto_create_topics: bool | str | None
    """Let a metadata request create the topic, if the broker allows that."""
    check_crcs: bool | str | None
    """Verify the CRC of each batch before its records are returned."""
    default_api_timeout_ms: int | str | None
    """Default timeout of calls that take a timeout."""
    consumer_timeout_ms: int | str | None
    """Maximum time for which an iteration waits for a record before it ends; -1 disables the
    timeout."""
    fetch_min_bytes: int | str | None
    """Minimum bytes of records in a fetch response, for which the broker waits."""
    fetch_max_wait_ms: int | str | None
    """Maximum time for which the broker waits for fetch.min.bytes."""
    fetch_max_bytes: int | str | None
    """Maximum bytes of records in a fetch response; the first batch is always returned whole."""
    max_partition_fetch_bytes: int | str | None
    """Maximum bytes of records of one partition in a fetch response."""


class ShareConsumerConfig(ClientConfig, total=False):
    """Keys of a share consumer."""

    group_id: str | None
    """Group under which offsets are committed and fetched. A consumer with topics joins it as a
    member; one with assigned partitions does not."""
    max_poll_interval_ms: int | str | None
    """Maximum time between two calls for records by a member, after which it leaves the group; and
    the time for which a rebalance waits for a member."""
    allow_auto_create_topics: bool | str | None
    """Let a metadata request create the topic, if the broker allows that."""
    check_crcs: bool | str | None
    """Verify the CRC of each batch before its records are returned."""
    default_api_timeout_ms: int | str | None
    """Default timeout of calls that take a timeout."""
    consumer_timeout_ms: int | str | None
    """Maximum time for which an iteration waits for a record before it ends; -1 disables the
    timeout."""
    fetch_min_bytes: int | str | None
    """Minimum bytes of records in a fetch response, for which the broker waits."""
    fetch_max_wait_ms: int | str | None
    """Maximum time for which the broker waits for fetch.min.bytes."""
    fetch_max_bytes: int | str | None
    """Maximum bytes of records in a fetch response; the first batch is always returned whole."""
    share_acknowledgement_mode: str | None
    """Treatment of records that the program does not acknowledge itself: `implicit` accepts them
    with the next call, `explicit` leaves them acquired until their locks end."""
    share_acquire_mode: str | None
    """Number of records that a fetch acquires: `batch_optimized` completes the last record batch,
    and so may exceed max.poll.records; `record_limit` does not exceed it."""
    max_poll_records: int | str | None
    """Number of records that a share consumer acquires from a broker at once. If it is not set,
    batches() acquires up to 10,000 while the program is done with them within 20 ms, if it
    acknowledges implicitly and whole record batches are acquired."""
