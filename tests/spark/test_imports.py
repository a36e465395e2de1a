"""The connector uses the client by its public names, and none of its files import in a cycle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kafkalite
import kafkalite.client

CONNECTOR = Path(__file__).resolve().parents[2] / "spark/pyspark_kafkalite"
EXPORTS = {"kafkalite": set(kafkalite.__all__), "kafkalite.client": set(kafkalite.client.__all__)}
OPEN = ("kafkalite.config", "kafkalite.errors")
"""Packages below the client, of which every public name may be used."""


def imports(tree, module="", is_package=False):
    """Yield (module, name) of every import, those in functions and for type checkers included."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: -node.level + 1 or None] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                yield source, alias.name


def violations(source):
    """Yield what a source file imports of kafkalite that is not public."""
    for module, name in imports(ast.parse(source)):
        if module.partition(".")[0] != "kafkalite":
            continue
        is_open = any(module == each or module.startswith(f"{each}.") for each in OPEN)
        if is_open and not (name or "").startswith("_"):
            continue
        if module in EXPORTS and (name is None or name in EXPORTS[module]):
            continue
        yield f"{module}.{name}" if name else module


def modules():
    """Return the syntax tree of each module of the connector, by name."""
    found = {}
    for path in CONNECTOR.rglob("*.py"):
        parts = path.relative_to(CONNECTOR.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = ast.parse(path.read_text()), is_package
    return found


def cycles(graph):
    """Return the modules that import themselves by way of others."""
    reached = {name: set(others) for name, others in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return sorted(name for name in graph if name in reached[name])


@pytest.mark.parametrize("path", sorted(CONNECTOR.rglob("*.py")), ids=lambda path: path.stem)
def test_connector_imports_only_public_names(path):
    found = list(violations(path.read_text()))
    assert not found, (
        f"{path.relative_to(CONNECTOR)} imports {', '.join(found)}: use a name that kafkalite or"
        " kafkalite.client exports, or add a public one there"
    )


@pytest.mark.parametrize(
    "source",
    [
        "from kafkalite.client.consumer.consumer import Consumer",
        "from kafkalite.client.net import offset_requests",
        "import kafkalite.client.net.cluster",
        "from kafkalite.protocol.schemas.fetch import FETCH",
        "from kafkalite import client",
        "def f():\n    from kafkalite.client.consumer import positions",
        "if TYPE_CHECKING:\n    from kafkalite.broker.node import Node",
        "from kafkalite.config.client import _private",
    ],
)
def test_import_of_an_internal_name_is_reported(source):
    assert len(list(violations(source))) == 1


def test_public_names_exist():
    for module in (kafkalite, kafkalite.client):
        for name in module.__all__:
            assert getattr(module, name) is not None
            assert name in dir(module)
    with pytest.raises(AttributeError, match="has no attribute 'Cluster'"):
        kafkalite.client.Cluster  # noqa: B018


def test_connector_has_no_import_cycle():
    trees = modules()
    graph = {}
    for name, (tree, is_package) in trees.items():
        known = {f"{module}.{each}" if f"{module}.{each}" in trees else module
                 for module, each in imports(tree, name, is_package)}  # fmt: skip
        graph[name] = known & trees.keys() - {name}
    # The package imports its entry points lazily, and its modules import the package never.
    assert cycles(graph) == []


def test_cycles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert cycles(graph) == ["b", "c"]
