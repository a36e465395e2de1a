"""Elections: which replica of a partition leads it (KIP-966).

    valid leader     active, and in the ISR; or in the ELR while the ISR is empty
    ANY              the present leader, else the first valid replica
    PREFERRED        the first replica, else as ANY
    UNCLEAN          as ANY, else the first active replica: acknowledged records may be lost

If ISR and ELR are empty and the last leader is active again, it is elected as well: no other
replica has more, but it may have lost records.  Without a candidate the partition has no leader.

The ISR and ELR are those that the partition is about to have: partition_change.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from kafkalite.coordination.partition_image import NO_LEADER, PartitionImage


class ElectionType(Enum):
    """The replicas that an election may choose, and their order."""

    ANY = "any"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class ElectionResult(NamedTuple):
    """The elected leader, or NO_LEADER."""

    leader: int
    is_unclean: bool = False
    """True if the leader may lack acknowledged records."""


def elect(
    partition: PartitionImage, is_active: Callable[[int], bool], kind: ElectionType
) -> ElectionResult:
    """Elect a leader among the replicas of a partition."""
    eligible = partition.isr or partition.elr
    valid = [n for n in partition.replicas if n in eligible and is_active(n)]
    if valid:
        prefers_first = kind is ElectionType.PREFERRED and valid[0] == partition.replicas[0]
        if partition.leader in valid and not prefers_first:
            return ElectionResult(partition.leader)
        return ElectionResult(valid[0])
    candidates: Iterable[int] = ()
    if kind is ElectionType.UNCLEAN:
        candidates = partition.replicas
    if not eligible and len(partition.last_known_elr) == 1:
        candidates = (*partition.last_known_elr, *candidates)
    for node_id in candidates:
        if is_active(node_id):
            return ElectionResult(node_id, is_unclean=True)
    return ElectionResult(NO_LEADER)
