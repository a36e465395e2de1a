"""ShareCoordinator: the stored state of the share partitions of a `__share_group_state` partition.

    leader of a partition ── read, write ───────────╮
    group coordinator ── initialize, delete, read ──┴▶ decision ─▶ snapshot or update ─▶ replay

A state is written as a snapshot, followed by updates with the changes.  After
`snapshot_update_count` updates comes another snapshot.  The write of a leader is merged with the
stored state (delivery_states.py), so a repeated write changes nothing.

Two epochs fence: the leader epoch of the partition, which a new leader writes by its first read,
and the state epoch, which is the epoch of the group when the state was initialized.

The log is needed from the oldest of the last snapshots of all share partitions on.
`renew_snapshots` writes old ones again, so that the host can delete the records before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kafkalite.coordination.machine import DecisionResult, Reply
from kafkalite.coordination.share.delivery_states import merge_batches, merge_into
from kafkalite.coordination.share.state_requests import (
    Outcome,
    StateChange,
    StateDeletion,
    StateInitialization,
    StateRead,
    StateRequest,
    StateSummary,
)
from kafkalite.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest, KafkaError
from kafkalite.protocol.schemas.share_records import (
    NO_COUNT,
    NO_EPOCH,
    NO_OFFSET,
    SharePartitionKey,
    ShareSnapshot,
    ShareStateRecord,
    ShareUpdate,
)

Decision: TypeAlias = DecisionResult[list[Reply]]

RENEW_COUNT, RENEW_BATCHES = 200, 2_000
"""Maximum number of snapshots that one decision renews, and the number of batches with which it
ends."""


class StoredShareState:
    """The stored state of a share partition."""

    __slots__ = ("generation", "snapshot", "update_count")

    def __init__(self, snapshot: ShareSnapshot, generation: int) -> None:
        self.snapshot = snapshot
        """The state with all updates."""
        self.update_count = 0
        """The number of updates since the last snapshot."""
        self.generation = generation
        """The generation of the log with that snapshot."""


class ShareCoordinator:
    """The coordinator's state machine."""

    def __init__(self, snapshot_update_count: int) -> None:
        self.snapshot_update_count = snapshot_update_count
        self.generation = 0
        """The generation of the records that are written now; `begin_generation` ends one."""
        self._shares: dict[SharePartitionKey, StoredShareState] = {}

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def next_due_ms(self) -> int | None:
        """None: no state expires."""
        return None

    def decide(self, requests: Sequence[StateRequest], token: Any, wall_ms: int) -> Decision:
        """Decide on each request by itself; return the outcome of each, as `outcomes`."""
        states = DecidedStates(self._shares, self.snapshot_update_count, wall_ms)
        outcomes: list[Outcome] = []
        for request in requests:
            try:
                outcomes.append(states.decide(request))
            except KafkaError as error:
                outcomes.append(error.copy())
        return DecisionResult([Reply(token, {"outcomes": outcomes})], states.records)

    # -- the log -----------------------------------------------------------------------------

    def begin_generation(self) -> None:
        """Begin another generation: that of the records written from now on."""
        self.generation += 1

    def renew_snapshots(self, wall_ms: int) -> DecisionResult[bool]:
        """Write some of the snapshots of earlier generations again; return whether all are."""
        records: list[ShareStateRecord] = []
        batch_count = 0
        for key, share in self._shares.items():
            if share.generation < self.generation:
                records.append(_snapshot_record(key, share.snapshot, wall_ms))
                batch_count += len(share.snapshot.state_batches)
                if len(records) == RENEW_COUNT or batch_count >= RENEW_BATCHES:
                    return DecisionResult(False, records)
        return DecisionResult(True, records)

    def replay(self, record: ShareStateRecord) -> None:
        """Apply one record."""
        key, value = record
        if value is None:
            self._shares.pop(key, None)
        elif isinstance(value, ShareSnapshot):
            batches = merge_batches(value.state_batches, value.start_offset)
            self._shares[key] = StoredShareState(
                value._replace(state_batches=batches), self.generation
            )
        else:
            share = self._shares.get(key)
            if share is not None and value.snapshot_epoch >= share.snapshot.snapshot_epoch:
                share.snapshot = _updated(share.snapshot, value)
                share.update_count += 1

    def loaded(self, now_ms: int, wall_ms: int) -> None:
        """Do nothing: there is no soft state."""

    def tick(self, now_ms: int, wall_ms: int) -> Decision:
        """Do nothing: there are no deadlines."""
        return DecisionResult([])

    def drop_token(self, token: Any) -> None:
        """Do nothing: no request of this machine waits for another one."""

    def keys(self) -> list[SharePartitionKey]:
        """Return the share partitions that have a state."""
        return list(self._shares)


