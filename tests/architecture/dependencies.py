"""Rules on imports of other distributions, and of modules in the current directory."""

import ast
import itertools
import re
import sys
import tomllib

from tests.architecture.imports import CONNECTOR
from tests.architecture.sources import python_files, shown
from tools.architecture import LAYERS, PACKAGE, Module, parsed

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


def broker_imports_no_client_libraries(tree):
    for module in tree.modules.values():
        if module.package in BROKER_PACKAGES:
            tops = {name.partition(".")[0] for name in module.imports}
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


PYPROJECT = """
[project]
dependencies = ["pyzmq>=26"]
[project.optional-dependencies]
arrow = ["pyarrow>=16"]
spark = ["kafkalite[arrow]"]
demo = []
"""


def python_processes_start_with_safe_path(tree):
    for path in python_files(tree, PACKAGE, "spark"):
        for node in ast.walk(parsed(path)):
            match node:
                case ast.List(
                    elts=[
                        ast.Attribute(value=ast.Name(id="sys"), attr="executable"),
                        ast.Constant(value=str(option)),
                        *_,
                    ]
                ) if option != "-P":
                    yield (
                        f"{shown(tree, path)}: line {node.lineno} starts Python without -P, which"
                        " imports modules of the current directory; write"
                        ' [sys.executable, "-P", "-m", ...]'
                    )


RULES = (
    broker_imports_no_client_libraries,
    python_processes_start_with_safe_path,
    run_time_imports_are_declared,
)

BREACHES = [
    (
        broker_imports_no_client_libraries,
        {"kafkalite/storage/log.py": "from numpy.lib import scimath"},
        "kafkalite.storage.log imports numpy: columns are the client's",
    ),
    (
        python_processes_start_with_safe_path,
        {"kafkalite/cli/demo.py": 'import sys\n\nargv = [sys.executable, "-m", "kafkalite"]'},
        "kafkalite/cli/demo.py: line 3 starts Python without -P",
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
