"""ShareCoordinators: the share coordinators of a node, hosted in `__share_group_state`.

    leader of a partition on this node ──▶ outcomes ─┬▶ machine ─▶ log
    leader on a worker ── bus ──▶ outcomes ──────────╯

A request has entries for many share partitions.  Those of one coordinator are one decision, with
one batch of records; each entry has its own outcome.  A decision has up to ENTRIES_AT_ONCE of them.

The states of deleted topics are deleted, in steps, when their topics are and after a load; requests
for them are refused.

The log is pruned every PRUNE_MS: states without a snapshot since the last pruning get one, and the
records before the last pruning are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from kafkalite.broker.coordinator.coordinator_host import (
    CoordinatorHost,
    CoordinatorKind,
    Coordinators,
)
from kafkalite.broker.coordinator.journal_loader import RecordCodec
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, Work, in_steps
from kafkalite.config.share_group import SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT
from kafkalite.coordination.share.share_coordinator import ShareCoordinator
from kafkalite.coordination.share.state_requests import Outcome, StateDeletion, StateRequest
from kafkalite.coordination.topic_names import SHARE_GROUP_STATE
from kafkalite.errors import KafkaError, UnknownTopicOrPartition, raise_for
from kafkalite.protocol.schemas import share_records
from kafkalite.protocol.schemas.share_records import SharePartitionKey

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.machine import DecisionResult
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

ShareHost: TypeAlias = CoordinatorHost[ShareCoordinator]

PRUNE_MS = 300_000
"""Interval between two prunings of the log."""
RENEW_PAUSE_MS = 5
"""Pause between two batches of snapshots."""
DELETE_COUNT, DELETE_PAUSE_MS = 500, 2
"""Number of states examined in a step, for deleted topics; milliseconds between two steps."""


class ShareCoordinators(Coordinators[ShareCoordinator]):
    """The share coordinators of a node, by partition of __share_group_state."""

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        reactor: Reactor,
    ) -> None:
        kind = CoordinatorKind(
            SHARE_GROUP_STATE,
            RecordCodec(share_records.write, share_records.read, is_cumulative=True),
            lambda: ShareCoordinator(self._snapshot_update_count),
        )
        super().__init__(kind, metadata, replicas, reactor)
        self._snapshot_update_count = settings[
            SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT
        ]

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""
        self._snapshot_update_count = settings[
            SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT
        ]
        for host in self:
            host.machine.snapshot_update_count = self._snapshot_update_count

    def keys_of(self, group_id: str) -> list[SharePartitionKey]:
        """Return the share partitions of a group that have a state; raise KafkaError while not all
        coordinators are loaded."""
        raise_for(self.error_code)
        return [key for host in self for key in host.machine.keys() if key.group_id == group_id]

    def outcomes(self, requests: Sequence[StateRequest]) -> Future[list[Outcome]]:
        """Return the outcome of each request, in order, once all of their changes are committed.

        Many requests are decided in parts, one after the other.
        """
        if len(requests) <= ENTRIES_AT_ONCE:
            return self._outcomes(requests)
        work: Work[list[Outcome] | Future[list[Outcome]]] = self._in_parts(requests)
        found = in_steps(self._reactor, work, is_cancellable=False)
        return found if isinstance(found, Future) else Future.of(found)

    def _in_parts(self, requests: Sequence[StateRequest]) -> Work[Future[list[Outcome]]]:
        parts: list[Future[list[Outcome]]] = []
        for begin in range(0, len(requests), ENTRIES_AT_ONCE):
            parts.append(self._outcomes(requests[begin : begin + ENTRIES_AT_ONCE]))
            yield
        return all_of(parts).map(lambda found: [*chain.from_iterable(found)])

    def _outcomes(self, requests: Sequence[StateRequest]) -> Future[list[Outcome]]:
        if len(requests) == 1:
            return self._outcome(requests[0])
        by_host: dict[ShareHost, list[int]] = {}
        outcomes: list[Outcome] = [None] * len(requests)
        for number, request in enumerate(requests):
            try:
                self._check_topic(request)
                host = self.host_of(request.key.coordinator_key)
            except KafkaError as error:
                outcomes[number] = error.copy()  # a traceback would reference this list
            else:
                by_host.setdefault(host, []).append(number)
        decided = [
            self._decided(host, [requests[number] for number in numbers])
            for host, numbers in by_host.items()
        ]

        def collect(found: list[list[Outcome]]) -> list[Outcome]:
            for numbers, of_host in zip(by_host.values(), found, strict=True):
                for number, outcome in zip(numbers, of_host, strict=True):
                    outcomes[number] = outcome
            return outcomes

        return all_of(decided).map(collect)

    def _outcome(self, request: StateRequest) -> Future[list[Outcome]]:
        """Return the outcome of a single request: the changes of one share partition are written
        one at a time."""
        try:
            self._check_topic(request)
            host = self.host_of(request.key.coordinator_key)
        except KafkaError as error:
            return Future.of([error])
        return self._decided(host, [request])

    def _check_topic(self, request: StateRequest) -> None:
        """Refuse to begin, read or change the state of a topic that does not exist any more."""
        if not isinstance(request, StateDeletion) and self._is_missing(request.key.topic_id):
            raise UnknownTopicOrPartition()

    def _decided(
        self, host: ShareHost, requests: Sequence[StateRequest]
    ) -> Future[list[Outcome]]:
        def of_response(response: Mapping[str, Any]) -> list[Outcome]:
            outcomes: list[Outcome] = response["outcomes"]
            return outcomes

        def failed(error: KafkaError) -> list[Outcome]:
            return [error] * len(requests)

        decided: Future[Any] = host.request(
            lambda machine, token, _, wall_ms: machine.decide(requests, token, wall_ms)
        )
        return decided.map(of_response).recover(failed)

    def _host_loaded(self, host: ShareHost) -> None:
        self._delete_step(host, iter(host.machine.keys()), self._is_missing)
        host.machine.begin_generation()
        boundary = host.journal.end_offset
        self._reactor.call_later(PRUNE_MS, lambda: self._prune(host, boundary))

    # -- deleted topics ----------------------------------------------------------------------

    def delete_topics(self, topic_ids: Collection[bytes]) -> None:
        """Delete the states of deleted topics, in steps.

        A coordinator that is loading looks for topics that do not exist afterwards.
        """
        for host in self:
            self._delete_step(host, iter(host.machine.keys()), topic_ids.__contains__)

    def _is_missing(self, topic_id: bytes) -> bool:
        return self._metadata.topic(topic_id) is None

    def _delete_step(
        self,
        host: ShareHost,
        remaining: Iterator[SharePartitionKey],
        is_deleted: Callable[[bytes], bool],
    ) -> None:
        if host.is_closed:
            return
        some = [*islice(remaining, DELETE_COUNT)]
        deletions = [StateDeletion(key) for key in some if is_deleted(key.topic_id)]
        if deletions:
            # A failure is left to the next load.
            host.submit(
                lambda machine, token, _, wall_ms: machine.decide(deletions, token, wall_ms)
            )
        if len(some) == DELETE_COUNT:
            self._reactor.call_later(
                DELETE_PAUSE_MS, lambda: self._delete_step(host, remaining, is_deleted)
            )

    # -- pruning -----------------------------------------------------------------------------

    def _prune(self, host: ShareHost, boundary: int) -> None:
        """Write the states that have no snapshot after `boundary`; then delete the records before
        it."""
        if host.is_closed:
            return
        if host.journal.end_offset == boundary:  # nothing was written
            self._reactor.call_later(PRUNE_MS, lambda: self._prune(host, boundary))
            return
        wall_ms = self._reactor.clock.wall_ms()

        def decide(machine: ShareCoordinator) -> DecisionResult[bool]:
            return machine.renew_snapshots(wall_ms)

        def decided(is_done: bool | None, error: KafkaError | None) -> None:
            if error is not None:
                self._reactor.call_later(PRUNE_MS, lambda: self._prune(host, boundary))
            elif not is_done:
                self._reactor.call_later(RENEW_PAUSE_MS, lambda: self._prune(host, boundary))
            else:
                self._pruned(host, boundary)

        host.decide(decide).then(decided)

    def _pruned(self, host: ShareHost, boundary: int) -> None:
        if host.is_closed:
            return
        try:
            host.partition.log.delete_records(boundary)
        except KafkaError as error:
            log.warning(
                "Records before the snapshots of %s could not be deleted; retrying."
                " partition=%s before_offset=%d error=%r",
                host.partition, host.partition, boundary, str(error),
            )  # fmt: skip
        host.machine.begin_generation()
        next_boundary = host.journal.end_offset
        self._reactor.call_later(PRUNE_MS, lambda: self._prune(host, next_boundary))
