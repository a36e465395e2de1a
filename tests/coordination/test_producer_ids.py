"""ProducerIds: no id is in two blocks."""

from __future__ import annotations

import pytest

from kafkalite.coordination.producer_ids import BLOCK_COUNT, ID_MAX, ProducerIds
from kafkalite.errors import UnknownServerError
from kafkalite.protocol.schemas.internal import PRODUCER_IDS_BLOCK


def committed(machine: ProducerIds) -> range:
    """Allocate a block, replay its record, and return its ids."""
    result = machine.allocate(node_id=1)
    for record in result.records:
        machine.replay(record)
    return range(result.response.first_id, result.response.end_id)


def test_allocation_that_was_not_committed_is_repeated():
    machine = ProducerIds()
    assert machine.allocate(node_id=1) == machine.allocate(node_id=1)


def test_producer_id_blocks_do_not_overlap():
    machine = ProducerIds()
    given = [producer_id for _ in range(3) for producer_id in committed(machine)]
    assert len(set(given)) == 3 * BLOCK_COUNT


def test_snapshot_records_prevent_reuse_of_ids():
    machine, again = ProducerIds(), ProducerIds()
    old = {*committed(machine), *committed(machine)}
    for record in machine.records():
        again.replay(record)
    assert not old & {*committed(again)}


def test_replay_of_an_allocated_block_is_refused():
    machine = ProducerIds()
    record = machine.allocate(node_id=1).records[0]
    machine.replay(record)
    with pytest.raises(AssertionError):
        machine.replay(record)


def test_exhausted_ids_are_an_error():
    machine = ProducerIds()
    machine.replay(PRODUCER_IDS_BLOCK(first_id=ID_MAX - BLOCK_COUNT, count=1, node_id=0))
    with pytest.raises(UnknownServerError):
        machine.allocate(node_id=1)
