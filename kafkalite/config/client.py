"""Keys of the native clients: a producer's and a consumer's, under Kafka's names.

A key that both have is declared once and added to both scopes, so that shared code (connections,
metadata) reads it from either.

Defaults that differ from Kafka's: `client.id` is kafkalite; `auto.offset.reset` is earliest, since
a consumer without a group that started at the end would not see existing records; the socket
buffers are sized by the kernel, which does that better than a fixed number.  Keys that Kafka does
not have: `native` and `partitioner` (Kafka's `partitioner.class` names a Java class).
"""

from __future__ import annotations

from kafkalite.config.key import (
    Check,
    Only,
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
    """Brokers to begin with, each as HOST:PORT; the others are learned from the first that
    answers.""",
    check=Check("a list of HOST:PORT", lambda servers: bool(servers)),
)
CLIENT_ID = CLIENT.declare(
    "client.id", Type.STRING, SOFTWARE,
    """The name under which the broker's log and quotas know this client.""",
    check=Check("at most 249 bytes of text", lambda name: len(name.encode()) <= 249),
)
SECURITY_PROTOCOL = CLIENT.declare(
    "security.protocol", Type.STRING, "PLAINTEXT",
    """How connections are protected.""",
    check=Only("PLAINTEXT", "TLS and logins come with a later version"),
)
NATIVE = CLIENT.declare(
    "native", Type.STRING, "auto",
    """Whether to use shared memory and the log's own files when the broker is on this host;
    `auto` does where it is possible, `off` always goes by TCP.""",
    check=one_of("auto", "off"),
)

# Timeouts and retries.

REQUEST_TIMEOUT_MS = CLIENT.declare(
    "request.timeout.ms", Type.INT, 30_000,
    """How long an answer may take before the connection is given up.""",
    check=at_least(1),
)
SOCKET_CONNECTION_SETUP_TIMEOUT_MS = CLIENT.declare(
    "socket.connection.setup.timeout.ms", Type.LONG, 10_000,
    """How long it may take until a connection stands and the broker has said what it serves.""",
    check=at_least(1),
)
CONNECTIONS_MAX_IDLE_MS = CLIENT.declare(
    "connections.max.idle.ms", Type.LONG, 540_000,
    """The time after which a connection nobody used is closed; -1 keeps them.""",
    check=at_least(-1),
)
METADATA_MAX_AGE_MS = CLIENT.declare(
    "metadata.max.age.ms", Type.LONG, 300_000,
    """The age at which what is known of a topic is asked anew although nothing went wrong.""",
    check=at_least(0),
)
RECONNECT_BACKOFF_MS = CLIENT.declare(
    "reconnect.backoff.ms", Type.LONG, 50,
    """The rest before a broker that could not be reached is tried again.  It doubles with each
    failure, up to reconnect.backoff.max.ms, and is varied by a fifth so that clients spread.""",
    check=at_least(0),
)
RECONNECT_BACKOFF_MAX_MS = CLIENT.declare(
    "reconnect.backoff.max.ms", Type.LONG, 1_000,
    """The longest rest before a broker is tried again.""",
    check=at_least(0),
)
RETRY_BACKOFF_MS = CLIENT.declare(
    "retry.backoff.ms", Type.LONG, 100,
    """The rest before a request that failed in passing is sent again.  It doubles with each
    failure, up to retry.backoff.max.ms, and is varied by a fifth.""",
    check=at_least(0),
)
RETRY_BACKOFF_MAX_MS = CLIENT.declare(
    "retry.backoff.max.ms", Type.LONG, 1_000,
    """The longest rest before a request is sent again.""",
    check=at_least(0),
)
SEND_BUFFER_BYTES = CLIENT.declare(
    "send.buffer.bytes", Type.INT, -1,
    """The size of a socket's buffer for what is sent; -1 leaves it to the kernel.""",
    check=at_least(-1),
)
RECEIVE_BUFFER_BYTES = CLIENT.declare(
    "receive.buffer.bytes", Type.INT, -1,
    """The size of a socket's buffer for what arrives; -1 leaves it to the kernel.""",
    check=at_least(-1),
)

CLIENT.leave_out(
    "ssl.", "sasl.", because="TLS and logins come with a later version",
)
CLIENT.leave_out(
    "metric.reporters", "metrics.", "interceptor.classes", "enable.metrics.push",
    "auto.include.jmx.reporter",
    because="metrics() of the object itself tells what it counts",
)
CLIENT.leave_out(
    "client.dns.lookup", "bootstrap.controllers", "metadata.recovery.strategy",
    "metadata.recovery.rebootstrap.trigger.ms", "socket.connection.setup.timeout.max.ms",
    because="every address of every broker is tried, and bootstrap.servers when none answers",
)

