"""ResultArray: the long array of a response, whose elements are encoded singly.

A response about thousands of topics or resources is encoded in parts, over many ticks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkalite.protocol.schema import Api, MessageSchema
from kafkalite.protocol.types import Array, Field, Struct

NO_FIELDS: Mapping[str, object] = {}


class ResultArray:
    """The array `field` of an API's response; see the module.

    The response has no tagged fields.
    """

    def __init__(self, api: Api, field: str) -> None:
        fields = api.response.struct.fields
        array = fields[field]
        assert isinstance(array, Array) and isinstance(array.element, Struct)
        names = [*fields]
        position = names.index(field)
        self._element = part(api, array.element.fields)
        self._before, self._after = (
            part(api, {name: fields[name] for name in others})
            for others in (names[:position], names[position + 1 :])
        )

    def write_element(self, version: int, values: dict[str, object]) -> bytes:
        """Return the bytes of one element."""
        return self._element.write(version, values)

    def write(
        self, version: int, elements: Sequence[bytes], fields: Mapping[str, object] = NO_FIELDS
    ) -> bytes:
        """Return the bytes of the response with these elements and values of its other fields."""
        before, after = (
            message.write(
                version, {name: fields[name] for name in message.struct.fields.keys() & fields}
            )
            for message in (self._before, self._after)
        )
        if version not in self._element.flexible:
            return b"".join([before, len(elements).to_bytes(4, "big"), *elements, after])
        # Each part ends in an empty section of tagged fields; a response has one, at its end.
        count = unsigned_varint(len(elements) + 1)
        return b"".join([before[:-1], count, *elements, after])


def part(api: Api, fields: Mapping[str, Field]) -> MessageSchema:
    """Return a message of some fields of an API's response."""
    low, high = api.versions
    struct = Struct()
    struct.fields = dict(fields)
    message = MessageSchema(f"{api.name} result", struct, versions=f"{low}-{high}")
    message.flexible = api.flexible
    return message


def unsigned_varint(number: int) -> bytes:
    """Return an unsigned varint: seven bits in each byte, the lowest first."""
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
