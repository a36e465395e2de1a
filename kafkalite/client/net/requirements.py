"""Optional packages that a call needs, and the command that installs them."""

from __future__ import annotations


def require_pyarrow(subject: str) -> None:
    """Raise ModuleNotFoundError with the install command if pyarrow or numpy is missing."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            f"{subject} and need {error.name}: pip install 'kafkalite[arrow]'", name=error.name
        ) from None
