"""partition.metadata: the file that says whose log a directory holds, as Kafka writes it.

    version: 0
    topic_id: pT3mGvYJQ3m2aV0hD1kq9Q

The directory's name says the topic's name and the partition.  A topic made again under the same
name has another id, and nothing to do with the records that are there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from kafkalite.ids import NO_ID, read_id, written_id
from kafkalite.storage.disk import read_small_file
from kafkalite.storage.layout import PARTITION_METADATA

log = logging.getLogger("kafkalite.storage")


class Owner(NamedTuple):
    """Whose log a directory holds."""

    topic: str
    partition: int
    topic_id: bytes

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    def is_also(self, topic_id: bytes) -> bool:
        """Whether an id is this topic's; where one was lost, it is more likely the same."""
        return topic_id in (self.topic_id, NO_ID) or self.topic_id == NO_ID


def metadata_text(topic_id: bytes) -> bytes:
    """The content of partition.metadata."""
    return f"version: 0\ntopic_id: {written_id(topic_id)}".encode()


def read_topic_id(directory: Path) -> bytes:
    """The topic id a log's directory bears; zeros when its file is missing or damaged."""
    path = directory / PARTITION_METADATA
    try:
        text = read_small_file(path).decode("ascii")
        lines = dict(line.split(": ", 1) for line in text.splitlines())
        if lines["version"] != "0":
            raise ValueError(f"version {lines['version']}")
        return read_id(lines["topic_id"])
    except (OSError, ValueError, KeyError) as fault:
        log.warning("%s does not say whose log it is (%s)", path, fault)
        return NO_ID
