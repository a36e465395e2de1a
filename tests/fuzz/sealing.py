"""Batches with a correct CRC, because a fuzzer would never guess one."""

from __future__ import annotations

import struct
from array import array

from kafkalite._ext import record_batch

AS_GIVEN, SEALED, FITTED = 0, 1, 2


def sealed(given: memoryview, how: int) -> memoryview:
    """Return a copy in memory of its exact size; unless AS_GIVEN with each batch's CRC corrected,
    and if FITTED with the last batch's length corrected."""
    copy = memoryview(array("B", bytes(given)))
    at = 0
    while how != AS_GIVEN and len(copy) - at >= record_batch.HEADER_SIZE:
        (length,) = struct.unpack_from(">i", copy, at + 8)
        end = at + length + record_batch.PREFIX_SIZE
        if not at + record_batch.HEADER_SIZE <= end <= len(copy):
            if how != FITTED:
                break
            end = len(copy)
            struct.pack_into(">i", copy, at + 8, end - at - record_batch.PREFIX_SIZE)
        struct.pack_into(">I", copy, at + 17, record_batch.crc32c(copy[at + 21 : end]))
        at = end
    return copy