class DecidedStates:
    """The states as they will be once the records of a decision are replayed."""

    def __init__(
        self,
        shares: dict[SharePartitionKey, StoredShareState],
        snapshot_update_count: int,
        wall_ms: int,
    ) -> None:
        self.records: list[ShareStateRecord] = []
        self._shares = shares
        self._wall_ms = wall_ms
        self._snapshot_update_count = snapshot_update_count
        self._changed: dict[SharePartitionKey, ShareSnapshot | None] = {}
        self._update_counts: dict[SharePartitionKey, int] = {}

    def of(self, key: SharePartitionKey) -> ShareSnapshot | None:
        """Return the state of a share partition, or None."""
        if key in self._changed:
            return self._changed[key]
        share = self._shares.get(key)
        return share.snapshot if share is not None else None

    def decide(self, request: StateRequest) -> ShareSnapshot | None:
        """Decide on one request; return the state, or None if there is none."""
        match request:
            case StateInitialization():
                return self._initialize(request)
            case StateRead():
                return self._read(request)
            case StateChange():
                return self._write(request)
            case StateDeletion():
                self._delete(request.key)
                return None
            case StateSummary():
                return self.of(request.key)

    def _initialize(self, wanted: StateInitialization) -> ShareSnapshot:
        """Initialize a state, unless it was initialized equally."""
        wall_ms = self._wall_ms
        key, state_epoch, start_offset = wanted
        known = self.of(key)
        snapshot_epoch = 0
        if known is not None:
            if state_epoch < known.state_epoch:
                raise FencedStateEpoch()
            if state_epoch == known.state_epoch and (
                start_offset == known.start_offset and not known.state_batches
            ):
                return known
            snapshot_epoch = known.snapshot_epoch + 1
        leader_epoch = known.leader_epoch if known is not None else NO_EPOCH
        state = ShareSnapshot(
            snapshot_epoch, state_epoch, leader_epoch, start_offset, NO_COUNT, wall_ms, wall_ms
        )
        self._add(key, state, state)
        return state

    def _read(self, wanted: StateRead) -> ShareSnapshot:
        """Return a state; store the leader epoch first if it is newer."""
        key, leader_epoch = wanted
        known = self._initialized(key, leader_epoch)
        if leader_epoch > known.leader_epoch:
            update = ShareUpdate(
                known.snapshot_epoch, leader_epoch, NO_OFFSET, known.delivery_complete_count
            )
            known = _updated(known, update)
            self._add(key, update, known)
        return known

    def _write(self, change: StateChange) -> ShareSnapshot:
        """Merge a change into a state."""
        key, state_epoch, leader_epoch, start_offset, complete_count, batches = change
        known = self._initialized(key, leader_epoch)
        if state_epoch < known.state_epoch:
            raise FencedStateEpoch()
        update = ShareUpdate(
            known.snapshot_epoch, leader_epoch, start_offset, complete_count, tuple(batches)
        )
        state = _updated(known, update)
        if self._update_count(key) >= self._snapshot_update_count:
            record = _snapshot_record(key, state, self._wall_ms)
            assert isinstance(record.value, ShareSnapshot)
            self._add(key, record.value, record.value)
        else:
            self._add(key, update, state)
        return state

    def _delete(self, key: SharePartitionKey) -> None:
        """Delete a state, if there is one."""
        if self.of(key) is not None:
            self.records.append(ShareStateRecord(key, None))
            self._changed[key] = None

    def _initialized(self, key: SharePartitionKey, leader_epoch: int) -> ShareSnapshot:
        known = self.of(key)
        if known is None:
            raise InvalidRequest("The state of the share partition is not initialized.")
        if leader_epoch < known.leader_epoch:
            raise FencedLeaderEpoch()
        return known

    def _update_count(self, key: SharePartitionKey) -> int:
        if key in self._update_counts:
            return self._update_counts[key]
        share = self._shares.get(key)
        return share.update_count if share is not None else 0

    def _add(
        self, key: SharePartitionKey, value: ShareSnapshot | ShareUpdate, state: ShareSnapshot
    ) -> None:
        is_update = isinstance(value, ShareUpdate)
        self._update_counts[key] = self._update_count(key) + 1 if is_update else 0
        self._changed[key] = state
        self.records.append(ShareStateRecord(key, value))


def _updated(state: ShareSnapshot, update: ShareUpdate) -> ShareSnapshot:
    """Return a state after an update."""
    start_offset = max(state.start_offset, update.start_offset)
    return state._replace(
        leader_epoch=max(state.leader_epoch, update.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=update.delivery_complete_count,
        state_batches=merge_into(state.state_batches, update.state_batches, start_offset),
    )


def _snapshot_record(
    key: SharePartitionKey, state: ShareSnapshot, wall_ms: int
) -> ShareStateRecord:
    """Return the record of the next snapshot of a state."""
    return ShareStateRecord(
        key, state._replace(snapshot_epoch=state.snapshot_epoch + 1, write_timestamp=wall_ms)
    )
