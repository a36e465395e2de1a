"""PreferredLeaders: gives partitions back to their preferred leaders, their first replicas.

    every leader.imbalance.check.interval.seconds ─▶ nodes that lead too few ─▶ elections

A node that failed leads nothing when it has returned.  Its replicas are elected once they are in
the ISR; the others wait for a later check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalite.config.replication import (
    AUTO_LEADER_REBALANCE_ENABLE,
    LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
    LEADER_IMBALANCE_PER_BROKER_PERCENTAGE,
)
from kafkalite.coordination.replication import leadership
from kafkalite.coordination.replication.leadership import CHANGED_MAX

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.scheduler import Scheduler
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.replication.partition_change import RulesOf
    from kafkalite.errors import KafkaError

log = logging.getLogger("kafkalite.broker")


class PreferredLeaders:
    """Elects preferred leaders at an interval; see the module."""

    def __init__(
        self,
        controller: LocalController,
        settings: Callable[[], Settings],
        rules_of: RulesOf,
        timers: Scheduler,
    ) -> None:
        self._controller = controller
        self._settings = settings
        self._rules_of = rules_of
        self._timers = timers
        self._checked_offset = -1
        """The end of the metadata log when there was nothing to elect."""
        self._wait()

    def _wait(self) -> None:
        seconds = self._settings()[LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS]
        self._timers.call_later(seconds * 1_000, self._check)

    def _check(self) -> None:
        settings = self._settings()
        end_offset = self._controller.log.end_offset
        if not settings[AUTO_LEADER_REBALANCE_ENABLE] or end_offset == self._checked_offset:
            self._wait()
            return
        percentage = settings[LEADER_IMBALANCE_PER_BROKER_PERCENTAGE]
        self._controller.decide(
            lambda machine: leadership.elect_preferred(
                machine.image, leadership.imbalanced(machine.image, percentage), self._rules_of
            )
        ).then(lambda count, error: self._elected(end_offset, count, error))

    def _elected(self, end_offset: int, count: int | None, error: KafkaError | None) -> None:
        if error is not None:
            log.error("Preferred leaders were not elected. error=%r", str(error))
        elif count:
            log.info("Preferred leaders were elected. partitions=%d", count)
        else:
            self._checked_offset = end_offset
        if count == CHANGED_MAX:
            self._check()
        else:
            self._wait()
