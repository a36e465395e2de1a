"""Rules on files: docstrings, stubs, and the length of files, lines and functions."""

import ast
import re

from tests.architecture.sources import ext_files, python_files, shown, source_files
from tools.architecture import PACKAGE, definitions

LINES_MAX = 600
FUNCTION_LINES_MAX = 60
DOCSTRING = re.compile(r'^ *"""(?:[^"\\]|\\.|"(?!""))*"""\n', re.M)
COLUMNS_MAX = 100


def modules_have_docstrings(tree):
    for path in python_files(tree, PACKAGE, "benchmarks", "tools", "spark"):
        if not ast.get_docstring(ast.parse(path.read_text())):
            yield f"{shown(tree, path)} has no module docstring: add its purpose and contract"
    for path in ext_files(tree):
        if not re.match(r'"""|#|/\*|//', path.read_text()):
            yield f"{shown(tree, path)} has no comment at the top: add its purpose and contract"


def compiled_modules_have_stubs(tree):
    for name, path in tree.compiled.items():
        stub = tree.root / PACKAGE / "_ext" / f"{path.stem}.pyi"
        if not stub.exists():
            yield f"{name} has no stub: write {shown(tree, stub)}"


def files_are_short(tree):
    """A file has fewer lines than LINES_MAX, without docstrings: public ones have long sections."""
    for path in source_files(tree):
        text = DOCSTRING.sub("", path.read_text())
        count = len(text.splitlines())
        if count >= LINES_MAX:
            yield (
                f"{shown(tree, path)} has {count} lines, {LINES_MAX} is the limit:"
                " move one of its nouns to a file of its own"
            )


def lines_are_short(tree):
    for path in source_files(tree):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if len(line) > COLUMNS_MAX:
                yield (
                    f"{shown(tree, path)}:{number} is {len(line)} columns wide:"
                    f" break it before {COLUMNS_MAX}"
                )


def functions_are_short(tree):
    for path in source_files(tree):
        for name, line, count in functions(path):
            if count >= FUNCTION_LINES_MAX:
                yield (
                    f"{shown(tree, path)}:{line} {name} has {count} lines,"
                    f" {FUNCTION_LINES_MAX} is the limit: split it into named steps"
                )


def functions(path):
    """Yield name, line and length of each function of a Python or Cython file."""
    if path.suffix == ".py":
        for each in definitions(path):
            if not each.is_class:
                yield each.name, each.line, each.end_line - each.line + 1
    elif path.suffix in (".pyx", ".pxd", ".pxi"):
        yield from cython_functions(path.read_text().splitlines())


def cython_functions(lines):
    """Yield the functions by indentation: each ends before the next line indented no deeper."""
    head = re.compile(r"(\s*)(?:def|cp?def\s+(?!class|struct|enum|extern|union)[^=(]*?)\s*(\w+)\(")
    for start, line in enumerate(lines):
        if not (found := head.match(line)):
            continue
        margin, last = len(found[1]), start
        for number in range(start + 1, len(lines)):
            code = lines[number].strip()
            outside = len(lines[number]) - len(lines[number].lstrip()) <= margin
            if code and outside and not code.startswith((")", "#")):
                break
            last = number if code else last
        yield found[2], start + 1, last - start + 1


RULES = (
    modules_have_docstrings,
    compiled_modules_have_stubs,
    files_are_short,
    lines_are_short,
    functions_are_short,
)

BREACHES = [
    (modules_have_docstrings, {"kafkalite/clock.py": "import time"}, "has no module docstring"),
    (modules_have_docstrings, {"ext/log/walk.pyx": "cdef int x"}, "has no comment at the top"),
    (compiled_modules_have_stubs, {"ext/log/walk.pyx": ""}, "write kafkalite/_ext/walk.pyi"),
    (files_are_short, {"tests/test_long.py": "a = 1\n" * LINES_MAX}, "has 600 lines"),
    (lines_are_short, {"ext/log/walk.pyx": "#" * 101}, "ext/log/walk.pyx:1 is 101 columns wide"),
    (
        functions_are_short,
        {"tools/draw.py": "def f():\n" + "    a = 1\n" * (FUNCTION_LINES_MAX - 1)},
        "tools/draw.py:1 f has 60 lines",
    ),
    (
        functions_are_short,
        {
            "ext/log/walk.pyx": "cdef inline int f(\n    int a,\n) noexcept nogil:\n"
            + "    a = 1\n\n" * 57
            + "    return a\n"
            + "\n\nprint()\n"
        },
        "ext/log/walk.pyx:1 f has 118 lines",
    ),
]
