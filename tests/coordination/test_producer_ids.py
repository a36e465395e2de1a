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


def test_a_block_that_was_not_committed_was_not_given():
    machine = ProducerIds()
    assert machine.allocate(node_id=1) == machine.allocate(node_id=1)


def test_no_id_is_in_two_blocks():
    machine = ProducerIds()
    given = [producer_id for _ in range(3) for producer_id in committed(machine)]
    assert len(set(given)) == 3 * BLOCK_COUNT


def test_a_machine_made_from_the_fewest_records_gives_no_old_id():
    machine, again = ProducerIds(), ProducerIds()
    old = {*committed(machine), *committed(machine)}
    for record in machine.records():
        again.replay(record)
    assert not old & {*committed(again)}


def test_a_block_that_was_given_is_not_taken_in_again():
    machine = ProducerIds()
    record = machine.allocate(node_id=1).records[0]
    machine.replay(record)
    with pytest.raises(AssertionError):
        machine.replay(record)


def test_the_ids_end_with_an_error_and_not_with_a_negative_id():
    machine = ProducerIds()
    machine.replay(PRODUCER_IDS_BLOCK(first_id=ID_MAX - BLOCK_COUNT, count=1, node_id=0))
    with pytest.raises(UnknownServerError):
        machine.allocate(node_id=1)
