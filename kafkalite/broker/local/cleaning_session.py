"""CleaningSession: the requests of a log cleaner's thread, or of the command line, on a connection.

A cleaner's thread has one pass at a time on a node.  The pass ends with the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kafkalite.broker.future import Future
from kafkalite.broker.local.cleaning_jobs import ActivePass, CleaningJobs, CleaningOffer
from kafkalite.config.log_cleaner import (
    LOG_CLEANER_BACKOFF_MS,
    LOG_CLEANER_IO_MAX_BYTES_PER_SECOND,
    LOG_CLEANER_THREADS,
)
from kafkalite.config.settings import Settings
from kafkalite.errors import KafkaError
from kafkalite.ids import NO_ID
from kafkalite.protocol.record_kinds import TypedRecord
from kafkalite.protocol.schemas import cleaning
from kafkalite.transport.connection import Disconnect

UNKNOWN_STATUS = {
    "state": 0, "reason": None, "is_requested": False, "cleaners": 0, "dirty_ratio": 0.0,
    "log_size": 0, "cleanable_size": 0, "first_dirty_offset": -1, "first_uncleanable_offset": -1,
    "passes": 0, "last_cleaned_ms": -1,
}  # fmt: skip


class CleaningSession:
    """The requests of one connection; see the module."""

    def __init__(
        self, jobs: CleaningJobs, settings: Callable[[], Settings], send: Callable[..., object]
    ) -> None:
        self._jobs = jobs
        self._settings = settings
        self._send = send
        self._pass: ActivePass | None = None
        self._request_id = -1
        """Request id of the pass."""
        self._is_closed = False
        self._handlers: dict[Any, Callable[[dict[str, Any]], object]] = {
            cleaning.OFFER: self._offer,
            cleaning.TAKE_JOB: self._take_job,
            cleaning.CLEANED: self._cleaned,
            cleaning.COMPACT: self._compact,
            cleaning.CLEANER_STATE: self._state,
        }

    def received(self, message: TypedRecord) -> None:
        """Handle a request; raise Disconnect for other packets."""
        handler = self._handlers.get(message.kind)
        if handler is None:
            raise Disconnect(f"an unexpected {message.kind} packet")
        handler(message.fields)

    def close(self) -> None:
        """End the pass of a connection that was closed."""
        self._is_closed = True
        self._jobs.cleaners.pop(self, None)
        if self._pass is not None:
            self._jobs.abandon(self._pass)
            self._pass = None

    # -- the cleaner -------------------------------------------------------------------------

    def _offer(self, request: dict[str, Any]) -> None:
        self._jobs.cleaners[self] = self._wake_up
        found = self._jobs.best_offer()
        if isinstance(found, Future):
            found.then(lambda offer, _: self._offered(request["request_id"], offer))
        else:
            self._offered(request["request_id"], found)

    def _wake_up(self) -> None:
        self._send(cleaning.WAKE_UP())

    def _offered(self, request_id: int, offer: CleaningOffer | None) -> None:
        if self._is_closed:
            return
        settings = self._settings()
        self._send(
            cleaning.OFFERED(
                request_id=request_id,
                partition=offer.partition.log.partition if offer else -1,
                topic_id=offer.partition.log.topic_id if offer else NO_ID,
                # What was requested comes before what is only dirty.
                dirty_ratio=offer.range.dirty_ratio + offer.is_requested if offer else 0.0,
                threads=settings[LOG_CLEANER_THREADS],
                backoff_ms=settings[LOG_CLEANER_BACKOFF_MS],
                bytes_per_second=settings[LOG_CLEANER_IO_MAX_BYTES_PER_SECOND],
            )
        )

    def _take_job(self, request: dict[str, Any]) -> None:
        request_id = request["request_id"]
        if self._pass is not None:
            raise Disconnect("a second job was requested")
        try:
            active = self._jobs.begin(
                request["topic_id"], request["partition"], partial(self._cancel, request_id)
            )
        except KafkaError as error:
            self._send(cleaning.JOB(request_id=request_id, **_error(error)))
            return
        self._pass, self._request_id = active, request_id
        written: None | Future[None]
        try:
            written = self._jobs.write_job(active)
        except KafkaError as error:
            self._job_written(active, None, error)
            return
        if isinstance(written, Future):
            written.then(partial(self._job_written, active))
        else:
            self._job_written(active, None, None)

    def _job_written(self, active: ActivePass, _: None, error: KafkaError | None) -> None:
        if self._pass is not active:
            return  # disconnected meanwhile
        if error is not None:
            self._pass = None
            self._jobs.fail(active, str(error), retriable=True)
            self._send(cleaning.JOB(request_id=self._request_id, **_error(error)))
            return
        self._send(cleaning.JOB(request_id=self._request_id, **_error(None)), active.descriptor)
        if active.reason:
            self._cancel(self._request_id, active.reason)

    def _cancel(self, request_id: int, reason: str) -> None:
        self._send(cleaning.CANCEL_JOB(request_id=request_id, reason=reason[:200]))

    def _cleaned(self, request: dict[str, Any]) -> None:
        active = self._pass
        if active is None or request["request_id"] != self._request_id or active.is_swapping:
            raise Disconnect("a result without a job")
        if request["error_code"]:
            self._pass = None
            reason = request["error_message"] or f"error {request['error_code']}"
            self._jobs.fail(active, reason, retriable=request["retriable"])
            self._send(cleaning.SWAPPED(request_id=self._request_id, **_error(None)))
            return
        try:
            swapped = self._jobs.finish(active)
        except KafkaError as error:
            self._swapped(active, None, error)
            return
        if isinstance(swapped, Future):
            swapped.then(partial(self._swapped_later, active))
        else:
            self._swapped(active, None, None)

    def _swapped_later(self, active: ActivePass, _: None, error: KafkaError | None) -> None:
        if error is not None:
            self._jobs.refuse(active, error)
        self._swapped(active, None, error)

    def _swapped(self, active: ActivePass, _: None, error: KafkaError | None) -> None:
        if self._pass is active:
            self._pass = None
            self._send(cleaning.SWAPPED(request_id=self._request_id, **_error(error)))

    # -- the command line --------------------------------------------------------------------

    def _compact(self, request: dict[str, Any]) -> None:
        try:
            self._jobs.request(request["topic_id"], request["partition"])
        except KafkaError as error:
            self._send_status(request, UNKNOWN_STATUS, error)
        else:
            self._state(request)

    def _state(self, request: dict[str, Any]) -> None:
        try:
            status = self._jobs.status(request["topic_id"], request["partition"])
        except KafkaError as error:
            self._send_status(request, UNKNOWN_STATUS, error)
        else:
            self._send_status(request, status, None)

    def _send_status(
        self, request: dict[str, Any], status: dict[str, Any], error: KafkaError | None
    ) -> None:
        self._send(
            cleaning.CLEANER_STATUS(request_id=request["request_id"], **_error(error), **status)
        )


def _error(error: KafkaError | None) -> dict[str, Any]:
    return {
        "error_code": error.code if error else 0,
        "error_message": str(error)[:500] if error else None,
    }
