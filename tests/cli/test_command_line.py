"""Commands: found by name, help from the docstring, errors in one sentence."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from kafkalite.cli import COMMANDS, MODULES, commands_of, main
from kafkalite.cli.command import (
    Command,
    UsageError,
    argument,
    columns,
    command,
    described,
    key_value,
)
from kafkalite.errors import InvalidConfig, Refusal

WORDS = [
    [word] if word in verbs else [word, verb]
    for word in MODULES
    for verbs in [commands_of(word)]
    for verb in ([word] if word in verbs else verbs)
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_every_command_has_a_help_page_with_an_example(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    page = capsys.readouterr().out
    assert page.startswith(f"usage: kafkalite {' '.join(words)}")
    assert f"  kafkalite {' '.join(words)}" in page.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        (["-h"], "kafkalite COMMAND"),
        (["help", "topic"], "kafkalite topic COMMAND"),
        (["topic", "-h"], "kafkalite topic COMMAND"),
        (["help", "topic", "create"], "kafkalite topic create"),
        (["produce", "-h"], "kafkalite produce"),
    ],
)
def test_every_form_of_help_prints_the_page(words, page, capsys):
    with contextlib.suppress(SystemExit):
        assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"usage: {page} ")


def test_overview_names_every_command(capsys):
    assert main([]) == main(["--help"]) == 0
    page = capsys.readouterr().out
    assert all(f"  {' '.join(words)} " in page for words in WORDS)


def test_help_of_a_noun_names_its_verbs(capsys):
    assert main(["topic", "--help"]) == 0
    assert "describe" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["strat"], "unknown command strat; did you mean start?"),
        (["--versoin"], "unknown flag --versoin; did you mean --version?"),
        (["topic"], "no command; the commands of kafkalite topic are: "),
        (["topic", "crate"], "unknown command topic crate; did you mean create?"),
        (["topic", "list", "--jsno"], "unknown flag --jsno; did you mean --json?"),
        (["topic", "list", "a", "b"], "unexpected argument 'b'"),
        (["status", "a"], "unexpected argument 'a'"),
        (["topic", "create"], "arguments are required: TOPIC"),
        (["topic", "create", "t", "-p", "many"], "invalid int value: 'many'"),
        (["topic", "create", "t", "-c", "retention"], "'retention' is not of the form KEY=VALUE"),
        (["produce", "-t"], "-t/--topic: expected one argument"),
        (["produce", "-t", "-k", "x"], "-t/--topic: expected one argument"),
        (["produce", "-t", "t", "-l"], "-l requires files"),
        (["produce", "-t", "t", "-K", ""], "a delimiter must not be empty"),
        (["produce", "-t", "t", "-D", r"\q"], r"unknown escape \q"),
        (["consume", "-t", "t", "-o", "soon"], "'soon' is not a start position"),
        (["consume", "-t", "t", "-f", "%y"], "unknown token %y; the tokens are"),
        (["consume", "-t", "t", "-c", "-3"], "-c must not be negative: -3"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_command_line_is_one_line_and_exit_code_2(words, sentence, capsys):
    assert main(words) == 2
    result = capsys.readouterr()
    assert result.out == ""
    assert result.err.startswith("kafkalite: ")
    assert result.err.count("\n") == 1
    assert sentence in result.err


def entered(function, *arguments):
    """Add a command to the table, and remove it again."""
    command(*arguments)(function)
    return COMMANDS[function.__module__].pop(function.__name__)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (Refusal("no."), 1, "no."),
        (UsageError("not so."), 2, "not so."),
        (InvalidConfig("retention.ms is a number."), 1, "retention.ms is a number."),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "x: No such file or directory"),
        (ZeroDivisionError("division by zero"), 1, "internal error: ZeroDivisionError"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_error_is_one_line_with_its_exit_code(error, code, sentence, monkeypatch, capsys):
    def fail(argv):
        raise error

    monkeypatch.setattr("kafkalite.cli.run", fail)
    assert main(["whatever"]) == code
    result = capsys.readouterr().err
    assert sentence in result
    assert "Traceback" not in result


def test_trace_setting_prints_the_traceback(monkeypatch, capsys):
    monkeypatch.setenv("KAFKALITE_TRACE", "1")
    monkeypatch.setattr("kafkalite.cli.run", lambda argv: 1 // 0)
    assert main(["whatever"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_command_decorator_keeps_the_function():
    def greet(name: str, loud: bool) -> int:
        """Say hello.

        Examples:
          greet me
        """
        return len(name) + loud

    made = entered(greet, argument("name"), argument("--loud", action="store_true"))
    assert greet("x", False) == 1
    assert made.summary == "Say hello."
    assert made.run("kafkalite greet", ["you", "--loud"]) == 4


def test_duplicate_command_name_is_rejected():
    def start() -> None:
        """Start."""

    start.__module__ = "kafkalite.cli.broker"
    with pytest.raises(AssertionError, match="registers 'start' twice"):
        command()(start)


def values(given: list[str]) -> dict[str, object]:
    """Return the arguments of a function that has flags with values and without."""
    got: dict[str, object] = {}
    flags = [
        argument("-f", "--form", default=""),
        argument("-o", default=""),
        argument("-e", action="store_true"),
        argument("rest", nargs="*"),
    ]
    Command("c", lambda **words: got.update(words), tuple(flags)).run("c", given)
    return got


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        (["-f", "-%s"], "form", "-%s"),
        (["-f-%s"], "form", "-%s"),
        (["--form", "-%s x"], "form", "-%s x"),
        (["-o", "-5", "-e"], "o", "-5"),
        (["-o-5"], "o", "-5"),
        (["-f", "="], "form", "="),
        (["-f="], "form", "="),
        (["-f==x"], "form", "==x"),
        (["--form=x"], "form", "x"),
        (["-f", "-"], "form", "-"),
        (["-e", "a", "-o", "x", "b"], "rest", ["a", "b"]),
        (["--", "-f", "-5"], "rest", ["-f", "-5"]),
    ],
)
def test_flag_values_are_parsed_as_by_getopt(given, name, value):
    assert values(given)[name] == value


def test_key_value_is_split_at_the_first_equals_sign():
    assert key_value("a=b=c") == ("a", "b=c")
    assert key_value("a=") == ("a", "")


def test_docstring_becomes_description_and_examples():
    opening, examples = described("One.\n\n    Two.\n\n    Examples:\n      three\n    ")
    assert opening == "One.\n\nTwo."
    assert examples == "Examples:\n  three"


def test_columns_are_as_wide_as_their_cells():
    assert columns(["A", "B"], [["long", None], ["x", 1]]) == "A     B\nlong  -\nx     1"


def test_start_command_loads_no_client_or_terminal_package():
    code = (
        "import sys, kafkalite.cli as c; c.commands_of('start'); "
        "print([m for m in ('confluent_kafka', 'rich', 'asyncio', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_stream_is_replaced(closed):
    code = (
        "import os, sys, kafkalite.cli as c; c.guarded(lambda: 0);"
        "assert [s.fileno() for s in (sys.stdin, sys.stdout, sys.stderr)] == [0, 1, 2];"
        "assert os.open(os.devnull, os.O_RDONLY) > 2"
    )
    words = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    assert subprocess.run(words, check=False).returncode == 0


def test_command_without_standard_streams_succeeds():
    script = 'exec "$0" -m kafkalite config keys retention <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", script, sys.executable], check=False).returncode == 0


def test_help_is_printed_in_ascii_if_required():
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "kafkalite", "--help"]
    done = subprocess.run(words, capture_output=True, check=True, env=env)
    assert done.stdout.startswith(b"usage: kafkalite COMMAND \\u2026\n")
