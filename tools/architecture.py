"""Layers of the package and the imports between its parts, read from the code and printed.

    python tools/architecture.py      imports of each part, then the files near the size limit

A part is a folder or a file directly under `kafkalite/`.  A module may import from its own part
and from lower layers, not from other parts of its own layer.  The client side (CLIENT_SIDE) and
the broker side (BROKER_SIDE) share only the wire protocol: neither imports the other's parts.
tests/test_architecture.py checks these rules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

PACKAGE = "kafkalite"
LINES_NEAR = 550
"""Such a file is near the limit of 600 lines: look for a part of it with a name of its own."""
ROOT = Path(__file__).resolve().parent.parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("_ext", "errors", "clock", "ids", "metrics", "record_metadata", "version"),
    ("config", "records"),
    ("protocol", "http"),
    ("storage", "transport", "coordination"),
    ("broker", "client"),
    (
        "process",
        "cleaner",
        "exporter",
        "gateway",
        "registry",
        "connect",
        "mirror",
        "sql",
        "console",
    ),
    ("cli",),
    ("testing",),
    ("__init__", "__main__"),
)

INNER_LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "storage": (("files",), ("state",), ("segment",), ("compaction",), ("log",), ("manager",)),
    "broker": (("replica",), ("controller", "coordinator", "local", "share"), ("handlers",)),
    "client": (("net", "decoding"), ("group",), ("producer", "consumer", "share", "admin")),
    "coordination/groups": (("assignment", "offsets"), ("classic",), ("consumer", "share")),
}
"""The order of packages inside a package; files directly in it may be imported from each."""

CLIENT_SIDE = {"client", "exporter", "gateway", "registry", "connect", "mirror", "sql", "console"}
BROKER_SIDE = {"storage", "coordination", "broker", "process", "cleaner"}


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file or stub."""
    return ast.parse(path.read_text(), str(path))


class Definition(NamedTuple):
    """A class or function in a Python file."""

    is_class: bool
    name: str
    line: int
    end_line: int


@cache
def definitions(path: Path) -> tuple[Definition, ...]:
    """Return the classes and functions of a Python file, nested ones included."""
    return tuple(
        Definition(isinstance(node, ast.ClassDef), node.name, node.lineno, node.end_lineno or 0)
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )


class Module:
    """A Python file of the package and its syntax tree."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.text = path.read_text()
        self.tree = parsed(path)

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

    @cached_property
    def imports(self) -> set[str]:
        """The full names it imports, also for the type checker only; `from a import b` is a.b."""
        return set(self._imported(ast.walk(self.tree)))

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

    @cached_property
    def stubs(self) -> dict[str, Module]:
        """The stub of each compiled module, by the name of the module."""
        paths = sorted((self.root / PACKAGE / "_ext").glob("*.pyi"))
        names = {f"{PACKAGE}._ext.{path.stem}": path for path in paths}
        return {name: Module(name, path) for name, path in names.items()}

    @cached_property
    def import_graph(self) -> dict[str, set[str]]:
        """The package's own modules that each module or stub imports."""
        graph = {name: self.modules_imported_by(module) for name, module in self.stubs.items()}
        for name, module in self.modules.items():
            graph[name] = self.modules_imported_by(module)
        return graph

    def modules_imported_by(self, module: Module) -> set[str]:
        """Return the package's own modules that a module imports."""
        imported = set()
        for name in module.imports:
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


def long_files(tree: SourceTree) -> Iterator[str]:
    """Yield the files of the package and of ext/ with LINES_NEAR lines or more, longest first."""
    paths = [*(tree.root / PACKAGE).rglob("*.py"), *(tree.root / "ext").glob("*/*.p*")]
    counts = {path: len(path.read_text().splitlines()) for path in paths}
    for path, count in sorted(counts.items(), key=lambda item: -item[1]):
        if count >= LINES_NEAR:
            yield f"{count}  {path.relative_to(tree.root)}"


if __name__ == "__main__":
    print(*draw(SourceTree()), "", *long_files(SourceTree()), sep="\n")
