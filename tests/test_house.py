"""Structure rules of the code base, and a proof for each rule that it can fail.

A rule is a function of the source tree that yields a message for each breach, with the remedy.
The rules' own tests follow below: small source trees that break one rule each.
"""

import ast
import itertools
import re
import subprocess
import sys
import textwrap
import tomllib

import pytest

from tools.house import BROKER_TOWER, FLOORS, GUESTS, PACKAGE, ROOT, House, Module, floor

LINES_MAX = 600
FUNCTION_LINES_MAX = 60
DOCSTRING = re.compile(r'^ *"""(?:[^"\\]|\\.|"(?!""))*"""\n', re.M)
COLUMNS_MAX = 100

INSTEAD = {
    "util": "name the file after the noun its functions serve",
    "helper": "name it after what it does, or put it into the file it helps",
    "common": "put each part on the lowest floor that needs it, under its own name",
    "base": "say what it is; prefer a function or a field to a class to inherit from",
    "impl": "the implementation has the plain name",
    "info": "say what is known: a description, a state, a size",
    "data": "say which: records, bytes, rows, a batch",
    "context": "pass what is needed under its own name",
}
THEIR_NAMES = {
    "DataLoss": "Spark's own word: failOnDataLoss",
}
CONNECTOR = "pyspark_kafkalite"
CONNECTOR_KNOWS = {*FLOORS[0], *FLOORS[1], "protocol", "client"}
NOT_IN_A_BROKER = {
    "asyncio": "the loop is transport/reactor.py",
    "uvloop": "the loop is transport/reactor.py",
    "numpy": "columns are the client's; the broker moves bytes",
    "pyarrow": "columns are the client's; the broker moves bytes",
    "confluent_kafka": "it is for the command line; the broker serves clients and is none",
    "prometheus_client": "it is the exporter's; the broker writes pages",
    "opentelemetry": "it is the exporter's; the broker passes pushes on",
    "google": "it is the exporter's; the broker passes pushes on",
    "rich": "it is for the command line; the broker writes a log file",
}
EXTRAS_OF = {
    "kafkalite.client": ("arrow",),
    "kafkalite.client.producer.avro_rows": ("spark",),
    "kafkalite.cli.demo": ("demo",),
    CONNECTOR: ("spark",),
}
"""Extras whose packages a part of the program may import, beside those of the base."""
IMPORTED_AS = {
    "opentelemetry-proto": "opentelemetry",
    "protobuf": "google",
    "pyzmq": "zmq",
}
"""The top-level modules of distributions with another name."""
BROKER_ROOMS = {*FLOORS[0], *FLOORS[1], *FLOORS[2], *FLOORS[3], "broker", "process"}
PYTHON_FOLDERS = (PACKAGE, "tests", "benchmarks", "tools", "spark")


# The rules.


def imports_go_down(house):
    for module in house.modules.values():
        for other in house.rooms_known_to(module):
            if floor(other) >= floor(module.room):
                yield (
                    f"{module.name} may not know {other}: it is not below {module.room};"
                    " hand it in, or move what both need to a lower floor"
                )


def the_towers_meet_only_on_the_wire(house):
    for module in house.modules.values():
        known = house.rooms_known_to(module)
        if module.room in GUESTS:
            for other in known & BROKER_TOWER:
                yield f"{module.name} may not know {other}: talk to a broker over the wire"
        if module.room in BROKER_TOWER:
            for other in known & GUESTS:
                yield f"{module.name} may not know {other}: start it as a command line"


def the_spark_connector_stands_outside(house):
    for path in python_files(house, "spark"):
        module = Module(path.stem, path)
        rooms = {name.split(".")[1] for name in module.imports() if name.startswith(PACKAGE + ".")}
        for other in sorted(rooms & set(itertools.chain(*FLOORS)) - CONNECTOR_KNOWS):
            yield f"{shown(house, path)} may not know {other}: talk to a broker by the client"
    for module in house.modules.values():
        if module.room != "cli" and any(name.startswith(CONNECTOR) for name in module.imports()):
            yield f"{module.name} may not know {CONNECTOR}: only its commands do, in cli/spark.py"


