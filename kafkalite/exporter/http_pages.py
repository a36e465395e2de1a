"""The exporter's pages: /metrics, /healthz and /readyz."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kafkalite.exporter.broker_readiness import UnreadyReason
from kafkalite.http.messages import HttpRequest, HttpResponse

SCRAPE_CACHE_S = 0.5
"""Time for which an encoded scrape is sent again."""


class ExporterPages:
    """Responds to the exporter's HTTP requests; called from several threads."""

    def __init__(
        self, registry: CollectorRegistry, unready_reason: Callable[[], UnreadyReason]
    ) -> None:
        self._registry = registry
        self._unready_reason = unready_reason
        self._lock = threading.Lock()
        self._scrapes: dict[str, tuple[float, bytes]] = {}
        """The last scrape and its time, by content type."""

    def respond(self, request: HttpRequest) -> HttpResponse:
        """Return the page at the path of the request, or 404."""
        if request.path == "/metrics":
            body, content_type = self.scrape(request.headers.get("accept", ""))
            return HttpResponse(200, body, content_type)
        if request.path == "/healthz":
            return HttpResponse(200, b"ok\n")
        if request.path == "/readyz":
            reason = self._unready_reason()
            return HttpResponse(503 if reason else 200, f"{reason or 'ready'}\n".encode())
        return HttpResponse(404, b"not found; the paths are /metrics, /healthz and /readyz\n")

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the text of all metrics in the format the scraper accepts, and its content type.

        Scrapes are encoded one at a time.
        """
        encode, content_type = choose_encoder(accept)
        with self._lock:
            at_s, text = self._scrapes.get(content_type, (float("-inf"), b""))
            if time.monotonic() - at_s >= SCRAPE_CACHE_S:
                text = encode(self._registry)
                self._scrapes = {content_type: (time.monotonic(), text)}
        return text, content_type
