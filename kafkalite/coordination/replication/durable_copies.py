"""DurableCopies: the number of flushed copies of a record that is acknowledged with acks=all.

                    committed once flushed on             after a power loss, also lost may be
    leader          the leader                            nothing
    minisr          min.insync.replicas replicas          all of these disks but one
    all             all replicas in sync                  the same, as the ISR may be that small

A partition knows the number that all its acknowledged records have (`flushed_copies` of its image).
The number rises once the leader reports that it holds for earlier records too, and falls at once.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kafkalite.config.topic import DURABILITY, DURABLE_COPIES

if TYPE_CHECKING:
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.partition_image import PartitionImage


class DurableCopies(Enum):
    """The number of flushed copies of a committed record."""

    LEADER = "leader"
    MIN_ISR = "minisr"
    ALL = "all"

    @classmethod
    def of(cls, settings: Settings) -> DurableCopies | None:
        """Return what the settings of a topic have; None if it commits without a flush."""
        return cls(settings[DURABLE_COPIES]) if settings[DURABILITY] == "fsync" else None

    def count(self, partition: PartitionImage, min_isr: int) -> int:
        """Return the number of flushed copies that each committed record has, at least."""
        return 1 if self is DurableCopies.LEADER else partition.effective_min_isr(min_isr)
