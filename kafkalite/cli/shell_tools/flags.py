"""Flags of Kafka's own tools: `--flag value` or `--flag=value`, in any order.

A tool may have commands: its own flags come first, then the name of a command, then the flags of
the command.

A flag must be complete, since Kafka accepts no abbreviations; one dash is equivalent to two.  The
word after a flag with a value is its value, even with a leading dash.  If the value is optional,
the next word is the value unless it begins with a dash.

Flags of Kafka 4 that have no effect here, and flags of earlier versions, are rejected with an error
that names the replacement.  No flag is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kafkalite.cli.command import nearest, warn
from kafkalite.errors import Refusal


class Flag(NamedTuple):
    """A flag of a tool; a switch if it has no name for a value."""

    name: str
    value: str = ""
    help: str = ""
    kind: Callable[[str], Any] = str
    repeated: bool = False
    optional: bool = False
    refused: str = ""
    """Reason for which it is rejected: the error text after the name of the flag."""
    instead: str = ""
    """The flag of Kafka 4 that replaces it; it is parsed as that one, with a warning."""

    @property
    def shown(self) -> str:
        """Return the flag with its value, for a help page."""
        value = f"[{self.value}]" if self.optional else self.value
        return f"--{self.name} {value}".rstrip()


SWITCH = ""


class ToolCommand(NamedTuple):
    """A command of a tool: its description and its flags."""

    help: str
    flags: Sequence[Flag] = ()


class ShellTool(NamedTuple):
    """One of Kafka's tools: its flags, its function and its commands."""

    flags: Sequence[Flag]
    run: Callable[[ParsedFlags], int | None]
    commands: Mapping[str, ToolCommand] = MappingProxyType({})


class ParsedFlags:
    """The flags of a command line with their values, and the command of a tool with commands."""

    def __init__(self, values: dict[str, list[Any]], command: str = "") -> None:
        self._values = values
        self.command = command

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def one(self, name: str, default: Any = None) -> Any:
        """Return a flag's value, `default` without the flag, None without its value."""
        return self._values[name][0] if name in self._values else default

    def all(self, name: str) -> list[Any]:
        """Return all values of a flag that may be repeated."""
        return self._values.get(name, [])

    def action(self, *names: str) -> str:
        """Return the flag of these that is set; raise Refusal unless exactly one is."""
        given = [name for name in names if name in self]
        if len(given) != 1:
            raise Refusal(f"specify exactly one of {listed(names)}")
        return given[0]

    def requires(self, *names: str, why: str = "") -> None:
        """Raise Refusal unless all of these flags are set."""
        for name in names:
            if name not in self:
                raise Refusal(f"missing required flag --{name}{why}")

    def excludes(self, name: str, others: Iterable[str]) -> None:
        """Raise Refusal if the flag is set together with one of the others."""
        for other in others:
            if name in self and other in self:
                raise Refusal(f"--{other} cannot be used with --{name}")

    def only_with(self, name: str, *others: str) -> None:
        """Raise Refusal if the flag is set without one of the others."""
        if name in self and not any(other in self for other in others):
            raise Refusal(f"--{name} requires {listed(others)}")


def whole(text: str) -> int:
    """Parse a whole number, as Java does."""
    sign = text[1:] if text[:1] in ("-", "+") else text
    if not (sign.isascii() and sign.isdecimal()) or len(sign) > 19:
        raise ValueError("an integer")
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


def parse(
    arguments: Sequence[str],
    flags: Sequence[Flag],
    commands: Mapping[str, ToolCommand] = MappingProxyType({}),
) -> ParsedFlags:
    """Parse a command line; raise Refusal with a message if it is invalid."""
    values: dict[str, list[Any]] = {}
    remaining = deque(arguments)
    take_flags(remaining, flags, values)
    command = ""
    if commands and not ("help" in values or "version" in values):
        if not remaining:
            raise Refusal(f"specify a command: {', '.join(commands)}")
        command = remaining.popleft()
        if command not in commands:
            raise Refusal(f"unknown command {command!r}; the commands are {', '.join(commands)}")
        take_flags(remaining, commands[command].flags, values)
    if remaining:
        raise Refusal(f"unexpected argument {remaining[0]!r}: it is not the value of a flag")
    return ParsedFlags(values, command)


