"""Readiness of the broker for /readyz: every node responds to an ApiVersions request."""

from __future__ import annotations

import socket
import struct
import time

NODE_TIMEOUT_S = 1.0
BROKER_TIMEOUT_S = 3.0
"""Timeout for the responses of all nodes together."""

API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 0, -1)
"""The smallest possible request: ApiVersions v0, correlation id 0, no client id."""
RESPONSE_HEAD_SIZE = 10
"""Bytes of size, correlation id and error code."""

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
            connection.sendall(API_VERSIONS_REQUEST)
            head = b""
            while len(head) < RESPONSE_HEAD_SIZE:
                received = connection.recv(RESPONSE_HEAD_SIZE - len(head))
                if not received:
                    return False
                head += received
    except OSError:
        return False
    return head[4:] == bytes(RESPONSE_HEAD_SIZE - 4)
