"""A process that appends until it is killed and prints each batch that was written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kafkalite.clock import SystemClock
from kafkalite.config import topic as keys
from kafkalite.config.settings import Settings
from kafkalite.storage.manager.log_directory import LogDirectory
from kafkalite.storage.manager.log_manager import LogManager
from tests.storage.factories import TOPIC_ID, produced


def run(data: Path, first: int) -> None:
    settings = Settings.broker({"storage.min.free.bytes": "0"})
    of_topic = settings.for_topic({"durability": "os"}).replacing({keys.SEGMENT_BYTES: 20_000})
    logs = LogManager(data, settings, SystemClock())
    directory = LogDirectory(data)
    directory.lock()
    logs.open_directory(directory.cluster_id, 0)
    loaded = logs.load(lambda topic: of_topic)
    log = loaded.get(("t", 0)) or logs.create("t", TOPIC_ID, 0, of_topic)
    sequence = first
    while True:
        placed = log.append(produced(sequence, b"%d" % sequence), 0)
        os.write(1, b"%d %d\n" % (sequence, placed.base_offset))
        log.write_index_page()
        sequence += 1


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
