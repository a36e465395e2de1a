"""CoordinatorHost: runs a coordinator's state machine in a partition of an internal topic.

    key ─ Java's hash ─▶ partition of the internal topic ─ led here? ─▶ CoordinatorHost
    CoordinatorHost = state machine + partition as its journal + timer

A request is a decision of the machine with a token; a request that has to wait gets its response by
the token, maybe from a later request's decision.  So a JoinGroup is a Future that another member's
JoinGroup, or the timer, resolves.

Decisions about different keys do not depend on each other.  Those of requests that name their key
are made together once the requests of the tick are read, and their records share a batch.  The
other decisions are made at once, after those that wait.

A host loads its machine in steps on the event loop; until then, its requests are refused with
COORDINATOR_LOAD_IN_PROGRESS.  A partition that cannot be read is refused with
COORDINATOR_NOT_AVAILABLE until the node restarts or leads it again.

The coordinators are on node 0, which is the preferred leader of all internal partitions.  If it
leads a partition no longer, its host ends, with NOT_COORDINATOR for the requests that wait; the
next one loads when it leads again.  A partition with several replicas refuses new records with
COORDINATOR_NOT_AVAILABLE while too few are in sync; requests whose records are not committed within
COMMIT_WAIT_MS get that error, too, as in Kafka.  The records may be committed later.

A transaction marker in the partition is replayed as soon as it is appended; what a request reads
afterwards waits until the marker is committed, as for the records of a decision.

A process that was stopped for a while has received no heartbeats, which must not expire sessions:
after a late timer, requests waiting in the sockets are read first.

The coordinators of a kind share the time for deadlines in a tick of the event loop: a machine
bounds what one of its ticks does, and a node may have many coordinators.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from kafkalite.broker.coordinator.journal_loader import RecordCodec
from kafkalite.broker.coordinator.partition_journal import PartitionJournal
from kafkalite.broker.future import Future
from kafkalite.broker.machine_host import BATCH_UNITS_MAX, MachineHost
from kafkalite.broker.stepping import fail_unexpected
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.machine import DecisionResult, Reply, StateMachine, TransactionEnd
from kafkalite.coordination.placement import coordinator_partition
from kafkalite.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
)

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.records.control import TransactionMarker
    from kafkalite.transport.reactor import Reactor, Timer

LATE_TIMER_MS = 500
"""A timer that is late by this much means that this process itself did not run."""
LATE_TIMER_PAUSE_MS = 1_000
"""Time for which waiting requests are then read before sessions can expire."""
DEADLINES_MS, DEADLINES_PAUSE_MS = 10, 1
"""Time in a tick of the event loop after which no other coordinator begins to handle its deadlines,
and the pause until it does."""
TOGETHER_MAX = 50
"""Maximum number of requests whose decisions are made together."""
REPLIES_AT_ONCE, REPLIES_PAUSE_MS = 500, 1
"""Number of requests that a decision completes at once, such as the JoinGroups of a large group,
and the pause until the next ones: a response takes about 10 us."""
COMMIT_WAIT_MS = 5_000
"""Time for which a request waits until the replicas in sync have its records: Kafka's default of
offsets.commit.timeout.ms."""
RETRY_MS = 1_000
"""Pause before expired deadlines are handled again if that failed."""
LOAD_MS, LOAD_PAUSE_MS = 10, 1
"""Duration of a step of loading, and of the pause between two."""

log = logging.getLogger("kafkalite.broker")


class CoordinatorMachine(StateMachine, Protocol):
    """A state machine with requests that wait, and deadlines."""

    @property
    def next_due_ms(self) -> int | None:
        """Time of the next `tick`, or None."""

    def loaded(self, now_ms: int, wall_ms: int) -> None:
        """Begin after the last record of the log was replayed."""

    def tick(self, now_ms: int, wall_ms: int) -> DecisionResult[list[Reply]]:
        """Handle expired deadlines."""

    def drop_token(self, token: Any) -> None:
        """Drop a token whose connection has closed."""


M = TypeVar("M", bound=CoordinatorMachine)
T = TypeVar("T")

RequestDecision: TypeAlias = Callable[[M, Any, int, int], DecisionResult[list[Reply]]]
"""`decide(machine, token, now_ms, wall_ms)`: the decision of a request."""


class WaitingRequest(NamedTuple):
    """A request whose decision is made at the end of the tick's requests."""

    decide: RequestDecision[Any]
    token: Future[Any]


