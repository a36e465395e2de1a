"""LeaderSession: the share session of a member at one leader, without I/O (KIP-932).

    fields = session.fetch(wanted, limits, now_s)       ShareFetch, with what was acknowledged
    fields = session.acknowledge(now_s)                 ShareAcknowledge
    found = session.handle(response)                    its response

Epoch 0 opens the session; each response without an error counts it up; -1 ends it.  The broker
remembers the partitions of the session, so a request names those that are new or have
acknowledgements, and those to forget.

An error of the whole request (SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH) or a lost
connection resets the session: what was acquired in it is lost, since the broker has released it or
will do so; acknowledgements that were not confirmed fail with that error.  If a partition has
another leader, the same holds for that partition.  Records of a lost session are not acknowledged
in the next one, where the same offsets may have been acquired again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, KeysView, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from kafkalite.client.net.topology import PartitionMetadata, TopicPartition, error_of
from kafkalite.client.share.acquired_partition import (
    AcknowledgedRun,
    Acknowledgement,
    AcquiredPartition,
    Runs,
    TopicIdPartition,
)
from kafkalite.client.share.acquired_records import AcquiredRecords, acquired_runs
from kafkalite.errors import InvalidRecordState, InvalidRequest, KafkaError, StaleMetadata
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.share import SHARE_ACKNOWLEDGE, SHARE_FETCH

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = (1 << 31) - 1

Wanted = Mapping[TopicIdPartition, TopicPartition]


class AcknowledgementOutcome(NamedTuple):
    """The outcome of records that the application acknowledged; None: they are acknowledged."""

    partition: TopicPartition
    offsets: list[range]
    error: KafkaError | None


class LockRenewal:
    """Records whose locks are to be renewed, and the outcome."""

    def __init__(self, acquired: AcquiredPartition, runs: Runs) -> None:
        self.acquired = acquired
        self.runs = runs
        self.is_done = False
        self.error: KafkaError | None = None

    def done(self, error: KafkaError | None, due_s: float = 0.0) -> None:
        """Complete the renewal; the locks now end at `due_s` at the earliest."""
        self.is_done, self.error = True, error
        if error is None:
            self.acquired.renewed(self.runs, due_s)


class SentShareRequest(NamedTuple):
    """A request in flight."""

    api: Api
    epoch: int
    wanted: Wanted
    acknowledged: Mapping[TopicIdPartition, list[AcknowledgedRun]]
    renewals: list[LockRenewal]
    sent_s: float


class SharePartitionFailure(NamedTuple):
    """The error of a partition in a response, and its leader if the response names one."""

    partition: TopicPartition
    error: KafkaError
    leader: PartitionMetadata | None


class ShareResponse(NamedTuple):
    """The content of a response, as far as it is not about acknowledgements."""

    error: KafkaError | None
    records: list[AcquiredRecords]
    failures: list[SharePartitionFailure]


class LeaderSession:
    """The session: its epoch and partitions, and the acknowledgements that were not sent."""

    def __init__(
        self,
        node_id: int,
        group_id: str,
        member_id: str,
        queue: deque[AcknowledgedRun],
        outcomes: deque[AcknowledgementOutcome],
    ) -> None:
        self.node_id = node_id
        self.epoch = INITIAL_EPOCH
        self.in_flight: SentShareRequest | None = None
        """The request without a response; a session has one at a time."""
        self._group_id = group_id
        self._member_id = member_id
        self._queue = queue
        self._outcomes = outcomes
        self._partitions: Wanted = {}
        """The partitions that the broker's session has."""
        self._acquired: dict[TopicIdPartition, WeakSet[AcquiredPartition]] = {}
        self._pending: dict[TopicIdPartition, list[AcknowledgedRun]] = {}
        self._renewals: list[LockRenewal] = []

    @property
    def is_open(self) -> bool:
        return self.epoch != INITIAL_EPOCH

    @property
    def pending(self) -> KeysView[TopicIdPartition]:
        """Partitions with acknowledgements that were not sent."""
        return self._pending.keys()

    @property
    def has_renewals(self) -> bool:
        return bool(self._renewals)

    @property
    def has_unconfirmed(self) -> bool:
        """True if there are acknowledgements or renewals without an outcome."""
        sent = self.in_flight
        is_sent = sent is not None and bool(sent.acknowledged or sent.renewals)
        return is_sent or bool(self._pending or self._renewals)

    @property
    def unconfirmed(self) -> Iterator[AcknowledgedRun]:
        """The acknowledgements without an outcome."""
        for runs in self._pending.values():
            yield from runs
        if self.in_flight is not None:
            for runs in self.in_flight.acknowledged.values():
                yield from runs

    # What is to be sent.

    def add(self, run: AcknowledgedRun, now_s: float) -> None:
        """Take an acknowledgement; it fails at once if the records are lost or locked no more."""
        error = run.acquired.error
        if error is None and now_s >= run.acquired.due_s(run.first):
            error = InvalidRecordState("The lock of the records has ended.")
        if error is not None:
            self._report(run.acquired.key, [run], error)
        else:
            self._pending.setdefault(run.acquired.key, []).append(run)

    def renew(self, renewal: LockRenewal, now_s: float) -> None:
        """Take a renewal; it fails at once as an acknowledgement does."""
        error = renewal.acquired.error
        if error is None and now_s >= renewal.acquired.due_s(renewal.runs[0][0]):
            error = InvalidRecordState("The lock of the records has ended.")
        if error is not None:
            renewal.done(error)
        else:
            self._renewals.append(renewal)

    def refuse_renewals(self, error: KafkaError) -> None:
        """Have the renewals that were not sent fail."""
        renewals, self._renewals = self._renewals, []
        for renewal in renewals:
            renewal.done(error)

    def fetch(self, wanted: Wanted, limits: Mapping[str, int], now_s: float) -> dict[str, Any]:
        """Return a ShareFetch of these partitions, which include those with acknowledgements."""
        assert not self._renewals, "a renewal cannot be part of a fetch"
        assert self._pending.keys() <= wanted.keys(), "acknowledge other partitions before"
        acknowledged, self._pending = self._pending, {}
        added = wanted.keys() - self._partitions.keys() | acknowledged.keys()
        forgotten = self._partitions.keys() - wanted.keys()
        fields = {**self._fields(self.epoch), **limits}
        fields["topics"] = topics_of(added, acknowledged, {})
        fields["forgotten_topics_data"] = [
            {"topic_id": topic_id, "partitions": numbers}
            for topic_id, numbers in by_topic(forgotten).items()
        ]
        self.in_flight = SentShareRequest(
            SHARE_FETCH, self.epoch, dict(wanted), acknowledged, [], now_s
        )
        return fields

    def acknowledge(self, now_s: float, *, is_final: bool = False) -> dict[str, Any]:
        """Return a ShareAcknowledge of all that was acknowledged; a final one ends the session."""
        acknowledged, self._pending = self._pending, {}
        renewals, self._renewals = self._renewals, []
        renewed: dict[TopicIdPartition, list[tuple[int, int, int]]] = {}
        for renewal in renewals:
            runs = [(first, last, int(Acknowledgement.RENEW)) for first, last in renewal.runs]
            renewed.setdefault(renewal.acquired.key, []).extend(runs)
        epoch = FINAL_EPOCH if is_final else self.epoch
        fields = self._fields(epoch) | {"is_renew_ack": bool(renewals)}
        fields["topics"] = topics_of(
            acknowledged.keys() | renewed.keys(), acknowledged, renewed
        )
        self.in_flight = SentShareRequest(
            SHARE_ACKNOWLEDGE, epoch, {}, acknowledged, renewals, now_s
        )
        return fields

    def _fields(self, epoch: int) -> dict[str, Any]:
        return {
            "group_id": self._group_id,
            "member_id": self._member_id,
            "share_session_epoch": epoch,
        }

    # Responses.

    def handle(self, response: Fields) -> ShareResponse:
        """Handle the response to the request; raise InvalidRequest if it is not valid.

        After InvalidRequest the session is to be reset.
        """
        sent = self.in_flight
        assert sent is not None, "no request is in flight"
        if response.error_code:
            subject = f"share group {self._group_id!r}"
            error = error_of(response.error_code, subject, response.error_message)
            self.reset(error)
            return ShareResponse(error, [], [])
        found = ShareResponse(None, [], [])
        errors: dict[TopicIdPartition, KafkaError | None] = {}
        known = {**self._partitions, **sent.wanted}
        for topic in response.responses:
            for entry in topic.partitions:
                key = topic.topic_id, entry.partition_index
                if key in errors or (
                    key not in known
                    and key not in sent.acknowledged
                    and all(renewal.acquired.key != key for renewal in sent.renewals)
                ):
                    raise InvalidRequest("The response has a partition that was not requested.")
                errors[key] = acknowledgement_error(sent.api, entry)
                if key in sent.wanted:
                    self._take(sent, key, entry, response.acquisition_lock_timeout_ms, found)
        self.in_flight = None
        self._confirm(sent, errors, response.acquisition_lock_timeout_ms / 1000)
        if sent.api is SHARE_FETCH:
            self._partitions = sent.wanted
        # After the final epoch: the initial one.
        self.epoch = 1 if sent.epoch == EPOCH_MAX else sent.epoch + 1
        for failure in found.failures:
            if isinstance(failure.error, StaleMetadata):
                self._lose(key_of(failure.partition, sent.wanted), failure.error)
        return found

    def _take(
        self,
        sent: SentShareRequest,
        key: TopicIdPartition,
        entry: Fields,
        lock_timeout_ms: int,
        found: ShareResponse,
    ) -> None:
        """Take the error or the records of a partition."""
        partition = sent.wanted[key]
        if entry.error_code:
            error = error_of(
                entry.error_code, f"{partition.topic}-{partition.partition}", entry.error_message
            )
            leader = entry.current_leader
            known = PartitionMetadata(leader.leader_id, leader.leader_epoch)
            found.failures.append(
                SharePartitionFailure(partition, error, known if leader.leader_epoch > 0 else None)
            )
            return
        runs = acquired_runs(entry.acquired_records)
        if not runs:
            return
        if lock_timeout_ms <= 0:
            raise InvalidRequest("The response has acquired records without a lock timeout.")
        times_s = sent.sent_s, lock_timeout_ms / 1000
        acquired = AcquiredPartition(partition, key, self.node_id, times_s, self._queue)
        self._acquired.setdefault(key, WeakSet()).add(acquired)
        records = memoryview(entry.records if entry.records is not None else b"")
        found.records.append(AcquiredRecords(acquired, records, runs))

    def _confirm(
        self,
        sent: SentShareRequest,
        errors: Mapping[TopicIdPartition, KafkaError | None],
        lock_s: float,
    ) -> None:
        """Report the outcomes of acknowledgements and renewals."""
        missing = InvalidRequest("The response has no result for the acknowledgement.")
        for key, runs in sent.acknowledged.items():
            self._report(key, runs, errors.get(key, missing))
        for renewal in sent.renewals:
            lasts_s = lock_s if lock_s > 0 else renewal.acquired.lock_s
            renewal.done(errors.get(renewal.acquired.key, missing), sent.sent_s + lasts_s)

    def _report(
        self, key: TopicIdPartition, runs: list[AcknowledgedRun], error: KafkaError | None
    ) -> None:
        offsets = [range(run.first, run.last + 1) for run in runs if run.is_reported]
        if offsets:
            partition = runs[0].acquired.partition
            self._outcomes.append(AcknowledgementOutcome(partition, joined(offsets), error))

    # Losses.

    def reset(self, error: KafkaError) -> None:
        """Begin another session; what was acquired and not acknowledged in this one is lost."""
        self.epoch = INITIAL_EPOCH
        self._partitions = {}
        sent, self.in_flight = self.in_flight, None
        if sent is not None:
            for key, runs in sent.acknowledged.items():
                self._report(key, runs, error)
            for renewal in sent.renewals:
                renewal.done(error)
        for key in [*self._acquired, *(self._pending.keys() - self._acquired.keys())]:
            self._lose(key, error)

    def _lose(self, key: TopicIdPartition, error: KafkaError) -> None:
        """Mark what was acquired of a partition and not acknowledged as lost."""
        for acquired in self._acquired.pop(key, ()):
            acquired.error = error
        runs = self._pending.pop(key, None)
        if runs:
            self._report(key, runs, error)
        lost = [each for each in self._renewals if each.acquired.key == key]
        self._renewals = [each for each in self._renewals if each.acquired.key != key]
        for renewal in lost:
            renewal.done(error)


