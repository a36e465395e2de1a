"""Readiness of the broker for /readyz: every node responds to an ApiVersions request."""

from __future__ import annotations

import socket
import time

from kafkalite.protocol.readiness_request import (
    READINESS_REQUEST,
    RESPONSE_HEAD_SIZE,
    is_success,
)

NODE_TIMEOUT_S = 1.0
BROKER_TIMEOUT_S = 3.0
"""Timeout for the responses of all nodes together."""

Address = tuple[str, int]
UnreadyReason = str
"""The reason why the broker is not ready; empty if it is."""


def unready_reason(nodes: dict[int, Address] | None) -> UnreadyReason:
    """Send a request to each node; return why the broker is not ready, or an empty string."""
    if nodes is None:
        return "no broker is ready"
    deadline = time.monotonic() + BROKER_TIMEOUT_S
    for node_id, address in sorted(nodes.items()):
        timeout_s = min(NODE_TIMEOUT_S, deadline - time.monotonic())
        if timeout_s <= 0 or not is_responding(address, timeout_s):
            return f"node {node_id} at {address[0]}:{address[1]} does not respond"
    return ""


def is_responding(address: Address, timeout_s: float) -> bool:
    """Return True if the node at this address responds to ApiVersions within the timeout."""
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(READINESS_REQUEST)
            head = b""
            while len(head) < RESPONSE_HEAD_SIZE:
                received = connection.recv(RESPONSE_HEAD_SIZE - len(head))
                if not received:
                    return False
                head += received
    except OSError:
        return False
    return is_success(head)
