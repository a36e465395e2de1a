"""Keys of the native clients: of producers, consumers and share consumers, under Kafka's names.

A key that several have is declared once and added to each scope, so that shared code
(connections, metadata) reads it from any.

Defaults that differ from Kafka's: `client.id` is kafkalite; `auto.offset.reset` is earliest, since
a consumer without a group that started at the end would not see existing records; the socket
buffers are sized by the kernel, which does that better than a fixed number.  Keys that Kafka does
not have: `native` and `partitioner` (Kafka's `partitioner.class` names a Java class).
"""

from __future__ import annotations

from kafkalite.config.key import (
    Check,
    OnlyValue,
    Scope,
    Type,
    at_least,
    between,
    one_of,
)

CLIENT = Scope("client")

INT_MAX = (1 << 31) - 1
SOFTWARE = "kafkalite"

# Addresses and identity.

BOOTSTRAP_SERVERS = CLIENT.declare(
    "bootstrap.servers", Type.LIST, ("127.0.0.1:9092",),
    """Brokers for the first connection, each as HOST:PORT.  The others are discovered from the
    first one that responds.""",
    check=Check("a list of HOST:PORT", lambda servers: bool(servers)),
)
CLIENT_ID = CLIENT.declare(
    "client.id", Type.STRING, SOFTWARE,
    """Name of this client in requests, for the broker's log and quotas.""",
    check=Check("at most 249 bytes of text", lambda name: len(name.encode()) <= 249),
)
SECURITY_PROTOCOL = CLIENT.declare(
    "security.protocol", Type.STRING, "PLAINTEXT",
    """Protocol of connections to brokers.""",
    check=OnlyValue("PLAINTEXT", "TLS and SASL come with a later version"),
)
NATIVE = CLIENT.declare(
    "native", Type.STRING, "auto",
    """Use shared memory and the log's files if the broker is on this host: `auto` if possible;
    `off` always uses TCP.""",
    check=one_of("auto", "off"),
)

# Timeouts and retries.

REQUEST_TIMEOUT_MS = CLIENT.declare(
    "request.timeout.ms", Type.INT, 30_000,
    """Maximum time to wait for a response before the connection is closed.""",
    check=at_least(1),
)
SOCKET_CONNECTION_SETUP_TIMEOUT_MS = CLIENT.declare(
    "socket.connection.setup.timeout.ms", Type.LONG, 10_000,
    """Maximum time to connect and to receive the broker's supported API versions.""",
    check=at_least(1),
)
CONNECTIONS_MAX_IDLE_MS = CLIENT.declare(
    "connections.max.idle.ms", Type.LONG, 540_000,
    """Time after which an idle connection is closed; -1 disables the timeout.""",
    check=at_least(-1),
)
METADATA_MAX_AGE_MS = CLIENT.declare(
    "metadata.max.age.ms", Type.LONG, 300_000,
    """Maximum age of a topic's metadata, after which they are refreshed even without an error.""",
    check=at_least(0),
)
RECONNECT_BACKOFF_MS = CLIENT.declare(
    "reconnect.backoff.ms", Type.LONG, 50,
    """Initial backoff before a retry of a failed connection.  It doubles with each failure, up to
    reconnect.backoff.max.ms, with a random jitter of 20 %.""",
    check=at_least(0),
)
RECONNECT_BACKOFF_MAX_MS = CLIENT.declare(
    "reconnect.backoff.max.ms", Type.LONG, 1_000,
    """Maximum backoff before a retry of a failed connection.""",
    check=at_least(0),
)
RETRY_BACKOFF_MS = CLIENT.declare(
    "retry.backoff.ms", Type.LONG, 100,
    """Initial backoff before a retry of a request that failed with a retriable error.  It doubles
    with each failure, up to retry.backoff.max.ms, with a random jitter of 20 %.""",
    check=at_least(0),
)
RETRY_BACKOFF_MAX_MS = CLIENT.declare(
    "retry.backoff.max.ms", Type.LONG, 1_000,
    """Maximum backoff before a retry of a request.""",
    check=at_least(0),
)
SEND_BUFFER_BYTES = CLIENT.declare(
    "send.buffer.bytes", Type.INT, -1,
    """Size of a socket's send buffer (SO_SNDBUF); -1 uses the default of the kernel.""",
    check=at_least(-1),
)
RECEIVE_BUFFER_BYTES = CLIENT.declare(
    "receive.buffer.bytes", Type.INT, -1,
    """Size of a socket's receive buffer (SO_RCVBUF); -1 uses the default of the kernel.""",
    check=at_least(-1),
)

