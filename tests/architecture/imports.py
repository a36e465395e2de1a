"""Rules on imports between modules: layers, sides, inner layers, cycles.

Imports for the type checker and in stubs count as well.
"""

import itertools
import re

from tests.architecture.sources import ext_files, python_files, shown
from tools.architecture import (
    BROKER_SIDE,
    CLIENT_SIDE,
    INNER_LAYERS,
    LAYERS,
    PACKAGE,
    Module,
    layer_of,
)

CONNECTOR = "pyspark_kafkalite"
CONNECTOR_PACKAGES = {"client", "errors"}


def imports_point_to_lower_layers(tree):
    for module in [*tree.modules.values(), *tree.stubs.values()]:
        for other in sorted(tree.packages_imported_by(module)):
            # A stub names errors, which are of its own layer.
            if layer_of(other) >= layer_of(module.package) + (module.path.suffix == ".pyi"):
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
        packages = {name.split(".")[1] for name in module.imports if name.startswith(PACKAGE + ".")}
        for other in sorted(packages & set(itertools.chain(*LAYERS)) - CONNECTOR_PACKAGES):
            yield f"{shown(tree, path)} must not import {other}: talk to a broker by the client"
    for module in tree.modules.values():
        if module.package != "cli" and any(name.startswith(CONNECTOR) for name in module.imports):
            yield f"{module.name} must not import {CONNECTOR}: only cli/spark.py does"


def inner_packages_import_in_order(tree):
    for package, layers in INNER_LAYERS.items():
        ranks = {inner: rank for rank, layer in enumerate(layers) for inner in layer}
        for name in sorted(tree.modules):
            inner = inner_package(name, package)
            for other in sorted(tree.import_graph[name]) if inner is not None else ():
                to = inner_package(other, package)
                if to != inner and ranks.get(to, -1) >= ranks.get(inner, len(ranks)):
                    yield (
                        f"{name} must not import {other}: {package}/{to} is not below"
                        f" {package}/{inner}; hand it in, or move what both need lower"
                    )


def inner_package(name, package):
    """Return the part of a module's name after that of a package, None outside of the package."""
    prefix = f"{PACKAGE}.{package.replace('/', '.')}."
    return name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else None


def modules_have_no_import_cycles(tree):
    for component in components(tree.import_graph):
        for name in sorted(component):
            for other in sorted(tree.import_graph[name] & component):
                yield (
                    f"{name} → {other}: this import is in a cycle of"
                    f" {', '.join(sorted(component))}; move what both need to a third module"
                )


def components(graph):
    """Return the sets of modules that import each other, directly or indirectly (Tarjan)."""
    order, low, stack, found = {}, {}, [], []

    def visit(name):
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def modules_are_used(tree):
    imported = set().union(*(tree.import_graph[name] for name in tree.modules))
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


def is_imported_by_name(tree, name):
    """Return whether a module is imported by name: short in its package, or full anywhere."""
    package, _, short = name.rpartition(".")
    return any(
        (module.name == package and short in module.strings) or name in module.strings
        for module in tree.modules.values()
    )


def compiled_layers_share_only_codec(tree):
    layer = {path.stem: path.parent.name for path in ext_files(tree)}
    for path in ext_files(tree, ".pyx", ".pxd", ".pxi"):
        for name in re.findall(r"^\s*(?:from|cimport) (\w+)", path.read_text(), re.M):
            if layer.get(name, "codec") not in ("codec", path.parent.name):
                yield (
                    f"{shown(tree, path)} must not cimport {name} of ext/{layer[name]}: use only"
                    " its own layer and ext/codec, or move what both need to ext/codec"
                )


RULES = (
    imports_point_to_lower_layers,
    inner_packages_import_in_order,
    modules_have_no_import_cycles,
    broker_and_client_side_meet_only_on_the_wire,
    spark_connector_uses_only_the_client,
    modules_are_used,
    compiled_layers_share_only_codec,
)

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
        imports_point_to_lower_layers,
        {
            "kafkalite/_ext/loop.pyi": "from kafkalite.client.batch import Batch",
            "kafkalite/client/batch.py": "",
        },
        "kafkalite._ext.loop must not import client",
    ),
    (
        inner_packages_import_in_order,
        {
            "kafkalite/broker/replica/log.py": "import kafkalite.broker.handlers.fetch",
            "kafkalite/broker/handlers/fetch.py": "import kafkalite.broker.replica.log",
        },
        "kafkalite.broker.replica.log must not import kafkalite.broker.handlers.fetch",
    ),
    (
        inner_packages_import_in_order,
        {
            "kafkalite/client/producer/sender.py": "if TYPE_CHECKING:\n"
            "    from kafkalite.client.consumer.rows import Row",
            "kafkalite/client/consumer/rows.py": "from kafkalite.client.net import cluster",
            "kafkalite/client/net/cluster.py": "import kafkalite.client.hosts",
            "kafkalite/client/hosts.py": "",
        },
        "kafkalite.client.producer.sender must not import kafkalite.client.consumer.rows",
    ),
    (
        inner_packages_import_in_order,
        {
            "kafkalite/coordination/groups/classic/group.py": "from kafkalite.coordination.groups"
            ".consumer import member",
            "kafkalite/coordination/groups/consumer/member.py": "from kafkalite.coordination"
            ".groups import table",
            "kafkalite/coordination/groups/table.py": "",
        },
        "kafkalite.coordination.groups.classic.group must not import"
        " kafkalite.coordination.groups.consumer.member",
    ),
    *(
        (modules_have_no_import_cycles, files, "kafkalite.storage.index → kafkalite.storage.log")
        for files in [
            {
                "kafkalite/storage/log.py": "from kafkalite.storage.segment import Segment",
                "kafkalite/storage/segment.py": "from kafkalite.storage import index",
                "kafkalite/storage/index.py": "def f():\n    from kafkalite.storage import log",
            },
            {
                "kafkalite/storage/log.py": "import kafkalite.storage.index",
                "kafkalite/storage/index.py": "if TYPE_CHECKING:\n    from .log import Log",
            },
        ]
    ),
    (
        modules_have_no_import_cycles,
        {
            "kafkalite/_ext/loop.pyi": "from kafkalite.errors import KafkaError",
            "kafkalite/errors.py": "from kafkalite._ext.loop import Loop",
            "ext/net/loop.pyx": "",
        },
        "kafkalite._ext.loop → kafkalite.errors",
    ),
    (
        modules_are_used,
        {"kafkalite/storage/__init__.py": "", "kafkalite/storage/log.py": ""},
        "no module imports kafkalite.storage.log",
    ),
    (modules_are_used, {"ext/log/walk.pyx": ""}, "no module imports kafkalite._ext.walk"),
    (modules_are_used, {"ext/codec/layout.pxd": ""}, "no module cimports ext/codec/layout.pxd"),
    (modules_are_used, {"ext/net/buffer.pxi": ""}, "no module includes ext/net/buffer.pxi"),
    (
        compiled_layers_share_only_codec,
        {
            "ext/net/loop.pyx": "from layout cimport SIZE\nfrom walk cimport floor",
            "ext/codec/layout.pxd": "",
            "ext/log/walk.pxd": "",
        },
        "ext/net/loop.pyx must not cimport walk of ext/log",
    ),
]
