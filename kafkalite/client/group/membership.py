"""Membership: the interface of the state machines of a group's member, and its values.

    request = membership.next_request(now_s)        the request to send now, or None
    membership.handle_response(request, response, now_s)

    change = membership.take_change()               work of the application's thread, or None
    membership.applied(change, now_s)               it is done, with the callbacks

A machine has no I/O, no thread and no clock: two threads use it in turn, under a lock.  The
heartbeat thread sends its requests; the application's thread applies its changes while it polls.
There is a machine for each protocol: ConsumerProtocolMember (KIP-848) and ClassicProtocolMember.

    UNSUBSCRIBED ──subscribe──▶ JOINING ──▶ RECONCILING ──▶ ACKNOWLEDGING ──▶ STABLE
          ▲                        ▲  ▲          ▲                               │
          │                        │  │          └────── another assignment ─────┘
          │                        │  └─ FENCED   the coordinator dropped the member
          │                        └──── STALE    the application did not poll in time
          └─ LEAVING ◀─ PREPARE_LEAVING           FATAL   an error that a retry does not solve

The classic protocol has three more: PREPARE_JOINING revokes before an eager rebalance, ASSIGNING
and SYNCING follow JOINING.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol, TypeVar

from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.topology import TopicMetadata, TopicPartition
from kafkalite.errors import InvalidRequest, KafkaError
from kafkalite.protocol.schema import Api, Fields

NEVER = float("inf")
PARTITIONS_MAX = 1 << 20
"""Maximum number of partitions in an assignment."""

P = TypeVar("P", bound=tuple[Any, int])


class MembershipState(Enum):
    """State of a member, as the drawing of the module shows."""

    UNSUBSCRIBED = auto()
    PREPARE_JOINING = auto()
    JOINING = auto()
    ASSIGNING = auto()
    SYNCING = auto()
    RECONCILING = auto()
    ACKNOWLEDGING = auto()
    STABLE = auto()
    PREPARE_LEAVING = auto()
    LEAVING = auto()
    FENCED = auto()
    STALE = auto()
    FATAL = auto()


class ChangeKind(Enum):
    """Kind of a change: partitions revoked in time, lost without notice, or assigned."""

    REVOKED = auto()
    LOST = auto()
    ASSIGNED = auto()


class AssignmentChange(NamedTuple):
    """A change of the partitions that the application reads, with their topic ids."""

    kind: ChangeKind
    partitions: Mapping[TopicPartition, bytes]


class SubscribedTopics(NamedTuple):
    """The topics that a member subscribes to: names, and a regular expression of RE2's syntax."""

    names: tuple[str, ...] = ()
    regex: str | None = None


class MemberSettings(NamedTuple):
    """Settings of a member that its requests contain; times are in seconds."""

    group_id: str
    instance_id: str | None = None
    max_poll_interval_s: float = 300.0
    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 3.0
    remote_assignor: str | None = None
    strategies: tuple[str, ...] = ("range", "cooperative-sticky")
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 1.0


class MemberRequest(NamedTuple):
    """A request to the coordinator; `fields` returns its fields in a version."""

    api: Api
    fields: Callable[[int], dict[str, Any]]
    round: int
    """Counts joins and leaves of the member: a response to an earlier one is ignored."""
    timeout_s: float | None = None
    """Time that the coordinator may take; None: request.timeout.ms."""
    is_leave: bool = False


class Membership(Protocol):
    """A member of a group.  Times are of the monotonic clock, in seconds."""

    state: MembershipState
    is_unsupported: bool
    """True if the coordinator does not support the protocol (UNSUPPORTED_VERSION)."""
    error: KafkaError | None
    """The error that ended the membership, in state FATAL."""

    @property
    def due_s(self) -> float:
        """Time at which `next_request` may return a request, if no event comes before."""

    @property
    def topics_wanted(self) -> Collection[str] | None:
        """Topics whose metadata the member needs; None: those of all topics; empty: none."""

    @property
    def topics_watched(self) -> Collection[str]:
        """Topics whose metadata the member needs again every metadata.max.age.ms."""

    @property
    def has_change(self) -> bool:
        """True if the application's thread has a change to apply, or an error to raise."""

    @property
    def is_member(self) -> bool:
        """True if the coordinator knows the member, as far as the member knows."""

    @property
    def identity(self) -> GroupMetadata:
        """Group, epoch or generation, member id and instance id, as requests name them."""

    @property
    def owned(self) -> Mapping[TopicPartition, bytes]:
        """Partitions that the application reads, or whose callbacks run, with topic ids."""

    def subscribe(self, topics: SubscribedTopics, now_s: float) -> None:
        """Join the group with these topics, or replace the topics of the member."""

    def leave(self, now_s: float) -> None:
        """Leave the group, once the partitions are revoked."""

    def polled(self, now_s: float) -> None:
        """Note that the application polls, which restarts max.poll.interval.ms."""

    def next_request(self, now_s: float) -> MemberRequest | None:
        """Return the request to send now; it is in flight until its response or failure."""

    def handle_response(self, request: MemberRequest, response: Fields, now_s: float) -> None:
        """Handle the response to a request."""

    def handle_failure(self, request: MemberRequest, error: KafkaError, now_s: float) -> None:
        """Handle the failure of a request: it was not sent, or its response is lost."""

    def update_topics(self, topics: Mapping[str, TopicMetadata], now_s: float) -> None:
        """Take the metadata of topics that exist."""

    def take_change(self) -> AssignmentChange | None:
        """Return the next change; none while one is being applied."""

    def applied(self, change: AssignmentChange, now_s: float) -> None:
        """Note that a change was applied, and its callbacks have returned."""


def retry_delay_s(settings: MemberSettings, failures: int) -> float:
    """Return the pause after this many failures in a row."""
    doublings = min(max(failures - 1, 0), 30)
    return min(settings.retry_backoff_s * (1 << doublings), settings.retry_backoff_max_s)


def checked_partitions(found: Sequence[P]) -> frozenset[P]:
    """Return the partitions of an assignment; raise InvalidRequest if they are not valid."""
    if len(found) > PARTITIONS_MAX:
        raise InvalidRequest(f"The assignment in the response has {len(found)} partitions.")
    partitions = frozenset(found)
    if len(partitions) < len(found):
        raise InvalidRequest("The assignment in the response has duplicate partitions.")
    if any(number < 0 for _, number in partitions):
        raise InvalidRequest("The assignment in the response has a negative partition.")
    return partitions
