"""Features: what the nodes support, and the levels that the cluster has finalized (KIP-584).

Clients decide by the finalized level of transaction.version how they run their transactions:

    0   as in KIP-98
    1   the same; the coordinator's records have the flexible format
    2   each transaction has an epoch of its own, and Produce adds its partitions (KIP-890)

Left out: the features of Kafka's own metadata log and groups.
"""

from __future__ import annotations

from kafkalite.config.broker import UNSTABLE_FEATURE_VERSIONS_ENABLE
from kafkalite.config.settings import Settings

TRANSACTION_VERSION = "transaction.version"

ADVERTISED_VERSION: int | None = None
"""The highest level of transaction.version that clients may use; None: there are no transactions.
"""
DEVELOPED_VERSION = 2
"""The highest level that the code knows; tests use it before it is advertised."""


def transaction_version_max(settings: Settings) -> int | None:
    """Return the highest supported level of transaction.version; None without transactions."""
    is_unstable = settings[UNSTABLE_FEATURE_VERSIONS_ENABLE]
    return DEVELOPED_VERSION if is_unstable else ADVERTISED_VERSION
