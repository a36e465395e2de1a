"""New leader epochs of partitions whose logs may have lost records."""

from __future__ import annotations

from kafkalite.coordination.controller import Controller
from kafkalite.coordination.leader_epochs import EpochRenewal
from kafkalite.coordination.placement import PartitionMove
from kafkalite.coordination.topics import NewTopic
from tests.coordination.factories import cluster_of, create, do, epochs_of, leaders_of


def renew(controller: Controller, node_id: int, *wanted: EpochRenewal) -> list[EpochRenewal]:
    return do(controller, controller.renew_epochs(node_id, wanted))


def test_renewal_raises_the_epochs_of_the_given_partitions():
    controller = cluster_of(workers=2)
    topic = create(controller, NewTopic("a", 4))["a"]
    assert leaders_of(controller, "a") == [1, 2, 1, 2]
    wanted = [EpochRenewal(topic.topic_id, index, 0) for index in (0, 2)]
    assert renew(controller, 1, *wanted, wanted[0]) == wanted
    assert epochs_of(controller, "a") == [1, 0, 1, 0]
    assert leaders_of(controller, "a") == [1, 2, 1, 2]


def test_repeated_or_late_renewal_changes_nothing():
    controller = cluster_of(workers=2)
    topic = create(controller, NewTopic("a", 2))["a"]
    wanted = EpochRenewal(topic.topic_id, 0, 0)
    assert renew(controller, 1, wanted) == [wanted]
    assert renew(controller, 1, wanted) == []
    do(controller, controller.move([PartitionMove(topic.topic_id, 0, 1, 2)]))
    assert renew(controller, 1, wanted._replace(leader_epoch=2)) == []
    assert epochs_of(controller, "a") == [2, 0]


def test_renewal_skips_partitions_the_node_does_not_lead():
    controller = cluster_of(workers=2)
    topic = create(controller, NewTopic("a", 2))["a"]
    strange = [
        EpochRenewal(bytes(16), 0, 0),
        EpochRenewal(topic.topic_id, 7, 0),
        EpochRenewal(topic.topic_id, 1, 0),
    ]
    assert renew(controller, 1, *strange) == []
    assert epochs_of(controller, "a") == [0, 0]