CLIENT.leave_out(
    "ssl.", "sasl.", because="TLS and SASL come with a later version",
)
CLIENT.leave_out(
    "metric.reporters", "metrics.", "interceptor.classes", "enable.metrics.push",
    "auto.include.jmx.reporter",
    because="metrics() returns the counters of a client",
)
CLIENT.leave_out(
    "client.dns.lookup", "bootstrap.controllers", "metadata.recovery.strategy",
    "metadata.recovery.rebootstrap.trigger.ms", "socket.connection.setup.timeout.max.ms",
    because="every address of every broker is tried, and bootstrap.servers if none responds",
)

PRODUCER = Scope("producer")
PRODUCER.update(CLIENT)
PRODUCER.left_out |= CLIENT.left_out

# Durability of records.

ACKS = PRODUCER.declare(
    "acks", Type.STRING, "all",
    """Acknowledgement after which a record counts as written: `0` none, `1` that of the leader,
    `all` when it is committed, with the durability of the topic.""",
    check=one_of("all", "0", "1"),
)
ENABLE_IDEMPOTENCE = PRODUCER.declare(
    "enable.idempotence", Type.BOOLEAN, True,
    """Add sequence numbers to batches, so that a retry does not write one twice.  It requires
    acks=all; other values of acks disable it unless it is set explicitly.""",
)
TRANSACTIONAL_ID = PRODUCER.declare(
    "transactional.id", Type.STRING, None,
    """Name under which this producer writes transactions.  A second producer with the same id
    fences the first; after a restart the id's open transaction is aborted.  It requires
    enable.idempotence.""",
    check=Check("a name of 1 to 32767 bytes", lambda name: 0 < len(name.encode()) <= 0x7FFF),
)
TRANSACTION_TIMEOUT_MS = PRODUCER.declare(
    "transaction.timeout.ms", Type.INT, 60_000,
    """Time after the first record of a transaction when the broker aborts it and fences the
    producer; at most the broker's transaction.max.timeout.ms.""",
    check=at_least(1),
)
RETRIES = PRODUCER.declare(
    "retries", Type.INT, INT_MAX,
    """Maximum number of retries of a batch; delivery.timeout.ms is the better limit.""",
    check=between(0, INT_MAX),
)
DELIVERY_TIMEOUT_MS = PRODUCER.declare(
    "delivery.timeout.ms", Type.INT, 120_000,
    """Maximum time from send() to the outcome of a record, including retries; at least linger.ms +
    request.timeout.ms.""",
    check=at_least(0),
)
MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION = PRODUCER.declare(
    "max.in.flight.requests.per.connection", Type.INT, 5,
    """Maximum number of requests in flight on a connection.  With enable.idempotence up to 5
    preserve the order of records.""",
    check=at_least(1),
)

# Batching.

