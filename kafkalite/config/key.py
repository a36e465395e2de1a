"""ConfigKey: one configuration key, with its name, type, default, bounds and documentation.

    SEGMENT_BYTES = TOPIC.declare(
        "segment.bytes", Type.INT, 1 << 30,
        \"""Maximum size of a segment file.\""",
        check=at_least(1 << 20),
        overrides="log.segment.bytes",
    )

A value is text in files, flags and requests, and typed everywhere else; only `parse` and `format`
convert between the two.  A value that cannot be parsed or does not pass the key's check raises
InvalidConfig, which names the key, the value and what is allowed.

A topic's key names the broker keys it overrides, the most exact first.  If the name of one ends in
another unit (`log.retention.hours`), its value is converted.
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
    """The type of a value; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(enum.Enum):
    """The time at which a value may change, in the terms of Kafka's documentation."""

    READ_ONLY = "read-only"
    """Never: sockets, processes or placement depend on it, which are created once."""
    CLUSTER_WIDE = "cluster-wide"
    """While the broker runs; a broker's key for all nodes or for one of them."""
    CLUSTER_ONLY = "cluster-only"
    """While the broker runs; a value set for node 0 is that of all nodes."""


# Limits of what is looked up and quoted from a request.
NAME_LENGTH_MAX = 100
TEXT_LENGTH_MAX = 10_000
"""Maximum length of a value that is set while the broker runs."""
QUOTED_LENGTH_MAX = 60


class KeyName(NamedTuple):
    """A name under which a value may be set, and its unit as a multiple of the key's unit."""

    name: str
    factor: int


class Check(Generic[T_contra]):
    """A condition on a typed value, with the words that complete `… must be`."""

    def __init__(self, words: str, holds: Callable[[T_contra], bool]) -> None:
        self.words = words
        self.holds = holds


class ConfigKey(Generic[T]):
    """One declared key; keys are compared by identity."""

    def __init__(
        self,
        name: str,
        type: Type,
        default: T,
        doc: str,
        *,
        check: Check[Any] | None,
        overrides: str | tuple[str, ...],
        update: UpdateMode,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.doc = " ".join(doc.split())
        self.check = check
        self.overrides = (overrides,) if isinstance(overrides, str) else overrides
        self.update = update
        others = [other for other in self.overrides if other != name]
        self.names = (KeyName(name, 1), *(KeyName(other, units_in(other)) for other in others))
        """Names under which the value may be set: the key's own, then those it overrides."""

    @property
    def dynamic(self) -> bool:
        """True if its value may change while the broker runs."""
        return self.update is not UpdateMode.READ_ONLY

    @property
    def sensitive(self) -> bool:
        """True if the value must never be shown."""
        return self.type is Type.PASSWORD

    def parse(self, text: str) -> T:
        """Return the typed value of a text; raise InvalidConfig if it is not valid."""
        text = text.strip()
        shown = "the given value" if self.sensitive else quoted(text)
        try:
            value: T = PARSERS[self.type](text)
        except ValueError as words:
            raise InvalidConfig(f"{self.name} must be {words}, not {shown}.") from None
        if self.check is not None and not self.check.holds(value):
            raise InvalidConfig(f"{self.name} must be {self.check.words}, not {shown}.")
        return value

    def format(self, value: T) -> str:
        """Return the text of a typed value, which `parse` converts back to the same value."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return str(value).replace("e+", "E")  # as in Java: 1.7976931348623157E308
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def __repr__(self) -> str:
        return f"<key {self.name}>"


class Scope(dict[str, ConfigKey[Any]]):
    """The keys of one kind of resource, by name; `update` is the default for its keys."""

    def __init__(self, owner: str, update: UpdateMode = UpdateMode.READ_ONLY) -> None:
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
        update: UpdateMode | None = None,
    ) -> ConfigKey[T]:
        """Add a key; its name must be new, and its default must pass its check."""
        assert name not in self, f"{name} is declared twice"
        key = ConfigKey(
            name, type, default, doc,
            check=check, overrides=overrides, update=update or self.keys_update,
        )  # fmt: skip
        assert default is None or key.parse(key.format(default)) == default, f"{name}: its default"
        self[name] = key
        return key

    def leave_out(self, *names: str, because: str) -> None:
        """Declare why these keys do not exist; a name that ends in a dot is a prefix."""
        self.left_out |= dict.fromkeys(names, because)

    def parse(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the typed values of texts by key name; raise InvalidConfig for an unknown name."""
        return {name: self.named(name).parse(text) for name, text in texts.items()}

    def named(self, name: str) -> ConfigKey[Any]:
        """Return the key of this name; raise InvalidConfig with similar names if it is unknown."""
        if name in self:
            return self[name]
        if len(name) > NAME_LENGTH_MAX:
            raise InvalidConfig(
                f"{quoted(name)} is not a configuration key: names have at most"
                f" {NAME_LENGTH_MAX} characters."
            )
        for left_out, because in self.left_out.items():
            if name == left_out or (left_out.endswith(".") and name.startswith(left_out)):
                raise InvalidConfig(f"{name} is not supported: {because}.")
        near = difflib.get_close_matches(name, self, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        if self.owner in ("topic", "group"):
            # Kafka's words, which programs search for.
            raise InvalidConfig(f"Unknown {self.owner} config name: {name}{hint if near else ''}")
        raise InvalidConfig(f"{name} is not a configuration key of a {self.owner}{hint}")


def units_in(name: str) -> int:
    """Return the unit in which this name counts, as a multiple of the key's unit."""
    return UNIT_MS.get(name.rpartition(".")[2], 1)


def quoted(text: str) -> str:
    """Return a text quoted and shortened for an error message."""
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
            raise ValueError("an integer")
        if not -bound <= int(text) < bound:
            raise ValueError(f"an integer of at most {bits} bits")
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


class OnlyValue(Check[object]):
    """Accepts the only value supported so far; `because` is the reason why others are not."""

    def __init__(self, value: object, because: str) -> None:
        shown = ",".join(value) if isinstance(value, tuple) else str(value).lower()
        super().__init__(f"{shown or 'empty'} ({because})", lambda given: given == value)
