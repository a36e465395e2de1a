"""Rule on the docstrings of the public API: sections for arguments, results and errors.

The public API is what `kafkalite` and `pyspark_kafkalite` export, and the public names of
`kafkalite.testing`.  The documentation of compiled classes is in their .pyx.
"""

import ast
import sys

from tests.architecture.imports import CONNECTOR
from tests.architecture.sources import python_files
from tools.architecture import PACKAGE, Module

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_RESULT = {None, "None", "NoReturn", "Never"}


def public_docstrings_have_sections(tree):
    modules = {**tree.modules, **connector_modules(tree)}
    for module, node in exported(modules):
        if isinstance(node, ast.ClassDef) and not is_called_by_others(module, node):
            for owner, method in public_methods(modules, module, node):
                yield from missing(f"{owner.name} {node.name}.{method.name}", method, node)
        elif isinstance(node, FUNCTIONS):
            yield from missing(f"{module.name} {node.name}", node, None)


def connector_modules(tree):
    found = {}
    for path in python_files(tree, f"spark/{CONNECTOR}"):
        parts = path.relative_to(tree.root / "spark").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def exported(modules):
    """Yield (module, node) of each class and function of the public API."""
    for package in (PACKAGE, CONNECTOR):
        if package in modules:
            for name in declared_names(modules[package]):
                yield from definition(modules, modules[package], name)
    for module in modules.values():
        if module.name == f"{PACKAGE}.testing" or module.name.startswith(f"{PACKAGE}.testing."):
            for node in module.tree.body:
                if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and node.name[0] != "_":
                    yield module, node


def declared_names(module):
    """Return the names in a module's `__all__`."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def definition(modules, module, name):
    """Yield (module, node) of a name defined in or imported by a module; nothing if compiled."""
    for node in module.tree.body:
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and node.name == name:
            yield module, node
            return
    for full in sorted(module.imports):
        source, _, last = full.rpartition(".")
        if last == name and source in modules and source != module.name:
            yield from definition(modules, modules[source], name)
            return
    for full in sorted(module.imports):
        other = modules.get(full)
        if other is not None and any(getattr(node, "name", "") == name for node in other.tree.body):
            yield from definition(modules, other, name)
            return


def is_called_by_others(module, node):
    """Return whether a class implements an interface of another distribution, documented there."""
    imported = {full.rpartition(".")[2]: full.partition(".")[0] for full in module.imports}
    tops = {imported.get(ast.unparse(base), PACKAGE) for base in node.bases}
    return bool(tops - {PACKAGE, CONNECTOR} - sys.stdlib_module_names)


def public_methods(modules, module, node, seen=()):
    """Yield (module, method) of the public methods of a class and of its base classes."""
    names = set(seen)
    for method in node.body:
        if isinstance(method, FUNCTIONS) and method.name not in names:
            names.add(method.name)
            if method.name == "__init__" or method.name[0] != "_":
                yield module, method
    for base in node.bases:
        if isinstance(base, ast.Name):
            for other, found in definition(modules, module, base.id):
                if isinstance(found, ast.ClassDef):
                    yield from public_methods(modules, other, found, names)


def missing(name, function, owner):
    """Yield a message for each section that a function's docstring lacks."""
    text = ast.get_docstring(function) or ""
    if function.name == "__init__":
        text += ast.get_docstring(owner) or ""
    decorators = {ast.unparse(each) for each in function.decorator_list}
    is_property = any("property" in each or each.endswith(".setter") for each in decorators)
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [each for each in (arguments.vararg, arguments.kwarg) if each]
    wanted = []
    if not text:
        wanted.append("a docstring")
    if [each for each in named if each.arg not in ("self", "cls")] and not is_property:
        wanted.append("Args:")
    result = function.returns and ast.unparse(function.returns)
    if result not in NO_RESULT and not is_property:
        wanted.append("Returns:")
    if any(isinstance(node, ast.Raise) and node.exc for node in own_nodes(function)):
        wanted.append("Raises:")
    for section in wanted:
        if section not in text and not (section == "Returns:" and "Yields:" in text):
            yield (
                f"{name} {section.rstrip(':')}: its docstring lacks {section.rstrip(':')}; it is"
                " public, so it has sections with types, units and defaults"
            )


def own_nodes(function):
    """Yield the nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from own_nodes(child)


RULES = (public_docstrings_have_sections,)

EXPORT = """
__all__ = ["Producer"]
if TYPE_CHECKING:
    from kafkalite.client.producer import Producer
"""

BREACHES = [
    *(
        (
            public_docstrings_have_sections,
            {"kafkalite/__init__.py": EXPORT, "kafkalite/client/producer.py": text},
            message,
        )
        for text, message in [
            (
                'class Producer:\n    def flush(self, time: float) -> None:\n        """Send."""',
                "kafkalite.client.producer Producer.flush Args: its docstring lacks Args",
            ),
            (
                'class Producer:\n    def count(self) -> int:\n        """Count."""',
                "Producer.count Returns: its docstring lacks Returns",
            ),
            (
                'class Producer:\n    def end(self):\n        """End."""\n        raise Error()',
                "Producer.end Raises: its docstring lacks Raises",
            ),
            ("class Producer:\n    def close(self): ...", "Producer.close a docstring"),
            (
                'from kafkalite.client.base import Client\nclass Producer(Client):\n    """A."""',
                "kafkalite.client.base Producer.poll Returns",
            ),
        ]
    ),
    (
        public_docstrings_have_sections,
        {"kafkalite/testing.py": 'def broker(listen: str):\n    """A broker."""'},
        "kafkalite.testing broker Args",
    ),
    (
        public_docstrings_have_sections,
        {
            "spark/pyspark_kafkalite/__init__.py": '__all__ = ["read"]\n'
            "def __getattr__(name):\n    from pyspark_kafkalite import fast",
            "spark/pyspark_kafkalite/fast.py": 'def read(spark):\n    """Read."""',
        },
        "pyspark_kafkalite.fast read Args",
    ),
]
BREACHES[4][1]["kafkalite/client/base.py"] = (
    'class Client:\n    def poll(self) -> int:\n        """Poll."""'
)