BATCH_SIZE = PRODUCER.declare(
    "batch.size", Type.INT, 16_384,
    """Size at which a batch is sent without waiting for more records; 0 disables batching.""",
    check=at_least(0),
)
LINGER_MS = PRODUCER.declare(
    "linger.ms", Type.LONG, 5,
    """Maximum time for which a batch that is not full waits for more records.""",
    check=at_least(0),
)
BUFFER_MEMORY = PRODUCER.declare(
    "buffer.memory", Type.LONG, 32 << 20,
    """Maximum bytes of records that wait to be sent; send() blocks when it is used up.""",
    check=at_least(0),
)
MAX_BLOCK_MS = PRODUCER.declare(
    "max.block.ms", Type.LONG, 60_000,
    """Maximum time for which send() blocks for buffer memory or metadata before it fails.""",
    check=at_least(0),
)
MAX_REQUEST_SIZE = PRODUCER.declare(
    "max.request.size", Type.INT, 1 << 20,
    """Maximum size of a record before compression, and of a request.""",
    check=at_least(0),
)
PARTITIONER = PRODUCER.declare(
    "partitioner", Type.STRING, "murmur2",
    """Partition of a record that has none.  `murmur2`: by the hash of the key, as in the Java
    client; without a key, one partition until a batch is full.  `round_robin`: each partition in
    turn.  Or a function of topic, key and number of partitions.""",
    check=one_of("murmur2", "round_robin"),
)
KEY_SERIALIZER = PRODUCER.declare(
    "key.serializer", Type.STRING, None,
    """Function that converts a key to bytes or text; without one, keys are bytes or text.""",
    check=OnlyValue(None, "a function is passed instead of the name of a Java class"),
)
VALUE_SERIALIZER = PRODUCER.declare(
    "value.serializer", Type.STRING, None,
    """Function that converts a value to bytes or text; without one, values are bytes or text.  It
    is not called for None, a tombstone.""",
    check=OnlyValue(None, "a function is passed instead of the name of a Java class"),
)
COMPRESSION_TYPE = PRODUCER.declare(
    "compression.type", Type.STRING, "none",
    """Compression of batches.""",
    check=one_of("none", "gzip", "snappy", "lz4", "zstd"),
)
COMPRESSION_GZIP_LEVEL = PRODUCER.declare(
    "compression.gzip.level", Type.INT, -1,
    """Compression level of gzip, from 1 to 9; -1 is the default of zlib.""",
    check=Check("-1, or between 1 and 9", lambda level: level == -1 or 1 <= level <= 9),
)
COMPRESSION_LZ4_LEVEL = PRODUCER.declare(
    "compression.lz4.level", Type.INT, 9,
    """Compression level of lz4; 9 is the fast compressor.""",
    check=between(1, 17),
)
COMPRESSION_ZSTD_LEVEL = PRODUCER.declare(
    "compression.zstd.level", Type.INT, 3,
    """Compression level of zstd.""",
    check=between(-131_072, 22),
)

PRODUCER.leave_out(
    "transaction.two.phase.commit.enable", because="a producer ends its transactions itself",
)
PRODUCER.leave_out(
    "partitioner.class", "partitioner.ignore.keys", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    because="partitioner takes a name or a function",
)
PRODUCER.leave_out(
    "metadata.max.idle.ms", because="metadata are requested only for topics in use",
)

CONSUMER = Scope("consumer")
CONSUMER.update(CLIENT)
CONSUMER.left_out |= CLIENT.left_out

# Topics, groups and start positions.

