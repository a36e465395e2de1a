"""kafkalite: Apache Kafka's whole job on one host.

    cellar    _ext errors clock / config records / protocol          bytes
    broker    storage transport coordination / broker / process      what serves them
    roof      cli testing, and this file

This file names what a user imports and loads nothing until a name is used, so that `import
kafkalite` costs neither tower.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite.testing import Broker

__all__ = ["Broker", "__version__"]

__version__ = "0.1.0"

_HOME = {"Broker": "kafkalite.testing"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kafkalite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
