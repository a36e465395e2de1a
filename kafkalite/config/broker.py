"""Keys of a broker: Kafka's names, and Kafka's defaults except where they do not suit one host.

Defaults that differ from Kafka's:
    listeners                    loopback only; Kafka listens on every address
    log.flush.interval.ms        1000, since `durability=interval` flushes by it
    group.initial.rebalance.delay.ms    0; Kafka lets every first consumer wait 3 s
    offsets.topic.num.partitions        1; Kafka has 50, but here node 0 leads all of them
    queued.max.request.bytes     bounded, so that many clients cannot fill the memory
Keys that Kafka does not have: `workers`, `worker.dedicated.max`, `durability`, `durable.copies`,
`flush.bytes`, `metrics.listener`, `storage.min.free.bytes`, `native.enable`, `native.ring.bytes`,
`native.rings.bytes.max`.

Most keys that Kafka reads only at startup may change while the broker runs, except those that
sockets, processes and files depend on.  `durability` may not change either, since the banner states
it at startup; a topic's may.  `advertised.listeners`, which may change in Kafka, may not, because
status.json contains it too.  Defaults of topics cannot be set for one node, as in Kafka: partitions
move between nodes and keep their configuration.

A broker key that only is the default of a topic's key is not declared again here, but derived from
the topic's key that overrides it.

Left out: Kafka's keys without a counterpart here are refused, commonly used ones with the reason
(unsupported_keys.py).
A group commit has no configurable delay: records appended while one is in progress join the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.config.endpoints import parse_endpoint
from kafkalite.config.group import GROUP, GROUP_COORDINATOR
from kafkalite.config.key import (
    Check,
    ConfigKey,
    OnlyValue,
    Scope,
    Type,
    UpdateMode,
    at_least,
    between,
    one_of,
)
from kafkalite.config.listener import parse_listener
from kafkalite.config.log_cleaner import LOG_CLEANER
from kafkalite.config.replication import REPLICATION
from kafkalite.config.share_group import SHARE
from kafkalite.config.topic import DURABILITY, TOPIC
from kafkalite.config.unsupported_keys import UNSUPPORTED_KEYS

BROKER = Scope("broker")

INT_MAX = (1 << 31) - 1

WORKERS_MAX = 128

RING_BYTES_MIN, RING_BYTES_MAX = 64 << 10, 1 << 30


def is_endpoint(text: str) -> bool:
    return parse_endpoint(text) is not None


def one_listener(entries: tuple[str, ...]) -> bool:
    return len(entries) == 1 and parse_listener(entries[0]) is not None


# Identity and addresses.

NODE_ID = BROKER.declare(
    "node.id", Type.INT, 0,
    """Id of this node in requests and responses of clients.""",
    check=OnlyValue(0, "the first node is 0, and each worker's is the next"),
)
LISTENERS = BROKER.declare(
    "listeners", Type.LIST, ("PLAINTEXT://127.0.0.1:9092",),
    """Address to listen on.  With port 0 the system chooses a free one, which the ready file and
    `kafkalite status` show.  An empty host means every address of the machine.""",
    check=Check("one PLAINTEXT://HOST:PORT", one_listener),
)
ADVERTISED_LISTENERS: ConfigKey[tuple[str, ...] | None] = BROKER.declare(
    "advertised.listeners", Type.LIST, None,
    """Address that is sent to clients in metadata responses.  If not set, each client gets the
    address to which it connected, which is right unless a network between maps addresses or
    ports.""",
    check=Check("one PLAINTEXT://HOST:PORT", one_listener),
)
BROKER_RACK: ConfigKey[str | None] = BROKER.declare(
    "broker.rack", Type.STRING, None,
    """Rack of this node, as sent to clients in metadata responses.  All nodes are on one host, so
    racks of their own, set for one broker each, are for tests of clients.  Unlike in Kafka, it may
    change while the broker runs.""",
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_DIRS: ConfigKey[Sequence[str]] = BROKER.declare(
    "log.dirs", Type.LIST, (),
    """Directories of the logs, best on different disks; the flag --data, once for each, sets the
    same.  The first is the data directory, which also holds all other files of the broker.  Each
    worker keeps its logs in one directory, replicas of a partition are placed in different ones
    first, and the metadata log is copied to all.  If not set, it is one directory below the user's
    home.""",
)

# Processes.

WORKERS: ConfigKey[int | None] = BROKER.declare(
    "workers", Type.INT, None,
    """Number of worker processes that share the partitions.  Each is a node on its own port: the
    lowest above node 0's that no other node has.  0 serves everything from one process on one port.
    If not set, the number is that of the last start, and at the first start one per processor core,
    but at least 3.""",
    check=Check(
        f"between 0 and {WORKERS_MAX} (each is a process, and clients connect to all of them)",
        lambda count: 0 <= count <= WORKERS_MAX,
    ),
)
WORKERS_LEADING: ConfigKey[int | None] = BROKER.declare(
    "workers.leading", Type.INT, None,
    """Maximum number of workers that lead partitions; the others stand by.  Each leading worker is
    one more connection, thread and wake-up for a client, and divides its requests.  Unset, all
    workers lead where `workers` is set, otherwise one for every two processor cores, but at least
    one.  A change applies to new partitions; `kafkalite node rebalance` moves the others.""",
    check=between(1, WORKERS_MAX),
    update=UpdateMode.CLUSTER_ONLY,
)
WORKER_DEDICATED_MAX = BROKER.declare(
    "worker.dedicated.max", Type.INT, 16,
    """Maximum number of workers that serve a single partition, of topics with worker.dedicated.
    Each is one more broker to every client, which may cost it a thread.""",
    check=between(0, WORKERS_MAX),
    update=UpdateMode.CLUSTER_ONLY,
)
BROKER_HEARTBEAT_INTERVAL_MS = BROKER.declare(
    "broker.heartbeat.interval.ms", Type.INT, 2_000,
    """Interval of the heartbeats from a worker to the supervisor, and from the supervisor to the
    launcher.""",
    check=at_least(1),
)
BROKER_SESSION_TIMEOUT_MS = BROKER.declare(
    "broker.session.timeout.ms", Type.INT, 9_000,
    """Time without heartbeats after which a node's process is killed and restarted, if it is
    stopped.  If it runs, it is considered busy until broker.tick.timeout.ms.""",
    check=at_least(1),
)
BROKER_TICK_TIMEOUT_MS = BROKER.declare(
    "broker.tick.timeout.ms", Type.INT, 60_000,
    """Maximum time between two ticks of the event loop of a running process, before the process is
    killed and restarted.""",
    check=at_least(1),
)

# Topics.

NUM_PARTITIONS = BROKER.declare(
    "num.partitions", Type.INT, 1,
    """Default number of partitions of a new topic.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
