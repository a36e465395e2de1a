"""Rules on names of files, classes and functions."""

import re

from tests.architecture.sources import python_files, shown, source_files
from tools.architecture import PACKAGE, definitions

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


def names_are_specific(tree):
    for path in source_files(tree):
        for word in words_of(path.stem) if path.stem not in EXTERNAL_NAMES else ():
            yield f"{shown(tree, path)}: do not use {word!r} in a file name: {REPLACEMENTS[word]}"
        if path.suffix == ".py":
            for each in definitions(path):
                place = f"{shown(tree, path)}:{each.line}"
                if each.is_class and each.name not in EXTERNAL_NAMES:
                    for word in words_of(each.name):
                        yield (
                            f"{place} class {each.name}: do not use {word!r}: {REPLACEMENTS[word]}"
                        )
                elif not each.is_class and each.name.startswith("get_"):
                    noun = each.name.removeprefix("get_")
                    yield f"{place} {each.name}: use a noun or a property, {noun}"


def words_of(name):
    """Return the forbidden words in a snake_case or CamelCase name, in the singular."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    singular = {word.lower().removesuffix("s") if len(word) > 4 else word.lower() for word in words}
    return sorted(singular & REPLACEMENTS.keys())


def class_names_are_unique(tree):
    found = {}
    for path in [
        *python_files(tree, PACKAGE, "spark"),
        *sorted((tree.root / PACKAGE / "_ext").glob("*.pyi")),
    ]:
        for each in definitions(path):
            if each.is_class:
                found.setdefault(each.name, []).append(f"{shown(tree, path)}:{each.line}")
    for name, places in found.items():
        if len(places) > 1:
            yield (
                f"class {name}: defined in {', '.join(places)}; name each after what sets it"
                " apart, so that a search finds one class"
            )


RULES = (
    names_are_specific,
    class_names_are_unique,
)

BREACHES = [
    (names_are_specific, {"kafkalite/string_utils.py": ""}, "'util' in a file name"),
    (names_are_specific, {"kafkalite/log.py": "class LogInfo: ..."}, "do not use 'info'"),
    (names_are_specific, {"kafkalite/log.py": "class AbstractBase: ..."}, "do not use 'base'"),
    (names_are_specific, {"kafkalite/log.py": "def get_size(): ..."}, "a property, size"),
    (
        class_names_are_unique,
        {
            "kafkalite/storage/log.py": "class Found: ...",
            "spark/pyspark_kafkalite/sink.py": "def f():\n    class Found: ...",
        },
        "class Found: defined in kafkalite/storage/log.py:1, spark/pyspark_kafkalite/sink.py:2",
    ),
    (
        class_names_are_unique,
        {"kafkalite/log.py": "class Walk: ...", "kafkalite/_ext/walk.pyi": "class Walk: ..."},
        "class Walk",
    ),
]