def take_flags(remaining: deque[str], flags: Sequence[Flag], values: dict[str, list[Any]]) -> None:
    """Move flags with their values from the words to `values`, up to a word that is no flag."""
    known = {flag.name: flag for flag in flags}
    warned: set[str] = set()
    while remaining:
        name, equals, text = remaining[0].removeprefix("-").removeprefix("-").partition("=")
        if not remaining[0].startswith("-") or not name:
            return
        remaining.popleft()
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
            raise Refusal(f"--{name} was specified more than once")
        found.append(value_of(flag, text if equals else None, remaining))


def value_of(flag: Flag, text: str | None, remaining: deque[str]) -> Any:
    """Return a flag's value: the text after its `=`, or the next word."""
    if not flag.value:
        if text is not None:
            raise Refusal(f"--{flag.name} does not take a value")
        return None
    if text is None and remaining and not (flag.optional and remaining[0].startswith("-")):
        text = remaining.popleft()
    if text is None:
        if flag.optional:
            return None
        raise Refusal(f"--{flag.name} requires a value: {flag.value}")
    try:
        return flag.kind(text)
    except ValueError as wanted:
        raise Refusal(f"--{flag.name} must be {wanted}, not {text!r}") from None


REMOVED_FLAGS = {
    "zookeeper": "is not a flag of Kafka 4: use --bootstrap-server",
    "broker-list": "is not a flag of Kafka 4: use --bootstrap-server",
    "whitelist": "is not a flag of Kafka 4: use --include",
    "blacklist": "is not a flag of Kafka 4: use --include with a pattern that excludes the topics",
    "new-consumer": "is not a flag of Kafka 4: omit it",
    "max-wait-ms": "is not a flag of Kafka 4: omit it",
    "offsets": "is not a flag of Kafka 4: use --time",
    "delete-config": "is a flag of kafka-configs.sh",
    "force": "is not a flag of Kafka 4: omit it",
    "authorizer": "is not a flag of Kafka 4: omit it",
}
"""Flags of earlier Kafka versions, with the error text after the name of the flag."""


def unknown(name: str, known: dict[str, Flag]) -> str:
    if name in REMOVED_FLAGS:
        return f"--{name} {REMOVED_FLAGS[name]}"
    shown_flags = [f"--{other}" for other, flag in known.items() if is_shown(flag)]
    return f"unknown flag --{name}{nearest(f'--{name}', shown_flags)} (see --help)"


def is_shown(flag: Flag) -> bool:
    """Return True if help pages name the flag."""
    return not flag.refused and not flag.instead


def listed(names: Sequence[str]) -> str:
    *first, last = [f"--{name}" for name in names]
    return f"{', '.join(first)} or {last}" if first else last


def page(name: str, opening: str, examples: str, tool: ShellTool) -> str:
    """Return a tool's help page."""
    lines = [line for flag in tool.flags if is_shown(flag) for line in entry(flag)]
    for command, (described, flags) in tool.commands.items():
        lines += ["", f"{command}: {described}"]
        lines += [line for flag in flags if is_shown(flag) for line in entry(flag)]
    usage = "--FLAG VALUE … COMMAND --FLAG VALUE …" if tool.commands else "--FLAG VALUE …"
    return "\n".join([f"usage: {name} {usage}", "", opening, "", *lines, "", examples])


def entry(flag: Flag) -> Iterator[str]:
    width = 34
    if len(flag.shown) < width - 2:
        yield f"  {flag.shown:<{width}}{flag.help}"
    else:
        yield f"  {flag.shown}"
        yield f"  {'':<{width}}{flag.help}"
