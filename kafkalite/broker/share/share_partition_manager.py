"""SharePartitionManager: the share groups of a node, as the leader of their partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalite.broker.share.led_share_partition import ShareServices
from kafkalite.broker.share.led_share_partitions import LedSharePartitions
from kafkalite.broker.share.persister import SendStates, SharePersister
from kafkalite.broker.share.share_sessions import ShareSessions

if TYPE_CHECKING:
    from kafkalite.broker.replica.batch_opener import BatchOpener
    from kafkalite.broker.replica.purgatory import Purgatory
    from kafkalite.broker.share.dead_letter_queue import DeadLetterQueue
    from kafkalite.coordination.share.share_settings import ShareGroupSettings
    from kafkalite.transport.reactor import Reactor


class SharePartitionManager:
    """The share partitions and share sessions of a node.

    `settings_of` returns the settings of a group that are in force.
    """

    def __init__(
        self,
        settings_of: Callable[[str], ShareGroupSettings],
        send: SendStates,
        dead_letters: DeadLetterQueue,
        opener: BatchOpener,
        purgatory: Purgatory,
        reactor: Reactor,
    ) -> None:
        self.settings_of = settings_of
        persister = SharePersister(send, reactor)
        self.dead_letters = dead_letters
        self.led = LedSharePartitions(
            ShareServices(settings_of, persister, dead_letters, opener, purgatory, reactor)
        )
        self.sessions = ShareSessions(self.led)
