"""Keys of the log cleaner, with Kafka's names and defaults; they are among the broker's.

All but log.cleaner.enable may change while the broker runs: the cleaner learns them with the next
log that it is offered.  The defaults of topics' keys (log.cleaner.delete.retention.ms …) are
derived from those.
"""

from __future__ import annotations

import sys

from kafkalite.config.key import Check, Scope, Type, UpdateMode, at_least, between

LOG_CLEANER = Scope("broker")

LOG_CLEANER_ENABLE = LOG_CLEANER.declare(
    "log.cleaner.enable", Type.BOOLEAN, True,
    """Compact the topics whose cleanup.policy has `compact`.  `false` stops it for all topics,
    which then grow without bound; Kafka deprecates the key.""",
)
LOG_CLEANER_THREADS = LOG_CLEANER.declare(
    "log.cleaner.threads", Type.INT, 1,
    """Number of threads of the cleaner process, each of which compacts one log at a time.""",
    check=between(1, 64),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_CLEANER_DEDUPE_BUFFER_SIZE = LOG_CLEANER.declare(
    "log.cleaner.dedupe.buffer.size", Type.LONG, 128 << 20,
    """Memory for the offset maps of all cleaner threads.  A key takes 24 bytes, whatever its size;
    a log with more keys is compacted in several passes.""",
    check=at_least(1 << 20),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_CLEANER_IO_BUFFER_LOAD_FACTOR = LOG_CLEANER.declare(
    "log.cleaner.io.buffer.load.factor", Type.DOUBLE, 0.9,
    """Maximum part of an offset map that is used.  A higher value compacts more keys at a time, at
    the cost of slower lookups.""",
    check=Check("above 0 and at most 0.99", lambda factor: 0 < factor <= 0.99),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_CLEANER_IO_BUFFER_SIZE = LOG_CLEANER.declare(
    "log.cleaner.io.buffer.size", Type.INT, 512 << 10,
    """Size of the buffers for reading and writing of all cleaner threads.  A larger batch enlarges
    them.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_CLEANER_IO_MAX_BYTES_PER_SECOND = LOG_CLEANER.declare(
    "log.cleaner.io.max.bytes.per.second", Type.DOUBLE, sys.float_info.max,
    """Maximum rate at which the cleaner reads and writes, in total.""",
    check=Check("above 0", lambda rate: rate > 0),
    update=UpdateMode.CLUSTER_WIDE,
)
LOG_CLEANER_BACKOFF_MS = LOG_CLEANER.declare(
    "log.cleaner.backoff.ms", Type.LONG, 15_000,
    """Time for which the cleaner sleeps when no log needs to be compacted.""",
    check=at_least(0),
    update=UpdateMode.CLUSTER_WIDE,
)
