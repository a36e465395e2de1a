"""partition.metadata: the file that holds the topic id of a log's directory, as Kafka writes it.

    version: 0
    topic_id: pT3mGvYJQ3m2aV0hD1kq9Q

The directory's name holds the topic's name and the partition.  A topic that is deleted and created
again has the same name, but another id and other records.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from kafkalite.ids import NO_ID, read_id, written_id
from kafkalite.storage.files.disk import read_small_file
from kafkalite.storage.files.layout import PARTITION_METADATA

log = logging.getLogger("kafkalite.storage")


class TopicIdPartition(NamedTuple):
    """The partition whose log a directory holds."""

    topic: str
    partition: int
    topic_id: bytes

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    def is_also(self, topic_id: bytes) -> bool:
        """Return whether a topic id is this topic's; a lost id on either side counts as equal."""
        return topic_id in (self.topic_id, NO_ID) or self.topic_id == NO_ID


def metadata_text(topic_id: bytes) -> bytes:
    """Return the content of partition.metadata."""
    return f"version: 0\ntopic_id: {written_id(topic_id)}".encode()


def read_topic_id(directory: Path) -> bytes:
    """Return the topic id of a log's directory; zeros if its file is missing or damaged."""
    path = directory / PARTITION_METADATA
    try:
        text = read_small_file(path).decode("ascii")
        lines = dict(line.split(": ", 1) for line in text.splitlines())
        if lines["version"] != "0":
            raise ValueError(f"version {lines['version']}")
        return read_id(lines["topic_id"])
    except (OSError, ValueError, KeyError) as error:
        log.warning("Topic id of a log cannot be read. path=%s error=%r", path, str(error))
        return NO_ID
