"""The APIs clients may use, in ten families.

To import this folder is to know them all: `schema.BY_KEY` is whole then.  A family's file says the
bytes; the file of the same name in broker/handlers/ gives the answers.

Left out: the keys only nodes of Kafka's own quorum speak (52-54, 56, 58, 59, 62, 63, 67, 70, 73,
82) and those of its share coordinator (83-87), for no client ever sends them.
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
    "topics",
    "transactions",
]
