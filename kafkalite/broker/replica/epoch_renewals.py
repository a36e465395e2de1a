"""EpochRenewals: the partitions of a node that wait for their next leader epoch.

    log opened, may have lost its tail ─▶ must_wait ─▶ renewal requested ┄┄▶ image has a later epoch
                                                                       ─▶ must_wait is False: led

Such a partition has no leader until then.  The controller may be unreachable or lose the request,
so all pending renewals are requested again every second and each time the controller accepts this
node.  A reassignment to another node also brings the next epoch.

The checkpoint records that the logs belong to this boot of the machine only when no renewal is
pending: a process that is killed before that requests them again (RecoveryPoints).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kafkalite.coordination.leader_epochs import EpochRenewal

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.manager.log_loader import LogKey
    from kafkalite.storage.manager.log_manager import LogManager
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

RETRY_MS = 1_000
RENEWALS_PER_REQUEST = 1_000
"""Maximum number of renewals in one request, and in one decision of the controller."""


class EpochRenewals:
    """The pending renewals of one node; see the module."""

    def __init__(
        self,
        metadata: MetadataCache,
        logs: LogManager,
        reactor: Reactor,
        request: Callable[[int, Sequence[EpochRenewal]], None],
        on_all_renewed: Callable[[], object],
    ) -> None:
        self._metadata = metadata
        self._logs = logs
        self._reactor = reactor
        self._request = request
        """Requests next leader epochs for a node at the controller."""
        self._on_all_renewed = on_all_renewed
        self._waiting: dict[bytes, dict[Log, EpochRenewal]] = {}
        """The waiting logs and their renewals, by topic id."""
        self._is_scheduled = False
        self._logged_count = 0

    def waiting(self, topic_id: bytes | None = None) -> list[tuple[Log, EpochRenewal]]:
        """Return the waiting logs and their renewals, of one topic or of all topics."""
        if topic_id is not None:
            return [*self._waiting.get(topic_id, {}).items()]
        return [pair for of_topic in self._waiting.values() for pair in of_topic.items()]

    def must_wait(self, found: Log, topic_id: bytes, leader_epoch: int) -> bool:
        """Return whether a log may not be led in this epoch; if so, request the next one."""
        if not found.may_have_lost_tail:
            return False
        renewal = self._waiting.get(topic_id, {}).get(found)
        if renewal is not None and leader_epoch > renewal.leader_epoch:
            self._logs.note_new_epoch(found)
            self.remove(found, topic_id)
            return False
        if renewal is None:
            renewal = EpochRenewal(topic_id, found.partition, leader_epoch)
            self._waiting.setdefault(topic_id, {})[found] = renewal
            log.debug(
                "Log may have lost its tail; requesting a new leader epoch. partition=%s-%d"
                " log_end_offset=%d leader_epoch=%d",
                found.topic, found.partition, found.end_offset, leader_epoch,
            )  # fmt: skip
            self._schedule(0)
        return True

    def remove(self, found: Log, topic_id: bytes) -> None:
        """Remove a log that has its new epoch or is no longer this node's."""
        of_topic = self._waiting.get(topic_id, {})
        of_topic.pop(found, None)
        if not of_topic and self._waiting.pop(topic_id, None) is not None and not self._waiting:
            self._on_all_renewed()  # the checkpoint may now record this boot for all logs

    def at_start(self, loaded: Mapping[LogKey, Log]) -> list[EpochRenewal]:
        """Return the renewals of the loaded logs that this node leads, before any is led."""
        for topic in self._metadata.image.topics.values():
            for index, partition in topic.partitions.items():
                found = loaded.get((topic.name, index))
                if not partition.is_alone:
                    continue  # its leader is elected once this process is registered
                if found is not None and partition.leader == self._metadata.node_id:
                    self.must_wait(found, topic.topic_id, partition.leader_epoch)
        return self._wanted()

    def request_all(self) -> None:
        """Request all pending renewals."""
        wanted = self._wanted()
        for first in range(0, len(wanted), RENEWALS_PER_REQUEST):
            self._request(self._metadata.node_id, wanted[first : first + RENEWALS_PER_REQUEST])

    def _wanted(self) -> list[EpochRenewal]:
        wanted = [renewal for _, renewal in self.waiting()]
        if len(wanted) not in (0, self._logged_count):
            log.info(
                "Logs may have lost their tails; requesting new leader epochs. partitions=%d",
                len(wanted),
            )
        self._logged_count = len(wanted)
        return wanted

    def _schedule(self, delay_ms: int) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._reactor.call_later(delay_ms, self._retry)

    def _retry(self) -> None:
        self._is_scheduled = False
        if self._waiting:
            self.request_all()
            self._schedule(RETRY_MS)
