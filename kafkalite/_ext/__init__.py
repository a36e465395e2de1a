"""Compiled extension modules: the code that runs for every byte of a record.

Each module is built from `ext/<layer>/<name>.pyx` and has a `.pyi` stub in this directory.  Four
rules keep the interface between Python and C narrow:

1. An extension module imports nothing of kafkalite.
2. A leaf module takes and returns plain values (numbers, bytes, buffers, text, and tuples, lists
   and dicts of them) and keeps no object.  `message_reader` returns Message objects, since Python
   code would otherwise convert a tuple for each record; `wire` keeps recently used topic names.
   The engines own state for speed: `codec`, `loop`, `ring`, `gathering` and `gateway_receiver`.
   ext/README.md lists their state, and the measurement that justifies it.
3. Invalid input raises no exception: a function returns 0 or a Kafka error code, which
   `errors.raise_for` raises as a class.  `assert` checks for errors in our own code.
4. Modules share inline functions and constants through `.pxd` files, never a class.  A module uses
   the `.pxd` files of its own layer and of `ext/codec`.

A call with a buffer costs a few tenths of a microsecond, which is acceptable once for each batch
and too much once for each record.  So loops over records are compiled.  A function that computes
bytes has a twin in plain Python under `tests/twins/`; `loop` is tested by tests/transport.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


def module_names() -> list[str]:
    """Return the names of all compiled modules, built or not: each has a stub."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.pyi"))


class NotBuilt:
    """Last finder of sys.meta_path: raises ImportError with the command that builds the module."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(f"{__name__}."):
            raise ImportError(
                f"{name} is not built for this Python. Run `make build` in the source directory,"
                " or install kafkalite again with `pip install .`",
                name=name,
            )
        return None


sys.meta_path.append(NotBuilt)
