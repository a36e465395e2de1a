"""SupervisorRequests: the requests of a worker to the supervisor that have no response yet.

    add ─▶ sent once a supervisor has welcomed this node ─▶ complete
        ─▶ timed out, or its supervisor has ended: REQUEST_TIMED_OUT, and the outcome is unknown
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkalite.broker.controller.controller_request import ControllerRequest
from kafkalite.broker.future import Future
from kafkalite.errors import KafkaError, RequestTimedOut, raise_for

if TYPE_CHECKING:
    from kafkalite.broker.scheduler import Scheduler
    from kafkalite.protocol.record_kinds import RecordKind
    from kafkalite.protocol.schemas.internal import TypedRecord

Send = Callable[["TypedRecord"], bool]


class SupervisorRequests:
    """The requests of one worker; see the module."""

    def __init__(self, timers: Scheduler) -> None:
        self._timers = timers
        self._ids = itertools.count(1)
        self._requests: dict[int, ControllerRequest] = {}
        self._send: Send | None = None
        """Sends a message to the supervisor; None while none has welcomed this node."""
        self.size = 0
        """Total size of the clients' frames in them."""

    def begin_sending(self, send: Send) -> None:
        """Send the requests that wait, and later ones at once.

        A request without a timeout is sent again after the connection was lost: its receiver knows
        those that it has handled.
        """
        self._send = send
        for request_id, request in list(self._requests.items()):
            if not request.sent or request.timer is None:
                self._send_request(request_id, request)

    def stop_sending(self) -> None:
        """Let requests wait for the next supervisor's welcome."""
        self._send = None

    def fail_sent(self) -> None:
        """Fail what was sent to a supervisor that has ended."""
        for request_id, request in list(self._requests.items()):
            if request.sent:
                self._fail(request_id)

    def add(
        self, message: Callable[[int], TypedRecord], timeout_ms: int | None, size: int = 0
    ) -> Future[Any]:
        """Send `message(request_id)` and return the response.

        Without a timeout the response is awaited as long as the supervisor runs.
        """
        request_id = next(self._ids)
        future: Future[Any] = Future()
        timer = None
        if timeout_ms is not None:
            timer = self._timers.call_later(timeout_ms, lambda: self._fail(request_id))
        request = ControllerRequest(message(request_id), future, timer, size)
        self._requests[request_id] = request
        self.size += size
        if self._send is not None:
            self._send_request(request_id, request)
        return future

    def find(self, request_id: int) -> ControllerRequest | None:
        """Return a request without a response, by its id."""
        return self._requests.get(request_id)

    def complete(self, kind: RecordKind, fields: dict[str, Any], value: Callable[[], Any]) -> None:
        """Complete the request of a response with `value()`, or with the error in the response."""
        request = self._requests.get(fields["request_id"])
        if request is None or request.message.kind is not kind:
            return  # the response was late, and the client got a timeout
        self._remove(fields["request_id"])
        try:
            raise_for(fields["error_code"], fields["error_message"])
            result = value()
        except KafkaError as error:
            request.future.fail(error)
        else:
            request.future.resolve(result)

    def _send_request(self, request_id: int, request: ControllerRequest) -> None:
        assert self._send is not None
        request.sent = True
        if not self._send(request.message):
            self._fail(request_id)

    def _remove(self, request_id: int) -> ControllerRequest:
        request = self._requests.pop(request_id)
        self.size -= request.size
        if request.timer is not None:
            request.timer.cancel()
        return request

    def _fail(self, request_id: int) -> None:
        request = self._remove(request_id)
        request.future.fail(RequestTimedOut("The controller did not respond in time; retry later."))