PRODUCER = Scope("producer")
PRODUCER.update(CLIENT)
PRODUCER.left_out |= CLIENT.left_out

# Durability of records.

ACKS = PRODUCER.declare(
    "acks", Type.STRING, "all",
    """When a record counts as written: `0` when it was sent, `1` when its leader has it, `all`
    when it is committed and as durable as the topic promises.""",
    check=one_of("all", "0", "1"),
)
ENABLE_IDEMPOTENCE = PRODUCER.declare(
    "enable.idempotence", Type.BOOLEAN, True,
    """Whether batches are numbered, so that one sent again is not written twice.  It needs
    acks=all; other acks turn it off unless it was asked for.""",
)
TRANSACTIONAL_ID = PRODUCER.declare(
    "transactional.id", Type.STRING, None,
    """The name under which transactions are continued.""",
    check=Only(None, "transactions come with a later version"),
)
RETRIES = PRODUCER.declare(
    "retries", Type.INT, INT_MAX,
    """How often a batch is sent again; delivery.timeout.ms is the better bound.""",
    check=between(0, INT_MAX),
)
DELIVERY_TIMEOUT_MS = PRODUCER.declare(
    "delivery.timeout.ms", Type.INT, 120_000,
    """How long after send() a record may wait, travel and be sent again before it has failed; at
    least linger.ms + request.timeout.ms.""",
    check=at_least(0),
)
MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION = PRODUCER.declare(
    "max.in.flight.requests.per.connection", Type.INT, 5,
    """How many requests may be unanswered on a connection; at most 5 keep their order with
    enable.idempotence.""",
    check=at_least(1),
)

# Batching.

BATCH_SIZE = PRODUCER.declare(
    "batch.size", Type.INT, 16_384,
    """The size at which a batch is sent without waiting for more; 0 sends each record alone.""",
    check=at_least(0),
)
LINGER_MS = PRODUCER.declare(
    "linger.ms", Type.LONG, 5,
    """How long a batch that is not full waits for more records.""",
    check=at_least(0),
)
BUFFER_MEMORY = PRODUCER.declare(
    "buffer.memory", Type.LONG, 32 << 20,
    """How many bytes of records may wait to be sent; send() waits when it is used up.""",
    check=at_least(0),
)
MAX_BLOCK_MS = PRODUCER.declare(
    "max.block.ms", Type.LONG, 60_000,
    """How long send() waits for room, or for the topic to be there, before it fails.""",
    check=at_least(0),
)
MAX_REQUEST_SIZE = PRODUCER.declare(
    "max.request.size", Type.INT, 1 << 20,
    """The largest record, uncompressed, and the largest request.""",
    check=at_least(0),
)
PARTITIONER = PRODUCER.declare(
    "partitioner", Type.STRING, "murmur2",
    """Where a record without a partition goes.  `murmur2`: by its key, as Java's clients do it, and
    without a key to one partition for as long as it takes to fill a batch.  `round_robin`: to each
    in turn.  Or a function of topic, key and the number of partitions.""",
    check=one_of("murmur2", "round_robin"),
)
KEY_SERIALIZER = PRODUCER.declare(
    "key.serializer", Type.STRING, None,
    """A function of a key that returns bytes or text; without one, keys are bytes or text.""",
    check=Only(None, "a function is given instead of the name of a Java class"),
)
VALUE_SERIALIZER = PRODUCER.declare(
    "value.serializer", Type.STRING, None,
    """A function of a value that returns bytes or text; without one, values are bytes or text.
    None, a tombstone, is not given to it.""",
    check=Only(None, "a function is given instead of the name of a Java class"),
)
COMPRESSION_TYPE = PRODUCER.declare(
    "compression.type", Type.STRING, "none",
    """How batches are compressed.""",
    check=one_of("none", "gzip", "snappy", "lz4", "zstd"),
)
COMPRESSION_GZIP_LEVEL = PRODUCER.declare(
    "compression.gzip.level", Type.INT, -1,
    """How hard gzip tries, from 1 to 9; -1 is zlib's own choice.""",
    check=Check("-1, or between 1 and 9", lambda level: level == -1 or 1 <= level <= 9),
)
COMPRESSION_LZ4_LEVEL = PRODUCER.declare(
    "compression.lz4.level", Type.INT, 9,
    """How hard lz4 tries; 9 is the fast compressor.""",
    check=between(1, 17),
)
COMPRESSION_ZSTD_LEVEL = PRODUCER.declare(
    "compression.zstd.level", Type.INT, 3,
    """How hard zstd tries.""",
    check=between(-131_072, 22),
)

