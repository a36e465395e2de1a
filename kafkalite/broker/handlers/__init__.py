"""Request handlers: their form, and the table of served APIs.

A handler is a function of `(node, request, caller)` registered by `@serves`.  It returns the
response as a dict shaped like the schema (a missing field takes the schema's default), a `Later` of
one, or None when the client wants no response.  An error of the whole request is raised; an error
of one entry becomes that entry's `error_code` through `each`.

A handler whose request may name thousands of entries is a generator and runs in steps
(broker/stepping.py): it yields after each entry and returns its response at the end.

ApiVersions lists the entries of SERVED: an API without a handler is not advertised.  The table is
complete once `kafkalite.broker.dispatch` is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from kafkalite.broker.later import Later
from kafkalite.broker.security import ANONYMOUS, Operation, ResourceType
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kafkalite.protocol.schema import Api

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.broker.security import Authorizer

Response = dict[str, Any]
Answered: TypeAlias = "Response | Written | Later[Response] | Later[Written] | None"
Answer = Callable[["Node", Any, "Caller"], Answered]
Stepped = Callable[["Node", Any, "Caller"], "Work[Any]"]
A = TypeVar("A", Answer, Stepped)


class Written(NamedTuple):
    """A response that its handler has already encoded, in steps, because it may be long."""

    body: bytes
    errors: Response
    """The error codes in the response, in the shape of a response."""


class At(Enum):
    """The kind of node that may serve a request.

    A single node is all of them.  In a cluster, the dispatcher forwards a request for the
    controller there, without the handler's knowledge; a broker refuses requests for partitions that
    another broker leads, and the client finds the leader itself.
    """

    ANY = "any"
    LEADER = "leader"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"


class Codec(NamedTuple):
    """A compiled reader and writer in place of the schema, for the APIs that carry records.

    decode(version, frame, position) returns the request or an error code;
    encode(version, correlation_id, response) returns the response with its header, in chunks.
    """

    decode: Callable[[int, memoryview, int], Any]
    encode: Callable[[int, int, Any], list[Any]]


class Handler(NamedTuple):
    """A served API: its handler function, its versions and the kind of node that serves it."""

    api: Api
    low: int
    high: int
    at: At
    answer: Answer
    codec: Codec | None


MESSAGE_LENGTH_MAX = 1_000
"""Maximum length of an error message: it may quote what a client sent, which can be longer than a
response field can hold."""

NAMED_MAX = 2
"""Number of times a request may name a resource whose description is much longer than its name."""

SERVED: dict[int, Handler] = {}
"""All served APIs, by API key."""


def serves(
    api: Api, versions: str, at: At, codec: Codec | None = None, *, to_the_end: bool = False
) -> Callable[[A], A]:
    """Register a function in SERVED as the handler of `api` in `versions` ("2-7" or "0").

    `to_the_end` is passed to `in_steps`: True runs a generator to its end even if the client
    disconnects.
    """

    def enter(answer: A) -> A:
        assert api.key not in SERVED, f"{api.name} is answered twice"
        low, _, high = versions.partition("-")
        handler = Handler(api, int(low), int(high or low), at, _whole(answer, to_the_end), codec)
        assert api.versions[0] <= handler.low <= handler.high <= api.versions[1]
        SERVED[api.key] = handler
        return answer

    return enter


def _whole(answer: Any, to_the_end: bool) -> Answer:
    """Return the handler as the dispatcher calls it; a generator function is run in steps."""
    if not inspect.isgeneratorfunction(answer):
        whole: Answer = answer
        return whole

    @wraps(answer)
    def run(node: Node, request: Any, caller: Caller) -> Any:
        return in_steps(node, answer(node, request, caller), to_the_end=to_the_end)

    return run


_REFUSALS: dict[ResourceType, type[KafkaError]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}


class Requester(Protocol):
    """The connection that sent a request, to this node or to another one (Membership)."""

    peer: tuple[str, int]
    local: tuple[str, int]

    def expect(self) -> Any:
        """Reserve the place of a later response and return the object that completes it."""

    def close(self) -> None:
        """Close the connection without a response."""

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when the connection closes."""


class Caller:
    """The context of a request: connection, principal, addresses and API version."""

    __slots__ = (
        "authorizer", "client_id", "connection", "local", "peer", "principal", "version",
    )  # fmt: skip

    def __init__(
        self,
        authorizer: Authorizer,
        *,
        version: int,
        client_id: str | None = None,
        peer: tuple[str, int] = ("", 0),
        local: tuple[str, int] = ("", 0),
        principal: str = ANONYMOUS,
        connection: Requester | None = None,
    ) -> None:
        self.connection = connection
        self.authorizer = authorizer
        self.version = version
        self.client_id = client_id
        self.peer = peer
        self.local = local
        self.principal = principal

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the principal may perform `operation` on the resource `name`."""
        return self.authorizer.allows(self.principal, operation, resource_type, name)

    def must(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raise Kafka's authorization error for that resource type unless the principal may."""
        if not self.may(operation, resource_type, name):
            raise _REFUSALS[resource_type]()

    def allowed_bits(self, resource_type: ResourceType, name: str) -> int:
        """Return the operations the principal may perform on a resource, as KIP-430's bit field."""
        return self.authorizer.allowed_bits(self.principal, resource_type, name)


def each(
    entries: Iterable[Any],
    named: str,
    answer: Callable[[Any], dict[str, Any]],
    messages: bool = True,
) -> list[dict[str, Any]]:
    """Return a response entry per request entry; an entry's error is its error_code only.

    `messages` is true if the schema's entry has an error_message field.
    """
    answers = []
    for entry in entries:
        who = {named: getattr(entry, named, entry)}
        try:
            answers.append({**who, "error_code": 0, **answer(entry)})
        except KafkaError as fault:
            answers.append({**who, **fault_fields(fault, messages)})
    return answers


def check_named(count: int) -> None:
    """Raise InvalidRequest if a request repeats a name so often that the response has no bound."""
    if count > NAMED_MAX:
        raise InvalidRequest(f"One thing is named {count} times, which are too many.")


def fault_fields(fault: KafkaError, messages: bool = True) -> dict[str, Any]:
    """Return the response fields that report an error."""
    if messages:
        return {"error_code": fault.code, "error_message": str(fault)[:MESSAGE_LENGTH_MAX]}
    return {"error_code": fault.code}


def leader_of(node: Node, topic: str | bytes, index: int) -> tuple[int, int] | None:
    """Return the leader and leader epoch of a partition, for a stale client (KIP-951)."""
    image = node.topic_image(topic)
    partition = image.partitions.get(index) if image is not None else None
    return (partition.leader, partition.leader_epoch) if partition is not None else None


def endpoints(
    node: Node, caller: Caller, leaders: Iterable[tuple[int, int] | None]
) -> list[tuple[int, str, int, str | None]]:
    """Return `(id, host, port, rack)` of these leaders, which spares a metadata refresh."""
    ids = dict.fromkeys(leader[0] for leader in leaders if leader is not None)
    known = [node.image.nodes[node_id] for node_id in ids if node_id in node.image.nodes]
    return [
        (there.node_id, *node.advertised(caller, there), there.rack)
        for there in known
        if there.port
    ]
