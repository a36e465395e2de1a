"""Ids: sixteen bytes that identify a cluster, a directory or a topic, and their text form.

The metadata log is stored like a topic's log, but is not a topic for clients; its name and id are
fixed.
"""

from __future__ import annotations

import base64
import uuid

SIZE = 16

NO_ID = bytes(SIZE)
"""Value of an id that is not known."""

METADATA_TOPIC = "__cluster_metadata"
METADATA_ID = bytes(SIZE - 1) + b"\1"


def new_id() -> bytes:
    """Return a random id whose text does not begin with a dash, as in Kafka: tools would read it
    as a flag."""
    while True:
        found = uuid.uuid4().bytes
        if not written_id(found).startswith("-"):
            return found


def written_id(identity: bytes) -> str:
    """Return an id in Kafka's text form: 22 letters of URL-safe base64."""
    return base64.urlsafe_b64encode(identity).decode().rstrip("=")


def read_id(text: str) -> bytes:
    """Return the id of a text; raise ValueError if it is not valid."""
    found = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(found) != SIZE:
        raise ValueError(f"{text!r} is not an id")
    return found
