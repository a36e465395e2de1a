"""Producer identity: what the sequences of a producer's batches belong to."""

from __future__ import annotations

from typing import NamedTuple


class ProducerIdentity(NamedTuple):
    """A producer id and epoch.

    Args:
        producer_id: Id that a coordinator or broker has given to the producer.
        epoch: Epoch of the producer; a broker refuses batches of an earlier one.
    """

    producer_id: int
    epoch: int


NO_IDENTITY = ProducerIdentity(-1, -1)
