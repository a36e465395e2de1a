"""Settings: the configuration values in force, and the source of each.

    topic's own value  over  this node's, all nodes'  over  config file and flags  over  default
                             └ dynamic settings ─┘

Settings are immutable: a changed value makes a new object.  `settings[SEGMENT_BYTES]` has the type
of its key, and costs one dictionary lookup after the first time.

A config file has the format of Java properties: `key=value` or `key: value`, `#` or `!` before a
comment, `\\` at the end of a line that continues.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kafkalite.config.broker import BROKER
from kafkalite.config.group import GROUP
from kafkalite.config.key import ConfigKey, Scope
from kafkalite.config.topic import TOPIC
from kafkalite.errors import Refusal

T = TypeVar("T")


class Source(enum.IntEnum):
    """The source of a value; the numbers are those of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigSynonym(NamedTuple):
    """A value of a key in one layer, as text, with the name under which it is set."""

    name: str
    text: str | None
    source: Source


class ConfiguredValue(NamedTuple):
    """A value of a key in one layer, with the name under which it is set."""

    name: str
    value: Any
    source: Source


class Settings:
    """Typed values by key: the broker's, or a topic's over the broker's."""

    def __init__(self, layers: tuple[tuple[Source, Mapping[str, Any]], ...]) -> None:
        self._layers = layers
        self._values: dict[ConfigKey[Any], Any] = {}

    @classmethod
    def broker(
        cls,
        static: Mapping[str, str] = {},
        default: Mapping[str, str] = {},
        own: Mapping[str, str] = {},
    ) -> Settings:
        """Return a broker's settings from texts; raise InvalidConfig for an unknown or invalid one.

        `static` is from the config file and the flags; `default` and `own` are dynamic, for all
        nodes and for this one.
        """
        return cls(((Source.STATIC_BROKER, BROKER.parse(static)),)).with_dynamic(default, own)

    @classmethod
    def of(cls, source: Source, scope: Scope, texts: Mapping[str, str]) -> Settings:
        """Return settings with a single layer over the defaults."""
        return cls(((source, scope.parse(texts)),))

    def with_dynamic(self, default: Mapping[str, str], own: Mapping[str, str]) -> Settings:
        """Return a copy with these dynamic values in place of the earlier ones."""
        layers = dict(self._layers)
        layers[Source.DYNAMIC_BROKER] = BROKER.parse(own)
        layers[Source.DYNAMIC_DEFAULT_BROKER] = BROKER.parse(default)
        return Settings(tuple(sorted(layers.items())))

    def for_topic(self, overrides: Mapping[str, str] = {}) -> Settings:
        """Return the settings of a topic with these values of its own."""
        return Settings(((Source.TOPIC, TOPIC.parse(overrides)), *self._layers))

    def for_group(self, overrides: Mapping[str, str] = {}) -> Settings:
        """Return the settings of a group with these values of its own."""
        return Settings(((Source.GROUP, GROUP.parse(overrides)), *self._layers))

    def replacing(self, values: Mapping[ConfigKey[Any], Any]) -> Settings:
        """Return a copy with values that skip their checks, such as small segments in a test."""
        forced = {key.name: value for key, value in values.items()}
        return Settings(((Source.TOPIC, forced), *self._layers))

    def __getitem__(self, key: ConfigKey[T]) -> T:
        if key not in self._values:
            self._values[key] = next(self.values_of(key)).value
        value: T = self._values[key]
        return value

    def source(self, key: ConfigKey[Any]) -> Source:
        """Return the source of the key's value."""
        return next(self.values_of(key)).source

    def values_of(self, key: ConfigKey[Any]) -> Iterator[ConfiguredValue]:
        """Yield all values of the key, from the one in force to the default."""
        for name, factor in key.names:
            for source, values in self._layers:
                if name in values:
                    yield ConfiguredValue(name, scaled(values[name], factor), source)
        yield ConfiguredValue(key.name, key.default, Source.DEFAULT)

    def synonyms(self, key: ConfigKey[Any]) -> Iterator[ConfigSynonym]:
        """Yield the values as DescribeConfigs returns them: texts in the units of their names."""
        names = [each.name for each in key.names]
        for source, values in self._layers:
            for name in names:
                if name in values:
                    yield ConfigSynonym(name, value_text(named(key, name), values[name]), source)
        for name in names if names == [key.name] else names[1:]:
            default = named(key, name).default
            if default is not None:
                yield ConfigSynonym(name, value_text(named(key, name), default), Source.DEFAULT)


def named(key: ConfigKey[Any], name: str) -> ConfigKey[Any]:
    """Return the key of a synonym's name, or `key` itself."""
    return key if name == key.name else BROKER[name]


def value_text(key: ConfigKey[Any], value: Any) -> str | None:
    """Return the text of a value for a response; None for a secret or a value that is not set."""
    return None if key.sensitive or value is None else key.format(value)


def scaled(value: Any, factor: int) -> Any:
    """Return a value in the key's own unit; a negative value means unlimited in every unit."""
    if factor == 1:
        return value
    return value * factor if value >= 0 else -1


def read_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of a config file as texts; a later line overrides earlier ones."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise Refusal(f"cannot read the config file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Refusal(f"the config file {path} is not UTF-8 at byte {error.start}") from None
    properties = {}
    for number, line in logical_lines(text):
        found = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)", line, re.DOTALL)
        if not found:
            raise Refusal(f"{path}, line {number}: {line!r} is not of the form key=value")
        properties[unescaped(found[1])] = unescaped(found[2])
    return properties


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-empty logical lines with their numbers; a line that ends in `\\` continues."""
    begun, begun_at = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.lstrip()
        if not begun and (not line or line[0] in "#!"):
            continue
        begun_at = begun_at or number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            begun += line[:-1]
            continue
        yield begun_at, begun + line
        begun, begun_at = "", 0
    if begun:
        yield begun_at, begun


def unescaped(text: str) -> str:
    """Decode Java's escapes: `\\t`, `\\n`, `\\u00e9`, and a backslash before any character."""
    letters = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def replace(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return letters.get(found[2], found[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text, flags=re.DOTALL)