def a_room_has_no_cycles(house):
    within = {
        name: house.known_to(module, at_run_time=True) & in_room(house, module.room)
        for name, module in house.modules.items()
    }
    done = set()

    def walk(name, path):
        if name in path:
            circle = " → ".join([*path[path.index(name) :], name])
            yield f"{circle} is a circle: one of them is two things; cut it where they part"
        elif name not in done:
            for other in sorted(within.get(name, ())):
                yield from walk(other, [*path, name])
            done.add(name)

    for name in within:
        yield from walk(name, [])


def in_room(house, room):
    return {name for name, module in house.modules.items() if module.room == room}


def nobody_is_alone(house):
    known = set().union(*map(house.known_to, house.modules.values()))
    for name, module in house.modules.items():
        entrance = module.path.name == "__init__.py" or floor(module.room) == len(FLOORS) - 1
        if name not in known and not entrance and not named_in_a_string(house, name):
            yield f"nobody imports {name}: use it or remove it"
    for name, path in house.compiled.items():
        if name not in known:
            yield f"nobody imports {name}: use {path.name} or remove it"
    sources = "".join(path.read_text() for path in (house.root / "ext").glob("*.p[yx][xd]"))
    for path in sorted((house.root / "ext").glob("*.pxd")):
        if not re.search(rf"^\s*(from {path.stem} cimport|cimport {path.stem})\b", sources, re.M):
            yield f"nobody cimports ext/{path.name}: use it or remove it"
    for path in sorted((house.root / "ext").glob("*.pxi")):
        if f'include "{path.name}"' not in sources:
            yield f"nobody includes ext/{path.name}: use it or remove it"


def named_in_a_string(house, name):
    """Return whether a module is imported by name: short in its package, or full anywhere."""
    room, _, short = name.rpartition(".")
    return any(
        (module.name == room and short in module.strings) or name in module.strings
        for module in house.modules.values()
    )


def a_word_stands_at_every_door(house):
    for path in python_files(house, PACKAGE, "benchmarks", "tools", "spark"):
        if not ast.get_docstring(ast.parse(path.read_text())):
            yield f"{shown(house, path)} begins without a docstring: say what it is and promises"
    for path in sorted((house.root / "ext").glob("*")):
        if path.suffix in (".pyx", ".pxd", ".pxi", ".h") and not re.match(
            r'"""|#|/\*|//', path.read_text()
        ):
            yield f"{shown(house, path)} begins without a word: say what it is and promises"


def a_compiled_module_has_a_stub(house):
    for name, path in house.compiled.items():
        stub = house.root / PACKAGE / "_ext" / f"{path.stem}.pyi"
        if not stub.exists():
            yield f"{name} has no stub: write {shown(house, stub)}"


def files_are_short(house):
    """A file has fewer lines than LINES_MAX, without docstrings: public ones have long sections."""
    for path in source_files(house):
        text = DOCSTRING.sub("", path.read_text())
        count = len(text.splitlines())
        if count >= LINES_MAX:
            yield (
                f"{shown(house, path)} has {count} lines, {LINES_MAX} are too many:"
                " there is a noun in it that has no file yet"
            )


def lines_are_narrow(house):
    for path in source_files(house):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if len(line) > COLUMNS_MAX:
                yield (
                    f"{shown(house, path)}:{number} is {len(line)} columns wide:"
                    f" break it before {COLUMNS_MAX}"
                )


def functions_are_short(house):
    for path in source_files(house):
        for name, line, count in functions(path):
            if count >= FUNCTION_LINES_MAX:
                yield (
                    f"{shown(house, path)}:{line} {name} has {count} lines,"
                    f" {FUNCTION_LINES_MAX} are too many: its steps want names"
                )


def functions(path):
    """Yield name, line and length of each function of a Python or Cython file."""
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, node.lineno, node.end_lineno - node.lineno + 1
    elif path.suffix in (".pyx", ".pxd", ".pxi"):
        yield from cython_functions(text.splitlines())


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


def names_say_what_a_thing_is(house):
    for path in source_files(house):
        for word in words_of(path.stem):
            yield f"{shown(house, path)}: no file is called {word!r}: {INSTEAD[word]}"
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and node.name not in THEIR_NAMES:
                    for word in words_of(node.name):
                        yield (
                            f"{shown(house, path)}:{node.lineno} class {node.name}: no class"
                            f" is called {word!r}: {INSTEAD[word]}"
                        )
                elif isinstance(node, ast.FunctionDef) and node.name.startswith("get_"):
                    yield (
                        f"{shown(house, path)}:{node.lineno} {node.name}: use a noun or a"
                        f" property, {node.name.removeprefix('get_')}"
                    )


