"""Architecture tests: the structure rules of the code base, each with a breach that proves it.

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

from tools.architecture import (
    BROKER_SIDE,
    CLIENT_SIDE,
    LAYERS,
    PACKAGE,
    ROOT,
    Module,
    SourceTree,
    layer_of,
)

LINES_MAX = 600
FUNCTION_LINES_MAX = 60
DOCSTRING = re.compile(r'^ *"""(?:[^"\\]|\\.|"(?!""))*"""\n', re.M)
COLUMNS_MAX = 100

REPLACEMENTS = {
    "util": "name the file after the noun its functions serve",
    "helper": "name it after what it does, or put it into the file it helps",
    "common": "put each part on the lowest layer that needs it, under its own name",
    "base": "name the role; prefer a function or a field to a base class",
    "impl": "the implementation has the plain name",
    "info": "name the content: a description, a state, a size",
    "data": "name the content: records, bytes, rows, a batch",
    "context": "pass what is needed under its own name",
}
EXTERNAL_NAMES = {
    "DataLoss": "Spark's own word: failOnDataLoss",
    "ClientContext": "the client of a request: connection, principal, addresses, API version",
    "client_context": "the file of ClientContext",
}
CONNECTOR = "pyspark_kafkalite"
CONNECTOR_PACKAGES = {*LAYERS[0], *LAYERS[1], "protocol", "client"}
NOT_IN_BROKER = {
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
BROKER_PACKAGES = {*LAYERS[0], *LAYERS[1], *LAYERS[2], *LAYERS[3], "broker", "process"}
PYTHON_FOLDERS = (PACKAGE, "tests", "benchmarks", "tools", "spark")


# The rules.


def imports_point_to_lower_layers(tree):
    for module in tree.modules.values():
        for other in tree.packages_imported_by(module):
            if layer_of(other) >= layer_of(module.package):
                yield (
                    f"{module.name} must not import {other}: it is not below {module.package};"
                    " hand it in, or move what both need to a lower layer"
                )


def broker_and_client_side_meet_only_on_the_wire(tree):
    for module in tree.modules.values():
        imported = tree.packages_imported_by(module)
        if module.package in CLIENT_SIDE:
            for other in imported & BROKER_SIDE:
                yield f"{module.name} must not import {other}: talk to a broker over the wire"
        if module.package in BROKER_SIDE:
            for other in imported & CLIENT_SIDE:
                yield f"{module.name} must not import {other}: start it as a command line"


def spark_connector_uses_only_the_client(tree):
    for path in python_files(tree, "spark"):
        module = Module(path.stem, path)
        packages = {
            name.split(".")[1] for name in module.imports() if name.startswith(PACKAGE + ".")
        }
        for other in sorted(packages & set(itertools.chain(*LAYERS)) - CONNECTOR_PACKAGES):
            yield f"{shown(tree, path)} must not import {other}: talk to a broker by the client"
    for module in tree.modules.values():
        if module.package != "cli" and any(name.startswith(CONNECTOR) for name in module.imports()):
            yield f"{module.name} must not import {CONNECTOR}: only cli/spark.py does"


def packages_have_no_import_cycles(tree):
    within = {
        name: tree.modules_imported_by(module, at_run_time=True)
        & modules_of_package(tree, module.package)
        for name, module in tree.modules.items()
    }
    done = set()

    def walk(name, path):
        if name in path:
            cycle = " → ".join([*path[path.index(name) :], name])
            yield f"{cycle} is an import cycle: move what both need to a third module"
        elif name not in done:
            for other in sorted(within.get(name, ())):
                yield from walk(other, [*path, name])
            done.add(name)

    for name in within:
        yield from walk(name, [])


def modules_of_package(tree, package):
    return {name for name, module in tree.modules.items() if module.package == package}


def modules_are_used(tree):
    imported = set().union(*map(tree.modules_imported_by, tree.modules.values()))
    for name, module in tree.modules.items():
        entrance = module.path.name == "__init__.py" or layer_of(module.package) == len(LAYERS) - 1
        if name not in imported and not entrance and not is_imported_by_name(tree, name):
            yield f"no module imports {name}: use it or remove it"
    for name, path in tree.compiled.items():
        if name not in imported:
            yield f"no module imports {name}: use {path.name} or remove it"
    sources = "".join(path.read_text() for path in ext_files(tree, ".pyx", ".pxd"))
    for path in ext_files(tree, ".pxd"):
        if not re.search(rf"^\s*(from {path.stem} cimport|cimport {path.stem})\b", sources, re.M):
            yield f"no module cimports {shown(tree, path)}: use it or remove it"
    for path in ext_files(tree, ".pxi"):
        if f'include "{path.name}"' not in sources:
            yield f"no module includes {shown(tree, path)}: use it or remove it"


def compiled_layers_share_only_codec(tree):
    layer = {path.stem: path.parent.name for path in ext_files(tree)}
    for path in ext_files(tree, ".pyx", ".pxd", ".pxi"):
        for name in re.findall(r"^\s*(?:from|cimport) (\w+)", path.read_text(), re.M):
            if layer.get(name, "codec") not in ("codec", path.parent.name):
                yield (
                    f"{shown(tree, path)} must not cimport {name} of ext/{layer[name]}: use only"
                    " its own layer and ext/codec, or move what both need to ext/codec"
                )


def is_imported_by_name(tree, name):
    """Return whether a module is imported by name: short in its package, or full anywhere."""
    package, _, short = name.rpartition(".")
    return any(
        (module.name == package and short in module.strings) or name in module.strings
        for module in tree.modules.values()
    )


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


def names_are_specific(tree):
    for path in source_files(tree):
        for word in words_of(path.stem) if path.stem not in EXTERNAL_NAMES else ():
            yield f"{shown(tree, path)}: do not use {word!r} in a file name: {REPLACEMENTS[word]}"
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and node.name not in EXTERNAL_NAMES:
                    for word in words_of(node.name):
                        yield (
                            f"{shown(tree, path)}:{node.lineno} class {node.name}: do not use"
                            f" {word!r}: {REPLACEMENTS[word]}"
                        )
                elif isinstance(node, ast.FunctionDef) and node.name.startswith("get_"):
                    yield (
                        f"{shown(tree, path)}:{node.lineno} {node.name}: use a noun or a"
                        f" property, {node.name.removeprefix('get_')}"
                    )


def words_of(name):
    """Return the forbidden words in a snake_case or CamelCase name, in the singular."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    singular = {word.lower().removesuffix("s") if len(word) > 4 else word.lower() for word in words}
    return sorted(singular & REPLACEMENTS.keys())


def broker_imports_no_client_libraries(tree):
    for module in tree.modules.values():
        if module.package in BROKER_PACKAGES:
            tops = {name.partition(".")[0] for name in module.imports()}
            for other in sorted(tops & NOT_IN_BROKER.keys()):
                yield f"{module.name} imports {other}: {NOT_IN_BROKER[other]}"


def run_time_imports_are_declared(tree):
    declared = declared_imports(tree)
    modules = dict(tree.modules)
    for path in python_files(tree, f"spark/{CONNECTOR}"):
        name = ".".join(path.relative_to(tree.root / "spark").with_suffix("").parts)
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


def declared_imports(tree):
    """Return the top-level modules that the base (key "") and each extra of pyproject.toml add."""
    project = tomllib.loads((tree.root / "pyproject.toml").read_text())["project"]
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
    imports_point_to_lower_layers,
    broker_and_client_side_meet_only_on_the_wire,
    spark_connector_uses_only_the_client,
    packages_have_no_import_cycles,
    modules_are_used,
    compiled_layers_share_only_codec,
    modules_have_docstrings,
    compiled_modules_have_stubs,
    files_are_short,
    lines_are_short,
    functions_are_short,
    names_are_specific,
    broker_imports_no_client_libraries,
    run_time_imports_are_declared,
)


