"""Configuration of a consumer or share group: clamped when the broker's bounds change."""

from __future__ import annotations

from kafkalite.broker.coordinator.group_coordinators import group_limits
from kafkalite.config.settings import Settings
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings, settings_in_force
from kafkalite.coordination.share.share_settings import share_settings


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


def test_value_of_a_share_group_outside_of_later_bounds_is_clamped():
    own = {
        "share.session.timeout.ms": "60000",
        "share.heartbeat.interval.ms": "5000",
        "share.record.lock.duration.ms": "60000",
        "share.delivery.count.limit": "2",
        "share.partition.max.record.locks": "4000",
    }
    bounds = {
        "group.share.max.session.timeout.ms": "50000",
        "group.share.min.heartbeat.interval.ms": "6000",
        "group.share.heartbeat.interval.ms": "6000",
        "group.share.max.record.lock.duration.ms": "40000",
        "group.share.min.delivery.count.limit": "3",
        "group.share.max.partition.max.record.locks": "3000",
    }
    settings = share_settings(Settings.broker(bounds).for_group(own))
    assert (settings.session_timeout_ms, settings.heartbeat_interval_ms) == (50_000, 6_000)
    assert settings.limits[:3] == (40_000, 3, 3_000)
