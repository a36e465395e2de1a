"""Reconciliation: one step of one member towards its target assignment (KIP-848).

    A partition is revoked from its owner before another member gets it:

    STABLE ──some are not in the target──▶ UNREVOKED ──the member has revoked them──▶ next epoch
       ▲                                                                               │    │
       └──────────── all of the target is free ────────────────────────────────────────┘    │
       └──────── UNRELEASED ◀──── another member still owns some of the target ─────────────┘

A member that has to revoke stays in its epoch; one that finishes goes to the newest target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from kafkalite.coordination.groups.assignment.topic_partitions import Partitions
from kafkalite.coordination.groups.consumer.consumer_member import (
    CurrentAssignment,
    MemberState,
    PartitionEpochs,
)

OwnedPartitions: TypeAlias = Mapping[bytes, Collection[int]]
"""The partitions that a member reports as owned, by topic id."""
IsFree: TypeAlias = Callable[[bytes, int], bool]
"""Returns whether no other member owns a partition."""

STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS


def reconcile(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    subscribed: Collection[bytes],
    owned: OwnedPartitions | None,
    is_free: IsFree,
) -> CurrentAssignment:
    """Return the member's next assignment; `current` itself if it has to stay as it is.

    `owned` is None if the request has no such field: the member may then own everything.
    """
    is_settled = current.state is STABLE and current.epoch == target_epoch
    if is_settled or (current.state is UNREVOKED and _owns_any(owned, current.pending)):
        return _without_unsubscribed(current, subscribed, owned)
    assigned = current.assigned
    wanted = {
        topic_id: frozenset(target[topic_id])
        for topic_id in target.keys() & subscribed
        if target[topic_id]
    }
    kept, revoked = _split(assigned, wanted)
    if revoked and _owns_any(owned, revoked):
        return CurrentAssignment(current.epoch, current.epoch, UNREVOKED, kept, revoked)
    state = STABLE
    granted: dict[bytes, dict[int, int]] = {key: {**kept[key]} for key in kept}
    for topic_id, indexes in wanted.items():
        for index in indexes - kept.get(topic_id, {}).keys():
            if is_free(topic_id, index):
                granted.setdefault(topic_id, {})[index] = target_epoch
            else:
                state = UNRELEASED
    after = CurrentAssignment(target_epoch, current.epoch, state, granted, {})
    if after[2:] == current[2:] and after.epoch == current.epoch:
        return current
    return after


def _without_unsubscribed(
    current: CurrentAssignment, subscribed: Collection[bytes], owned: OwnedPartitions | None
) -> CurrentAssignment:
    """Revoke the topics that the member does not subscribe to any more."""
    removed = {key: each for key, each in current.assigned.items() if key not in subscribed}
    if not removed:
        return current
    kept = {key: each for key, each in current.assigned.items() if key in subscribed}
    if not _owns_any(owned, removed):
        return current._replace(assigned=kept)
    pending = {key: {**each} for key, each in current.pending.items()}
    for topic_id, epochs in removed.items():
        pending.setdefault(topic_id, {}).update(epochs)
    return current._replace(state=UNREVOKED, assigned=kept, pending=pending)


def _split(
    assigned: PartitionEpochs, wanted: Mapping[bytes, Collection[int]]
) -> tuple[dict[bytes, dict[int, int]], dict[bytes, dict[int, int]]]:
    """Return the assigned partitions that are wanted, and the others."""
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    for topic_id, epochs in assigned.items():
        stays = wanted.get(topic_id, ())
        for index, epoch in epochs.items():
            (kept if index in stays else revoked).setdefault(topic_id, {})[index] = epoch
    return kept, revoked


def _owns_any(owned: OwnedPartitions | None, partitions: PartitionEpochs) -> bool:
    """Return whether a member may still own one of these partitions."""
    if owned is None:
        return True
    return any(
        index in epochs
        for topic_id, epochs in partitions.items()
        for index in owned.get(topic_id, ())
    )
