"""The next process of the controller's own node takes its partitions over."""

from __future__ import annotations

import pytest

from kafkalite.coordination.image import NodeImage, node_record
from kafkalite.coordination.partition_image import NO_LEADER, RecoveryState
from kafkalite.coordination.replication import leadership, registration
from kafkalite.coordination.replication.registration import NO_LOG, RegisteredLog
from tests.coordination.replication.factories import (
    TOPIC_ID,
    apply,
    image_of,
    part,
    partitions_of,
    rules_of,
)

THREE = (0, 1, 2)


def take_over(image, count_max=1_000):
    result = registration.take_over(image, 0, rules_of, count_max)
    apply(image, result)
    return result.response


def test_led_partition_waits_for_its_election_in_sync():
    image = image_of(part(0, THREE, replicas=THREE))
    assert take_over(image) == 1
    (taken,) = partitions_of(image)
    assert (taken.leader, taken.isr, taken.leader_epoch) == (NO_LEADER, THREE, 6)
    assert take_over(image) == 0
    apply(image, leadership.elect_missing(image, 0, rules_of))
    (elected,) = partitions_of(image)
    assert (elected.leader, elected.isr, elected.leader_epoch) == (0, THREE, 7)


def test_followed_partition_is_left():
    image = image_of(part(1, THREE, replicas=THREE), part(2, (1, 2), replicas=THREE))
    assert take_over(image) == 1
    assert [(each.leader, each.isr) for each in partitions_of(image)] == [(1, (1, 2)), (2, (1, 2))]


@pytest.mark.parametrize("partition", [
    part(0, (0,), replicas=(0,)),
    part(NO_LEADER, THREE, replicas=THREE),
    part(1, (1, 2), replicas=(1, 2)),
])  # fmt: skip
def test_other_partitions_do_not_change(partition):
    image = image_of(partition)
    assert take_over(image) == 0
    assert partitions_of(image) == [partition]


def test_partition_that_waits_for_log_ends_goes_on_waiting():
    waiting = part(NO_LEADER, THREE, replicas=THREE)
    waiting = waiting._replace(recovery_state=RecoveryState.AWAITING_LOG_ENDS)
    image = image_of(waiting)
    assert take_over(image) == 0
    assert partitions_of(image) == [waiting]


def test_many_partitions_are_taken_in_parts():
    image = image_of(*[part(0, THREE, replicas=THREE)] * 5)
    assert [take_over(image, 2) for _ in range(4)] == [2, 2, 1, 0]


def test_lost_log_of_the_node_is_not_elected():
    image = image_of(part(0, THREE, replicas=THREE), part(0, (0,), replicas=THREE, elr=(2,)))
    take_over(image)
    logs = [RegisteredLog(TOPIC_ID, index, -1, NO_LOG) for index in (0, 1)]
    lost = registration.lost_replicas(image, 0, logs)
    assert lost == {(TOPIC_ID, 0), (TOPIC_ID, 1)}
    apply(image, leadership.remove_after_loss(image, 0, rules_of, lost))
    assert [(each.leader, each.isr) for each in partitions_of(image)] == [(1, (1, 2)), (2, (2,))]


def test_registered_process_is_in_the_next_node_epoch():
    image = image_of(part(0, THREE, replicas=THREE))
    image.replay(node_record(NodeImage(0, "h", 1, node_epoch=4, incarnation=1)))
    assert not registration.is_registered(image, 0, 2)
    apply(image, registration.register(image, 0, 2))
    assert registration.is_registered(image, 0, 2)
    assert image.nodes[0].node_epoch == 5
