"""Keys of share groups (KIP-932): those of one group, and the broker's.

They are among the keys of GROUP and BROKER.  A group's own value must be within the broker's bounds
when it is set; a value that is outside of them later is clamped.

Defaults that differ from Kafka's: the lower bounds of times, which suit thousands of clients over a
network.
"""

from __future__ import annotations

import re

from kafkalite.config.group import GROUP
from kafkalite.config.key import (
    Check,
    Scope,
    Type,
    UpdateMode,
    at_least,
    between,
    one_of,
)

DURATION = re.compile(
    r"P(?!$)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", re.ASCII
)
BY_DURATION = "by_duration:"


def duration_ms(reset: str) -> int | None:
    """Return the duration of a reset strategy `by_duration:P…`, or None if it is not one."""
    found = DURATION.fullmatch(reset.removeprefix(BY_DURATION))
    if not reset.startswith(BY_DURATION) or found is None:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups()[:4])
    fraction_ms = int((found[5] or "").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms


SHARE_SESSION_TIMEOUT_MS = GROUP.declare(
    "share.session.timeout.ms", Type.INT, 45_000,
    """Time without a heartbeat after which a member is removed from its share group.""",
    check=at_least(1),
    overrides="group.share.session.timeout.ms",
)
SHARE_HEARTBEAT_INTERVAL_MS = GROUP.declare(
    "share.heartbeat.interval.ms", Type.INT, 5_000,
    """Interval at which members of a share group send heartbeats; each response contains it.""",
    check=at_least(1),
    overrides="group.share.heartbeat.interval.ms",
)
SHARE_RECORD_LOCK_DURATION_MS = GROUP.declare(
    "share.record.lock.duration.ms", Type.INT, 30_000,
    """Time for which a record is acquired by the member that fetched it.  A record that is not
    acknowledged in this time is delivered again.""",
    check=between(1_000, 3_600_000),
    overrides="group.share.record.lock.duration.ms",
)
SHARE_DELIVERY_COUNT_LIMIT = GROUP.declare(
    "share.delivery.count.limit", Type.INT, 5,
    """Maximum number of deliveries of a record.""",
    check=between(2, 25),
    overrides="group.share.delivery.count.limit",
)
SHARE_PARTITION_MAX_RECORD_LOCKS = GROUP.declare(
    "share.partition.max.record.locks", Type.INT, 2_000,
    """Maximum number of records of a partition that are in flight in a share group.""",
    check=between(100, 10_000),
    overrides="group.share.partition.max.record.locks",
)
SHARE_AUTO_OFFSET_RESET = GROUP.declare(
    "share.auto.offset.reset", Type.STRING, "latest",
    """Start of a partition that is new to the share group: `latest`, `earliest`, or
    `by_duration:P…` with an ISO 8601 duration before now.""",
    check=Check(
        "latest, earliest or by_duration:P…",
        lambda reset: reset in ("latest", "earliest") or duration_ms(reset) is not None,
    ),
)
SHARE_ISOLATION_LEVEL = GROUP.declare(
    "share.isolation.level", Type.STRING, "read_uncommitted",
    """`read_committed` delivers no records of aborted or open transactions.""",
    check=one_of("read_uncommitted", "read_committed"),
)
SHARE_RENEW_ACKNOWLEDGE_ENABLE = GROUP.declare(
    "share.renew.acknowledge.enable", Type.BOOLEAN, True,
    """Let members extend the lock of a record that they are still processing.""",
)

# Dead letters (KIP-1191).

RESERVED_PREFIX = "__"
"""Names of dead letter topics do not begin like those of internal topics."""

ERRORS_DEADLETTERQUEUE_TOPIC_NAME = GROUP.declare(
    "errors.deadletterqueue.topic.name", Type.STRING, "",
    """Topic to which the dead letters of a share group are written: one for each record that was
    rejected, or delivered as often as share.delivery.count.limit permits.  If empty, the group has
    no dead letters.""",
    check=Check(
        f"a name that does not begin with {RESERVED_PREFIX}",
        lambda name: not name.startswith(RESERVED_PREFIX),
    ),
)
ERRORS_DEADLETTERQUEUE_COPY_RECORD_ENABLE = GROUP.declare(
    "errors.deadletterqueue.copy.record.enable", Type.BOOLEAN, False,
    """Copy the key and the value of the record to its dead letter.""",
)

SHARE = Scope("broker", UpdateMode.CLUSTER_ONLY)
"""The broker's keys; they are among BROKER, as are those that a group's keys override."""

GROUP_SHARE_MIN_SESSION_TIMEOUT_MS = SHARE.declare(
    "group.share.min.session.timeout.ms", Type.INT, 1_000,
    """Minimum of group.share.session.timeout.ms.""",
    check=at_least(1),
)
GROUP_SHARE_MAX_SESSION_TIMEOUT_MS = SHARE.declare(
    "group.share.max.session.timeout.ms", Type.INT, 60_000,
    """Maximum of group.share.session.timeout.ms.""",
    check=at_least(1),
)
GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS = SHARE.declare(
    "group.share.min.heartbeat.interval.ms", Type.INT, 100,
    """Minimum of group.share.heartbeat.interval.ms.""",
    check=at_least(1),
)
GROUP_SHARE_MAX_HEARTBEAT_INTERVAL_MS = SHARE.declare(
    "group.share.max.heartbeat.interval.ms", Type.INT, 15_000,
    """Maximum of group.share.heartbeat.interval.ms.""",
    check=at_least(1),
)
GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS = SHARE.declare(
    "group.share.min.record.lock.duration.ms", Type.INT, 1_000,
    """Minimum of group.share.record.lock.duration.ms.""",
    check=between(1_000, 30_000),
)
GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS = SHARE.declare(
    "group.share.max.record.lock.duration.ms", Type.INT, 60_000,
    """Maximum of group.share.record.lock.duration.ms.""",
    check=between(30_000, 3_600_000),
)
GROUP_SHARE_MIN_DELIVERY_COUNT_LIMIT = SHARE.declare(
    "group.share.min.delivery.count.limit", Type.INT, 2,
    """Minimum of group.share.delivery.count.limit.""",
    check=between(2, 5),
)
GROUP_SHARE_MAX_DELIVERY_COUNT_LIMIT = SHARE.declare(
    "group.share.max.delivery.count.limit", Type.INT, 10,
    """Maximum of group.share.delivery.count.limit.""",
    check=between(5, 25),
)
GROUP_SHARE_MIN_PARTITION_MAX_RECORD_LOCKS = SHARE.declare(
    "group.share.min.partition.max.record.locks", Type.INT, 100,
    """Minimum of group.share.partition.max.record.locks.""",
    check=between(100, 2_000),
)
GROUP_SHARE_MAX_PARTITION_MAX_RECORD_LOCKS = SHARE.declare(
    "group.share.max.partition.max.record.locks", Type.INT, 4_000,
    """Maximum of group.share.partition.max.record.locks.""",
    check=between(2_000, 10_000),
)
GROUP_SHARE_MAX_SIZE = SHARE.declare(
    "group.share.max.size", Type.INT, 200,
    """Maximum number of members of a share group.""",
    check=between(1, 1_000),
)
GROUP_SHARE_MAX_SHARE_SESSIONS = SHARE.declare(
    "group.share.max.share.sessions", Type.INT, 2_000,
    """Maximum number of share sessions of a node.""",
    check=at_least(1),
)
SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS = SHARE.declare(
    "share.coordinator.state.topic.num.partitions", Type.INT, 1,
    """Number of partitions of the internal topic of share groups (__share_group_state), in effect
    when the topic is created.""",
    check=between(1, 10_000),
    update=UpdateMode.READ_ONLY,
)
SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR = SHARE.declare(
    "share.coordinator.state.topic.replication.factor", Type.SHORT, 1,
    """Number of replicas of __share_group_state, at most the number of nodes; node 0 leads.""",
    check=at_least(1),
    update=UpdateMode.READ_ONLY,
)
SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR = SHARE.declare(
    "share.coordinator.state.topic.min.isr", Type.SHORT, 2,
    """min.insync.replicas of __share_group_state; at most its number of replicas counts.""",
    check=at_least(1),
    update=UpdateMode.READ_ONLY,
)
SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES = SHARE.declare(
    "share.coordinator.state.topic.segment.bytes", Type.INT, 100 << 20,
    """segment.bytes of __share_group_state.""",
    check=at_least(1 << 20),
    update=UpdateMode.READ_ONLY,
)
SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT = SHARE.declare(
    "share.coordinator.snapshot.update.records.per.snapshot", Type.INT, 500,
    """Number of changes of a share partition's state that are written between two snapshots.""",
    check=between(0, 500),
)
ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX = SHARE.declare(
    "errors.deadletterqueue.topic.name.prefix", Type.STRING, "dlq.",
    """Prefix that the names of dead letter topics must have; empty permits all names.""",
)
ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE = SHARE.declare(
    "errors.deadletterqueue.auto.create.topics.enable", Type.BOOLEAN, False,
    """Create the dead letter topic of a share group if it does not exist.""",
)
