"""ACLs: refused, because there is no authorizer that could apply them.

DescribeAcls   v1–v3
CreateAcls     v1–v3
DeleteAcls     v1–v3

Each responds with SECURITY_DISABLED and Kafka's error message, which admin clients report.

Left out: ACLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite.broker.handlers import At, Caller, Response, fault_fields, serves
from kafkalite.broker.security import ALTER, CLUSTER, CLUSTER_NAME, DESCRIBE
from kafkalite.errors import KafkaError, SecurityDisabled
from kafkalite.protocol.schemas.security import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.broker.security import Operation


NO_AUTHORIZER = "No Authorizer is configured."


def _refusal(caller: Caller, operation: Operation, why: str = NO_AUTHORIZER) -> Response:
    try:
        caller.must(operation, CLUSTER, CLUSTER_NAME)
    except KafkaError as fault:
        return fault_fields(fault)
    return fault_fields(SecurityDisabled(why))


@serves(DESCRIBE_ACLS, versions="1-3", at=At.ANY)
def describe_acls(node: Node, request: Any, caller: Caller) -> Response:
    """Refuse to list ACLs."""
    return _refusal(caller, DESCRIBE, "No Authorizer is configured on the broker")


@serves(CREATE_ACLS, versions="1-3", at=At.CONTROLLER)
def create_acls(node: Node, request: Any, caller: Caller) -> Response:
    """Refuse to create ACLs, with one error per creation."""
    return {"results": [_refusal(caller, ALTER) for _ in request.creations]}


@serves(DELETE_ACLS, versions="1-3", at=At.CONTROLLER)
def delete_acls(node: Node, request: Any, caller: Caller) -> Response:
    """Refuse to delete ACLs, with one error per filter."""
    return {"filter_results": [_refusal(caller, ALTER) for _ in request.filters]}