def words_of(name):
    """Return the forbidden words in a snake_case or CamelCase name, in the singular."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    singular = {word.lower().removesuffix("s") if len(word) > 4 else word.lower() for word in words}
    return sorted(singular & INSTEAD.keys())


def a_broker_imports_only_what_it_needs(house):
    for module in house.modules.values():
        if module.room in BROKER_ROOMS:
            tops = {name.partition(".")[0] for name in module.imports()}
            for other in sorted(tops & NOT_IN_A_BROKER.keys()):
                yield f"{module.name} imports {other}: {NOT_IN_A_BROKER[other]}"


def what_is_imported_is_declared(house):
    declared = declared_imports(house)
    modules = dict(house.modules)
    for path in python_files(house, f"spark/{CONNECTOR}"):
        name = ".".join(path.relative_to(house.root / "spark").with_suffix("").parts)
        modules[name] = Module(name, path)
    for name, module in modules.items():
        extras = [
            extra for part, all_of in EXTRAS_OF.items() for extra in all_of if part in under(name)
        ]
        allowed = declared[""].union(*(declared[extra] for extra in extras))
        # The base installation imports every module of kafkalite, also those for extras.
        at_import = declared[""] if name.startswith(PACKAGE) else allowed
        undeclared = tops_of(module.imports_required(at_import=False)) - allowed
        undeclared |= tops_of(module.imports_required(at_import=True)) - at_import
        for top in sorted(undeclared):
            yield (
                f"{name} imports {top} at run time: no dependency of its installation brings"
                " that; declare it in pyproject.toml, import an extra's in the function that"
                " needs it, or put it under TYPE_CHECKING"
            )


def under(name):
    """Return a module's name and those of its packages."""
    return set(itertools.accumulate(name.split("."), "{}.{}".format))


