"""Parsing of many values at once, with bisection to find the bad ones.

    sift(values, parse, kind)   parse(values), or if that fails each half, down to the bad values

A batch of good values costs one call, and one with a few bad values about twice as much.  If many
are bad, a format's `judge` first checks each value and excludes those that are certainly bad:
parsing a single value costs some hundred times as much as checking it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

Bad = dict[int, str]
"""The reason for each bad row, by index."""

REASON_LENGTH_MAX = 300


class Unreadable(ValueError):
    """A value is not valid in its format."""


REFUSALS = (Unreadable, pa.ArrowException, UnicodeError, OverflowError, RecursionError)
"""Exceptions that mean a bad value; all others are errors of the program."""


class Format(Protocol):
    """Converts values to columns."""

    schema: pa.Schema

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        """Return a struct of the schema's columns for each value, null where it is bad.

        No value is null itself.
        """
        ...


Judge = Callable[[Any], str | None]
"""Return the reason why a value is bad, or None; may miss some bad values."""

FEW = 8


class Many(Exception):
    """There are too many bad values for bisection."""


def sift(
    values: Any,
    parse: Callable[[Any], pa.Array],
    kind: pa.DataType,
    judge: Judge | None = None,
) -> tuple[pa.Array, Bad]:
    """Return a struct for each value, and the bad ones.

    `parse` takes part of the values, a list or an array, and returns a struct for each.
    """
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
    """Return the same by bisection; raise Many if more than `bad_max` values are bad."""
    bad: Bad = {}
    pieces: list[pa.Array] = []

    def walk(start: int, part: Any) -> None:
        try:
            found = parse(part)
            if len(found) != len(part):
                raise Unreadable(f"it contains {len(found)} values instead of one")
            pieces.append(found)
        except REFUSALS as error:
            if len(part) == 1:
                bad[start] = reason(error)
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
    """Return the values of `found` where `some` is true, and null elsewhere."""
    # A null index gives a null.
    places = pc.subtract(pc.cumulative_sum(some.cast(pa.int64())), 1)
    return found.take(pc.if_else(some, places, pa.scalar(None, pa.int64())))


def reason(error: BaseException) -> str:
    """Return an error as one line, without the row numbers of Arrow's parsers."""
    words = str(error).split("\n")[0].replace(" in row 0", "").replace("Row #1: ", "")
    words = words.removeprefix("JSON parse error: ").replace("Column(/v", "Column(")
    words = words.removeprefix("CSV parse error: ").rstrip(". ")
    return (words or type(error).__name__)[:REASON_LENGTH_MAX]


def struct_of(schema: pa.Schema) -> pa.DataType:
    return pa.struct(list(schema))


def bytes_of(array: pa.Array) -> pa.Buffer:
    """Return the bytes of all values, concatenated."""
    data, places = array.buffers()[2], array.buffers()[1]
    if data is None or not len(array):
        return pa.py_buffer(b"")
    held = memoryview(places).cast("b").cast("i")
    first, last = held[array.offset], held[array.offset + len(array)]
    return data.slice(first, last - first)


def is_moment(words: str, kind: pa.DataType) -> bool:
    """Return whether a text can be cast to this date or timestamp type.

    A time zone in a text for a type without one is accepted.
    """
    kinds = [kind] if pa.types.is_date(kind) else [pa.timestamp("us"), pa.timestamp("us", "UTC")]
    for each in kinds:
        try:
            pa.scalar(words, pa.string()).cast(each)
            return True
        except pa.ArrowInvalid:
            pass
    return False