def source_files(tree):
    yield from python_files(tree, *PYTHON_FOLDERS)
    yield from ext_files(tree)


def ext_files(tree, *suffixes):
    """Yield the sources in ext/<layer>/ with one of these suffixes; without any, all of them."""
    wanted = suffixes or (".pyx", ".pxd", ".pxi", ".h")
    for path in sorted((tree.root / "ext").glob("*/*")):
        if path.suffix in wanted:
            yield path


def python_files(tree, *folders):
    for folder in folders:
        yield from sorted((tree.root / folder).rglob("*.py"))


def shown(tree, path):
    return path.relative_to(tree.root)


# The source tree keeps the rules.


@pytest.fixture(scope="module")
def source_tree():
    return SourceTree()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_source_tree_follows_rule(source_tree, rule):
    breaches = list(rule(source_tree))
    assert not breaches, "\n" + "\n".join(breaches)


def test_broker_process_loads_no_client_library():
    code = "import sys, kafkalite.process.launcher, kafkalite.broker.node; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert not set(ended.stdout.split()) & NOT_IN_BROKER.keys()


def test_native_client_loads_columns_and_asyncio_on_first_use():
    code = "import sys, kafkalite; kafkalite.Producer, kafkalite.Consumer; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert not set(ended.stdout.split()) & {*NOT_IN_BROKER, "zmq"}


# Each rule can fail.


