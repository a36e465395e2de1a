"""A member of a share group: each record goes to one of the members (KIP-932).

    with ShareMember(cluster, "workers", ["jobs"]) as member:
        for batch in member.batches(count=None):
            write(batch)

A batch is accepted when the next one is requested, unless its records were marked as processed with
another outcome.  Records that were received and not processed are released to the other members.  A
record may be delivered again after a member was killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from confluent_kafka import (
    AcknowledgeType,
    KafkaException,
    Message,
    ShareConsumer,
    TopicPartition,
)

from kafkalite.cli.clients import ClusterClients, clean_error
from kafkalite.cli.command import warn
from kafkalite.cli.native_groups import PLAINTEXT
from kafkalite.cli.reading import POLL_S
from kafkalite.cli.signal_handling import SignalHandling
from kafkalite.cli.wire import UnsupportedRequest, WireClient
from kafkalite.errors import Refusal, UnsupportedVersion
from kafkalite.protocol.schemas.share import SHARE_GROUP_DESCRIBE


def check_share_groups(cluster: ClusterClients) -> None:
    """Raise Refusal if the cluster has no share groups, for which librdkafka waits for ever.

    Over other connections than plaintext this is not known.
    """
    if cluster.properties.get("security.protocol", PLAINTEXT).lower() != PLAINTEXT:
        return
    request = {"group_ids": [""], "include_authorized_operations": False}
    try:
        (found,) = WireClient(cluster).request(SHARE_GROUP_DESCRIBE, request).groups
        is_served = found.error_code != UnsupportedVersion.code
    except UnsupportedRequest:
        is_served = False
    if not is_served:
        raise Refusal(
            f"the cluster at {cluster.bootstrap} has no share groups: the feature share.version is"
            " not enabled"
        )


class ShareMember:
    """A member of a share group, from joining to leaving."""

    def __init__(
        self,
        cluster: ClusterClients,
        group: str,
        topics: Sequence[str],
        outcome: AcknowledgeType = AcknowledgeType.ACCEPT,
    ) -> None:
        """`outcome` is how processed records are acknowledged."""
        self.cluster = cluster
        self.group = group
        self.topics = topics
        self.outcome = outcome
        self.signals = SignalHandling()
        self._unprocessed: list[Message] = []
        settings = {"group.id": group, "share.acknowledgement.mode": "explicit"}
        self.consumer = ShareConsumer(cluster.settings(settings))
        self.consumer.set_acknowledgement_commit_callback(self._on_commit)

    def __enter__(self) -> ShareMember:
        check_share_groups(self.cluster)
        admin = self.cluster.connected_admin()
        for topic in self.topics:
            self.cluster.topic(admin, topic)
        self.consumer.subscribe([*self.topics])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Release what was not processed, send all acknowledgements, and leave the group."""
        self._acknowledge(self._unprocessed, AcknowledgeType.RELEASE)
        self.consumer.close()

    def batches(
        self, count: int | None, idle_timeout_s: float = float("inf")
    ) -> Iterator[list[Message]]:
        """Yield the records that this member is to process.

        End after `count` records, or if none arrives within the timeout.
        """
        left = sys.maxsize if count is None else count
        deadline_s = time.monotonic() + idle_timeout_s
        with self.signals.deferred():
            while left and time.monotonic() < deadline_s:
                self.signals.check()
                received = self.consumer.poll(min(POLL_S, idle_timeout_s))
                records = [message for message in received if message.error() is None]
                self._warn_of_errors(received)
                batch = records[:left]
                surplus = len(records) - len(batch)
                self._unprocessed = records
                if batch:
                    yield batch
                    self.processed(len(self._unprocessed) - surplus, self.outcome)
                    self.consumer.commit_async()
                    left -= len(batch)
                    deadline_s = time.monotonic() + idle_timeout_s

    def processed(self, count: int, outcome: AcknowledgeType) -> None:
        """Acknowledge the next records of the current batch."""
        self._acknowledge(self._unprocessed[:count], outcome)
        del self._unprocessed[:count]

    def _acknowledge(self, records: Iterable[Message], outcome: AcknowledgeType) -> None:
        for message in records:
            self.consumer.acknowledge(message, outcome)

    def _warn_of_errors(self, received: Iterable[Message]) -> None:
        for message in received:
            error = message.error()
            if error is None:
                continue
            if error.fatal():
                raise Refusal(f"share group {self.group}: {clean_error(error.str())}")
            warn(f"share group {self.group}: {clean_error(error.str())}")

    def _on_commit(
        self, offsets: Mapping[TopicPartition, set[int]], error: KafkaException | None
    ) -> None:
        if error is not None:
            warn(f"acknowledgement of group {self.group} failed: {clean_error(str(error))}")
