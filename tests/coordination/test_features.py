"""Finalized levels of features: who supports them, upgrades and downgrades."""

from __future__ import annotations

import pytest

from kafkalite.coordination.controller import Controller
from kafkalite.coordination.features import TRANSACTION_VERSION, FeatureUpdate, UpgradeType
from kafkalite.errors import InvalidUpdateVersion
from tests.coordination.factories import cluster_of, do

UP, SAFE, UNSAFE = UpgradeType
LEVELS = {TRANSACTION_VERSION: 2}


def everywhere(workers):
    return dict.fromkeys(range(workers + 1), LEVELS)


def updated(controller, level, upgrade_type=UP, by_node=None, name=TRANSACTION_VERSION, **options):
    by_node = everywhere(2) if by_node is None else by_node
    updates = {name: FeatureUpdate(level, upgrade_type)}
    do(controller, controller.update_features(updates, by_node, **options))
    return controller.image.features.get(name)


@pytest.fixture
def controller():
    controller = cluster_of(2)
    do(controller, controller.finalize_features(everywhere(2)))
    assert controller.image.features == LEVELS
    return controller


def test_new_feature_waits_until_every_node_supports_it():
    controller = cluster_of(2)
    for by_node in (
        {0: LEVELS},
        {0: LEVELS, 1: LEVELS},
        {0: LEVELS, 1: LEVELS, 2: {}},
        {0: {}, 1: LEVELS, 2: LEVELS},
    ):
        do(controller, controller.finalize_features(by_node))
        assert controller.image.features == {}
    do(controller, controller.finalize_features(everywhere(2)))
    assert controller.image.features == LEVELS


def test_new_feature_gets_the_lowest_of_the_highest_levels():
    controller = cluster_of(1)
    do(controller, controller.finalize_features({0: LEVELS, 1: {TRANSACTION_VERSION: 1}}))
    assert controller.image.features == {TRANSACTION_VERSION: 1}


@pytest.mark.parametrize("level", [0, 1])
def test_changed_feature_is_not_finalized_again(controller, level):
    assert updated(controller, level, SAFE) == level
    assert not controller.finalize_features(everywhere(2)).records
    replica = Controller()
    for record in controller.records():
        replica.replay(record)
    assert replica.image.features == {TRANSACTION_VERSION: level}


def test_levels_are_lowered_and_raised(controller):
    for level, upgrade_type in (
        (2, UP), (2, SAFE), (1, SAFE), (1, UNSAFE), (2, UP), (0, UNSAFE), (1, UP), (0, SAFE),
    ):  # fmt: skip
        assert updated(controller, level, upgrade_type) == level


def test_validation_changes_nothing(controller):
    assert updated(controller, 1, SAFE, validate_only=True) == 2


NEITHER = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe"
    " or unsafe downgrade."
)


@pytest.mark.parametrize(
    "level, options, reason",
    [
        (1, {}, NEITHER),
        (0, {}, NEITHER),
        (1, {"upgrade_type": 0}, "The controller does not support the given upgrade type."),
        (1, {"upgrade_type": 4}, "The controller does not support the given upgrade type."),
        (-1, {"upgrade_type": SAFE}, "A feature version cannot be less than 0."),
        (7, {}, "Local controller 0 only supports versions 0-2"),
        (7, {"upgrade_type": SAFE}, "Local controller 0 only supports versions 0-2"),
        (1, {"name": "no.such"}, "Local controller 0 does not support this feature."),
        (0, {"name": "no.such", "upgrade_type": SAFE}, "Feature no.such not found."),
        (1, {"by_node": {}}, "Local controller 0 does not support this feature."),
        (1, {"by_node": {0: LEVELS, 1: LEVELS}}, "Broker 2 does not support this feature."),
        (
            2,
            {"by_node": {0: LEVELS, 1: {TRANSACTION_VERSION: 1}, 2: LEVELS}},
            "Broker 1 only supports versions 0-1",
        ),
    ],
)
def test_update_is_refused_with_the_reason_of_kafka(controller, level, options, reason):
    with pytest.raises(InvalidUpdateVersion) as refused:
        updated(controller, level, **options)
    name = options.get("name", TRANSACTION_VERSION)
    assert str(refused.value) == f"Invalid update version {level} for feature {name}. {reason}"


@pytest.mark.parametrize("upgrade_type", [SAFE, UNSAFE])
def test_downgrade_to_a_higher_level_is_refused(controller, upgrade_type):
    updated(controller, 0, SAFE)
    with pytest.raises(InvalidUpdateVersion, match="Can't downgrade to a newer version"):
        updated(controller, 1, upgrade_type)


def test_updates_of_a_request_are_made_all_or_none(controller):
    updates = {TRANSACTION_VERSION: FeatureUpdate(1, SAFE), "no.such": FeatureUpdate(1, UP)}
    with pytest.raises(InvalidUpdateVersion, match="no.such"):
        controller.update_features(updates, everywhere(2))