def built(tmp_path, files):
    """Return a source tree of these files: path → text."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return SourceTree(tmp_path)


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
        imports_point_to_lower_layers,
        {
            "kafkalite/storage/log.py": "from kafkalite.broker import partition",
            "kafkalite/broker/partition.py": "",
        },
        "kafkalite.storage.log must not import broker",
    ),
    (
        imports_point_to_lower_layers,
        {
            "kafkalite/storage/log.py": "def f():\n    import kafkalite.transport.reactor",
            "kafkalite/transport/reactor.py": "",
        },
        "kafkalite.storage.log must not import transport",
    ),
    (
        imports_point_to_lower_layers,
        {
            "kafkalite/config/key.py": "from ..protocol.types import Int8",
            "kafkalite/protocol/types.py": "",
        },
        "kafkalite.config.key must not import protocol",
    ),
    (
        imports_point_to_lower_layers,
        {"kafkalite/errors.py": "import kafkalite.testing", "kafkalite/testing.py": ""},
        "kafkalite.errors must not import testing",
    ),
    (
        broker_and_client_side_meet_only_on_the_wire,
        {"kafkalite/client/native.py": "import kafkalite.storage", "kafkalite/storage.py": ""},
        "kafkalite.client.native must not import storage",
    ),
    (
        broker_and_client_side_meet_only_on_the_wire,
        {"kafkalite/process/worker.py": "import kafkalite.client", "kafkalite/client.py": ""},
        "kafkalite.process.worker must not import client",
    ),
    (
        spark_connector_uses_only_the_client,
        {"spark/pyspark_kafkalite/sink.py": "from kafkalite.process.status.ready import running"},
        "spark/pyspark_kafkalite/sink.py must not import process",
    ),
    (
        spark_connector_uses_only_the_client,
        {"kafkalite/client/spark.py": "from pyspark_kafkalite.source import SCHEMA"},
        "kafkalite.client.spark must not import pyspark_kafkalite",
    ),
    (
        packages_have_no_import_cycles,
        {
            "kafkalite/storage/log.py": "from kafkalite.storage.segment import Segment",
            "kafkalite/storage/segment.py": "from kafkalite.storage import index",
            "kafkalite/storage/index.py": "def f():\n    from kafkalite.storage import log",
        },
        "is an import cycle",
    ),
    (
        modules_are_used,
        {"kafkalite/storage/__init__.py": "", "kafkalite/storage/log.py": ""},
        "no module imports kafkalite.storage.log",
    ),
    (modules_are_used, {"ext/log/walk.pyx": ""}, "no module imports kafkalite._ext.walk"),
    (modules_are_used, {"ext/codec/layout.pxd": ""}, "no module cimports ext/codec/layout.pxd"),
    (modules_are_used, {"ext/net/buffer.pxi": ""}, "no module includes ext/net/buffer.pxi"),
    (modules_have_docstrings, {"kafkalite/clock.py": "import time"}, "has no module docstring"),
    (
        compiled_layers_share_only_codec,
        {
            "ext/net/loop.pyx": "from layout cimport SIZE\nfrom walk cimport floor",
            "ext/codec/layout.pxd": "",
            "ext/log/walk.pxd": "",
        },
        "ext/net/loop.pyx must not cimport walk of ext/log",
    ),
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
    (names_are_specific, {"kafkalite/string_utils.py": ""}, "'util' in a file name"),
    (names_are_specific, {"kafkalite/log.py": "class LogInfo: ..."}, "do not use 'info'"),
    (names_are_specific, {"kafkalite/log.py": "class AbstractBase: ..."}, "do not use 'base'"),
    (names_are_specific, {"kafkalite/log.py": "def get_size(): ..."}, "a property, size"),
    (
        broker_imports_no_client_libraries,
        {"kafkalite/storage/log.py": "from numpy.lib import scimath"},
        "kafkalite.storage.log imports numpy: columns are the client's",
    ),
    *(
        (run_time_imports_are_declared, {"pyproject.toml": PYPROJECT, **files}, message)
        for files, message in [
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
    ("rule", "files", "message"), BREACHES, ids=lambda value: getattr(value, "__name__", "")
)
def test_rule_reports_its_breach(tmp_path, rule, files, message):
    breaches = list(rule(built(tmp_path, files)))
    assert len(breaches) == 1
    assert message in breaches[0]


def test_each_rule_has_a_breach():
    assert {rule for rule, _, _ in BREACHES} == set(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_accepts_sound_tree(tmp_path, rule):
    sound = {
        "kafkalite/__init__.py": '"""The tree."""',
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
        "ext/log/walk.pyx": '"""Walks."""\nfrom layout cimport SIZE\n'
        "cdef int f(int a):\n    return a",
        "ext/codec/layout.pxd": "# The layout.",
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
def test_forbidden_words_are_whole_words(name, words):
    assert words_of(name) == words


def test_a_package_belongs_to_one_layer():
    packages = list(itertools.chain(*LAYERS))
    assert len(packages) == len(set(packages))
    with pytest.raises(KeyError, match="add it"):
        layer_of("attic")
