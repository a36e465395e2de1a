"""Keys of a broker: Kafka's names, and Kafka's defaults except where they do not suit one host.

Defaults that differ from Kafka's:
    listeners                    loopback only; Kafka listens on every address
    log.flush.interval.ms        1000, since `durability=interval` flushes by it
    group.initial.rebalance.delay.ms    0; Kafka lets every first consumer wait 3 s
    offsets.topic.num.partitions        1; Kafka has 50, but here node 0 leads all of them
    queued.max.request.bytes     bounded, so that many clients cannot fill the memory
Keys that Kafka does not have: `workers`, `worker.dedicated.max`, `durability`, `flush.bytes`,
`metrics.listener`, `storage.min.free.bytes`, `native.enable`, `native.ring.bytes`,
`native.rings.bytes.max`.

Most keys that Kafka reads only at startup may change while the broker runs, except those that
sockets, processes and files depend on.  `durability` may not change either, since the banner states
it at startup; a topic's may.  `advertised.listeners`, which may change in Kafka, may not, because
status.json contains it too.  Defaults of topics cannot be set for one node, as in Kafka: partitions
move between nodes and keep their configuration.

A broker key that only is the default of a topic's key is not declared again here, but derived from
the topic's key that overrides it.

Left out: Kafka's keys without a counterpart here are refused, commonly used ones with the reason.
A group commit has no configurable delay: records appended while one is in progress join the next.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.config.endpoints import parse_endpoint
from kafkalite.config.key import (
    Check,
    Key,
    Only,
    Scope,
    Type,
    Update,
    at_least,
    between,
    one_of,
    quoted,
)
from kafkalite.config.topic import DURABILITY, TOPIC
from kafkalite.errors import InvalidConfig

BROKER = Scope("broker")

INT_MAX = (1 << 31) - 1

WORKERS_MAX = 128

RING_BYTES_MIN, RING_BYTES_MAX = 64 << 10, 1 << 30


class Listener(NamedTuple):
    """An address to listen on, or to advertise to clients."""

    host: str
    port: int


def parse_listener(text: str) -> Listener:
    """Parse `PLAINTEXT://HOST:PORT`; an IPv6 host is in brackets."""
    protocol, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not (port.isascii() and port.isdigit() and len(port) < 6):
        raise InvalidConfig(f"A listener is written PLAINTEXT://HOST:PORT, not {quoted(text)}.")
    if protocol.upper() != "PLAINTEXT":
        raise InvalidConfig(f"In this version only PLAINTEXT is served, not {quoted(text)}.")
    if int(port) > 65_535:
        raise InvalidConfig(f"A port is at most 65535, which {port} is not.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidConfig(f"An IPv6 address stands in brackets: PLAINTEXT://[{host}]:{port}.")
    return Listener(host, int(port))


def is_endpoint(text: str) -> bool:
    return parse_endpoint(text) is not None


def one_listener(entries: tuple[str, ...]) -> bool:
    return len(entries) == 1 and parse_listener(entries[0]) is not None


# Identity and addresses.

NODE_ID = BROKER.declare(
    "node.id", Type.INT, 0,
    """The number by which clients know this node.""",
    check=Only(0, "the first node is 0, and each worker's is the next"),
)
LISTENERS = BROKER.declare(
    "listeners", Type.LIST, ("PLAINTEXT://127.0.0.1:9092",),
    """The address to listen on.  Port 0 lets the system choose a free one; the ready file and
    `kafkalite status` say which.  An empty host is every address of the machine.""",
    check=Check("one PLAINTEXT://HOST:PORT", one_listener),
)
ADVERTISED_LISTENERS: Key[tuple[str, ...] | None] = BROKER.declare(
    "advertised.listeners", Type.LIST, None,
    """The address that clients are told to connect to.  Unset, each client is told the address
    it connected to, which is right unless a network between maps addresses or ports.""",
    check=Check("one PLAINTEXT://HOST:PORT", one_listener),
)
BROKER_RACK: Key[str | None] = BROKER.declare(
    "broker.rack", Type.STRING, None,
    """The rack that clients are told this node stands in.""",
)
LOG_DIRS = BROKER.declare(
    "log.dirs", Type.LIST, (),
    """The directory that holds the logs and all else the broker keeps; the flag --data names
    the same.  Unset, it is a directory of the user's own.""",
    check=Check("one directory", lambda entries: len(entries) <= 1),
)

