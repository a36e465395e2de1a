"""ClientContext: the connection, principal, addresses and API version of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kafkalite.broker.security import ANONYMOUS, AclOperation, Authorizer, ResourceType
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

_AUTHORIZATION_ERRORS: dict[ResourceType, type[KafkaError]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}


class ClientConnection(Protocol):
    """The connection that sent a request, to this node or to another one (WorkerManager)."""

    peer: tuple[str, int]
    local: tuple[str, int]

    def defer(self) -> Any:
        """Reserve the place of a later response and return the object that completes it."""

    def close(self) -> None:
        """Close the connection without a response."""

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when the connection closes."""


class ClientContext:
    """The context of a request: connection, principal, addresses and API version."""

    __slots__ = (
        "authorizer", "client_id", "connection", "is_peer", "local", "peer", "principal",
        "version",
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
        connection: ClientConnection | None = None,
        is_peer: bool = False,
    ) -> None:
        """`is_peer`: the request is of another node of this broker."""
        self.is_peer = is_peer
        self.connection = connection
        self.authorizer = authorizer
        self.version = version
        self.client_id = client_id
        self.peer = peer
        self.local = local
        self.principal = principal

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the principal may perform `operation` on the resource `name`."""
        return self.authorizer.allows(self.principal, operation, resource_type, name)

    def must(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Raise Kafka's authorization error for that resource type unless the principal may."""
        if not self.may(operation, resource_type, name):
            raise _AUTHORIZATION_ERRORS[resource_type]()

    def allowed_bits(self, resource_type: ResourceType, name: str) -> int:
        """Return the operations the principal may perform on a resource, as KIP-430's bit field."""
        return self.authorizer.allowed_bits(self.principal, resource_type, name)
