from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar, overload

T = TypeVar("T")

class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...

class LockGuard(Generic[T]):
    """Context manager that holds a lock of `threading`, released also on KeyboardInterrupt."""

    @overload
    def __init__(
        self: LockGuard[bool], lock: _Lock, timeout_s: float | None = None
    ) -> None: ...
    @overload
    def __init__(
        self, lock: _Lock, timeout_s: float | None, entered: Callable[[bool], T]
    ) -> None: ...
    def __enter__(self) -> T: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
