from types import TracebackType
from typing import Protocol

class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...

class LockGuard:
    """Context manager that holds a lock of `threading`, released also on KeyboardInterrupt."""

    def __init__(self, lock: _Lock, timeout_s: float | None = None) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
