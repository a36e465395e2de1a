"""Features: what the nodes support, and the levels that the cluster has finalized (KIP-584).

Clients decide by the finalized level of transaction.version how they run their transactions:

    0   as in KIP-98
    1   the same; the coordinator's records have the flexible format
    2   each transaction has an epoch of its own, and Produce adds its partitions (KIP-890)

group.version 1 is the consumer protocol of groups (KIP-848), share.version 1 are share groups
(KIP-932), and 2 has their dead letters (KIP-1191).  Below level 1 the APIs of a protocol are
neither listed nor served.

Every feature has minimum 0.  A level is finalized only if every node of the cluster supports it; a
feature that was never finalized or disabled gets the highest one by itself.

Left out: the features of Kafka's own metadata log, of elections, and streams groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from kafkalite.coordination.image import SUPERVISOR_ID, ClusterImage
from kafkalite.coordination.machine import DecisionResult
from kafkalite.errors import InvalidUpdateVersion, UnsupportedVersion
from kafkalite.protocol.schemas.internal import FEATURE

TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"

GROUP_VERSION_MAX = 1
"""The highest level of group.version."""
SHARE_VERSION_MAX = 2
"""The highest level of share.version."""
DEAD_LETTERS_SINCE = 2
"""The level of share.version that has dead letters."""

SupportedLevels: TypeAlias = Mapping[str, int]
"""The highest level of each feature that a node supports."""

SUPPORTED_LEVELS: SupportedLevels = {
    name: level_max
    for name, level_max in (
        (TRANSACTION_VERSION, 2),
        (GROUP_VERSION, GROUP_VERSION_MAX),
        (SHARE_VERSION, SHARE_VERSION_MAX),
    )
    if level_max
}


class UpgradeType(IntEnum):
    """Type of an update: the direction in which it may change a level, as in UpdateFeatures."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """An update of a feature's finalized level."""

    level: int
    upgrade_type: int


def finalized_levels(image: ClusterImage) -> SupportedLevels:
    """Return the finalized level of each supported feature, without disabled ones."""
    return {
        name: min(image.features[name], level_max)
        for name, level_max in SUPPORTED_LEVELS.items()
        if image.features.get(name, 0) > 0
    }


def has_dead_letters(image: ClusterImage) -> bool:
    """Return whether share groups have dead letters in this cluster (KIP-1191)."""
    return finalized_levels(image).get(SHARE_VERSION, 0) >= DEAD_LETTERS_SINCE


def is_finalized(image: ClusterImage, name: str | None) -> bool:
    """Return whether a feature is supported and finalized at level 1 or higher; None always is."""
    return name is None or (name in SUPPORTED_LEVELS and image.features.get(name, 0) > 0)


def check_finalized(image: ClusterImage, name: str) -> None:
    """Raise UnsupportedVersion unless a feature is supported and finalized at level 1 or higher."""
    if not is_finalized(image, name):
        raise UnsupportedVersion(f"The cluster has not enabled the feature {name}.")


def finalize(
    image: ClusterImage, by_node: Mapping[int, SupportedLevels]
) -> DecisionResult[None]:
    """Finalize the highest level of each new feature that every node supports.

    `by_node` has the nodes whose supported levels are known.
    """
    records = [
        FEATURE(name=name, level=min(by_node[node_id][name] for node_id in image.nodes))
        for name in by_node[SUPERVISOR_ID]
        if name not in image.features and _unsupported(image, name, 1, by_node) is None
    ]
    return DecisionResult(None, records)


def update(
    image: ClusterImage,
    updates: Mapping[str, FeatureUpdate],
    by_node: Mapping[int, SupportedLevels],
    *,
    validate_only: bool,
) -> DecisionResult[None]:
    """Change finalized levels, all or none; raise InvalidUpdateVersion with Kafka's reason."""
    records = []
    for name, wanted in updates.items():
        reason = _refusal(image, name, wanted, by_node)
        if reason is not None:
            raise InvalidUpdateVersion(
                f"Invalid update version {wanted.level} for feature {name}. {reason}"
            )
        if wanted.level != image.features.get(name, 0):
            records.append(FEATURE(name=name, level=wanted.level))
    return DecisionResult(None, [] if validate_only else records)


def _refusal(
    image: ClusterImage,
    name: str,
    wanted: FeatureUpdate,
    by_node: Mapping[int, SupportedLevels],
) -> str | None:
    current = image.features.get(name, 0)
    if wanted.upgrade_type not in (*UpgradeType,):
        return "The controller does not support the given upgrade type."
    if wanted.level < 0:
        return "A feature version cannot be less than 0."
    reason = _unsupported(image, name, wanted.level, by_node)
    if reason is not None:
        return reason
    if wanted.level < current and wanted.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to"
            " either safe or unsafe downgrade."
        )
    if wanted.level > current and wanted.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if name not in SUPPORTED_LEVELS:
        return f"Feature {name} not found."
    return None


def _unsupported(
    image: ClusterImage, name: str, level: int, by_node: Mapping[int, SupportedLevels]
) -> str | None:
    """Return why some node does not support this level, or None if all do; level 0 always is."""
    for node_id in sorted(image.nodes):
        what = "Local controller" if node_id == SUPERVISOR_ID else "Broker"
        level_max = by_node.get(node_id, {}).get(name, 0)
        if level and not level_max:
            return f"{what} {node_id} does not support this feature."
        if level > level_max:
            return f"{what} {node_id} only supports versions 0-{level_max}"
    return None
