"""Keys of replication, with Kafka's names; they are among the broker's.

Defaults that differ from Kafka's: `replica.lag.time.max.ms` is 10000, `replica.fetch.backoff.ms`
100 and `leader.imbalance.check.interval.seconds` 5, since all nodes are processes of one host.

Left out: `num.replica.fetchers` and the sizes of sockets, since a node fetches in its event loop,
over sockets of the host; `replica.alter.log.dirs.io.max.bytes.per.second`, since a node has one log
directory; selectors of replicas other than Kafka's, since the broker loads no classes.
"""

from __future__ import annotations

from kafkalite.config.key import Check, ConfigKey, Scope, Type, UpdateMode, at_least

REPLICATION = Scope("broker")

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

REPLICA_LAG_TIME_MAX_MS = REPLICATION.declare(
    "replica.lag.time.max.ms", Type.LONG, 10_000,
    """Time after which a follower that does not have all records of its leader leaves the in-sync
    replicas.""",
    check=at_least(1),
)
REPLICA_FETCH_WAIT_MAX_MS = REPLICATION.declare(
    "replica.fetch.wait.max.ms", Type.INT, 500,
    """Maximum time for which a leader delays its response to a follower's fetch while there are no
    new records.  Use less than replica.lag.time.max.ms.""",
    check=at_least(1),
)
REPLICA_FETCH_MIN_BYTES = REPLICATION.declare(
    "replica.fetch.min.bytes", Type.INT, 1,
    """Size of the records for which a leader delays its response to a follower's fetch.""",
    check=at_least(1),
)
REPLICA_FETCH_MAX_BYTES = REPLICATION.declare(
    "replica.fetch.max.bytes", Type.INT, 1 << 20,
    """Maximum size of the records of a partition in a response to a follower.  The first batch is
    sent whole, even if it is larger.""",
    check=at_least(1),
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = REPLICATION.declare(
    "replica.fetch.response.max.bytes", Type.INT, 10 << 20,
    """Maximum size of the records of all partitions in a response to a follower, as in
    replica.fetch.max.bytes.""",
    check=at_least(1),
)
REPLICA_FETCH_BACKOFF_MS = REPLICATION.declare(
    "replica.fetch.backoff.ms", Type.INT, 100,
    """Maximum time between a follower's fetches of a partition for which it gets errors.""",
    check=at_least(1),
)
REPLICA_SELECTOR_CLASS: ConfigKey[str | None] = REPLICATION.declare(
    "replica.selector.class", Type.STRING, None,
    """Selects the replica that a consumer with a rack (client.rack) reads (KIP-392).  With
    org.apache.kafka.common.replica.RackAwareReplicaSelector it is one of that rack; if empty, it is
    the leader.""",
    check=Check(
        f"empty or {RACK_AWARE_SELECTOR}", lambda name: name in ("", RACK_AWARE_SELECTOR)
    ),
)
REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = REPLICATION.declare(
    "replica.high.watermark.checkpoint.interval.ms", Type.LONG, 5_000,
    """Interval at which the high watermarks of replicas are written to the disk.""",
    check=at_least(1),
)
AUTO_LEADER_REBALANCE_ENABLE = REPLICATION.declare(
    "auto.leader.rebalance.enable", Type.BOOLEAN, True,
    """Elect the preferred leaders of partitions, the first ones of their replicas, after their
    nodes have returned.""",
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = REPLICATION.declare(
    "leader.imbalance.check.interval.seconds", Type.LONG, 5,
    """Interval at which preferred leaders are elected.""",
    check=at_least(1),
)
LEADER_IMBALANCE_PER_BROKER_PERCENTAGE = REPLICATION.declare(
    "leader.imbalance.per.broker.percentage", Type.INT, 10,
    """Share of the partitions with a preferred leader, in percent, that it may not lead before
    preferred leaders are elected.""",
    check=at_least(0),
)

# Throttles (KIP-73).

RATE_MAX = (1 << 63) - 1
"""The default of the rates: no limit."""

LEADER_REPLICATION_THROTTLED_RATE = REPLICATION.declare(
    "leader.replication.throttled.rate", Type.LONG, RATE_MAX,
    """Maximum rate, in bytes per second, at which a node sends records to followers that are not in
    sync, of the partitions whose leader.replication.throttled.replicas name it.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_WIDE,
)
FOLLOWER_REPLICATION_THROTTLED_RATE = REPLICATION.declare(
    "follower.replication.throttled.rate", Type.LONG, RATE_MAX,
    """Maximum rate, in bytes per second, at which a node fetches records of partitions of which it
    is a replica that is not in sync, if their follower.replication.throttled.replicas name it.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_WIDE,
)
REPLICATION_QUOTA_WINDOW_NUM = REPLICATION.declare(
    "replication.quota.window.num", Type.INT, 11,
    """Number of samples from which the rates of throttled replication are computed.""",
    check=at_least(1),
)
REPLICATION_QUOTA_WINDOW_SIZE_SECONDS = REPLICATION.declare(
    "replication.quota.window.size.seconds", Type.INT, 1,
    """Duration of each of these samples.""",
    check=at_least(1),
)
