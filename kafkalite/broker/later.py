"""An answer that is not there yet.

A handler returns its response, or a `Later` of it: once the disk has flushed, once there are bytes
enough, once the time is up.  A Later is settled exactly once, with a value or with a fault, and
runs its callbacks at that moment; there is no thread and no loop behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from kafkalite.errors import KafkaError

T = TypeVar("T")
U = TypeVar("U")

_WAITING: Any = object()


class Later(Generic[T]):
    """A value to come; see the module."""

    __slots__ = ("_callbacks", "_fault", "_value", "abandoned")

    def __init__(self, abandoned: Callable[[], None] | None = None) -> None:
        self._value: T = _WAITING
        self._fault: KafkaError | None = None
        self._callbacks: list[Callable[[T | None, KafkaError | None], None]] = []
        self.abandoned = abandoned

    @classmethod
    def of(cls, value: T) -> Later[T]:
        """One whose value is there."""
        later: Later[T] = cls()
        later.resolve(value)
        return later

    @property
    def settled(self) -> bool:
        """Whether the value or the fault has come."""
        return self._value is not _WAITING or self._fault is not None

    def resolve(self, value: T) -> None:
        """The value has come."""
        assert not self.settled, "a Later is settled once"
        self._value = value
        self._run()

    def fail(self, fault: KafkaError) -> None:
        """It will not come, for this reason."""
        assert not self.settled, "a Later is settled once"
        # Where it was raised holds the request, and this Later: a cycle as large as the request.
        self._fault = fault.with_traceback(None)
        fault.__context__ = fault.__cause__ = None
        self._run()

    def follow(self, other: T | Later[T]) -> None:
        """Be settled with this value, or as this Later will be."""
        if not isinstance(other, Later):
            self.resolve(other)
            return

        def pass_on(value: Any, fault: KafkaError | None) -> None:
            if fault is not None:
                self.fail(fault)
            else:
                self.resolve(value)

        self.abandoned = other.abandon
        other.then(pass_on)

    def then(self, callback: Callable[[T | None, KafkaError | None], None]) -> None:
        """Call `callback(value, fault)`, one of them None, as soon as this is settled."""
        if self.settled:
            callback(None if self._fault else self._value, self._fault)
        else:
            self._callbacks.append(callback)

    def map(self, change: Callable[[T], U]) -> Later[U]:
        """A Later of `change(value)`; a fault, also one raised by `change`, passes through."""
        result: Later[U] = Later(self.abandon)

        def pass_on(value: Any, fault: KafkaError | None) -> None:
            if fault is not None:
                result.fail(fault)
                return
            try:
                changed = change(value)
            except KafkaError as raised:
                result.fail(raised)
            else:
                result.resolve(changed)

        self.then(pass_on)
        return result

    def recover(self, change: Callable[[KafkaError], T]) -> Later[T]:
        """A Later of this value, or of `change(fault)` where there is none."""
        result: Later[T] = Later(self.abandon)

        def pass_on(value: Any, fault: KafkaError | None) -> None:
            result.resolve(value if fault is None else change(fault))

        self.then(pass_on)
        return result

    def abandon(self) -> None:
        """Nobody waits any more: whoever would have settled this may forget it."""
        if not self.settled and self.abandoned is not None:
            # It is let go, or it would be a cycle with what waits for this.
            abandoned, self.abandoned = self.abandoned, None
            abandoned()

    def _run(self) -> None:
        # What was held for a client that might go away is let go, or it would be a cycle.
        self.abandoned = None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(None if self._fault else self._value, self._fault)


def all_of(laters: Sequence[Later[T]]) -> Later[list[T]]:
    """All the values, in their order, once the last has come; the first fault instead of them."""

    def abandon() -> None:
        for later in laters:
            later.abandon()

    result: Later[list[T]] = Later(abandon)
    values: list[Any] = [later._value for later in laters]
    waiting = [number for number, value in enumerate(values) if value is _WAITING]
    left = len(waiting)

    def came(number: int, value: Any, fault: KafkaError | None) -> None:
        nonlocal left
        if result.settled:
            return
        if fault is not None:
            result.fail(fault)
            return
        values[number] = value
        left -= 1
        if not left:
            result.resolve(values)

    for number in waiting:
        laters[number].then(partial(came, number))
    if not waiting:
        result.resolve(values)
    return result