GROUP_ID = CONSUMER.declare(
    "group.id", Type.STRING, None,
    """Group under which offsets are committed and fetched.  A consumer with topics joins it as a
    member; one with assigned partitions does not.""",
    check=Check("a name of 1 to 32767 bytes", lambda name: 0 < len(name.encode()) <= 0x7FFF),
)
GROUP_PROTOCOL = CONSUMER.declare(
    "group.protocol", Type.STRING, "auto",
    """Protocol of a member: `consumer` (KIP-848), in which the broker assigns partitions, or
    `classic`, in which a member does.  `auto`: `consumer` if the broker supports it.""",
    check=one_of("auto", "consumer", "classic"),
)
GROUP_INSTANCE_ID = CONSUMER.declare(
    "group.instance.id", Type.STRING, None,
    """Name of a static member: after a restart within the session timeout it gets its partitions
    back.  No two members of a group may have the same one.""",
    check=Check("a name of 1 to 249 bytes", lambda name: 0 < len(name.encode()) <= 249),
)
GROUP_REMOTE_ASSIGNOR = CONSUMER.declare(
    "group.remote.assignor", Type.STRING, None,
    """Assignor that the broker uses for this group, with group.protocol=consumer: `uniform` or
    `range`; by default the broker chooses.""",
)
PARTITION_ASSIGNMENT_STRATEGY = CONSUMER.declare(
    "partition.assignment.strategy", Type.LIST, ("range", "cooperative-sticky"),
    """Assignors that a member supports, with group.protocol=classic.  If cooperative-sticky is the
    only one, a rebalance revokes only the partitions that move; otherwise it revokes all.""",
    check=Check(
        "a list of range, cooperative-sticky",
        lambda names: bool(names) and {*names} <= {"range", "cooperative-sticky"}
        and len({*names}) == len(names),
    ),
)
SESSION_TIMEOUT_MS = CONSUMER.declare(
    "session.timeout.ms", Type.INT, 45_000,
    """Time without heartbeats after which the broker removes a member, with
    group.protocol=classic; with `consumer` the broker's configuration sets it.""",
    check=at_least(1),
)
HEARTBEAT_INTERVAL_MS = CONSUMER.declare(
    "heartbeat.interval.ms", Type.INT, 3_000,
    """Interval of heartbeats, with group.protocol=classic; with `consumer` the broker's
    configuration sets it.""",
    check=at_least(1),
)
MAX_POLL_INTERVAL_MS = CONSUMER.declare(
    "max.poll.interval.ms", Type.INT, 300_000,
    """Maximum time between two calls for records by a member, after which it leaves the group; and
    the time for which a rebalance waits for a member.""",
    check=at_least(1),
)
AUTO_OFFSET_RESET = CONSUMER.declare(
    "auto.offset.reset", Type.STRING, "earliest",
    """Start offset without a committed offset, or if that is out of range; `none` raises an error
    instead.""",
    check=one_of("earliest", "latest", "none"),
)
ENABLE_AUTO_COMMIT = CONSUMER.declare(
    "enable.auto.commit", Type.BOOLEAN, True,
    """Commit the positions of a member of a group: at intervals, before partitions are revoked, and
    when it is closed.  Only records that were returned before the current call are covered.
    Positions of assigned partitions are committed by commit() only.""",
)
AUTO_COMMIT_INTERVAL_MS = CONSUMER.declare(
    "auto.commit.interval.ms", Type.INT, 5_000,
    """Interval of automatic commits; they are made by the calls for records.""",
    check=at_least(0),
)
ISOLATION_LEVEL = CONSUMER.declare(
    "isolation.level", Type.STRING, "read_uncommitted",
    """Visibility of records of open and aborted transactions: `read_uncommitted` returns them,
    `read_committed` does not.""",
    check=one_of("read_uncommitted", "read_committed"),
)
ALLOW_AUTO_CREATE_TOPICS = CONSUMER.declare(
    "allow.auto.create.topics", Type.BOOLEAN, True,
    """Let a metadata request create the topic, if the broker allows that.""",
)
CHECK_CRCS = CONSUMER.declare(
    "check.crcs", Type.BOOLEAN, True,
    """Verify the CRC of each batch before its records are returned.""",
)
DEFAULT_API_TIMEOUT_MS = CONSUMER.declare(
    "default.api.timeout.ms", Type.INT, 60_000,
    """Default timeout of calls that take a timeout.""",
    check=at_least(0),
)
CONSUMER_TIMEOUT_MS = CONSUMER.declare(
    "consumer.timeout.ms", Type.LONG, -1,
    """Maximum time for which an iteration waits for a record before it ends; -1 disables the
    timeout.""",
    check=at_least(-1),
)

# Sizes of fetches.

FETCH_MIN_BYTES = CONSUMER.declare(
    "fetch.min.bytes", Type.INT, 1,
    """Minimum bytes of records in a fetch response, for which the broker waits.""",
    check=at_least(0),
)
FETCH_MAX_WAIT_MS = CONSUMER.declare(
    "fetch.max.wait.ms", Type.INT, 500,
    """Maximum time for which the broker waits for fetch.min.bytes.""",
    check=at_least(0),
)
FETCH_MAX_BYTES = CONSUMER.declare(
    "fetch.max.bytes", Type.INT, 50 << 20,
    """Maximum bytes of records in a fetch response; the first batch is always returned whole.""",
    check=at_least(0),
)
MAX_PARTITION_FETCH_BYTES = CONSUMER.declare(
    "max.partition.fetch.bytes", Type.INT, 1 << 20,
    """Maximum bytes of records of one partition in a fetch response.""",
    check=at_least(0),
)
CONSUMER.leave_out(
    "internal.leave.group.on.close",
    because="close() leaves the group, except for a static member by the classic protocol",
)
CONSUMER.leave_out(
    "share.", because="share groups are read with ShareConsumer",
)
CONSUMER.leave_out(
    "key.deserializer", "value.deserializer", because="keys and values are bytes",
)
CONSUMER.leave_out(
    "client.rack", "exclude.internal.topics",
    because="every partition is read from its leader, and topics are listed by name",
)

