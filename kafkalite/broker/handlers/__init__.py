"""The shape of a handler, and the one table of what is served.

A handler is a plain function of `(node, request, caller)` entered by `@serves`.  It returns the
response as a dict shaped like the schema (a missing field takes the schema's default), a `Later`
of one, or None when the client wants no answer.  A fault of the whole request is raised; a fault
of one entry becomes that entry's `error_code` through `each`.

One whose request may name thousands of entries is a generator instead, and is run in steps
(broker/stepping.py): it yields behind each entry and returns its response at the end.

ApiVersions is printed from SERVED: an API without a handler is not advertised.  The table is whole
once `kafkalite.broker.dispatch` is imported.
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
    """A response that its handler has encoded, in steps, because it may be long."""

    body: bytes
    errors: Response
    """The error codes in it, as in a response."""


class At(Enum):
    """Which node may answer.  One node alone is all of them; where there are several, the
    dispatcher brings a request for the controller there, and no handler knows; a leader refuses
    what another leads, and the client finds it by itself."""

    ANY = "any"
    LEADER = "leader"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"


class Codec(NamedTuple):
    """A compiled reader and writer in the schema's place, for the APIs that carry records.

    decode(version, frame, position) gives the request or an error code;
    encode(version, correlation_id, response) gives the whole answer, header included, in chunks.
    """

    decode: Callable[[int, memoryview, int], Any]
    encode: Callable[[int, int, Any], list[Any]]


class Handler(NamedTuple):
    """One served API: who answers it, in which versions, and where."""

    api: Api
    low: int
    high: int
    at: At
    answer: Answer
    codec: Codec | None


MESSAGE_LENGTH_MAX = 1_000
"""A sentence may quote what a client sent, which can be longer than a response has room for."""

NAMED_MAX = 2
"""How often a request may name one thing of which much more is told than its name."""

SERVED: dict[int, Handler] = {}
"""Every API that is served, by its key."""


def serves(
    api: Api, versions: str, at: At, codec: Codec | None = None, *, to_the_end: bool = False
) -> Callable[[A], A]:
    """Enter a function in SERVED as the answer to `api` in `versions` ("2-7" or "0").

    `to_the_end` is that of `in_steps`: whether what a generator does is not left half done.
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
    """The answer as the dispatcher calls it: a generator is run in steps."""
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
    """The connection that sent a request, here or at another node (Membership)."""

    peer: tuple[str, int]
    local: tuple[str, int]

    def expect(self) -> Any:
        """Promise to answer later, by what this returns."""

    def close(self) -> None:
        """There will be no answer."""

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when it is gone."""


class Caller:
    """Who sent this request, from where, and in which version of its API."""

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
        """Whether this caller may do `operation` to the resource called `name`."""
        return self.authorizer.allows(self.principal, operation, resource_type, name)

    def must(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """The same, raising Kafka's refusal for that kind of resource."""
        if not self.may(operation, resource_type, name):
            raise _REFUSALS[resource_type]()

    def allowed_bits(self, resource_type: ResourceType, name: str) -> int:
        """All this caller may do to a resource, as KIP-430's bit field."""
        return self.authorizer.allowed_bits(self.principal, resource_type, name)


def each(
    entries: Iterable[Any],
    named: str,
    answer: Callable[[Any], dict[str, Any]],
    messages: bool = True,
) -> list[dict[str, Any]]:
    """Answer entry by entry; an entry's own fault is its error_code, and no one else's.

    `messages` says whether the schema's entry has an error_message to fill.
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
    """Refuse to tell so many times of one thing, or the answer would be without bounds."""
    if count > NAMED_MAX:
        raise InvalidRequest(f"One thing is named {count} times, which are too many.")


def fault_fields(fault: KafkaError, messages: bool = True) -> dict[str, Any]:
    """How a fault stands in a response."""
    if messages:
        return {"error_code": fault.code, "error_message": str(fault)[:MESSAGE_LENGTH_MAX]}
    return {"error_code": fault.code}


def leader_of(node: Node, topic: str | bytes, index: int) -> tuple[int, int] | None:
    """Who leads a partition, in which epoch: for a client that asked somebody else (KIP-951)."""
    image = node.topic_image(topic)
    partition = image.partitions.get(index) if image is not None else None
    return (partition.leader, partition.leader_epoch) if partition is not None else None


def endpoints(
    node: Node, caller: Caller, leaders: Iterable[tuple[int, int] | None]
) -> list[tuple[int, str, int, str | None]]:
    """Where these leaders are, so that the client need not ask for metadata: `(id, host, port,
    rack)`."""
    ids = dict.fromkeys(leader[0] for leader in leaders if leader is not None)
    known = [node.image.nodes[node_id] for node_id in ids if node_id in node.image.nodes]
    return [
        (there.node_id, *node.advertised(caller, there), there.rack)
        for there in known
        if there.port
    ]