# Processes.

WORKERS: Key[int | None] = BROKER.declare(
    "workers", Type.INT, None,
    """How many worker processes share the partitions; each is a node, on a port of its own: the
    lowest after node 0's that no other node has.  0 serves everything from one process and one
    port.  Unset, there are as many as at the last start, and at the first one for each processor
    core but at least 3.""",
    check=Check(
        f"between 0 and {WORKERS_MAX} (each is a process, and clients connect to all of them)",
        lambda count: 0 <= count <= WORKERS_MAX,
    ),
)
WORKERS_LEADING: Key[int | None] = BROKER.declare(
    "workers.leading", Type.INT, None,
    """Maximum number of workers that lead partitions; the others stand by.  Each leading worker is
    one more connection, thread and wake-up for a client, and divides its requests.  Unset, all
    workers lead where `workers` is set, otherwise one for every two processor cores, but at least
    one.  A change applies to new partitions; `kafkalite node rebalance` moves the others.""",
    check=between(1, WORKERS_MAX),
    update=Update.CLUSTER_ONLY,
)
WORKER_DEDICATED_MAX = BROKER.declare(
    "worker.dedicated.max", Type.INT, 16,
    """How many workers there may be that serve one partition alone, of topics with
    worker.dedicated.  Each is one more broker to every client, which may cost it a thread.""",
    check=between(0, WORKERS_MAX),
    update=Update.CLUSTER_ONLY,
)
BROKER_HEARTBEAT_INTERVAL_MS = BROKER.declare(
    "broker.heartbeat.interval.ms", Type.INT, 2_000,
    """How often a worker tells the supervisor that it is alive.""",
    check=at_least(1),
)
BROKER_SESSION_TIMEOUT_MS = BROKER.declare(
    "broker.session.timeout.ms", Type.INT, 9_000,
    """Maximum time that a node's process may miss its heartbeats before it is killed and started
    again, if it is stopped.  One that runs is taken to be busy, until broker.tick.timeout.ms.""",
    check=at_least(1),
)
BROKER_TICK_TIMEOUT_MS = BROKER.declare(
    "broker.tick.timeout.ms", Type.INT, 60_000,
    """Maximum time between two ticks of the event loop of a process that runs, before the process
    is killed and started again.""",
    check=at_least(1),
)

# Topics.

NUM_PARTITIONS = BROKER.declare(
    "num.partitions", Type.INT, 1,
    """How many partitions a topic has when its creator does not say.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
DEFAULT_REPLICATION_FACTOR = BROKER.declare(
    "default.replication.factor", Type.INT, 1,
    """How many replicas a partition has when the topic's creator does not say.""",
    check=Only(1, "a partition has one replica in this version"),
)
AUTO_CREATE_TOPICS_ENABLE = BROKER.declare(
    "auto.create.topics.enable", Type.BOOLEAN, True,
    """Whether a topic is created when a client first asks for its metadata.""",
    update=Update.CLUSTER_ONLY,
)
DELETE_TOPIC_ENABLE = BROKER.declare(
    "delete.topic.enable", Type.BOOLEAN, True,
    """Whether topics may be deleted.""",
    update=Update.CLUSTER_ONLY,
)

# Connections and requests.