class UncommittedRequest(NamedTuple):
    """A request whose decision waits until it is committed."""

    due_ms: int
    response: Future[Any]
    decided: Future[Any]


class CoordinatorKind(NamedTuple, Generic[M]):
    """A kind of coordinator: its internal topic, its records and its state machine."""

    topic: str
    codec: RecordCodec
    new_machine: Callable[[], M]


class DeadlineQueue:
    """The coordinators of a kind whose deadlines are due, in turn.

    Each handles its deadlines at once while the tick of the event loop has time left for them.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._waiting: dict[Callable[[], object], None] = {}
        self._is_paused = False
        self._tick_number = -1
        self._end_ns = 0

    def add(self, handle: Callable[[], object]) -> None:
        """Call `handle()` now or in a later tick, unless it is waiting already."""
        self._waiting[handle] = None
        if not self._is_paused:
            self._run()

    def _run(self) -> None:
        self._is_paused = False
        while self._waiting:
            if not self._has_time():
                self._is_paused = True
                self._reactor.call_later(DEADLINES_PAUSE_MS, self._run)
                return
            handle = next(iter(self._waiting))
            del self._waiting[handle]
            handle()

    def _has_time(self) -> bool:
        now_ns = self._reactor.clock.monotonic_ns()
        if self._tick_number != self._reactor.tick_number:
            self._tick_number = self._reactor.tick_number
            self._end_ns = now_ns + DEADLINES_MS * 1_000_000
        return now_ns < self._end_ns


class CoordinatorHost(MachineHost[M]):
    """One coordinator: a state machine with its partition and timer."""

    journal: PartitionJournal

    def __init__(
        self,
        machine: M,
        journal: PartitionJournal,
        reactor: Reactor,
        deadlines: DeadlineQueue,
        on_loaded: Callable[[CoordinatorHost[M]], object],
        on_load_failed: Callable[[Partition, KafkaError], object],
    ) -> None:
        super().__init__(machine, journal)
        self.partition = journal.partition
        self.is_loading = self.partition.is_loading = True
        self._reactor = reactor
        self._deadlines = deadlines
        self._on_loaded = on_loaded
        self._on_load_failed = on_load_failed
        self._timer: Timer | None = None
        self._due_ms = 0
        self._not_before_ms = 0
        self._loaded_count = 0
        self._waiting: dict[str, WaitingRequest] = {}
        self._waiting_units = 0
        self._uncommitted: deque[UncommittedRequest] = deque()
        self._ends_waits = False
        """True while a timer ends the waits that are too long."""
        self._is_deciding_later = False
        self.units_of_key: Callable[[str], int] = lambda key: 1
        """The share that a decision about a key has in BATCH_UNITS_MAX, as far as it is known."""

    @property
    def is_closed(self) -> bool:
        """True if the partition is deleted, closed or no longer led here."""
        return self.partition.error is not None

    def now_ms(self) -> int:
        """Return the monotonic time of the event loop."""
        return self._reactor.clock.monotonic_ms()

    def close(self) -> None:
        """End, since this node leads the partition no longer: fail all requests that wait."""
        assert self.partition.error is not None, "it is closed"
        if self._timer is not None:
            self._timer.cancel()
        self.decide_waiting()
        self._fail_responses(self.partition.error)
        # The state may be large, and would be in reference cycles.
        self.journal.close()
        self.partition.marker_listener = None

    # -- loading -----------------------------------------------------------------------------

    def load(self) -> None:
        """Load for LOAD_MS, and the rest in later ticks; raise KafkaError if the first step fails.

        `on_load_failed` is called if a later step fails.
        """
        self._load_step(self.journal.load(self.machine))

    def _load_step(self, remaining: Iterator[int]) -> None:
        end_ns = self._reactor.clock.monotonic_ns() + LOAD_MS * 1_000_000
        for count in remaining:
            self._loaded_count = count
            if self._reactor.clock.monotonic_ns() >= end_ns:
                self._reactor.call_later(LOAD_PAUSE_MS, lambda: self._load_more(remaining))
                return
        self.is_loading = self.partition.is_loading = False
        self.machine.loaded(self.now_ms(), self._reactor.clock.wall_ms())
        if self._loaded_count:
            log.info(
                "Coordinator of %s is loaded. partition=%s records=%d",
                self.partition, self.partition, self._loaded_count,
            )  # fmt: skip
        self._on_loaded(self)
        self.schedule()

    def _load_more(self, remaining: Iterator[int]) -> None:
        if self.is_closed:
            return
        try:
            self._load_step(remaining)
        except KafkaError as error:
            self._on_load_failed(self.partition, error)

    # -- requests ----------------------------------------------------------------------------

    def request(self, decide: RequestDecision[M], key: str | None = None) -> Future[Any]:
        """Make the decision of a request; return its response.

        A decision that reads and changes only what belongs to `key` is made together with others,
        until these are many or large: a tick reads no further requests after decisions that took
        long.
        """
        token: Future[Any] = Future()
        token.abandoned = lambda: self.machine.drop_token(token)
        if key is None or key in self._waiting:
            self.decide_waiting()
        request = WaitingRequest(decide, token)
        if key is None:
            self._decide_requests([request])
            return token
        self._waiting[key] = request
        self._waiting_units += self.units_of_key(key)
        if len(self._waiting) == TOGETHER_MAX or self._waiting_units >= BATCH_UNITS_MAX:
            self.decide_waiting()
        elif not self._is_deciding_later:
            self._is_deciding_later = True
            self._reactor.call_later(0, self._decide_later)
        return token

    def _decide_later(self) -> None:
        self._is_deciding_later = False
        self.decide_waiting()

    def decide_waiting(self) -> None:
        """Make the decisions that wait for the end of the tick's requests."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        self._waiting_units = 0
        requests = [*waiting.values()]
        try:
            self._decide_requests(requests)
        except Exception as error:
            for request in requests:
                if not request.token.settled:
                    fail_unexpected(self._reactor, request.token, error)

    def _decide_requests(self, requests: Sequence[WaitingRequest]) -> None:
        now_ms, wall_ms = self.now_ms(), self._reactor.clock.wall_ms()
        decided = self.decide_all(
            [partial(_decide, request, now_ms, wall_ms) for request in requests]
        )
        for request, replies in zip(requests, decided, strict=True):
            replies.then(partial(self._respond, request.token))
            self._bound_wait(request.token, replies)
        self.schedule()

    def _respond(
        self, token: Future[Any], replies: list[Reply] | None, error: KafkaError | None
    ) -> None:
        if error is None:
            self._complete(replies or ())
        elif not token.settled:
            token.fail(_client_error(error))

    def _bound_wait(self, response: Future[Any], decided: Future[Any]) -> None:
        """Fail a request if its decision is not committed in time."""
        if self.partition.replication is None or decided.settled:
            return
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0].decided.settled:
            uncommitted.popleft()
        due_ms = self.now_ms() + COMMIT_WAIT_MS
        uncommitted.append(UncommittedRequest(due_ms, response, decided))
        if not self._ends_waits:
            self._ends_waits = True
            self._reactor.call_later(COMMIT_WAIT_MS, self._end_waits)

    def _end_waits(self) -> None:
        """Fail the requests that have waited too long."""
        uncommitted, now_ms = self._uncommitted, self.now_ms()
        while uncommitted and (uncommitted[0].decided.settled or uncommitted[0].due_ms <= now_ms):
            _, response, decided = uncommitted.popleft()
            if not decided.settled and not response.settled:
                response.abandon()
                response.fail(CoordinatorNotAvailable("Too few replicas have the records yet."))
        self._ends_waits = bool(uncommitted)
        if uncommitted:
            self._reactor.call_later(uncommitted[0].due_ms - now_ms, self._end_waits)

    def _complete(self, replies: Sequence[Reply], begin: int = 0) -> None:
        """Complete the pending requests, REPLIES_AT_ONCE in a tick of the event loop."""
        end = begin + REPLIES_AT_ONCE
        for token, response in replies[begin:end]:
            if token is not None and not token.settled:
                token.resolve(response)
        if end < len(replies):
            self._reactor.call_later(REPLIES_PAUSE_MS, lambda: self._complete(replies, end))

    def decide(self, decision: Callable[[M], DecisionResult[T]]) -> Future[T]:
        """Make a decision, after those that wait; return its response."""
        self.decide_waiting()
        return super().decide(decision)

    def submit(self, decide: RequestDecision[M]) -> None:
        """Make a decision without a response, unless the host is closed."""
        if not self.is_closed:
            # Without a response, nothing else ends the token's reference to itself.
            self.request(decide).abandoned = None

    def _release(self) -> None:
        super()._release()
        if self.partition.error is not None:
            self._fail_responses(self.partition.error)

    def read(self, query: Callable[[M], T]) -> Future[T]:
        """Return what `query` reads of the machine for a client, once all it depends on is
        committed; CoordinatorNotAvailable if that takes too long."""
        decided = self.read_committed(query)
        response: Future[T] = Future()

        def respond(value: T | None, error: KafkaError | None) -> None:
            if response.settled:
                return
            if error is not None:
                response.fail(_client_error(error))
            else:
                response.resolve(value)  # type: ignore[arg-type]

        decided.then(respond)
        self._bound_wait(response, decided)
        return response

    def read_committed(self, query: Callable[[M], T]) -> Future[T]:
        """Return what `query` reads, however long it takes until that is committed."""
        return self.decide(lambda machine: DecisionResult(query(machine)))

    # -- transaction markers -----------------------------------------------------------------

    def check_marker(self) -> None:
        """Raise NotLeaderOrFollower while loading: the transaction coordinator retries then."""
        if self.is_loading:
            raise NotLeaderOrFollower("The coordinator in this partition is loading; retry later.")

    def marker_appended(self, marker: TransactionMarker) -> None:
        """Replay a marker that was appended to the partition."""
        self.machine.replay(TransactionEnd(marker.producer_id, marker.is_commit))

    # -- timer -------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Set the timer to the machine's next deadline."""
        next_ms = None if self.is_closed else self.machine.next_due_ms
        if next_ms is None or (self._timer is not None and next_ms >= self._due_ms):
            return
        # Clamp to now, so that only the timer's own delay counts as late in `_tick`.
        now_ms = self.now_ms()
        due_ms = max(next_ms, now_ms, self._not_before_ms)
        if self._timer is None or due_ms < self._due_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._due_ms = due_ms
            self._timer = self._reactor.call_later(due_ms - now_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        if now_ms - self._due_ms >= LATE_TIMER_MS:
            self._not_before_ms = now_ms + LATE_TIMER_PAUSE_MS
            self.schedule()
            return
        self._deadlines.add(self._handle_deadlines)

    def _handle_deadlines(self) -> None:
        """Let the machine handle its expired deadlines."""

        def decided(replies: list[Reply] | None, error: KafkaError | None) -> None:
            if error is not None:
                log.warning(
                    "Coordinator of %s could not handle its expired deadlines; retrying."
                    " partition=%s error=%r",
                    self.partition, self.partition, str(error),
                )  # fmt: skip
                self._not_before_ms = self.now_ms() + RETRY_MS
            else:
                self._complete(replies or ())

        now_ms, wall_ms = self.now_ms(), self._reactor.clock.wall_ms()
        self.decide(lambda machine: machine.tick(now_ms, wall_ms)).then(decided)
        self.schedule()


class Coordinators(Generic[M]):
    """The coordinators of one kind on this node, by partition of their internal topic."""

    def __init__(
        self,
        kind: CoordinatorKind[M],
        metadata: MetadataCache,
        replicas: ReplicaManager,
        reactor: Reactor,
    ) -> None:
        self._kind = kind
        self._metadata = metadata
        self._replicas = replicas
        self._reactor = reactor
        self._deadlines = DeadlineQueue(reactor)
        self._hosts: dict[int, CoordinatorHost[M]] = {}
        self.unreadable: dict[int, CoordinatorNotAvailable] = {}
        """The partitions that could not be read, with the error; they are loaded again only when
        this node leads them again."""

    def __iter__(self) -> Iterator[CoordinatorHost[M]]:
        """Return the coordinators that are loaded now."""
        return iter([host for host in self._hosts.values() if not host.is_loading])

    @property
    def error_code(self) -> int:
        """The error code for a list of everything here: parts may be loading, or unreadable."""
        if self.unreadable:
            return CoordinatorNotAvailable.code
        is_loading = self._lacks_hosts() or any(host.is_loading for host in self._hosts.values())
        return CoordinatorLoadInProgress.code if is_loading else 0

    @property
    def _is_here(self) -> bool:
        """True if this is the node of all coordinators."""
        return self._metadata.node_id == SUPERVISOR_ID

    def _lacks_hosts(self) -> bool:
        """Return whether another node leads a partition until this one is in sync again, or its
        coordinator is about to load."""
        topic = self._metadata.topic(self._kind.topic) if self._is_here else None
        return topic is not None and any(
            partition.is_replicated and index not in self._hosts
            for index, partition in topic.partitions.items()
        )

    def open(self) -> None:
        """Load the coordinators of the partitions that this node leads."""
        topic = self._metadata.topic(self._kind.topic) if self._is_here else None
        for index in topic.partitions if topic is not None else ():
            self._open(index)

    def _open(self, index: int) -> None:
        with suppress(KafkaError):
            self._host(index)

    def partition_added(self, partition: Partition) -> None:
        """Load the coordinator of a partition with several replicas that this node leads now: its
        deadlines do not wait for a request."""
        is_own = partition.topic == self._kind.topic and self._is_here
        if is_own and partition.replication is not None:
            self._reactor.call_later(0, lambda: self._open(partition.index))

    def partition_removed(self, partition: Partition) -> None:
        """End the coordinator of a partition that this node leads no longer."""
        if partition.topic != self._kind.topic:
            return
        self.unreadable.pop(partition.index, None)
        host = self._hosts.get(partition.index)
        if host is not None and host.partition is partition:
            del self._hosts[partition.index]
            host.close()

    def host_of(self, key: str) -> CoordinatorHost[M]:
        """Return the coordinator of a key; raise NotCoordinator if it is not here."""
        topic = self._metadata.topic(self._kind.topic)
        if topic is None or not self._is_here:
            raise NotCoordinator()
        return self._host(coordinator_partition(key, len(topic.partitions)))

    def _host(self, index: int) -> CoordinatorHost[M]:
        host = self._hosts.get(index)
        if host is None:
            if index in self.unreadable:
                raise self.unreadable[index].copy()
            try:
                partition = self._replicas.leader(self._kind.topic, index)
            except NotLeaderOrFollower:
                raise NotCoordinator() from None
            except KafkaError as error:
                raise CoordinatorNotAvailable(str(error)) from None
            host = self._load(partition)
        if host.is_loading:
            raise CoordinatorLoadInProgress()
        return host

    def _load(self, partition: Partition) -> CoordinatorHost[M]:
        try:
            journal = PartitionJournal(
                partition, self._replicas, self._reactor, self._kind.codec
            )
            host = CoordinatorHost(
                self._kind.new_machine(), journal, self._reactor, self._deadlines,
                self._host_loaded, self._load_failed,
            )  # fmt: skip
            self._hosts[partition.index] = host
            if self._kind.codec.is_transactional:
                partition.marker_listener = host
            host.load()
        except KafkaError as error:
            raise self._load_failed(partition, error) from None
        return host

    def _host_loaded(self, host: CoordinatorHost[M]) -> None:
        """Handle the end of a load."""

    def _load_failed(self, partition: Partition, error: KafkaError) -> KafkaError:
        """Stop serving a partition; return the error for its requests."""
        log.error(
            "Coordinator of %s cannot be loaded; its requests are refused until the next start."
            " partition=%s error=%r",
            partition, partition, str(error),
        )  # fmt: skip
        self._hosts.pop(partition.index, None)
        partition.marker_listener = None
        partition.is_loading = False
        self.unreadable[partition.index] = CoordinatorNotAvailable(str(error))
        return self.unreadable[partition.index].copy()


def _decide(
    request: WaitingRequest, now_ms: int, wall_ms: int, machine: Any
) -> DecisionResult[list[Reply]]:
    return request.decide(machine, request.token, now_ms, wall_ms)


def _client_error(error: KafkaError) -> KafkaError:
    """Return a coordinator's error for one of the log: clients look up the coordinator and
    retry."""
    if isinstance(error, KafkaStorageError | NotLeaderOrFollower):
        return NotCoordinator(str(error))
    return CoordinatorNotAvailable(str(error)) if isinstance(error, NotEnoughReplicas) else error
