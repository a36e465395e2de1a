"""Ids: sixteen bytes that name a cluster, a directory or a topic, and their written form.

The metadata log is a topic's log to the disk and no topic to anybody else; its name and its id
are settled for good.
"""

from __future__ import annotations

import base64
import uuid

SIZE = 16

NO_ID = bytes(SIZE)
"""What stands where an id is not known."""

METADATA_TOPIC = "__cluster_metadata"
METADATA_ID = bytes(SIZE - 1) + b"\1"


def new_id() -> bytes:
    """A random id that does not begin with a dash when written down, as in Kafka: tools would
    read it as a flag."""
    while True:
        found = uuid.uuid4().bytes
        if not written_id(found).startswith("-"):
            return found


def written_id(identity: bytes) -> str:
    """An id as Kafka writes it: 22 letters of URL-safe base64."""
    return base64.urlsafe_b64encode(identity).decode().rstrip("=")


def read_id(text: str) -> bytes:
    """The id from its letters; ValueError when they are not one."""
    found = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(found) != SIZE:
        raise ValueError(f"{text!r} is not an id")
    return found
