"""A configuration key: its name, type, default, bounds and words, said once.

    SEGMENT_BYTES = TOPIC.declare(
        "segment.bytes", Type.INT, 1 << 30,
        \"""The size at which a segment is closed and a new one begun.\""",
        check=at_least(1 << 20),
        overrides="log.segment.bytes",
    )

A value is text where people and the wire write it, and typed everywhere else: `parse` and
`format` are the only doors between the two.  What cannot be parsed or does not pass the key's
check is an InvalidConfig whose sentence names the key, the value and what would do.

A topic's key names the broker's keys it overrides, the most exact first.  Where those count in
another unit their name ends in it (`log.retention.hours`), and their value is converted.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from kafkalite.errors import InvalidConfig

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

UNIT_MS = {"minutes": 60_000, "hours": 3_600_000}


class Type(enum.IntEnum):
    """What a value is; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(enum.Enum):
    """When a key's value may change, in the words of Kafka's documentation."""

    READ_ONLY = "read-only"
    """Never: it is in sockets, processes or placement, which are made once."""
    CLUSTER_WIDE = "cluster-wide"
    """While the broker runs; a broker's key for all nodes or for one."""
    CLUSTER_ONLY = "cluster-only"
    """The same, but what is set of node 0 holds for the others as well, and they have no own."""


# What comes from a client is looked up and quoted only so far.
NAME_LENGTH_MAX = 100
TEXT_LENGTH_MAX = 10_000
"""How long a value may be that is set while the broker runs."""
QUOTED_LENGTH_MAX = 60


class Place(NamedTuple):
    """A name under which a key's value may stand, and how many of the key's units one is."""

    name: str
    factor: int


class Check(Generic[T_contra]):
    """A condition on a typed value, with the words that complete `… must be`."""

    def __init__(self, words: str, holds: Callable[[T_contra], bool]) -> None:
        self.words = words
        self.holds = holds


class Key(Generic[T]):
    """One declared key; two keys are equal only when they are the same."""

    def __init__(
        self,
        name: str,
        type: Type,
        default: T,
        doc: str,
        *,
        check: Check[Any] | None,
        overrides: str | tuple[str, ...],
        update: Update,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.doc = " ".join(doc.split())
        self.check = check
        self.overrides = (overrides,) if isinstance(overrides, str) else overrides
        self.update = update
        others = [place for place in self.overrides if place != name]
        self.places = (Place(name, 1), *(Place(other, units_in(other)) for other in others))
        """Where to look for the value: the key's own name, then those it overrides."""

    @property
    def dynamic(self) -> bool:
        """Whether its value may change while the broker runs."""
        return self.update is not Update.READ_ONLY

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is Type.PASSWORD

    def parse(self, text: str) -> T:
        """The typed value of a text, once it has passed the key's check."""
        text = text.strip()
        shown = "what was given" if self.sensitive else quoted(text)
        try:
            value: T = PARSERS[self.type](text)
        except ValueError as words:
            raise InvalidConfig(f"{self.name} must be {words}, not {shown}.") from None
        if self.check is not None and not self.check.holds(value):
            raise InvalidConfig(f"{self.name} must be {self.check.words}, not {shown}.")
        return value

    def format(self, value: T) -> str:
        """The text of a typed value; parsing it gives the value again."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def __repr__(self) -> str:
        return f"<key {self.name}>"


class Scope(dict[str, Key[Any]]):
    """The keys that one kind of thing has, by name; `update` holds for those that do not say."""

    def __init__(self, owner: str, update: Update = Update.READ_ONLY) -> None:
        super().__init__()
        self.owner = owner
        self.keys_update = update
        self.left_out: dict[str, str] = {}

    def declare(
        self,
        name: str,
        type: Type,
        default: T,
        doc: str,
        *,
        check: Check[Any] | None = None,
        overrides: str | tuple[str, ...] = (),
        update: Update | None = None,
    ) -> Key[T]:
        """Enter a key; its default must pass its own check, and its name be new."""
        assert name not in self, f"{name} is declared twice"
        key = Key(
            name, type, default, doc,
            check=check, overrides=overrides, update=update or self.keys_update,
        )  # fmt: skip
        assert default is None or key.parse(key.format(default)) == default, f"{name}: its default"
        self[name] = key
        return key

    def leave_out(self, *names: str, because: str) -> None:
        """Say why there are no keys of these names; a name that ends in a dot is a beginning."""
        self.left_out |= dict.fromkeys(names, because)

    def parse(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The typed values of texts by key name; an unknown name is refused."""
        return {name: self.named(name).parse(text) for name, text in texts.items()}

    def named(self, name: str) -> Key[Any]:
        """The key of this name; InvalidConfig, with the names near it, when there is none."""
        if name in self:
            return self[name]
        if len(name) > NAME_LENGTH_MAX:
            raise InvalidConfig(f"No configuration key has a name as long as {quoted(name)}.")
        for left_out, because in self.left_out.items():
            if name == left_out or (left_out.endswith(".") and name.startswith(left_out)):
                raise InvalidConfig(f"{name} is not a key here: {because}.")
        near = difflib.get_close_matches(name, self, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        if self.owner in ("topic", "group"):
            # Kafka's words, which programs look for.
            raise InvalidConfig(f"Unknown {self.owner} config name: {name}{hint if near else ''}")
        raise InvalidConfig(f"{name} is not a configuration key of a {self.owner}{hint}")


def units_in(name: str) -> int:
    """How many of a key's units one is in which this name counts."""
    return UNIT_MS.get(name.rpartition(".")[2], 1)


def quoted(text: str) -> str:
    """A text as a sentence may repeat it."""
    return repr(text if len(text) <= QUOTED_LENGTH_MAX else f"{text[:QUOTED_LENGTH_MAX]}…")


def parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def parse_integer(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        bound = 1 << (bits - 1)
        digits = text.removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 40):
            raise ValueError("a whole number")
        if not -bound <= int(text) < bound:
            raise ValueError(f"a whole number of at most {bits} bits")
        return int(text)

    return parse


def parse_double(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def parse_list(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",")) if text else ()


PARSERS: dict[Type, Callable[[str], Any]] = {
    Type.BOOLEAN: parse_boolean,
    Type.STRING: str,
    Type.SHORT: parse_integer(16),
    Type.INT: parse_integer(32),
    Type.LONG: parse_integer(64),
    Type.DOUBLE: parse_double,
    Type.LIST: parse_list,
    Type.CLASS: str,
    Type.PASSWORD: str,
}


def at_least(low: float) -> Check[float]:
    return Check(f"at least {low}", lambda value: value >= low)


def at_most(high: float) -> Check[float]:
    return Check(f"at most {high}", lambda value: value <= high)


def between(low: float, high: float) -> Check[float]:
    return Check(f"between {low} and {high}", lambda value: low <= value <= high)


def one_of(*values: str) -> Check[str]:
    return Check(f"one of {', '.join(values)}", lambda value: value in values)


class Only(Check[object]):
    """The one value there is so far; the sentence says what is missing for the others."""

    def __init__(self, value: object, because: str) -> None:
        shown = ",".join(value) if isinstance(value, tuple) else str(value).lower()
        super().__init__(f"{shown or 'empty'} ({because})", lambda given: given == value)
