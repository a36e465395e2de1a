"""Keys of consumer groups (KIP-848): those of one group, and the broker's.

A group's own value overrides the broker's.  It must be within the broker's bounds when it is set; a
value that is outside of them later is clamped.

Defaults that differ from Kafka's: the lower bounds of the session timeout and of the heartbeat
interval, which suit thousands of clients over a network.
"""

from __future__ import annotations

from kafkalite.config.key import Check, Scope, Type, UpdateMode, at_least

INT_MAX = (1 << 31) - 1

GROUP = Scope("group", UpdateMode.CLUSTER_WIDE)
GROUP.leave_out("streams.", because="streams groups come with a later version")

CONSUMER_SESSION_TIMEOUT_MS = GROUP.declare(
    "consumer.session.timeout.ms", Type.INT, 45_000,
    """Time without a heartbeat after which a member is removed from its group.""",
    check=at_least(1),
    overrides="group.consumer.session.timeout.ms",
)
CONSUMER_HEARTBEAT_INTERVAL_MS = GROUP.declare(
    "consumer.heartbeat.interval.ms", Type.INT, 5_000,
    """Interval at which members send heartbeats; each response contains it.""",
    check=at_least(1),
    overrides="group.consumer.heartbeat.interval.ms",
)
CONSUMER_ASSIGNMENT_INTERVAL_MS = GROUP.declare(
    "consumer.assignment.interval.ms", Type.INT, 1_000,
    """Minimum time between two assignments of a group; members that join or leave in between are
    part of the second one.""",
    check=at_least(0),
    overrides="group.consumer.assignment.interval.ms",
)

GROUP_COORDINATOR = Scope("broker", UpdateMode.CLUSTER_ONLY)
"""The broker's keys; they are among BROKER, as are those that a group's keys override."""

GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS = GROUP_COORDINATOR.declare(
    "group.consumer.min.session.timeout.ms", Type.INT, 1_000,
    """Minimum of group.consumer.session.timeout.ms.""",
    check=at_least(1),
)
GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS = GROUP_COORDINATOR.declare(
    "group.consumer.max.session.timeout.ms", Type.INT, 60_000,
    """Maximum of group.consumer.session.timeout.ms.""",
    check=at_least(1),
)
GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS = GROUP_COORDINATOR.declare(
    "group.consumer.min.heartbeat.interval.ms", Type.INT, 100,
    """Minimum of group.consumer.heartbeat.interval.ms.""",
    check=at_least(1),
)
GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS = GROUP_COORDINATOR.declare(
    "group.consumer.max.heartbeat.interval.ms", Type.INT, 15_000,
    """Maximum of group.consumer.heartbeat.interval.ms.""",
    check=at_least(1),
)
GROUP_CONSUMER_MIN_ASSIGNMENT_INTERVAL_MS = GROUP_COORDINATOR.declare(
    "group.consumer.min.assignment.interval.ms", Type.INT, 0,
    """Minimum of group.consumer.assignment.interval.ms.""",
    check=at_least(0),
)
GROUP_CONSUMER_MAX_ASSIGNMENT_INTERVAL_MS = GROUP_COORDINATOR.declare(
    "group.consumer.max.assignment.interval.ms", Type.INT, 15_000,
    """Maximum of group.consumer.assignment.interval.ms.""",
    check=at_least(0),
)
GROUP_CONSUMER_MAX_SIZE = GROUP_COORDINATOR.declare(
    "group.consumer.max.size", Type.INT, INT_MAX,
    """Maximum number of members of a group of the consumer protocol.""",
    check=at_least(1),
)
ASSIGNOR_NAMES: tuple[str, ...] = ("uniform", "range")
GROUP_CONSUMER_ASSIGNORS = GROUP_COORDINATOR.declare(
    "group.consumer.assignors", Type.LIST, ASSIGNOR_NAMES,
    """Assignors that members may name.  The first one is used if no member names any.""",
    check=Check(
        "uniform, range or both",
        lambda names: 0 < len(names) == len({*names} & {*ASSIGNOR_NAMES}),
    ),
)
MIGRATION_POLICIES: tuple[str, ...] = ("bidirectional", "upgrade", "downgrade", "disabled")
GROUP_CONSUMER_MIGRATION_POLICY = GROUP_COORDINATOR.declare(
    "group.consumer.migration.policy", Type.STRING, "bidirectional",
    """Changes of its protocol that a group with members may make: `upgrade` from classic to
    consumer, `downgrade` the other way, `bidirectional` both, `disabled` none.  A group without
    members may always change.""",
    check=Check(
        f"one of {', '.join(MIGRATION_POLICIES)}, in any case",
        lambda policy: policy.lower() in MIGRATION_POLICIES,
    ),
)
GROUP_CONSUMER_REGEX_REFRESH_INTERVAL_MS = GROUP_COORDINATOR.declare(
    "group.consumer.regex.refresh.interval.ms", Type.INT, 600_000,
    """Interval at which the topics of regular expressions are looked up, even if no topic was
    created: authorizations may have changed.""",
    check=at_least(10_000),
)
PROTOCOL_NAMES: tuple[str, ...] = ("classic", "consumer", "share", "streams")
GROUP_COORDINATOR_REBALANCE_PROTOCOLS = GROUP_COORDINATOR.declare(
    "group.coordinator.rebalance.protocols", Type.LIST, ("classic", "consumer", "streams"),
    """Protocols of groups that are served if their feature is finalized (group.version,
    share.version); the classic protocol always is.  Deprecated in Kafka: disable the feature.""",
    check=Check(
        f"distinct names among {', '.join(PROTOCOL_NAMES)}",
        lambda names: 0 < len(names) == len({*names} & {*PROTOCOL_NAMES}),
    ),
)
