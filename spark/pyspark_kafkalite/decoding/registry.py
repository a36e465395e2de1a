"""Client of a Confluent-compatible schema registry, for the five-byte header of values.

    0   schema id (4 bytes)   the value

Schemas are cached by process, since the schema of an id never changes; a missing schema is cached
for a while.  If the registry is not available, Unreachable is raised instead of dropping rows.

Left out: schemas with references, which are rejected; writing.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from pyspark_kafkalite.decoding.sifting import Unreadable

MAGIC = 0
HEADER_SIZE = 5
RESPONSE_SIZE_MAX = 8 << 20
UNKNOWN_S = 30.0
"""Seconds for which a missing schema is not requested again."""
TIMEOUT_S = 10.0

Key = tuple["Registry", str]
_known: dict[Key, Any] = {}
_unknown: dict[Key, tuple[float, str]] = {}
_lock = threading.Lock()


class Unreachable(RuntimeError):
    """The registry does not respond, or with an invalid response."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, so that only the configured host receives requests."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Registry(NamedTuple):
    """Address of a registry; `user` is NAME:PASSWORD, or empty."""

    url: str
    user: str = ""
    timeout_s: float = TIMEOUT_S

    @classmethod
    def at(cls, url: str, user: str = "", timeout_s: float = TIMEOUT_S) -> Registry:
        place = urllib.parse.urlsplit(url.strip())
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(
                f"schema.registry.url must be like http://127.0.0.1:8081, not {url!r}."
            )
        return cls(url.strip().rstrip("/"), user, timeout_s)

    def schema(self, number: int) -> str:
        """Return the text of a schema; raise Unreadable if there is none with this id."""
        return str(self._cached(f"/schemas/ids/{number}", f"schema {number}"))

    def latest_schema(self, subject: str) -> str:
        """Return the text of a subject's latest schema."""
        name = urllib.parse.quote(subject, safe="")
        return str(self._request(f"/subjects/{name}/versions/latest", f"subject {subject!r}"))

    def _cached(self, path: str, what: str) -> Any:
        key = (self, path)
        found = _known.get(key)
        if found is not None:
            return found
        since_s, words = _unknown.get(key, (0.0, ""))
        if words and time.monotonic() - since_s < UNKNOWN_S:
            raise Unreadable(words)
        try:
            found = self._request(path, what)
        except Unreadable as error:
            with _lock:
                if len(_unknown) > 10_000:
                    _unknown.clear()
                _unknown[key] = time.monotonic(), str(error)
            raise
        with _lock:
            _known[key] = found
        return found

    def _request(self, path: str, what: str) -> str:
        request = urllib.request.Request(self.url + path)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.user:
            words = base64.b64encode(self.user.encode()).decode()
            request.add_header("Authorization", f"Basic {words}")
        opener = urllib.request.build_opener(NoRedirect)
        try:
            body = self._body(opener, request)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise Unreadable(f"the schema registry has no {what}") from None
                raise Unreachable(
                    f"The schema registry at {self.url} rejected the request for {what}: {error}."
                ) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"The schema registry at {self.url} did not respond: {error}."
                "  Check schema.registry.url."
            ) from None
        return self._schema_text(body, what)

    def _body(self, opener: Any, request: urllib.request.Request) -> bytes:
        """Return the response body; the timeout covers all of it, however slowly it arrives."""
        until_s = time.monotonic() + self.timeout_s
        with opener.open(request, timeout=self.timeout_s) as response:
            body = b""
            while piece := response.read1(1 << 16):
                body += piece
                if len(body) > RESPONSE_SIZE_MAX:
                    raise OSError(f"the response is larger than {RESPONSE_SIZE_MAX} bytes")
                if time.monotonic() > until_s:
                    raise TimeoutError("timed out")
            return body

    def _schema_text(self, body: bytes, what: str) -> str:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise Unreachable(f"The response of {self.url} for {what} is not a schema registry's.")
        if found.get("references"):
            raise Unreadable(f"{what} references other schemas, which is not supported")
        return str(found["schema"])


def framed_id(value: bytes | memoryview) -> int:
    """Return the schema id in a value's header."""
    if len(value) < HEADER_SIZE or value[0] != MAGIC:
        raise Unreadable("it has no schema registry header")
    return int.from_bytes(value[1:HEADER_SIZE], "big")
