"""Producer ids: given out in blocks, never the same id twice, whatever restarts.

A node takes a block and hands out its ids one by one without asking again.  What is left of the
block when the node ends is lost; there are 2^63 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafkalite.coordination.machine import Result
from kafkalite.errors import UnknownServerError
from kafkalite.protocol.schemas.internal import PRODUCER_IDS_BLOCK, Record

BLOCK_COUNT = 1000
"""How many ids a block holds."""

ID_MAX = 2**63 - 1
"""The last id the wire can carry."""


class Block(NamedTuple):
    """Consecutive producer ids for one node, up to and without `end_id`."""

    first_id: int
    end_id: int


class ProducerIds:
    """Gives blocks of producer ids to nodes."""

    def __init__(self) -> None:
        self.next_id = 0

    def allocate(self, node_id: int) -> Result[Block]:
        """Give a node its next block."""
        assert node_id >= 0
        if self.next_id > ID_MAX - BLOCK_COUNT:
            raise UnknownServerError("Every producer id there is has been given out.")
        block = Block(self.next_id, self.next_id + BLOCK_COUNT)
        record = PRODUCER_IDS_BLOCK(first_id=block.first_id, count=BLOCK_COUNT, node_id=node_id)
        return Result(block, [record])

    def replay(self, record: Record) -> None:
        """Never give this block again."""
        assert record.kind is PRODUCER_IDS_BLOCK
        assert record.fields["first_id"] >= self.next_id, "a block was given twice"
        self.next_id = record.fields["first_id"] + record.fields["count"]

    def records(self) -> Iterator[Record]:
        """An empty block says where the next one begins."""
        if self.next_id:
            yield PRODUCER_IDS_BLOCK(first_id=self.next_id, count=0, node_id=-1)
