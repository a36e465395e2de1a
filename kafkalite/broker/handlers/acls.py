"""ACLs: refused, because there is no authorizer that could apply them.

DescribeAcls   v1–v3
CreateAcls     v1–v3
DeleteAcls     v1–v3

Each responds with SECURITY_DISABLED and Kafka's error message, which admin clients report.

Left out: ACLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.security import ALTER, CLUSTER, CLUSTER_NAME, DESCRIBE
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.errors import KafkaError, SecurityDisabled
from kafkalite.protocol.schemas.security import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS

if TYPE_CHECKING:
    from kafkalite.broker.security import AclOperation


NO_AUTHORIZER = "No Authorizer is configured."


def _refusal(client: ClientContext, operation: AclOperation, why: str = NO_AUTHORIZER) -> Response:
    try:
        client.must(operation, CLUSTER, CLUSTER_NAME)
    except KafkaError as error:
        return error_fields(error)
    return error_fields(SecurityDisabled(why))


@serves(DESCRIBE_ACLS, versions="1-3", at=ServingNode.ANY)
def describe_acls(node: HandlerNode, request: Any, client: ClientContext) -> Response:
    """Refuse to list ACLs."""
    return _refusal(client, DESCRIBE, "No Authorizer is configured on the broker")


@serves(CREATE_ACLS, versions="1-3", at=ServingNode.CONTROLLER)
def create_acls(node: HandlerNode, request: Any, client: ClientContext) -> Response:
    """Refuse to create ACLs, with one error per creation."""
    return {"results": [_refusal(client, ALTER) for _ in request.creations]}


@serves(DELETE_ACLS, versions="1-3", at=ServingNode.CONTROLLER)
def delete_acls(node: HandlerNode, request: Any, client: ClientContext) -> Response:
    """Refuse to delete ACLs, with one error per filter."""
    return {"filter_results": [_refusal(client, ALTER) for _ in request.filters]}
