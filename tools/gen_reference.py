"""Reference generator: the pages on keys, APIs and errors, read from their declarations.

The pages are written to docs/reference/.

    python -m tools.gen_reference            write them
    python -m tools.gen_reference --check    list those that are not current; exit 1 if any is

    keys.md       every configuration key, and whether it changes while the broker runs
    apis.md       every supported request, its versions, and the kind of node that handles it
    errors.md     every error code, and whether a retry may help
    left_out.md   the `Left out:` paragraphs of the module docstrings
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import kafkalite.broker.dispatch  # noqa: F401  (with it every family enters SERVED)
from kafkalite.broker.served_apis import SERVED
from kafkalite.config.client import CLIENT, CONSUMER, SHARE_CONSUMER
from kafkalite.config.client import SCOPES as CLIENT_SCOPES
from kafkalite.config.key import Scope
from kafkalite.config.resources import SCOPES
from kafkalite.coordination.features import SUPPORTED_LEVELS
from kafkalite.errors import BY_CODE, StaleMetadata

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
FIRST_LINE = "<!-- Written by tools/gen_reference.py; run `make reference` to update it. -->"
BAR = r"\|"


def pages() -> dict[str, str]:
    """Return each page's text, by its file name."""
    return {
        "keys.md": page("Configuration keys", keys()),
        "apis.md": page("Requests served", apis()),
        "errors.md": page("Error codes", errors()),
        "left_out.md": page("Left out", left_out()),
    }


def page(title: str, lines: Iterable[str]) -> str:
    return "\n".join([FIRST_LINE, "", f"# {title}", "", *lines]).rstrip() + "\n"


def keys() -> Iterator[str]:
    yield "`kafkalite config keys [PATTERN] [--json]` prints the same."
    yield ""
    yield "A read-only key is set when the broker starts or the topic is created.  A cluster-wide"
    yield "key of a broker can be changed while it runs, for all nodes or for one.  A cluster-only"
    yield "key has one value for all nodes; tools that must name a node set it for node 0.  Keys of"
    yield "a client are arguments of Producer, Consumer and ShareConsumer, with dots or"
    yield "underscores."
    yield ""
    shared = sorted(name for name in SHARE_CONSUMER if name in CONSUMER and name not in CLIENT)
    yield f"A share consumer has these keys of a consumer too: {', '.join(map(code, shared))}."
    scopes = (*SCOPES.values(), *CLIENT_SCOPES)
    for scope in scopes:
        if scope:
            yield from ("", f"## Keys of a {scope.owner}", "")
            yield from keys_of(scope)
    for scope in scopes:
        if scope.left_out:
            yield from ("", f"## Kafka's keys of a {scope.owner} that are not supported", "")
            yield from left_out_of(scope)


def left_out_of(scope: Scope) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for name, because in scope.left_out.items():
        reasons.setdefault(because, []).append(f"`{name}{'…' if name.endswith('.') else ''}`")
    for because, names in reasons.items():
        yield f"- {', '.join(names)}: {because}"


def keys_of(scope: Scope) -> Iterator[str]:
    rows = []
    for key in sorted(scope.values(), key=lambda key: key.name):
        words = [key.doc]
        if key.check:
            words.append(f"Must be {key.check.words}.")
        if key.overrides:
            words.append(f"Overrides the broker's {', '.join(map(code, key.overrides))}.")
        default = key.format(key.default)
        rows.append(
            (
                code(key.name),
                key.type.name.lower(),
                code(default) if default else "",
                key.update.value,
                *words,
            )
        )
    yield from table(("key", "type", "default", "changes", "description"), rows)


def apis() -> Iterator[str]:
    yield "As in Kafka, ApiVersions lists Produce from version 0, which librdkafka requires."
    yield ""
    rows = [
        (
            str(handler.api.key),
            handler.api.name,
            span(handler.low, handler.high),
            span(*handler.api.versions),
            handler.at.value,
        )
        for _, handler in sorted(SERVED.items())
        if handler.feature is None or handler.feature in SUPPORTED_LEVELS
    ]
    yield from table(("key", "API", "versions served", "versions known", "served by"), rows)


def errors() -> Iterator[str]:
    rows = []
    for number, error in sorted(BY_CODE.items()):
        retriable = "yes" if error.retriable else ""
        if issubclass(error, StaleMetadata):
            retriable = "after refreshing metadata"
        rows.append((str(number), error.name, retriable, str(error())))
    yield from table(("code", "name", "retriable", "meaning"), rows)


def left_out() -> Iterator[str]:
    for path in sorted((ROOT / "kafkalite").rglob("*.py")):
        words = ast.get_docstring(ast.parse(path.read_text())) or ""
        for paragraph in words.split("\n\n"):
            if paragraph.startswith("Left out:"):
                text = paragraph.removeprefix("Left out:").strip()
                yield f"- `{path.relative_to(ROOT)}`: {' '.join(text.split())}"


def span(low: int, high: int) -> str:
    return f"{low}-{high}" if low < high else str(low)


def code(text: str) -> str:
    return f"`{text}`"


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table; surplus cells of a row are joined to its last column."""
    last = len(heads) - 1
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        cells = [*row[:last], " ".join(row[last:])]
        yield f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def main(arguments: list[str]) -> int:
    stale = [
        name
        for name, text in pages().items()
        if not (PAGES / name).exists() or (PAGES / name).read_text() != text
    ]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/reference/{name} is not current: make reference")
        return bool(stale)
    PAGES.mkdir(exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
