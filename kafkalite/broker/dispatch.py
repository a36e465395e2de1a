"""Dispatcher: decodes a request frame, calls its handler and encodes the response.

    header → look up handler and versions → decode → handler → encode
                                               └ handled at the controller, on another node:
                                                 forward over the bus

An invalid frame, an unsupported API and an unsupported version close the connection, as in Kafka:
there is no response format that both sides agree on.  The exception is ApiVersions, where an
unsupported version gets a response in version 0 (KIP-511).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafkalite.broker.client_context import ClientConnection, ClientContext
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handlers import (  # noqa: F401  (a family enters SERVED when imported)
    acls,
    cluster,
    configs,
    consumer_groups,
    features,
    fetch,
    groups,
    offset_commits,
    offsets,
    produce,
    reassignments,
    share,
    telemetry,
    topics,
    transactions,
)
from kafkalite.broker.handlers.share.share_fetches import ShareNode
from kafkalite.broker.handlers.share.share_states import ShareStatesNode
from kafkalite.broker.handlers.transactions.transactions_node import TransactionsNode
from kafkalite.broker.request_metrics import RequestCounts
from kafkalite.broker.security import Authorizer
from kafkalite.broker.served_apis import SERVED, EncodedResponse, Handler, ServingNode
from kafkalite.errors import InvalidRequest, KafkaError, raise_for
from kafkalite.protocol.frame import RequestHeader, read_header, response_header
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.transport.connection import Disconnect

if TYPE_CHECKING:
    from kafkalite.transport.connection import DeferredResponse

Chunks = list[Any]


class ServedNode(
    cluster.ClusterNode,
    configs.ConfigsNode,
    features.FeaturesNode,
    fetch.FetchNode,
    consumer_groups.ConsumerGroupsNode,
    offsets.OffsetsNode,
    produce.ProduceNode,
    reassignments.ReassignmentsNode,
    ShareNode,
    ShareStatesNode,
    telemetry.TelemetryNode,
    TransactionsNode,
    Protocol,
):
    """The components that the dispatcher and all handlers use."""

    authorizer: Authorizer


class Dispatcher:
    """The dispatcher of all connections of a node; see the module."""

    def __init__(self, node: ServedNode) -> None:
        self._node = node
        self._now_ns = node.clock.monotonic_ns
        self._counts: dict[int, RequestCounts] = {}

    @staticmethod
    def name_of(api_key: int) -> str:
        """Return the name of the API with this key."""
        handler = SERVED.get(api_key)
        return handler.api.name if handler is not None else f"API key {api_key}"

    @property
    def counts(self) -> Mapping[int, RequestCounts]:
        """The counters of each API that was requested, by API key."""
        return self._counts

    def serve_peer(
        self, connection: ClientConnection, frame: memoryview
    ) -> Chunks | DeferredResponse | None:
        """Handle one request of another node of this broker."""
        return self.serve(connection, frame, is_peer=True)

    def serve(
        self, connection: ClientConnection, frame: memoryview, *, is_peer: bool = False
    ) -> Chunks | DeferredResponse | None:
        """Handle one request; see Reactor for the meaning of the result."""
        start_ns = self._now_ns()
        try:
            header = read_header(frame)
        except InvalidRequest as error:
            raise Disconnect(f"invalid request header: {error}") from None
        handler = SERVED.get(header.api_key)
        if handler is None:
            raise Disconnect(f"unsupported API key {header.api_key}")
        version = header.version
        if not handler.low <= version <= handler.high and (
            version != handler.highest(self._node.settings)
        ):
            return self._unsupported_version(handler, header)
        counts = self._counts.get(header.api_key)
        if counts is None:
            counts = self._counts[header.api_key] = RequestCounts(handler.api)
        counts.requests[header.version] += 1
        client = ClientContext(
            self._node.authorizer,
            version=header.version,
            client_id=header.client_id,
            peer=connection.peer,
            local=connection.local,
            connection=connection,
            is_peer=is_peer,
        )
        try:
            request = _decode(handler, header, frame)
        except InvalidRequest as error:
            raise Disconnect(
                f"invalid {handler.api.name} request, version {header.version}: {error}"
            ) from None
        refuse = _refusal(handler, request, header.version)
        if handler.at is ServingNode.CONTROLLER and not self._node.controller.is_local:
            forwarded = self._node.controller.forward(frame, connection.peer, connection.local).map(
                lambda encoded: [encoded]
            )
            return self._respond_later(connection, handler, header, refuse, forwarded, start_ns)
        try:
            response = handler.handle(self._node, request, client)
        except KafkaError as error:
            response = refuse(error)
        if isinstance(response, Future):
            encoded = response.map(lambda response: self._encode(handler, header, response))
            return self._respond_later(connection, handler, header, refuse, encoded, start_ns)
        chunks = None if response is None else self._encode(handler, header, response)
        counts.times.add(self._now_ns() - start_ns)
        return chunks

    def _unsupported_version(self, handler: Handler, header: RequestHeader) -> Chunks:
        if handler.api is not API_VERSIONS:
            raise Disconnect(f"unsupported version {header.version} of {handler.api.name}")
        body = API_VERSIONS.response.write(0, cluster.api_versions_unsupported(self._node))
        return [response_header(header.correlation_id, flexible=False), body]

    def _encode(self, handler: Handler, header: RequestHeader, response: Any) -> Chunks:
        version = header.version
        if handler.codec is not None:
            if response.has_errors:
                self._counts[handler.api.key].failed_results(response)
            return handler.codec.encode(version, header.correlation_id, response)
        flexible = handler.api.response_header_flexible(version)
        if isinstance(response, EncodedResponse):
            self._counts[handler.api.key].failed(response.errors)
            return [response_header(header.correlation_id, flexible=flexible), response.body]
        self._counts[handler.api.key].failed(response)
        body = handler.api.response.write(version, response)
        return [response_header(header.correlation_id, flexible=flexible), body]

    def _respond_later(
        self,
        connection: ClientConnection,
        handler: Handler,
        header: RequestHeader,
        refuse: Callable[[KafkaError], Any],
        future: Future[Chunks],
        start_ns: int,
    ) -> DeferredResponse:
        response_slot: DeferredResponse = connection.defer()
        response_slot.abandoned = future.abandon

        def send(chunks: Chunks | None, error: KafkaError | None) -> None:
            if error is not None:
                try:
                    chunks = self._encode(handler, header, refuse(error))
                except Disconnect:
                    connection.close()
                    return
            assert chunks is not None
            self._counts[handler.api.key].times.add(self._now_ns() - start_ns)
            response_slot.send(chunks)

        future.then(send)
        return response_slot


def _decode(handler: Handler, header: RequestHeader, frame: memoryview) -> Any:
    version, position = header.version, header.body_position
    if handler.codec is None:
        return handler.api.request.read(version, frame, position)
    request = handler.codec.decode(version, frame, position)
    if isinstance(request, int):
        raise_for(request)
    return request


def _refusal(handler: Handler, request: Any, version: int) -> Callable[[KafkaError], Any]:
    """Return the function that makes the response for an error of the whole request."""
    if handler.refuse is not None:
        return partial(handler.refuse, request, version)
    return partial(_error_response, handler, version)


def _error_response(handler: Handler, version: int, error: KafkaError) -> Any:
    """Return the response with the error code of the whole request.

    Raises Disconnect if the response has none in this version.
    """
    if handler.codec is not None and handler.codec.fail is not None:
        return handler.codec.fail(error)
    fields = handler.api.response.struct.fields
    code = fields.get("error_code")
    if code is None or version not in code.versions:
        raise Disconnect(f"{handler.api.name}: {error}")
    return error_fields(error, messages="error_message" in fields)
