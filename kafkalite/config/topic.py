"""Keys of a topic: Kafka's names and defaults, each with the broker key it overrides.

Every key has the effect that its documentation describes.  A key whose other values need a feature
that is missing is declared with the one supported value, and refuses the others with a reason; no
value is accepted and ignored.

Defaults that differ from Kafka's: `flush.ms` is 1000, since `durability=interval` flushes by it.
Keys that Kafka does not have: `durability`, `flush.bytes`, `worker.dedicated`.

Left out: `internal.segment.bytes`; the minimum size of a segment is 1 MiB, as in Kafka 4.
"""

from __future__ import annotations

from kafkalite.config.key import (
    Check,
    Only,
    Scope,
    Type,
    Update,
    at_least,
    between,
    one_of,
)

TOPIC = Scope("topic", Update.CLUSTER_WIDE)

LONG_MAX = (1 << 63) - 1
DAY_MS = 24 * 3_600_000
WEEK_MS = 7 * DAY_MS

# Retention.

CLEANUP_POLICY = TOPIC.declare(
    "cleanup.policy", Type.LIST, ("delete",),
    """What becomes of old records.  `delete` removes whole segments past retention.ms or
    retention.bytes.""",
    check=Only(("delete",), "compaction needs the log cleaner, which this version does not have"),
    overrides="log.cleanup.policy",
)
RETENTION_MS = TOPIC.declare(
    "retention.ms", Type.LONG, WEEK_MS,
    """How long a segment is kept after its newest record, by the records' own timestamps.
    -1 keeps segments for ever.""",
    check=at_least(-1),
    overrides=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
RETENTION_BYTES = TOPIC.declare(
    "retention.bytes", Type.LONG, -1,
    """The size of a partition above which its oldest segments are removed; -1 sets no bound.
    It counts for each partition of the topic by itself.""",
    check=at_least(-1),
    overrides="log.retention.bytes",
)
FILE_DELETE_DELAY_MS = TOPIC.declare(
    "file.delete.delay.ms", Type.LONG, 60_000,
    """How long the files of a removed segment stay on the disk, renamed, so that readers in
    the middle of them can finish.""",
    check=at_least(0),
    overrides="log.segment.delete.delay.ms",
)

# Segments and their indexes.

SEGMENT_BYTES = TOPIC.declare(
    "segment.bytes", Type.INT, 1 << 30,
    """The size at which a segment is closed and a new one begun.  Retention removes whole
    segments, so a larger one is removed later.""",
    check=at_least(1 << 20),
    overrides="log.segment.bytes",
)
SEGMENT_MS = TOPIC.declare(
    "segment.ms", Type.LONG, WEEK_MS,
    """The age at which a segment is closed although it is not full, so that retention can
    remove it.""",
    check=at_least(1),
    overrides=("log.roll.ms", "log.roll.hours"),
)
SEGMENT_JITTER_MS = TOPIC.declare(
    "segment.jitter.ms", Type.LONG, 0,
    """The most by which segment.ms is shortened, by chance for each segment, so that many
    partitions do not begin new segments at once.""",
    check=at_least(0),
    overrides=("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
SEGMENT_INDEX_BYTES = TOPIC.declare(
    "segment.index.bytes", Type.INT, 10 << 20,
    """The size an index may reach before its segment is closed.""",
    check=at_least(4),
    overrides="log.index.size.max.bytes",
)
INDEX_INTERVAL_BYTES = TOPIC.declare(
    "index.interval.bytes", Type.INT, 4096,
    """How many bytes of records stand between two entries of the offset index.  Fewer make
    reads jump closer to their offset, and the index larger.""",
    check=at_least(0),
    overrides="log.index.interval.bytes",
)
PREALLOCATE = TOPIC.declare(
    "preallocate", Type.BOOLEAN, False,
    """Whether a new segment's whole space is set aside on the disk at once.""",
    check=Only(False, "space is set aside ahead of the writer anyway"),
    overrides="log.preallocate",
)

# Limits and format of batches.

MAX_MESSAGE_BYTES = TOPIC.declare(
    "max.message.bytes", Type.INT, 1_048_588,
    """The largest batch of records the topic takes, after compression.""",
    check=at_least(0),
    overrides="message.max.bytes",
)
COMPRESSION_TYPE = TOPIC.declare(
    "compression.type", Type.STRING, "producer",
    """How batches are stored.  `producer` keeps what the producer sent; any other value makes
    the broker compress again what comes differently, which costs its processor time.""",
    check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    overrides="compression.type",
)
COMPRESSION_GZIP_LEVEL = TOPIC.declare(
    "compression.gzip.level", Type.INT, -1,
    """The level at which compression.type=gzip compresses; -1 leaves it to gzip.""",
    check=Check("-1 or between 1 and 9", lambda level: level == -1 or 1 <= level <= 9),
    overrides="compression.gzip.level",
)
COMPRESSION_LZ4_LEVEL = TOPIC.declare(
    "compression.lz4.level", Type.INT, 9,
    """The level at which compression.type=lz4 compresses.""",
    check=between(1, 17),
    overrides="compression.lz4.level",
)
COMPRESSION_ZSTD_LEVEL = TOPIC.declare(
    "compression.zstd.level", Type.INT, 3,
    """The level at which compression.type=zstd compresses.""",
    check=between(-131_072, 22),
    overrides="compression.zstd.level",
)
COMPRESSED_RECORDS_VALIDATE = TOPIC.declare(
    "compressed.records.validate", Type.BOOLEAN, True,
    """Decompress each compressed batch to check its records, as Kafka does; they may be 16 MiB, or
    16 times the batch if that is more.  `false` saves the processor time of the broker and lifts
    that bound; a damaged batch is then found only by its consumers, which cannot read past it.""",
    overrides="compressed.records.validate",
)
MESSAGE_TIMESTAMP_TYPE = TOPIC.declare(
    "message.timestamp.type", Type.STRING, "CreateTime",
    """Whose time a record bears: the producer's (CreateTime) or the broker's at the append
    (LogAppendTime).""",
    check=one_of("CreateTime", "LogAppendTime"),
    overrides="log.message.timestamp.type",
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = TOPIC.declare(
    "message.timestamp.before.max.ms", Type.LONG, LONG_MAX,
    """How far a record's timestamp may lie before the broker's clock; an older one is
    refused.  It counts for CreateTime only.""",
    check=at_least(0),
    overrides="log.message.timestamp.before.max.ms",
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = TOPIC.declare(
    "message.timestamp.after.max.ms", Type.LONG, 3_600_000,
    """How far a record's timestamp may lie after the broker's clock; a later one is refused,
    since it would hold its segment back from retention.  It counts for CreateTime only.""",
    check=at_least(0),
    overrides="log.message.timestamp.after.max.ms",
)

# Durability.

DURABILITY = TOPIC.declare(
    "durability", Type.STRING, "fsync",
    """When records are on the disk itself and not only with the kernel.  `fsync`: before they
    are acknowledged or read.  `interval`: at the latest after flush.ms or flush.bytes, in the
    background.  `os`: when the kernel writes them, as in Kafka.  All three survive the end of
    the broker's processes; only `fsync` survives a power cut without loss.""",
    check=one_of("fsync", "interval", "os"),
    overrides="durability",
)
FLUSH_MS = TOPIC.declare(
    "flush.ms", Type.LONG, 1_000,
    """With durability=interval, the longest that a record waits to be flushed; with `os` as
    well where it is set.""",
    check=at_least(0),
    overrides="log.flush.interval.ms",
)
FLUSH_MESSAGES = TOPIC.declare(
    "flush.messages", Type.LONG, LONG_MAX,
    """With durability=interval, how many records of a partition may wait to be flushed; with
    `os` as well where it is set.""",
    check=at_least(1),
    overrides="log.flush.interval.messages",
)
FLUSH_BYTES = TOPIC.declare(
    "flush.bytes", Type.LONG, 1 << 20,
    """With durability=interval, how many bytes of a partition may wait to be flushed.""",
    check=at_least(1),
    overrides="flush.bytes",
)

# Placement of partitions.

WORKER_DEDICATED = TOPIC.declare(
    "worker.dedicated", Type.BOOLEAN, False,
    """Whether each partition of the topic has a worker process of its own, which serves nothing
    else and goes with the topic.  A cluster without workers serves it like any other.  It is
    decided when the topic is created.""",
    update=Update.READ_ONLY,  # it determines the placement of existing and of added partitions
)

# Replicas.

MIN_INSYNC_REPLICAS = TOPIC.declare(
    "min.insync.replicas", Type.INT, 1,
    """How many replicas must hold a record before a producer that asks for all of them is
    answered.""",
    check=Only(1, "a partition has one replica in this version"),
    overrides="min.insync.replicas",
)
UNCLEAN_LEADER_ELECTION_ENABLE = TOPIC.declare(
    "unclean.leader.election.enable", Type.BOOLEAN, False,
    """Whether a replica that lacks acknowledged records may lead when no other is left.""",
    check=Only(False, "acknowledged records are never given up"),
    overrides="unclean.leader.election.enable",
)
LEADER_REPLICATION_THROTTLED_REPLICAS = TOPIC.declare(
    "leader.replication.throttled.replicas", Type.LIST, (),
    """Replicas whose leaders send to them at a bounded rate.""",
    check=Only((), "a partition has one replica in this version"),
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = TOPIC.declare(
    "follower.replication.throttled.replicas", Type.LIST, (),
    """Replicas that fetch from their leaders at a bounded rate.""",
    check=Only((), "a partition has one replica in this version"),
)

# Compaction: only the cleaner reads these.  They have no effect on a topic whose cleanup.policy is
# delete, as in Kafka.

DELETE_RETENTION_MS = TOPIC.declare(
    "delete.retention.ms", Type.LONG, DAY_MS,
    """How long a compacted topic keeps the marker of a deleted key.""",
    check=at_least(0),
    overrides="log.cleaner.delete.retention.ms",
)
MIN_CLEANABLE_DIRTY_RATIO = TOPIC.declare(
    "min.cleanable.dirty.ratio", Type.DOUBLE, 0.5,
    """The share of a compacted topic's log that must be new before it is compacted again.""",
    check=between(0, 1),
    overrides="log.cleaner.min.cleanable.ratio",
)
MIN_COMPACTION_LAG_MS = TOPIC.declare(
    "min.compaction.lag.ms", Type.LONG, 0,
    """How long a compacted topic keeps every record before it may compact it away.""",
    check=at_least(0),
    overrides="log.cleaner.min.compaction.lag.ms",
)
MAX_COMPACTION_LAG_MS = TOPIC.declare(
    "max.compaction.lag.ms", Type.LONG, LONG_MAX,
    """The longest a compacted topic may leave a record out of compaction.""",
    check=at_least(1),
    overrides="log.cleaner.max.compaction.lag.ms",
)

# Tiered storage.

REMOTE_STORAGE_ENABLE = TOPIC.declare(
    "remote.storage.enable", Type.BOOLEAN, False,
    """Whether old segments move to an object store.""",
    check=Only(False, "this version has no tiered storage"),
)
REMOTE_LOG_COPY_DISABLE = TOPIC.declare(
    "remote.log.copy.disable", Type.BOOLEAN, False,
    """Whether a tiered topic stops moving segments to the object store.""",
    check=Only(False, "this version has no tiered storage"),
)
REMOTE_LOG_DELETE_ON_DISABLE = TOPIC.declare(
    "remote.log.delete.on.disable", Type.BOOLEAN, False,
    """Whether the object store's segments are deleted when tiering is turned off.""",
    check=Only(False, "this version has no tiered storage"),
)
LOCAL_RETENTION_MS = TOPIC.declare(
    "local.retention.ms", Type.LONG, -2,
    """How long a tiered topic keeps segments here as well; -2 means retention.ms.""",
    check=Only(-2, "this version has no tiered storage"),
    overrides="log.local.retention.ms",
)
LOCAL_RETENTION_BYTES = TOPIC.declare(
    "local.retention.bytes", Type.LONG, -2,
    """How many bytes a tiered topic keeps here as well; -2 means retention.bytes.""",
    check=Only(-2, "this version has no tiered storage"),
    overrides="log.local.retention.bytes",
)