DEFAULT_REPLICATION_FACTOR = BROKER.declare(
    "default.replication.factor", Type.INT, 1,
    """Default number of replicas of a new topic's partitions.  Each is on another node.""",
    check=between(1, WORKERS_MAX),
)
AUTO_CREATE_TOPICS_ENABLE = BROKER.declare(
    "auto.create.topics.enable", Type.BOOLEAN, True,
    """Create a topic when a client first requests its metadata.""",
    update=UpdateMode.CLUSTER_ONLY,
)
DELETE_TOPIC_ENABLE = BROKER.declare(
    "delete.topic.enable", Type.BOOLEAN, True,
    """Allow topics to be deleted.""",
    update=UpdateMode.CLUSTER_ONLY,
)

# Connections and requests.

SOCKET_REQUEST_MAX_BYTES = BROKER.declare(
    "socket.request.max.bytes", Type.INT, 100 << 20,
    """Maximum size of a request.  A connection that announces a larger one is closed.""",
    check=at_least(1),
)
SOCKET_SEND_BUFFER_BYTES = BROKER.declare(
    "socket.send.buffer.bytes", Type.INT, 102_400,
    """Size of a connection's send buffer (SO_SNDBUF); -1 uses the default of the kernel.""",
    check=at_least(-1),
)
SOCKET_RECEIVE_BUFFER_BYTES = BROKER.declare(
    "socket.receive.buffer.bytes", Type.INT, 102_400,
    """Size of a connection's receive buffer (SO_RCVBUF); -1 uses the default of the kernel.""",
    check=at_least(-1),
)
SOCKET_LISTEN_BACKLOG_SIZE = BROKER.declare(
    "socket.listen.backlog.size", Type.INT, 50,
    """Maximum number of connections that wait to be accepted; the kernel limits it as well.""",
    check=at_least(1),
)
CONNECTIONS_MAX_IDLE_MS = BROKER.declare(
    "connections.max.idle.ms", Type.LONG, 600_000,
    """Time after which an idle connection is closed; -1 disables the timeout.""",
    check=at_least(-1),
    update=UpdateMode.CLUSTER_WIDE,
)
MAX_CONNECTIONS = BROKER.declare(
    "max.connections", Type.INT, INT_MAX,
    """Maximum number of connections to a node.""",
    check=at_least(1),  # with 0 no client could connect to raise it
    update=UpdateMode.CLUSTER_WIDE,
)
MAX_CONNECTIONS_PER_IP = BROKER.declare(
    "max.connections.per.ip", Type.INT, INT_MAX,
    """Maximum number of connections to a node from one address.""",
    check=at_least(1),  # with 0 no client could connect to raise it
    update=UpdateMode.CLUSTER_WIDE,
)
QUEUED_MAX_REQUEST_BYTES = BROKER.declare(
    "queued.max.request.bytes", Type.LONG, 512 << 20,
    """Maximum bytes of a node's requests without a response.  Above it the node reads no further
    requests.  -1 disables the limit.""",
    check=Check("-1 or at least 1", lambda size: size == -1 or size >= 1),
)
QUEUED_MAX_RESPONSE_BYTES = BROKER.declare(
    "queued.max.response.bytes", Type.LONG, 256 << 20,
    """Maximum memory of a node for responses that clients have not read yet.  Above half of it the
    node handles no further requests of clients that read slowly; above it, it closes the slowest
    connections.  -1 disables the limit.""",
    check=Check("-1 or at least 1048576", lambda size: size == -1 or size >= 1 << 20),
)
FETCH_MAX_BYTES = BROKER.declare(
    "fetch.max.bytes", Type.INT, 55 << 20,
    """Maximum bytes of records in a fetch response, regardless of the request.""",
    check=at_least(1024),
    update=UpdateMode.CLUSTER_WIDE,
)
MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS = BROKER.declare(
    "max.incremental.fetch.session.cache.slots", Type.INT, 1_000,
    """Maximum number of incremental fetch sessions of a node.  A session that was used in the last
    two minutes is not evicted; a client without a session sends all partitions in each request.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_WIDE,
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = BROKER.declare(
    "max.request.partition.size.limit", Type.INT, 2_000,
    """Maximum number of partitions in a DescribeTopicPartitions response.  The client requests the
    rest with the cursor in the response.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_WIDE,
)
PRODUCER_ID_EXPIRATION_MS = BROKER.declare(
    "producer.id.expiration.ms", Type.INT, 86_400_000,
    """Time after its last batch when a partition removes the state of an idempotent producer.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
PRODUCER_STATE_MAX_PER_PARTITION = BROKER.declare(
    "producer.state.max.per.partition", Type.INT, 10_000,
    """Maximum number of idempotent producers whose state a partition keeps.  Beyond it, the
    partition removes the state of those that wrote least recently, as if
    `producer.id.expiration.ms` had passed for them; never that of one with an open transaction.
    Ten thousand take about 5 MB of memory, and 4 to 6 ms of their broker for each snapshot, as one
    step: the maximum keeps that below 50 ms.""",
    check=between(1, 50_000),
    update=UpdateMode.CLUSTER_ONLY,
)
TRANSACTION_MAX_TIMEOUT_MS = BROKER.declare(
    "transaction.max.timeout.ms", Type.INT, 900_000,
    """Maximum transaction timeout that a producer may request.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
TRANSACTIONAL_ID_EXPIRATION_MS = BROKER.declare(
    "transactional.id.expiration.ms", Type.INT, 604_800_000,
    """Time after its last transaction when a transactional id is removed.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS = BROKER.declare(
    "transaction.remove.expired.transaction.cleanup.interval.ms", Type.INT, 3_600_000,
    """Interval at which expired transactional ids are looked for.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
TRANSACTION_STATE_LOG_NUM_PARTITIONS = BROKER.declare(
    "transaction.state.log.num.partitions", Type.INT, 1,
    """Number of partitions of the internal topic of transactions (__transaction_state), in effect
    when the topic is created.""",
    check=between(1, 10_000),
)
TRANSACTION_STATE_LOG_REPLICATION_FACTOR = BROKER.declare(
    "transaction.state.log.replication.factor", Type.SHORT, 1,
    "Number of replicas of __transaction_state, at most the number of nodes; node 0 leads.",
    check=at_least(1),
)
TRANSACTION_STATE_LOG_MIN_ISR = BROKER.declare(
    "transaction.state.log.min.isr", Type.INT, 2,
    """min.insync.replicas of __transaction_state, at most its number of replicas.""",
    check=at_least(1),
)
TRANSACTION_STATE_LOG_SEGMENT_BYTES = BROKER.declare(
    "transaction.state.log.segment.bytes", Type.INT, 100 << 20,
    """segment.bytes of __transaction_state.""",
    check=at_least(1 << 20),
)
TRANSACTION_PARTITION_VERIFICATION_ENABLE = BROKER.declare(
    "transaction.partition.verification.enable", Type.BOOLEAN, True,
    """Accept the first records of a transaction in a partition only if the transaction coordinator
    knows that the partition belongs to the transaction.  Without it a client that ends without
    ending its transaction may leave one open for good, which holds back `read_committed`
    consumers.""",
    update=UpdateMode.CLUSTER_WIDE,
)
TRANSACTION_TWO_PHASE_COMMIT_ENABLE = BROKER.declare(
    "transaction.two.phase.commit.enable", Type.BOOLEAN, False,
    """Experimental: let producers take part in two-phase commit (KIP-939).  Their transactions have
    no timeout, and a restarted producer may keep its transaction to commit or abort it.  Until then
    `read_committed` consumers wait.""",
)

ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MS = BROKER.declare(
    "add.partitions.to.txn.retry.backoff.ms", Type.INT, 20,
    """Interval at which a partition's leader repeats a request to add the partition to a
    transaction, while the producer's previous transaction is not completed.""",
    check=at_least(1),
)
ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MAX_MS = BROKER.declare(
    "add.partitions.to.txn.retry.backoff.max.ms", Type.INT, 100,
    """Time for which a partition's leader repeats a request to add the partition to a transaction.
    After it the producer gets CONCURRENT_TRANSACTIONS and repeats its own request.""",
    check=at_least(0),
)

# Local clients.

NATIVE_ENABLE = BROKER.declare(
    "native.enable", Type.BOOLEAN, True,
    """Let programs on this host write and read through shared memory and files, over a Unix socket
    in the run directory.  Otherwise they use TCP, like all other clients.""",
)
NATIVE_RING_BYTES = BROKER.declare(
    "native.ring.bytes", Type.INT, 4 << 20,
    """Size of the ring through which a local producer writes to a node.  A batch may take a quarter
    of it.""",
    check=Check(
        f"a power of two between {RING_BYTES_MIN} and {RING_BYTES_MAX}",
        lambda size: RING_BYTES_MIN <= size <= RING_BYTES_MAX and size & (size - 1) == 0,
    ),
    update=UpdateMode.CLUSTER_WIDE,
)
NATIVE_RINGS_BYTES_MAX = BROKER.declare(
    "native.rings.bytes.max", Type.LONG, 256 << 20,
    """Maximum memory of all rings of a node.  A producer for which there is no ring writes over
    TCP.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_WIDE,
)

# Consumer groups.

GROUP_MIN_SESSION_TIMEOUT_MS = BROKER.declare(
    "group.min.session.timeout.ms", Type.INT, 6_000,
    """Minimum session timeout of a group's member.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
GROUP_MAX_SESSION_TIMEOUT_MS = BROKER.declare(
    "group.max.session.timeout.ms", Type.INT, 1_800_000,
    """Maximum session timeout of a group's member.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
GROUP_INITIAL_REBALANCE_DELAY_MS = BROKER.declare(
    "group.initial.rebalance.delay.ms", Type.INT, 0,
    """Time for which an empty group waits for more members after the first one has joined.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_ONLY,
)
GROUP_MAX_SIZE = BROKER.declare(
    "group.max.size", Type.INT, INT_MAX,
    """Maximum number of members of a group.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
OFFSET_METADATA_MAX_BYTES = BROKER.declare(
    "offset.metadata.max.bytes", Type.INT, 4_096,
    """Maximum size of the metadata committed with an offset.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_ONLY,
)
OFFSETS_RETENTION_MINUTES = BROKER.declare(
    "offsets.retention.minutes", Type.INT, 10_080,
    """Retention of committed offsets after their group has become empty, or after their commit if
    the group consists of offsets only.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = BROKER.declare(
    "offsets.retention.check.interval.ms", Type.LONG, 600_000,
    """Interval of the search for expired committed offsets.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
OFFSETS_TOPIC_NUM_PARTITIONS = BROKER.declare(
    "offsets.topic.num.partitions", Type.INT, 1,
    """Number of partitions of the internal topic of groups (__consumer_offsets), in effect when the
    topic is created.""",
    check=between(1, 10_000),
)
OFFSETS_TOPIC_REPLICATION_FACTOR = BROKER.declare(
    "offsets.topic.replication.factor", Type.SHORT, 1,
    """Number of replicas of __consumer_offsets, at most the number of nodes; node 0 leads.""",
    check=at_least(1),
)
OFFSETS_TOPIC_SEGMENT_BYTES = BROKER.declare(
    "offsets.topic.segment.bytes", Type.INT, 100 << 20,
    """segment.bytes of __consumer_offsets.""",
    check=at_least(1 << 20),
)

# Metrics.

METRICS_LISTENER: ConfigKey[str | None] = BROKER.declare(
    "metrics.listener", Type.STRING, None,
    """HOST:PORT at which the metrics exporter, a service beside the broker, serves Prometheus; the
    flag --metrics sets the same.  Port 0 takes a free one.  If not set, there is no exporter.""",
)
TELEMETRY_MAX_BYTES = BROKER.declare(
    "telemetry.max.bytes", Type.INT, 1 << 20,
    """Maximum compressed size of the metrics that a client pushes (KIP-714).""",
    check=at_least(1),
)

# The ZeroMQ gateway.

GATEWAY_LISTENER: ConfigKey[str | None] = BROKER.declare(
    "gateway.listener", Type.STRING, None,
    """Endpoint for PUSH sockets, tcp://HOST:PORT or ipc://PATH.  The ZeroMQ gateway, a service
    beside the broker, produces their messages; the flag --gateway sets the same.  Port 0 takes a
    free one.  If not set, there is no gateway.""",
    check=Check("tcp://HOST:PORT or ipc://PATH", is_endpoint),
)
GATEWAY_DEALER_LISTENER: ConfigKey[str | None] = BROKER.declare(
    "gateway.dealer.listener", Type.STRING, None,
    """Endpoint for DEALER sockets, which get responses.  If not set, it is the port after that of
    gateway.listener, or its path followed by -dealer: a ZeroMQ socket accepts one type of peer.""",
    check=Check("tcp://HOST:PORT or ipc://PATH", is_endpoint),
)
GATEWAY_ACKS = BROKER.declare(
    "gateway.acks", Type.STRING, "all",
    """Acknowledgement after which a message counts as written and a DEALER gets its response; see
    acks of a producer.""",
    check=one_of("all", "1"),
)
GATEWAY_LINGER_MS = BROKER.declare(
    "gateway.linger.ms", Type.INT, 5,
    """Maximum time for which the gateway gathers messages of a partition into a batch.""",
    check=between(0, 10_000),
)
GATEWAY_BATCH_SIZE = BROKER.declare(
    "gateway.batch.size", Type.INT, 128 << 10,
    """Size at which the gateway sends a batch without waiting for more messages.""",
    check=between(1 << 10, 1_000_000),
)
GATEWAY_COMPRESSION_TYPE = BROKER.declare(
    "gateway.compression.type", Type.STRING, "none",
    """Compression of the gateway's batches.""",
    check=one_of("none", "gzip", "snappy", "lz4", "zstd"),
)
GATEWAY_BUFFER_MEMORY = BROKER.declare(
    "gateway.buffer.memory", Type.LONG, 32 << 20,
    """Maximum bytes of messages in the gateway that the broker has not written yet.  Above it the
    gateway receives nothing, and the queues of its senders fill.""",
    check=at_least(2 << 20),
)
GATEWAY_RECEIVE_HWM = BROKER.declare(
    "gateway.receive.hwm", Type.INT, 1_000,
    """ZeroMQ's high-water mark: maximum number of messages that ZeroMQ queues from one sender while
    the gateway receives nothing, and of responses that it queues for one DEALER.  The gateway keeps
    further responses until the DEALER reads, up to gateway.buffer.memory, and then receives nothing
    more from DEALERs.""",
    check=between(1, 1_000_000),
)
GATEWAY_MESSAGE_MAX_BYTES = BROKER.declare(
    "gateway.message.max.bytes", Type.INT, 1 << 20,
    """Maximum size of a frame of a message.  A message with a larger one is refused; a sender that
    announces one larger than 16 MiB and than twice this size is disconnected.""",
    check=between(1 << 10, 64 << 20),
)
GATEWAY_MEMORY_MAX_BYTES = BROKER.declare(
    "gateway.memory.max.bytes", Type.LONG, 1 << 30,
    """Memory of the gateway at which it disconnects all its peers, which may connect again: ZeroMQ
    sets no limit on the number of frames of a message.""",
    check=at_least(128 << 20),
)
GATEWAY_HANDSHAKE_TIMEOUT_MS = BROKER.declare(
    "gateway.handshake.timeout.ms", Type.INT, 10_000,
    """Timeout of the handshake with a peer of the gateway.""",
    check=between(1, 600_000),
)
GATEWAY_CURVE_KEY_FILE: ConfigKey[str | None] = BROKER.declare(
    "gateway.curve.key.file", Type.STRING, None,
    """File of the gateway's secret key.  It enables encryption of every connection (CURVE), and
    only clients of gateway.curve.clients are accepted.  `kafkalite gateway keys` creates it.""",
)
GATEWAY_CURVE_CLIENTS: ConfigKey[str | None] = BROKER.declare(
    "gateway.curve.clients", Type.STRING, None,
    """Directory with the public key of each accepted client, one file NAME.key each.  A file that
    is added or removed applies to later connections.""",
)

# Storage.

STORAGE_MIN_FREE_BYTES = BROKER.declare(
    "storage.min.free.bytes", Type.LONG, -1,
    """Free space of the disk below which producers get a retriable error; reads continue.  -1 means
    5 % of the disk, but at most 1 GiB.""",
    check=at_least(-1),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = BROKER.declare(
    "log.flush.offset.checkpoint.interval.ms", Type.INT, 60_000,
    """Interval at which recovery points are written: the offsets from which logs are checked after
    a crash.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_BACKGROUND_FLUSH_INTERVAL_MS = BROKER.declare(
    "log.background.flush.interval.ms", Type.LONG, 180_000,
    """Interval between background flushes of logs with durability=os.  Recovery after a power cut
    reads only what was written since the last one.""",
    check=at_least(1000),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_RETENTION_CHECK_INTERVAL_MS = BROKER.declare(
    "log.retention.check.interval.ms", Type.LONG, 300_000,
    """Interval of the search for segments that retention deletes.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_WIDE,
)
BROKER.update(LOG_CLEANER)
BROKER.update(REPLICATION)
BROKER.update(GROUP_COORDINATOR)
BROKER.update(SHARE)

NUM_RECOVERY_THREADS_PER_DATA_DIR = BROKER.declare(
    "num.recovery.threads.per.data.dir", Type.INT, 2,
    """Number of logs that are recovered in parallel when the broker starts after a crash.""",
    check=at_least(1),
)

# Defaults of topics.  If a setting has several units, the finest one that is set wins.

BROKER.declare(
    "log.retention.ms", Type.LONG, None,
    """Retention of a segment after the timestamp of its newest record, for topics without
    retention.ms.  -1 disables the limit.  If not set, log.retention.minutes applies.""",
    check=at_least(-1),
    update=UpdateMode.CLUSTER_ONLY,
)
BROKER.declare(
    "log.retention.minutes", Type.INT, None,
    """log.retention.ms in minutes.  If not set, log.retention.hours applies.""",
    check=at_least(-1),
)
BROKER.declare(
    "log.retention.hours", Type.INT, 168,
    """log.retention.ms in hours.""",
    check=at_least(-1),
)
BROKER.declare(
    "log.roll.ms", Type.LONG, None,
    """Maximum age of the active segment, for topics without segment.ms.  If not set, log.roll.hours
    applies.""",
    check=at_least(1),
    update=UpdateMode.CLUSTER_ONLY,
)
BROKER.declare(
    "log.roll.hours", Type.INT, 168,
    """log.roll.ms in hours.""",
    check=at_least(1),
)
BROKER.declare(
    "log.roll.jitter.ms", Type.LONG, None,
    """Maximum random reduction of log.roll.ms, for topics without segment.jitter.ms.  If not set,
    log.roll.jitter.hours applies.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_ONLY,
)
BROKER.declare(
    "log.roll.jitter.hours", Type.INT, 0,
    """log.roll.jitter.ms in hours.""",
    check=at_least(0),
)
for key in TOPIC.values():
    for name in key.overrides:
        if name not in BROKER:
            doc = f"For topics without {key.name}.  {key.doc}"
            update = UpdateMode.READ_ONLY if key is DURABILITY else UpdateMode.CLUSTER_ONLY
            BROKER.declare(name, key.type, key.default, doc, check=key.check, update=update)

for key in GROUP.values():
    for name in key.overrides:
        doc = f"For groups without {key.name}.  {key.doc}"
        update = UpdateMode.CLUSTER_ONLY
        BROKER.declare(name, key.type, key.default, doc, check=key.check, update=update)

for names, reason in UNSUPPORTED_KEYS.items():
    BROKER.leave_out(*names, because=reason)
