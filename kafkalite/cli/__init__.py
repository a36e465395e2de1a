"""The command line: `kafkalite WORD …`.

A word is a noun with verbs (`kafkalite topic create`: cli/topic.py, function create) or a verb
without a noun (`kafkalite start`: cli/broker.py, function start).  Only the module of the word is
imported, so that each command starts quickly.

An error is one line on stderr and an exit code: 1 the command failed, 2 the command line is
invalid, 130 interrupted by Ctrl-C, 141 stdout was closed.  KAFKALITE_TRACE=1 prints the traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from kafkalite.cli.command import COMMANDS, Command, UsageError, described, nearest, warn
from kafkalite.errors import KafkaError, Refusal

MODULES = {
    "start": "broker",
    "status": "broker",
    "restart": "broker",
    "stop": "broker",
    "demo": "demo",
    "produce": "messages",
    "consume": "messages",
    "top": "top",
    "bench": "bench",
    "topic": "topic",
    "replica": "replica",
    "group": "group",
    "transaction": "transaction",
    "node": "node",
    "config": "config",
    "profile": "profiles",
    "doctor": "doctor",
    "completion": "completion",
    "log": "log",
    "metrics": "metrics",
    "gateway": "gateway",
    "cleaner": "cleaner",
    "spark": "spark",
    "shell-tools": "shell_tools",
}
"""The module of each word, in the order of the help page."""

PAGES = (*MODULES, "--help", "--version")

HELP = ("--help", "-h", "help")

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    if argv is None and "_ARGCOMPLETE" in os.environ:  # a shell requests completions
        from kafkalite.cli.completion import complete

        complete(MODULES, commands_of)
    return guarded(lambda: run(sys.argv[1:] if argv is None else argv))


def guarded(run: Callable[[], int]) -> int:
    """Run a function, and turn every exception into an error message and an exit code."""
    open_streams()
    try:
        code = run()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The interpreter flushes stdout when it exits, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Refusal as refusal:
        return failed(refusal, str(refusal), refusal.exit_code)
    except KafkaError as error:
        return failed(error, str(error), 1)
    except OSError as error:
        return failed(error, f"{error.filename or 'system'}: {error.strerror or error}", 1)
    except Exception as error:
        message = f"internal error: {type(error).__name__}: {error}"
        return failed(error, f"{message} (set KAFKALITE_TRACE=1 to print the traceback)", 1)


def open_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as under some service managers.

    Otherwise the next file or socket would get descriptor 0, 1 or 2, and output would go into it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free descriptor: this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # like stderr, for terminals without UTF-8


def run(argv: Sequence[str]) -> int:
    """Find the command that the first words name, and run it with the remaining arguments."""
    word, *arguments = argv or ["--help"]
    if word == "help" and arguments:
        word, *arguments = [*arguments, "--help"]
    if word in HELP:
        print(overview())
        return 0
    if word == "--version":
        from kafkalite.version import __version__

        print("kafkalite", __version__)
        return 0
    if word not in MODULES:
        kind = "flag" if word.startswith("-") else "command"
        raise UsageError(f"unknown {kind} {word}{nearest(word, PAGES)} (try: kafkalite --help)")
    verbs = commands_of(word)
    if word in verbs:
        return verbs[word].run(f"kafkalite {word}", arguments)
    verb, *arguments = arguments or [""]
    if verb in HELP:
        print(noun_page(word, verbs))
        return 0
    if verb not in verbs:
        known = ", ".join(verbs)
        wrong = f"unknown command {word} {verb}{nearest(verb, verbs)}" if verb else "no command"
        raise UsageError(f"{wrong}; the commands of kafkalite {word} are: {known}")
    return verbs[verb].run(f"kafkalite {word} {verb}", arguments)


def commands_of(word: str) -> dict[str, Command]:
    """Import the module of a noun and return its commands by name."""
    module = f"{__name__}.{MODULES[word]}"
    import_module(module)
    return COMMANDS[module]


def overview() -> str:
    """Return the page of `kafkalite --help`: every command with its summary."""
    commands: dict[str, Command] = {}
    for word in MODULES:
        verbs = commands_of(word)
        if word in verbs:
            commands[word] = verbs[word]
        else:
            commands |= {f"{word} {name}": verb for name, verb in verbs.items()}
    return "\n".join(
        [
            "usage: kafkalite COMMAND …",
            "",
            "Run and administer Apache Kafka on one host, without a JVM.",
            "",
            *summaries(commands),
            "",
            "Run kafkalite COMMAND --help for the flags and examples of a command.",
        ]
    )


def noun_page(word: str, verbs: dict[str, Command]) -> str:
    """Return the page of `kafkalite NOUN --help`: the noun's module docstring and its verbs."""
    opening, _ = described(sys.modules[f"{__name__}.{MODULES[word]}"].__doc__)
    opening = opening.removeprefix(f"kafkalite {word}: ")
    opening = opening[0].upper() + opening[1:]
    return "\n".join([f"usage: kafkalite {word} COMMAND …", "", opening, "", *summaries(verbs)])


def summaries(commands: Mapping[str, Command]) -> list[str]:
    """Return a line for each command: its name, in a column, and its summary."""
    width = max(map(len, commands))
    return [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]


def failed(error: BaseException, message: str, code: int) -> int:
    """Print an error, with the traceback if KAFKALITE_TRACE is set; return the exit code."""
    if os.environ.get("KAFKALITE_TRACE"):
        import traceback

        traceback.print_exception(error)
    warn(message)
    return code
