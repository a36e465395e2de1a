"""The compiled floor: what is done to every byte of a record, in C.

Each module here is built from `ext/<name>.pyx` and has a `.pyi` stub beside it.  Four rules keep
the border between Python and C narrow:

1. An ext module imports nothing of kafkalite.
2. Only plain values cross (numbers, bytes, buffers, text, and tuples, lists and dicts of them),
   and no Python object is kept.  Exceptions: `loop` owns the connections' descriptors, buffers
   and answers, and calls one Python function a frame; a `codec.Plan` keeps what it was made from;
   `wire` keeps the topic names it saw last; `gathering` keeps the table of a producer's topics
   and open batches, for a record cannot afford a call to look them up, as does
   `gateway_intake`, with who asked about which of their records; what `message_reader`
   gives out are Messages, since a tuple a record would have to be made into one by somebody.
3. No exception for judged input: a function answers 0 or a Kafka error code, which
   `errors.raise_for` turns into a class.  `assert` is for misuse by our own code.
4. Modules share inline functions and constants through `.pxd` files, never a class.

A call with a buffer costs a few tenths of a microsecond: right once a batch, wrong once a record.
So loops over records are inside.  What computes bytes has a twin in plain Python under
`tests/twins/`; `loop` is held to its promises by tests/transport.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class NotBuilt:
    """Asked last, when no built module was found: says what to run."""

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
