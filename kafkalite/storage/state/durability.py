"""Durability: the time at which appended records are flushed, by the topic key `durability`."""

from __future__ import annotations

import enum

from kafkalite.config.settings import Settings
from kafkalite.config.topic import DURABILITY


class Durability(enum.Enum):
    """The value of the key, built once for each change of a topic's settings."""

    FSYNC = "fsync"
    INTERVAL = "interval"
    OS = "os"

    @classmethod
    def of(cls, settings: Settings) -> Durability:
        return cls(settings[DURABILITY])

    @property
    def flushes_each_append(self) -> bool:
        """True if records are flushed before they are acknowledged or read."""
        return self is Durability.FSYNC

    @property
    def is_left_to_kernel(self) -> bool:
        """True if the kernel decides when records are written to the disk."""
        return self is Durability.OS
