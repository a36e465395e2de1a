"""ResultArray: a response of a throttle time and one array, whose elements are encoded singly.

A response about thousands of topics or resources is encoded in parts, over many ticks.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.protocol.schema import Api, Message
from kafkalite.protocol.types import Array, Struct

THROTTLE_TIME = bytes(4)
NO_TAGS = bytes(1)


class ResultArray:
    """The array `field` of an API's response; see the module."""

    def __init__(self, api: Api, field: str) -> None:
        assert list(api.response.struct.fields) == ["throttle_time_ms", field]
        array = api.response.struct.fields[field]
        assert isinstance(array, Array) and isinstance(array.element, Struct)
        low, high = api.versions
        self._element = Message(f"{api.name} result", array.element, versions=f"{low}-{high}")
        self._element.flexible = api.flexible

    def write_element(self, version: int, values: dict[str, object]) -> bytes:
        """Return the bytes of one element."""
        return self._element.write(version, values)

    def write(self, version: int, elements: Sequence[bytes]) -> bytes:
        """Return the bytes of the response with these elements."""
        if version not in self._element.flexible:
            count = len(elements).to_bytes(4, "big")
            return b"".join([THROTTLE_TIME, count, *elements])
        count = unsigned_varint(len(elements) + 1)
        return b"".join([THROTTLE_TIME, count, *elements, NO_TAGS])


def unsigned_varint(number: int) -> bytes:
    """Return an unsigned varint: seven bits in each byte, the lowest first."""
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