PRODUCER.leave_out(
    "transaction.timeout.ms", "transaction.two.phase.commit.enable",
    because="transactions come with a later version",
)
PRODUCER.leave_out(
    "partitioner.class", "partitioner.ignore.keys", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    because="partitioner takes a name or a function",
)
PRODUCER.leave_out(
    "metadata.max.idle.ms", because="a topic is asked about only when it is used",
)

CONSUMER = Scope("consumer")
CONSUMER.update(CLIENT)
CONSUMER.left_out |= CLIENT.left_out

# Topics, groups and start positions.

GROUP_ID = CONSUMER.declare(
    "group.id", Type.STRING, None,
    """The name under which offsets are committed and found again.  The consumer does not become a
    member of the group: it reads the partitions it is told to.""",
    check=Check("a name of 1 to 32767 bytes", lambda name: 0 < len(name.encode()) <= 0x7FFF),
)
AUTO_OFFSET_RESET = CONSUMER.declare(
    "auto.offset.reset", Type.STRING, "earliest",
    """Where to begin without an offset, or with one that is gone; `none` raises instead.""",
    check=one_of("earliest", "latest", "none"),
)
ENABLE_AUTO_COMMIT = CONSUMER.declare(
    "enable.auto.commit", Type.BOOLEAN, False,
    """Whether offsets are committed by themselves.""",
    check=Only(False, "commit() says which records are done with"),
)
ISOLATION_LEVEL = CONSUMER.declare(
    "isolation.level", Type.STRING, "read_uncommitted",
    """Whether records of transactions that are not committed are read.""",
    check=one_of("read_uncommitted", "read_committed"),
)
ALLOW_AUTO_CREATE_TOPICS = CONSUMER.declare(
    "allow.auto.create.topics", Type.BOOLEAN, True,
    """Whether to ask about a topic makes it, where the broker allows that.""",
)
CHECK_CRCS = CONSUMER.declare(
    "check.crcs", Type.BOOLEAN, True,
    """Whether the checksum of each batch is computed again before its records are believed.""",
)
DEFAULT_API_TIMEOUT_MS = CONSUMER.declare(
    "default.api.timeout.ms", Type.INT, 60_000,
    """How long a call may take that was given no timeout of its own.""",
    check=at_least(0),
)
CONSUMER_TIMEOUT_MS = CONSUMER.declare(
    "consumer.timeout.ms", Type.LONG, -1,
    """How long an iteration waits for a record before it ends; -1 waits for ever.""",
    check=at_least(-1),
)

# Sizes of fetches.

FETCH_MIN_BYTES = CONSUMER.declare(
    "fetch.min.bytes", Type.INT, 1,
    """How many bytes of records the broker waits for before it answers.""",
    check=at_least(0),
)
FETCH_MAX_WAIT_MS = CONSUMER.declare(
    "fetch.max.wait.ms", Type.INT, 500,
    """How long it waits for them.""",
    check=at_least(0),
)
FETCH_MAX_BYTES = CONSUMER.declare(
    "fetch.max.bytes", Type.INT, 50 << 20,
    """How many bytes of records an answer may bring; the first batch always comes whole.""",
    check=at_least(0),
)
MAX_PARTITION_FETCH_BYTES = CONSUMER.declare(
    "max.partition.fetch.bytes", Type.INT, 1 << 20,
    """How many of them from one partition.""",
    check=at_least(0),
)
CONSUMER.leave_out(
    "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "group.instance.id",
    "partition.assignment.strategy", "group.protocol", "group.remote.assignor",
    "auto.commit.interval.ms", "internal.leave.group.on.close", "share.",
    because="this consumer joins no group yet",
)
CONSUMER.leave_out(
    "key.deserializer", "value.deserializer", because="keys and values are bytes",
)
CONSUMER.leave_out(
    "client.rack", "exclude.internal.topics",
    because="every partition is read from its leader, and topics are named",
)

CONSUMER.leave_out(
    "max.poll.records", because="records come one at a time, or as many as batches() is told",
)


def own(scope: Scope) -> Scope:
    """Return the keys of a scope that it does not share with the other."""
    result = Scope(scope.owner, scope.keys_update)
    result.update({name: key for name, key in scope.items() if name not in CLIENT})
    result.left_out = {
        name: because for name, because in scope.left_out.items() if name not in CLIENT.left_out
    }
    return result


SCOPES: tuple[Scope, ...] = (CLIENT, own(PRODUCER), own(CONSUMER))
"""Every key once: the shared ones, those of a producer, those of a consumer."""
