"""Configuration of a group of the consumer protocol: clamped when the broker's bounds change."""

from __future__ import annotations

from kafkalite.broker.coordinator.group_coordinators import group_limits
from kafkalite.config.settings import Settings
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings, settings_in_force


def test_group_has_the_defaults_of_the_broker():
    assert settings_in_force(Settings.broker()) == ConsumerGroupSettings(45_000, 5_000, 1_000)
    broker = Settings.broker({"group.consumer.heartbeat.interval.ms": "3000"})
    assert settings_in_force(broker.for_group()).heartbeat_interval_ms == 3_000


def test_migration_policy_is_in_any_case():
    settings = Settings.broker({"group.consumer.migration.policy": "UPGRADE"})
    assert group_limits(settings).migration_policy == "upgrade"


def test_value_outside_of_later_bounds_is_clamped():
    own = {
        "consumer.session.timeout.ms": "50000",
        "consumer.heartbeat.interval.ms": "200",
        "consumer.assignment.interval.ms": "0",
    }
    bounds = {
        "group.consumer.max.session.timeout.ms": "48000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.min.assignment.interval.ms": "10",
    }
    settings = Settings.broker(bounds).for_group(own)
    assert settings_in_force(settings) == ConsumerGroupSettings(48_000, 500, 10)