def acknowledgement_error(api: Api, entry: Fields) -> KafkaError | None:
    """Return the error of a partition's acknowledgements in a response."""
    if api is SHARE_FETCH:
        code, message = entry.acknowledge_error_code, entry.acknowledge_error_message
    else:
        code, message = entry.error_code, entry.error_message
    return error_of(code, "acknowledgement", message) if code else None


def key_of(partition: TopicPartition, wanted: Wanted) -> TopicIdPartition:
    """Return the topic id and number of a partition that was requested."""
    return next(key for key, each in wanted.items() if each == partition)


def by_topic(keys: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """Return partitions grouped under their topic ids."""
    found: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(keys):
        found.setdefault(topic_id, []).append(number)
    return found


def topics_of(
    keys: Iterable[TopicIdPartition],
    acknowledged: Mapping[TopicIdPartition, list[AcknowledgedRun]],
    renewed: Mapping[TopicIdPartition, list[tuple[int, int, int]]],
) -> list[dict[str, Any]]:
    """Return partitions with their acknowledgements, as in the protocol."""
    return [
        {
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition_index": number,
                    "acknowledgement_batches": batches_of(
                        [
                            *((run.first, run.last, int(run.kind))
                              for run in acknowledged.get((topic_id, number), ())),
                            *renewed.get((topic_id, number), ()),
                        ]
                    ),
                }
                for number in numbers
            ],
        }
        for topic_id, numbers in by_topic(keys).items()
    ]  # fmt: skip


def batches_of(runs: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return runs of (first, last, type) as ascending batches, neighbours of one type joined.

    An offset is in one batch only: the broker refuses all batches of a partition otherwise.
    """
    batches: list[list[int]] = []
    end = -1
    for first, last, kind in sorted(runs):
        first = max(first, end + 1)
        if first > last:
            continue
        if batches and end + 1 == first and batches[-1][2] == kind:
            batches[-1][1] = last
        else:
            batches.append([first, last, kind])
        end = last
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
        for first, last, kind in batches
    ]


def joined(offsets: Iterable[range]) -> list[range]:
    """Return ascending ranges, with neighbours joined."""
    found: list[range] = []
    for each in sorted(offsets, key=lambda each: each.start):
        if found and found[-1].stop == each.start:
            found[-1] = range(found[-1].start, each.stop)
        else:
            found.append(each)
    return found
