"""The readiness request: the smallest request, by which a process learns that a node responds.

It is ApiVersions v0 with correlation id 0 and without a client id.  The head of the response is
checked only: its size, the correlation id and the error code.
"""

from __future__ import annotations

import struct

READINESS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 0, -1)

RESPONSE_HEAD_SIZE = 10
"""Bytes of size, correlation id and error code, which a node sends in one piece."""


def is_success(head: bytes) -> bool:
    """Return whether the head of a response is whole and has no error."""
    return head[4:] == bytes(RESPONSE_HEAD_SIZE - 4)
