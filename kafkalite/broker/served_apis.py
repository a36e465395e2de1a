"""Table of the served APIs, and the form of a handler.

A handler is a function of `(node, request, client)` registered by `@serves`.  It returns the
response as a dict shaped like the schema (a missing field takes the schema's default), a `Future`
of one, or None when the client wants no response.  An error of the whole request is raised; an
error of one entry becomes that entry's `error_code` (error_responses.py).

`node` has the components that the handlers of one file use, as its Protocol lists; no handler knows
the class Node.

A handler whose request may name thousands of entries is a generator and runs in steps
(broker/stepping.py): it yields after each entry and returns its response at the end.

ApiVersions lists the entries of SERVED: an API without a handler is not advertised, nor is one
whose feature is not finalized.  A version that Kafka has not declared stable is served and
advertised while a key is true.  The table is complete once `kafkalite.broker.dispatch` is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.stepping import in_steps
from kafkalite.config.key import ConfigKey
from kafkalite.config.settings import Settings
from kafkalite.errors import KafkaError
from kafkalite.protocol.schema import Api

Response = dict[str, Any]
HandlerFunction: TypeAlias = Callable[[Any, Any, ClientContext], Any]
Refusal: TypeAlias = Callable[[Any, int, KafkaError], Response]
"""Makes the response for an error, from the request and its version."""
F = TypeVar("F", bound=HandlerFunction)


class EncodedResponse(NamedTuple):
    """A response that its handler has already encoded, in steps, because it may be long."""

    body: bytes
    errors: Response
    """The error codes in the response, in the shape of a response."""


class ServingNode(Enum):
    """The kind of node that may serve a request.

    A single node is all of them.  In a cluster, the dispatcher forwards a request for the
    controller there, without the handler's knowledge; a broker refuses requests for partitions that
    another broker leads, and the client finds the leader itself.
    """

    ANY = "any"
    LEADER = "leader"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"


class ApiCodec(NamedTuple):
    """A compiled reader and writer in place of the schema, for the APIs that carry records.

    decode(version, frame, position) returns the request or an error code;
    encode(version, correlation_id, response) returns the response with its header, in chunks;
    fail(error) returns the response for an error of the whole request, if there is one.
    """

    decode: Callable[[int, memoryview, int], Any]
    encode: Callable[[int, int, Any], list[Any]]
    fail: Callable[[KafkaError], Any] | None = None


class UnstableVersion(NamedTuple):
    """The version after the last stable one of an API, and the key that enables it."""

    version: int
    key: ConfigKey[bool]


class Handler(NamedTuple):
    """A served API: its handler function, its versions and the kind of node that serves it."""

    api: Api
    low: int
    high: int
    at: ServingNode
    handle: HandlerFunction
    codec: ApiCodec | None
    unstable: UnstableVersion | None = None
    feature: str | None = None
    """The feature (coordination/features.py) without which the API is not advertised."""
    refuse: Refusal | None = None
    """Makes the response for an error of the whole request, where the API has no one field."""

    def highest(self, settings: Settings) -> int:
        """Return the highest version that a node with these settings serves."""
        if self.unstable is not None and settings[self.unstable.key]:
            return self.unstable.version
        return self.high


SERVED: dict[int, Handler] = {}
"""All served APIs, by API key."""


def serves(
    api: Api,
    versions: str,
    at: ServingNode,
    codec: ApiCodec | None = None,
    *,
    is_cancellable: bool = True,
    unstable: UnstableVersion | None = None,
    feature: str | None = None,
    refuse: Refusal | None = None,
) -> Callable[[F], F]:
    """Register a function in SERVED as the handler of `api` in `versions` ("2-7" or "0").

    `is_cancellable` is passed to `in_steps`: False runs a generator to its end even if the client
    disconnects.  `unstable` is not one of the versions.
    """

    def register(function: F) -> F:
        assert api.key not in SERVED, f"{api.name} has two handlers"
        low, _, high = versions.partition("-")
        handle = _in_steps(function, is_cancellable)
        handler = Handler(
            api, int(low), int(high or low), at, handle, codec, unstable, feature, refuse
        )
        assert api.versions[0] <= handler.low <= handler.high <= api.versions[1]
        assert unstable is None or handler.high + 1 == unstable.version == api.versions[1]
        SERVED[api.key] = handler
        return function

    return register


def _in_steps(function: HandlerFunction, is_cancellable: bool) -> HandlerFunction:
    """Return the handler as the dispatcher calls it; a generator function is run in steps."""
    if not inspect.isgeneratorfunction(function):
        return function

    @wraps(function)
    def run(node: Any, request: Any, client: ClientContext) -> Any:
        work = function(node, request, client)
        return in_steps(node.reactor, work, is_cancellable=is_cancellable)

    return run
