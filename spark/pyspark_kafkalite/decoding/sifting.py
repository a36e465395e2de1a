"""Values that are read all at once where they are good, and halved where one is not.

    sift(values, parse, kind)   parse(values) if that works, else of each half, down to the bad one

A batch of good rows costs one call, and a few bad ones among them about as much once more.  Where
many are bad a format's `judge` looks at each value first, and leaves out what is bad for certain:
a parse of a single value costs some hundred times what looking at it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

Bad = dict[int, str]
"""Why each bad row is bad, by its place."""

REASON_LENGTH_MAX = 300


class Unreadable(ValueError):
    """A value that is not what it should be."""


REFUSALS = (Unreadable, pa.ArrowException, UnicodeError, OverflowError, RecursionError)
"""What a parser says of values; everything else is the program's."""


class Format(Protocol):
    """How values become columns."""

    schema: pa.Schema

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        """A struct of the schema's columns for each value, null where it is bad; no value is null
        itself."""
        ...


Judge = Callable[[Any], str | None]
"""Why a value is bad, if that is certain; it may miss some that are."""

FEW = 8


class Many(Exception):
    """So many values are bad that halving is not the way."""


def sift(
    values: Any,
    parse: Callable[[Any], pa.Array],
    kind: pa.DataType,
    judge: Judge | None = None,
) -> tuple[pa.Array, Bad]:
    """What `parse` makes of the values, a list or an array, one for one."""
    try:
        return halved(values, parse, kind, len(values) if judge is None else FEW)
    except Many:
        assert judge is not None
        reasons = [judge(value.as_py()) for value in values]
    bad = {at: why for at, why in enumerate(reasons) if why is not None}
    rest = pa.array([why is None for why in reasons])
    found, more = halved(values.filter(rest), parse, kind, len(values))
    places = pc.indices_nonzero(rest)
    return spread(found, rest), bad | {places[at].as_py(): why for at, why in more.items()}


def halved(
    values: Any,
    parse: Callable[[Any], pa.Array],
    kind: pa.DataType,
    bad_max: int,
) -> tuple[pa.Array, Bad]:
    """The same by halves; Many when more are bad than that."""
    bad: Bad = {}
    pieces: list[pa.Array] = []

    def walk(start: int, part: Any) -> None:
        try:
            found = parse(part)
            if len(found) != len(part):
                raise Unreadable(f"it is {len(found)} values, not one")
            pieces.append(found)
        except REFUSALS as fault:
            if len(part) == 1:
                bad[start] = reason(fault)
                if len(bad) > bad_max:
                    raise Many from None
                pieces.append(pa.nulls(1, kind))
                return
            half = len(part) // 2
            walk(start, part[:half])
            walk(start + half, part[half:])

    if len(values):
        walk(0, values)
    if len(pieces) == 1:
        return pieces[0], bad
    return (pa.concat_arrays(pieces) if pieces else pa.nulls(0, kind)), bad


def spread(found: pa.Array, some: pa.Array) -> pa.Array:
    """One after the other where `some` is true, and null where it is not."""
    # Where there is none, the place to take from is null.
    places = pc.subtract(pc.cumulative_sum(some.cast(pa.int64())), 1)
    return found.take(pc.if_else(some, places, pa.scalar(None, pa.int64())))


def reason(fault: BaseException) -> str:
    """A refusal in a line; Arrow's own speak of rows of its making."""
    words = str(fault).split("\n")[0].replace(" in row 0", "").replace("Row #1: ", "")
    words = words.removeprefix("JSON parse error: ").replace("Column(/v", "Column(")
    words = words.removeprefix("CSV parse error: ").rstrip(". ")
    return (words or type(fault).__name__)[:REASON_LENGTH_MAX]


def struct_of(schema: pa.Schema) -> pa.DataType:
    return pa.struct(list(schema))


def bytes_of(array: pa.Array) -> pa.Buffer:
    """The bytes of all its values, one after the other."""
    data, places = array.buffers()[2], array.buffers()[1]
    if data is None or not len(array):
        return pa.py_buffer(b"")
    held = memoryview(places).cast("b").cast("i")
    first, last = held[array.offset], held[array.offset + len(array)]
    return data.slice(first, last - first)


def is_moment(words: str, kind: pa.DataType) -> bool:
    """Whether a text can become this date or timestamp; a zone too many is not noticed."""
    kinds = [kind] if pa.types.is_date(kind) else [pa.timestamp("us"), pa.timestamp("us", "UTC")]
    for each in kinds:
        try:
            pa.scalar(words, pa.string()).cast(each)
            return True
        except pa.ArrowInvalid:
            pass
    return False
