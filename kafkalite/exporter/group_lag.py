"""GroupLag: the lag of consumer groups, requested from the broker over the Kafka protocol.

A scrape never waits for the broker: it gets the last result, and if that is a few seconds old,
starts a new request in the background.  Without scrapes there are no requests.  The metric names
are those of the widely used kafka_exporter.

Left out: more groups than `GROUPS_MAX`, the last ones by name; groups without committed offsets.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from prometheus_client.core import Metric

REFRESH_S = 3.0
RESULT_AGE_S_MAX = 60.0
"""Maximum age of a result that is still reported when requests fail."""
REQUEST_TIMEOUT_S = 5.0
GROUPS_MAX = 1_000


class LagResult(NamedTuple):
    """The last result."""

    at_s: float
    lags: list[tuple[str, str, int, int, int]]
    """Group, topic, partition, committed offset, log end offset."""
    members: dict[str, int]


class GroupLag:
    """The last known lag of groups; `bootstrap` returns the broker's address, or None."""

    def __init__(self, bootstrap: Callable[[], str | None]) -> None:
        self.bootstrap = bootstrap
        self._found = LagResult(float("-inf"), [], {})
        self._refresh_requested = threading.Event()
        self._admin: tuple[str, AdminClient] | None = None
        self._works = 0
        self._thread = threading.Thread(target=self._run, name="group lag", daemon=True)
        self._thread.start()

    def collect(self) -> Iterator[Metric]:
        """Yield the last result, and whether the last request succeeded."""
        found = self._found
        now_s = time.monotonic()
        if now_s - found.at_s >= REFRESH_S:
            self._refresh_requested.set()
        if now_s - found.at_s >= RESULT_AGE_S_MAX:
            found = LagResult(found.at_s, [], {})
        lag = Metric(
            "kafka_consumergroup_lag", "Log end offset minus committed offset of a group.", "gauge"
        )
        offset = Metric(
            "kafka_consumergroup_current_offset", "Committed offset of a group.", "gauge"
        )
        members = Metric("kafka_consumergroup_members", "Number of members of a group.", "gauge")
        for group, topic, partition, committed, end in found.lags:
            labels = {"consumergroup": group, "topic": topic, "partition": str(partition)}
            lag.add_sample(lag.name, labels, max(0, end - committed))
            offset.add_sample(offset.name, labels, committed)
        for group, count in found.members.items():
            members.add_sample(members.name, {"consumergroup": group}, count)
        up = Metric(
            "kafkalite_group_lag_up", "1 if the last request for group offsets succeeded.", "gauge"
        )
        up.add_sample(up.name, {}, self._works)
        yield from (lag, offset, members, up)

    # -- in the background -------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._refresh_requested.wait()
            self._refresh_requested.clear()
            try:
                self._found = self._find()
                self._works = 1
            except Exception:  # any error: lag is reported again once a request succeeds
                self._works = 0
                self._admin = None
                time.sleep(REFRESH_S)

    def _find(self) -> LagResult:
        admin = self._client()
        listed = admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result(
            REQUEST_TIMEOUT_S
        )
        groups = sorted(group.group_id for group in listed.valid)[:GROUPS_MAX]
        # librdkafka may crash when the offsets of a group are refused, so only groups that could
        # be described are requested.
        members = self._members(admin, groups)
        committed: list[tuple[str, TopicPartition]] = []
        for group in members:
            for partition in self._committed(admin, group):
                if partition.offset >= 0:
                    committed.append((group, partition))
        ends = self._ends(admin, {(each.topic, each.partition) for _, each in committed})
        lags = [
            (group, each.topic, each.partition, each.offset, ends[each.topic, each.partition])
            for group, each in committed
            if (each.topic, each.partition) in ends
        ]
        return LagResult(time.monotonic(), lags, members)

    def _client(self) -> AdminClient:
        where = self.bootstrap()
        if where is None:
            raise KafkaException("no broker is available")
        if self._admin is None or self._admin[0] != where:
            quiet = {"log_level": 0, "enable.metrics.push": False}
            self._admin = where, AdminClient({"bootstrap.servers": where, **quiet})
        return self._admin[1]

    def _committed(self, admin: AdminClient, group: str) -> list[TopicPartition]:
        requested = [ConsumerGroupTopicPartitions(group)]
        with contextlib.suppress(KafkaException):  # the group was deleted meanwhile
            (response,) = admin.list_consumer_group_offsets(
                requested, request_timeout=REQUEST_TIMEOUT_S
            ).values()
            return list(response.result(REQUEST_TIMEOUT_S).topic_partitions)
        return []

    def _ends(self, admin: AdminClient, wanted: set[tuple[str, int]]) -> dict[Any, int]:
        if not wanted:
            return {}
        requested = {TopicPartition(*each): OffsetSpec.latest() for each in wanted}
        ends = {}
        for partition, response in admin.list_offsets(
            requested, request_timeout=REQUEST_TIMEOUT_S
        ).items():
            with contextlib.suppress(KafkaException):  # its topic was deleted meanwhile
                end = response.result(REQUEST_TIMEOUT_S)
                ends[partition.topic, partition.partition] = end.offset
        return ends

    def _members(self, admin: AdminClient, groups: list[str]) -> dict[str, int]:
        if not groups:
            return {}
        members = {}
        descriptions = admin.describe_consumer_groups(groups, request_timeout=REQUEST_TIMEOUT_S)
        for group, description in descriptions.items():
            with contextlib.suppress(KafkaException):
                members[group] = len(description.result(REQUEST_TIMEOUT_S).members)
        return members