CONSUMER.leave_out(
    "max.poll.records", because="records are returned one at a time, or in batches by batches()",
)

SHARE_CONSUMER = Scope("share consumer")
SHARE_CONSUMER.update(CLIENT)
SHARE_CONSUMER.left_out |= CLIENT.left_out
SHARE_CONSUMER.update(
    (key.name, key)
    for key in (
        GROUP_ID, MAX_POLL_INTERVAL_MS, ALLOW_AUTO_CREATE_TOPICS, CHECK_CRCS,
        DEFAULT_API_TIMEOUT_MS, CONSUMER_TIMEOUT_MS, FETCH_MIN_BYTES, FETCH_MAX_WAIT_MS,
        FETCH_MAX_BYTES,
    )
)  # fmt: skip
SHARE_ACKNOWLEDGEMENT_MODE = SHARE_CONSUMER.declare(
    "share.acknowledgement.mode", Type.STRING, "implicit",
    """Treatment of records that the program does not acknowledge itself: `implicit` accepts them
    with the next call, `explicit` leaves them acquired until their locks end.""",
    check=one_of("implicit", "explicit"),
)
SHARE_ACQUIRE_MODE = SHARE_CONSUMER.declare(
    "share.acquire.mode", Type.STRING, "batch_optimized",
    """Number of records that a fetch acquires: `batch_optimized` completes the last record batch,
    and so may exceed max.poll.records; `record_limit` does not exceed it.""",
    check=one_of("batch_optimized", "record_limit"),
)
MAX_POLL_RECORDS = SHARE_CONSUMER.declare(
    "max.poll.records", Type.INT, 500,
    """Number of records that a share consumer acquires from a broker at once.  If it is not set,
    batches() acquires up to 10,000 while the program is done with them within 20 ms, if it
    acknowledges implicitly and whole record batches are acquired.""",
    check=at_least(1),
)
SHARE_CONSUMER.leave_out(
    "auto.offset.reset", "isolation.level", "session.timeout.ms", "heartbeat.interval.ms",
    because="the configuration of the group sets it, for all members",
)
SHARE_CONSUMER.leave_out(
    "group.instance.id", "group.protocol", "group.remote.assignor",
    "partition.assignment.strategy", because="share groups have no such thing",
)
SHARE_CONSUMER.leave_out(
    "enable.auto.commit", "auto.commit.interval.ms",
    because="records are acknowledged; see share.acknowledgement.mode",
)
SHARE_CONSUMER.leave_out(
    "max.partition.fetch.bytes", because="the broker divides fetch.max.bytes among partitions",
)
SHARE_CONSUMER.leave_out(
    "client.rack", "key.deserializer", "value.deserializer",
    because="it is not supported for consumers either",
)


def own(scope: Scope, *others: Scope) -> Scope:
    """Return the keys of a scope that it does not share with all clients, or with these."""
    shared = set(CLIENT).union(*others)
    result = Scope(scope.owner, scope.keys_update)
    result.update({name: key for name, key in scope.items() if name not in shared})
    result.left_out = {
        name: because for name, because in scope.left_out.items() if name not in CLIENT.left_out
    }
    return result


SCOPES: tuple[Scope, ...] = (
    CLIENT, own(PRODUCER), own(CONSUMER), own(SHARE_CONSUMER, CONSUMER),
)  # fmt: skip
"""Every key once: the shared ones, and those of a producer, a consumer and a share consumer."""