SOCKET_REQUEST_MAX_BYTES = BROKER.declare(
    "socket.request.max.bytes", Type.INT, 100 << 20,
    """The largest request a client may send; a connection that announces a larger one is
    closed.""",
    check=at_least(1),
)
SOCKET_SEND_BUFFER_BYTES = BROKER.declare(
    "socket.send.buffer.bytes", Type.INT, 102_400,
    """The size of a connection's send buffer in the kernel; -1 leaves it to the kernel.""",
    check=at_least(-1),
)
SOCKET_RECEIVE_BUFFER_BYTES = BROKER.declare(
    "socket.receive.buffer.bytes", Type.INT, 102_400,
    """The size of a connection's receive buffer in the kernel; -1 leaves it to the kernel.""",
    check=at_least(-1),
)
SOCKET_LISTEN_BACKLOG_SIZE = BROKER.declare(
    "socket.listen.backlog.size", Type.INT, 50,
    """How many connections may wait to be accepted; the system bounds it as well.""",
    check=at_least(1),
)
CONNECTIONS_MAX_IDLE_MS = BROKER.declare(
    "connections.max.idle.ms", Type.LONG, 600_000,
    """How long a connection may be silent before it is closed; -1 lets it be.""",
    check=at_least(-1),
    update=Update.CLUSTER_WIDE,
)
MAX_CONNECTIONS = BROKER.declare(
    "max.connections", Type.INT, INT_MAX,
    """How many connections a node holds at once.""",
    check=at_least(1),  # with 0 no client could connect to raise it
    update=Update.CLUSTER_WIDE,
)
MAX_CONNECTIONS_PER_IP = BROKER.declare(
    "max.connections.per.ip", Type.INT, INT_MAX,
    """How many connections a node holds at once from one address.""",
    check=at_least(1),  # with 0 no client could connect to raise it
    update=Update.CLUSTER_WIDE,
)
QUEUED_MAX_REQUEST_BYTES = BROKER.declare(
    "queued.max.request.bytes", Type.LONG, 512 << 20,
    """How many bytes of requests a node holds before it has answered them; above that it reads
    no further.  -1 sets no bound.""",
    check=Check("-1 or at least 1", lambda size: size == -1 or size >= 1),
)
QUEUED_MAX_RESPONSE_BYTES = BROKER.declare(
    "queued.max.response.bytes", Type.LONG, 256 << 20,
    """Maximum memory of a node for responses that clients have not read yet.  Above half of it the
    node serves a client that reads slowly no further; above it, it closes the slowest connections.
    -1 sets no bound.""",
    check=Check("-1 or at least 1048576", lambda size: size == -1 or size >= 1 << 20),
)
FETCH_MAX_BYTES = BROKER.declare(
    "fetch.max.bytes", Type.INT, 55 << 20,
    """The most that one fetch is answered with, whatever the client asks for.""",
    check=at_least(1024),
    update=Update.CLUSTER_WIDE,
)
MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS = BROKER.declare(
    "max.incremental.fetch.session.cache.slots", Type.INT, 1_000,
    """How many incremental fetch sessions a node remembers; one that was used in the last two
    minutes is not displaced, and a client without a session names all partitions each time.""",
    check=at_least(0),
    update=Update.CLUSTER_WIDE,
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = BROKER.declare(
    "max.request.partition.size.limit", Type.INT, 2_000,
    """How many partitions one DescribeTopicPartitions answer holds; the client asks for the
    rest with the cursor it is given.""",
    check=at_least(1),
    update=Update.CLUSTER_WIDE,
)
PRODUCER_ID_EXPIRATION_MS = BROKER.declare(
    "producer.id.expiration.ms", Type.INT, 86_400_000,
    """How long after its last batch a partition forgets an idempotent producer.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
PRODUCER_STATE_MAX_PER_PARTITION = BROKER.declare(
    "producer.state.max.per.partition", Type.INT, 10_000,
    """Maximum number of idempotent producers that a partition remembers.  Beyond it, the partition
    forgets those that wrote least recently, as if `producer.id.expiration.ms` had passed for them;
    never one with an open transaction.  Ten thousand take about 5 MB of memory, and 4 to 6 ms of
    their broker for each snapshot, as one step: the maximum keeps that below 50 ms.""",
    check=between(1, 50_000),
    update=Update.CLUSTER_ONLY,
)

# Local clients.

NATIVE_ENABLE = BROKER.declare(
    "native.enable", Type.BOOLEAN, True,
    """Whether programs of this host may write and read through shared memory and files, over a
    Unix socket in the run directory.  Without it they use TCP, as all others do.""",
)
NATIVE_RING_BYTES = BROKER.declare(
    "native.ring.bytes", Type.INT, 4 << 20,
    """The size of the ring through which a local producer writes to a node; a batch may have a
    quarter of it.""",
    check=Check(
        f"a power of two between {RING_BYTES_MIN} and {RING_BYTES_MAX}",
        lambda size: RING_BYTES_MIN <= size <= RING_BYTES_MAX and size & (size - 1) == 0,
    ),
    update=Update.CLUSTER_WIDE,
)
NATIVE_RINGS_BYTES_MAX = BROKER.declare(
    "native.rings.bytes.max", Type.LONG, 256 << 20,
    """How much memory the rings of a node may take together; a producer that finds no room for
    another one writes over TCP.""",
    check=at_least(0),
    update=Update.CLUSTER_WIDE,
)

# Consumer groups.

GROUP_MIN_SESSION_TIMEOUT_MS = BROKER.declare(
    "group.min.session.timeout.ms", Type.INT, 6_000,
    """The shortest session timeout a group's member may ask for.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
GROUP_MAX_SESSION_TIMEOUT_MS = BROKER.declare(
    "group.max.session.timeout.ms", Type.INT, 1_800_000,
    """The longest session timeout a group's member may ask for.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
GROUP_INITIAL_REBALANCE_DELAY_MS = BROKER.declare(
    "group.initial.rebalance.delay.ms", Type.INT, 0,
    """How long an empty group waits for more members after its first one.""",
    check=at_least(0),
    update=Update.CLUSTER_ONLY,
)
GROUP_MAX_SIZE = BROKER.declare(
    "group.max.size", Type.INT, INT_MAX,
    """How many members a group may have.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
OFFSET_METADATA_MAX_BYTES = BROKER.declare(
    "offset.metadata.max.bytes", Type.INT, 4_096,
    """The longest text that may be committed together with an offset.""",
    check=at_least(0),
    update=Update.CLUSTER_ONLY,
)
OFFSETS_RETENTION_MINUTES = BROKER.declare(
    "offsets.retention.minutes", Type.INT, 10_080,
    """How long committed offsets are kept after their group has become empty, or after their
    commit where nothing of the group but offsets is known.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = BROKER.declare(
    "offsets.retention.check.interval.ms", Type.LONG, 600_000,
    """How often groups are searched for committed offsets to forget.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
OFFSETS_TOPIC_NUM_PARTITIONS = BROKER.declare(
    "offsets.topic.num.partitions", Type.INT, 1,
    """How many partitions the topic has that groups are kept in.  It holds from the topic's
    creation on.""",
    check=between(1, 10_000),
)
OFFSETS_TOPIC_REPLICATION_FACTOR = BROKER.declare(
    "offsets.topic.replication.factor", Type.SHORT, 1,
    """How many replicas a partition of that topic has.""",
    check=Only(1, "a partition has one replica in this version"),
)
OFFSETS_TOPIC_SEGMENT_BYTES = BROKER.declare(
    "offsets.topic.segment.bytes", Type.INT, 100 << 20,
    """The segment.bytes of that topic.""",
    check=at_least(1 << 20),
)

# Metrics.

METRICS_LISTENER: Key[str | None] = BROKER.declare(
    "metrics.listener", Type.STRING, None,
    """HOST:PORT at which metrics are served to Prometheus, by a process beside the broker; the flag
    --metrics says the same.  Port 0 takes a free one.  Unset, there is none.""",
)
TELEMETRY_MAX_BYTES = BROKER.declare(
    "telemetry.max.bytes", Type.INT, 1 << 20,
    """The largest push of metrics, compressed, that a client may send (KIP-714).""",
    check=at_least(1),
)

# The ZeroMQ gateway.

GATEWAY_LISTENER: Key[str | None] = BROKER.declare(
    "gateway.listener", Type.STRING, None,
    """tcp://HOST:PORT or ipc://PATH at which PUSH sockets send messages, which a process beside the
    broker produces; the flag --gateway says the same.  Port 0 takes a free one.  Unset, there is
    none.""",
    check=Check("tcp://HOST:PORT or ipc://PATH", is_endpoint),
)
GATEWAY_DEALER_LISTENER: Key[str | None] = BROKER.declare(
    "gateway.dealer.listener", Type.STRING, None,
    """The same for DEALER sockets, which are answered.  Unset, it is the port after that of
    gateway.listener, or its path followed by -dealer: ZeroMQ has one kind of peer a socket.""",
    check=Check("tcp://HOST:PORT or ipc://PATH", is_endpoint),
)
GATEWAY_ACKS = BROKER.declare(
    "gateway.acks", Type.STRING, "all",
    """When a message counts as written, and a DEALER is answered: see acks of a producer.""",
    check=one_of("all", "1"),
)
GATEWAY_LINGER_MS = BROKER.declare(
    "gateway.linger.ms", Type.INT, 5,
    """How long the gateway gathers messages of a partition before it produces them.""",
    check=between(0, 10_000),
)
GATEWAY_BATCH_SIZE = BROKER.declare(
    "gateway.batch.size", Type.INT, 128 << 10,
    """The size at which it produces them at once.""",
    check=between(1 << 10, 1_000_000),
)
GATEWAY_COMPRESSION_TYPE = BROKER.declare(
    "gateway.compression.type", Type.STRING, "none",
    """How the gateway compresses what it produces.""",
    check=one_of("none", "gzip", "snappy", "lz4", "zstd"),
)
GATEWAY_BUFFER_MEMORY = BROKER.declare(
    "gateway.buffer.memory", Type.LONG, 32 << 20,
    """How many bytes of messages the gateway holds that the broker has not written yet.  While
    there are more, it receives none, and its senders' queues fill.""",
    check=at_least(2 << 20),
)
GATEWAY_RECEIVE_HWM = BROKER.declare(
    "gateway.receive.hwm", Type.INT, 1_000,
    """How many messages ZeroMQ holds of one sender while the gateway receives none, and how many
    answers for one DEALER: ZeroMQ's high-water mark.  The gateway keeps further answers until the
    DEALER reads, up to gateway.buffer.memory, and then receives no more from DEALERs.""",
    check=between(1, 1_000_000),
)
GATEWAY_MESSAGE_MAX_BYTES = BROKER.declare(
    "gateway.message.max.bytes", Type.INT, 1 << 20,
    """The largest frame of a message.  A message with a larger one is refused; a sender that
    announces one larger than 16 MiB, or than twice this size, is disconnected.""",
    check=between(1 << 10, 64 << 20),
)
GATEWAY_MEMORY_MAX_BYTES = BROKER.declare(
    "gateway.memory.max.bytes", Type.LONG, 1 << 30,
    """The memory at which the gateway disconnects all its senders, who may connect again: ZeroMQ
    itself sets no bound on a message that is sent in ever more frames and never ends.""",
    check=at_least(128 << 20),
)
GATEWAY_HANDSHAKE_TIMEOUT_MS = BROKER.declare(
    "gateway.handshake.timeout.ms", Type.INT, 10_000,
    """How long a peer of the gateway may take to introduce itself.""",
    check=between(1, 600_000),
)
GATEWAY_CURVE_KEY_FILE: Key[str | None] = BROKER.declare(
    "gateway.curve.key.file", Type.STRING, None,
    """The gateway's own secret key; with it every connection is encrypted (CURVE), and only clients
    of gateway.curve.clients are let in.  `kafkalite gateway keys` makes it.""",
)
GATEWAY_CURVE_CLIENTS: Key[str | None] = BROKER.declare(
    "gateway.curve.clients", Type.STRING, None,
    """A directory with the public key of each client that is let in, one file NAME.key each.  What
    is put there or removed counts for whoever connects from then on.""",
)

# Storage.

STORAGE_MIN_FREE_BYTES = BROKER.declare(
    "storage.min.free.bytes", Type.LONG, -1,
    """The free space of the disk below which producers get a retriable error; reads go on.
    -1 means 5 % of the disk, but at most 1 GiB.""",
    check=at_least(-1),
    update=Update.CLUSTER_WIDE,
)
LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = BROKER.declare(
    "log.flush.offset.checkpoint.interval.ms", Type.INT, 60_000,
    """How often the offsets are written down from which logs are checked after a crash.""",
    check=at_least(0),
    update=Update.CLUSTER_WIDE,
)
LOG_BACKGROUND_FLUSH_INTERVAL_MS = BROKER.declare(
    "log.background.flush.interval.ms", Type.LONG, 180_000,
    """The interval between background flushes of logs with durability=os.  Recovery after a power
    cut reads only what was written since the last one.""",
    check=at_least(1000),
    update=Update.CLUSTER_WIDE,
)
LOG_RETENTION_CHECK_INTERVAL_MS = BROKER.declare(
    "log.retention.check.interval.ms", Type.LONG, 300_000,
    """How often the logs are searched for segments to remove.""",
    check=at_least(1),
    update=Update.CLUSTER_WIDE,
)
NUM_RECOVERY_THREADS_PER_DATA_DIR = BROKER.declare(
    "num.recovery.threads.per.data.dir", Type.INT, 2,
    """How many logs are checked at once when the broker starts after a crash.""",
    check=at_least(1),
)

# Defaults of topics.  If a setting has several units, the finest one that is set wins.

BROKER.declare(
    "log.retention.ms", Type.LONG, None,
    """How long a segment is kept after its newest record, for topics without retention.ms.
    -1 keeps it for ever.  Unset, log.retention.minutes counts.""",
    check=at_least(-1),
    update=Update.CLUSTER_ONLY,
)
BROKER.declare(
    "log.retention.minutes", Type.INT, None,
    """log.retention.ms in minutes.  Unset, log.retention.hours counts.""",
    check=at_least(-1),
)
BROKER.declare(
    "log.retention.hours", Type.INT, 168,
    """log.retention.ms in hours.""",
    check=at_least(-1),
)
BROKER.declare(
    "log.roll.ms", Type.LONG, None,
    """The age at which a segment is closed although it is not full, for topics without
    segment.ms.  Unset, log.roll.hours counts.""",
    check=at_least(1),
    update=Update.CLUSTER_ONLY,
)
BROKER.declare(
    "log.roll.hours", Type.INT, 168,
    """log.roll.ms in hours.""",
    check=at_least(1),
)
BROKER.declare(
    "log.roll.jitter.ms", Type.LONG, None,
    """The most by which log.roll.ms is shortened, for topics without segment.jitter.ms.
    Unset, log.roll.jitter.hours counts.""",
    check=at_least(0),
    update=Update.CLUSTER_ONLY,
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
            update = Update.READ_ONLY if key is DURABILITY else Update.CLUSTER_ONLY
            BROKER.declare(name, key.type, key.default, doc, check=key.check, update=update)

# Common keys of Kafka that do not exist here, with the reasons.

BROKER.leave_out(
    "process.roles", "controller.", "inter.broker.", "control.plane.", "early.start.listeners",
    "metadata.log.", "metadata.max.", "initial.broker.",
    because="every node takes its part in the cluster by itself; remove the line",
)
BROKER.leave_out(
    "zookeeper.", "inter.broker.protocol.version", "log.message.format.version",
    because="Kafka itself removed it; remove the line",
)
BROKER.leave_out("broker.id", because="nodes are numbered from 0 on; remove the line")
BROKER.leave_out("log.dir", because="the key is log.dirs")
BROKER.leave_out(
    "num.network.threads", "num.io.threads", "queued.max.requests", "background.threads",
    because="a node serves all its connections from one loop; remove the line",
)
BROKER.leave_out(
    "num.replica.", "replica.", "auto.leader.", "leader.imbalance.",
    because="a partition has one replica in this version; remove the line",
)
BROKER.leave_out(
    "group.", "share.",
    because="the newer group protocols come with a later version; remove the line",
)
BROKER.leave_out(
    "offsets.load.buffer.size", "offsets.commit.timeout.ms", "offsets.topic.compression.codec",
    because="the groups' topic is read whole and written as durable as any; remove the line",
)
BROKER.leave_out(
    "transaction.", "transactional.",
    because="transactions come with a later version; remove the line",
)
BROKER.leave_out(
    "ssl.", "sasl.", "security.", "listener.", "authorizer.", "super.users", "allow.everyone.",
    "principal.", "delegation.",
    because="encryption, logins and access rules come with a later version; keep to loopback",
)
BROKER.leave_out(
    "log.cleaner.", because="compaction comes with a later version; remove the line"
)
BROKER.leave_out(
    "quota.", "connection.creation.", "max.connection.creation.rate",
    because="quotas come with a later version; remove the line",
)
BROKER.leave_out(
    "connections.max.reauth.ms", because="nobody logs in yet; remove the line"
)
BROKER.leave_out(
    "metric.reporters", "metrics.", "auto.include.jmx.reporter",
    because="metrics are had from `kafkalite start --metrics`; remove the line",
)
BROKER.leave_out(
    "create.topic.policy.", "alter.config.policy.", "client.quota.",
    because="the broker loads no classes; remove the line",
)
BROKER.leave_out(
    "remote.log.", because="tiered storage comes with a later version; remove the line"
)
