"""ProducerIds: allocates blocks of producer ids; no id is allocated twice, across restarts.

A node requests a block and assigns its ids one by one without the controller.  The rest of the
block is lost when the node ends; there are 2^63 ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafkalite.coordination.machine import DecisionResult
from kafkalite.errors import UnknownServerError
from kafkalite.protocol.schemas.internal import PRODUCER_IDS_BLOCK, TypedRecord

BLOCK_COUNT = 1000
"""Number of ids in a block."""

ID_MAX = 2**63 - 1
"""The greatest producer id that the protocol can carry."""


class ProducerIdBlock(NamedTuple):
    """Consecutive producer ids for one node; `end_id` is exclusive."""

    first_id: int
    end_id: int


class ProducerIds:
    """The state machine that allocates blocks of producer ids to nodes."""

    def __init__(self) -> None:
        self.next_id = 0

    def allocate(self, node_id: int) -> DecisionResult[ProducerIdBlock]:
        """Return the next block for a node and the record that reserves it."""
        assert node_id >= 0
        if self.next_id > ID_MAX - BLOCK_COUNT:
            raise UnknownServerError("All producer ids are allocated.")
        block = ProducerIdBlock(self.next_id, self.next_id + BLOCK_COUNT)
        record = PRODUCER_IDS_BLOCK(first_id=block.first_id, count=BLOCK_COUNT, node_id=node_id)
        return DecisionResult(block, [record])

    def replay(self, record: TypedRecord) -> None:
        """Apply a block, so that it is not allocated again."""
        assert record.kind is PRODUCER_IDS_BLOCK
        assert record.fields["first_id"] >= self.next_id, "a block was given twice"
        self.next_id = record.fields["first_id"] + record.fields["count"]

    def records(self) -> Iterator[TypedRecord]:
        """Yield an empty block at the first id of the next one."""
        if self.next_id:
            yield PRODUCER_IDS_BLOCK(first_id=self.next_id, count=0, node_id=-1)
