"""Argument checks of the clients' methods: partitions, offsets and topic names.

Without them Python accepts 1.5, True and "0" up to the first comparison or the encoder, and fails
there with an unrelated message, or reads from another offset.  NumPy integers are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from kafkalite.client.net.topology import TopicPartition, partition_name

OFFSET_MAX = (1 << 63) - 1

OffsetsToCommit: TypeAlias = Mapping[tuple[str, int], int | tuple[int, str | None]]
"""Offset, or offset and metadata, by (topic, partition)."""


def checked_integer(value: Any, expected: str) -> int:
    """Return an integer; raise TypeError with `expected` for another type, bool included."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{expected}, not {value!r}")
    return int(value.__index__())


def checked_partition(value: Any) -> TopicPartition:
    """Return a partition from a (topic, partition) pair."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        topic_and_number = []
    else:
        topic_and_number = list(value)
    if len(topic_and_number) != 2 or not isinstance(topic_and_number[0], str):
        raise TypeError(f"a partition must be (topic, number), as in ('orders', 0), not {value!r}")
    topic, number = topic_and_number
    return TopicPartition(topic, checked_integer(number, "a partition number must be an integer"))


def checked_offset(value: Any, name: str) -> int:
    """Return an offset; raise TypeError or ValueError if it is not one."""
    offset = checked_integer(value, f"{name} must be an integer")
    if offset < 0:
        raise ValueError(f"{name} must be at least 0, not {offset}")
    if offset > OFFSET_MAX:
        raise ValueError(f"{name} must be at most {OFFSET_MAX}, not {offset}")
    return offset


def checked_size(value: Any, name: str) -> int:
    """Return a size or a count; raise TypeError or ValueError if it is not at least 1."""
    size = checked_integer(value, f"{name} must be an integer")
    if size < 1:
        raise ValueError(f"{name} must be at least 1, not {size}")
    return size


def offsets_to_commit(
    offsets: OffsetsToCommit,
) -> dict[tuple[str, int], int | tuple[int, str | None]]:
    """Return the offset and the metadata to commit for each partition."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be {{(topic, number): offset}}, not {offsets!r}")
    wanted: dict[tuple[str, int], int | tuple[int, str | None]] = {}
    for key, given in offsets.items():
        place = checked_partition(key)
        name = f"{partition_name(place)}: a committed offset"
        pair = given if isinstance(given, tuple) else (given, "")
        if len(pair) != 2 or not isinstance(pair[1], str | None):
            raise TypeError(f"{name} must be an integer or (integer, text), not {given!r}")
        wanted[place] = checked_offset(pair[0], name), pair[1]
    return wanted


def topic_names(topics: Any) -> list[str]:
    """Return the names in a list of topics, or the single name, without duplicates."""
    given = [topics] if isinstance(topics, str) else topics
    if given is None:
        return []
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"topics must be a name or a list of names, not {topics!r}")
    names = list(dict.fromkeys(given))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a topic name must be text, not {name!r}")
    return names
