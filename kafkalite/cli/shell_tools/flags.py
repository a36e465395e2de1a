"""Flags of Kafka's own tools: `--flag value` or `--flag=value`, in any order.

A flag is written out in full, since Kafka knows no abbreviations; one dash does for two.  What
follows a flag that wants a value is its value, whatever it looks like.  A flag whose value may be
left out takes the next word unless that looks like a flag.

What a tool of Kafka's 4 takes and has no meaning here, and what earlier ones took, is said in one
sentence with what to do instead; nothing is taken and then forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kafkalite.cli.command import nearest, warn
from kafkalite.errors import Refusal


class Flag(NamedTuple):
    """A flag of a tool; without a name for its value it is a switch."""

    name: str
    value: str = ""
    words: str = ""
    kind: Callable[[str], Any] = str
    repeated: bool = False
    optional: bool = False
    refused: str = ""
    """Why it is not taken; the sentence goes on after the flag's name."""
    instead: str = ""
    """The flag of Kafka 4 that has taken its place; it is taken as that one, and said so."""

    @property
    def shown(self) -> str:
        """Return the flag with its value, for a help page."""
        value = f"[{self.value}]" if self.optional else self.value
        return f"--{self.name} {value}".rstrip()


SWITCH = ""


class ShellTool(NamedTuple):
    """One of Kafka's tools: its flags and its function."""

    flags: Sequence[Flag]
    run: Callable[[ParsedFlags], int | None]


class ParsedFlags:
    """The flags of a command line with their values."""

    def __init__(self, values: dict[str, list[Any]], words: Sequence[str]) -> None:
        self._values = values
        self.words = words

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def one(self, name: str, default: Any = None) -> Any:
        """Return a flag's value, `default` without the flag, None without its value."""
        return self._values[name][0] if name in self._values else default

    def all(self, name: str) -> list[Any]:
        """Return all values of a flag that may be repeated."""
        return self._values.get(name, [])

    def action(self, *names: str) -> str:
        """Return the one of these flags that is given; raise Refusal unless it is exactly one."""
        given = [name for name in names if name in self]
        if len(given) != 1:
            raise Refusal(f"give exactly one of {listed(names)}")
        return given[0]

    def requires(self, *names: str, why: str = "") -> None:
        """Raise Refusal unless all of these flags are given."""
        for name in names:
            if name not in self:
                raise Refusal(f"--{name} is missing{why}")

    def excludes(self, name: str, others: Iterable[str]) -> None:
        """Raise Refusal if the flag is given together with one of the others."""
        for other in others:
            if name in self and other in self:
                raise Refusal(f"--{other} cannot be used with --{name}")

    def only_with(self, name: str, *others: str) -> None:
        """Raise Refusal if the flag is given without one of the others."""
        if name in self and not any(other in self for other in others):
            raise Refusal(f"--{name} is only for {listed(others)}")


def whole(text: str) -> int:
    """Parse a whole number, as Java does."""
    sign = text[1:] if text[:1] in ("-", "+") else text
    if not (sign.isascii() and sign.isdecimal()) or len(sign) > 19:
        raise ValueError("a whole number")
    return int(text)


def key_value(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE."""
    key, _, value = text.partition("=")
    if not key.strip() or "=" not in text:
        raise ValueError("KEY=VALUE")
    return key.strip(), value


def property_value(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE of a property; without `=`, the value is empty."""
    key, _, value = text.partition("=")
    return key, value


def parse(words: Sequence[str], flags: Sequence[Flag]) -> ParsedFlags:
    """Parse a command line; raise Refusal with a message if it is invalid."""
    known = {flag.name: flag for flag in flags}
    values: dict[str, list[Any]] = {}
    warned: set[str] = set()
    remaining = deque(words)
    while remaining:
        word = remaining.popleft()
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        if not word.startswith("-") or not name:
            raise Refusal(f"{word!r} follows no flag that wants a value")
        flag = known.get(name)
        if flag is None:
            raise Refusal(unknown(name, known))
        if flag.refused:
            raise Refusal(f"--{name} {flag.refused}")
        if flag.instead:
            if name not in warned:
                warn(f"--{name} is deprecated: use --{flag.instead}")
            warned.add(name)
            name, flag = flag.instead, known[flag.instead]
        found = values.setdefault(name, [])
        if found and not flag.repeated:
            raise Refusal(f"--{name} is given twice")
        found.append(value_of(flag, text if equals else None, remaining))
    return ParsedFlags(values, words)


def value_of(flag: Flag, text: str | None, remaining: deque[str]) -> Any:
    """Return a flag's value: the text after its `=`, or the next word."""
    if not flag.value:
        if text is not None:
            raise Refusal(f"--{flag.name} takes no value")
        return None
    if text is None and remaining and not (flag.optional and remaining[0].startswith("-")):
        text = remaining.popleft()
    if text is None:
        if flag.optional:
            return None
        raise Refusal(f"--{flag.name} wants a value: {flag.value}")
    try:
        return flag.kind(text)
    except ValueError as wanted:
        raise Refusal(f"--{flag.name} wants {wanted}, not {text!r}") from None


REMOVED_FLAGS = {
    "zookeeper": "went with ZooKeeper: use --bootstrap-server",
    "broker-list": "is Kafka 3's: use --bootstrap-server",
    "whitelist": "is Kafka 3's: use --include",
    "blacklist": "is Kafka 2's: use --include with a pattern that leaves out",
    "new-consumer": "is Kafka 1's: leave it out",
    "max-wait-ms": "is Kafka 3's: leave it out",
    "offsets": "is Kafka 2's: use --time",
    "delete-config": "is kafka-configs.sh's",
    "force": "is Kafka 3's: leave it out",
    "authorizer": "is Kafka 3's: leave it out",
}
"""What scripts of earlier days say, where the tool of today does not know it."""


def unknown(name: str, known: dict[str, Flag]) -> str:
    if name in REMOVED_FLAGS:
        return f"--{name} {REMOVED_FLAGS[name]}"
    kept = [f"--{other}" for other, flag in known.items() if is_shown(flag)]
    return f"unknown flag --{name}{nearest(f'--{name}', kept)} (--help shows them)"


def is_shown(flag: Flag) -> bool:
    """Return True if help pages name the flag."""
    return not flag.refused and not flag.instead


def listed(names: Sequence[str]) -> str:
    *first, last = [f"--{name}" for name in names]
    return f"{', '.join(first)} or {last}" if first else last


def page(name: str, opening: str, examples: str, flags: Sequence[Flag]) -> str:
    """Return a tool's help page."""
    lines = [line for flag in flags if is_shown(flag) for line in entry(flag)]
    return "\n".join([f"usage: {name} --FLAG VALUE …", "", opening, "", *lines, "", examples])


def entry(flag: Flag) -> Iterator[str]:
    width = 34
    if len(flag.shown) < width - 2:
        yield f"  {flag.shown:<{width}}{flag.words}"
    else:
        yield f"  {flag.shown}"
        yield f"  {'':<{width}}{flag.words}"
