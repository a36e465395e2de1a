"""Commands: a function, its arguments in argparse's terms, and its docstring as help text.

    @command(
        argument("topic", help="the topic's name"),
        argument("-p", "--partitions", type=int, default=1, help="number of partitions"),
    )
    def create(topic: str, partitions: int) -> None:
        \"""Create a topic.

        Examples:
          kafkalite topic create flights -p 6
        \"""

The file is the noun, the function the verb: this one, in cli/topic.py, is `kafkalite topic create`.
Arguments are passed under their argparse names (`dest=` renames one).  The docstring before
`Examples:` is the description of the help page, the rest is its epilog.  A command prints its
result on stdout and messages on stderr; it returns None or its exit code, and raises Refusal for an
error.  The decorated function can be called directly, as tests do.

Every command imports this module, so it imports neither dataclasses nor inspect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from kafkalite.errors import Refusal

Function = TypeVar("Function", bound=Callable[..., Any])


class UsageError(Refusal):
    """The command line is invalid."""

    exit_code = 2


class Argument(NamedTuple):
    """An argument: the parameters of `ArgumentParser.add_argument`."""

    names: tuple[str, ...]
    options: dict[str, Any]


class Command(NamedTuple):
    """A verb: its function and its arguments."""

    name: str
    function: Callable[..., int | None]
    arguments: tuple[Argument, ...]

    @property
    def summary(self) -> str:
        """Return the first sentence of the docstring, for a list of commands."""
        return described(self.function.__doc__)[0].partition("\n")[0]

    def run(self, prog: str, argv: Sequence[str]) -> int:
        """Parse the arguments and call the function with them."""
        parser = self.parser(prog)
        parsed, unknown = parser.parse_known_args(permuted(argv, parser))
        for word in unknown:
            if word != "--":
                raise UsageError(unknown_argument(word, prog, parser))
        return self.function(**vars(parsed)) or 0

    def parser(self, prog: str) -> Parser:
        opening, examples = described(self.function.__doc__)
        parser = Parser(
            prog=prog,
            description=opening,
            epilog=examples,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for names, options in self.arguments:
            parser.add_argument(*names, **options)
        parser.add_argument("-h", "--help", action="help", help="show this help page and exit")
        return parser


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error as one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try: {self.prog} --help)")


COMMANDS: dict[str, dict[str, Command]] = {}
"""Module name to its commands; filled as the modules are imported."""


def argument(*names: str, **options: Any) -> Argument:
    """Return an argument of a command, from argparse's parameters."""
    return Argument(names, options)


def command(*arguments: Argument, name: str | None = None) -> Callable[[Function], Function]:
    """Return a decorator that makes a function a command of its module."""

    def register(function: Function) -> Function:
        verb = name or function.__name__
        verbs = COMMANDS.setdefault(function.__module__, {})
        assert verb not in verbs, f"{function.__module__} registers {verb!r} twice"
        assert function.__doc__, f"command {verb!r} has no docstring, which is its help text"
        verbs[verb] = Command(verb, function, arguments)
        return function

    return register


def printable(text: str) -> str:
    """Return the text if it is printable; the argument type of names."""
    # Bytes that are not UTF-8 become surrogates, which are not printable and crash librdkafka.
    if not text or not text.isprintable():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid name: it is empty or has unprintable characters"
        )
    return text


def utf8(text: str) -> str:
    """Return the text if it can be encoded as UTF-8; an argument type."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8") from None
    return text


def key_value(text: str) -> tuple[str, str]:
    """Return KEY=VALUE split at the first `=`; an argument type."""
    key, equals, value = utf8(text).partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the most similar word, or ""."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def described(docstring: str | None) -> tuple[str, str]:
    """Return a docstring's description and its examples, without indentation."""
    first, _, remaining = (docstring or "").strip().partition("\n")
    lines = remaining.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    text = "\n".join([first, *(line[margin:].rstrip() for line in lines)]).strip()
    opening, mark, examples = text.partition("Examples:")
    return opening.rstrip(), mark + examples


def permuted(argv: Sequence[str], parser: Parser) -> list[str]:
    """Return the arguments in an order that argparse parses as getopt would.

    Flags are moved to the front.  `-f -%s` becomes `-f-%s`: argparse parses any word with a dash as
    a flag, while getopt uses the word after a flag with a value as that value.  A word that *is*
    one of the command's flags stays a flag, so that a missing value is an error.  If the last
    argument is another program's command line, words from the first non-flag on are not moved.
    """
    known = parser._option_string_actions
    has_remainder = any(action.nargs == argparse.REMAINDER for action in parser._actions)
    flags: list[str] = []
    others: list[str] = []
    remaining = iter(argv)
    for word in remaining:
        if word == "--":
            others += remaining
        elif word == "-" or not word.startswith("-"):
            others.append(word)
            if has_remainder:
                others += remaining
        elif word[:2] in known and word[2:3] == "=" and known[word[:2]].nargs is None:
            # getopt includes the sign in the value: `-K=` sets the delimiter `=`.
            flags += [word[:2], word[2:]]
        elif word not in known or known[word].nargs is not None:
            flags.append(word)
        else:
            value = next(remaining, None)
            if value is None:
                flags.append(word)
            elif not value.startswith("-") or value in ("-", *known):
                flags += [word, value]
            else:
                flags.append(f"{word}={value}" if word.startswith("--") else word + value)
    return [*flags, "--", *others] if others else flags


def unknown_argument(word: str, prog: str, parser: Parser) -> str:
    """Return the error text for an unknown argument."""
    if not word.startswith("-"):
        return f"unexpected argument {word!r} (try: {prog} --help)"
    flag = word.partition("=")[0]
    return f"unknown flag {flag}{nearest(flag, parser._option_string_actions)} (try: {prog} --help)"


def columns(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a plain table, with a dash for each missing value."""
    cells = [[*titles], *(["-" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def write_stdout(data: bytes) -> None:
    """Write all bytes to stdout, unbuffered.

    With PYTHONUNBUFFERED, a single write may be cut short by a signal.
    """
    left = memoryview(data)
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def print_stderr(message: str) -> None:
    """Print a message on stderr."""
    print(message, file=sys.stderr)


def warn(message: str) -> None:
    """Print a warning on stderr, with the name of the program."""
    print_stderr(f"kafkalite: {message}")
