"""Rules on wording: the field's terms in identifiers, docstrings, comments and messages.

WORDS lists words that this code base used for a term of Kafka, Python or the operating system, with
the term.  They are not used in the package and the Spark connector; tests may inject faults.
"""

import ast
import io
import re
import tokenize

from tests.architecture.sources import ext_files, python_files, shown
from tools.architecture import PACKAGE, parsed

WORDS = {
    "anew": "again, restart, retry",
    "doomed": "deferred delete",
    "lane": "transport",
    "leash": "parent watch",
    "lent": "granted",
    "loan": "segment grant",
    "nobody": "none, no client, no member",
    "patience": "deadline, timeout",
    "question": "request",
    "roster": "desired processes",
    "somebody": "a client, a member, another process",
    "upkeep": "housekeeping",
    "verdict": "delivery outcome",
    "whoever": "the client, the process that",
}
"""Words that are not used, as a part of an identifier or in text, in the singular."""

PHRASES = {
    "comes to nothing": "fails, has no effect",
    "gives up": "stops, fails, times out",
    "is no more": "was deleted, was fenced, has ended",
    "is told": "receives, gets",
    "side process": "service",
    "the house": "the source tree, the architecture",
    "under way": "in flight, running",
}
"""Phrases that are not used in text."""

OPENINGS = re.compile(r"(What|Who|Whose|How|Whether|Where|When|Which|If|Why)\b")


def docstrings_begin_with_a_noun_or_a_verb(tree):
    for path in package_files(tree):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, DOCUMENTED):
                continue
            opening = OPENINGS.match(ast.get_docstring(node) or "")
            if opening:
                name = getattr(node, "name", "module")
                yield (
                    f"{shown(tree, path)} {name}: its docstring begins with {opening[0]!r}; begin"
                    " with an imperative verb, or with a noun"
                )


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def identifiers_are_terms_of_the_field(tree):
    for path in package_files(tree):
        defined = {}
        for node in ast.walk(parsed(path)):
            for name in names_of(node):
                defined.setdefault(name, node.lineno)
        for name, line in sorted(defined.items()):
            for word in sorted(set(words_in(name)) & WORDS.keys()):
                yield (
                    f"{shown(tree, path)} {name}: line {line} defines a name with {word!r};"
                    f" Kafka's term is {WORDS[word]}"
                )


def names_of(node):
    """Yield the names that a node defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case ast.ExceptHandler(name=str(name)):
            yield name


def words_in(name):
    """Yield the words of a snake_case or CamelCase name, in the singular."""
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
        yield singular(word.lower())


def singular(word):
    return word if word in WORDS else word.removesuffix("s")


def text_uses_terms_of_the_field(tree):
    phrases = re.compile(rf"\b({'|'.join(map(re.escape, PHRASES))})\b")
    for path in [*package_files(tree), *ext_files(tree)]:
        for line, text in texts(path):
            found = [singular(word) for word in re.findall(r"[a-z]+", text.lower())]
            for word in sorted(set(found) & WORDS.keys()):
                yield (
                    f"{shown(tree, path)} text {word!r}: in the text at line {line};"
                    f" use {WORDS[word]}"
                )
            for phrase in sorted(set(phrases.findall(text.lower()))):
                yield (
                    f"{shown(tree, path)} text {phrase!r}: in the text at line {line};"
                    f" use {PHRASES[phrase]}"
                )


def texts(path):
    """Yield (line, text) of the comments, docstrings and messages of a file.

    A string without a space is a name, not text.
    """
    if path.suffix not in (".py", ".pyi"):
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            if "#" in text or text.lstrip().startswith(("*", "/*", "//")):
                yield line, text[text.find("#") + 1 :]
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and " " in token.string
        ):
            yield token.start[0], " ".join(token.string.split())


def package_files(tree):
    yield from python_files(tree, PACKAGE, "spark")


RULES = (
    docstrings_begin_with_a_noun_or_a_verb,
    identifiers_are_terms_of_the_field,
    text_uses_terms_of_the_field,
)

BREACHES = [
    (
        docstrings_begin_with_a_noun_or_a_verb,
        {"kafkalite/log.py": 'class Log:\n    def end(self):\n        """Where it ends."""'},
        "kafkalite/log.py end: its docstring begins with 'Where'",
    ),
    (
        docstrings_begin_with_a_noun_or_a_verb,
        {"spark/pyspark_kafkalite/sink.py": '"""Who writes to a topic."""'},
        "spark/pyspark_kafkalite/sink.py module: its docstring begins with 'Who'",
    ),
    *(
        (identifiers_are_terms_of_the_field, {"kafkalite/log.py": text}, message)
        for text, message in [
            ("class RingLane: ...", "RingLane: line 1 defines a name with 'lane'"),
            ("def lend(lent_count): ...", "lent_count: line 1 defines a name with 'lent'"),
            ("class A:\n    def f(self):\n        self.loans = 1", "loans: line 3 defines"),
        ]
    ),
    *(
        (text_uses_terms_of_the_field, {path: text}, message)
        for path, text, message in [
            ("kafkalite/log.py", "# somebody waits", "text 'somebody': in the text at line 1"),
            ("kafkalite/log.py", 'log.info("a node is no more")', "text 'is no more'"),
            ("kafkalite/log.py", '"""A log.\n\nIt gives\nup."""', "text 'gives up'"),
            ("ext/net/loop.pyx", "cdef int a  # nobody waits", "text 'nobody': in the text at"),
        ]
    ),
]
