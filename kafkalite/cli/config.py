"""What may be set, on a broker and on a topic."""

from __future__ import annotations

import fnmatch
import textwrap
from collections.abc import Iterator

from kafkalite.cli.command import argument, command
from kafkalite.config.broker import BROKER
from kafkalite.config.key import Key
from kafkalite.config.topic import TOPIC
from kafkalite.errors import Refusal


@command(
    argument("pattern", nargs="?", default="*", help="part of a name, or a pattern with * and ?"),
    argument("--json", dest="as_json", action="store_true", help="print a JSON list"),
)
def keys(pattern: str, as_json: bool) -> None:
    """List the keys there are, with type, default and meaning.

    Examples:
      kafkalite config keys
      kafkalite config keys retention
      kafkalite config keys 'log.*.ms' --json
    """
    found = [
        (scope.owner, key)
        for scope in (BROKER, TOPIC)
        for key in scope.values()
        if fnmatch.fnmatchcase(key.name, pattern) or pattern in key.name
    ]
    if not found:
        raise Refusal(f"no key is named like {pattern!r} (kafkalite config keys lists all)")
    if as_json:
        import json

        print(json.dumps([described(owner, key) for owner, key in found], indent=2))
    else:
        print("\n\n".join("\n".join(page(owner, key)) for owner, key in found))


def described(owner: str, key: Key[object]) -> dict[str, object]:
    """A key as JSON has it."""
    return {
        "name": key.name,
        "scope": owner,
        "type": key.type.name.lower(),
        "default": None if key.default is None else key.format(key.default),
        "valid": key.check.words if key.check else None,
        "overrides": list(key.overrides),
        "dynamic": key.dynamic,
        "doc": key.doc,
    }


def page(owner: str, key: Key[object]) -> Iterator[str]:
    """A key as a person reads it."""
    shown = key.format(key.default)
    default = f"default {shown}" if shown else "no default"
    valid = f"; must be {key.check.words}" if key.check else ""
    yield f"{key.name}  ({owner}; {key.type.name.lower()}; {default}{valid})"
    yield textwrap.fill(key.doc, 96, initial_indent="    ", subsequent_indent="    ")
    if key.overrides and key.overrides != (key.name,):
        yield f"    Overrides the broker's {', '.join(key.overrides)}."
