"""Layers of the package and the imports between its parts, read from the code and printed.

    python tools/architecture.py

A part is a folder or a file directly under `kafkalite/`.  A module may import from its own part
and from lower layers, not from other parts of its own layer.  The client side (CLIENT_SIDE) and
the broker side (BROKER_SIDE) share only the wire protocol: neither imports the other's parts.
tests/test_architecture.py checks these rules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

PACKAGE = "kafkalite"
ROOT = Path(__file__).resolve().parent.parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("_ext", "errors", "clock", "ids", "metrics", "version"),
    ("config", "records"),
    ("protocol", "http"),
    ("storage", "transport", "coordination"),
    ("broker", "client"),
    ("process", "exporter", "gateway", "registry", "connect", "mirror", "sql", "console"),
    ("cli",),
    ("testing",),
    ("__init__", "__main__"),
)

CLIENT_SIDE = {"client", "exporter", "gateway", "registry", "connect", "mirror", "sql", "console"}
BROKER_SIDE = {"storage", "coordination", "broker", "process"}


class Module:
    """A Python file of the package and its syntax tree."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.text = path.read_text()
        self.tree = ast.parse(self.text, str(path))

    @property
    def package(self) -> str:
        """The folder or file directly under the package that contains it."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @cached_property
    def strings(self) -> set[str]:
        """The string constants in it; a module may be loaded by name."""
        values = (node.value for node in ast.walk(self.tree) if isinstance(node, ast.Constant))
        return {value for value in values if isinstance(value, str)}

    def imports(self, at_run_time: bool = False) -> Iterator[str]:
        """Return the full names it imports anywhere, `from a import b` as `a.b`.

        With `at_run_time`, imports for the type checker alone are excluded.
        """
        return self._imported(running(self.tree) if at_run_time else ast.walk(self.tree))

    def imports_required(self, at_import: bool) -> Iterator[str]:
        """Return the names that must be installed: to import the module, or to use all of it."""
        left_out = (is_optional, is_function) if at_import else (is_optional,)
        return self._imported(running(self.tree, *left_out))

    def _imported(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                start = package.split(".")[: -node.level + 1 or None] if node.level else []
                source = ".".join([*start, *filter(None, [node.module])])
                yield from (f"{source}.{alias.name}" for alias in node.names)


def running(tree: ast.AST, *left_out: Callable[[ast.AST], bool]) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that are run: all except those under `if TYPE_CHECKING`.

    Nodes for which a `left_out` function returns True are skipped with all they contain.
    """
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if not any(is_left_out(child) for is_left_out in left_out):
            yield from running(child, *left_out)


def is_function(node: ast.AST) -> bool:
    """Return True if the node's body runs only when it is called."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def is_optional(node: ast.AST) -> bool:
    """Return True for a block that continues when its import fails."""
    match node:
        case ast.With(items=items):
            return any("suppress(ImportError)" in ast.unparse(item) for item in items)
        case ast.Try(handlers=handlers):
            kinds = [ast.unparse(handler.type) for handler in handlers if handler.type]
            return "ImportError" in kinds
    return False


class SourceTree:
    """All modules of the package under a root directory."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Every Python file of the package by its module name."""
        found = {}
        for path in sorted((self.root / PACKAGE).rglob("*.py")):
            parts = path.relative_to(self.root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
        return found

    @cached_property
    def compiled(self) -> dict[str, Path]:
        """The sources of the compiled modules, by the name of the resulting module."""
        sources = sorted((self.root / "ext").glob("*/*.pyx"))
        return {f"{PACKAGE}._ext.{path.stem}": path for path in sources}

    def modules_imported_by(self, module: Module, at_run_time: bool = False) -> set[str]:
        """Return the package's own modules that a module imports."""
        imported = set()
        for name in module.imports(at_run_time):
            while name and name not in self.modules and name not in self.compiled:
                name = name.rpartition(".")[0]
            if name and name != module.name:
                imported.add(name)
        return imported

    def packages_imported_by(self, module: Module) -> set[str]:
        """Return the other parts of the package that a module imports from."""
        packages = set()
        for name in self.modules_imported_by(module):
            parts = name.split(".")
            packages.add(parts[1] if len(parts) > 1 else "__init__")
        return packages - {module.package}


def layer_of(package: str) -> int:
    """Return the layer of a part; the lowest is 0."""
    for layer, packages in enumerate(LAYERS):
        if package in packages:
            return layer
    raise KeyError(f"{package} has no layer: add it to LAYERS in tools/architecture.py")


def draw(tree: SourceTree) -> Iterator[str]:
    """Yield a line for each part, from the top layer down, with the parts it imports."""
    imported: dict[str, set[str]] = {}
    for module in tree.modules.values():
        imported.setdefault(module.package, set()).update(tree.packages_imported_by(module))
    for layer in reversed(range(len(LAYERS))):
        for package in LAYERS[layer]:
            if package in imported:
                lower = sorted(imported[package], key=lambda other: (-layer_of(other), other))
                yield f"{layer}  {package:<13} {' '.join(lower)}".rstrip()


if __name__ == "__main__":
    print("\n".join(draw(SourceTree())))