def tops_of(names):
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def declared_imports(house):
    """Return the top-level modules that the base (key "") and each extra of pyproject.toml add."""
    project = tomllib.loads((house.root / "pyproject.toml").read_text())["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}

    def brought_by(requirements):
        for requirement in requirements:
            name, extra = re.match(r"([\w.-]+)(?:\[(\w+)\])?", requirement).groups()
            if name == PACKAGE:
                yield from brought_by(declared[extra])
            else:
                yield IMPORTED_AS.get(name, name.replace("-", "_"))

    ours = {PACKAGE, CONNECTOR}
    return {extra: {*brought_by(needed), *ours} for extra, needed in declared.items()}


RULES = (
    imports_go_down,
    the_towers_meet_only_on_the_wire,
    the_spark_connector_stands_outside,
    a_room_has_no_cycles,
    nobody_is_alone,
    a_word_stands_at_every_door,
    a_compiled_module_has_a_stub,
    files_are_short,
    lines_are_narrow,
    functions_are_short,
    names_say_what_a_thing_is,
    a_broker_imports_only_what_it_needs,
    what_is_imported_is_declared,
)


def source_files(house):
    yield from python_files(house, *PYTHON_FOLDERS)
    for path in sorted((house.root / "ext").glob("*")):
        if path.suffix in (".pyx", ".pxd", ".pxi", ".h"):
            yield path


def python_files(house, *folders):
    for folder in folders:
        yield from sorted((house.root / folder).rglob("*.py"))


def shown(house, path):
    return path.relative_to(house.root)


# The source tree keeps the rules.


@pytest.fixture(scope="module")
def our_house():
    return House()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(our_house, rule):
    complaints = list(rule(our_house))
    assert not complaints, "\n" + "\n".join(complaints)


def test_a_broker_process_loads_nothing_it_must_not():
    code = "import sys, kafkalite.process.launcher, kafkalite.broker.node; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert not set(ended.stdout.split()) & NOT_IN_A_BROKER.keys()


def test_the_native_client_loads_columns_and_asyncio_only_when_they_are_used():
    code = "import sys, kafkalite; kafkalite.Producer, kafkalite.Consumer; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert not set(ended.stdout.split()) & {*NOT_IN_A_BROKER, "zmq"}


# Each rule can fail.


def built(tmp_path, files):
    """Return a source tree of these files: path → text."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return House(tmp_path)


PYPROJECT = """
[project]
dependencies = ["pyzmq>=26"]
[project.optional-dependencies]
arrow = ["pyarrow>=16"]
spark = ["kafkalite[arrow]"]
demo = []
"""

BREACHES = [
    (
        imports_go_down,
        {
            "kafkalite/storage/log.py": "from kafkalite.broker import partition",
            "kafkalite/broker/partition.py": "",
        },
        "kafkalite.storage.log may not know broker",
    ),
    (
        imports_go_down,
        {
            "kafkalite/storage/log.py": "def f():\n    import kafkalite.transport.reactor",
            "kafkalite/transport/reactor.py": "",
        },
        "kafkalite.storage.log may not know transport",
    ),
    (
        imports_go_down,
        {
            "kafkalite/config/key.py": "from ..protocol.types import Int8",
            "kafkalite/protocol/types.py": "",
        },
        "kafkalite.config.key may not know protocol",
    ),
    (
        imports_go_down,
        {"kafkalite/errors.py": "import kafkalite.testing", "kafkalite/testing.py": ""},
        "kafkalite.errors may not know testing",
    ),
    (
        the_towers_meet_only_on_the_wire,
        {"kafkalite/client/native.py": "import kafkalite.storage", "kafkalite/storage.py": ""},
        "kafkalite.client.native may not know storage",
    ),
    (
        the_towers_meet_only_on_the_wire,
        {"kafkalite/process/worker.py": "import kafkalite.client", "kafkalite/client.py": ""},
        "kafkalite.process.worker may not know client",
    ),
    (
        the_spark_connector_stands_outside,
        {"spark/pyspark_kafkalite/sink.py": "from kafkalite.process.ready import running"},
        "spark/pyspark_kafkalite/sink.py may not know process",
    ),
    (
        the_spark_connector_stands_outside,
        {"kafkalite/client/spark.py": "from pyspark_kafkalite.source import SCHEMA"},
        "kafkalite.client.spark may not know pyspark_kafkalite",
    ),
    (
        a_room_has_no_cycles,
        {
            "kafkalite/storage/log.py": "from kafkalite.storage.segment import Segment",
            "kafkalite/storage/segment.py": "from kafkalite.storage import index",
            "kafkalite/storage/index.py": "def f():\n    from kafkalite.storage import log",
        },
        "is a circle",
    ),
    (
        nobody_is_alone,
        {"kafkalite/storage/__init__.py": "", "kafkalite/storage/log.py": ""},
        "nobody imports kafkalite.storage.log",
    ),
    (nobody_is_alone, {"ext/walk.pyx": ""}, "nobody imports kafkalite._ext.walk"),
    (nobody_is_alone, {"ext/layout.pxd": ""}, "nobody cimports ext/layout.pxd"),
    (nobody_is_alone, {"ext/buffer.pxi": ""}, "nobody includes ext/buffer.pxi"),
    (a_word_stands_at_every_door, {"kafkalite/clock.py": "import time"}, "without a docstring"),
    (a_word_stands_at_every_door, {"ext/walk.pyx": "cdef int x"}, "without a word"),
    (a_compiled_module_has_a_stub, {"ext/walk.pyx": ""}, "write kafkalite/_ext/walk.pyi"),
    (files_are_short, {"tests/test_long.py": "a = 1\n" * LINES_MAX}, "has 600 lines"),
    (lines_are_narrow, {"ext/walk.pyx": "#" * 101}, "ext/walk.pyx:1 is 101 columns wide"),
    (
        functions_are_short,
        {"tools/draw.py": "def f():\n" + "    a = 1\n" * (FUNCTION_LINES_MAX - 1)},
        "tools/draw.py:1 f has 60 lines",
    ),
    (
        functions_are_short,
        {
            "ext/walk.pyx": "cdef inline int f(\n    int a,\n) noexcept nogil:\n"
            + "    a = 1\n\n" * 57
            + "    return a\n"
            + "\n\nprint()\n"
        },
        "ext/walk.pyx:1 f has 118 lines",
    ),
    (names_say_what_a_thing_is, {"kafkalite/string_utils.py": ""}, "no file is called 'util'"),
    (names_say_what_a_thing_is, {"kafkalite/log.py": "class LogInfo: ..."}, "called 'info'"),
    (names_say_what_a_thing_is, {"kafkalite/log.py": "class AbstractBase: ..."}, "called 'base'"),
    (names_say_what_a_thing_is, {"kafkalite/log.py": "def get_size(): ..."}, "a property, size"),
    (
        a_broker_imports_only_what_it_needs,
        {"kafkalite/storage/log.py": "from numpy.lib import scimath"},
        "kafkalite.storage.log imports numpy: columns are the client's",
    ),
    *(
        (what_is_imported_is_declared, {"pyproject.toml": PYPROJECT, **files}, complaint)
        for files, complaint in [
            (
                {"kafkalite/client/consumer/rows.py": "from typing_extensions import Buffer"},
                "kafkalite.client.consumer.rows imports typing_extensions at run time",
            ),
            (
                {"kafkalite/client/consumer/tables.py": "import pyarrow"},
                "kafkalite.client.consumer.tables imports pyarrow",
            ),
            (
                {"kafkalite/cli/topic.py": "def table():\n    import pyarrow"},
                "kafkalite.cli.topic imports pyarrow",
            ),
            (
                {"spark/pyspark_kafkalite/sink.py": "import pandas"},
                "pyspark_kafkalite.sink imports pandas",
            ),
        ]
    ),
]


@pytest.mark.parametrize(
    ("rule", "files", "complaint"), BREACHES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_breach_of_the_rule_is_found(tmp_path, rule, files, complaint):
    complaints = list(rule(built(tmp_path, files)))
    assert len(complaints) == 1
    assert complaint in complaints[0]


def test_every_rule_has_a_breach_that_proves_it():
    assert {rule for rule, _, _ in BREACHES} == set(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_sound_house_has_no_complaints(tmp_path, rule):
    sound = {
        "kafkalite/__init__.py": '"""The house."""',
        "kafkalite/errors.py": '"""Errors."""',
        "kafkalite/_ext/__init__.py": '"""Compiled."""',
        "kafkalite/_ext/walk.pyi": "",
        "kafkalite/storage/__init__.py": '"""Disk."""',
        "kafkalite/storage/log.py": '"""A log."""\nfrom . import segment',
        "kafkalite/storage/segment.py": '"""A segment."""\nfrom kafkalite._ext import walk\n'
        "if TYPE_CHECKING:\n    from kafkalite.storage.log import Log",
        "kafkalite/broker/__init__.py": '"""A node."""\nimport kafkalite.storage.log',
        "kafkalite/process/__init__.py": '"""Processes."""\nfrom kafkalite import broker, errors',
        "kafkalite/cli/__init__.py": '"""Commands."""\nMODULES = {"start": "broker"}',
        "kafkalite/cli/broker.py": '"""Start."""\nimport asyncio, kafkalite.process',
        "spark/pyspark_kafkalite/sink.py": '"""A sink."""\nfrom kafkalite.client import producer\n'
        "class DataLoss(Exception): ...",
        "ext/walk.pyx": '"""Walks."""\nfrom layout cimport SIZE\ncdef int f(int a):\n    return a',
        "ext/layout.pxd": "# Where things stand.",
        "pyproject.toml": PYPROJECT,
        "kafkalite/client/__init__.py": '"""A client."""\nMODULES = {"Producer": "producer"}',
        "kafkalite/client/producer.py": '"""A producer."""\nimport zmq\n'
        "def send():\n    import pyarrow.compute\n"
        "with suppress(ImportError):\n    import pytest\n"
        "if TYPE_CHECKING:\n    from typing_extensions import Buffer",
    }
    assert list(rule(built(tmp_path, sound))) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("MetadataImage", []), ("database", []), ("RecordData", ["data"]), ("Helpers", ["helper"]),
     ("HTTPContext", ["context"]), ("based_on", []), ("base", ["base"]), ("bases", ["base"])],
)  # fmt: skip
def test_a_forbidden_word_is_found_as_a_word_and_not_as_a_part_of_one(name, words):
    assert words_of(name) == words


def test_every_floor_has_rooms_of_its_own():
    rooms = list(itertools.chain(*FLOORS))
    assert len(rooms) == len(set(rooms))
    with pytest.raises(KeyError, match="give it one"):
        floor("attic")
