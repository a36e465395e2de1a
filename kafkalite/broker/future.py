"""Future: a response that is not available yet.

A handler returns its response, or a `Future` of it, resolved after a flush, when enough bytes are
available, or on timeout.  A Future is settled exactly once, with a value or with an error, and runs
its callbacks synchronously at that moment.  It uses no thread and no event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from kafkalite.errors import KafkaError

T = TypeVar("T")
U = TypeVar("U")

_WAITING: Any = object()


class Future(Generic[T]):
    """A value that will be available later; see the module."""

    __slots__ = ("_callbacks", "_error", "_value", "abandoned")

    def __init__(self, abandoned: Callable[[], None] | None = None) -> None:
        self._value: T = _WAITING
        self._error: KafkaError | None = None
        self._callbacks: list[Callable[[T | None, KafkaError | None], None]] = []
        self.abandoned = abandoned

    @classmethod
    def of(cls, value: T) -> Future[T]:
        """Return a Future resolved with this value."""
        future: Future[T] = cls()
        future.resolve(value)
        return future

    @property
    def settled(self) -> bool:
        """True if the value or the error is set."""
        return self._value is not _WAITING or self._error is not None

    def resolve(self, value: T) -> None:
        """Settle with a value."""
        assert self._value is _WAITING and self._error is None, "a Future is settled once"
        self._value = value
        self._run()

    def fail(self, error: KafkaError) -> None:
        """Settle with an error."""
        assert not self.settled, "a Future is settled once"
        # The traceback references the request and this Future: a cycle as large as the request.
        self._error = error.with_traceback(None)
        error.__context__ = error.__cause__ = None
        self._run()

    def follow(self, other: T | Future[T]) -> None:
        """Settle with this value, or in the same way as this other Future when it is settled."""
        if not isinstance(other, Future):
            self.resolve(other)
            return

        def pass_on(value: Any, error: KafkaError | None) -> None:
            if error is not None:
                self.fail(error)
            else:
                self.resolve(value)

        self.abandoned = other.abandon
        other.then(pass_on)

    def then(self, callback: Callable[[T | None, KafkaError | None], None]) -> None:
        """Call `callback(value, error)`, one of them None, once this is settled."""
        if self._value is _WAITING and self._error is None:
            self._callbacks.append(callback)
        else:
            callback(None if self._error else self._value, self._error)

    def map(self, change: Callable[[T], U]) -> Future[U]:
        """Return a Future of `change(value)`; errors, also those of `change`, pass through."""
        result: Future[U] = Future(self.abandon)

        def pass_on(value: Any, error: KafkaError | None) -> None:
            if error is not None:
                result.fail(error)
                return
            try:
                changed = change(value)
            except KafkaError as raised:
                result.fail(raised)
            else:
                result.resolve(changed)

        self.then(pass_on)
        return result

    def recover(self, change: Callable[[KafkaError], T]) -> Future[T]:
        """Return a Future of this value, or of `change(error)` if this fails."""
        result: Future[T] = Future(self.abandon)

        def pass_on(value: Any, error: KafkaError | None) -> None:
            result.resolve(value if error is None else change(error))

        self.then(pass_on)
        return result

    def abandon(self) -> None:
        """Call `abandoned`: the response is not needed, so the pending work can be cancelled."""
        if not self.settled and self.abandoned is not None:
            # Cleared, since it forms a reference cycle with the pending request.
            abandoned, self.abandoned = self.abandoned, None
            abandoned()

    def _run(self) -> None:
        # Cleared, since it forms a reference cycle with the pending request.
        self.abandoned = None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(None if self._error else self._value, self._error)


def all_of(futures: Sequence[Future[T]]) -> Future[list[T]]:
    """Return a Future of all values, in order; it fails with the first error."""

    if len(futures) == 1:
        return futures[0].map(lambda value: [value])

    def abandon() -> None:
        for future in futures:
            future.abandon()

    result: Future[list[T]] = Future(abandon)
    values: list[Any] = [future._value for future in futures]
    waiting = [number for number, value in enumerate(values) if value is _WAITING]
    left = len(waiting)

    def on_settled(number: int, value: Any, error: KafkaError | None) -> None:
        nonlocal left
        if result.settled:
            return
        if error is not None:
            result.fail(error)
            return
        values[number] = value
        left -= 1
        if not left:
            result.resolve(values)

    for number in waiting:
        futures[number].then(partial(on_settled, number))
    if not waiting:
        result.resolve(values)
    return result
