"""Changes of min.insync.replicas, which clear the ELR of partitions that are led."""

from __future__ import annotations

import pytest

from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.coordination.configs import ConfigAlteration, ConfigChange, ConfigOperation
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.partition_image import NO_LEADER, RecoveryState
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.coordination.replication.partition_change import PartitionRules
from tests.coordination.replication.factories import image_of, part, partitions_of

MIN_ISR = "min.insync.replicas"
SHRUNK = part(1, [1], elr=(2,))
LEADERLESS = part(NO_LEADER, [], elr=(2,), last_known_elr=(1,))
OF_TOPIC, OF_CLUSTER = (Resource.TOPIC, "t"), (Resource.BROKER, "")


def altered(controller, resource, key, text, **options):
    operation = ConfigOperation.DELETE if text is None else ConfigOperation.SET
    alteration = ConfigAlteration(*resource, [ConfigChange(key, text, operation)])
    result = controller.alter_configs([alteration], **options)
    assert result.response == {resource: None}
    for record in result.records:
        controller.replay(record)
    return partitions_of(controller.image)


@pytest.fixture
def controller():
    made = Controller()
    made.image = image_of(SHRUNK, LEADERLESS, part(1, [1, 2, 3]))
    return made


@pytest.mark.parametrize("resource", [OF_TOPIC, OF_CLUSTER])
def test_new_minimum_clears_the_elr_of_led_partitions(controller, resource):
    shrunk, *others = altered(controller, resource, MIN_ISR, "2")
    assert (shrunk.elr, shrunk.isr, shrunk.leader_epoch) == ((), (1,), SHRUNK.leader_epoch)
    assert shrunk.partition_epoch == SHRUNK.partition_epoch + 1
    assert shrunk.witnesses == (2,)
    assert others == [LEADERLESS, part(1, [1, 2, 3])]


def test_removed_minimum_clears_the_elr(controller):
    controller.image.topics["t"].config[MIN_ISR] = "2"
    assert altered(controller, OF_TOPIC, MIN_ISR, None)[0].elr == ()


def test_cleared_replica_is_no_witness_if_records_are_not_flushed(controller):
    controller.image.topics["t"].config["durability"] = "os"
    assert altered(controller, OF_TOPIC, MIN_ISR, "2")[0].witnesses == ()


def test_other_changes_keep_the_elr(controller):
    assert altered(controller, OF_TOPIC, "retention.ms", "1")[0] == SHRUNK
    assert altered(controller, OF_TOPIC, MIN_ISR, "2", validate_only=True)[0] == SHRUNK


def test_partition_that_waits_for_its_recovery_election_keeps_the_elr():
    made = Controller()
    waiting = SHRUNK._replace(leader=NO_LEADER, recovery_state=RecoveryState.AWAITING_LOG_ENDS)
    made.image = image_of(waiting)
    assert altered(made, OF_TOPIC, MIN_ISR, "2") == [waiting]


@pytest.mark.parametrize(
    ("key", "text"), [(MIN_ISR, "2"), ("durable.copies", "all"), ("durability", "os")]
)
def test_leader_reports_the_flushed_copies_again_after_a_change(controller, key, text):
    waiting = part(
        NO_LEADER, [1], recovery_state=RecoveryState.AWAITING_LOG_ENDS, flushed_copies=2
    )
    controller.image = image_of(part(1, [1, 2, 3], flushed_copies=2), waiting)
    changed, unchanged = altered(controller, OF_TOPIC, key, text)
    assert (changed.flushed_copies, changed.isr) == (1, (1, 2, 3))
    assert unchanged == waiting  # its records were acknowledged before


def test_rules_are_read_from_the_settings_of_a_topic():
    settings = Settings.broker({MIN_ISR: "2"})
    assert PartitionRules.of(settings.for_topic({})) == PartitionRules(
        2, durable_copies=DurableCopies.LEADER
    )
    texts = {MIN_ISR: "3", "unclean.leader.election.enable": "true", "durability": "os"}
    assert PartitionRules.of(settings.for_topic(texts)) == PartitionRules(3, elects_unclean=True)
