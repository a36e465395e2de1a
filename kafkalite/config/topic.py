"""Keys of a topic: Kafka's names and defaults, each with the broker key it overrides.

Every key has the effect that its documentation describes.  A key whose other values need a feature
that is missing is declared with the one supported value, and refuses the others with a reason; no
value is accepted and ignored.

Defaults that differ from Kafka's: `flush.ms` is 1000, since `durability=interval` flushes by it.
Keys that Kafka does not have: `durability`, `durable.copies`, `flush.bytes`, `worker.dedicated`.

Left out: `internal.segment.bytes`; the minimum size of a segment is 1 MiB, as in Kafka 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
from kafkalite.errors import InvalidConfig

TOPIC = Scope("topic", UpdateMode.CLUSTER_WIDE)

LONG_MAX = (1 << 63) - 1
DAY_MS = 24 * 3_600_000
WEEK_MS = 7 * DAY_MS

# Retention.

DELETE = "delete"
COMPACT = "compact"

CLEANUP_POLICY: ConfigKey[tuple[str, ...]] = TOPIC.declare(
    "cleanup.policy", Type.LIST, (DELETE,),
    """Treatment of old records.  `delete` deletes whole segments by retention.ms and
    retention.bytes.  `compact` keeps the last record of each key; a record without a key is
    refused.  With both, segments are compacted and deleted.  If empty, every record is kept.""",
    check=Check(
        f"{DELETE}, {COMPACT}, both, or empty",
        lambda words: set(words) <= {DELETE, COMPACT} and len(set(words)) == len(words),
    ),
    overrides="log.cleanup.policy",
)
RETENTION_MS = TOPIC.declare(
    "retention.ms", Type.LONG, WEEK_MS,
    """Retention of a segment after the timestamp of its newest record.  -1 disables the limit.""",
    check=at_least(-1),
    overrides=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
RETENTION_BYTES = TOPIC.declare(
    "retention.bytes", Type.LONG, -1,
    """Maximum size of a partition, above which its oldest segments are deleted; -1 disables the
    limit.  It applies to each partition of the topic.""",
    check=at_least(-1),
    overrides="log.retention.bytes",
)
FILE_DELETE_DELAY_MS = TOPIC.declare(
    "file.delete.delay.ms", Type.LONG, 60_000,
    """Time between the removal of a segment from its log and the deletion of its files, so that
    reads in progress can finish.""",
    check=at_least(0),
    overrides="log.segment.delete.delay.ms",
)

# Segments and their indexes.

SEGMENT_BYTES = TOPIC.declare(
    "segment.bytes", Type.INT, 1 << 30,
    """Maximum size of a segment file.  Retention deletes whole segments, so larger ones are deleted
    later.""",
    check=at_least(1 << 20),
    overrides="log.segment.bytes",
)
SEGMENT_MS = TOPIC.declare(
    "segment.ms", Type.LONG, WEEK_MS,
    """Maximum age of the active segment, after which a new one is rolled so that retention can
    delete it.""",
    check=at_least(1),
    overrides=("log.roll.ms", "log.roll.hours"),
)
SEGMENT_JITTER_MS = TOPIC.declare(
    "segment.jitter.ms", Type.LONG, 0,
    """Maximum random reduction of segment.ms for each segment, so that many partitions do not roll
    segments at once.""",
    check=at_least(0),
    overrides=("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
SEGMENT_INDEX_BYTES = TOPIC.declare(
    "segment.index.bytes", Type.INT, 10 << 20,
    """Maximum size of an index file; its segment is rolled when the index is full.""",
    check=at_least(4),
    overrides="log.index.size.max.bytes",
)
INDEX_INTERVAL_BYTES = TOPIC.declare(
    "index.interval.bytes", Type.INT, 4096,
    """Bytes of records between two entries of the offset index.  A smaller interval lets reads jump
    closer to their offset, and makes the index larger.""",
    check=at_least(0),
    overrides="log.index.interval.bytes",
)
PREALLOCATE = TOPIC.declare(
    "preallocate", Type.BOOLEAN, False,
    """Preallocate the whole file of a new segment.""",
    check=OnlyValue(False, "space is allocated ahead of the writes anyway"),
    overrides="log.preallocate",
)

# Limits and format of batches.

MAX_MESSAGE_BYTES = TOPIC.declare(
    "max.message.bytes", Type.INT, 1_048_588,
    """Maximum size of a record batch, after compression.""",
    check=at_least(0),
    overrides="message.max.bytes",
)
COMPRESSION_TYPE = TOPIC.declare(
    "compression.type", Type.STRING, "producer",
    """Compression of stored batches.  `producer` keeps that of the producer; with any other value
    the broker recompresses other batches, which costs processor time.""",
    check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    overrides="compression.type",
)
COMPRESSION_GZIP_LEVEL = TOPIC.declare(
    "compression.gzip.level", Type.INT, -1,
    """Compression level for compression.type=gzip; -1 is the default of gzip.""",
    check=Check("-1 or between 1 and 9", lambda level: level == -1 or 1 <= level <= 9),
    overrides="compression.gzip.level",
)
COMPRESSION_LZ4_LEVEL = TOPIC.declare(
    "compression.lz4.level", Type.INT, 9,
    """Compression level for compression.type=lz4.""",
    check=between(1, 17),
    overrides="compression.lz4.level",
)
COMPRESSION_ZSTD_LEVEL = TOPIC.declare(
    "compression.zstd.level", Type.INT, 3,
    """Compression level for compression.type=zstd.""",
    check=between(-131_072, 22),
    overrides="compression.zstd.level",
)
COMPRESSED_RECORDS_VALIDATE = TOPIC.declare(
    "compressed.records.validate", Type.BOOLEAN, True,
    """Decompress each compressed batch to validate its records, as Kafka does; they may be 16 MiB,
    or 16 times the batch if that is more.  `false` saves processor time of the broker and removes
    that limit; a damaged batch is then found only by its consumers, which cannot read past it.""",
    overrides="compressed.records.validate",
)
MESSAGE_TIMESTAMP_TYPE = TOPIC.declare(
    "message.timestamp.type", Type.STRING, "CreateTime",
    """Timestamp of a record: the producer's (CreateTime), or the broker's at the append
    (LogAppendTime).""",
    check=one_of("CreateTime", "LogAppendTime"),
    overrides="log.message.timestamp.type",
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = TOPIC.declare(
    "message.timestamp.before.max.ms", Type.LONG, LONG_MAX,
    """Maximum time by which a record's timestamp may be before the broker's clock; older ones are
    refused.  It applies to CreateTime only.""",
    check=at_least(0),
    overrides="log.message.timestamp.before.max.ms",
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = TOPIC.declare(
    "message.timestamp.after.max.ms", Type.LONG, 3_600_000,
    """Maximum time by which a record's timestamp may be after the broker's clock; later ones are
    refused, since they would delay retention of their segment.  It applies to CreateTime only.""",
    check=at_least(0),
    overrides="log.message.timestamp.after.max.ms",
)

# Durability.

DURABILITY = TOPIC.declare(
    "durability", Type.STRING, "fsync",
    """Time at which records are flushed to the disk.  `fsync`: before they are acknowledged or
    read.  `interval`: after flush.ms or flush.bytes at the latest, in the background.  `os`: when
    the kernel writes them, as in Kafka.  With each of them records survive the end of the broker's
    processes; only `fsync` loses none in a power cut.""",
    check=one_of("fsync", "interval", "os"),
    overrides="durability",
)
DURABLE_COPIES = TOPIC.declare(
    "durable.copies", Type.STRING, "leader",
    """Replicas on which a record is flushed before it is acknowledged with acks=all or read, with
    durability=fsync.  `leader`: the leader.  `minisr`: min.insync.replicas of those in sync.
    `all`: all in sync.  With replicas on several disks the last two also keep what was acknowledged
    if power and disks fail at once, all disks of min.insync.replicas replicas but one.""",
    check=one_of("leader", "minisr", "all"),
    overrides="durable.copies",
)
FLUSH_MS = TOPIC.declare(
    "flush.ms", Type.LONG, 1_000,
    """Maximum time before a record is flushed with durability=interval; with `os` as well if it is
    set.""",
    check=at_least(0),
    overrides="log.flush.interval.ms",
)
FLUSH_MESSAGES = TOPIC.declare(
    "flush.messages", Type.LONG, LONG_MAX,
    """Maximum number of records of a partition that are not flushed with durability=interval; with
    `os` as well if it is set.""",
    check=at_least(1),
    overrides="log.flush.interval.messages",
)
FLUSH_BYTES = TOPIC.declare(
    "flush.bytes", Type.LONG, 1 << 20,
    """Maximum bytes of a partition that are not flushed with durability=interval.""",
    check=at_least(1),
    overrides="flush.bytes",
)

# Placement of partitions.

WORKER_DEDICATED = TOPIC.declare(
    "worker.dedicated", Type.BOOLEAN, False,
    """Give each partition of the topic a worker process of its own, which serves nothing else and
    exists as long as the topic.  A cluster without workers serves such a topic like any other.  It
    applies when the topic is created.""",
    update=UpdateMode.READ_ONLY,  # it determines the placement of existing and of added partitions
)

# Replicas.

MIN_INSYNC_REPLICAS = TOPIC.declare(
    "min.insync.replicas", Type.INT, 1,
    """Minimum number of in-sync replicas that must have a record before a produce request with
    acks=all succeeds, and before it can be read.  For a partition with fewer replicas, all of
    them.""",
    check=at_least(1),
    overrides="min.insync.replicas",
)
UNCLEAN_LEADER_ELECTION_ENABLE = TOPIC.declare(
    "unclean.leader.election.enable", Type.BOOLEAN, False,
    """Allow a replica that lacks acknowledged records to become leader if no other is available.
    These records are then lost.""",
    overrides="unclean.leader.election.enable",
)
ALL_REPLICAS = "*"
THROTTLED_REPLICA = re.compile("([0-9]{1,10}:[0-9]{1,10})?")
THROTTLED_REPLICAS: Check[tuple[str, ...]] = Check(
    # Kafka's words.
    "the literal '*' or a list of replicas in the following format:"
    " [partitionId]:[brokerId],[partitionId]:[brokerId],...",
    lambda entries: entries == (ALL_REPLICAS,) or all(map(THROTTLED_REPLICA.fullmatch, entries)),
)
LEADER_REPLICATION_THROTTLED_REPLICAS: ConfigKey[tuple[str, ...]] = TOPIC.declare(
    "leader.replication.throttled.replicas", Type.LIST, (),
    """Replicas that send records to followers at a limited rate
    (leader.replication.throttled.rate) while they lead: PARTITION:NODE, or * for all.""",
    check=THROTTLED_REPLICAS,
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS: ConfigKey[tuple[str, ...]] = TOPIC.declare(
    "follower.replication.throttled.replicas", Type.LIST, (),
    """Replicas that fetch records from their leaders at a limited rate
    (follower.replication.throttled.rate) while they are not in sync: PARTITION:NODE, or * for
    all.""",
    check=THROTTLED_REPLICAS,
)

# Share groups.

ERRORS_DEADLETTERQUEUE_GROUP_ENABLE = TOPIC.declare(
    "errors.deadletterqueue.group.enable", Type.BOOLEAN, False,
    """Permit share groups to write their dead letters to the topic (KIP-1191).""",
)

# Compaction.  These have no effect on a topic that is not compacted, as in Kafka.

DELETE_RETENTION_MS = TOPIC.declare(
    "delete.retention.ms", Type.LONG, DAY_MS,
    """Retention of delete tombstones in a compacted topic.""",
    check=at_least(0),
    overrides="log.cleaner.delete.retention.ms",
)
MIN_CLEANABLE_DIRTY_RATIO = TOPIC.declare(
    "min.cleanable.dirty.ratio", Type.DOUBLE, 0.5,
    """Minimum ratio of uncompacted to all bytes of a log before it is compacted.""",
    check=between(0, 1),
    overrides="log.cleaner.min.cleanable.ratio",
)
MIN_COMPACTION_LAG_MS = TOPIC.declare(
    "min.compaction.lag.ms", Type.LONG, 0,
    """Minimum time for which a record remains uncompacted.""",
    check=at_least(0),
    overrides="log.cleaner.min.compaction.lag.ms",
)
MAX_COMPACTION_LAG_MS = TOPIC.declare(
    "max.compaction.lag.ms", Type.LONG, LONG_MAX,
    """Maximum time for which a record remains ineligible for compaction.""",
    check=at_least(1),
    overrides="log.cleaner.max.compaction.lag.ms",
)


def check_compaction_lags(texts: Mapping[str, str]) -> None:
    """Raise InvalidConfig if a topic's values contradict each other; each value must be valid.

    As in Kafka, a broker's default of a lag is not compared.
    """
    lags = [
        key.parse(texts[key.name]) if key.name in texts else key.default
        for key in (MIN_COMPACTION_LAG_MS, MAX_COMPACTION_LAG_MS)
    ]
    if lags[0] > lags[1]:
        raise InvalidConfig(
            f"{MIN_COMPACTION_LAG_MS.name} is {lags[0]}; it must be at most"
            f" {MAX_COMPACTION_LAG_MS.name}, which is {lags[1]}."
        )


# Tiered storage.

REMOTE_STORAGE_ENABLE = TOPIC.declare(
    "remote.storage.enable", Type.BOOLEAN, False,
    """Move old segments to remote storage.""",
    check=OnlyValue(False, "this version has no tiered storage"),
)
REMOTE_LOG_COPY_DISABLE = TOPIC.declare(
    "remote.log.copy.disable", Type.BOOLEAN, False,
    """Stop copying segments of a tiered topic to remote storage.""",
    check=OnlyValue(False, "this version has no tiered storage"),
)
REMOTE_LOG_DELETE_ON_DISABLE = TOPIC.declare(
    "remote.log.delete.on.disable", Type.BOOLEAN, False,
    """Delete segments in remote storage when tiering is disabled.""",
    check=OnlyValue(False, "this version has no tiered storage"),
)
LOCAL_RETENTION_MS = TOPIC.declare(
    "local.retention.ms", Type.LONG, -2,
    """Retention of a tiered topic's segments on local disks; -2 means retention.ms.""",
    check=OnlyValue(-2, "this version has no tiered storage"),
    overrides="log.local.retention.ms",
)
LOCAL_RETENTION_BYTES = TOPIC.declare(
    "local.retention.bytes", Type.LONG, -2,
    """Maximum local size of a tiered topic's partition; -2 means retention.bytes.""",
    check=OnlyValue(-2, "this version has no tiered storage"),
    overrides="log.local.retention.bytes",
)
