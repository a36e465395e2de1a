"""Schemas of the APIs that clients may use, in eleven modules.

Importing this package fills `schema.BY_KEY`.  Each module has the formats; the module of the same
name in broker/handlers/ serves the requests.

Left out: the keys that only nodes of Kafka's own quorum use (52-54, 56, 58, 59, 62, 63, 67, 70, 73,
82), since no client sends them.
"""

from kafkalite.protocol.schemas import (
    cluster,
    configs,
    fetch,
    groups,
    offsets,
    produce,
    security,
    share,
    share_state,
    topics,
    transactions,
)

__all__ = [
    "cluster",
    "configs",
    "fetch",
    "groups",
    "offsets",
    "produce",
    "security",
    "share",
    "share_state",
    "topics",
    "transactions",
]
