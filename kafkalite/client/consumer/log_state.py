"""Log state: what the leader of a partition has from a position on, by a fetch of one byte.

A fetch at the position tells whether records follow it, whether or not the range that is read ends
in a gap: with ListOffsets alone, a gap cannot be told from records that have not arrived.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.tcp_fetcher import BY_NAME_MAX
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.topology import NO_LEADER, error_of, partition_name
from kafkalite.errors import LeaderNotAvailable, ThrottlingQuotaExceeded
from kafkalite.protocol.schemas.fetch import FETCH

RESPONSE_S_MAX = 10.0
"""Maximum seconds to wait for the response, beyond the wait that was requested of the leader."""


class LogState(NamedTuple):
    """State of the log at the leader, from a position on."""

    holds_more: bool
    high_watermark: int
    readable_end: int
    """The high watermark, or with read_committed the last stable offset."""
    log_start_offset: int


def fetch_log_state(
    cluster: Cluster, position: Position, isolation_level: int, timeout_s: float, max_wait_ms: int
) -> LogState:
    """Return the state of the log at the leader of a partition, from a position on.

    The leader may wait `max_wait_ms` for records.  Raises the error of the response, also if there
    is no leader, or if the response has no records because the broker throttles this client.
    """
    partition = position.partition
    if position.leader == NO_LEADER:
        raise LeaderNotAvailable(f"{partition_name(partition)} has no leader.")
    entry = {
        "partition": partition.partition,
        "current_leader_epoch": position.leader_epoch,
        "fetch_offset": position.offset,
        "partition_max_bytes": 1,
    }
    body = {
        "max_wait_ms": max_wait_ms,
        "min_bytes": 1 if max_wait_ms else 0,
        "max_bytes": 1,
        "isolation_level": isolation_level,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": partition.topic, "partitions": [entry]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    response = cluster.request(
        position.leader,
        FETCH,
        body,
        timeout_s=min(timeout_s, max_wait_ms / 1000 + RESPONSE_S_MAX),
        at_most=BY_NAME_MAX,
    )
    found = [each for topic in response.responses for each in topic.partitions]
    code = response.error_code or (found[0].error_code if found else 0)
    if code:
        raise error_of(code, partition_name(partition))
    if not found or (response.throttle_time_ms and not found[0].records):
        raise ThrottlingQuotaExceeded(
            f"{partition_name(partition)}: the broker throttles this client."
        )
    high_watermark = found[0].high_watermark
    stable = found[0].last_stable_offset if isolation_level else -1
    readable_end = stable if stable >= 0 else high_watermark
    return LogState(bool(found[0].records), high_watermark, readable_end, found[0].log_start_offset)
