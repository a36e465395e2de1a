"""Generator of kafkalite/config/client_keywords.py: typed keyword arguments of the clients.

    python -m tools.gen_keywords            write the file

One TypedDict for each client, with a field per declared key: its name with underscores, the types
that it accepts, and its documentation.  tests/test_types.py checks that the file is current.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafkalite.config.client import (
    ACKS,
    CLIENT,
    CONSUMER,
    KEY_SERIALIZER,
    PARTITIONER,
    PRODUCER,
    SHARE_CONSUMER,
    VALUE_SERIALIZER,
    own,
)
from kafkalite.config.key import ConfigKey, Scope, Type

PATH = Path(__file__).resolve().parent.parent / "kafkalite" / "config" / "client_keywords.py"
COLUMNS_MAX = 100
NUMBER = "int | str"
TYPES = {
    Type.BOOLEAN: "bool | str",
    Type.INT: NUMBER,
    Type.LONG: NUMBER,
    Type.LIST: "str | Sequence[str]",
    Type.STRING: "str",
}
FURTHER_TYPES: dict[ConfigKey[Any], str] = {
    ACKS: "int",
    KEY_SERIALIZER: "Serializer",
    PARTITIONER: "Partitioner",
    VALUE_SERIALIZER: "Serializer",
}
"""Types that a key accepts beside those of its declaration."""

HEAD = '''"""Keyword arguments of the native clients, as types for type checkers and editors.

Written by tools/gen_keywords.py from the keys of client.py; run `make reference` to update it.
None stands for the default of a key, and text is parsed as in a properties file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

Serializer: TypeAlias = Callable[[Any], bytes | str | None]
Partitioner: TypeAlias = Callable[[str, bytes | None, int], int]
"""Function of topic, key and number of partitions that returns a partition."""
'''


def text() -> str:
    """Return the text of the generated file."""
    lines = [HEAD]
    lines += kind("ClientConfig", "TypedDict", "Keys of every client.", CLIENT)
    lines += kind("ProducerConfig", "ClientConfig", "Keys of a producer.", own(PRODUCER))
    lines += kind("ConsumerConfig", "ClientConfig", "Keys of a consumer.", own(CONSUMER))
    lines += kind(
        "ShareConsumerConfig", "ClientConfig", "Keys of a share consumer.", own(SHARE_CONSUMER)
    )
    return "\n".join(lines)


def kind(name: str, parent: str, doc: str, scope: Scope) -> Iterator[str]:
    """Yield the lines of a TypedDict with a field for each key."""
    yield ""
    yield f"class {name}({parent}, total=False):"
    yield f'    """{doc}"""'
    yield ""
    for key in scope.values():
        yield f"    {key.name.replace('.', '_')}: {type_of(key)}"
        words = textwrap.wrap(f'"""{key.doc}"""', COLUMNS_MAX - 4)
        yield from (f"    {line}" for line in words)
    yield ""


def type_of(key: ConfigKey[Any]) -> str:
    """Return the annotation of a key's values."""
    types = [*filter(None, [declared(key), FURTHER_TYPES.get(key)]), "None"]
    return " | ".join(types)


def declared(key: ConfigKey[Any]) -> str:
    """Return the type of a key's declaration, or "" if only functions are accepted."""
    return "" if FURTHER_TYPES.get(key) == "Serializer" else TYPES[key.type]


def main() -> int:
    PATH.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
